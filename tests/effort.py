"""How many examples property tests try: a share of the usual, by pytest's --hypothesis-profile (tests/conftest.py)."""

from __future__ import annotations

from hypothesis import HealthCheck
from hypothesis import settings

USUAL = 100  # examples of a test that names no number
PROFILES = {"usual": USUAL, "quick": 20, "long": 5000}


def share() -> float:
    """How much of the usual effort the profile asks for."""
    return settings.default.max_examples / USUAL if settings.default is not None else 1.0


def examples(n: int) -> settings:
    """Settings for a test that usually tries `n` examples."""
    return settings(
        max_examples=max(1, round(share() * n)),
        deadline=None,  # a loaded machine is no failure
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
