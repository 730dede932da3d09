"""The index: which cached prompts lie nearest to a prompt, by cosine, compared with every one of them.

It only proposes. Exact tokens decide, so a wrong order here costs time and never correctness.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from sklearn import config_context
from sklearn.neighbors import NearestNeighbors
from threadpoolctl import ThreadpoolController  # type: ignore[import-untyped]

from toki.engine.embedding import DIMENSIONS

NEAR = 0.95  # of the best similarity: nearer ones count as equal, and the longest token list comes first
_WINDOW = 64  # rows by which the searched part of the array grows


@dataclass(frozen=True, slots=True)
class Candidate:
    """One entry found: its key, its cosine (-1 to 1) and its length in tokens."""

    key: int
    similarity: float
    length: int


class BruteForceIndex:
    """Unit vectors of one kind under integer keys, searched exhaustively by scikit-learn.

    Rows 0 to len - 1 of one dense array are the entries, in no order. `NearestNeighbors.fit` keeps a view of such an
    array, so an entry written later is found without another fit; only where the part of the array that is searched
    grows or shrinks by `_WINDOW` rows is it told.
    """

    def __init__(self, dimensions: int = DIMENSIONS, capacity: int = 1024) -> None:
        """An empty index for vectors of shape (dimensions,), with room for `capacity` entries before it must grow."""
        self._dimensions = dimensions
        self._vectors = np.zeros((max(capacity, _WINDOW), dimensions), np.float32)
        self._keys: list[int] = []
        self._lengths: list[int] = []
        self._rows: dict[int, int] = {}
        self._neighbors = NearestNeighbors(metric="cosine", algorithm="brute")
        self._window = 0
        self._threads = ThreadpoolController()  # finding the BLAS libraries takes longer than a search

    @property
    def dimensions(self) -> int:
        """The length of this index's vectors."""
        return self._dimensions

    def __len__(self) -> int:
        return len(self._keys)

    def __contains__(self, key: int) -> bool:
        return key in self._rows

    def add(self, key: int, vector: npt.NDArray[np.float32], length: int) -> None:
        """Add a prompt of `length` tokens. Raises ValueError for a key that is in or a vector not of unit length."""
        self._check(vector)
        if key in self._rows:
            raise ValueError(f"key {key} is in the index already")
        row = len(self._keys)
        if row == len(self._vectors):
            self._vectors = np.concatenate((self._vectors, np.zeros_like(self._vectors)))
            self._window = 0
        self._vectors[row] = vector
        self._rows[key] = row
        self._keys.append(key)
        self._lengths.append(length)

    def remove(self, key: int) -> None:
        """Remove a prompt; the last entry takes its place. Raises KeyError for a key that is not in."""
        row = self._rows.pop(key)
        last_key, last_length = self._keys.pop(), self._lengths.pop()
        if last_key != key:
            self._vectors[row] = self._vectors[len(self._keys)]
            self._keys[row], self._lengths[row], self._rows[last_key] = last_key, last_length, row

    def search(self, vector: npt.NDArray[np.float32], limit: int = 32) -> list[Candidate]:
        """The `limit` entries of the highest cosine; among those at `NEAR` of the best the longest comes first.

        Ties go to the longer and then the later key. Raises ValueError for a vector not of unit length.
        """
        self._check(vector)
        found = sorted(self._nearest(vector, limit), key=lambda c: (c.similarity, c.length, c.key), reverse=True)
        if not found:
            return []
        near = [candidate for candidate in found if candidate.similarity >= NEAR * found[0].similarity]
        near.sort(key=lambda c: (c.length, c.similarity, c.key), reverse=True)
        return near + found[len(near) :]

    def best(self, vector: npt.NDArray[np.float32]) -> float | None:
        """The highest cosine alone, in a tenth of the time of a search; None where nothing is in.

        Raises ValueError for a vector not of unit length.
        """
        self._check(vector)
        if not self._keys:
            return None
        # Not a product of BLAS, which would wake its threads.
        return float(np.einsum("ij,j->i", self._vectors[: len(self._keys)], vector.astype(np.float32)).max())

    def _nearest(self, vector: npt.NDArray[np.float32], limit: int) -> list[Candidate]:
        count = len(self._keys)
        if count == 0 or limit < 1:
            return []
        window = min(-(-count // _WINDOW) * _WINDOW, len(self._vectors))
        query = vector.astype(np.float32, copy=False)[np.newaxis]
        # The limit of threads holds for the process while the search lasts: with more of them, waking them takes longer
        # than the work. What scikit-learn would check at each search, `_check` has seen to.
        with (
            self._threads.limit(limits=1, user_api="blas"),
            config_context(assume_finite=True, skip_parameter_validation=True),
        ):
            if window != self._window:
                self._neighbors.fit(self._vectors[:window])
                self._window = window
            # Rows of the window that hold no entry may come out too, so as many more are asked for.
            distances, rows = self._neighbors.kneighbors(query, min(limit + window - count, window))
        nearest = [
            Candidate(self._keys[row], 1.0 - distance, self._lengths[row])
            for distance, row in zip(distances[0].tolist(), rows[0].tolist(), strict=True)
            if row < count
        ]
        return nearest[:limit]

    def _check(self, vector: npt.NDArray[np.float32]) -> None:
        if vector.shape != (self._dimensions,):
            raise ValueError(f"a vector of shape {vector.shape} in an index of shape ({self._dimensions},)")
        if not abs(float(vector @ vector) - 1.0) < 1e-3:  # also true for NaN
            raise ValueError("the index takes vectors of unit length only")
