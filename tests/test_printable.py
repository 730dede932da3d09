"""Text that others chose does nothing to a terminal."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toki.printable import printable


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("", ""),
        ("qwen3 30b, 通义 é", "qwen3 30b, 通义 é"),
        ("\x1b]0;owned\x07", "\\x1b]0;owned\\x07"),
        ("a\r\ntoki 200 /completion", "a\\r\\ntoki 200 /completion"),
        ("gnp\u202e.exe", "gnp\\u202e.exe"),
        ("\x9b31m", "\\x9b31m"),  # the C1 form of the same sequences
        ("\udcff", "\\udcff"),
        ("\U000e0041", "\\U000e0041"),  # tags: invisible letters
    ],
)
def test_what_is_no_visible_character_is_an_escape(text: str, shown: str) -> None:
    assert printable(text) == shown


@given(st.text(st.characters()))
def test_one_line_without_control_characters(text: str) -> None:
    shown = printable(text)
    assert {unicodedata.category(one) for one in shown if one != " "}.isdisjoint({"Cc", "Cf", "Cs", "Zl", "Zp", "Zs"})
    assert printable(shown) == shown
    shown.encode("utf-8")
