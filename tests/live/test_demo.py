"""`make demo` with the tiny model: it runs to its end and counts the same traffic on both sides."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import demo

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "demo.py"


def test_the_demo(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["demo.py", "--model", "tiny"])
    assert demo.main() == 0
    printed, progress = capsys.readouterr()
    assert "straight       [" in progress
    assert progress.rstrip().endswith("36/36")
    straight, toki = columns(printed)
    assert straight["requests"] == toki["requests"] == 36
    for side in (straight, toki):
        assert side["evaluated"] + side["reused"] == side["prompt tokens"]
        assert side["hits"] + side["soft hits"] + side["misses"] == 36
        assert side["misses"] >= 1, "nothing is reused by the first request"
    assert toki["evaluated"] <= straight["evaluated"]
    actions = dict(re.findall(r"(\d+) (\w+)", printed.partition("toki's choices: ")[2].partition("\n")[0]))
    assert sum(map(int, actions)) == 36


def columns(printed: str) -> tuple[dict[str, float], dict[str, float]]:
    found = re.findall(r"^ *(\S.*?) {2,}([\d,.]+) +([\d,.]+)$", printed, re.MULTILINE)
    sides = [{row[0]: float(row[place].replace(",", "")) for row in found} for place in (1, 2)]
    return sides[0], sides[1]


def test_it_says_what_is_wrong_with_an_option() -> None:
    done = subprocess.run([sys.executable, str(SCRIPT), "--model", "huge"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "'smollm2', 'tiny'" in done.stderr or "smollm2, tiny" in done.stderr
