"""Which requests can be asked again, and where a request of toki's own would cost no one anything."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest

from toki import verify
from toki.divergence import Divergence
from toki.verify import comparable
from toki.verify import judged_aside


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"temperature": 0}, True),
        ({"temperature": 0.0}, True),
        ({"temperature": 0.8, "seed": 1}, True),
        ({"seed": 0}, True),
        ({}, False),
        ({"temperature": 0.8}, False),
        ({"temperature": False}, False),
        ({"temperature": "0"}, False),
        ({"temperature": 0.8, "seed": -1}, False),
        ({"temperature": 0.8, "seed": 2**32 - 1}, False),
        ({"temperature": 0.8, "seed": True}, False),
        ({"temperature": 0, "cache_prompt": False}, False),
    ],
)
def test_only_what_sampling_cannot_change_is_comparable(body: dict[str, Any], expected: bool) -> None:
    assert comparable(body) is expected


def test_answers_are_judged_in_a_process_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    assert judged_aside("It is 5 km.", "It is 6 km.") is Divergence.SUBSTANTIVE
    assert judged_aside("It is \ud800.", "It is \ud800 .") is Divergence.WHITESPACE_ONLY
    monkeypatch.setattr(verify, "JUDGING", 0.01)
    with pytest.raises(subprocess.TimeoutExpired):
        judged_aside("It is 5 km.", "It is 6 km.")
