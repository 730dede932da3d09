"""What the engine believes after requests whose tokens are unknown, or were wrong."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field

import pytest

from toki.engine.contents import UNKNOWN
from toki.engine.core import Engine
from toki.engine.events import Answered
from toki.engine.events import Arrived
from toki.engine.events import Ask
from toki.engine.events import Began
from toki.engine.events import Command
from toki.engine.events import Gone
from toki.engine.events import Kind
from toki.engine.events import Look
from toki.engine.events import Looked
from toki.engine.events import Measured
from toki.engine.events import Mode
from toki.engine.events import Read
from toki.engine.events import Record
from toki.engine.events import Restarted
from toki.engine.events import Send
from toki.engine.events import SlotView
from toki.engine.rules import Known
from toki.engine.shadow import Shadow
from toki.engine.tokens import Tokens

N_CTX = 1000
SPLIT = Known(unified=False, idle_save=False, ram=0)
SAVING = Known(unified=False, idle_save=True, ram=100_000)
PROMPTS = [range(base, base + 50) for base in (100, 200, 300, 400)]


@dataclass
class Talk:
    """An engine whose server is known: four slots, never used."""

    known: Known = SPLIT
    engine: Engine = field(default_factory=lambda: Engine(Mode.OBSERVE, 10))
    now: float = 0.0
    key: int = 0

    def __post_init__(self) -> None:
        slots = tuple(SlotView(number, False, 0, -1, N_CTX) for number in range(4))
        self.engine.handle(Restarted(self.tick(), 4, N_CTX, self.known, slots))

    def tick(self) -> float:
        self.now += 1.0
        return self.now

    def send(self, prompt: Sequence[int] | None, **ask: object) -> int:
        self.key += 1
        tokens = None if prompt is None else Tokens.of(prompt)
        ask = {"endpoint": "/completion", "tokens": tokens, "unknown": "" if tokens else "images", **ask}
        asked = Ask(**ask)  # type: ignore[arg-type]
        commands = self.engine.handle(Arrived(self.key, self.tick(), asked))
        assert [type(command) for command in commands] == [Send]
        self.engine.handle(Read(self.key, self.tick(), asked))
        return self.key

    def answer(self, key: int, **measured: int) -> list[Command]:
        return self.engine.handle(Answered(key, self.tick(), 200, Measured(**measured)))  # type: ignore[arg-type]

    def serve(self, prompt: Sequence[int] | None, slot: int | None = None, told: int | None = None) -> list[Command]:
        """One request; the answer shows `slot` and says that the prompt has `told` tokens."""
        length = told if told is not None else 9 if prompt is None else len(prompt)
        key = self.send(prompt)
        shown = {} if slot is None else {"slot": slot}
        return self.answer(key, prompt_tokens=length, reused=0, evaluated=length, reply_tokens=1, **shown)

    def fill(self) -> None:
        """A prompt in each slot: the last one is taken first."""
        for prompt in PROMPTS:
            self.serve(prompt)

    @property
    def shadow(self) -> Shadow:
        belief = self.engine.belief
        assert belief is not None
        return belief.base

    def held(self) -> list[int | None]:
        """The first token that each slot is believed to hold; None where that is unknown or nothing."""
        contents = self.shadow.contents
        places = [UNKNOWN if slot.held is None else slot.held.place for slot in self.shadow.slots]
        return [None if place == UNKNOWN else int(contents[place].ids[0]) for place in places]


def test_every_slot_is_known_to_begin_with() -> None:
    talk = Talk()
    talk.fill()
    assert talk.held() == [400, 300, 200, 100]


def test_of_a_prompt_with_an_image_its_slot_holds_the_text_before() -> None:
    talk = Talk()
    talk.fill()
    key = talk.send(None, head=Tokens.of(range(20)))
    talk.answer(key, prompt_tokens=90, reused=0, evaluated=90, reply_tokens=5, slot=1)
    held = talk.shadow.slots[1].held
    assert held is not None
    assert (held.certain, held.length) == (20, 94)
    assert talk.shadow.contents[held.place] == Tokens.of(range(20))


def test_where_there_is_one_slot_any_request_runs_there() -> None:
    talk = Talk()
    talk.engine.handle(Restarted(talk.tick(), 1, N_CTX, SPLIT, (SlotView(0, False, 0, -1, N_CTX),)))
    key = talk.send(None, head=Tokens.of(range(20)))
    talk.answer(key, prompt_tokens=90, reused=0, evaluated=90, reply_tokens=5)
    assert talk.held() == [0]


@pytest.mark.parametrize(("known", "ram"), [(SPLIT, True), (SAVING, False)])
def test_an_answer_that_shows_its_slot_makes_only_that_slot_unknown(known: Known, ram: bool) -> None:
    talk = Talk(known)
    talk.fill()
    talk.serve(None, slot=2)
    assert talk.held() == [400, 300, None, 100]
    held = talk.shadow.slots[2].held
    assert held is not None
    assert held.length == 9
    assert talk.shadow.ram_known is ram


@pytest.mark.parametrize(("client_slot", "lost"), [(1, 1), (5, 1), (-2, 2), (2**31 - 1, 3)])
def test_a_client_that_chose_its_slot_makes_only_that_one_unknown_at_once(client_slot: int, lost: int) -> None:
    talk = Talk()
    talk.fill()
    key = talk.send(None, fixed="the client chose a slot", client_slot=client_slot, stream=True)
    talk.engine.handle(Began(key, talk.tick(), 200))
    assert [number for number, first in enumerate(talk.held()) if first is None] == [lost]
    assert talk.shadow.running(key) == lost
    talk.answer(key, reply_tokens=3)
    assert talk.shadow.slots[lost].idle


def test_infill_leaves_the_ram_cache_as_it_was() -> None:
    talk = Talk(SAVING)
    talk.fill()
    key = talk.send(None, kind=Kind.INFILL)
    before = set(talk.shadow.ram)
    talk.answer(key, prompt_tokens=9, reused=0, evaluated=9, reply_tokens=1, slot=0)
    assert talk.held() == [None, 300, 200, 100]
    assert talk.shadow.ram_known
    assert set(talk.shadow.ram) == before  # all but slot 0 were stored before, and slot 0's contents are lost
    talk.serve([*PROMPTS[1], 7])
    assert talk.held() == [None, 300, 200, 100]


@pytest.mark.parametrize("ask", [{}, {"children": 1}, {"prompts": 2}, {"stream": True}])
def test_where_its_slot_is_unknown_every_idle_slot_is(ask: dict[str, object]) -> None:
    talk = Talk(SAVING)
    talk.fill()
    key = talk.send(None, **ask)
    if "stream" in ask:
        talk.engine.handle(Began(key, talk.tick(), 200))
    talk.answer(key, **({"slot": 1} if "children" in ask else {}))
    assert talk.held() == [None] * 4
    assert not talk.shadow.ram_known


def test_a_length_that_the_server_contradicts_is_never_believed() -> None:
    talk = Talk()
    talk.fill()
    commands = talk.serve([*PROMPTS[0], 7, 8], slot=3, told=49)
    assert talk.held() == [400, 300, 200, None]
    (record,) = [command for command in commands if isinstance(command, Record)]
    assert record.parent is None
    assert any(isinstance(command, Look) for command in commands)
    conversations = talk.engine._knowledge.conversations.recent.values()
    assert not any(conversation.held.length == 52 for conversation in conversations)
    talk.serve([*PROMPTS[0], 7, 8, 9])  # nothing is left of it to be a parent of what follows
    record = next(command for command in talk.serve([*PROMPTS[1], 7]) if isinstance(command, Record))
    assert (record.parent, record.shared) == (2, 50)


def test_a_stream_that_was_launched_with_wrong_tokens_leaves_nothing_that_is_believed() -> None:
    talk = Talk(SAVING)
    talk.fill()
    key = talk.send([*PROMPTS[0], 7, 8], stream=True)
    talk.engine.handle(Began(key, talk.tick(), 200))
    assert talk.held()[3] == 100
    talk.answer(key, prompt_tokens=53, reused=50, evaluated=3, reply_tokens=2)
    assert talk.held() == [None] * 4
    assert not talk.shadow.ram_known
    assert all(slot.idle for slot in talk.shadow.slots)


def test_nor_does_one_that_broke_off() -> None:
    talk = Talk()
    talk.fill()
    key = talk.send([*PROMPTS[0], 7, 8], stream=True)
    talk.engine.handle(Began(key, talk.tick(), 200))
    measured = Measured(prompt_tokens=53, finished=False)
    talk.engine.handle(Gone(key, talk.tick(), sent=True, shown=1, measured=measured))
    views = tuple(SlotView(number, False, 50, number, N_CTX) for number in range(4))
    asked_at = talk.tick()
    talk.engine.handle(Looked(talk.tick(), asked_at, views))
    assert talk.held() == [None] * 4


def test_the_same_length_or_none_is_no_contradiction() -> None:
    talk = Talk()
    talk.fill()
    talk.answer(talk.send([*PROMPTS[0], 7]))
    talk.serve([*PROMPTS[1], 7], told=51)
    assert talk.held() == [400, 300, 200, 100]


def test_what_ended_before_the_server_was_known_does_not_run_on() -> None:
    engine = Engine(Mode.AUTO, 10)
    for key, tokens in ((1, None), (2, Tokens.of(PROMPTS[0]))):
        engine.handle(Arrived(key, key, Ask("/completion", tokens=tokens)))
        engine.handle(Answered(key, key + 0.5, 200, Measured(prompt_tokens=50, reply_tokens=1, slot=4 - key)))
    engine.handle(Restarted(9.0, 4, N_CTX, SPLIT, tuple(SlotView(n, False, 0, -1, N_CTX) for n in range(4))))
    assert engine.belief is not None
    slots = engine.belief.base.slots
    assert all(slot.idle for slot in slots)
    assert slots[3].held is not None
    assert slots[3].held.place == UNKNOWN
