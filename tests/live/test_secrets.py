"""Secrets that pass through a real mitmdump are found nowhere that toki writes, and what clients chose harms no reader.

What is searched: the log at its most talkative, the database and its journal byte by byte, the event log, and what toki
puts on flows. The flows themselves, where a user saves them, hold all that was sent: they are mitmproxy's.
"""

from __future__ import annotations

import gzip
import json
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from mitmproxy.http import HTTPFlow
from mitmproxy.io import FlowReader
from tests.live.wire import Client
from tests.live.wire import ask
from tests.live.wire import mitmdump
from tests.live.wire import request

from servers import Flags
from servers import free_port
from servers import start
from servers import tiny_model

KEY = "zq-the-real-key"
MARK = b"zq-"  # in each secret, and in nothing else
HOSTILE = "'; DROP TABLE requests; --<script>alert(1)</script>|\x1b]0;owned\x07\x1b[2J\u202e\r\ntoki 200 /fake"
RIGHT = f"Authorization: Bearer {KEY}\r\n"
SESSIONS = (
    f"X-Session-Id: zq-session%0d%0aX-Injected: zq-yes\r\nSession_id: zq-{HOSTILE[:60]}\r\n"
    "X-Claude-Code-Session-Id: zq-claude\x1b[31m\r\n"
)


def chat(*texts: str, **more: Any) -> bytes:
    return json.dumps({"messages": [{"role": "user", "content": each} for each in texts], **more}).encode()


SHORT: dict[str, Any] = {"max_tokens": 2, "temperature": 0}
BODY = chat("zq-in-a-prompt, say hello", **SHORT)
IN_FIELDS = {"api_key": "zq-field", "user": "zq-user", "metadata": {"token": "zq-meta"}}
TOOL = {"type": "function", "function": {"name": "zq-tool", "description": "zq-told", "parameters": {"type": "object"}}}
LONE = b'{"messages":[{"role":"user","content":"zq-broken \\ud800"}]}'

# Path, body, further headers.
SENT: list[tuple[str, bytes, str]] = [
    ("/v1/chat/completions", BODY, RIGHT),
    ("/v1/chat/completions", BODY, f"X-Api-Key: {KEY}\r\n"),
    ("/v1/messages", chat("zq-anthropic", **SHORT), f"X-Api-Key: {KEY}\r\nAnthropic-Version: 2023-06-01\r\n"),
    ("/v1/responses", b'{"input":"zq-responses","max_output_tokens":2}', RIGHT),
    ("/infill", b'{"input_prefix":"zq-before","input_suffix":"zq-after","n_predict":2}', RIGHT),
    ("/completion?api_key=zq-query&key=zq-key", b'{"prompt":"zq-raw","n_predict":2}', RIGHT),
    ("/v1/chat/completions", BODY, "Authorization: Bearer zq-wrong\r\n"),
    ("/v1/chat/completions", BODY, "Authorization: Basic enEtdXNlcjp6cS1wYXNz\r\nX-Api-Key: zq-wrong-too\r\n"),
    ("/v1/chat/completions", BODY, f"{RIGHT}Cookie: session=zq-cookie\r\nProxy-Authorization: Basic zq-proxy\r\n"),
    (
        "/v1/chat/completions",
        BODY,
        f"{RIGHT}{SESSIONS}",
    ),
    ("/v1/chat/completions", chat("zq-fields", **SHORT, **IN_FIELDS), RIGHT),
    ("/v1/chat/completions", chat("zq-first", "zq-second", **SHORT, tools=[TOOL]), RIGHT),
    ("/v1/chat/completions", chat("zq-first", "zq-other", **SHORT, tools=[TOOL]), RIGHT),
    ("/v1/chat/completions", b'{"messages": "zq-no-list"}', RIGHT),
    ("/v1/chat/completions", b'{"messages": [{"role": "zq-role", "content": ["zq-part"]}]}', RIGHT),
    ("/v1/chat/completions", b"zq-not-json", RIGHT),
    ("/v1/chat/completions", LONE, RIGHT),
    ("/v1/chat/completions", gzip.compress(BODY), f"{RIGHT}Content-Encoding: gzip\r\n"),
    ("/completion", b'{"prompt": [99999999999999999999, "zq-mixed"], "n_predict": 2}', RIGHT),
    ("/completion", json.dumps({"prompt": "zq-long " * 4000, "n_predict": 2}).encode(), RIGHT),
    ("/completion", b'{"prompt":"zq-lora","lora":[{"id":0,"scale":"zq-scale"}],"id_slot":"zq-slot"}', RIGHT),
    ("/v1/messages", b'{"messages":[{"role":"user","content":[{"type":"zq-type","zq-name":"zq-text"}]}]}', RIGHT),
    ("/v1/responses", b'{"input":[{"type":"zq-type"}]}', RIGHT),
    ("/v1/chat/completions", chat("zq-model", **SHORT, model=HOSTILE), RIGHT),
    ("/slots/0?action=zq-action", b'{"filename":"zq-file"}', RIGHT),
]
RAW = [b"Authorization: Bearer zq-\xff\xfe\r\n", b"Authorization:   Bearer\tzq-blank\r\n", b"X-Api-Key: zq-\x00nul\r\n"]


@dataclass(frozen=True, slots=True)
class Seen:
    """All that a run left behind."""

    log: str
    written: dict[str, bytes]  # by the file's name
    flows: list[HTTPFlow]
    rows: list[dict[str, Any]]
    db: Path


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seen]:
    where = tmp_path_factory.mktemp("secrets")
    flows, events = where / "flows", where / "events"
    with start(tiny_model(), Flags(n_parallel=2, n_ctx=4096, api_key=KEY)) as server:
        port = server.port
        with mitmdump(
            port,
            where,
            termlog_verbosity="debug",
            toki_log_events=str(events),
            toki_isolate="key",
            toki_embed_url=f"http://127.0.0.1:{free_port()}",  # nothing is there, so that it fails
            toki_deadline_ms="5000",
            save_stream_file=str(flows),
        ) as proxy:
            for path, body, headers in SENT:
                ask(proxy.port, request(path, body, headers=headers))
            for line in RAW:
                with Client(proxy.port) as client:
                    client.send(request("/v1/chat/completions", BODY).replace(b"\r\n\r\n", b"\r\n" + line + b"\r\n", 1))
                    client.answer()
            server.stop()
            for path, body, headers in SENT[:3]:  # look-ups fail, with credentials
                ask(proxy.port, request(path, body, headers=headers))
        assert proxy.db.exists()
        written = {
            path.name: path.read_bytes() for path in where.iterdir() if path.name.startswith(("toki.db", "events"))
        }
        with flows.open("rb") as file:
            saved = [flow for flow in FlowReader(file).stream() if isinstance(flow, HTTPFlow)]
        yield Seen(proxy.log, written, saved, proxy.rows(), proxy.db)


def test_the_secrets_were_sent_and_the_requests_handled(seen: Seen) -> None:
    """Else nothing is proved by their absence."""
    assert len(seen.flows) == len(SENT) + len(RAW) + 3
    whole = b"".join(flow.request.raw_content or b"" for flow in seen.flows)
    assert whole.count(MARK) > 30
    assert len(seen.rows) == len(seen.flows) - 1  # but for the one to /slots
    assert [row["status"] for row in seen.rows].count(200) >= 10
    assert {401, 400, 200} <= {row["status"] for row in seen.rows}
    assert any(row["reused"] for row in seen.rows)


def test_the_log_holds_none(seen: Seen) -> None:
    assert "a look-up failed" in seen.log
    assert [line for line in seen.log.splitlines() if MARK.decode() in line] == []


def test_no_file_holds_one(seen: Seen) -> None:
    assert {"toki.db", "events"} <= set(seen.written)
    assert all(content for name, content in seen.written.items() if name in ("toki.db", "events"))
    assert {name: content.count(MARK) for name, content in seen.written.items()} == dict.fromkeys(seen.written, 0)
    assert not any(b"enEtdXNlcjp6cS1wYXNz" in content for content in seen.written.values())


def test_what_toki_puts_on_flows_holds_none_but_words_of_the_prompt(seen: Seen) -> None:
    """A comment quotes the words that changed, a flow's details the text around them: for who has the flow anyway."""
    explained = [flow for flow in seen.flows if "toki" in flow.metadata]
    assert len(explained) >= 20
    for flow in explained:
        told = json.dumps({key: value for key, value in flow.metadata.items() if key.startswith("toki")})
        assert KEY not in told + flow.comment
        found = flow.metadata["toki"]["findings"]
        for finding in found:
            for quoted in ("before", "was", "now"):
                finding.pop(quoted, None)
        told = json.dumps({key: value for key, value in flow.metadata.items() if key.startswith("toki")})
        assert MARK.decode() not in told
        assert MARK.decode() not in flow.comment.partition(" [")[0]


def test_what_a_client_chose_harms_nobody_who_reads_it(seen: Seen) -> None:
    (row,) = [row for row in seen.rows if row["model"] == HOSTILE[:200]]
    assert row["status"] == 200
    with closing(sqlite3.connect(seen.db)) as db:
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    lines = [line for line in seen.log.split("\n") if "toki" in line]
    assert [line for line in lines if "owned" in line or "/fake" in line] == []
    for line in lines:
        assert line.isprintable() or line.replace("\x1b[0m", "").replace("\x1b", "").isprintable(), line
    for form in ("text", "markdown", "json"):
        command = [sys.executable, "-c", "import sys; from toki.cli import main; sys.exit(main())", "report"]
        said = subprocess.run(
            [*command, "--db", str(seen.db), "--format", form], capture_output=True, text=True, check=False
        )
        assert said.returncode in (0, 1), said.stderr
        assert all(map(str.isprintable, said.stdout.split("\n"))), said.stdout
        assert "owned" in said.stdout
        assert form != "markdown" or "<script>" not in said.stdout
