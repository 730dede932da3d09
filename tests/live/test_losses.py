"""What a real server lost, and why: found from its figures and from what toki believes of its slots."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.explain.cases import words
from tests.live.wire import Mitmdump
from tests.live.wire import ask
from tests.live.wire import mitmdump
from tests.live.wire import request
from tests.live.wire import until

from servers import Flags
from servers import LlamaServer
from servers import start
from servers import tiny_hybrid_model
from servers import tiny_window_model

pytestmark = pytest.mark.live

FLAGS = Flags(n_parallel=1, n_ctx=8192, cache_ram_mib=0)


class Bench:
    """A server with one slot and a sliding window, and toki before it, which steers nothing."""

    def __init__(self, server: LlamaServer, proxy: Mitmdump) -> None:
        self.server = server
        self.proxy = proxy

    def ask(self, system: str, *texts: str) -> str:
        """The log's line about a chat of texts by user and assistant in turns."""
        roles = ("user", "assistant")
        said = [{"role": roles[n % 2], "content": text} for n, text in enumerate(texts)]
        body: dict[str, Any] = {"messages": [{"role": "system", "content": system}, *said], "max_tokens": 4}
        before = len(self._lines())
        answer = ask(self.proxy.port, request("/v1/chat/completions", json.dumps(body).encode()))
        assert " 200 " in answer.first, answer
        line: str = until(lambda: self._lines()[before:])[0]
        return line

    def _lines(self) -> list[str]:
        return [line for line in self.proxy.log.splitlines() if "toki 200 " in line]


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    server = start(tiny_window_model(), FLAGS)
    port = server.port
    try:
        with mitmdump(port, tmp_path_factory.mktemp("losses"), toki_mode="observe") as proxy:
            bench = Bench(server, proxy)
            bench.ask("warm", "up")
            yield bench
    finally:
        bench.server.stop()


def test_another_conversation_took_the_slot(bench: Bench) -> None:
    ours = words(100, "ours")
    assert "read again" not in bench.ask(ours, "one")
    assert "read again" not in bench.ask(words(100, "theirs"), "one")
    assert "another conversation took the slot" in bench.ask(ours, "one", "SO", "two")
    assert "read again" not in bench.ask(ours, "one", "SO", "two", "SO", "three")


def test_a_window_can_not_go_back_to_a_branch(bench: Bench) -> None:
    head = words(300, "head")
    assert "read again" not in bench.ask(head, words(200, "x"), words(200, "y"), words(100, "z"))
    line = bench.ask(head, words(200, "x"), words(200, "other"), "z")
    assert "the model can't go back to where the prompt branches (it branches at token " in line
    assert "--swa-full" in line


def test_a_hybrid_model_can_not_go_back_either(tmp_path: Path) -> None:
    with (
        start(tiny_hybrid_model(), FLAGS) as server,
        mitmdump(server.port, tmp_path, toki_mode="observe") as proxy,
    ):
        bench = Bench(server, proxy)
        head = words(300, "head")
        bench.ask(head, words(200, "x"), words(200, "y"), words(100, "z"))
        line = bench.ask(head, words(200, "x"), words(200, "other"), "z")
    assert "the model can't go back to where the prompt branches (it branches at token " in line


def test_a_restart_is_named(bench: Bench) -> None:
    ours = words(100, "before")
    bench.ask(ours, "one")
    port = bench.server.port
    bench.server.stop()
    assert " 502 " in ask(bench.proxy.port, request("/completion", b'{"prompt":"down"}')).first
    known = bench.proxy.log.count("the flags of its process")
    bench.server = start(tiny_window_model(), FLAGS, port=port)

    def noticed() -> bool:
        bench.ask("warm", "up")
        return bench.proxy.log.count("the flags of its process") > known

    until(noticed)
    assert "the server was restarted" in bench.ask(ours, "one", "SO", "two")
