"""Vectors of prompts: how the index proposes which cached prompts may share a long prefix.

The prefix embedding needs no model. Each step along the prompt is a feature that names the whole prefix up to
there, so that two prompts share the features of their common prefix and no others. A server's embedding is the
other kind: of a long prompt it sees segments, whose vectors are averaged here.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

import numpy as np
import numpy.typing as npt

from toki.engine.tokens import BLOCK
from toki.engine.tokens import Tokens

DIMENSIONS = 256
_STEP = 16  # tokens from one feature to the next within the first block; behind it a feature is a whole block
_SPREAD = 7  # dimensions that a feature is added to: 9 bits of its hash each, 8 for the dimension and 1 for the sign
_SHIFTS = np.arange(0, 9 * _SPREAD, 9, dtype=np.uint64)


def embed_prefix(tokens: Tokens) -> npt.NDArray[np.float32]:
    """The prefix embedding: shape (256,), unit length, equal on every machine.

    A feature weighs as much as the tokens that it adds to the prefix, and the empty prefix as one token. So the
    cosine of prompts of n and m tokens with c leading tokens in common is near (c + 1) / sqrt((n + 1) * (m + 1)),
    give or take the 1/16 that 256 dimensions allow. Prompts of less than 16 tokens are all the empty prefix.
    """
    steps = range(0, min(len(tokens), BLOCK - 1) + 1, _STEP)
    start = b"".join(blake2b(tokens.ids[:n].astype("<i4").tobytes(), digest_size=8).digest() for n in steps)
    features = np.concatenate((np.frombuffer(start, "<u8"), tokens.chain))
    weights = np.full(len(features), BLOCK, np.float64)
    weights[: len(steps) + 1] = _STEP  # the first whole block adds one step to those within it
    weights[0] = 1
    bits = features[:, np.newaxis] >> _SHIFTS
    signed = np.where(bits & np.uint64(DIMENSIONS), -1.0, 1.0) * np.sqrt(weights)[:, np.newaxis]
    places = (bits % np.uint64(DIMENSIONS)).astype(np.intp)
    return _unit(np.bincount(places.ravel(), signed.ravel(), DIMENSIONS))


def segments(n: int, size: int, overlap: int) -> list[slice]:
    """Cut `n` tokens into slices of at most `size`, each starting `overlap` before the end of the one before it.

    Each slice brings tokens that no other before it had. Raises ValueError unless 0 <= overlap < size.
    """
    if not 0 <= overlap < size:
        raise ValueError(f"segments of {size} tokens can't overlap by {overlap}: from 0 to {size - 1} are possible")
    return [slice(start, min(start + size, n)) for start in range(0, max(n - overlap, min(n, 1)), size - overlap)]


def average(vectors: Sequence[npt.NDArray[np.float32]], weights: Sequence[float]) -> npt.NDArray[np.float32]:
    """The direction of all `vectors` together, each with the say of its weight: unit length, their shape.

    Raises ValueError where there are none, their shapes differ, a weight is not above 0, or a vector or the
    average has no direction (zero, NaN, infinite), so that a caller can fall back to `embed_prefix`.
    """
    if len(vectors) == 0 or len(vectors) != len(weights) or min(weights) <= 0:
        raise ValueError(f"{len(vectors)} vectors with {len(weights)} weights: one weight above 0 for each is wanted")
    if len({vector.shape for vector in vectors}) != 1 or vectors[0].ndim != 1:
        raise ValueError("vectors of different shapes can't be averaged")
    total = np.zeros(vectors[0].shape, np.float64)
    for vector, weight in zip(vectors, weights, strict=True):
        total += weight * _unit(vector)
    return _unit(total)


def _unit(vector: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    norm = float(np.linalg.norm(vector.astype(np.float64)))
    if not 0 < norm < np.inf:
        raise ValueError("a vector without direction: zero, NaN or infinite")
    return (vector / norm).astype(np.float32)
