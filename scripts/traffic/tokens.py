"""The same traffic as token ids, without any server: for simulations and for the lower bound of any cache."""

from __future__ import annotations

import random
import re
from collections.abc import Iterable
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from traffic.request import Request
from traffic.request import render
from traffic.words import words

SPECIAL = ("<|im_start|>", "<|im_end|>", "<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>")
PIECE = re.compile("|".join(map(re.escape, SPECIAL)) + r"|\n|[^\W_]+|[^\w\s]|_")


class WordTokenizer:
    """One id per word, mark and line end, numbered as they first appear; the role marks have the lowest ids.

    Between words nothing is lost that could join or split tokens, so encode(a) + encode(b) == encode(a + b)
    wherever a ends or b begins with a special token, a line end or a space.
    """

    def __init__(self) -> None:
        self._ids: dict[str, int] = {piece: place for place, piece in enumerate(SPECIAL)}

    def encode(self, text: str) -> list[int]:
        """The ids of a text, special tokens in it included."""
        return [self._ids.setdefault(piece, len(self._ids)) for piece in PIECE.findall(text)]


def ids(request: Request, tokenizer: WordTokenizer) -> list[int]:
    """The prompt of a request as token ids.

    The next prompt of an append-only session begins with these ids, followed by those of the reply.
    """
    return tokenizer.encode(render(request))


def fake_reply(request: Request, n: int) -> str:
    """An answer of exactly `n` tokens, the same for the same request."""
    return " ".join(random.Random(f"{request.session}\n{render(request)}").choices(words(), k=n))


def endless(exchanges: Iterable[tuple[Sequence[int], Sequence[int]]]) -> int:
    """Tokens that a server with an endless cache would evaluate for these (prompt, reply) pairs, one after another.

    It keeps every earlier prompt with its reply, so of each prompt it evaluates what is behind the longest prefix
    in common with any of them, and one token at least, as llama-server does.
    """
    kept: list[npt.NDArray[np.int32]] = []
    evaluated = 0
    for prompt, reply in exchanges:
        asked = np.asarray(prompt, dtype=np.int32)
        reuse = max((_common_prefix(asked, old) for old in kept), default=0)
        evaluated += max(1, len(asked) - reuse)
        kept.append(np.concatenate([asked, np.asarray(reply, dtype=np.int32)]))
    return evaluated


def _common_prefix(one: npt.NDArray[np.int32], other: npt.NDArray[np.int32]) -> int:
    length = min(len(one), len(other))
    different = one[:length] != other[:length]
    return int(different.argmax()) if different.any() else length
