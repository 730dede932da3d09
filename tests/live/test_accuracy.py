"""Predictions against real servers: of quiet traffic, and of mixed traffic.

A kept log is judged the same again.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from accuracy import AFTER_RESTART
from accuracy import Case
from accuracy import held
from accuracy import judged
from accuracy import run
from accuracy import share
from servers import Build


@pytest.mark.parametrize("flags", ["default", "-np 4"])
def test_a_growing_chat_is_predicted(tmp_path: Path, build: Build, flags: str) -> None:
    case = Case("tiny", flags, build, scenarios=("growing-chat",))
    result = run(1, tmp_path, case)
    assert (result.case, result.faults, len(result.verdicts)) == (case, (), 30)
    assert share(map(held, result.clear[10:])) == 1
    assert share(one.within(0.02) for one in result.clear) >= 0.9
    assert judged(tmp_path, case).verdicts == result.verdicts


def test_mixed_traffic_is_predicted_and_rules_are_found(tmp_path: Path) -> None:
    """Edits, repeats, aborts, copies, side calls; flags that are told and flags that are not; other flags after a
    restart. Each request is sent once the server is done with the one before, so that nothing depends on time but how
    far the prefill of a client got that left."""
    cases = [
        Case("tiny", "default", "xllamacpp"),
        Case("tiny", "-np 4"),
        Case("tiny", "default", then="-np 4 -cram 0", most=200),
    ]
    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(partial(run, 1, tmp_path), cases))
    for result in results:
        assert result.faults == ()
        assert len(result.clear) > (150 if result.case.then else 250)
        assert result.found_after is not None
        assert result.found_after <= 10
        assert share(one.within(0.02) for one in result.clear) >= 0.97
        assert share(one.naive_within(0.02) for one in result.clear) < 0.9
    assert share(map(held, results[0].clear)) >= 0.985
    assert share(map(held, results[1].clear)) >= 0.985
    assert len(results[2].wrong) <= AFTER_RESTART
