"""Whether /v1/messages honours id_slot, found out on real servers: none here does, and nothing is lost by asking."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.live.wire import ask
from tests.live.wire import mitmdump
from tests.live.wire import relay
from tests.live.wire import request
from tests.live.wire import until

from servers import BUILDS
from servers import Build
from servers import Flags
from servers import start
from servers import tiny_model

pytestmark = pytest.mark.live

FLAGS = Flags(n_parallel=4, n_ctx=32768, kv_unified=False, cache_ram_mib=0)
GIVEN = "--parallel 4 --cache-ram 0"


@pytest.mark.parametrize("build", BUILDS)
def test_it_is_tried_once_and_found_to_be_ignored(build: Build, tmp_path: Path) -> None:
    with (
        start(tiny_model(), FLAGS, build) as server,
        relay(server.port) as wire,
        mitmdump(wire.port, tmp_path / "proxy", toki_server_flags=GIVEN) as proxy,
    ):

        def serve(path: str, body: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
            before = len(proxy.rows("id"))
            answer = ask(proxy.port, request(path, json.dumps(body | {"temperature": 0}).encode()))
            until(lambda: len(proxy.rows("id")) > before)
            return json.loads(answer.body), proxy.rows()[before]

        for number in range(20):  # until it trusts what it believes of the server
            _, row = serve("/completion", {"prompt": f"{number} warm {number}", "n_predict": 2})
            if number > 4 and "learning" not in row["reason"] and "known" not in row["reason"]:
                break
        tried = []
        for number in range(3):
            said: list[dict[str, Any]] = [
                {"role": "user", "content": f"Conversation {number}. " + f"{number}, so " * 30}
            ]
            answer, _ = serve("/v1/messages", {"messages": said, "max_tokens": 4})
            said += [{"role": "assistant", "content": answer["content"][0]["text"]}]
            said += [{"role": "user", "content": f"{number} and " * 700}]
            # Too much is new for the server to see that it goes on: alone it takes another slot.
            _, row = serve("/v1/messages", {"messages": said, "max_tokens": 4})
            tried.append("tries whether /v1/messages honours id_slot" in row["reason"])
            assert row["status"] == 200
        assert tried == [True, False, False]
        bodies = [message.body for message in wire.requests("/v1/messages")]
        assert [b'"id_slot":' in body for body in bodies] == [False, True, False, False, False, False]
        primers = [
            json.loads(message.body) for message in wire.requests("/completion") if b'"prompt":[' in message.body
        ]
        own = proxy.rows("prompt_tokens, reused, evaluated", "own_requests")
        assert own
        assert sorted(one["prompt_tokens"] for one in own) == sorted(
            sum(isinstance(token, int) for token in primer["prompt"])  # that of a trial is [[]]
            for primer in primers
        )
        assert "Traceback" not in proxy.log
