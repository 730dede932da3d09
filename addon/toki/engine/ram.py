"""The entries of a server's RAM cache, as a value: copies of a shadow share it, and what changes it makes another one.

A server with a small model and the usual 8 GiB keeps hundreds of them, each of which the shadow's rules ask about at
every launch: so what they hold stands in arrays too.
"""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Iterator
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from toki.engine.contents import Held
from toki.engine.contents import Shelf

Numbers = npt.NDArray[np.int64]
NOTHING: Numbers = np.zeros(0, np.int64)


class Ram:
    """Entries in order of insertion, since the front is evicted first. Never changes.

    `stored`: tokens of all of them, with what each takes beside its own.
    """

    __slots__ = ("_peaks", "_sizes", "shelf", "stored")

    def __init__(self, shelf: Shelf, sizes: Numbers, peaks: Numbers) -> None:
        self.shelf = shelf
        self.stored = int(sizes.sum())
        self._sizes = sizes
        self._peaks = peaks

    def __len__(self) -> int:
        return len(self.shelf.held)

    def __iter__(self) -> Iterator[Held]:
        return iter(self.shelf.held)

    def __reversed__(self) -> Iterator[Held]:
        return reversed(self.shelf.held)

    def __contains__(self, entry: Held) -> bool:
        return entry in self.shelf.held

    def __repr__(self) -> str:
        return f"Ram({self.shelf.held}, {self._sizes.tolist()}, {self._peaks.tolist()})"

    def of(self, place: int) -> list[Held]:
        """The entries of the list at a place."""
        return [self.shelf.held[number] for number in np.flatnonzero(self.shelf.places == place).tolist()]

    def peak(self, entry: Held) -> int:
        """The most that ever lay from an entry to the back: the cache has room for so much."""
        return int(self._peaks[self.shelf.held.index(entry)])

    def stored_with(self, entry: Held, size: int) -> Ram:
        """With one more at the back."""
        sizes = np.append(self._sizes, size)
        behind = np.cumsum(sizes[::-1])[::-1]
        return Ram(self.shelf.plus(entry), sizes, np.maximum(np.append(self._peaks, 0), behind))

    def without(self, entries: Collection[Held]) -> Ram:
        """Without some of them."""
        numbers = sorted(map(self.shelf.held.index, entries))
        return Ram(self.shelf.without(numbers), np.delete(self._sizes, numbers), np.delete(self._peaks, numbers))

    def excess(self, room: int) -> tuple[Held, ...]:
        """The oldest that must go for the rest to fit into `room`."""
        over = self.stored - room
        if over <= 0:
            return ()
        return self.shelf.held[: int(np.searchsorted(np.cumsum(self._sizes), over)) + 1]

    def behind_older(self, older: Sequence[Held], sizes: Sequence[int]) -> Ram:
        """With others in front of all that there are."""
        before = np.array(sizes, np.int64)
        shelf = Shelf.of([*older, *self])
        return Ram(shelf, np.concatenate([before, self._sizes]), np.concatenate([0 * before, self._peaks]))

    def renamed(self, old: Held, new: Held) -> Ram:
        """With `new`, which may be of another length, in the place of `old`."""
        if new is old:
            return self
        if new in self:
            return self.without([old])
        number, sizes = self.shelf.held.index(old), self._sizes.copy()
        sizes[number] += new.length - old.length
        return Ram(self.shelf.with_at(number, new), sizes, self._peaks)


EMPTY = Ram(Shelf.of(()), NOTHING, NOTHING)


@dataclass(frozen=True, slots=True)
class Memory:
    """What a server held at one time. `slots`: number, contents, whether it was busy, of each that held something."""

    slots: Sequence[tuple[int, Held, bool]]
    ram: Ram

    def holds(self) -> Iterator[Held]:
        """The contents of slots and RAM entries."""
        for _, held, _ in self.slots:
            yield held
        yield from self.ram
