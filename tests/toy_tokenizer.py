"""A tokenizer as llama.cpp's, small and with special tokens odder than those of real vocabularies."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

CONTROL = {"<|a|>": 1, "<b>": 2, "[C]": 3, "<s>": 4}
PLAIN = {
    "<u>": 5,
    "\n\n\n": 6,
    "\n\n": 7,
    "<b>zz": 8,
}  # special, but known only to the vocabulary; the last swallows a <b>
STRIPPING = {"[C]"}  # takes the white space on both sides with it
WORDS = ["abc", "ab", "bc", "<b", "b>", "a\n", "  ", "<|", "|>"]


class ToyTokenizer:
    """`bos`: add_special puts <s> in front; `eos`: and something behind."""

    def __init__(self, bos: bool = True, eos: bool = False) -> None:
        self.bos = bos
        self.eos = eos
        self.calls: list[tuple[str | Sequence[int | str], bool]] = []  # content and add_special

    def __call__(
        self, content: str | Sequence[int | str], *, add_special: bool, parse_special: bool = True
    ) -> npt.NDArray[np.int32]:
        self.calls.append((content, add_special))
        pieces = [content] if isinstance(content, str) else list(content)
        ids = [CONTROL["<s>"]] if self.bos and add_special and isinstance(pieces[0], str) else []
        for piece in pieces:
            ids += [piece] if isinstance(piece, int) else _text(piece, parse_special)
        return np.array(ids + [9] * (self.eos and add_special), np.int32)


def _text(text: str, parse_special: bool) -> list[int]:
    """The longest special token first, each leftmost; then what is between them."""
    parts: list[str | int] = [text]
    known = {**PLAIN, **(CONTROL if parse_special else {})}
    for special in sorted(known, key=len, reverse=True):
        parts = [
            new for part in parts for new in (_cut(part, special, known[special]) if isinstance(part, str) else [part])
        ]
    return [token for part in parts for token in ([part] if isinstance(part, int) else _merged(part))]


def _cut(text: str, special: str, token: int) -> list[str | int]:
    parts: list[str | int] = []
    pieces = text.split(special)
    for number, piece in enumerate(pieces):
        if special in STRIPPING:
            piece = piece.lstrip() if number else piece
            piece = piece.rstrip() if number < len(pieces) - 1 else piece
        parts += [piece] if piece else []
        parts += [token] if number < len(pieces) - 1 else []
    return parts


def _merged(text: str) -> list[int]:
    words = re.findall("|".join(map(re.escape, WORDS)) + "|.", text, re.DOTALL)
    return [100 + WORDS.index(word) if word in WORDS else 200 + ord(word) for word in words]
