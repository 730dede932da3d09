"""Token lists with chained block hashes: what makes an exact common prefix a matter of microseconds.

The server reuses the KV cache of the longest common token prefix, token for token. Everything that toki
predicts rests on that length, and it is asked for between every request and every cached prompt.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import numpy as np
import numpy.typing as npt

BLOCK = 128  # tokens that one link of the chain covers
_LARGEST = 2**31 - 1
_WANTED = f"token ids must be a flat list of integers from 0 to {_LARGEST}"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Tokens:
    """An immutable list of token ids; `Tokens.of` makes one.

    `ids`: int32, shape (n,), read-only. `chain`: uint64, shape (n // BLOCK,), read-only; `chain[k]` identifies
    `ids[: (k + 1) * BLOCK]`, since each link is the hash of the link before it and its own block.
    """

    ids: npt.NDArray[np.int32]
    chain: npt.NDArray[np.uint64]

    def __post_init__(self) -> None:
        self.ids.flags.writeable = False
        self.chain.flags.writeable = False

    @classmethod
    def of(cls, ids: Iterable[int] | npt.NDArray[Any]) -> Tokens:
        """Copy `ids`. Raises ValueError where one is no integer from 0 to 2**31 - 1."""
        checked = _checked(ids)
        return cls(checked, _chain(checked, np.empty(0, np.uint64)))

    def extended(self, ids: Iterable[int] | npt.NDArray[Any]) -> Tokens:
        """These tokens and `ids` behind them; only new blocks are hashed. Raises ValueError as `of` does."""
        joined = np.concatenate((self.ids, _checked(ids)))
        return Tokens(joined, _chain(joined, self.chain))

    def head(self, n: int) -> Tokens:
        """The first `n` tokens (all of them where there are fewer); shares memory. Raises ValueError below 0."""
        if n < 0:
            raise ValueError(f"a head of {n} tokens: it must be 0 or more")
        return Tokens(self.ids[:n], self.chain[: n // BLOCK])

    def common_prefix(self, other: Tokens) -> int:
        """The number of leading tokens that are equal in both.

        Equal links stand for equal blocks (two different lists share a link by chance once in 2**64); the block in
        which the lists part is compared token by token.
        """
        start = _equal_links(self.chain, other.chain) * BLOCK
        ours, theirs = self.ids[start : start + BLOCK], other.ids[start : start + BLOCK]
        n = min(len(ours), len(theirs))
        parting = (ours[:n] != theirs[:n]).nonzero()[0]
        return start + (int(parting[0]) if len(parting) else n)

    def __len__(self) -> int:
        return len(self.ids)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Tokens):
            return NotImplemented
        return len(self) == len(other) == self.common_prefix(other)

    def __hash__(self) -> int:
        tail = self.ids[len(self.chain) * BLOCK :]
        return hash((self.chain[-1:].tobytes(), tail.tobytes()))

    def __repr__(self) -> str:
        return f"<Tokens: {len(self)}>"  # the ids are the user's text


def _checked(ids: Iterable[int] | npt.NDArray[Any]) -> npt.NDArray[np.int32]:
    """Copy `ids`, or raise ValueError."""
    values = ids if isinstance(ids, np.ndarray) else _integers(list(ids))
    if values.ndim != 1 or (
        values.size and (values.dtype.kind not in "iu" or values.min() < 0 or values.max() > _LARGEST)
    ):
        raise ValueError(_WANTED)
    return values.astype(np.int32)


def _integers(ids: list[int]) -> npt.NDArray[np.int32]:
    try:
        values = np.frombuffer(array("i", ids), np.int32)  # refuses fractions, which numpy would cut off
    except (TypeError, OverflowError):
        raise ValueError(_WANTED) from None
    if any(isinstance(ids[i], bool) for i in (values < 2).nonzero()[0]):  # true and false of JSON pass as 1 and 0
        raise ValueError(_WANTED)
    return values


def _chain(ids: npt.NDArray[np.int32], known: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """The links of all whole blocks of `ids`, where the first ones are `known`. Equal on every machine."""
    unlinked = len(known) * BLOCK
    data = memoryview(ids[unlinked:].astype("<i4", copy=False).tobytes())
    size = BLOCK * ids.itemsize
    link = known[-1:].astype("<u8").tobytes()
    links = []
    for start in range(0, len(data) - size + 1, size):
        state = blake2b(link, digest_size=8)
        state.update(data[start : start + size])
        link = state.digest()
        links.append(link)
    return np.concatenate((known, np.frombuffer(b"".join(links), "<u8").astype(np.uint64)))


def _equal_links(a: npt.NDArray[np.uint64], b: npt.NDArray[np.uint64]) -> int:
    """How many leading links are equal: a binary search, for links that differ once differ for good."""
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high) // 2
        if a[middle] == b[middle]:
            low = middle + 1
        else:
            high = middle
    return low
