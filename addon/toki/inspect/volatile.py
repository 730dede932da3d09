"""Tells what changes by itself in a text: clocks, counters, ids.

Two lines that are equal once all clocks in them are covered differ by a clock. What looks like a number but is part of
a name (`app2.py`) is no counter. All patterns are bounded: a line can be hostile.
"""

from __future__ import annotations

import re

from toki.inspect.finding import Cause
from toki.inspect.texts import common_prefix

LONGEST = 10_000  # characters of a line that are looked at on either side of a difference

_MONTH = (
    r"(?:Jan(?:uary)?|Feb(?:ruary)?|Mar(?:ch)?|Apr(?:il)?|May|June?|July?|Aug(?:ust)?|Sep(?:t(?:ember)?)?|Oct(?:ober)?"
    r"|Nov(?:ember)?|Dec(?:ember)?)"
)
_DAY = r"(?:Mon(?:day)?|Tue(?:s(?:day)?)?|Wed(?:nesday)?|Thu(?:rs(?:day)?)?|Fri(?:day)?|Sat(?:urday)?|Sun(?:day)?)"
_TIME = r"\d{1,2}:\d{2}(?::\d{2})?(?:[.,]\d{1,9})?(?: ?[AaPp]\.?[Mm]\b\.?)?(?:Z\b|[+-]\d{2}:?\d{2}\b)?"
_WORD = r"[^\W\d_]{2,20}"
_CLOCK = re.compile(
    r"(?<![A-Za-z0-9_])(?:"
    rf"\d{{4}}-\d{{2}}-\d{{2}}(?:T{_TIME})?"  # 2026-03-10, 2026-03-10T09:15:01.120Z
    r"|\d{1,2}[/.]\d{1,2}[/.]\d{2,4}"  # 3/10/2026, 10.3.2026
    rf"|{_MONTH}\.? \d{{1,2}}(?:st|nd|rd|th)?,? \d{{4}}"  # March 10, 2026
    rf"|\d{{1,2}}\.? {_MONTH}\.? \d{{4}}"  # 10 March 2026
    rf"|(?:{_WORD},? )?\d{{1,2}}\.? (?:de )?{_WORD}\.? (?:de )?(?:19|20)\d{{2}}(?!\d)"  # mardi 10 mars 2026
    r"|\d{4}[年년] ?\d{1,2}[月월] ?\d{1,2}[日일](?: ?[(\uff08]\w{1,3}[)\uff09])?"  # 2026年3月10日(火)
    r"|(?:星期|周|週)[一二三四五六日天]|[月火水木金土日]曜日?|[월화수목금토일]요일"
    rf"|{_DAY}"
    rf"|{_TIME}"
    r"|1[5-9]\d{8}(?:\d{3})?(?:\.\d+)?"  # seconds or milliseconds of unix time
    r")"
)
_NUMBER = re.compile(r"(?<![A-Za-z0-9_/.:-])[$€£]?\d[\d.,]{0,24}%?(?![A-Za-z0-9_/-])")
_UUID = r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"
_ID = re.compile(
    rf"{_UUID}|(?<![A-Za-z0-9])(?=[A-Za-z_-]{{0,40}}[0-9])"
    r"(?:[0-9a-f]{5,64}|[A-Za-z0-9_-]{8,128})(?![A-Za-z0-9])"
)
_NAMED_ID = re.compile(r"(?i)(?:\b|_)(?:id|uuid|guid|hash|sha|nonce|session|request|trace)\b[^\n]{0,4}$")
_ATTRIBUTION = "x-anthropic-billing-header"


def volatile(was: str, now: str) -> Cause | None:
    """CLOCK, COUNTER, ID or ATTRIBUTION where the first lines that differ do so by one; None otherwise."""
    old, new = _first_different_lines(was, now)
    if old == new:
        return None
    if old.startswith(_ATTRIBUTION) and new.startswith(_ATTRIBUTION):
        return Cause.ATTRIBUTION
    if _CLOCK.sub("\0", old) == _CLOCK.sub("\0", new):
        return Cause.CLOCK
    if _NUMBER.sub("\0", old) == _NUMBER.sub("\0", new):
        place = common_prefix(old, new)
        start = max(old.rfind(" ", 0, place), old.rfind("=", 0, place)) + 1
        return Cause.ID if _NAMED_ID.search(old[:start]) else Cause.COUNTER
    if _ID.sub("\0", old) == _ID.sub("\0", new):
        return Cause.ID
    if _covered(old) == _covered(new):
        return _first_kind(old, new)
    return None


def by_nothing_else(was: str, now: str) -> bool:
    """Whether two texts differ by clocks, counters and ids alone, as far as they are looked at."""
    place = max(0, common_prefix(was, now) - LONGEST)
    return _covered(was[place : place + 2 * LONGEST]) == _covered(now[place : place + 2 * LONGEST])


def _covered(line: str) -> str:
    return _ID.sub("\0", _NUMBER.sub("\0", _CLOCK.sub("\0", line)))


def _first_kind(old: str, new: str) -> Cause:
    """Of several kinds in one line that of the first difference."""
    place = common_prefix(old, new)
    for kind, pattern in ((Cause.CLOCK, _CLOCK), (Cause.COUNTER, _NUMBER)):
        if any(match.start() <= place <= match.end() for match in pattern.finditer(new)):
            return kind
    return Cause.ID


def _first_different_lines(was: str, now: str) -> tuple[str, str]:
    """The lines of two texts in which the first difference lies."""
    place = common_prefix(was, now)
    start = max(was.rfind("\n", 0, place) + 1, place - LONGEST)
    old, new = (text[start : min(_line_end(text, place), place + LONGEST)] for text in (was, now))
    return old, new


def _line_end(text: str, place: int) -> int:
    end = text.find("\n", place)
    return len(text) if end < 0 else end
