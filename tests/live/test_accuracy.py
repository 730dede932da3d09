"""The accuracy check itself, on real servers: quiet traffic is predicted, and a kept log is judged the same again."""

from __future__ import annotations

from pathlib import Path

import pytest

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
