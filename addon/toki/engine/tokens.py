"""Token lists with chained block hashes: what makes an exact common prefix a matter of microseconds.

The server reuses the KV cache of the longest common token prefix, token for token. Everything that toki
predicts rests on that length, and it is asked for between every request and every cached prompt.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from typing import Any

import numpy as np
import numpy.typing as npt

BLOCK = 128  # tokens that one link of the chain covers
_LARGEST = np.iinfo(np.int32).max


class Tokens:
    """An immutable list of token ids.

    `ids`: int32, shape (n,), read-only. `chain`: uint64, shape (n // BLOCK,), read-only; `chain[k]` identifies
    `ids[: (k + 1) * BLOCK]`, since each link is the hash of the link before it and its own block.
    """

    __slots__ = ("chain", "ids")

    ids: npt.NDArray[np.int32]
    chain: npt.NDArray[np.uint64]

    def __init__(self, ids: npt.NDArray[np.int32], chain: npt.NDArray[np.uint64]) -> None:
        """Wrap arrays that belong together; `Tokens.of` makes them from ids."""
        ids.flags.writeable = False
        chain.flags.writeable = False
        self.ids = ids
        self.chain = chain

    @classmethod
    def of(cls, ids: Iterable[int] | npt.NDArray[Any]) -> Tokens:
        """Copy `ids`. Raises ValueError where one is no integer from 0 to 2**31 - 1."""
        checked = _checked(ids)
        return cls(checked, _chain(checked, np.empty(0, np.uint64)))

    def extended(self, ids: Iterable[int] | npt.NDArray[Any]) -> Tokens:
        """These tokens and `ids` behind them; only blocks that are new are hashed. Raises ValueError as `of` does."""
        joined = np.concatenate((self.ids, _checked(ids)))
        return Tokens(joined, _chain(joined, self.chain))

    def head(self, n: int) -> Tokens:
        """The first `n` tokens (all of them where there are fewer); shares memory. Raises ValueError below 0."""
        if n < 0:
            raise ValueError(f"a head of {n} tokens: it must be 0 or more")
        return Tokens(self.ids[:n], self.chain[: n // BLOCK])

    def common_prefix(self, other: Tokens) -> int:
        """The number of leading tokens that are equal in both."""
        start = _equal_head(self.chain, other.chain) * BLOCK
        return start + _equal_head(self.ids[start : start + BLOCK], other.ids[start : start + BLOCK])

    def __len__(self) -> int:
        return len(self.ids)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Tokens):
            return NotImplemented
        return len(self) == len(other) == self.common_prefix(other)

    def __hash__(self) -> int:
        tail = self.ids[len(self.chain) * BLOCK :]
        return hash((len(self), self.chain[-1:].tobytes(), tail.tobytes()))

    def __repr__(self) -> str:
        return f"<Tokens: {len(self)}>"  # the ids are the user's text


def _checked(ids: Iterable[int] | npt.NDArray[Any]) -> npt.NDArray[np.int32]:
    values = ids if isinstance(ids, np.ndarray) else np.array(list(ids))
    if values.size == 0:
        return np.empty(0, np.int32)
    if values.ndim != 1 or values.dtype.kind not in "iu":
        raise ValueError("token ids must be a flat list of integers from 0 to 2147483647")
    if values.min() < 0 or values.max() > _LARGEST:
        raise ValueError(f"token ids must be from 0 to {_LARGEST}")
    return values.astype(np.int32)


def _chain(ids: npt.NDArray[np.int32], known: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    data = memoryview(ids.astype("<i4", copy=False).tobytes())
    size = BLOCK * ids.itemsize
    link = known[-1:].astype("<u8").tobytes()
    links = []
    for k in range(len(known), len(ids) // BLOCK):
        state = blake2b(link, digest_size=8)
        state.update(data[k * size : (k + 1) * size])
        link = state.digest()
        links.append(link)
    return np.concatenate((known, np.frombuffer(b"".join(links), "<u8")))


def _equal_head(a: npt.NDArray[Any], b: npt.NDArray[Any]) -> int:
    n = min(len(a), len(b))
    if n == 0:
        return 0
    differs = a[:n] != b[:n]
    first = int(differs.argmax())
    return first if differs[first] else n
