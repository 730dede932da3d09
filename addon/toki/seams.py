"""Where a text may be cut so that its parts, tokenised each for itself, are the tokens of the whole.

Such a place, a *seam*, lies just before a control token. llama.cpp first parts a text at its special tokens
(llama-vocab.cpp, tokenizer_st_partition), then tokenises the pieces between them each for itself; a control token
begins a piece whatever stands before it. So what follows a seam does not depend on what precedes it, nor the other way
round. (Newlines are no such place: text merges across them.) What this rests on is proved for each server and text:

- a control token is a text that /tokenize turns into one id, between letters too, and into something else without
  parse_special (`learn`);
- a text has seams only if the control tokens found in it by their texts are those found in its tokens by their ids, all
  of them, in the same order (`find_seams`); else a longer special token, or a rule not known here, has taken one;
- what follows a seam must begin with the id of its control token (`continued`).

One thing is assumed, as no URL shows a vocabulary: no special token has a control token within it but at its beginning.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Protocol

import numpy as np
import numpy.typing as npt

from toki.engine.tokens import Tokens

# What control tokens look like. No two texts of this shape overlap, and none overlaps itself.
_CANDIDATE = re.compile(r"<[^<>\[\]\s]{1,62}>|\[[^<>\[\]\s]{1,62}\]")
_PART = 2**31 - 1  # no vocabulary has this id and /tokenize passes ids through: it parts the answers to one call


class Tokenize(Protocol):
    """/tokenize of one server: the ids of a text, or of texts and ids mixed."""

    def __call__(
        self, content: str | Sequence[int | str], *, add_special: bool, parse_special: bool = True
    ) -> npt.NDArray[np.int32]: ...


@dataclass(frozen=True, slots=True)
class Tokenizer:
    """What was proved of a server's tokenizer: its control tokens (UTF-8) with their ids.

    `lead` is the number of ids that add_special puts before a text.
    """

    controls: Mapping[bytes, int]
    lead: int


@dataclass(frozen=True, slots=True)
class Seam:
    """A place just before a control token: behind `start` bytes and `tokens` tokens. Its text ends at `end`."""

    start: int
    end: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Seen:
    """A text (UTF-8), its tokens, and all its seams in order."""

    text: bytes
    tokens: Tokens
    seams: tuple[Seam, ...]

    def size(self) -> int:
        """Bytes of memory, about."""
        return len(self.text) + self.tokens.ids.nbytes + self.tokens.chain.nbytes + 150 * len(self.seams)


def learn(sources: Iterable[str], tokenize: Tokenize) -> Tokenizer | None:
    """Prove which texts of the shape of control tokens, found in `sources`, are some; three calls.

    None where add_special also puts something behind a text: then no tail can be tokenised for itself.
    """
    whole = tokenize("a", add_special=True)
    bare = tokenize("a", add_special=False)
    lead = len(whole) - len(bare)
    if lead < 0 or not np.array_equal(whole[lead:], bare):
        return None
    texts = sorted({text for source in sources for text in _CANDIDATE.findall(source)})
    alone = [part for text in texts for part in (_PART, text)]
    between = [part for text in texts for part in (_PART, f"a{text}b")]
    parsed = _parts(tokenize(alone + between, add_special=False))
    plain = _parts(tokenize(alone, add_special=False, parse_special=False))
    if len(parsed) != 2 * len(texts) or len(plain) != len(texts):
        return Tokenizer({}, lead)
    controls = {
        text.encode(): one[0]
        for text, one, amid, unparsed in zip(texts, parsed, parsed[len(texts) :], plain, strict=False)
        if len(one) == 1 and amid.count(one[0]) == 1 and unparsed != one
    }
    return Tokenizer(controls, lead)


def find_seams(tokenizer: Tokenizer, text: bytes, ids: npt.NDArray[np.int32]) -> tuple[Seam, ...] | None:
    """All seams of a text whose tokens are `ids` (without what add_special puts before them), in order.

    None where the control tokens in the text are not those among the ids: then it has none that may be trusted.
    """
    if not tokenizer.controls:
        return ()
    found = list(re.finditer(b"|".join(map(re.escape, tokenizer.controls)), text))  # re keeps the compiled pattern
    places = np.flatnonzero(np.isin(ids, list(tokenizer.controls.values())))
    if [tokenizer.controls[match.group()] for match in found] != ids[places].tolist():
        return None
    return tuple(Seam(match.start(), match.end(), int(at)) for match, at in zip(found, places, strict=True))


def whole(tokenizer: Tokenizer, text: bytes, ids: npt.NDArray[np.int32]) -> Seen | None:
    """A text with the ids of the whole of it, those of add_special included; None where nothing can be built on it."""
    seams = find_seams(tokenizer, text, ids[tokenizer.lead :])
    if seams is None:
        return None
    return Seen(text, Tokens.of(ids), _moved(seams, 0, tokenizer.lead))


def last_seam(seen: Seen, shared: int) -> Seam | None:
    """The last seam of `seen` whose token lies within the first `shared` bytes; None where only the start does."""
    seam = next((seam for seam in reversed(seen.seams) if seam.end <= shared), None)
    return seam if seam is not None and seam.start > 0 else None


def continued(tokenizer: Tokenizer, seen: Seen, seam: Seam, text: bytes, tail: npt.NDArray[np.int32]) -> Seen | None:
    """`text`, which is equal to `seen` up to the control token of `seam`; `tail` are the ids of what follows the seam.

    None where the tail's tokens do not begin with that control token, or do not add up: then `text` must be tokenised
    whole.
    """
    seams = find_seams(tokenizer, text[seam.start :], tail)
    if not seams or seams[0].tokens != 0:
        return None
    before = seen.seams[: seen.seams.index(seam)]
    tokens = seen.tokens.head(seam.tokens).extended(tail)
    return Seen(text, tokens, before + _moved(seams, seam.start, seam.tokens))


class Recent:
    """Texts seen lately, the last used first, within `limit` bytes and `count` texts. Thread-safe."""

    def __init__(self, limit: int = 64 * 2**20, count: int = 256) -> None:
        self._limit = limit
        self._count = count
        self._seen: tuple[Seen, ...] = ()
        self._lock = Lock()

    def longest(self, text: bytes) -> tuple[Seen | None, int]:
        """The text that shares the longest beginning with `text`, and the bytes of that."""
        best, shared, head = None, 0, text[:1]
        for seen in self._seen:
            # only a text that goes on as `text` does for one more byte is better; startswith compares without copying
            if shared < len(text) and seen.text.startswith(head):
                best, shared = seen, common_prefix(text, seen.text)
                head = text[: shared + 1]
        return best, shared

    def put(self, seen: Seen, used: Seen | None = None) -> None:
        """Keep `seen`. `used`, from which it was made, moves up too, or leaves where `seen` has all its seams."""
        front = [seen]
        if used is not None and used.seams[-1:] != seen.seams[len(used.seams) - 1 : len(used.seams)]:
            front.append(used)
        with self._lock:
            rest = [each for each in self._seen if each is not used and each.text != seen.text]
            kept, size = [], 0
            for each in (front + rest)[: self._count]:
                if size + each.size() <= self._limit:
                    size += each.size()
                    kept.append(each)
            self._seen = tuple(kept)


def common_prefix(a: bytes, b: bytes) -> int:
    """The number of leading bytes that are equal in both."""
    n = min(len(a), len(b))
    differs = np.frombuffer(a, np.uint8, n) != np.frombuffer(b, np.uint8, n)
    first = int(differs.argmax()) if n else 0
    return first if n and differs[first] else n


def _moved(seams: tuple[Seam, ...], text: int, tokens: int) -> tuple[Seam, ...]:
    return tuple(Seam(seam.start + text, seam.end + text, seam.tokens + tokens) for seam in seams)


def _parts(ids: npt.NDArray[np.int32]) -> list[list[int]]:
    """What stands behind each separating id."""
    return [part[1:].tolist() for part in np.split(ids, np.flatnonzero(ids == _PART))[1:]]
