"""Programs that people start: llm, aider, curl. What each prints or writes equals that of a direct call."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import Any

import pytest
from tests.clients.conftest import Sides
from tests.clients.conftest import run

import install

BIN = install.CLIENTS / "bin"
ASKED = "What is the weather in Paris?"
SAMPLING: dict[str, Any] = {"max_tokens": 24, "temperature": 0, "seed": 7}
CITY = {"type": "object", "properties": {"city": {"enum": ["Paris", "Oslo"]}}, "required": ["city"]}
WEATHER = 'def weather(city: str) -> str:\n    "Weather now."\n    return "rain"\n'
# A random model with a tool to call says what the server can't read, so here the server's own error comes through;
# llm has no way to force a call.
LLM = {
    "streamed": [],
    "schema": ["--no-stream", "--schema", json.dumps(CITY)],
    "tool": ["--functions", WEATHER],
}


@pytest.mark.parametrize("name", LLM)
def test_llm_with_a_model_file(sides: Sides, name: str, tmp_path: Path) -> None:
    def ask(url: str) -> str:
        (tmp_path / "extra-openai-models.yaml").write_text(
            f"- model_id: local\n  model_name: tiny\n  api_base: {url}/v1\n  supports_tools: true\n"
            "  supports_schema: true\n"
        )
        options = [word for key, value in SAMPLING.items() for word in ("-o", key, str(value))]
        command: list[str | Path] = [BIN / "llm", "-m", "local", "-s", "Be brief.", *options, *LLM[name], ASKED]
        return run(command, tmp_path, fails=name == "tool", LLM_USER_PATH=str(tmp_path))

    wanted = ask(sides.direct)
    found, (row,) = sides.rows_of(1, lambda: ask(sides.proxied))
    assert found == wanted
    assert len(found) > 10
    assert row["stream"] == (name != "schema")
    assert row["prompt_tokens"] > 10


def test_aider(sides: Sides, tmp_path: Path) -> None:
    def ask(url: str) -> str:
        said = tmp_path / f"{url.rpartition(':')[2]}.md"
        aider(url, tmp_path, "--chat-history-file", str(said), "--no-git", "--edit-format", "whole", "hello.py")
        # What follows the question: the answer, and aider's own remarks with its command line and its clock before.
        return said.read_text().partition("#### ")[2]

    (tmp_path / "hello.py").write_text("def hello():\n    print('hello')\n")
    wanted = ask(sides.direct)
    found, (row,) = sides.rows_of(1, lambda: ask(sides.proxied))
    assert found == wanted
    assert re.search(r"^[A-Z]{20,}$", found, re.MULTILINE)  # as this model answers
    assert (row["status"], row["stream"]) == (200, 1)


def aider(url: str, home: Path, *arguments: str) -> None:
    """One message to aider, whose own calls to the internet are turned off."""
    prices = home / ".aider" / "caches" / "model_prices_and_context_window.json"
    prices.parent.mkdir(parents=True, exist_ok=True)
    prices.write_text('{"none": {}}')
    silent = ["--no-check-update", "--analytics-disable", "--no-show-release-notes", "--no-show-model-warnings"]
    plain = ["--yes-always", "--no-pretty", "--no-fancy-input", "--no-detect-urls"]
    run(
        [BIN / "aider", "--model", "openai/tiny", "--message", "Greet the world.", *silent, *plain, *arguments],
        home,
        OPENAI_API_BASE=f"{url}/v1",
        OPENAI_API_KEY="a-key",
        LITELLM_LOCAL_MODEL_COST_MAP="True",
        BROWSER="true",
    )


# curl's options, and the status of the answer.
CURL: dict[str, tuple[list[str], int]] = {
    "plain": ([], 200),
    "streamed": (["--no-buffer"], 200),
    "chunked": (["--header", "Transfer-Encoding: chunked"], 200),
    "gzip": (["--header", "Content-Encoding: gzip"], 415),  # the server is built without zlib
    "compressed answer wanted": (["--compressed"], 200),
    "HTTP/1.0": (["--http1.0"], 200),
    "no wait for 100 Continue": (["--header", "Expect:"], 200),
    "wait for 100 Continue": (["--header", "Expect: 100-continue"], 200),
}
# What differs each time, whoever asks.
VOLATILE = re.compile(r'"(id|created|timings|prompt_tokens_details)":("[^"]*"|\d+|\{[^}]*\})')


@pytest.mark.parametrize("name", CURL)
def test_curl(sides: Sides, name: str, tmp_path: Path) -> None:
    options, status = CURL[name]
    body = json.dumps({"messages": [{"role": "user", "content": ASKED}], "stream": name == "streamed", **SAMPLING})
    data = tmp_path / "body"
    data.write_bytes(gzip.compress(body.encode()) if name == "gzip" else body.encode())

    def ask(url: str) -> str:
        command = ["curl", "--silent", "--show-error", "--noproxy", "*", "--write-out", "\n%{http_code}", *options]
        command += ["--header", "Content-Type: application/json", "--data-binary", f"@{data}"]
        return VOLATILE.sub(r"\1", run([*command, f"{url}/v1/chat/completions"], tmp_path))

    ask(sides.direct)
    wanted = ask(sides.direct)
    found, (row,) = sides.rows_of(1, lambda: ask(sides.proxied))
    assert found == wanted
    assert found.endswith(f"\n{status}")
    assert row["status"] == status
    assert row["action"] == "passed" or name != "gzip"
