"""The soak in a few seconds: many streams at once through one mitmdump, and nothing is left of them."""

from __future__ import annotations

import json
from math import isnan
from operator import attrgetter
from pathlib import Path

import pytest

import soak


def test_many_streams_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "soak.json"
    given = ["--seconds", "5", "--requests", "300", "--clients", "64", "--output", str(output)]
    assert soak.main(given) == 0, capsys.readouterr().out
    told = json.loads(output.read_text())
    assert told["streams"] >= told["clients"] == 64
    assert told["requests"] == told["streams"] + 300
    assert [*told["objects_at_rest"]] == [str(told["streams"]), str(told["requests"])]
    assert output.with_suffix(".png").stat().st_size > 0


def test_memory_that_grows_is_noticed() -> None:
    grown = [soak.Sample(n, 1000 * n, 10**8 + 10**6 * n, 9, 9, 0, 5, 0, 2 * n) for n in range(100)]
    assert soak.slope(grown, attrgetter("rss")) == pytest.approx(1000)
    assert soak.slope(grown, attrgetter("objects")) == pytest.approx(0.002)
    assert isnan(soak.slope(grown[:1], attrgetter("rss")))  # not known, so not flat
