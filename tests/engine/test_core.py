"""The engine in front of a literal server: what it predicts, what it never does, and that nothing upsets it."""

from __future__ import annotations

import random
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Sequence
from dataclasses import replace
from math import inf
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.effort import examples
from tests.effort import share
from tests.engine.literal import Flags
from tests.engine.literal import LiteralServer
from tests.engine.literal import common_prefix
from tests.engine.stage import Stage
from tests.engine.stage import known

import toki.engine.knowledge
from toki.engine import fork
from toki.engine import waiting
from toki.engine.account import STAKE
from toki.engine.core import Engine
from toki.engine.events import Action
from toki.engine.events import Answered
from toki.engine.events import Arrived
from toki.engine.events import Ask
from toki.engine.events import Began
from toki.engine.events import Command
from toki.engine.events import Decision
from toki.engine.events import Event
from toki.engine.events import Gone
from toki.engine.events import Kind
from toki.engine.events import Look
from toki.engine.events import Looked
from toki.engine.events import Measured
from toki.engine.events import Mode
from toki.engine.events import Outcome
from toki.engine.events import Prime
from toki.engine.events import Primed
from toki.engine.events import Read
from toki.engine.events import Record
from toki.engine.events import Replied
from toki.engine.events import Restarted
from toki.engine.events import Resume
from toki.engine.events import Send
from toki.engine.events import SlotView
from toki.engine.events import Unsteered
from toki.engine.events import Wait
from toki.engine.policy import Prices
from toki.engine.record import outcome
from toki.engine.rules import Known
from toki.engine.tokens import Tokens
from toki.engine.trust import Belief

SERVERS = {
    "default": Flags(),
    "np 4": Flags(unified=False),
    "np 4, cram 0": Flags(unified=False, ram=0),
    "np 4, cram small": Flags(unified=False, ram=1500),
    "np 5 kvu, no idle clearing": Flags(n_slots=5, idle_save=False),
    "np 5 kvu, no idle clearing, cram 0": Flags(n_slots=5, idle_save=False, ram=0),
    "np 1": Flags(n_slots=1),
    "np 4, sps 0": Flags(unified=False, sps=0.0),
    "np 4, sps 0.5": Flags(unified=False, sps=0.5),
}
each_server = pytest.mark.parametrize("flags", list(SERVERS.values()), ids=list(SERVERS))


def traffic(seed: int, n: int) -> list[tuple[list[int], list[int]]]:
    """Prompts and replies: growing chats, most of them behind one preamble, and some one-shots in between."""
    rng = random.Random(seed)

    def some(least: int, most: int) -> list[int]:
        return [rng.randrange(1000) for _ in range(rng.randrange(least, most))]

    preamble = some(100, 101)
    chats: list[list[int]] = []
    requests = []
    for _ in range(n):
        dice = rng.random()
        if dice < 0.1:
            requests.append((some(30, 31), some(4, 5)))
            continue
        if dice < 0.35 or not chats:
            chats.append((preamble if rng.random() < 0.7 else []) + some(20, 200))
            which = len(chats) - 1
        else:
            which = max(0, len(chats) - 1 - int(rng.expovariate(0.4)))
        reply = some(2, 30)
        requests.append((list(chats[which]), reply))
        chats[which] = chats[which] + reply[:-1] + some(5, 40)
    return requests


def decisions(stage: Stage) -> dict[int, Decision]:
    """What is decided from now on, by key."""
    found: dict[int, Decision] = {}
    stage.checks.append(found.__setitem__)
    return found


def serve_all(stage: Stage, requests: Sequence[tuple[list[int], list[int]]]) -> list[Record]:
    return [stage.serve(prompt, reply) for prompt, reply in requests]


def trusting(flags: Flags, mode: Mode = Mode.AUTO, min_reuse: int = 10) -> Stage:
    """A stage whose engine knows the flags and trusts itself; its slots and RAM hold some short conversations."""
    stage = Stage(flags, mode, known(flags), min_reuse)
    for n in range(6):
        stage.serve([900 + n] * 12, [n, n, n])
    assert stage.engine.belief is not None
    assert stage.engine.belief.trusted
    stage.records.clear()
    return stage


# --- predictions, one request after another -------------------------------------------------------


@each_server
@pytest.mark.parametrize("mode", [Mode.OBSERVE, Mode.AUTO])
def test_what_is_predicted_is_measured(flags: Flags, mode: Mode) -> None:
    """A hit lies in the predicted range. What cannot be read of the flags costs a miss or two until it is found out:
    99.5 % of some hundreds of requests."""
    n = 300 if share() > 1 else 30
    stage = Stage(flags, mode, Known(unified=flags.unified, ram=flags.ram or None))
    made = decisions(stage)
    misses = []
    for n_before, record in enumerate(serve_all(stage, traffic(seed=len(flags.__repr__()), n=n))):
        span, reused = made[record.key].predicted, record.measured.reused
        assert reused is not None
        if n_before >= 3 and (span is None or not span.low <= reused <= span.high):
            misses.append((n_before, span, reused))
    assert len(misses) <= 1, misses
    belief = stage.engine.belief
    assert belief is not None
    assert belief.trusted
    rules = belief.rules
    assert rules.sps == flags.sps
    assert (rules.ram > 0) == (flags.ram != 0)
    if flags.ram != 0:
        assert rules.idle_save == flags.idle_save


def test_where_requests_have_all_slots_there_is_nothing_to_wait_for() -> None:
    stage = trusting(SERVERS["np 4"])
    for n in range(3):
        assert not stage.engine.crowded(0)
        stage.arrive([900 + n] * 12, [1], stream=False)
        assert stage.engine.should_wait
    stage.arrive([990] * 12, [1], stream=False)
    assert not stage.engine.should_wait
    assert not stage.engine.crowded(4)
    assert stage.engine.crowded(5)  # nine on four slots


def test_the_range_is_no_wider_than_a_reply() -> None:
    stage = Stage(SERVERS["np 4"], Mode.OBSERVE)
    made = decisions(stage)
    requests = traffic(3, 30)
    for record, (_, reply) in zip(serve_all(stage, requests), requests, strict=True):
        span = made[record.key].predicted
        assert span is not None
        if record.key > 3:
            assert span.low <= span.likely <= span.high <= span.low + 30
            assert reply


@pytest.mark.slow
def test_the_size_of_the_ram_cache_is_found_out() -> None:
    """Within 15 % after some surprises."""
    flags = SERVERS["np 4, cram small"]
    stage = Stage(flags, Mode.OBSERVE, Known(unified=False))
    serve_all(stage, traffic(1, 300 if share() > 1 else 120))
    belief = stage.engine.belief
    assert belief is not None
    assert belief.rules.ram == pytest.approx(1500, rel=0.15)


@each_server
@pytest.mark.slow
def test_nothing_is_evaluated_in_vain(flags: Flags) -> None:
    """Steered traffic is never dearer than that of a server alone, but for the prompts that may be staked at first."""
    stage = Stage(flags, Mode.AUTO, known(flags))
    alone = Stage(flags, Mode.OFF)
    requests = traffic(7, 30)
    steered = sum(record.measured.evaluated or 0 for record in serve_all(stage, requests))
    staked = STAKE * max(len(prompt) for prompt, _ in requests)
    assert steered <= 1.02 * sum(record.measured.evaluated or 0 for record in serve_all(alone, requests)) + staked


def test_where_much_is_referred_to_it_is_not_looked_through_for_each_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toki.engine.knowledge, "COLLECT", 12)
    stage = trusting(SERVERS["np 4"])
    contents = stage.knowledge.contents
    kept = []
    keep = contents.keep

    def noted(places: Collection[int]) -> None:
        kept.append(len(places))
        keep(places)

    monkeypatch.setattr(contents, "keep", noted)
    for n in range(40):
        stage.serve([n] * 12, [1])
    assert max(kept) > 24  # what the RAM cache and the history speak of
    assert len(kept) <= 40 / 3  # each request leaves two lists


@each_server
def test_forgetting_costs_no_predictions(flags: Flags, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toki.engine.knowledge, "COLLECT", 12)
    stage = Stage(flags, Mode.AUTO, known(flags))
    made = decisions(stage)
    for record in serve_all(stage, traffic(5, 25)):
        span, reused = made[record.key].predicted, record.measured.reused
        assert span is not None
        assert reused is not None
        assert span.low <= reused <= span.high


@pytest.mark.parametrize("flags", [Flags(unified=False), Flags(n_slots=3, idle_save=False)], ids=["np 4", "np 3 kvu"])
@pytest.mark.slow
def test_a_restart_starts_clean(flags: Flags) -> None:
    stage = trusting(Flags())
    prompt = [*range(200)]
    stage.serve(prompt, [1, 2])
    stage.told = Known(unified=flags.unified)
    stage.restart(LiteralServer(flags))
    made = decisions(stage)
    record = stage.serve(prompt, [1, 2])
    first = made[record.key]
    assert first.id_slot is None
    assert first.predicted is not None
    assert first.predicted.likely == 0
    assert record.measured.reused == 0
    wrong = 0
    for record in serve_all(stage, traffic(2, 40)):
        span, reused = made[record.key].predicted, record.measured.reused
        assert span is not None
        assert reused is not None
        wrong += not span.low <= reused <= span.high
    assert wrong <= 1


def test_what_was_sent_before_a_restart_says_nothing_afterwards() -> None:
    stage = trusting(Flags())
    key = stage.arrive([*range(50)], [1, 2])
    stage.reach(0)
    stage.restart(LiteralServer(Flags()))
    assert key not in stage.exchanges
    made = decisions(stage)
    record = stage.serve([*range(60)], [1])
    span = made[record.key].predicted
    assert span is not None
    assert (span.high, record.measured.reused) == (0, 0)


@pytest.mark.parametrize("seen", ["", "headers", "answer"])
def test_a_request_that_a_new_server_has_seen_alone_is_all_that_it_holds(seen: str) -> None:
    """In mode observe nothing is held: the first request after a restart is on its way when that is noticed."""
    stage = trusting(Flags(), Mode.OBSERVE)
    stage.serve([*range(200)], [1])
    asks: list[Ask] = []

    def unread(ask: Ask) -> Ask:
        asks.append(ask)
        return replace(ask, tokens=None)

    key = stage.arrive([*range(200), 7], [1] * 4, change=unread)
    server = LiteralServer(Flags())
    stage.server = server
    stage.reach(0)
    if seen:
        stage.headers(0)
    if seen == "answer":
        stage.end(0)
        stage.answer(0)
    stage.wire = [key]  # it is not lost with the old one
    stage.restart(server)
    stage.wire = []
    stage.tell(Read(key, stage.tick(), asks[0]))
    if seen != "answer":
        stage.headers(0)
        stage.end(0)
        stage.answer(0)
    belief = stage.engine.belief
    assert belief is not None
    assert belief.base.known
    assert sorted(belief.lengths()) == [0, 0, 0, 204]
    record = next(record for record in stage.records if record.key == key)
    assert (record.predicted, record.measured.reused) == (0, 0)


# --- what may be steered --------------------------------------------------------------------------


def never_steered(stage: Stage) -> None:
    def check(key: int, decision: Decision) -> None:
        assert decision.id_slot is None
        assert decision.action is Action.PASSED
        assert decision.reason

    stage.checks.append(check)


@each_server
@pytest.mark.parametrize("mode", [Mode.OBSERVE, Mode.OFF])
def test_observe_and_off_never_steer(flags: Flags, mode: Mode) -> None:
    stage = Stage(flags, mode, known(flags))
    never_steered(stage)
    serve_all(stage, traffic(7, 25))


FIXED: dict[str, Callable[[Ask], Ask]] = {
    "its own id_slot": lambda ask: replace(ask, client_slot=1, fixed="the client chose a slot"),
    "n > 1": lambda ask: replace(ask, children=2, fixed="n > 1"),
    "a list of prompts": lambda ask: replace(ask, prompts=2, fixed="a list of prompts", tokens=None, unknown="a list"),
    "unknown tokens": lambda ask: replace(ask, tokens=None, unknown="the server did not tokenise it"),
    "an endpoint without id_slot": lambda ask: replace(ask, endpoint="/v1/messages", honours_slot=False),
    "said to be fixed": lambda ask: replace(ask, fixed="it must stay as it came"),
}


@pytest.mark.parametrize("change", list(FIXED.values()), ids=list(FIXED))
@pytest.mark.parametrize("mode", [Mode.AUTO, Mode.PIN])
def test_fixed_requests_are_never_steered(change: Callable[[Ask], Ask], mode: Mode) -> None:
    """At a moment where steering would pay: the same request without what fixes it is steered."""

    def decided(change: Callable[[Ask], Ask]) -> Decision:
        stage = trusting(Flags(unified=False, ram=0), mode)
        stage.serve([*range(300)], [1])
        made = decisions(stage)
        stage.serve([*range(310)], [1])  # it returns, and is likely to do so again
        # A sibling that would take its place: the server finds enough in common.
        key = stage.arrive([*range(50), *range(500, 750)], [1], change=change)
        stage.prime(key)
        return made[key]

    assert decided(lambda ask: ask).id_slot is not None
    decision = decided(change)
    assert decision.id_slot is None
    assert decision.action in (Action.PASSED, Action.PRIMED)
    assert decision.reason


def test_nothing_is_steered_before_there_is_trust() -> None:
    flags = Flags(unified=False, ram=0)
    stage = Stage(flags, Mode.PIN, known(flags))
    made = decisions(stage)
    requests = [([*range(100)], [1])] * 5
    serve_all(stage, requests)
    assert [made[key].id_slot is None for key in (1, 2, 3, 4, 5)] == [True, True, True, False, False]


@each_server
@pytest.mark.slow
def test_pin_takes_the_longest_prefix(flags: Flags) -> None:
    """mode pin: the verified longest prefix of any idle slot, as a loop over the server's slots finds it."""
    stage = trusting(flags, Mode.PIN)
    made = decisions(stage)
    pinned = 0
    for prompt, reply in traffic(11, 30):
        shared = [common_prefix(slot.tokens, prompt) for slot in stage.server.slots]
        record = stage.serve(prompt, reply)
        decision = made[record.key]
        if flags.n_slots == 1 or max(shared) < 10:
            assert decision.id_slot is None
        else:
            assert decision.id_slot is not None
            assert shared[decision.id_slot] == max(shared)
            pinned += 1
    assert pinned >= (8 if flags.n_slots > 1 and not (flags.unified and flags.idle_save) else 0)


@pytest.mark.parametrize("ram", [0, Flags().ram])
def test_a_steered_request_is_in_danger_where_there_is_a_ram_cache_until_it_is_launched(ram: int | None) -> None:
    stage = trusting(Flags(unified=False, ram=ram), Mode.PIN)
    stage.serve([*range(30)], [1])
    made = decisions(stage)
    before = stage.now
    key = stage.arrive([*range(20), 7, 7], [1])
    stage.prime(key)  # the first pin is tried out
    assert made[key].id_slot is not None
    assert (stage.engine.endangered_at > before) == (ram != 0)
    stage.reach(0)
    assert (stage.engine.endangered_at > before) == (ram != 0)
    stage.headers(0)
    assert stage.engine.endangered_at == -inf


def test_pin_asks_for_the_least_reuse() -> None:
    for min_reuse, pinned in ((20, True), (21, False)):
        stage = trusting(Flags(unified=False, ram=0), Mode.PIN, min_reuse)
        stage.serve([*range(30)], [1])
        made = decisions(stage)
        key = stage.arrive([*range(20), 7, 7], [1])
        assert (made[key].id_slot is not None) == pinned


def test_foreign_traffic_stops_the_steering() -> None:
    stage = trusting(Flags(unified=False))
    stage.look()
    other = LiteralServer(stage.flags)
    other.slots = stage.server.slots
    stage.server.tasks += 1
    stage.server.slots[2].id_task = stage.server.tasks
    stage.server.slots[2].tokens = [5, 5, 5]
    stage.look()
    never_steered(stage)
    serve_all(stage, traffic(7, 5))


# --- safety: any order of events ------------------------------------------------------------------

RISKY = st.builds(
    Flags,
    n_slots=st.integers(2, 4),
    unified=st.booleans(),
    idle_save=st.booleans(),
    ram=st.sampled_from([None, 200]),
    sps=st.just(0.1),
)
HAPPENINGS = st.sampled_from(
    [
        "arrive",
        "arrive",
        "arrive",
        "arrive",
        "arrive",
        "catch_up",
        "catch_up",
        "catch_up",
        "finish",
        "finish",
        "reach",
        "headers",
        "end",
        "answer",
        "reveal",
        "leave",
        "ask_slots",
        "answer_slots",
        "see_slots",
    ]
)
# What happens next, which of those that it may happen to, and how the prompt of an arrival is made.
SCRIPT = st.lists(st.tuples(HAPPENINGS, st.integers(0, 5), st.integers(0, 40)), max_size=50)


def play(stage: Stage, script: Sequence[tuple[str, int, int]], *, in_order: bool) -> None:
    """Let it all happen. `in_order`: requests reach the server in the order of their release, as do their headers."""
    texts = [[*range(40)], [*range(40), *range(100, 140)], [*range(200, 260)]]
    for name, which, cut in script:
        first = 0 if in_order else which
        if name == "catch_up":  # all that was released was seen to launch, and somebody looked
            while stage.wire:
                stage.reach(first)
            for _ in range(len(stage.exchanges)):
                stage.headers(first)
            while stage.answers:
                stage.answer(which)
            stage.peeks.clear()
            stage.look()
            stage.ask_slots()
            stage.answer_slots()
        elif name == "finish" or (name == "arrive" and len(stage.exchanges) > stage.flags.n_slots):
            stage.end(which)
            stage.answer(which)
        elif name == "arrive":
            while not in_order and stage.engine.should_wait and stage.wire:
                stage.reach(which)  # a moment of patience is longer than any way to the server
            prompt = texts[-1 - which % len(texts)][: 4 * cut + 12] + [300 + stage.keys % 7] * (cut % 5 + 1)
            reply = [400 + stage.keys % 5] * (cut % 9 + 1)
            texts.append(prompt + reply[:-1])
            stage.arrive(prompt, reply, stream=cut % 4 > 0, peek=-1 - which // 3)
        elif name in ("reach", "headers"):
            getattr(stage, name)(first)
        elif name in ("end", "answer", "leave"):
            getattr(stage, name)(which)
        elif name != "reveal" or stage.replied[0]:
            getattr(stage, name)()
        unharmed(stage)


def unharmed(stage: Stage) -> None:
    """No request that was steered has touched a running answer."""
    assert not stage.server.harmed


@examples(30)
@given(RISKY, SCRIPT)
def test_no_running_answer_is_touched_when_requests_keep_their_order(
    flags: Flags, script: list[tuple[str, int, int]]
) -> None:
    play(trusting(flags), script, in_order=True)


@examples(30)
@given(RISKY, SCRIPT)
def test_no_running_answer_is_touched_whatever_the_order(flags: Flags, script: list[tuple[str, int, int]]) -> None:
    """Requests may overtake each other between their release and the server: the order on the wire is not the order
    in which the server takes them up. A request waits while the engine says that it should."""
    play(trusting(flags), script, in_order=False)


@examples(30)
@given(RISKY, SCRIPT)
def test_no_running_answer_is_touched_in_pin_mode(flags: Flags, script: list[tuple[str, int, int]]) -> None:
    play(trusting(flags, Mode.PIN), script, in_order=False)


@pytest.mark.parametrize(
    ("look", "steered"),
    [("none", False), ("fresh", True), ("before the other launched", False), ("of a busy server", False)],
)
def test_while_others_run_only_a_fresh_look_allows_a_pin(look: str, steered: bool) -> None:
    stage = trusting(Flags(unified=False), Mode.PIN)
    stage.serve([*range(100)], [1])
    stage.arrive([*range(500, 600)], [1, 2, 3])
    stage.reach(0)
    if look == "before the other launched":
        stage.ask_slots()
        stage.answer_slots()
    stage.headers(0)
    if look in ("fresh", "of a busy server"):
        stage.ask_slots()
        stage.answer_slots()
    if look == "of a busy server":
        (peek,) = stage.peeks
        assert peek.slots is not None
        peek.slots = tuple(replace(view, busy=True) for view in peek.slots)
    made = decisions(stage)
    key = stage.arrive([*range(100), 5], [1], peek=0)
    assert (made[key].id_slot is not None) == steered


# --- settling -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reused", "expected"),
    [(None, Outcome.UNKNOWN), (0, Outcome.MISS), (9, Outcome.SOFT_HIT), (10, Outcome.HIT), (5000, Outcome.HIT)],
)
def test_outcomes(reused: int | None, expected: Outcome) -> None:
    assert outcome(reused, 10) is expected


def settle(stage: Stage, prompt: list[int], measured: Measured) -> Record:
    """A request that reports what it likes."""
    key = stage.arrive(prompt, [1])
    stage.prime(key)
    stage.reach(0)
    stage.headers(0)
    stage.end(0)
    stage.answers.remove(key)
    stage.tell(Answered(key, stage.tick(), 200, measured))
    del stage.exchanges[key]
    return stage.records[-1]


def test_no_report_is_no_miss() -> None:
    stage = trusting(Flags(unified=False))
    assert stage.engine.belief is not None
    score, errors = stage.engine.belief.score, stage.engine.belief.errors
    record = settle(stage, [*range(50)], Measured())
    assert record.outcome is Outcome.UNKNOWN
    assert (stage.engine.belief.score, stage.engine.belief.errors) == (score, errors)


@pytest.mark.parametrize("flags", [Flags(), Flags(unified=False), Flags(unified=False, ram=0)], ids=str)
def test_a_reported_zero_deletes_what_was_believed(flags: Flags) -> None:
    """The server says that nothing was reused where much was promised: nobody counts on that promise again."""
    stage = trusting(flags, Mode.PIN)
    prompt = [*range(200)]
    stage.serve(prompt, [1])
    made = decisions(stage)
    record = settle(stage, [*prompt, 5], Measured(201, 0, 201, 1))
    promised = made[record.key].predicted
    assert promised is not None
    assert promised.low == 200
    assert record.outcome is Outcome.MISS
    assert stage.wanted_looks
    assert record.action is Action.PINNED
    belief = stage.engine.belief
    assert belief is not None
    assert not [held for held in belief.base.holds() if held.length == 200]


def test_a_look_at_a_request_that_is_not_read_yet_says_nothing() -> None:
    """In mode observe a request runs before its tokens are known; the look shows what its launch has cleared."""
    stage = trusting(Flags(), Mode.OBSERVE)
    stage.serve([*range(200)], [1])
    belief = stage.engine.belief
    assert belief is not None
    before = (list(belief.base.slots), belief.errors)
    asks: list[Ask] = []

    def unread(ask: Ask) -> Ask:
        asks.append(ask)
        return replace(ask, tokens=None)

    key = stage.arrive([*range(1000, 1300)], [1], change=unread)
    stage.reach(0)
    stage.look()
    assert (list(belief.base.slots), belief.errors) == before
    stage.tell(Read(key, stage.tick(), asks[0]))
    stage.headers(0)
    stage.end(0)
    stage.answer(0)
    assert stage.serve([*range(200), 5], [1]).measured.reused == 200
    assert stage.records[-1].predicted == 200


def test_headers_that_come_before_a_request_is_read_tell_its_launch() -> None:
    """In mode observe requests are read while they run; only then it is known which ones are streams."""
    stage = trusting(Flags(unified=False), Mode.OBSERVE)
    asks: dict[int, Ask] = {}

    def unread(ask: Ask) -> Ask:
        asks[stage.keys] = ask
        return replace(ask, tokens=None, stream=False)

    waits, runs = (stage.arrive([*range(start, start + 300)], [1], change=unread) for start in (1000, 2000))
    stage.reach(1)
    stage.began(runs)
    for key in (waits, runs):
        stage.tell(Read(key, stage.tick(), asks[key]))
    belief = stage.engine.belief
    assert belief is not None
    assert set(belief.base.launches) == {runs}
    stage.reach(0)
    stage.began(waits)
    assert set(belief.base.launches) == {runs, waits}


def test_what_a_request_reused_whose_client_left_is_predicted_and_judged() -> None:
    """/v1/messages tells it with its first event."""
    stage = trusting(Flags(), Mode.OBSERVE)
    stage.serve([*range(200)], [1])
    belief = stage.engine.belief
    assert belief is not None
    score = belief.score = 5.0
    stage.arrive([*range(200), 5], [1] * 9)
    stage.reach(0)
    stage.headers(0)
    stage.tell(Gone(stage.keys, stage.tick(), sent=True, shown=2, measured=Measured(201, 200, 1, finished=False)))
    record = stage.records[-1]
    assert (record.key, record.predicted, record.outcome) == (stage.keys, 200, Outcome.HIT)
    assert belief.score == score + 1


def test_where_a_client_left_looks_are_wanted_until_one_shows_the_end() -> None:
    stage = trusting(Flags(unified=False), Mode.OBSERVE)
    stage.knowledge.prices = Prices(evaluate=1.0)
    key = stage.arrive([*range(5000, 6000)], [1])
    stage.reach(0)
    stage.headers(0)
    stage.leave(0)
    for tokens in (300, 700):
        before = stage.wanted_looks
        stage.now += 0.1
        stage.server.prefill_to(key, tokens)
        stage.look()
        assert stage.wanted_looks > before
    stage.server.cancel(key, 700)
    before = stage.wanted_looks
    stage.look()
    assert stage.wanted_looks == before
    record = stage.serve([*range(5000, 6000), 7], [1])
    assert (record.predicted, record.measured.reused) == (700, 700)


def left_behind(flags: Flags, tokens: int) -> Stage:
    """A client left a prompt of 1000 tokens; looks have shown how its prefill went on, and that it is over at `tokens`;
    then it ended, of which nothing was seen."""
    stage = trusting(flags, Mode.OBSERVE)
    stage.knowledge.prices = Prices(evaluate=1.0)
    key = stage.arrive([*range(5000, 6000)], [1], change=lambda ask: replace(ask, max_tokens=1))
    stage.reach(0)
    stage.headers(0)
    stage.leave(0)
    stage.server.prefill_to(key, 300)
    for more in (tokens // 2, tokens):
        stage.now += 1.0
        stage.server.prefill_to(key, more)
        stage.look()
    stage.server.cancel(key, tokens)
    return stage


@pytest.mark.parametrize("tokens", [700, 1000])
def test_what_a_look_showed_of_a_prefill_stays_there_after_a_client_left(tokens: int) -> None:
    stage = left_behind(Flags(unified=False), tokens)
    stage.now += 3.0
    record = stage.serve([*range(5000, 6000), 7], [1])
    assert record.span is not None
    assert (record.span.low, record.span.high, record.measured.reused) == (tokens, 1000, tokens)


def test_a_slot_that_was_cleared_since_does_not_show_what_a_client_left() -> None:
    """It is in the RAM cache: the launch that cleared the slot has stored it there."""
    stage = left_behind(Flags(), 1000)
    other = stage.arrive([*range(9000, 9100)], [1])
    stage.reach(0)
    stage.look()
    stage.headers(0)
    stage.end(0)
    assert stage.answer(0) == other
    record = stage.serve([*range(5000, 6000), 7], [1])
    assert (record.predicted, record.measured.reused) == (1000, 1000)


def test_a_slot_that_another_request_took_since_does_not_show_what_a_client_left() -> None:
    stage = left_behind(Flags(unified=False, n_slots=1), 1000)
    other = stage.arrive([*range(9000, 9100)], [1], stream=False)
    stage.reach(0)
    stage.look()
    stage.end(0)
    assert stage.answer(0) == other
    record = stage.serve([*range(5000, 6000), 7], [1])
    assert (record.predicted, record.measured.reused) == (1000, 1000)


def test_a_server_that_is_slower_than_thought_with_what_a_client_left_has_no_other_clients() -> None:
    stage = trusting(Flags(), Mode.AUTO)
    stage.serve([*range(200)], [1])
    stage.knowledge.prices = Prices(evaluate=0.01)
    stage.arrive([*range(5000, 6000)], [1])
    stage.reach(0)
    stage.headers(0)
    stage.leave(0)
    stage.look()
    stage.now += 2.0
    stage.reveal()  # anything that happens
    stage.look()
    stage.end(0)
    stage.look()
    made = decisions(stage)
    key = stage.arrive([*range(200), 5], [1])
    assert "others use" not in made[key].reason


def test_answers_without_timings_tell_how_long_a_prefill_takes_at_most() -> None:
    """Where a client left /v1/messages nothing else says when the server is done with its prompt."""
    stage = trusting(Flags(), Mode.OBSERVE)
    stage.knowledge.prices = Prices()
    settle(stage, [*range(1000, 3000)], Measured(2000, 0, 2000, 1))  # it took a few hundredths of a second
    assert not stage.knowledge.prices.measured
    assert stage.knowledge.prices.likely < 0.1
    key = stage.arrive([*range(5000, 6000)], [1])
    stage.reach(0)
    stage.headers(0)
    stage.tell(Gone(key, stage.tick(), sent=True))
    stage.server.finish(key)
    stage.now += 0.1
    record = stage.serve([*range(5000, 6000), 7], [1])
    assert (record.predicted, record.measured.reused) == (1000, 1000)


def test_wrong_predictions_end_the_steering() -> None:
    stage = trusting(Flags(unified=False, ram=0), Mode.PIN)
    stage.serve([*range(200)], [1])
    assert settle(stage, [*range(200), 5], Measured(201, 0, 201, 1)).action is Action.PINNED
    assert settle(stage, [*range(200), 5, 5], Measured(202, 0, 202, 1)).action is Action.PINNED
    made = decisions(stage)
    assert made[stage.arrive([*range(200), 5, 6], [1])].id_slot is None


@pytest.mark.slow
def test_parents_are_the_longest_exact_prefix() -> None:
    stage = Stage(Flags(unified=False), Mode.OBSERVE)
    earlier: dict[int, list[int]] = {}
    for prompt, reply in traffic(13, 40):
        record = stage.serve(prompt, reply)
        most = max((common_prefix(text, prompt) for text in earlier.values()), default=0)
        assert record.shared == most
        assert (record.parent is None) == (most == 0)
        if record.parent is not None:
            assert common_prefix(earlier[record.parent], prompt) == most
        earlier[record.key] = prompt + reply[:-1]


def conversed(stage: Stage) -> list[tuple[Event, list[Command]]]:
    """What its engine hears and says from now on."""
    told: list[tuple[Event, list[Command]]] = []
    handle = stage.engine.handle

    def listen(event: Event) -> list[Command]:
        commands = handle(event)
        told.append((event, commands))
        return commands

    stage.engine.handle = listen  # type: ignore[method-assign]
    return told


def test_the_same_events_give_the_same_commands() -> None:
    """A log of events replays to the same decisions."""
    flags = Flags(unified=False)
    stage = Stage(flags, Mode.AUTO, known(flags), proven=False)
    told = conversed(stage)
    stage.restart(LiteralServer(flags))
    serve_all(stage, traffic(17, 25))
    twin = Engine(Mode.AUTO, 10)
    twin.handle(Restarted(0.001, flags.n_slots, 1 << 20, known(flags), LiteralView))
    assert all(twin.handle(event) == commands for event, commands in told)


@pytest.mark.parametrize("flags", [Flags(), Flags(unified=False, ram=0)], ids=["true", "false"])
def test_hypotheses_that_can_never_lead_are_not_followed(flags: Flags, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two things are other there than said; be that true or not, to follow them would change nothing."""
    said: list[list[list[Command]]] = []
    for tenable, followed in ((Belief.tenable, 6), (True, 18)):
        monkeypatch.setattr(Belief, "tenable", tenable)
        stage = Stage(flags, told=known(Flags()))
        assert len(stage.knowledge.beliefs) == followed
        told = conversed(stage)
        serve_all(stage, traffic(3, 40))
        said.append([commands for _, commands in told])
    assert said[0] == said[1]


LiteralView = tuple(SlotView(number, False, 0, -1, 1 << 20) for number in range(4))


# --- whatever comes -------------------------------------------------------------------------------

COUNT = st.none() | st.integers(0, 60) | st.sampled_from([10**6, 2**40])
MEASURED = st.builds(
    Measured,
    prompt_tokens=COUNT,
    reused=COUNT,
    evaluated=COUNT,
    reply_tokens=COUNT,
    slot=st.none() | st.integers(-1, 9),
    prompt_ms=st.none() | st.floats(0, 1e9),
    truncated=st.booleans(),
    finished=st.booleans(),
)
VIEWS = st.none() | st.lists(
    st.builds(
        SlotView,
        id=st.integers(-1, 6),
        busy=st.booleans(),
        n_tokens=st.none() | st.integers(0, 60) | st.just(2**40),
        task=st.integers(-1, 9),
        n_ctx=st.integers(0, 99),
    ),
    max_size=6,
).map(tuple)
PROMPT = st.tuples(st.sampled_from([0, 12, 40]), st.lists(st.integers(0, 2), max_size=5))
ASKS = st.builds(
    lambda prompt, unknown, **more: Ask(
        "/completion", tokens=None if unknown else Tokens.of([7] * prompt[0] + prompt[1]), unknown=unknown, **more
    ),
    prompt=PROMPT,
    unknown=st.sampled_from(["", "", "", "who knows"]),
    kind=st.sampled_from([Kind.COMPLETION, Kind.COMPLETION, Kind.INFILL]),
    stream=st.booleans(),
    fixed=st.sampled_from(["", "", "as it came"]),
    honours_slot=st.booleans(),
    client_slot=st.none() | st.integers(0, 9),
    cache_prompt=st.booleans(),
    children=st.integers(0, 5),
    prompts=st.integers(1, 3),
    lora=st.sampled_from(["", "", "a"]),
)
AGO = st.floats(0, 5)  # how long ago a look was sent
KEY = st.integers(1, 9)
ANYTHING = (
    st.tuples(st.just("arrived"), ASKS, VIEWS, AGO, st.integers(0, 2))
    | st.tuples(st.just("again"), st.integers(0, 9), VIEWS, AGO, st.integers(0, 2))
    | st.tuples(st.just("arrived later"), ASKS, VIEWS, AGO)
    | st.tuples(st.just("read"), KEY, ASKS)
    | st.tuples(st.just("began"), KEY, st.sampled_from([200, 200, 400, 503]))
    | st.tuples(st.just("unsteered"), KEY)
    | st.tuples(st.just("answered"), KEY, st.sampled_from([200, 200, 200, 400, 500]), MEASURED)
    | st.tuples(st.just("gone"), KEY, st.booleans(), st.booleans(), MEASURED)
    | st.tuples(st.just("replied"), KEY, st.lists(st.integers(0, 9), max_size=9))
    | st.tuples(st.just("primed"), KEY, st.none() | MEASURED)
    | st.tuples(st.just("looked"), VIEWS, AGO)
    | st.tuples(st.just("restarted"), st.integers(1, 5), st.sampled_from([30, 1000]), VIEWS)
)


def to_event(drawn: tuple[object, ...], key: int, at: float) -> Event | None:
    """The event that was drawn; keys count back from the latest, so that most are of open requests."""
    match drawn:
        case "arrived", Ask() as ask, slots, float(ago), int(company):
            return Arrived(key, at, ask, slots, None if slots is None else at - ago, company)  # type: ignore[arg-type]
        case "arrived later", Ask() as ask, slots, float(ago):
            waiting = replace(ask, tokens=None, unknown="")
            return Arrived(key, at, waiting, slots, None if slots is None else at - ago)  # type: ignore[arg-type]
        case "read", int(back), Ask() as ask:
            return Read(key - back, at, ask)
        case "began", int(back), int(status):
            return Began(key - back, at, status)
        case "unsteered", int(back):
            return Unsteered(key - back, at)
        case "answered", int(back), int(status), Measured() as measured:
            return Answered(key - back, at, status, measured)
        case "gone", int(back), bool(sent), bool(prefilled), Measured() as measured:
            return Gone(key - back, at, sent, prefilled, measured)
        case "replied", int(back), list(ids):
            return Replied(key - back, at, np.array(ids, np.int32))
        case "primed", int(back), measured:
            return Primed(key - back, at, measured)  # type: ignore[arg-type]
        case "looked", tuple(slots), float(ago):
            return Looked(at, at - ago, slots)
        case "restarted", int(n_slots), int(n_ctx), slots:
            return Restarted(at, n_slots, n_ctx, Known(), slots)  # type: ignore[arg-type]
    return None


@examples(80)
@given(st.sampled_from(list(Mode)), st.booleans(), st.lists(ANYTHING, max_size=40))
def test_nothing_upsets_it(mode: Mode, started: bool, drawn: list[tuple[object, ...]]) -> None:
    """Lying figures, answers that nobody waits for or that come twice, odd looks, a changing server."""
    with mock.patch.object(fork, "LEAST", 5), mock.patch.object(waiting, "LEAST", 0.0):
        whatever_comes(mode, started, drawn)


def whatever_comes(mode: Mode, started: bool, drawn: list[tuple[object, ...]]) -> None:
    engine = Engine(mode, 10)
    if started:
        engine.handle(Restarted(0.0, 3, 1000, Known(), LiteralView[:3]))
    key = 0
    asks: dict[int, Ask] = {}
    held: set[int] = set()
    sent: list[int] = []
    recorded: list[int] = []
    for n, one in enumerate(drawn):
        if str(one[0]).startswith("arrived"):
            key += 1
        if one[0] == "again":
            _, which, slots, ago, company = one
            if not held:
                continue
            again = sorted(held)[int(which) % len(held)]  # type: ignore[call-overload]
            one = ("arrived", asks[again], slots, ago, company)
            event = to_event(one, again, float(n + 1))
        else:
            event = to_event(one, key + (0 if isinstance(one[1], Ask) else 1), float(n + 1))
        if event is None:
            continue
        commands = engine.handle(event)
        sends = [command for command in commands if isinstance(command, Send)]
        sent += [send.key for send in sends if not isinstance(event, Unsteered)]
        primes = [command.key for command in commands if isinstance(command, Prime)]
        waits = [command.key for command in commands if isinstance(command, Wait)]
        own = [*primes, *waits, *(send.key for send in sends if send.key == getattr(event, "key", None))]
        if isinstance(event, Arrived):
            asks[event.key] = event.ask
            held.discard(event.key)
            assert own == [event.key]
        elif isinstance(event, Unsteered):
            assert own in ([], [event.key])
        elif not isinstance(event, Primed):
            assert not [*primes, *waits, *sends]
        assert all(send.key in held for send in sends if send.key not in own)
        held |= set(waits)
        held -= {send.key for send in sends}
        for send in sends:
            decision = send.decision
            assert decision.reason
            assert decision.id_slot is None or decision.action is not Action.PASSED
            if mode in (Mode.OBSERVE, Mode.OFF):
                assert decision.id_slot is None
            for span in (decision.predicted, decision.alone):
                assert span is None or 0 <= span.low <= span.likely <= span.high
        recorded += [command.key for command in commands if isinstance(command, Record)]
        assert all(isinstance(command, (Send, Prime, Wait, Resume, Look, Record)) for command in commands)
    assert len(recorded) == len(set(recorded))
    assert len(sent) == len(set(sent))


def test_a_key_arrives_once() -> None:
    engine = Engine(Mode.AUTO, 10)
    engine.handle(Arrived(1, 1.0, Ask("/completion", tokens=Tokens.of([1]))))
    with pytest.raises(ValueError, match="arrived before"):
        engine.handle(Arrived(1, 2.0, Ask("/completion", tokens=Tokens.of([1]))))


def test_tokens_that_come_later_count() -> None:
    """A request that was released before its tokens were known still moves the beliefs on."""
    stage = Stage(Flags(unified=False), Mode.OBSERVE)
    prompt = [*range(50)]
    key = stage.arrive(prompt, [1, 2], change=lambda ask: replace(ask, tokens=None))
    stage.reach(0)
    stage.headers(0)
    stage.tell(Read(key, stage.tick(), Ask("/completion", stream=True, tokens=Tokens.of(prompt))))
    stage.end(0)
    stage.answer(0)
    made = decisions(stage)
    record = stage.serve([*prompt, 1, 9], [1])
    span = made[record.key].predicted
    assert span is not None
    assert span.low <= 51 <= span.high
    assert record.measured.reused == 51
    assert record.parent == key


def test_unknown_tokens_make_the_next_predictions_unsure() -> None:
    stage = trusting(Flags(unified=False))
    stage.serve([*range(100)], [1])
    assert stage.engine.belief is not None
    score = stage.engine.belief.score
    stage.serve([*range(500, 600)], [1], change=lambda ask: replace(ask, tokens=None, unknown="who knows"))
    settle(stage, [*range(100), 1], Measured(101, 57, 44, 1))
    assert stage.engine.belief.score >= score  # what was no prediction can't be wrong


@pytest.mark.parametrize("launch_seen", [False, True])
def test_a_prediction_waits_for_the_tokens_of_what_was_sent_before(launch_seen: bool) -> None:
    """The look-ups of a request may take longer than those of the next one: on a busy machine the prompt of a chat's
    next turn was read before that of its last turn."""
    stage = Stage(Flags(unified=False), Mode.OBSERVE, known(Flags(unified=False)))
    turns = [[*range(50)], [*range(50), 1, *range(80)], [*range(50), 1, *range(80), 1, 7]]
    keys = []
    for turn in turns:
        keys.append(stage.arrive(turn, [1, 2], change=lambda ask: replace(ask, tokens=None)))
        stage.reach(0)
        if turn is not turns[-1] or launch_seen:
            stage.headers(0)
        if turn is not turns[-1]:
            stage.end(0)
            stage.answer(0)
    for place in (0, 2, 1):
        ask = Ask("/completion", stream=True, tokens=Tokens.of(turns[place]))
        stage.tell(Read(keys[place], stage.tick(), ask))
    if not launch_seen:
        stage.headers(0)
    stage.end(0)
    stage.answer(0)
    assert [(record.key, record.measured.reused) for record in stage.records] == [
        (keys[0], 0),
        (keys[1], 51),
        (keys[2], 132),
    ]
    assert [record.predicted for record in stage.records] == [0, 51, 132]
