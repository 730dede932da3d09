"""What the commands say, where a live test can't well bring it about."""

from __future__ import annotations

from toki.commands import MOST_ENTRIES
from toki.commands import held_lines
from toki.engine.events import Holding


def test_of_a_large_ram_cache_the_latest_entries_are_shown() -> None:
    slots = (Holding(0, 900, 0, busy=True, conversation=3), Holding(1, 0, 0))
    entries = tuple(Holding(None, 1000 + number, 0) for number in range(MOST_ENTRIES + 2))
    lines = list(held_lines((*slots, *entries)))
    assert lines[:2] == ["  slot 0         900 tokens, conversation 3, busy", "  slot 1   empty"]
    assert lines[2] == "  RAM          2,001 tokens in 2 older entries"
    assert len(lines) == 3 + MOST_ENTRIES
    assert lines[3] == "  RAM          1,002 tokens"
    assert len(list(held_lines(entries[:MOST_ENTRIES]))) == MOST_ENTRIES
