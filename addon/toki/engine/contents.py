"""Contents: every token list that the engine still speaks of, and the exact common prefix of each pair.

A what-if over slots and RAM entries asks for thousands of common prefixes. Comparing arrays each time took 17 s for
one request at 64 slots of 64k tokens; the table answers from a matrix instead. A new list costs one walk down the
tree of what is known: common prefixes are ultrametric, so that with p the known list sharing most with x,
lcp(x, y) = min(lcp(x, p), lcp(p, y)) for every other y: one np.minimum fills the row.
"""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from toki.engine.events import Span
from toki.engine.tokens import Tokens
from toki.engine.window import NONE
from toki.engine.window import Checkpoints

UNKNOWN = -1
UNLIMITED = 1 << 62
FRAME = 2  # tokens at most that the server writes before an image, whichever it is: no endpoint shows them


@dataclass(frozen=True, slots=True, eq=False)
class Held:
    """What a slot or a RAM entry holds: the first `length` tokens of the list at `place` in Contents.

    Only the first `certain` tokens are known: what follows is the guessed reply. Where `length` exceeds the list, the
    tokens behind it are wholly unknown. `place` UNKNOWN: nothing but the length is known.
    `checkpoints`: what there is to go back to on a sliding-window model.

    Made by Contents.hold alone, which gives the same object for the same contents: they are compared by identity.
    """

    place: int
    certain: int
    length: int
    checkpoints: Checkpoints = NONE


@dataclass(frozen=True, slots=True, eq=False)
class Shelf:
    """Some contents in their order, with their places and lengths as arrays: int64, shape (n,)."""

    held: tuple[Held, ...]
    places: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.int64]

    @staticmethod
    def of(held: Sequence[Held]) -> Shelf:
        places = np.array([one.place for one in held], np.int64)
        return Shelf(tuple(held), places, np.array([one.length for one in held], np.int64))

    def plus(self, one: Held) -> Shelf:
        """With one more at the end."""
        return Shelf((*self.held, one), np.append(self.places, one.place), np.append(self.lengths, one.length))

    def without(self, numbers: Sequence[int]) -> Shelf:
        """Without those at some places in the row, ascending."""
        held = list(self.held)
        for number in reversed(numbers):
            del held[number]
        return Shelf(tuple(held), np.delete(self.places, numbers), np.delete(self.lengths, numbers))

    def with_at(self, number: int, one: Held) -> Shelf:
        """With another one at a place in the row."""
        places, lengths = self.places.copy(), self.lengths.copy()
        places[number], lengths[number] = one.place, one.length
        return Shelf((*self.held[:number], one, *self.held[number + 1 :]), places, lengths)


class Contents:
    """Token lists by place (a small number), with the matrix of their common prefixes."""

    def __init__(self, capacity: int = 256) -> None:
        self._tokens: list[Tokens | None] = [None] * capacity
        self._free = list(range(capacity - 1, -1, -1))
        self._length = np.zeros(capacity, np.int64)
        self._lcp = np.zeros((capacity, capacity), np.int32)
        self._used = np.zeros(capacity, np.bool_)
        self._sets: dict[tuple[str, str], int] = {}  # adapters and owners of the lists, numbered
        self._made: dict[int, tuple[str, str]] = {}  # the same by number
        self._set = np.zeros(capacity, np.int64)
        self._images: list[tuple[int, ...]] = [()] * capacity
        self._held: dict[tuple[int, int, int, Checkpoints], Held] = {}

    @property
    def _several(self) -> bool:
        """Whether requests have named adapters, or have several owners."""
        return len(self._sets) > 1

    def __len__(self) -> int:
        return len(self._tokens) - len(self._free)

    def __getitem__(self, place: int) -> Tokens:
        tokens = self._tokens[place]
        if tokens is None:
            raise KeyError(place)
        return tokens

    def hold(self, place: int, certain: int, length: int, checkpoints: Checkpoints = NONE) -> Held:
        """The one Held of these contents."""
        key = (place, certain, length, checkpoints)
        held = self._held.get(key)
        if held is None:
            held = self._held[key] = Held(*key)
        return held

    def lcp(self, a: int, b: int) -> int:
        """Exact number of equal leading tokens of the lists at two places, whosever and under whichever adapters."""
        return int(self._lcp[a, b])

    def row(self, place: int) -> npt.NDArray[np.int32]:
        """Common prefix of the list at `place` with every place of the same owner whose KV is made under the same
        adapters: int32, shape (capacity,); all others hold 0."""
        row: npt.NDArray[np.int32] = self._lcp[place]
        return np.where(self._set == self._set[place], row, 0) if self._several else row

    def add(self, tokens: Tokens, lora: str = "", images: tuple[int, ...] = (), owner: str = "") -> int:
        """Keep a list and return its place; a list that is known already keeps its place.

        The same tokens under different sets of adapters (`lora`) are two lists, since their KV differs; so are those of
        different owners, who must not find what another one left. The server compares tokens only, and so does all here
        that does not say otherwise. `images`: how many tokens lie before each image or sound.
        """
        number = self._sets.setdefault((lora, owner), max(self._made, default=-1) + 1)
        self._made[number] = lora, owner
        nearest, shared = self.nearest(tokens, lora, owner)
        if nearest is not None and shared == len(tokens) == self._length[nearest] and self._set[nearest] == number:
            return nearest
        if nearest is not None:  # of a growing chat only the longest list is kept in memory
            if shared == self._length[nearest]:
                self._tokens[nearest] = tokens.head(shared)
            elif shared == len(tokens):
                tokens = self[nearest].head(shared)
        if not self._free:
            self._grow()
        place = self._free.pop()
        row = np.minimum(self._lcp[nearest], shared) if nearest is not None else np.zeros(len(self._tokens), np.int32)
        self._lcp[place, :] = row
        self._lcp[:, place] = row
        if nearest is not None:
            self._lcp[place, nearest] = self._lcp[nearest, place] = shared
        self._lcp[place, place] = len(tokens)
        self._tokens[place] = tokens
        self._set[place] = number
        self._images[place] = images
        self._length[place] = len(tokens)
        self._used[place] = True
        return place

    def add_like(self, place: int, tokens: Tokens, images: tuple[int, ...] = ()) -> int:
        """Keep a list of the adapters and the owner of the one at `place`; see `add`."""
        lora, owner = self._made[self._set[place]]
        return self.add(tokens, lora, images, owner)

    def lora(self, place: int) -> str:
        """The set of adapters under which the list at `place` was made."""
        return self._made[self._set.item(place)][0]

    def owner(self, place: int) -> str:
        """Who left the list at `place`."""
        return self._made[self._set.item(place)][1]

    def alike(self, one: Held, other: Held) -> bool:
        """Whether both were made under the same adapters and left by the same owner, as far as that is known. Where
        owners are kept apart, what is not known is no one's."""
        if UNKNOWN in (one.place, other.place):
            known = one.place if other.place == UNKNOWN else other.place
            return known == UNKNOWN or not self.owner(known)
        return bool(self._set.item(one.place) == self._set.item(other.place))

    def images(self, place: int) -> tuple[int, ...]:
        """How many tokens of the list at `place` lie before each image or sound."""
        return self._images[place]

    def sendable(self, held: Held) -> bool:
        """Whether all of `held` is tokens of the vocabulary, which the server takes by their ids."""
        return not self._images[held.place] or held.length <= self._images[held.place][0]

    def nearest(self, tokens: Tokens, lora: str = "", owner: str = "") -> tuple[int | None, int]:
        """The place whose list shares most with `tokens`, and how much; (None, 0) where nothing is known. Of equal
        lists the one that was made under the adapters `lora` and left by `owner`.

        Descends from list to list: only those that agree with the last one up to the fork, and go on with our token
        there, can share more.
        """
        used = np.flatnonzero(self._used)
        if not len(used):
            return None, 0
        best = int(used[-1])
        shared = tokens.common_prefix(self[best])
        while shared < len(tokens):
            wanted = tokens.ids.item(shared)
            forks = used[(self._lcp[best, used] == shared) & (self._length[used] > shared)]
            for place in forks.tolist():
                if place != best and self[place].ids.item(shared) == wanted:
                    break
            else:
                break
            best, used = place, forks
            shared = tokens.common_prefix(self[best])
        if shared == len(tokens):  # prefer the list itself to one that merely starts with it
            same = used[(self._lcp[best, used] == shared) & (self._length[used] == shared)]
            kin = same[self._set[same] == self._sets.get((lora, owner))]
            best = int(next(iter((*kin, *same)), best))
        return best, shared

    def keep(self, places: Collection[int]) -> None:
        """Forget every list but those at `places`."""
        wanted = np.zeros_like(self._used)
        wanted[[place for place in places if place != UNKNOWN]] = True
        for place in np.flatnonzero(self._used & ~wanted).tolist():
            self._tokens[place] = None
            self._images[place] = ()
            self._length[place] = 0
            self._lcp[place, :] = 0
            self._lcp[:, place] = 0
            self._free.append(place)
        self._used &= wanted
        used = set(self._set[self._used].tolist())
        self._made = {number: made for number, made in self._made.items() if number in used}
        self._sets = {made: number for number, made in self._made.items()}
        self._held = {key: held for key, held in self._held.items() if held.place != UNKNOWN and wanted[held.place]}

    def span(self, held: Held, prompt: Held) -> Span:
        """How many leading tokens of `prompt`, wholly certain, `held` shares with it: likely, and in what range."""
        most = held.length if held.length < prompt.length else prompt.length
        if held.place == UNKNOWN or prompt.place == UNKNOWN:
            return Span(0, 0, most)
        shared = self._lcp.item(held.place, prompt.place)
        if shared < held.certain:
            if shared > most:
                shared = most
            images = self._images[prompt.place]
            return Span(shared, shared, min(shared + FRAME, most) if images and shared in images else shared)
        likely = most if shared > most or shared >= self._length.item(held.place) else shared
        return Span(most if most < held.certain else held.certain, likely, most)

    def likely(
        self, held: Shelf | Sequence[Held], prompts: Sequence[Held], *, alike: bool = False
    ) -> npt.NDArray[np.int64]:
        """The likely common prefix of each of `prompts` with each of `held`: int64, shape (prompts, held).

        `alike`: 0 where they were made under different adapters, or left by different owners.
        """
        shelf = held if isinstance(held, Shelf) else Shelf.of(held)
        wanted = np.array([one.place for one in prompts], np.intp)
        most = np.minimum(shelf.lengths, np.array([one.length for one in prompts], np.int64)[:, None])
        shared = self._lcp[wanted[:, None], shelf.places].astype(np.int64)
        shared[shared >= self._length[shelf.places]] = UNLIMITED  # the rest is unknown: nothing contradicts
        shared[:, shelf.places == UNKNOWN] = 0
        if alike and self._several:
            shared[self._set[wanted][:, None] != self._set[shelf.places]] = 0
        return np.minimum(shared, most)

    def related(self, held: Held, others: Shelf) -> tuple[Held | None, list[Held]]:
        """Among `others`, the first that most likely starts with all of `held`, and all before it that `held` starts
        with.

        Beyond the known part of either list nothing contradicts: the shorter one is then taken for a part.
        """
        parts: list[Held] = []
        if held.place == UNKNOWN:
            return None, parts
        known = np.minimum(self._length[others.places], self._length.item(held.place))
        both = np.minimum(known, np.minimum(others.lengths, held.length))
        same = (self._lcp[held.place, others.places] >= both) | (others.places == held.place)
        for number in np.flatnonzero(same & (others.places != UNKNOWN)).tolist():
            other = others.held[number]
            if other.length >= held.length:
                return other, parts
            parts.append(other)
        return None, parts

    def _grow(self) -> None:
        old = len(self._tokens)
        new = 2 * old
        self._tokens.extend([None] * old)
        self._images.extend([()] * old)
        self._free.extend(range(new - 1, old - 1, -1))
        self._set = np.concatenate([self._set, np.zeros(old, np.int64)])
        self._length = np.concatenate([self._length, np.zeros(old, np.int64)])
        self._used = np.concatenate([self._used, np.zeros(old, np.bool_)])
        lcp = np.zeros((new, new), np.int32)
        lcp[:old, :old] = self._lcp
        self._lcp = lcp
