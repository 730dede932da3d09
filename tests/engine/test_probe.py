"""Each lever is tried out before its first use, at no cost, and not used where that fails."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.engine.literal import Flags
from tests.engine.literal import LiteralServer
from tests.engine.stage import Stage
from tests.engine.stage import known
from tests.engine.test_fork import HEAD
from tests.engine.test_fork import QUESTIONS
from tests.engine.test_fork import prime
from tests.engine.test_fork import together

from toki.engine.events import Action
from toki.engine.events import Decision
from toki.engine.events import Measured
from toki.engine.events import Mode
from toki.engine.events import Primed

FLAGS = Flags(unified=False)
SHARED = [*range(5000, 5600)]


class Shop:
    """An engine that trusts what it knows of its server, but has used no lever on it yet."""

    def __init__(self, mode: Mode = Mode.AUTO, flags: Flags = FLAGS) -> None:
        self.stage = Stage(flags, mode, known(flags), proven=False)
        self.made: dict[int, Decision] = {}
        self.stage.checks.append(lambda key, decision: self.made.update({key: decision}))
        for n in range(5):
            self.stage.serve([900 + n] * 12, [n, n, n])
        self.chat = [*SHARED, *range(400)]
        if mode is Mode.AUTO:
            for n in range(3):
                self.stage.serve(self.chat, [n, 1])
                self.chat = [*self.chat, n, 8, 9]

    def sibling(self, first: int) -> int:
        """One that shares most of the chat: alone it would cut that off."""
        return self.stage.arrive([*SHARED, *range(first, first + 400)], [1, 2])

    def probing(self) -> list[int]:
        """The slots that probes under way name."""
        tasks = [one.task for one in self.stage.exchanges.values() if one.primes is not None]
        return [task.id_slot for task in tasks if not task.prompt]

    def answer_probe(self, key: int, measured: Measured | None) -> None:
        """What a server tells that does not do what llama-server does."""
        self.stage.wire.clear()
        self.stage.exchanges.clear()
        self.stage.tell(Primed(key, self.stage.tick(), measured))


def test_a_swap_is_tried_out_once_and_costs_nothing() -> None:
    shop = Shop()
    stage = shop.stage
    before = stage.evaluated
    key = shop.sibling(1000)
    (id_slot,) = shop.probing()
    assert id_slot >= FLAGS.n_slots
    stage.prime(key)
    assert stage.evaluated == before
    stage.finish()  # the probe has saved what the swap would have saved: nothing more is needed
    assert stage.records[-1].predicted == stage.records[-1].measured.reused == len(SHARED)
    record = stage.serve([*shop.chat, 5], [1])
    assert record.predicted == record.measured.reused == len(shop.chat) - 2
    assert record.alone == len(SHARED)
    assert stage.evaluated == before + 400 + 3


@pytest.mark.parametrize("measured", [None, Measured(0, 0, 0, 0, 0), Measured(0, 0, 0, 0)])
def test_a_swap_that_lands_elsewhere_is_not_used(measured: Measured | None) -> None:
    shop = Shop()
    key = shop.sibling(1000)
    (id_slot,) = shop.probing()
    assert id_slot % FLAGS.n_slots != 0
    shop.answer_probe(key, measured)
    shop.stage.prime(key)
    assert shop.made[key].action is not Action.SWAPPED
    assert not shop.stage.knowledge.levers.usable(Action.SWAPPED)


def test_a_pin_is_tried_out_on_an_empty_slot_where_there_is_one() -> None:
    shop = Shop(Mode.PIN, Flags(unified=False, n_slots=12))
    stage = shop.stage
    chat = [*SHARED, 1]
    key = stage.arrive(chat, [1])
    stage.finish()
    key = stage.arrive([*chat, 7], [1])
    (id_slot,) = shop.probing()
    assert id_slot < 12
    assert not stage.server.slots[id_slot].tokens
    stage.prime(key)
    assert shop.made[key].action is Action.PINNED
    assert shop.made[key].id_slot != id_slot
    stage.finish()
    assert stage.records[-1].measured.reused == len(chat)


def test_a_pin_that_is_not_heeded_is_not_used() -> None:
    shop = Shop(Mode.PIN)
    chat = [*SHARED, 1]
    shop.stage.arrive(chat, [1])
    shop.stage.finish()
    for turn in ([*chat, 7], [*chat, 7, 8]):
        key = shop.stage.arrive(turn, [1])
        for id_slot in shop.probing():
            shop.answer_probe(key, Measured(0, 0, 0, 0, (id_slot + 1) % 4))
        assert shop.made[key].id_slot is None
        shop.stage.finish()


def test_a_primer_is_preceded_by_a_probe() -> None:
    shop = Shop()
    stage = shop.stage
    stage.knowledge.levers.honoured["/v1/messages"] = False
    for n, probes in enumerate([1, 0]):
        prompt = [*SHARED, *range(1000 * n + 1000, 1000 * n + 1400)]
        key = stage.arrive(prompt, [1], change=lambda ask: replace(ask, endpoint="/v1/messages", honours_slot=False))
        assert len(shop.probing()) == probes
        stage.prime(key)
        stage.finish()
        assert stage.records[-1].predicted == stage.records[-1].measured.reused


def test_the_copies_of_a_fork_are_preceded_by_a_probe() -> None:
    stage = Stage(FLAGS, told=known(FLAGS), proven=False)
    keys = together(stage, QUESTIONS)
    prime(stage, keys[-1])
    stage.finish()
    assert stage.primers == 4 + 1
    assert {record.action for record in stage.records} == {Action.FORKED}
    assert stage.evaluated <= len(HEAD) + 4 * 30


def test_without_a_swap_there_are_no_copies() -> None:
    stage = Stage(FLAGS, told=known(FLAGS), proven=False)
    keys = together(stage, QUESTIONS)
    stage.reach(0)
    stage.end(0)
    stage.answer(0)
    stage.again(keys[-1])
    stage.wire.clear()
    stage.exchanges.clear()
    stage.tell(Primed(keys[-1], stage.tick(), None))
    assert not stage.held
    assert stage.primers == 2
    stage.finish()
    assert {record.key: record.action for record in stage.records} == dict.fromkeys(keys, Action.FORKED)
    together(stage, [[*range(9000, 10_000), n] for n in range(3)])
    for key in list(stage.waits):
        stage.again(key)
    assert not stage.held
    assert stage.primers == 2


def test_another_server_is_tried_anew() -> None:
    shop = Shop()
    shop.stage.prime(shop.sibling(1000))
    shop.stage.finish()
    assert shop.stage.knowledge.levers.proven
    shop.stage.restart(LiteralServer(FLAGS))
    assert not shop.stage.knowledge.levers.proven
