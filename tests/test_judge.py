"""Judging event logs: ranges, shares, the naive belief, and launches whose order cannot be known."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from accuracy import Case
from accuracy import Result
from accuracy import held
from accuracy import lines
from accuracy import same_rules
from accuracy import share
from judge import Verdict
from judge import verdicts
from servers import Flags
from toki.engine.events import Action
from toki.engine.events import Answered
from toki.engine.events import Arrived
from toki.engine.events import Ask
from toki.engine.events import Began
from toki.engine.events import Event
from toki.engine.events import Gone
from toki.engine.events import Measured
from toki.engine.events import Mode
from toki.engine.events import Replied
from toki.engine.events import Restarted
from toki.engine.events import SlotView
from toki.engine.events import Span
from toki.engine.rules import Rules
from toki.engine.tokens import Tokens
from toki.eventlog import EventLog


def log(path: Path, *events: Event) -> Path:
    written = EventLog(path)
    engine = written.engine(Mode.OBSERVE, 10)
    for event in events:
        engine.handle(event)
    written.close()
    return path


def fresh(at: float = 0.0) -> Restarted:
    slots = tuple(SlotView(number, False, 0, -1, 4096) for number in range(4))
    return Restarted(at, 4, 4096, slots=slots)


def arrived(key: int, at: float, ids: list[int], *, stream: bool = False, children: int = 0) -> Arrived:
    return Arrived(key, at, Ask("/completion", stream=stream, tokens=Tokens.of(ids), children=children))


def answered(key: int, at: float, prompt: int, reused: int, slot: int = 3) -> Answered:
    return Answered(key, at, 200, Measured(prompt, reused, prompt - reused, 4, slot))


def test_a_chat_that_goes_on(tmp_path: Path) -> None:
    first = list(range(100))
    reply = [7, 8, 9, 10]
    following = [*first, *reply, *range(200, 250)]
    found, faults = verdicts(
        log(
            tmp_path / "log",
            fresh(),
            arrived(1, 1.0, first),
            answered(1, 2.0, 100, 0),
            Replied(1, 2.1, np.array(reply, np.int32)),
            arrived(2, 3.0, following),
            answered(2, 4.0, 154, 103),
        )
    )
    assert faults == []
    assert [(one.key, one.prompt, one.reused, one.slot, one.server) for one in found] == [
        (1, 100, 0, 3, 1),
        (2, 154, 103, 3, 1),
    ]
    assert all(one.inside and one.within(0.0) and held(one) for one in found)
    assert [one.naive for one in found] == [0, 104]  # it knows nothing of the last token, which is never decoded
    assert [one.naive_within(0.02) for one in found] == [True, True]
    assert not any(one.overlaps for one in found)


def test_a_surprise_is_outside(tmp_path: Path) -> None:
    found, _ = verdicts(log(tmp_path / "log", fresh(), arrived(1, 1.0, list(range(100))), answered(1, 2.0, 100, 50)))
    assert (found[0].predicted, found[0].inside, found[0].within(0.05)) == (Span(0, 0, 0), False, False)
    assert found[0].within(0.5)


def test_what_tells_no_reuse_is_not_judged(tmp_path: Path) -> None:
    cut = Gone(1, 2.0, True)
    found, _ = verdicts(log(tmp_path / "log", fresh(), arrived(1, 1.0, list(range(100)), stream=True), cut))
    assert found == []


def test_who_left_and_copies_are_remembered(tmp_path: Path) -> None:
    found, _ = verdicts(
        log(
            tmp_path / "log",
            fresh(),
            arrived(1, 1.0, list(range(100)), stream=True),
            Gone(1, 2.0, True),
            arrived(2, 3.0, list(range(50)), children=1),
            answered(2, 4.0, 50, 0),
            arrived(3, 5.0, list(range(300, 400))),
            answered(3, 6.0, 100, 0),
            arrived(4, 7.0, list(range(60))),
            answered(4, 8.0, 60, 0),
        )
    )
    assert [(one.key, one.since_left, one.since_copies) for one in found] == [(2, 1, None), (3, 2, 1), (4, 3, 2)]
    assert [one.left for one in found] == [50, 0, 60]


def test_a_miss_that_rests_on_what_a_client_left_is_explained() -> None:
    miss = replace(verdict(Span(700, 700, 700), 500), since_left=50)
    for left, explained in ((0, False), (650, False), (695, True), (500, True)):
        told = list(lines(Result(Case("tiny", "default"), (replace(miss, left=left),), (), 1.0)))[-1]
        assert ("unexplained" not in told) == explained


@pytest.mark.parametrize(
    ("began", "worked", "overlaps"),
    [(2.2, 0.95, True), (1.85, 0.95, False), (None, 0.95, True), (None, 1.15, False)],
)
def test_a_launch_that_may_overlap_a_finish(tmp_path: Path, began: float | None, worked: float, overlaps: bool) -> None:
    """Request 1 was seen to end at 2.0 after 0.9 s of work, which began at 1.0 or later. Request 2 was released at 1.8
    and launched when its headers came, or so long before its end at 3.0 as the server worked on it."""
    events: list[Event] = [fresh(), arrived(1, 1.0, list(range(100))), arrived(2, 1.8, [5] * 60, stream=True)]
    first = Answered(1, 2.0, 200, Measured(100, 0, 100, 4, 3, prompt_ms=400.0, reply_ms=500.0))
    events = sorted([*events, first, *([Began(2, began, 200)] if began else [])], key=lambda event: event.at)
    last = Answered(2, 3.0, 200, Measured(60, 0, 60, 4, 2, prompt_ms=1000 * worked))
    found, _ = verdicts(log(tmp_path / "log", *events, last))
    assert {one.key: one.overlaps for one in found} == {1: False, 2: overlaps}


def verdict(predicted: Span | None, reused: int, *, overlaps: bool = False) -> Verdict:
    return Verdict(
        key=1,
        prompt=1000,
        predicted=predicted,
        reused=reused,
        reply=None,
        naive=None,
        slot=0,
        action=Action.PASSED,
        reason="because",
        server=1,
        since_met=100,
        overlaps=overlaps,
        since_left=2,
        left=0,
        since_copies=None,
        rules=Rules(),
        rivals=(Rules(),),
        trusted=True,
    )


def test_held_is_inside_and_narrow() -> None:
    assert held(verdict(Span(100, 104, 107), 107))
    assert not held(verdict(Span(100, 104, 107), 108))
    assert not held(verdict(Span(100, 104, 120), 107))
    assert not held(verdict(None, 0))


def test_a_case_is_judged_by_its_own_threshold() -> None:
    right, near, wrong = (verdict(Span(500, 500, 500), reused) for reused in (500, 515, 600))
    in_turn = Case("tiny", "default")
    assert Result(in_turn, (right,) * 200, (), 1.0).passed
    assert not Result(in_turn, (*(right,) * 97, near, near, near), (), 1.0).passed
    assert Result(Case("tiny", "default", at_a_time=4), (*(near,) * 19, wrong), (), 1.0).passed
    assert Result(Case("tiny", "default", at_a_time=4), (wrong,) * 19, (), 1.0).passed  # too few to say anything
    assert not Result(Case("tiny", "default", at_a_time=4), (*(near,) * 18, wrong, wrong), (), 1.0).passed
    assert Result(Case("tiny", "default", then="-np 4"), (right, wrong, wrong, wrong), (), 1.0).passed
    assert not Result(Case("tiny", "default", then="-np 4"), (right, wrong, wrong, wrong, wrong), (), 1.0).passed
    assert not Result(in_turn, (right,), ("a fault",), 1.0).passed
    assert not Result(in_turn, (), (), 1.0).passed


def test_launches_that_overlap_a_finish_are_told_apart() -> None:
    clear, unclear = verdict(Span(500, 500, 500), 500), verdict(Span(500, 500, 500), 700, overlaps=True)
    result = Result(Case("tiny", "default", at_a_time=4), (clear, unclear), (), 1.0)
    assert (result.clear, result.apart, result.passed) == ([clear], [unclear], True)
    told = list(lines(result))
    assert told[0].startswith("ok ")
    assert "n=1, within 2 % 0.0%" in told[1]
    assert len(told) == 2  # those apart are no misses
    assert Result(Case("tiny", "default"), (clear, unclear), (), 1.0).apart == []


def test_how_many_requests_it_took_to_find_the_rules() -> None:
    right, wrong = verdict(None, 0), verdict(None, 0)
    object.__setattr__(wrong, "rules", Rules(ram=0))
    case = Case("tiny", "default")
    assert Result(case, (right, right), (), 1.0).found_after == 0
    assert Result(case, (wrong, right, wrong, right), (), 1.0).found_after == 3
    assert Result(case, (right, wrong), (), 1.0).found_after is None


def test_rules_that_nothing_measured_tells_from_the_servers_own_are_as_good() -> None:
    right, level, wrong = verdict(None, 0), verdict(None, 0), verdict(None, 0)
    for one, rivals in ((level, (Rules(ram=0), Rules())), (wrong, (Rules(ram=0),))):
        object.__setattr__(one, "rules", Rules(ram=0))
        object.__setattr__(one, "rivals", rivals)
    result = Result(Case("tiny", "default"), (wrong, level, level, right), (), 1.0)
    assert (result.found_after, result.level_after) == (3, 1)
    assert "rules after 3, none better after 1 " in next(lines(result))
    assert "rules after 3 " in next(lines(replace(result, verdicts=(wrong, wrong, wrong, right))))
    assert "rules not found, none better after 0 " in next(lines(replace(result, verdicts=(level,))))


def test_a_miss_that_tells_the_rules_is_explained_by_them() -> None:
    before, miss = verdict(Span(500, 500, 500), 500), verdict(Span(500, 500, 500), 700)
    object.__setattr__(miss, "since_left", None)
    assert "unexplained" in list(lines(Result(Case("tiny", "default"), (before, miss), (), 1.0)))[-1]
    object.__setattr__(before, "rules", Rules(ram=0))
    assert "the rules were not found yet" in list(lines(Result(Case("tiny", "default"), (before, miss), (), 1.0)))[-1]


def test_rules_are_the_same_where_nothing_can_tell_them_apart() -> None:
    assert same_rules(Rules(), Flags())
    assert not same_rules(Rules(unified=False), Flags())
    assert same_rules(Rules(n_slots=1, unified=False, idle_save=False), Flags(n_parallel=1))
    assert same_rules(Rules(unified=False), Flags(n_parallel=4))
    assert same_rules(Rules(unified=False, ram=0, idle_save=False), Flags(n_parallel=4, cache_ram_mib=0))
    assert not same_rules(Rules(unified=False), Flags(n_parallel=4, cache_ram_mib=0))
    assert not same_rules(Rules(), Flags(slot_prompt_similarity=0.0))


def test_a_share_of_nothing() -> None:
    assert share([]) == 1.0
    assert math.isclose(share([True, False, False]), 1 / 3)
