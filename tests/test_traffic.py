"""The generator must be reproducible, whatever the order of answers, and its token path must extend exactly."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.effort import examples

from traffic import CLASSIC
from traffic import SCENARIOS
from traffic import Request
from traffic import Run
from traffic import Scenario
from traffic import WordTokenizer
from traffic import at_once
from traffic import chat
from traffic import endless
from traffic import fake_reply
from traffic import ids
from traffic import messages_api
from traffic import natural
from traffic import raw
from traffic import responses_api
from traffic import sequential
from traffic.__main__ import exchanges
from traffic.__main__ import main
from traffic.request import user
from traffic.run import Script
from traffic.run import once
from traffic.run import together


def requests_of(run: Run) -> list[Request]:
    """All requests of a run, one after another, with made-up answers."""
    requests = []
    while (request := run.take()) is not None:
        requests.append(request)
        run.answer(request.session, fake_reply(request, request.max_tokens))
    return requests


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_seed_gives_the_same_requests_again_and_another_seed_gives_others(name: str) -> None:
    assert requests_of(SCENARIOS[name].start(7, scale=0.1)) == requests_of(SCENARIOS[name].start(7, scale=0.1))
    assert requests_of(SCENARIOS[name].start(7, scale=0.1)) != requests_of(SCENARIOS[name].start(8, scale=0.1))


@pytest.mark.parametrize("scenario", CLASSIC, ids=lambda scenario: scenario.name)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_basic_scenario_has_the_size_that_a_small_server_can_play(scenario: Scenario, seed: int) -> None:
    lengths = [len(prompt) for prompt, _ in exchanges(scenario.start(seed))]
    assert 30 <= len(lengths) <= 80
    assert 60_000 <= sum(lengths) <= 300_000
    assert max(lengths) < 7_500


@pytest.mark.parametrize("scenario", CLASSIC, ids=lambda scenario: scenario.name)
def test_the_next_prompt_of_a_session_extends_prompt_and_reply(scenario: Scenario) -> None:
    tokenizer = WordTokenizer()
    held: dict[str, list[int]] = {}
    continued = 0
    for request in requests_of(scenario.start(5)):
        prompt = ids(request, tokenizer)
        if before := held.get(request.session):
            assert prompt[: len(before)] == before
            continued += 1
        reply = tokenizer.encode(fake_reply(request, request.max_tokens))
        assert len(reply) == request.max_tokens
        held[request.session] = prompt + reply
    assert continued > 10 or scenario.name == "same-document"


@pytest.mark.parametrize("name", SCENARIOS)
@pytest.mark.parametrize("n", [1, 4])
def test_at_once_keeps_n_in_flight_and_loses_nothing(name: str, n: int) -> None:
    flying: list[Request] = []
    sent: list[Request] = []
    most = 0
    play = at_once(SCENARIOS[name].start(3, scale=0.1), n)
    now = next(play)
    while True:
        sent += now
        flying += now
        sessions = Counter(request.session for request in flying)
        assert len(flying) <= n
        assert max(sessions.values()) == 1
        most = max(most, len(flying))
        done = flying.pop(len(sent) % len(flying))
        try:
            now = play.send((done.session, fake_reply(done, done.max_tokens)))
        except StopIteration:
            break
    assert not flying
    assert Counter(request.kind for request in sent) == Counter(
        request.kind for request in requests_of(SCENARIOS[name].start(3, scale=0.1))
    )
    if n == 1:
        assert sent == requests_of(SCENARIOS[name].start(3, scale=0.1))


def test_sequential_is_sent_the_answers_that_come_back_in_the_history() -> None:
    play = sequential(SCENARIOS["growing-chat"].start(1))
    next(play)
    for number in range(29):
        request = play.send(f"answer {number}")
        assert request.messages[-2] == {"role": "assistant", "content": f"answer {number}"}
    with pytest.raises(StopIteration):
        play.send("the last answer")


def ask(session: str) -> Request:
    return Request(session=session, messages=(user("x"),), max_tokens=1, kind="turn")


def test_a_parent_waits_for_all_its_children_and_gets_their_last_answers_in_order() -> None:
    def parent() -> Script:
        first, second = yield from together(once(ask("one")), once(ask("two")))
        answer: str = yield ask(f"parent of {first} and {second}")
        return answer

    run = Run([parent()], "rotation", seed=0)
    assert run.ready() == ("one", "two")
    assert run.take() == ask("one")
    assert run.take() == ask("two")
    assert run.take() is None
    run.answer("two", "B")
    assert run.ready() == ()
    run.answer("one", "A")
    assert run.ready() == ("parent of A and B",)


def test_rotation_takes_the_longest_waiting_first() -> None:
    sessions = [request.session for request in requests_of(SCENARIOS["five-in-rotation"].start(1))]
    assert all(count == 8 for count in Counter(sessions).values())
    assert all(len(set(sessions[place : place + 5])) == 5 for place in range(len(sessions) - 5))


def test_a_session_can_not_have_two_requests_in_flight() -> None:
    run = Run([once(ask("same")), once(ask("same"))], "rotation", seed=0)
    run.take()
    with pytest.raises(ValueError, match="'same' has a request in flight"):
        run.take()


def test_an_answer_to_a_session_with_nothing_in_flight_is_an_error() -> None:
    run = Run([once(ask("one"))], "rotation", seed=0)
    with pytest.raises(KeyError):
        run.answer("one", "too early")


@given(st.lists(st.tuples(st.lists(st.integers(0, 2), min_size=1), st.lists(st.integers(0, 2))), max_size=12))
@examples(50)
def test_endless_counts_what_no_earlier_exchange_began_with(pairs: list[tuple[list[int], list[int]]]) -> None:
    expected = 0
    prefixes: set[tuple[int, ...]] = set()
    for prompt, reply in pairs:
        new = sum(tuple(prompt[:length]) not in prefixes for length in range(1, len(prompt) + 1))
        expected += max(1, new)
        whole = prompt + reply
        prefixes |= {tuple(whole[:length]) for length in range(1, len(whole) + 1)}
    assert endless(pairs) == expected


@given(st.lists(st.sampled_from(["word", "other", ".", "\n", "<|im_start|>", "<|im_end|>", "_", "{"])), st.data())
def test_tokens_do_not_depend_on_where_a_text_is_cut_at_a_space(parts: list[str], data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(parts)))
    tokenizer = WordTokenizer()
    head, tail = " ".join(parts[:cut]), " ".join(parts[cut:])
    assert tokenizer.encode(head) + tokenizer.encode(tail) == tokenizer.encode(f"{head} {tail}")
    assert len(tokenizer.encode(head)) == cut


def test_the_shared_preamble_is_shared_and_nothing_behind_it() -> None:
    tokenizer = WordTokenizer()
    firsts: dict[str, list[int]] = {}
    for request in requests_of(SCENARIOS["shared-preamble"].start(1)):
        firsts.setdefault(request.session, ids(request, tokenizer))
    assert len(firsts) == 6
    for one, other in pairwise(firsts.values()):
        shared = next(place for place, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)
        assert 1_500 <= shared <= 1_520


@pytest.mark.parametrize("name", SCENARIOS)
def test_neither_scale_nor_length_of_answers_changes_who_asks_what(name: str) -> None:
    def asked(reply_tokens: int, scale: float) -> list[tuple[object, ...]]:
        run = SCENARIOS[name].start(1, reply_tokens=reply_tokens, scale=scale)
        return [(one.session, one.kind, one.form, one.n, len(one.messages)) for one in requests_of(run)]

    assert asked(8, 0.3) == asked(8, 0.1) == asked(40, 0.1)


def test_scale_changes_sizes() -> None:
    full = exchanges(SCENARIOS["growing-chat"].start(1))
    half = exchanges(SCENARIOS["growing-chat"].start(1, scale=0.5))
    sizes = [sum(len(prompt) for prompt, _ in pairs) for pairs in (full, half)]
    assert 0.45 < sizes[1] / sizes[0] < 0.55


def contents(request: Request) -> list[str]:
    return [str(message["content"]) for message in request.messages]


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_form_says_the_same_conversation(name: str) -> None:
    for request in requests_of(SCENARIOS[name].start(2, scale=0.2)):
        as_chat, as_text, as_blocks, as_items = map(
            json.dumps, (chat(request), raw(request), messages_api(request), responses_api(request))
        )
        for text in contents(request):
            quoted = json.dumps(text)[1:-1]
            assert all(quoted in body for body in (as_chat, as_text, as_blocks, as_items))
        for tool in request.tools:
            description = tool["function"]["description"]
            assert all(description in body for body in (as_chat, as_text, as_blocks, as_items))


@pytest.mark.parametrize("name", ["claude-code", "opencode", "codex", "mixed"])
def test_every_tool_result_answers_a_call_that_stands_before_it(name: str) -> None:
    results = 0
    for request in requests_of(SCENARIOS[name].start(2, scale=0.2)):
        called: set[str] = set()
        for message in messages_api(request)["messages"]:
            for block in message["content"]:
                if block["type"] == "tool_use":
                    assert message["role"] == "assistant"
                    called.add(block["id"])
                if block["type"] == "tool_result":
                    assert message["role"] == "user"
                    assert block["tool_use_id"] in called
                    results += 1
        items = responses_api(request)["input"]
        called = {item["call_id"] for item in items if item["type"] == "function_call"}
        assert called == {item["call_id"] for item in items if item["type"] == "function_call_output"}
    assert results > 10


def test_a_request_leaves_in_its_own_form() -> None:
    plain = replace(ask("one"), stream=False)
    assert natural(plain) == (
        "/v1/chat/completions",
        {
            "model": "local",
            "messages": [{"role": "user", "content": "x"}],
            "max_tokens": 1,
            "temperature": 0,
            "stream": False,
        },
    )
    assert natural(replace(plain, form="raw", stream=True, n=2)) == (
        "/completion",
        {
            "prompt": "<|im_start|>user\nx<|im_end|>\n<|im_start|>assistant\n",
            "n_predict": 1,
            "n_cmpl": 2,
            "temperature": 0,
            "stream": True,
        },
    )
    assert chat(replace(plain, n=2))["n"] == 2


def test_one_shot_shows_in_no_body() -> None:
    for form in (chat, raw, messages_api, responses_api):
        assert form(ask("one")) == form(replace(ask("one"), one_shot=True, kind="side"))


def test_claude_code_siblings_share_their_head_and_side_calls_have_no_tools() -> None:
    requests = requests_of(SCENARIOS["claude-code"].start(1))
    heads = {(contents(request)[0], len(request.tools)) for request in requests if request.kind == "subagent"}
    assert len(heads) == 1
    assert all(not request.tools for request in requests if request.one_shot)
    mains = {len(request.tools) for request in requests if request.session in {"claude-1", "claude-2"}}
    assert mains == {17}


def test_a_claude_code_parent_sends_nothing_while_its_subagents_work() -> None:
    order = [request.session for request in requests_of(SCENARIOS["claude-code"].start(1))]
    places = [place for place, session in enumerate(order) if session.startswith("claude-1/agent")]
    assert len(places) > 10
    assert "claude-1" not in order[places[0] : places[-1]]


def test_the_reminder_of_opencode_stands_in_the_last_user_text_only() -> None:
    reminded = 0
    for request in requests_of(SCENARIOS["opencode"].start(1)):
        texts = [str(message["content"]) for message in request.messages if message["role"] == "user"]
        assert not any("<system-reminder>" in text for text in texts[:-1])
        reminded += "<system-reminder>" in texts[-1]
        names = [tool["function"]["name"] for tool in request.tools]
        assert names == sorted(names)
    assert reminded > 10


def test_codex_appends_and_compacts_without_tools() -> None:
    last: dict[str, Request] = {}
    compacted = 0
    for request in requests_of(SCENARIOS["codex"].start(1)):
        before = last.get(request.session)
        if before and before.kind == "compaction":
            assert len(request.messages) < len(before.messages)
        elif before:
            assert request.messages[: len(before.messages)] == before.messages
        assert bool(request.tools) == (request.kind != "compaction")
        compacted += request.kind == "compaction"
        last[request.session] = request
    assert compacted == 3


def test_the_files_of_aider_stand_behind_a_growing_history() -> None:
    turns = [request for request in requests_of(SCENARIOS["aider"].start(1)) if request.session == "aider-1"]
    places = [contents(request).index("Ok, any changes go to these files.") for request in turns]
    assert places == sorted(places)
    assert places[-1] > places[0] + 10
    for request in turns:
        roles = [message["role"] for message in request.messages[1:]]
        assert all(role == ("user", "assistant")[place % 2] for place, role in enumerate(roles))


def test_the_housekeeping_of_open_webui_shares_nothing_with_its_chat() -> None:
    tokenizer = WordTokenizer()
    kinds: Counter[str] = Counter()
    for request in requests_of(SCENARIOS["open-webui"].start(1)):
        kinds[request.kind] += 1
        if request.one_shot:
            assert [message["role"] for message in request.messages] == ["user"]
            assert ids(request, tokenizer)[1] == tokenizer.encode("user")[0]
        else:
            assert ids(request, tokenizer)[1] == tokenizer.encode("system")[0]
    assert kinds["title"] == kinds["tags"] == 4
    assert kinds["follow-ups"] == kinds["turn"] == 32
    assert kinds["again"] > 0


def test_completions_of_an_editor_go_out_as_text_around_the_cursor() -> None:
    prompts = [
        raw(request)["prompt"] for request in requests_of(SCENARIOS["fim-beside-chat"].start(1)) if request.one_shot
    ]
    assert len(prompts) == 36
    for prompt in prompts:
        assert prompt.startswith("<|fim_prefix|>")
        assert prompt.endswith("<|fim_middle|>")
        assert prompt.count("<|fim_suffix|>") == 1


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_mixed_traffic_has_everything_in_it(seed: int) -> None:
    requests = requests_of(SCENARIOS["mixed"].start(seed))
    assert len(requests) > 200
    assert {(request.form, request.stream) for request in requests} == {
        (form, stream) for form in ("chat", "raw") for stream in (True, False)
    }
    assert {request.kind for request in requests} == {"turn", "side", "repeat", "abort"}
    assert {request.n for request in requests} == {1, 2, 3}
    aborts = [request for request in requests if request.abort_after is not None]
    assert {request.abort_after == "prefill" for request in aborts} == {True, False}
    assert all(request.abort_after < request.max_tokens for request in aborts if isinstance(request.abort_after, int))
    assert any(request.tools for request in requests)
    assert not all(text.isascii() for request in requests for text in contents(request))
    lengths = [len(text) for request in requests for text in contents(request)]
    assert min(lengths) < 40
    assert max(lengths) > 5_000
    last: dict[str, tuple[str, ...]] = {}
    branches = repeats = 0
    for request in requests:
        history = tuple(contents(request))
        before = last.get(request.session, ())
        branches += history[: len(before)] != before
        repeats += history == before
        last[request.session] = history
    assert branches > 5
    assert repeats > 5


def test_the_table_has_a_line_for_each_scenario_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--seed", "1", "--scale", "0.1", "growing-chat", "same-document"])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["scenario", "growing-chat", "same-document"]
    assert lines[1].split()[1] == "30"


def test_an_unknown_scenario_is_refused_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["no-such"])
    assert "no scenario 'no-such'; there are shared-preamble, " in capsys.readouterr().err
