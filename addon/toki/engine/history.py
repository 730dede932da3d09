"""History: the requests of the past, found again by embedding and nearest neighbours, verified by exact prefix.

What is proposed is only a proposal: exact tokens decide. Prompts that a later one starts with are forgotten, since
nothing can share more with them than with it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from toki.engine.contents import Contents
from toki.engine.contents import Held
from toki.engine.index import BruteForceIndex
from toki.engine.index import Candidate

MOST_REQUESTS = 512
MOST_TOKENS = 16 << 20  # 64 MiB of token ids


@dataclass(slots=True)
class Past:
    """A request of the past: where its prompt (with its reply, once known) stands in Contents, and its embedding."""

    place: int
    length: int
    vector: npt.NDArray[np.float32] | None
    semantic: bool


class History:
    """Recorded requests by key, in the order in which they were recorded."""

    def __init__(self, contents: Contents) -> None:
        self._contents = contents
        self._past: dict[int, Past] = {}
        self._indexes: dict[tuple[bool, int], BruteForceIndex] = {}  # vectors of different kinds never mix

    def best_similarity(self, vector: npt.NDArray[np.float32] | None, semantic: bool) -> float | None:
        """Cosine of the nearest earlier prompt."""
        index = self._indexes.get((semantic, len(vector))) if vector is not None else None
        return index.best(vector) if index is not None and vector is not None else None

    def candidates(self, vector: npt.NDArray[np.float32] | None, semantic: bool) -> list[int]:
        """Places of the prompts that the index proposes."""
        return [self._past[found.key].place for found in self._search(vector, semantic)]

    def parent(self, key: int, prompt: Held) -> tuple[int | None, int]:
        """The recorded request with the longest exact prefix in common with a prompt, the latest of several, and that
        length in tokens; (None, 0) where there is none. The guessed reply of a request counts with its prompt."""
        keys = [other for other in self._past if other != key]
        if not keys:
            return None, 0
        places = np.array([self._past[other].place for other in keys], np.intp)
        shared = self._contents.row(prompt.place)[places]
        most = int(shared.max())
        if not most:
            return None, 0
        return keys[int(np.flatnonzero(shared == most)[-1])], most

    def similarity(self, key: int | None, vector: npt.NDArray[np.float32] | None, semantic: bool) -> float | None:
        """Cosine of a vector and that of the request `key`, where both are of one kind."""
        past = self._past.get(key) if key is not None else None
        if past is None or past.vector is None or vector is None or past.semantic != semantic:
            return None
        return float(past.vector @ vector) if past.vector.shape == vector.shape else None

    def record(self, key: int, prompt: Held, vector: npt.NDArray[np.float32] | None, semantic: bool) -> None:
        """Keep a request that has ended, in place of those that it starts with."""
        row = self._contents.row(prompt.place)
        for other, past in list(self._past.items()):
            if past.length <= int(row[past.place]):
                self._forget(other)
        self._past[key] = Past(prompt.place, prompt.length, vector, semantic)
        if vector is not None:
            kind = (semantic, len(vector))
            if kind not in self._indexes:
                self._indexes[kind] = BruteForceIndex(len(vector))
            self._indexes[kind].add(key, vector, prompt.length)
        if len(self._past) > MOST_REQUESTS:
            self._forget(next(iter(self._past)))

    def reveal(self, key: int, place: int, length: int) -> None:
        """The prompt of a request with its reply stands at `place`."""
        past = self._past.get(key)
        if past is not None:
            past.place, past.length = place, length

    def places(self) -> set[int]:
        """Where the remembered prompts stand; as many of the latest as fit into the memory that they may take."""
        total = 0
        for key, past in reversed(list(self._past.items())):
            total += past.length
            if total > MOST_TOKENS:
                self._forget(key)
        return {past.place for past in self._past.values()}

    def _search(self, vector: npt.NDArray[np.float32] | None, semantic: bool) -> list[Candidate]:
        if vector is None or (semantic, len(vector)) not in self._indexes:
            return []
        return self._indexes[semantic, len(vector)].search(vector)

    def _forget(self, key: int) -> None:
        past = self._past.pop(key)
        if past.vector is not None:
            self._indexes[past.semantic, len(past.vector)].remove(key)
