"""Sequences that are rare and were costly; most of them were found by random search."""

from __future__ import annotations

from functools import partial

import pytest
from tests.engine.literal import Flags
from tests.engine.stage import Stage
from tests.engine.stage import known
from tests.engine.test_core import decisions
from tests.engine.test_core import trusting
from tests.engine.test_fork import FLAGS
from tests.engine.test_fork import HEAD
from tests.engine.test_fork import QUESTIONS
from tests.engine.test_fork import prime
from tests.engine.test_fork import stage_of
from tests.engine.test_fork import together
from tests.engine.test_probe import Shop

from toki.engine.events import Answered
from toki.engine.events import Ask
from toki.engine.events import Measured
from toki.engine.events import Mode
from toki.engine.events import Read
from toki.engine.looks import UNCONFIRMED
from toki.engine.tokens import Tokens


def test_the_search_for_a_better_order_comes_to_an_end() -> None:
    """Two orders that each seemed better than the other, since what a look had set right could not be replayed."""
    flags = Flags(n_slots=2, unified=False, ram=0)
    stage = Stage(flags, Mode.OBSERVE, known(flags))
    head = [*range(24)]
    one = [*head, 300, 300, 300, 300]
    more = [*one, 402, 402, 402]
    stage.arrive(one, [402], stream=False)
    stage.arrive([*head, *range(24, 40), *[301] * 5], [403])
    stage.reach(0)
    stage.reach(0)
    stage.end(1)
    stage.leave(0)
    stage.end(0)  # cut off after 20 of 28 tokens
    stage.answer(0)
    stage.ask_slots()
    stage.answer_slots()
    stage.arrive([*more, 303, 303, 303], [400], stream=False, peek=0)
    stage.reach(0)
    stage.arrive([*head, *range(24, 32), 304], [401])
    stage.end(0)
    stage.answer(0)
    stage.reach(0)
    stage.arrive([*more, 305, 305], [402], stream=False)
    stage.end(0)
    stage.reach(0)
    stage.answer(0)
    stage.arrive([*more, 303, 303, 303, *[300] * 5], [404])
    stage.reach(0)
    stage.headers(0)
    stage.look()


def test_a_fork_swaps_no_slot_that_another_request_took() -> None:
    stage = stage_of(FLAGS["-np 4"])
    carrier = together(stage, QUESTIONS)[-1]
    stage.reach(0)
    stage.end(0)
    stage.answer(0)  # the head is evaluated
    stage.again(carrier)  # a fresh look: the first copy is sent
    stage.arrive([*HEAD[:1500], *range(3000, 3100)], [9] * 8)  # passes beside it, as after a long wait
    stage.reach(0)
    stage.end(0)  # the copy is made
    stage.reach(0)  # the other takes that slot
    stage.headers(0)
    stage.answer(0)
    if stage.wire:
        stage.reach(0)
    assert not stage.server.harmed


def test_nor_does_a_request_behind_its_own_primer() -> None:
    stage = trusting(Flags())
    stage.knowledge.levers.honoured["/v1/messages"] = False
    chat = [*range(5000, 5600), *range(400)]
    for n in range(3):
        stage.serve(chat, [n, 1])
        chat = [*chat, n, 8, 9]
    stage.serve([7] * 50, [1])
    stage.arrive([*range(5000, 5600), *range(1000, 1400)], [1, 2])
    assert any(one.primes for one in stage.exchanges.values())
    stage.arrive([*range(5000, 5300), *range(2000, 2100)], [9] * 8)
    stage.reach(0)
    stage.end(0)
    stage.reach(0)
    stage.headers(0)
    stage.answer(0)
    while stage.wire:
        stage.reach(0)
    assert not stage.server.harmed


@pytest.mark.parametrize("flags", [Flags(), Flags(unified=False), Flags(n_slots=1)], ids=["default", "np 4", "np 1"])
def test_a_probe_that_fails_leaves_no_slot_busy(flags: Flags) -> None:
    shop = Shop(flags=flags)
    stage = shop.stage
    key = shop.sibling(1000)
    assert shop.probing()
    shop.answer_probe(key, None)
    stage.prime(key)
    stage.finish()
    stage.look()
    assert stage.engine.belief is not None
    assert not stage.engine.belief.base.launches


def test_nor_does_a_request_whose_connection_was_never_made() -> None:
    stage = trusting(Flags(unified=False))
    stage.arrive([*range(3000, 3100)], [1], stream=False)  # its connection is being made
    stage.arrive([*range(4000, 4100)], [1])
    stage.reach(1)
    stage.headers(0)
    stage.leave(0)  # the first one's client
    stage.finish()
    stage.look()
    assert stage.engine.belief is not None
    assert not stage.engine.belief.base.launches


def test_without_looks_steering_comes_back_after_a_client_left() -> None:
    stage = trusting(Flags(unified=False, ram=0), Mode.PIN)
    stage.serve([*range(300)], [1])
    stage.arrive([*range(5000, 5100)], [1])
    stage.reach(0)
    stage.headers(0)
    stage.leave(0)
    stage.end(0)
    stage.now += 10 * UNCONFIRMED
    made = decisions(stage)
    for n in range(3):
        key = stage.arrive([*range(300), n], [1])
        stage.finish()
        stage.now += 10 * UNCONFIRMED
    assert made[key].id_slot is not None


def test_a_prompt_that_is_too_long_is_no_foreign_traffic() -> None:
    """The server launches it before it refuses it."""
    stage = trusting(Flags(unified=False, n_ctx=1000))
    stage.look()
    key = stage.arrive([*range(1200)], [])
    stage.reach(0)
    stage.server.finish(key)
    stage.tell(Answered(key, stage.tick(), 400, Measured()))
    del stage.exchanges[key]
    stage.look()  # the engine asked for it
    made = decisions(stage)
    assert "others use" not in made[stage.arrive([*range(300)], [1])].reason


def test_a_fork_makes_no_more_copies_than_there_are_slots() -> None:
    stage = stage_of(FLAGS["-np 4"])
    carrier = together(stage, QUESTIONS[:3])[-1]
    for n in range(40):
        stage.arrive([*HEAD, 2000 + n, *range(20)], [7] * 8)
    prime(stage, carrier)
    assert stage.primers == 4


def test_who_waits_for_a_fork_goes_on_where_its_carrier_left() -> None:
    stage = stage_of(FLAGS["-np 4"])
    keys = together(stage, QUESTIONS)
    for key in keys[:-1]:
        stage.again(key)
    stage.reach(0)
    stage.end(0)
    stage.answer(0)
    stage.resumed.clear()
    stage.again(keys[-1], fixed="its client left", company=1)
    assert not stage.engine._forks.members
    assert set(stage.resumed) == set(keys[:-1])


def test_lists_of_prompts_that_can_not_be_read_are_forgotten() -> None:
    flags = Flags(n_slots=1)
    stage = Stage(flags, Mode.AUTO, known(flags))
    for n in range(1600):
        unread = Ask("/v1/chat/completions", stream=True, unknown="an image", head=Tokens.of([n, n + 1, 5]))
        key = stage.arrive([n] * 5, [1], change=partial(_instead, unread))
        stage.tell(Read(key, stage.tick(), unread))
        stage.reach(0)
        stage.headers(0)
        stage.end(0)
        stage.answer(0)
        stage.server.launched.clear()
    assert len(stage.knowledge.contents) < 1200


def _instead(ask: Ask, _: Ask) -> Ask:
    return ask
