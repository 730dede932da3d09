"""Entries in arrays against a plain dict of them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from tests.effort import examples

from toki.engine.contents import Contents
from toki.engine.contents import Held
from toki.engine.ram import EMPTY
from toki.engine.ram import Ram

BESIDE = 3  # what an entry takes beside its tokens
STEPS = st.lists(st.tuples(st.sampled_from(["store", "drop", "evict", "rename", "older"]), st.integers(0, 40)))


def size(entry: Held) -> int:
    return entry.length + BESIDE


def check(ram: Ram, plain: dict[Held, int]) -> None:
    assert list(ram) == list(plain)
    assert list(reversed(ram)) == list(reversed(plain))
    assert (len(ram), ram.stored) == (len(plain), sum(map(size, plain)))
    assert [ram.peak(entry) for entry in ram] == list(plain.values())
    for place in range(41):
        assert ram.of(place) == [entry for entry in plain if entry.place == place]


@examples(200)
@given(STEPS)
def test_entries_are_what_was_done_to_them(steps: list[tuple[str, int]]) -> None:
    contents, ram, plain = Contents(), EMPTY, dict[Held, int]()
    for step, number in steps:
        before, was = ram, list(ram)
        held = contents.hold(number, number, number + 1)
        chosen = list(plain)[number % len(plain)] if plain else None
        if step == "store" and held not in plain:
            ram = ram.stored_with(held, size(held))
            plain[held] = 0
            behind = 0
            for entry in reversed(plain):
                behind += size(entry)
                plain[entry] = max(plain[entry], behind)
        elif step == "older" and held not in plain:
            ram = ram.behind_older([held], [size(held)])
            plain = {held: 0, **plain}
        elif step == "evict":
            room = 10 * number
            oldest = ram.excess(room)
            ram = ram.without(oldest)
            for entry in oldest:
                assert sum(map(size, plain)) > room
                assert entry is next(iter(plain))
                del plain[entry]
            assert sum(map(size, plain)) <= room
        elif step == "drop" and chosen is not None:
            assert chosen in ram
            ram = ram.without([chosen])
            del plain[chosen]
            assert chosen not in ram
        elif step == "rename" and chosen is not None:
            new = contents.hold(chosen.place, chosen.certain, chosen.length + number % 3)
            ram = ram.renamed(chosen, new)
            if new not in plain:
                plain = {new if entry is chosen else entry: peak for entry, peak in plain.items()}
            elif new is not chosen:
                del plain[chosen]
        check(ram, plain)
        assert list(before) == was  # copies of a shadow share it
