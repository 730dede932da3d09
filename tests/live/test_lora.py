"""LoRA adapters on real servers: what is reused under which adapters, and no request is led to what others made."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import Any

import pytest
import requests
from tests.live.wire import Mitmdump
from tests.live.wire import ask
from tests.live.wire import mitmdump
from tests.live.wire import request
from tests.live.wire import until

from servers import BUILDS
from servers import Flags
from servers import LlamaServer
from servers import start
from servers import tiny_adapters
from servers import tiny_model

pytestmark = pytest.mark.live

FLAGS = Flags(n_parallel=3, n_ctx=12288, kv_unified=False, lora=",".join(map(str, tiny_adapters())))
GIVEN = "--parallel 3"
SLOW = "10000"  # ms: a busy machine must not make toki pass a request unread
UNKNOWN = "the server is not known yet"
SETS: dict[str, list[dict[str, Any]] | None] = {
    "own": None,
    "first": [{"id": 0, "scale": 1.0}],
    "second": [{"id": 1, "scale": 1.0}],
}
WORDS = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]


@dataclass(frozen=True, slots=True)
class Way:
    server: LlamaServer
    proxy: Mitmdump
    beside: LlamaServer  # where an answer can be had with nothing reused


@pytest.fixture(scope="module", params=BUILDS)
def way(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Way]:
    where = tmp_path_factory.mktemp("proxy")
    with (
        start(tiny_model(), FLAGS, request.param) as server,
        start(tiny_model(), FLAGS, request.param) as beside,
        mitmdump(server.port, where, toki_server_flags=GIVEN, toki_deadline_ms=SLOW) as proxy,
    ):
        until(lambda: serve(proxy, "Hello", "own")[1]["reason"] != UNKNOWN)
        yield Way(server, proxy, beside)


def body(prompt: str, adapters: str) -> dict[str, Any]:
    named = SETS[adapters]
    return {"prompt": prompt, "n_predict": 8, "temperature": 0, **({} if named is None else {"lora": named})}


def serve(proxy: Mitmdump, prompt: str, adapters: str) -> tuple[str, dict[str, Any]]:
    """The text of an answer, and its row."""
    before = len(proxy.rows("id"))
    answer = json.loads(ask(proxy.port, request("/completion", json.dumps(body(prompt, adapters)).encode())).body)
    until(lambda: len(proxy.rows("id")) > before)
    return answer["content"], proxy.rows()[before]


def test_reuse_under_several_adapters_is_predicted_and_none_is_led_astray(way: Way) -> None:
    random = Random(3)
    head = " ".join(random.choices(WORDS, k=60))
    talks = {(adapters, number): f"{head} {number}" for adapters in SETS for number in range(2)}
    steered = []
    for _ in range(60):
        adapters, number = random.choice(list(talks))
        prompt = talks[adapters, number] = f"{talks[adapters, number]} {' '.join(random.choices(WORDS, k=20))}"
        text, row = serve(way.proxy, prompt, adapters)
        assert row["predicted"] == row["reused"], row
        talks[adapters, number] += text
        if row["action"] != "passed":
            steered.append((prompt, adapters, text))
    assert len(steered) >= 10
    for prompt, adapters, text in steered:
        sent = body(prompt, adapters) | {"cache_prompt": False}
        assert requests.post(f"{way.beside.url}/completion", json=sent, timeout=30).json()["content"] == text


def test_after_a_change_of_the_servers_own_adapters_nothing_is_believed_of_its_slots(way: Way) -> None:
    prompt = " ".join(Random(4).choices(WORDS, k=80))
    serve(way.proxy, prompt, "own")
    _, row = serve(way.proxy, f"{prompt} and", "own")
    assert row["predicted"] == row["reused"] >= 80
    changed = ask(way.proxy.port, request("/lora-adapters", json.dumps([{"id": 1, "scale": 0.5}]).encode()))
    assert changed.first.endswith("200 OK")
    until(lambda: serve(way.proxy, "Hello", "own")[1]["reason"] != UNKNOWN)
    _, row = serve(way.proxy, f"{prompt} and more", "own")
    assert row["action"] == "passed"
    assert row["reused"] >= 80  # the server itself takes what it made under the former ones
    assert row["shared"] < 80
