"""What `toki report` says of real traffic: why prompts were processed again, beside totals that are the server's."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
import requests
from tests.live.wire import until

from proxy import mitmdump
from proxy import rows_of
from servers import Flags
from servers import start
from servers import tiny_model
from toki.cli import main
from toki.inspect.records import findings

pytestmark = pytest.mark.live
TURNS = 4


def test_a_clock_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with (
        start(tiny_model(), Flags(n_parallel=2, n_ctx=16_384)) as server,
        mitmdump(server.url) as proxy,
        requests.Session() as session,
    ):
        session.trust_env = False
        for turn in range(TURNS):
            system = f"It is 12:0{turn}:00. " + "Rules of this house. " * 40
            messages = [{"role": "system", "content": system}, {"role": "user", "content": "Well?"}]
            body = {"messages": messages, "max_tokens": 4, "temperature": 0}
            session.post(f"{proxy.url}/v1/chat/completions", json=body, timeout=60).raise_for_status()
            rows_of(proxy.db, turn + 1)
        kept = tmp_path / "toki.db"
        until(lambda: len(findings(proxy.db) or ()) == TURNS - 1)
        with closing(sqlite3.connect(proxy.db)) as source, closing(sqlite3.connect(kept)) as copy:
            source.backup(copy)
    assert b"house" not in kept.read_bytes(), "no text of a prompt is stored"
    assert main(["report", "--db", str(kept), "--format", "json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["totals"]["requests"] == TURNS
    assert [cause["cause"] for cause in found["causes"]] == ["clock"]
    assert found["causes"][0]["requests"] == TURNS - 1
    assert found["advice"][0].startswith(f"clock, in {TURNS - 1} requests, ")
