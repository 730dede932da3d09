"""Explain against traffic like that of agents, on a server that keeps everything: what is found is what clients did."""

from __future__ import annotations

import pytest
from tests.explain.cases import render
from tests.explain.cases import tokenize

from toki.engine.events import Measured
from toki.engine.tokens import Tokens
from toki.inspect.comparison import Prompt
from toki.inspect.comparison import compare
from toki.inspect.explain import Explainer
from toki.inspect.outline import of_chat
from toki.inspect.outline import of_text
from traffic import SCENARIOS
from traffic import chat
from traffic import fake_reply
from traffic.request import render as render_raw

DONE = {
    "shared-preamble": set(),
    "parent-and-subagents": set(),
    "same-document": set(),
    "claude-code": set(),
    "opencode": {"reminder-moved", "reminder-removed"},  # a mode reminder goes with the last user message
    "codex": {"compaction"},  # without tools, then from a summary
    "aider": {"edited", "rewritten", "reminder-moved"},  # the repository map, in one session once; the files
    "open-webui": {"reminder-removed"},  # what was retrieved for the last message
    "fim-beside-chat": {"window-slide"},  # the editor's window over its file
}


@pytest.mark.parametrize("name", DONE)
@pytest.mark.slow
def test_what_clients_do_is_found_and_nothing_else(name: str) -> None:
    run = SCENARIOS[name].start(seed=3)
    explainer = Explainer()
    held: list[Tokens] = []
    while (request := run.take()) is not None:
        raw = request.form == "raw"
        text = render_raw(request) if raw else render(chat(request), "tools first")
        tokens = tokenize(text)
        outline = of_text(text) if raw else of_chat(chat(request))
        comparison = compare(Prompt(len(held) + 1, outline, text, tokens), explainer.memory.prompts)
        explainer.memory.add(comparison)
        reused = min(max((tokens.common_prefix(one) for one in held), default=0), len(tokens) - 1)
        reply = fake_reply(request, request.max_tokens)
        held.append(tokenize(text + reply))
        explainer.conclude(comparison, Measured(len(tokens), reused, len(tokens) - reused), None)
        run.answer(request.session, reply)
    assert {str(tally.cause) for tally in explainer.causes} == DONE[name]
