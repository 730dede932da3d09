"""What users install beside toki is bounded on both sides, and each has its reason."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

PYPROJECT = (Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8")
PROJECT = tomllib.loads(PYPROJECT)["project"]
EXTRAS = PROJECT["optional-dependencies"]
FOR_USERS = [*PROJECT["dependencies"], *(one for name in EXTRAS if name != "test" for one in EXTRAS[name])]
NAMED = [one for one in FOR_USERS if not one.startswith("mitmproxy-toki[")]


@pytest.mark.parametrize("requirement", NAMED)
def test_a_range_has_two_ends(requirement: str) -> None:
    assert re.search(r"==[\d.]+$|>=[\d.]+,<[\d.]+$", requirement)


def test_there_are_few_at_run_time() -> None:
    names = {re.split(r"[<>=]", one)[0] for one in PROJECT["dependencies"]}
    assert names == {"h11", "mitmproxy", "numpy", "requests", "scikit-learn"}


@pytest.mark.parametrize("requirement", PROJECT["dependencies"])
def test_a_reason_stands_beside_it(requirement: str) -> None:
    (line,) = [line for line in PYPROJECT.splitlines() if f'"{requirement}"' in line]
    assert len(line.partition("#")[2].split()) >= 3
