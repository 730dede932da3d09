"""Which requests can be asked again, and where a request of toki's own would cost no one anything."""

from __future__ import annotations

from typing import Any

import pytest

from toki.verify import comparable


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
