"""The generated traffic on real servers: every form is accepted and becomes the same prompt."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import requests

import servers
from traffic import SCENARIOS
from traffic import Request
from traffic import chat
from traffic import fake_reply
from traffic import messages_api
from traffic import natural
from traffic import responses_api
from traffic import sequential

pytestmark = pytest.mark.live


@pytest.fixture(scope="module", params=servers.BUILDS)
def server(request: pytest.FixtureRequest) -> Iterator[servers.LlamaServer]:
    with servers.start(servers.tiny_model(), servers.Flags(n_parallel=4), request.param) as running:
        yield running


def post(server: servers.LlamaServer, path: str, body: dict[str, Any]) -> Any:
    answer = requests.post(f"{server.url}{path}", json=body, timeout=60)
    assert answer.status_code == 200, answer.text
    return answer.json()


def some(name: str, count: int) -> list[Request]:
    """The first requests of a small play, with made-up answers."""
    run = SCENARIOS[name].start(1, scale=0.2)
    found: list[Request] = []
    while len(found) < count and (request := run.take()) is not None:
        found.append(request)
        run.answer(request.session, fake_reply(request, request.max_tokens))
    return found


@pytest.mark.parametrize("name", ["big-with-sides", "claude-code", "codex", "open-webui", "mixed"])
def test_every_form_of_a_request_has_the_same_length_in_tokens(server: servers.LlamaServer, name: str) -> None:
    for request in some(name, 15):
        counts = {
            post(server, path, body)["input_tokens"]
            for path, body in (
                ("/v1/chat/completions/input_tokens", chat(request)),
                ("/v1/messages/count_tokens", messages_api(request)),
                ("/v1/responses/input_tokens", responses_api(request)),
            )
        }
        assert len(counts) == 1


@pytest.mark.parametrize("form", [chat, messages_api])
def test_a_growing_chat_reuses_all_but_what_is_new(server: servers.LlamaServer, form: Any) -> None:
    """The answers of the server come back in the next prompt exactly as they stand in the slot."""
    play = sequential(SCENARIOS["growing-chat"].start(3, scale=0.2))
    request = next(play)
    held = 0
    for turn in range(8):
        if form is chat:
            answer = post(server, "/v1/chat/completions", chat(request))
            reply = answer["choices"][0]["message"]["content"]
            reused, evaluated = answer["timings"]["cache_n"], answer["timings"]["prompt_n"]
            length = answer["usage"]["completion_tokens"]
        else:
            answer = post(server, "/v1/messages", messages_api(request))
            reply = answer["content"][0]["text"]
            usage = answer["usage"]
            reused, evaluated = usage["cache_read_input_tokens"], usage["input_tokens"]
            length = usage["output_tokens"]
        assert not turn or reused == held
        held = reused + evaluated + length - 1  # the last sampled token is not in the slot
        request = play.send(reply)


def test_mixed_traffic_is_answered_in_its_own_forms(server: servers.LlamaServer) -> None:
    seen = set()
    for request in (*some("mixed", 20), *(request for request in some("mixed", 400) if request.n > 1)):
        path, body = natural(request)
        answer = post(server, path, {**body, "stream": False})
        if request.n > 1:  # a list on /completion
            assert len(answer["choices"] if path.startswith("/v1") else answer) == request.n
        seen.add((path, request.n > 1))
    assert len(seen) == 4
