"""A side call waits for the running request that it shares much with, where that pays, and not longer."""

from __future__ import annotations

import pytest
from tests.engine.literal import Flags
from tests.engine.literal import LiteralServer
from tests.engine.stage import Stage
from tests.engine.stage import known

from toki.engine import waiting
from toki.engine.contents import Contents
from toki.engine.contents import Held
from toki.engine.events import Action
from toki.engine.events import Gone
from toki.engine.events import Mode
from toki.engine.policy import Prices
from toki.engine.rules import Rules
from toki.engine.shadow import Shadow
from toki.engine.shadow import Wish
from toki.engine.tokens import Tokens
from toki.engine.waiting import Delay
from toki.engine.waiting import Pace
from toki.engine.waiting import Running

BIG = [n % 700 for n in range(3000)]
SIDE = [*BIG, 900, *range(20)]
FLAGS = Flags(unified=False)


def busy(mode: Mode = Mode.AUTO, flags: Flags = FLAGS) -> tuple[Stage, int]:
    """A trusted server whose answers are short, and a big request that runs on it."""
    stage = Stage(flags, mode, known(flags))
    for n in range(6):
        stage.serve([900 + n] * 80, [n] * 3)
    stage.knowledge.prices = Prices(evaluate=0.5)
    stage.knowledge.pace = Pace((100.0,))
    stage.serve(BIG[:2900], [1])
    key = stage.arrive(BIG, [7])
    stage.reach(0)
    stage.headers(0)
    return stage, key


def test_it_waits_and_finds_the_prefix_evaluated() -> None:
    stage, big = busy()
    side = stage.arrive(SIDE, [1])
    assert 0 < stage.waits[side] - stage.now <= len(BIG) * stage.knowledge.prices.evaluate / 1000 + 1e-9
    before = stage.evaluated
    stage.finish()
    assert stage.resumed == [side]
    stage.again(side)
    stage.finish()
    record = stage.records[-1]
    assert (record.key, record.action) == (side, Action.WAITED)
    assert record.reason.startswith("waited for a running request that saves it 3,000 tokens; ")
    assert record.predicted == record.measured.reused == len(BIG)
    assert stage.evaluated - before <= 100 + 30
    assert big != side


def test_it_goes_at_once_where_the_other_one_goes_away() -> None:
    stage, big = busy()
    side = stage.arrive(SIDE, [1])
    stage.tell(Gone(big, stage.tick(), sent=True, shown=1))
    assert stage.resumed == [side]
    stage.again(side)
    assert side not in stage.held


def test_it_waits_no_longer_than_the_prefill_that_it_saves() -> None:
    stage, _ = busy()
    side = stage.arrive(SIDE, [1])
    stage.now = stage.waits[side]
    stage.again(side)
    assert side not in stage.held
    stage.finish()
    assert stage.records[-1].measured.reused == 0
    assert stage.knowledge.levers.score[Action.WAITED] < 0


def test_a_lever_that_disappoints_is_dropped() -> None:
    stage, _ = busy()
    for n in range(2):
        stage.knowledge.pace = Pace((1000 * stage.now + 100,))  # again and again it seems to be about to end
        side = stage.arrive([*SIDE, n], [1])
        stage.now = stage.waits[side]
        stage.again(side)
    stage.knowledge.pace = Pace((1000 * stage.now + 100,))
    assert stage.arrive([*SIDE, 5], [1]) not in stage.held


def test_one_that_has_outlasted_all_others_is_not_about_to_end() -> None:
    stage, _ = busy()
    stage.now += 3
    assert stage.arrive(SIDE, [1]) not in stage.held


@pytest.mark.parametrize("pace", [Pace(), Pace((5000.0,))])
def test_it_does_not_wait_for_long_answers_or_unknown_ones(pace: Pace) -> None:
    stage, _ = busy()
    stage.knowledge.pace = pace
    assert stage.arrive(SIDE, [1]) not in stage.held


@pytest.mark.parametrize("mode", [Mode.OBSERVE, Mode.PIN])
def test_other_modes_do_not_wait(mode: Mode) -> None:
    stage, _ = busy(mode)
    assert stage.arrive(SIDE, [1]) not in stage.held


def test_two_that_waited_share_what_was_evaluated() -> None:
    stage, _ = busy()
    sides = [stage.arrive([*SIDE, n], [1]) for n in range(2)]
    assert set(stage.waits) == set(sides)
    before = stage.evaluated
    stage.finish()
    assert sorted(stage.resumed) == sides
    stage.again(sides[0])
    while sides[0] in stage.held:
        if sides[0] in stage.waits:
            stage.again(sides[0])
            continue
        stage.reach(0)
        stage.end(0)
        stage.answer(0)
    assert not stage.held
    stage.finish()
    assert stage.evaluated - before <= 100 + 2 * 30
    assert {record.action for record in stage.records if record.key in sides} == {Action.FORKED}


def test_another_server_lets_it_go() -> None:
    stage, _ = busy()
    side = stage.arrive(SIDE, [1])
    stage.restart(LiteralServer(FLAGS))
    assert side in stage.resumed
    stage.again(side)
    assert side not in stage.held


def held(contents: Contents, ids: list[int]) -> Held:
    return contents.hold(contents.add(Tokens.of(ids)), len(ids), len(ids))


def test_the_one_that_saves_most_time_is_waited_for() -> None:
    contents = Contents()
    shadow = Shadow(Rules(unified=False, n_ctx=10_000), contents)
    for key, length in ((1, 1000), (2, 3000)):
        shadow.launch(Wish(key, held(contents, [*BIG[:length], 800 + key])))
    wish = Wish(9, held(contents, SIDE))
    prices = Prices(evaluate=0.5)
    running = [Running(1, 0, 500), Running(2, 1400, 1500)]
    assert waiting.delay(shadow, wish, running, Pace((50.0,)), prices) == Delay(2, 3000, 1500)
    assert waiting.delay(shadow, wish, running[:1], Pace((50.0,)), prices) is None  # its own prefill takes too long
    assert waiting.delay(shadow, wish, running, Pace(), prices) is None
    assert waiting.delay(shadow, wish, running, Pace((50.0,)), Prices()) is None
    for key in (3, 4):
        shadow.launch(Wish(key, held(contents, [key] * 9)))
    assert waiting.delay(shadow, wish, running, Pace((50.0,)), prices) is None  # no slot is free


def test_what_is_left_of_an_answer_is_what_older_ones_took_from_there() -> None:
    pace = Pace().after(100).after(200).after(-5)
    assert list(pace.answers) == [100, 200, 0]
    assert [pace.left(age) for age in (0, 120, 200, 230)] == [150, 80, 0, 30]
    for _ in range(2 * waiting.KNOWN):
        pace = pace.after(7)
    assert pace == Pace((7,) * waiting.KNOWN)


# --- one that is about to end ---

HEAD = [n % 500 for n in range(1500)]
ONE, OTHER = [[*HEAD, 1000 + n, *(n + each for each in range(800))] for n in (1, 2)]


def about_to_end(pace: float = 30.0, evaluate: float = 0.5) -> tuple[Stage, int]:
    """Default flags: a request of one conversation runs, another one with the same head is in RAM."""
    stage = Stage(Flags(), Mode.AUTO, known(Flags()))
    for n in range(6):
        stage.serve([900 + n] * 80, [n] * 3)
    for prompt in (ONE, OTHER):  # beside each other: of two slots in use neither takes anything from the other
        stage.arrive(prompt, [1])
        stage.reach(0)
        stage.headers(0)
    stage.finish()
    stage.serve([3] * 80, [1])
    assert ONE in stage.server.ram
    assert OTHER in stage.server.ram
    stage.knowledge.prices = Prices(evaluate=evaluate)
    stage.knowledge.pace = Pace((pace,))
    key = stage.arrive([*ONE, 7], [1])
    stage.reach(0)
    stage.headers(0)
    assert key in stage.exchanges
    return stage, key


def test_it_waits_for_the_end_of_one_whose_slot_would_draw_it() -> None:
    stage, _ = about_to_end()
    key = stage.arrive([*OTHER, 8], [1])
    assert 0 < stage.waits[key] - stage.now <= waiting.MOMENT / 1000
    stage.finish()
    assert stage.resumed == [key]
    stage.again(key)
    assert key not in stage.held
    stage.finish()
    record = stage.records[-1]
    assert record.key == key
    assert record.reason.startswith("waited for the end of one whose slot would have drawn it")
    assert record.measured.reused == len(OTHER)
    before = stage.evaluated
    stage.serve([*ONE, 7, 7], [1])
    assert stage.evaluated - before == 1  # nor has the other one lost anything


def test_such_a_wait_is_one_moment_and_no_fault_of_the_lever() -> None:
    stage, _ = about_to_end()
    key = stage.arrive([*OTHER, 8], [1])
    stage.now = stage.waits[key]
    stage.again(key)
    assert key not in stage.held
    assert Action.WAITED not in stage.knowledge.levers.score


def test_little_at_stake_is_waited_for_where_it_is_surely_lost() -> None:
    stage, _ = about_to_end(waiting.LAUNCH, 0.01)
    assert stage.arrive([*OTHER, 8], [1]) in stage.held


def test_behind_the_end_it_waits_for_the_next_such_one_but_no_longer_in_all() -> None:
    stage, first = about_to_end()
    key = stage.arrive([*OTHER, 8], [1])
    until = stage.waits[key]
    stage.finish()
    assert first not in stage.exchanges
    second = stage.arrive([*ONE, 7, 7], [1])  # overtakes it
    stage.reach(0)
    stage.headers(0)
    assert second in stage.exchanges
    stage.again(key)
    assert key in stage.held
    assert stage.waits[key] == until


@pytest.mark.parametrize(("pace", "evaluate"), [(3 * waiting.MOMENT, 0.5), (100.0, 0.01)])
def test_it_goes_at_once_where_the_end_is_far_or_little_is_at_stake(pace: float, evaluate: float) -> None:
    stage, _ = about_to_end(pace, evaluate)
    assert stage.arrive([*OTHER, 8], [1]) not in stage.held


def test_strangers_are_not_drawn() -> None:
    stage, _ = about_to_end()
    assert stage.arrive([3] * 2000, [1]) not in stage.held
