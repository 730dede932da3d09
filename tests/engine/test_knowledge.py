"""What slots and RAM cache hold, in numbers."""

from __future__ import annotations

from toki.engine.contents import Held
from toki.engine.events import Holding
from toki.engine.knowledge import Knowledge
from toki.engine.ram import EMPTY
from toki.engine.ram import Memory
from toki.engine.tokens import Tokens


def test_of_the_ram_cache_those_entries_are_told_that_share_most() -> None:
    knowledge = Knowledge()

    def hold(ids: range) -> Held:
        return knowledge.contents.hold(knowledge.contents.add(Tokens.of(ids)), len(ids), len(ids))

    ram = EMPTY
    for length in (5, 20, 10, 15):
        ram = ram.stored_with(hold(range(length)), length)
    memory = Memory([(3, hold(range(7)), True)], ram)
    prompt = hold(range(12))
    assert knowledge.describe(memory, prompt, 2) == (
        Holding(3, 7, 7, True),
        Holding(None, 20, 12),
        Holding(None, 15, 12),
    )
    assert [one.shared for one in knowledge.describe(memory, prompt)] == [7, 5, 12, 10, 12]
    assert [one.shared for one in knowledge.describe(memory, None)] == [0, 0, 0, 0, 0]
    assert knowledge.describe(Memory((), EMPTY), prompt, 2) == ()
