"""Real servers count the prompts that were converted, and agree: after a few of them they are not asked any more."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.live.wire import Mitmdump
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
from toki.counts import ENOUGH

pytestmark = pytest.mark.live

SAID = [{"role": "user", "content": "Say something about slots."}]
TOOLS = [{"name": "look", "description": "Looks.", "input_schema": {"type": "object", "properties": {}}}]
SHAPES: dict[str, tuple[dict[str, Any], str, int]] = {
    "/v1/messages": ({"messages": SAID, "system": "Be brief.", "tools": TOOLS}, "count_tokens", ENOUGH),
    "/v1/responses": ({"input": SAID, "instructions": "Be brief."}, "input_tokens", ENOUGH),
    "/v1/chat/completions": ({"messages": SAID}, "input_tokens", 0),
}


def rows_of(proxy: Mitmdump, total: int) -> list[dict[str, Any]]:
    """The rows, once there are as many."""
    until(lambda: len(proxy.rows("id")) == total)
    return proxy.rows()


@pytest.mark.parametrize("build", BUILDS)
def test_a_few_converted_bodies_are_counted_too(build: Build, tmp_path: Path) -> None:
    with (
        start(tiny_model(), Flags(n_parallel=2, n_ctx=4096), build) as server,
        relay(server.port) as wire,
        mitmdump(wire.port, tmp_path / "proxy") as proxy,
    ):
        total = 0
        for path, (body, counts, expected) in SHAPES.items():
            for number in range(ENOUGH + 2):
                sent = json.dumps({"max_tokens": 2, "max_output_tokens": 2, "number": number, **body}).encode()
                assert ask(proxy.port, request(path, sent)).first.endswith("200 OK")
                total += 1
                row = rows_of(proxy, total)[-1]
                assert row["prompt_tokens"] == row["reused"] + row["evaluated"]
                assert "were read" not in row["reason"]
            asked = [message.body for message in wire.requests(f"{path}/{counts}")]
            assert len(asked) == expected
            assert set(asked) <= {message.body for message in wire.requests(path)}
        assert "were read" not in proxy.log
