"""Which requests need no decision: where one goes on from what a slot holds, the server's own choice is the best."""

from __future__ import annotations

from dataclasses import replace

from tests.engine.literal import Flags
from tests.engine.stage import Stage
from tests.engine.stage import known
from tests.engine.test_core import each_server
from tests.engine.test_core import traffic
from tests.engine.test_core import trusting

from toki.engine import waiting
from toki.engine.events import Gone
from toki.engine.events import Mode
from toki.engine.waiting import Pace

SPLIT = Flags(unified=False)
LONG = [n % 700 for n in range(300)]


@each_server
def test_what_is_let_go_on_would_have_passed_and_finds_all(flags: Flags) -> None:
    stage = Stage(flags, Mode.AUTO, known(flags))
    answered: dict[int, list[int]] = {}  # by key: prompt and reply
    found = 0
    for prompt, reply in [one for seed in range(2) for one in traffic(seed, 40)]:
        before = [key for key, old in answered.items() if prompt[: len(old)] == old and 3 * len(old) >= 2 * len(prompt)]
        lets = bool(before) and stage.engine.lets_go_on(before[-1], stage.now)
        record = stage.serve(prompt, reply)
        if lets:
            assert record.action == "passed"
            assert record.measured.reused == min(len(answered[before[-1]]), len(prompt) - 1)
            found += 1
        for key in before:
            del answered[key]
        answered[record.key] = [*prompt, *reply[:-1]]
    assert found == 0 if flags.sps == 0 else found > 0


def test_only_in_mode_auto() -> None:
    for mode in Mode:
        stage = Stage(SPLIT, mode, known(SPLIT))
        record = stage.serve(LONG, [1, 2])
        assert stage.engine.lets_go_on(record.key, stage.now) == (mode is Mode.AUTO)


def test_another_one_that_runs_beside_it_changes_nothing_but_where_it_took_the_slot() -> None:
    stage = trusting(SPLIT)
    first = stage.serve(LONG, [1, 2])
    stage.arrive([800] * 50, [1])
    assert not stage.engine.lets_go_on(first.key, stage.now)  # it may still land anywhere
    stage.reach(0)
    stage.headers(0)
    assert stage.engine.lets_go_on(first.key, stage.now)
    stage.arrive([*LONG, 1, 2, 3], [1])
    stage.reach(0)
    stage.headers(0)
    assert not stage.engine.lets_go_on(first.key, stage.now)


def test_where_idle_slots_are_cleared_only_the_latest_one_stands() -> None:
    stage = trusting(Flags())
    first = stage.serve(LONG, [1, 2])
    assert stage.engine.lets_go_on(first.key, stage.now)
    second = stage.serve([800] * 50, [1, 2])
    assert not stage.engine.lets_go_on(first.key, stage.now)
    assert stage.engine.lets_go_on(second.key, stage.now)


def test_where_a_launch_has_emptied_the_slots_it_is_found_in_ram_unless_another_slot_draws_it() -> None:
    stage = trusting(Flags())
    prompts = [[*LONG, n, *range(50)] for n in (1, 2)]
    first, second = (stage.arrive(prompt, [1, 2]) for prompt in prompts)  # neither takes the other's slot
    for _ in prompts:
        stage.reach(0)
        stage.headers(0)
    stage.finish()
    assert all(stage.engine.lets_go_on(key, stage.now) for key in (first, second))  # in slots
    third = stage.arrive([*prompts[1], 1, 3], [1, 2])
    stage.knowledge.pace = Pace((waiting.HELD - 10,))
    assert stage.engine.lets_go_on(first, stage.now)  # it is in RAM by then, whenever that one is launched
    stage.reach(0)
    stage.headers(0)
    assert stage.engine.lets_go_on(first, stage.now)
    for pace in (Pace((waiting.LAUNCH,)), Pace()):
        stage.knowledge.pace = pace
        assert not stage.engine.lets_go_on(first, stage.now)  # that one may end before it gets there
    stage.knowledge.pace = Pace((10 * waiting.HELD,))
    assert not stage.engine.lets_go_on(first, stage.now)  # there is time to decide
    stage.finish()
    stage.knowledge.pace = Pace((waiting.HELD - 10,))
    assert not stage.engine.lets_go_on(first, stage.now)  # its slot would draw it
    assert stage.engine.lets_go_on(third, stage.now)
    before = stage.evaluated
    stage.arrive([*prompts[1], 1, 3, 1, 3], [1, 2])
    assert stage.engine.lets_go_on(first, stage.now)
    stage.arrive([*prompts[0], 1, 3], [1, 2], change=lambda ask: replace(ask, unknown="it goes on"))
    for _ in prompts:
        stage.reach(0)
        stage.headers(0)
    stage.finish()
    assert stage.evaluated - before <= 2 + 2


def test_what_is_neither_in_a_slot_nor_in_ram_is_not_let_go_on() -> None:
    stage = trusting(Flags())
    first = stage.serve([*LONG, 1, *range(50)], [1, 2])
    second = stage.serve([*LONG, 2, *range(50)], [1, 2])  # drawn to the slot of the first one, of which it drops most
    stage.knowledge.pace = Pace((waiting.HELD - 10,))
    stage.arrive([*LONG, 2, *range(50), 1, 3], [1, 2])
    stage.reach(0)
    stage.headers(0)
    assert second.measured.reused == len(LONG)
    assert not stage.engine.lets_go_on(first.key, stage.now)


def test_one_whose_client_left_is_about_to_end() -> None:
    stage = trusting(Flags())
    first = stage.serve(LONG, [1, 2])
    key = stage.arrive([800] * 20, [1, 2])
    stage.reach(0)
    stage.headers(0)
    stage.knowledge.pace = Pace((waiting.HELD / 2,))
    assert stage.engine.lets_go_on(first.key, stage.now)
    stage.tell(Gone(key, stage.tick(), sent=True, shown=1))
    assert not stage.engine.lets_go_on(first.key, stage.now)


def test_nothing_stands_of_a_request_whose_client_left() -> None:
    stage = trusting(SPLIT)
    key = stage.arrive(LONG, [1, 2])
    stage.reach(0)
    stage.headers(0)
    stage.tell(Gone(key, stage.tick(), sent=True, shown=1))
    assert not stage.engine.lets_go_on(key, stage.now)
