"""Where a check of an answer may run: on no server may anyone lose a token by it, known or not."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import example
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
from tests.engine.literal import Flags
from tests.engine.literal import LiteralSlot
from tests.engine.literal import Task
from tests.engine.literal import common_prefix
from tests.engine.stage import Stage
from tests.engine.stage import known

from toki.engine.tokens import Tokens

FLAGS = (
    Flags(),
    Flags(ram=0),
    Flags(unified=False),
    Flags(unified=False, ram=0),
    Flags(n_slots=1),
    Flags(n_slots=1, ram=0),
    Flags(idle_save=False),
    Flags(n_slots=2, ram=300),
)
# The size of a RAM cache shows only once something is missing: there it must be told.
CASES = [(flags, told) for flags in FLAGS for told in (True, False) if told or not flags.ram]
FIRST, OTHER = [*range(300)], [*range(5000, 5200)]


def held(stage: Stage) -> list[list[int]]:
    return [*(list(slot.tokens) for slot in stage.server.slots), *map(list, stage.server.ram)]


def lost_by_a_check(stage: Stage, prompt: list[int], reply: list[int], slot: int) -> list[list[int]]:
    """What no slot and no RAM entry begins with any more once `prompt` was answered on `slot` without the cache."""
    before = held(stage)
    stage.server.post(Task(-1000, prompt, reply, slot, cache_prompt=False))
    stage.server.finish(-1000)
    return [one for one in before if max(common_prefix(one, other) for other in held(stage)) < len(one)]


@pytest.mark.parametrize(("flags", "told"), CASES)
@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 10_000))
@example(seed=0)
def test_no_one_loses_a_token(flags: Flags, told: bool, seed: int) -> None:
    random = Random(seed)
    stage = Stage(flags, told=known(flags) if told else None)
    chats = {number: [number * 1000 + n for n in range(random.randrange(20, 200))] for number in range(3)}
    served = []
    for turn in range(random.randrange(4, 9)):
        number = random.randrange(3)
        reply = [90_000 + turn, 7, 8]
        served.append((chats[number], reply))
        stage.serve(chats[number], reply)
        chats[number] = [*chats[number], *reply[: random.randrange(4)], 60_000 + turn, 1, 2]
    prompt, reply = random.choice(served)
    slot = stage.engine.spare(Tokens.of(prompt), len(reply))
    if slot is not None:
        assert lost_by_a_check(stage, prompt, reply, slot) == []


@pytest.mark.parametrize("told", [True, False])
def test_an_empty_slot_is_spare_and_where_all_hold_something_of_their_own_none_is(told: bool) -> None:
    flags = Flags(n_slots=2, unified=False, ram=0)
    stage = Stage(flags, told=known(flags) if told else None)
    for n in range(4):
        stage.serve(FIRST, [n, 1])
    assert stage.engine.spare(Tokens.of(FIRST), 2) == stage.server.slots.index(LiteralSlot())
    stage.serve(OTHER, [3, 1])
    assert stage.engine.spare(Tokens.of(FIRST), 2) is None
