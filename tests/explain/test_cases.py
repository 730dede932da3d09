"""Explain against the cases: the causes that were written down, no more and no fewer."""

from __future__ import annotations

from typing import Any

import pytest
from tests.explain.cases import Case
from tests.explain.cases import load
from tests.explain.cases import play

from toki.inspect.explain import Tally

CASES = load()
NEAR = 0.1  # share of the tokens written down; they are worked out from characters


def found(tally: Tally, expected: dict[str, Any]) -> dict[str, Any]:
    """A cause in the terms of what was expected."""
    block, tokens = tally.first.block, expected.get("tokens")
    known = {
        "class": str(tally.cause),
        "part": str(block.part) if block is not None else None,
        "message": block.message if block is not None else None,
        "recurring": tally.last.recurring,
        "remedy": str(tally.last.remedy),
        "tokens": tokens if tokens == pytest.approx(tally.tokens, abs=NEAR * (tokens or 0)) else tally.tokens,
    }
    return {name: known[name] for name in expected}


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.file}: {case.name}")
def test_the_causes_are_those_written_down(case: Case) -> None:
    explainer, findings = play(case)
    causes = sorted(explainer.causes, key=lambda tally: tally.population)
    described = [found(tally, expected) for tally, expected in zip(causes, case.expect, strict=False)]
    verdicts = [finding.verdict for each in findings for finding in each]
    assert len(causes) == len(case.expect), verdicts
    assert described == case.expect, verdicts


def test_there_are_enough_cases() -> None:
    positive = [case for case in CASES if case.expect]
    assert len(positive) >= 60
    assert len(CASES) - len(positive) >= len(positive)
    assert len({(case.file, case.name) for case in CASES}) == len(CASES)
