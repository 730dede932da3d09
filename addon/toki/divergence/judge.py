"""The verdict on two answers: identical, different in white space, cosmetically different, or of another meaning."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from toki.divergence import code
from toki.divergence.layout import canonical
from toki.divergence.layout import differ_in_white_space_alone
from toki.divergence.layout import split
from toki.divergence.meaning import Meaning
from toki.divergence.meaning import best
from toki.divergence.prose import difference


class Divergence(StrEnum):
    """How two answers differ. The name of the third comes from restored slots, where it was seen first."""

    IDENTICAL = "identical"
    WHITESPACE_ONLY = "whitespace-only"
    RESTORE_NOISE = "restore-noise"
    SUBSTANTIVE = "substantive"


@dataclass(frozen=True, slots=True)
class Verdict:
    """A class, and the reason in a few words; "" but for substantive ones."""

    divergence: Divergence
    reason: str = ""


def classify(a: str, b: str) -> Divergence:
    """How two answers to one prompt differ; the order of the two does not matter.

    Loads embedding models at its first use, where the extra [divergence] is installed.
    """
    return judge(a, b).divergence


def judge(a: str, b: str, meaning: Meaning | None = None) -> Verdict:
    """`classify` with the reason. `meaning`: other embeddings than the best that are installed."""
    if a == b:
        return Verdict(Divergence.IDENTICAL)
    if differ_in_white_space_alone(a, b):
        return Verdict(Divergence.WHITESPACE_ONLY)
    a, b = sorted((a, b))
    reason = _reason(a, b, meaning)
    return Verdict(Divergence.SUBSTANTIVE, reason) if reason else Verdict(Divergence.RESTORE_NOISE)


def _reason(a: str, b: str, meaning: Meaning | None) -> str:
    one, other = split(a), split(b)
    if len(one.values) != len(other.values):
        return "a JSON value is missing"
    if any(canonical(x) != canonical(y) for x, y in zip(one.values, other.values, strict=True)):
        return "another JSON value"
    if len(one.code) != len(other.code):
        return "a piece of code is missing"
    if not all(map(code.same, one.code, other.code)):
        return "other code"
    return difference(one.prose, other.prose, meaning or best())
