"""Which requests need no decision: where one goes on from what a slot holds, the server's own choice is the best."""

from __future__ import annotations

from tests.engine.literal import Flags
from tests.engine.stage import Stage
from tests.engine.stage import known
from tests.engine.test_core import each_server
from tests.engine.test_core import traffic
from tests.engine.test_core import trusting

from toki.engine.events import Gone
from toki.engine.events import Mode

SPLIT = Flags(unified=False)
LONG = [n % 700 for n in range(300)]


@each_server
def test_what_is_let_go_on_would_have_passed_and_finds_all(flags: Flags) -> None:
    stage = Stage(flags, Mode.AUTO, known(flags))
    answered: dict[int, list[int]] = {}  # by key: prompt and reply
    found = 0
    for prompt, reply in [one for seed in range(2) for one in traffic(seed, 40)]:
        before = [key for key, old in answered.items() if prompt[: len(old)] == old and 3 * len(old) >= 2 * len(prompt)]
        lets = bool(before) and stage.engine.lets_go_on(before[-1])
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
        assert stage.engine.lets_go_on(record.key) == (mode is Mode.AUTO)


def test_another_one_that_runs_beside_it_changes_nothing_but_where_it_took_the_slot() -> None:
    stage = trusting(SPLIT)
    first = stage.serve(LONG, [1, 2])
    stage.arrive([800] * 50, [1])
    assert not stage.engine.lets_go_on(first.key)  # it may still land anywhere
    stage.reach(0)
    stage.headers(0)
    assert stage.engine.lets_go_on(first.key)
    stage.arrive([*LONG, 1, 2, 3], [1])
    stage.reach(0)
    stage.headers(0)
    assert not stage.engine.lets_go_on(first.key)


def test_where_idle_slots_are_cleared_only_the_latest_one_stands() -> None:
    stage = trusting(Flags())
    first = stage.serve(LONG, [1, 2])
    assert stage.engine.lets_go_on(first.key)
    second = stage.serve([800] * 50, [1, 2])
    assert not stage.engine.lets_go_on(first.key)
    assert stage.engine.lets_go_on(second.key)


def test_nothing_stands_of_a_request_whose_client_left() -> None:
    stage = trusting(SPLIT)
    key = stage.arrive(LONG, [1, 2])
    stage.reach(0)
    stage.headers(0)
    stage.tell(Gone(key, stage.tick(), sent=True, shown=1))
    assert not stage.engine.lets_go_on(key)
