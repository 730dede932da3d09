"""A server that refuses a steered request gets the client's own bytes, and that lever is not pulled there again."""

from __future__ import annotations

from tests.engine.literal import Flags
from tests.engine.stage import Stage
from tests.engine.stage import known

from toki.engine.events import Action
from toki.engine.events import Answered
from toki.engine.events import Decision
from toki.engine.events import Measured
from toki.engine.events import Mode
from toki.engine.events import Unsteered

FLAGS = Flags(unified=False)
CHAT = [*range(200)]


def steering(mode: Mode = Mode.PIN) -> tuple[Stage, dict[int, Decision]]:
    stage = Stage(FLAGS, mode, known(FLAGS))
    made: dict[int, Decision] = {}
    stage.checks.append(lambda key, decision: made.update({key: decision}))
    for n in range(5):
        stage.serve([900 + n] * 12, [n, n, n])
    stage.serve(CHAT, [1, 2, 3])
    return stage, made


def refuse(stage: Stage, key: int) -> None:
    stage.tell(Unsteered(key, stage.tick()))


def finish(stage: Stage) -> None:
    stage.reach(0)
    stage.headers(0)
    stage.end(0)
    stage.answer(0)


def test_it_is_sent_as_it_came_and_the_lever_is_dropped() -> None:
    stage, made = steering()
    key = stage.arrive([*CHAT, 1, 2, 7], [5])
    assert made[key].action is Action.PINNED
    refuse(stage, key)
    finish(stage)
    record = stage.records[-1]
    assert (record.action, record.predicted, record.measured.reused) == (Action.PASSED, 202, 202)
    assert "refused" in record.reason
    key = stage.arrive([*CHAT, 1, 2, 7, 8], [5])
    assert made[key].id_slot is None


def test_where_the_client_s_own_bytes_are_refused_too_the_lever_stays() -> None:
    stage, made = steering()
    key = stage.arrive([*CHAT, 1, 2, 7], [5])
    refuse(stage, key)
    stage.wire.remove(key)
    del stage.exchanges[key]
    stage.tell(Answered(key, stage.tick(), 400, Measured()))
    assert stage.records[-1].action is Action.PASSED
    key = stage.arrive([*CHAT, 1, 2, 7, 8], [5])
    assert made[key].action is Action.PINNED


def test_a_refused_swap_leaves_the_pin() -> None:
    stage, made = steering(Mode.AUTO)
    head = [*range(5000, 5600)]
    chat = [*head, *range(400)]
    for n in range(3):  # it comes again, so that it would be missed
        stage.serve(chat, [n, 1])
        chat = [*chat, n, 8, 9]
    key = stage.arrive([*head, *range(1000, 1400)], [1, 2])  # alone, it would take the slot of the other one
    assert made[key].action is Action.SWAPPED
    refuse(stage, key)
    finish(stage)
    assert not stage.knowledge.levers.usable(Action.SWAPPED)
    assert stage.knowledge.levers.usable(Action.PINNED)


def test_what_is_not_steered_or_not_known_is_not_upset() -> None:
    stage, made = steering(Mode.OBSERVE)
    key = stage.arrive(CHAT, [5])
    before = made[key]
    stage.tell(Unsteered(key, stage.tick()))
    stage.tell(Unsteered(99, stage.tick()))
    finish(stage)
    assert stage.records[-1].reason == before.reason
