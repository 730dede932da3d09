"""SDKs and frameworks of Python and Node: what each makes of an answer through toki equals a direct call's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.clients.conftest import HERE
from tests.clients.conftest import Sides
from tests.clients.conftest import run

import install

PYTHON = install.CLIENTS / "bin" / "python"
# Each with the number of requests that it makes to prompt endpoints.
CLIENTS = {
    "node/openai_sdk.mjs": 8,
    "node/anthropic_sdk.mjs": 5,
    "node/vercel_ai.mjs": 6,
    "python/anthropic_sdk.py": 5,
    "python/langchain.py": 6,
    "python/litellm_sdk.py": 5,
    "python/llama_index_like.py": 6,
}


@pytest.mark.parametrize("client", CLIENTS)
def test_a_client_sees_what_it_sees_in_a_direct_call(sides: Sides, client: str, tmp_path: Path) -> None:
    # Directly twice: the second and the third time all of them find the same cache.
    urls = [sides.direct, sides.direct, sides.proxied]
    command = ["node" if client.endswith(".mjs") else PYTHON, HERE / client, *urls]
    printed, rows = sides.rows_of(CLIENTS[client], lambda: run(command, tmp_path, **environment()))
    _, wanted, found = (json.loads(line) for line in printed.splitlines() if line.startswith("{"))
    assert found == wanted
    for name, made in wanted.items():  # the schema forces the rest of a call
        if "streamed" in name:
            assert isinstance(made, list)
        if "tool" in name and "result" not in name:
            assert "weather" in json.dumps(made)
    assert {row["status"] for row in rows} == {200}
    assert all(row["reused"] + row["evaluated"] == row["prompt_tokens"] for row in rows)


def environment() -> dict[str, Any]:
    # The price list of litellm would come from the internet.
    return {"PYTHONPATH": str(install.ROOT), "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
