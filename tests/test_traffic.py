"""The generator must be reproducible, whatever the order of answers, and its token path must extend exactly."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st

from traffic import CLASSIC
from traffic import SCENARIOS
from traffic import Request
from traffic import Run
from traffic import Scenario
from traffic import WordTokenizer
from traffic import at_once
from traffic import endless
from traffic import fake_reply
from traffic import ids
from traffic import sequential
from traffic.__main__ import exchanges
from traffic.request import user
from traffic.run import Script
from traffic.run import once
from traffic.run import together


def requests_of(run: Run) -> list[Request]:
    """All requests of a run, one after another, with made-up answers."""
    requests = []
    play = sequential(run)
    request = next(play, None)
    while request is not None:
        requests.append(request)
        try:
            request = play.send(fake_reply(request, request.max_tokens))
        except StopIteration:
            request = None
    return requests


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_seed_gives_the_same_requests_again_and_another_seed_gives_others(name: str) -> None:
    assert requests_of(SCENARIOS[name].start(7)) == requests_of(SCENARIOS[name].start(7))
    assert requests_of(SCENARIOS[name].start(7)) != requests_of(SCENARIOS[name].start(8))


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
    play = at_once(SCENARIOS[name].start(3), n)
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
        request.kind for request in requests_of(SCENARIOS[name].start(3))
    )
    if n == 1:
        assert sent == requests_of(SCENARIOS[name].start(3))


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
@settings(deadline=None)
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
        assert 800 <= shared <= 1_020


def test_scale_changes_sizes_not_requests() -> None:
    full = exchanges(SCENARIOS["growing-chat"].start(1))
    half = exchanges(SCENARIOS["growing-chat"].start(1, scale=0.5))
    assert len(full) == len(half)
    assert sum(len(prompt) for prompt, _ in half) < 0.6 * sum(len(prompt) for prompt, _ in full)
