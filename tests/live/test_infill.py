"""/infill on real servers, behind a path prefix: its slot is lost track of, and that slot alone."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.live.wire import Mitmdump
from tests.live.wire import ask
from tests.live.wire import mitmdump
from tests.live.wire import request
from tests.live.wire import until

from servers import BUILDS
from servers import Build
from servers import Flags
from servers import free_port
from servers import start
from servers import tiny_gaps_model

pytestmark = pytest.mark.live

PREFIX = "/llm"
FLAGS = Flags(n_parallel=3, n_ctx=12288, kv_unified=False, api_prefix=PREFIX)
GIVEN = "--parallel 3"
SLOW = "10000"  # ms: a busy machine must not make toki pass a request unread
UNKNOWN = "the server is not known yet"
WORDS = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]


def serve(proxy: Mitmdump, path: str, sent: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """An answer, and its row."""
    before = len(proxy.rows("id"))
    body = json.dumps(sent | {"n_predict": 4, "temperature": 0}).encode()
    answer = ask(proxy.port, request(PREFIX + path, body))
    until(lambda: len(proxy.rows("id")) > before)
    return json.loads(answer.body), proxy.rows()[before]


@pytest.mark.parametrize("build", BUILDS)
def test_what_infill_leaves_is_unknown_and_all_else_is_not(build: Build, tmp_path: Path) -> None:
    random = Random(1)
    port = free_port()
    with (
        start(tiny_gaps_model(), FLAGS, build, port),
        mitmdump(port, tmp_path / "proxy", toki_server_flags=GIVEN, toki_deadline_ms=SLOW) as proxy,
    ):
        until(lambda: serve(proxy, "/completion", {"prompt": "Hello"})[1]["reason"] != UNKNOWN)
        talks = [f"{number}: {' '.join(random.choices(WORDS, k=50))}" for number in range(3)]
        told = 0
        for turn in range(25):
            if turn % 5 == 4:
                code = {"input_prefix": " ".join(random.choices(WORDS, k=60)), "input_suffix": "return"}
                answer, row = serve(proxy, "/infill", code)
                assert (row["endpoint"], row["status"], row["action"]) == ("/infill", 200, "passed")
                assert row["prompt_tokens"] == answer["tokens_evaluated"] > 60
                assert row["slot"] == answer["id_slot"]
                assert "/infill" in row["reason"]
                continue
            number = random.randrange(3)
            talks[number] += " " + " ".join(random.choices(WORDS, k=12))
            answer, row = serve(proxy, "/completion", {"prompt": talks[number]})
            talks[number] += answer["content"]
            assert row["prompt_tokens"] == row["reused"] + row["evaluated"]
            told += row["predicted"] == row["reused"]
        assert told >= 16  # of 20: where a conversation comes back whose slot was taken, its reuse may be anything
        assert "Traceback" not in proxy.log
