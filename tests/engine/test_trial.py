"""Whether an endpoint honours id_slot is found out once, by a request that would gain by it and loses nothing else."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.engine.literal import Flags
from tests.engine.stage import Stage
from tests.engine.stage import known

from toki.engine.contents import UNKNOWN
from toki.engine.events import Action
from toki.engine.events import Ask
from toki.engine.events import Decision
from toki.engine.events import Gone
from toki.engine.events import Measured
from toki.engine.events import Mode
from toki.engine.events import Record

PATH = "/v1/messages"
FLAGS = Flags(unified=False, ram=0)
SHORT = [list(range(base, base + 100)) for base in (1000, 2000)]
# Too much is new in these for the server to see that they go on: alone it takes the slot that was idle longest.
LONG = [[*short, 1, 2, *range(base, base + 2000)] for short, base in zip(SHORT, (5000, 8000), strict=True)]


class Shop:
    """An engine that trusts what it knows of its server, which honours id_slot on /v1/messages or does not."""

    def __init__(self, honoured: bool, mode: Mode = Mode.AUTO) -> None:
        self.stage = Stage(FLAGS, mode, known(FLAGS))
        self.decisions: dict[int, Decision] = {}
        for n in range(6):
            self.stage.serve([900 + n] * 12, [n, n, n])

        def released(key: int, decision: Decision) -> None:
            self.decisions[key] = decision
            if not honoured and self.stage.exchanges[key].ask.endpoint == PATH:
                self.stage.exchanges[key].task.id_slot = -1

        self.stage.checks.append(released)

    def ask(self, prompt: list[int], *, stream: bool = True, slot: int | None = None) -> Decision:
        """A request on /v1/messages leaves; `slot`: which its client chose."""

        def change(ask: Ask) -> Ask:
            fixed = "" if slot is None else "the client chose a slot"
            return replace(ask, endpoint=PATH, honours_slot=False, client_slot=slot, fixed=fixed)

        key = self.stage.arrive(prompt, [1, 2, 3], stream=stream, change=change)
        self.stage.prime(key)
        return self.decisions[key]

    def serve(self, prompt: list[int], *, stream: bool = True, slot: int | None = None) -> tuple[Decision, Record]:
        decision = self.ask(prompt, stream=stream, slot=slot)
        self.stage.reach(0)
        self.stage.headers(0)
        self.stage.end(0)
        self.stage.answer(0)
        self.stage.reveal()
        return decision, self.stage.records[-1]

    def prepare(self) -> None:
        """What follows would gain by a pin."""
        for short in SHORT:
            assert self.serve(short)[0].id_slot is None

    @property
    def trust(self) -> float:
        belief = self.stage.engine.belief
        assert belief is not None
        return belief.score


@pytest.mark.parametrize("stream", [True, False])
def test_where_it_is_honoured_it_is_used_from_then_on(stream: bool) -> None:
    shop = Shop(honoured=True)
    shop.prepare()
    decision, record = shop.serve(LONG[0], stream=stream)
    assert decision.id_slot is not None
    assert record.reason.endswith("; tries whether /v1/messages honours id_slot")
    assert (record.action, record.predicted, record.measured.reused) == (Action.PINNED, 102, 102)
    decision, record = shop.serve(LONG[1], stream=stream)
    assert decision.id_slot is not None
    assert (record.action, record.predicted, record.measured.reused) == (Action.PINNED, 102, 102)
    assert "tries" not in record.reason


@pytest.mark.parametrize("stream", [True, False])
def test_where_it_is_ignored_nothing_is_lost_and_it_is_not_tried_again(stream: bool) -> None:
    shop = Shop(honoured=False)
    shop.prepare()
    before = shop.trust
    decision, record = shop.serve(LONG[0], stream=stream)
    assert decision.id_slot is not None
    assert (record.measured.reused, record.alone) == (0, 0)
    assert record.predicted is None  # it was predicted for the other case
    assert shop.trust >= before
    decision, record = shop.serve(LONG[1], stream=stream)
    assert decision.id_slot is None
    assert "tries" not in record.reason
    assert record.predicted == record.measured.reused


def test_in_pin_mode_too() -> None:
    shop = Shop(honoured=False, mode=Mode.PIN)
    shop.prepare()
    assert shop.serve(LONG[0])[0].id_slot is not None
    assert shop.serve(LONG[1])[1].reason == "/v1/messages ignores id_slot"


def test_an_answer_that_tells_nothing_leaves_the_question_open() -> None:
    """The client leaves in mid-prefill; the slot is then taken to have been ignored, as the known builds do."""
    shop = Shop(honoured=False)
    shop.prepare()
    assert "tries" in shop.ask(LONG[0]).reason
    shop.stage.tell(Gone(shop.stage.keys, shop.stage.tick(), sent=True, measured=Measured(finished=False)))
    belief = shop.stage.engine.belief
    assert belief is not None
    assert all(slot.held is None or slot.held.place != UNKNOWN for slot in belief.base.slots)
    assert shop.stage.knowledge.levers.honoured == {}
    assert belief.trusted


def test_while_it_is_tried_nothing_is_decided_and_no_look_is_believed() -> None:
    shop = Shop(honoured=True)
    shop.prepare()
    assert "tries" in shop.ask(LONG[0]).reason
    shop.stage.reach(0)
    shop.stage.headers(0)
    assert shop.stage.engine.should_wait
    shop.stage.look()
    assert shop.stage.engine.should_wait
    shop.stage.end(0)
    shop.stage.answer(0)
    assert not shop.stage.engine.should_wait


def test_a_request_that_is_not_alone_tries_nothing() -> None:
    shop = Shop(honoured=True)
    shop.prepare()
    shop.stage.arrive([4] * 50, [1, 2])
    shop.stage.reach(0)
    shop.stage.headers(0)
    assert "tries" not in shop.ask(LONG[0]).reason


@pytest.mark.parametrize("honoured", [True, False])
def test_the_clients_own_slot_counts_where_it_is_honoured(honoured: bool) -> None:
    shop = Shop(honoured=honoured)
    shop.prepare()
    shop.serve(LONG[0])
    slots = set()
    for n, slot in enumerate([0, 1, 2, 3, 1, 0]):
        decision, record = shop.serve([*SHORT[1], *[n] * 5], slot=slot)
        assert decision.id_slot is None
        assert record.predicted == record.measured.reused
        slots.add((slot, record.measured.reused))
    assert (len({reused for _, reused in slots}) > 1) is honoured
