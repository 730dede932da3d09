"""How many examples the property tests of the engine try: few by default, many with HYPOTHESIS_PROFILE=long."""

from __future__ import annotations

import os

from hypothesis import HealthCheck
from hypothesis import settings

LONG = os.environ.get("HYPOTHESIS_PROFILE") == "long"


def examples(n: int) -> settings:
    """Settings for a test that tries `n` examples, 50 times as many in the long profile."""
    return settings(
        max_examples=50 * n if LONG else n,
        deadline=None,  # a loaded machine is no failure
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
