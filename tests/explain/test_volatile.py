from __future__ import annotations

import pytest

from toki.inspect.finding import Cause
from toki.inspect.texts import common_prefix
from toki.inspect.texts import common_suffix
from toki.inspect.volatile import LONGEST
from toki.inspect.volatile import volatile


@pytest.mark.parametrize(
    ("was", "now", "kind"),
    [
        ("Now 09:15", "Now 09:16", Cause.CLOCK),
        ("Now 9:15 AM", "Now 10:15 PM", Cause.CLOCK),
        ("2026-03-10T09:15:01.120Z", "2026-03-10T09:15:01.121Z", Cause.CLOCK),
        ("10 March 2026", "11 March 2026", Cause.CLOCK),
        ("March 9th, 2026", "March 10th, 2026", Cause.CLOCK),
        ("on Monday", "on Tuesday", Cause.CLOCK),
        ("3/9/2026", "3/10/2026", Cause.CLOCK),
        ("ts=1773130501.25", "ts=1773130502.5", Cause.CLOCK),
        ("12% full", "13% full", Cause.COUNTER),
        ("1,204 tokens left, $0.12", "980 tokens left, $0.14", Cause.COUNTER),
        ("session: 41", "session: 42", Cause.ID),
        ("id=8f14e45f-ceea-467f-a0e6-1b2c3d4e5f60", "id=c9f0f895-fb98-4b91-9c3b-6a7b8c9d0e1f", Cause.ID),
        ("commit 4f2a91c", "commit b07d3ee", Cause.ID),
        ("at 10:00 for req_81haK2x9", "at 10:01 for req_92jbL3y0", Cause.CLOCK),
        ("17 of req_81haK2x9", "18 of req_92jbL3y0", Cause.COUNTER),
        ("same\nNow 09:15\nrest", "same\nNow 09:16\nother", Cause.CLOCK),
        ("x-anthropic-billing-header: cch=0a1b2;", "x-anthropic-billing-header: cch=0a1b3;", Cause.ATTRIBUTION),
        ("the light is on", "the light is off", None),
        ("app2.py", "app3.py", None),
        ("v1.2", "v1.3", None),
        ("Now 09:15, on", "Now 09:16, off", None),
        ("a", "a\nb", None),
        ("", "1", None),
        ("same", "same", None),
    ],
)
def test_what_changes_by_itself(was: str, now: str, kind: Cause | None) -> None:
    assert volatile(was, now) == kind


def test_a_line_without_end_is_looked_at_around_the_difference() -> None:
    long = "word " * LONGEST
    assert volatile(f"{long}10:00 {long}", f"{long}10:01 {long}") is Cause.CLOCK


@pytest.mark.parametrize("a", ["", "a", "ab", "abc", "xbc"])
@pytest.mark.parametrize("b", ["", "a", "abd", "abc", "bc"])
def test_common_ends(a: str, b: str) -> None:
    plain = next((n for n in range(min(len(a), len(b))) if a[n] != b[n]), min(len(a), len(b)))
    assert common_prefix(a, b) == plain
    a, b = a[::-1], b[::-1]
    assert common_suffix(a, b) == plain
    assert common_suffix(a, b, 1) == min(plain, 1)
