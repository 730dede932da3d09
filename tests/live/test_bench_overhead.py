"""`make bench-overhead`, very short: every way is measured, and so is every step."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

import bench_overhead


def test_the_bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "new" / "overhead.json"
    arguments = ["--rounds", "3", "--sizes", "400", "--output", str(output)]
    monkeypatch.setattr(sys, "argv", ["bench_overhead.py", *arguments])
    assert bench_overhead.main() == 0
    printed = capsys.readouterr().out
    told = json.loads(output.read_text())
    ways, steps = told["sizes"]["400"]["ways"], told["sizes"]["400"]["steps"]
    assert list(ways) == ["straight", "mitmdump", "toki off", "toki observe", "toki auto"]
    assert all(name in printed for name in ways)
    assert all(0 < way["p50"] <= way["p95"] for way in ways.values())
    assert (ways["mitmdump"]["added_p50"], ways["mitmdump"]["added_p95"]) == (0, 0)
    assert all(ways[name]["held_p50"] >= 0 for name in ways if name.startswith("toki"))
    assert {"parse", "template", "tokenise", "look", "embed", "decide", "splice"} <= set(steps)
    assert told["machine"]["mitmproxy"]


def test_a_history_has_about_its_size() -> None:
    for size in bench_overhead.SIZES:
        words = sum(len(str(message["content"]).split()) for message in bench_overhead.history(size))
        assert 0.8 * size < words < 1.05 * size
