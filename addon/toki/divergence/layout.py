"""What a text is made of: prose, code, JSON values. And whether two texts differ in white space alone."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

_FENCE = re.compile(
    r"^[ \t]*(?P<mark>```+|~~~+)[ \t]*(?P<language>[\w+#.-]*)[^\n]*\n(?P<code>.*?)(?:^[ \t]*(?P=mark)[ \t]*$|\Z)",
    re.M | re.S,
)
_BETWEEN_DIGITS = re.compile(r"(?<=\d)\s+(?=\d)")
_STARTS_CODE = re.compile(
    r"^\s*(?:(?:async\s+)?def\s+\w+\s*\(|class\s+\w+.*[:{]\s*$|import\s+[\w.]+|from\s+[\w.]+\s+import\b|return\b.*|"
    r"(?:if|elif|while|for|with|except|try|else)\b.*:\s*$|(?:if|while|for|switch|else|try)\b.*\{\s*$|"
    r"(?:const|let|var)\s+\w+\s*=|(?:export\s+)?(?:async\s+)?function\b.*\{?|#include\b|#!/|(?:public|private|static)\s.*|"
    r"(?:SELECT|INSERT|UPDATE|DELETE|CREATE|ALTER)\s+(?:.+\s)?(?:FROM|INTO|SET|TABLE|INDEX|\*).*|print\s*\(.*\)|"
    r"(?:sudo\s+)?(?:rm|git|cd|ls|pip|npm|make|curl|docker|cp|mv|mkdir|chmod|grep|cat|apt|ssh)\s+[-\w./~].*|"
    r"[\w.\[\]\"']+\s*(?:[-+*/]?=)\s*[^=\s].*|[\w.]+\(.*\);?\s*$|.*[;{}]\s*$|\s*@\w+.*)",
)
_YAML = re.compile(r"^\s*(?:-\s+)?[\w.\"'-]+:(?:\s+\S.*)?$|^\s*-\s+\S+$")


@dataclass(frozen=True, slots=True)
class Code:
    """A piece of code without its fence; `language` as the fence names it, "" where none does."""

    text: str
    language: str = ""


@dataclass(frozen=True, slots=True)
class Parts:
    """A text taken apart. `prose` is what is left, with a mark where something was taken out."""

    prose: str
    code: tuple[Code, ...]
    values: tuple[Any, ...]  # JSON, numbers as Decimal


MARK = " \ufffc "  # stands in prose for what was taken out


def split(text: str) -> Parts:
    """Take JSON values and code out of `text`."""
    whole, found = _json(text)
    if found:
        return Parts("", (), (whole,))
    code: list[Code] = []
    values: list[Any] = []

    def take(match: re.Match[str]) -> str:
        value, is_json = _json(match["code"])
        if is_json:
            values.append(value)
        else:
            code.append(Code(textwrap.dedent(match["code"].expandtabs(4)), match["language"].lower()))
        return MARK

    unfenced = _FENCE.sub(take, text)
    prose, embedded = _embedded(unfenced)
    if not code and looks_like_code(prose.replace(MARK.strip(), "")):
        return Parts("", (Code(textwrap.dedent(unfenced.expandtabs(4))),), tuple(values))
    return Parts(prose, tuple(code), (*values, *embedded))


def _json(text: str) -> tuple[Any, bool]:
    """The object or list that `text` is, and whether it is one."""
    stripped = text.strip()
    if stripped[:1] not in ("{", "["):
        return None, False
    try:
        return json.loads(stripped, parse_float=Decimal, parse_int=Decimal), True
    except (ValueError, RecursionError):
        return None, False


def _embedded(prose: str) -> tuple[str, list[Any]]:
    """Take the JSON objects out of `prose`."""
    decoder = json.JSONDecoder(parse_float=Decimal, parse_int=Decimal)
    values, left, place = [], "", 0
    while (brace := prose.find("{", place)) >= 0:
        try:
            value, end = decoder.raw_decode(prose, brace)
        except (ValueError, RecursionError):
            left, place = left + prose[place : brace + 1], brace + 1
            continue
        values.append(value)
        left, place = left + prose[place:brace] + MARK, end
    return left + prose[place:], values


def canonical(value: Any) -> str:
    """A JSON value as text that is equal for equal values: key order and the form of numbers do not count."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{json.dumps(key)}:{canonical(value[key])}" for key in sorted(value)) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(canonical, value)) + "]"
    if isinstance(value, Decimal):
        return _exact(value) if value.is_finite() else str(value)
    return json.dumps(value)


def _exact(number: Decimal) -> str:
    """All digits of a number, without zeros around them. (Decimal's own `normalize` rounds, and has a largest.)"""
    sign, digits, exponent = number.as_tuple()
    written = "".join(map(str, digits)).lstrip("0")
    short = written.rstrip("0")
    assert isinstance(exponent, int)
    return f"{'-' * sign}{short}e{exponent + len(written) - len(short)}" if short else "0"


def looks_like_code(text: str) -> bool:
    """Whether most lines of `text` look like those of a program or of a YAML file."""
    lines = [line for line in text.splitlines() if line.strip()]
    if not lines:
        return False
    hits = sum(bool(_STARTS_CODE.match(line)) for line in lines)
    if hits > 0.5 * len(lines) or (hits and hits >= 0.5 * len(lines) and len(lines) > 1):
        return True
    keys = any(":" in line for line in lines) and any(line[0].isspace() for line in lines)
    return keys and all(map(_YAML.match, lines))


def differ_in_white_space_alone(one: str, other: str) -> bool:
    """Whether two texts are equal once all white space is removed, and it neither parted digits nor shaped code."""
    return squeezed(one) == squeezed(other) and _shapes(one) == _shapes(other)


def squeezed(text: str) -> str:
    """`text` without white space, but for a mark where it parts digits."""
    return "".join(_BETWEEN_DIGITS.sub("\x00", text).split())


def _shapes(text: str) -> list[list[tuple[int, str]]]:
    """Of each piece of code its lines: how far each is indented, and what it says."""
    return [list(lines(code.text)) for code in _pieces(text)]


def _pieces(text: str) -> list[Code]:
    fenced = [Code(textwrap.dedent(match["code"].expandtabs(4))) for match in _FENCE.finditer(text)]
    if not fenced and looks_like_code(text) and not _json(text)[1]:
        return [Code(textwrap.dedent(text.expandtabs(4)))]
    return [code for code in fenced if not _json(code.text)[1]]


def lines(code: str) -> Iterator[tuple[int, str]]:
    """Each line of code that is not empty: its indentation and its text without white space."""
    for line in code.splitlines():
        if line.strip():
            yield len(line) - len(line.lstrip()), squeezed(line)
