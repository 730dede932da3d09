"""The exact rules of `classify`, one by one, without a model; what needs an embedding is in test_calibration.py."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toki.divergence import Divergence
from toki.divergence import Verdict
from toki.divergence import judge
from toki.divergence.layout import squeezed
from toki.divergence.meaning import deterministic

IDENTICAL, WHITESPACE, NOISE, SUBSTANTIVE = Divergence


def verdict(one: str, other: str) -> Verdict:
    """Judged without a model, in both orders."""
    found = judge(one, other, deterministic())
    assert found == judge(other, one, deterministic())
    return found


def test_the_words_are_those_that_reports_use() -> None:
    assert list(Divergence) == ["identical", "whitespace-only", "restore-noise", "substantive"]


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ("", "", IDENTICAL),
        ("a", "a", IDENTICAL),
        ("a b", "ab", WHITESPACE),
        ("a\n", "a", WHITESPACE),
        ("", " \n", WHITESPACE),
        ("see 10 20", "see 10  20", WHITESPACE),
        ("see 10 20", "see 1020", SUBSTANTIVE),
        ("1\n2", "12", SUBSTANTIVE),
        ("if a:\n    b()\n    c()", "if a:\n    b()\nc()", SUBSTANTIVE),
        ("if a:\n    b()", "if a:\n  b()", NOISE),
        ("- a\n  - b", "- a\n- b", WHITESPACE),
        ("```\nif a:\n    b()\n```\ntext", "```\nif a:\n    b()\n```\n\ntext", WHITESPACE),
    ],
)
def test_white_space(one: str, other: str, expected: Divergence) -> None:
    assert verdict(one, other).divergence is expected


@pytest.mark.parametrize(
    ("one", "other", "why"),
    [
        ("It costs 5 euros.", "It costs 6 euros.", "number"),
        ("It costs five euros.", "It costs 6 euros.", "number"),
        ("It is 5 km long.", "It is 5 miles long.", "number"),
        ("It is minus 5, so -5.", "It is minus 5, so 5.", "number"),
        ("It is open.", "It isn't open.", "opposite"),
        ("Es ist offen.", "Es ist nicht offen.", "opposite"),
        ("Yes, it is.", "No, it is.", "opposite answer"),
        ("I met Anna there.", "I met Maria there.", "name"),
        ("Call load_all first.", "Call load_one first.", "name"),
        ("Anna paid Bob.", "Bob paid Anna.", "exchanged"),
        ("It works.", "It works?", "question"),
        ("x = 1", "x = 2", "code"),
        ('{"a": 1}', '{"a": 2}', "JSON"),
        ('{"a": 1}', '{"a": true}', "JSON"),
        ('{"a": 1}', '{"a": 1, "b": 2}', "JSON"),
        ("So:\n```\nx\n```", "So:", "code"),
        ("Open the lid. Pour the water.", "Open the lid.", "missing"),
        ("Open the lid.", "", "missing"),
        ("1. Mix.\n2. Bake.", "1. Bake.\n2. Mix.", "order"),
        ("It will rain.", "It may rain.", "certainty"),
        ("He left.", "Er ist nicht gegangen und kommt nie wieder.", "negation"),
        ("Use `a + b`.", "Use `a - b`.", "operator"),
        ("It holds if x > 5.", "It holds if x < 5.", "operator"),
        ("Check a == b first.", "Check a != b first.", "operator"),
        ("Use a && b here.", "Use a || b here.", "operator"),
        ("The derivative is 2x + 3.", "The derivative is 2x - 3.", "operator"),
        ("Set x-1 as the index.", "Set x+1 as the index.", "operator"),
        ("It is x ≤ 3.", "It is x ≥ 3.", "operator"),
        ("It is written in C++.", "It is written in C.", "C++"),
        ("The mask is 0xff.", "The mask is 0xfe.", "0xf"),
        ("| a | ✅ |\n| b | ❌ |", "| a | ❌ |\n| b | ✅ |", "mark"),
        ("England won 2-1.", "England won 1-2.", "exchanged"),
        ("The correct answer is A.", "The correct answer is B.", "name"),
        ("The correct option is (C).", "The correct option is (D).", "name"),
        ("Option A is better.", "Option C is better.", "name"),
        ("Answer: C", "Answer: D", "name"),
        ("The server is 192.168.0.1.", "The server is 192.168.0.2.", "number"),
        ("Use 5.15.0.91.", "Use 5.15.0.92.", "number"),
        ("It is 2147483647.", "It is 2147483648.", "number"),
        ("Call 5551234567.", "Call 5551234568.", "number"),
        ('{"id": 1234567890123456789012345678901}', '{"id": 1234567890123456789012345678902}', "JSON"),
    ],
)
def test_substantive(one: str, other: str, why: str) -> None:
    found = verdict(one, other)
    assert found.divergence is SUBSTANTIVE
    assert why in found.reason


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("It costs 1,000 euros.", "It costs 1000 euros."),
        ("It costs 1.000 Euro und das ist viel.", "Es kostet 1000 Euro und das ist viel."),
        ("It takes two hours.", "It takes 2 hours."),
        ("It's not open.", "It is not open."),
        ("**Close** the lid!", "Close the lid."),
        ("- tea\n- milk", "* milk\n* tea"),
        ("Sure! The lid is closed.", "The lid is closed."),
        ('{"a": 1, "b": [2]}', '{"b": [2.0], "a": 1}'),
        ("x = 'a'  # why", 'x = "a"'),
        ("Die Tür ist zu.", "The door is closed."),
        ("It came on 2024-01-05.", "It came on January 5, 2024."),
        ("It was 2024-01-05.", "It was 2024/01/05."),
        ("The answer is 42.", "42"),
        ("It takes 10-20 minutes.", "It takes 10 to 20 minutes."),
        ("The U.S. is big.", "The US is big."),
        ("✅ Fast\n✅ Cheap", "- Fast\n- Cheap"),
        ("2 × 3 = 6", "2 * 3 = 6"),
        ("Use 2, 3 and 5.", "Use 5, 2 and 3."),
        ("Note: A proxy helps.", "Note: a proxy helps."),
        ("a -> b", "a → b"),
        ('{"a": 1e1000000}', '{"a": 10e999999}'),
    ],
)
def test_cosmetic(one: str, other: str) -> None:
    assert verdict(one, other) == Verdict(NOISE)


ANY = st.text(max_size=60) | st.lists(
    st.sampled_from(
        ["The", "cat", "not", "5", "5,000", "km", "Anna", "{", '{"a": 1}', "```", "\n", ".", "- ", "def f():"]
    ),
    max_size=14,
).map(" ".join)


@pytest.mark.parametrize(
    "text", ["\n" * 3000, "1.2." + "4" * 5000, "hundred " * 500, "一" * 600, "9" * 5000, "[" * 3000]
)
def test_odd_texts_have_a_verdict_in_time(text: str) -> None:
    began = time.process_time()
    verdict(f"The answer is yes. {text} x", f"The answer is surely yes. {text} x")
    assert time.process_time() - began < 10


@given(ANY, ANY)
def test_any_two_texts_have_a_verdict_that_does_not_depend_on_their_order(one: str, other: str) -> None:
    found = verdict(one, other)
    assert (found.divergence is IDENTICAL) == (one == other)
    if found.divergence is WHITESPACE:
        assert squeezed(one) == squeezed(other)
    assert bool(found.reason) == (found.divergence is SUBSTANTIVE)
