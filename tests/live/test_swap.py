"""A server that starts and stops whole llama-servers by model name, as llama-swap does: toki keeps each model apart,
and asks about one only while it runs anyway."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import requests
from tests.answering import Answering
from tests.answering import answering
from tests.live.wire import Mitmdump
from tests.live.wire import ask
from tests.live.wire import mitmdump
from tests.live.wire import request
from tests.live.wire import until

from servers import Flags
from servers import LlamaServer
from servers import start
from servers import tiny_model
from toki.watch import AWAKE

pytestmark = pytest.mark.live

UNKNOWN = "the server is not known yet"
PROMPT = "One two three four five six seven eight nine ten."
FLAGS = Flags(n_parallel=2, n_ctx=2048)


class Swap:
    """Runs one llama-server at a time: that of the model which was asked for last, by a body or by its path.

    `loads`: the models in the order of their starts. `asked`: the paths below /upstream, which no client here uses.
    `late`: seconds after which it tells what was up when it was asked. A model takes `leaving` seconds to go: it is
    listed meanwhile, and what asks for it brings it back.
    """

    late = 0.0
    leaving = 0.0

    def __init__(self) -> None:
        self.loads: list[str] = []
        self.asked: list[str] = []
        self._model = ""
        self._server: LlamaServer | None = None
        self._lock = threading.Lock()

    def get(self, path: str) -> tuple[int, bytes]:
        if path == "/running":
            command = " ".join(["llama-server", *FLAGS.argv()])
            up = [{"model": self._model, "state": "ready", "cmd": command}] if self._server else []
            time.sleep(self.late)
            return 200, json.dumps({"running": up}).encode()
        if path == "/v1/models":
            return 200, json.dumps({"data": [{"id": name, "object": "model"} for name in ("alpha", "beta")]}).encode()
        return self.pass_on("GET", path, b"")

    def pass_on(self, method: str, path: str, body: bytes) -> tuple[int, bytes]:
        if path.startswith("/upstream/"):
            self.asked.append(path)
            _, _, model, rest = path.split("/", 3)
        elif method == "POST":
            model, rest = str(json.loads(body).get("model")), path[1:]
        else:
            return 404, b"404 page not found"
        if model not in ("alpha", "beta"):
            return 400, b"could not find real modelID"
        with self._lock:
            if model != self._model:
                time.sleep(self.leaving)
                self.stop()
                self.loads.append(model)
                self._server, self._model = start(tiny_model(), FLAGS), model
            assert self._server is not None
            answer = requests.request(method, f"{self._server.url}/{rest}", data=body, timeout=60)
            return answer.status_code, answer.content

    def stop(self) -> None:
        """Unload what runs, as after its time to live."""
        if self._server is not None:
            self._server.stop()
        self._server, self._model = None, ""


@pytest.fixture
def swap() -> Iterator[tuple[Swap, int]]:
    swap = Swap()

    class Handler(Answering):
        def do_GET(self) -> None:
            self.answer(*swap.get(self.route))

        def do_POST(self) -> None:
            self.answer(*swap.pass_on("POST", self.route, self.content()))

    try:
        with answering(Handler) as port:
            yield swap, port
    finally:
        swap.stop()


def send(proxy: Mitmdump, model: str) -> None:
    sent = {"prompt": PROMPT, "n_predict": 2, "temperature": 0, "model": model}
    ask(proxy.port, request("/completion", json.dumps(sent).encode()))


def serve(proxy: Mitmdump, model: str) -> dict[str, Any]:
    before = len(proxy.rows("id"))
    send(proxy, model)
    until(lambda: len(proxy.rows("id")) > before)
    return proxy.rows()[before]


def known(proxy: Mitmdump, model: str) -> bool:
    return bool(serve(proxy, model)["reason"] != UNKNOWN)


def test_each_model_is_kept_apart_and_none_is_loaded_by_a_question(swap: tuple[Swap, int], tmp_path: Path) -> None:
    servers, port = swap
    with mitmdump(port, tmp_path / "proxy", toki_deadline_ms="10000") as proxy:
        assert serve(proxy, "nope")["status"] == 400
        assert servers.loads == []
        for model in ("alpha", "beta", "alpha"):  # each time a new process, of which nothing is known at first
            row = serve(proxy, model)
            assert (row["status"], row["reused"], row["predicted"]) == (200, 0, None)
            until(partial(known, proxy, model))
            row = serve(proxy, model)
            assert row["predicted"] == row["reused"] > 10
        assert servers.loads == ["alpha", "beta", "alpha"]
        assert not any("/upstream/nope" in path for path in servers.asked)
        time.sleep(AWAKE)  # no server unloads itself sooner
        servers.stop()
        row = serve(proxy, "alpha")
        assert (row["status"], row["reused"], row["predicted"]) == (200, 0, None)
        assert servers.loads == ["alpha", "beta", "alpha", "alpha"]
        assert "Traceback" not in proxy.log


def test_what_is_asked_of_a_model_does_not_bring_it_back_in_place_of_the_next(
    swap: tuple[Swap, int], tmp_path: Path
) -> None:
    servers, port = swap
    with mitmdump(port, tmp_path / "proxy", toki_mode="observe") as proxy:
        until(lambda: serve(proxy, "alpha")["predicted"] is not None)
        servers.late, servers.leaving = 0.3, 1.0
        send(proxy, "alpha")  # toki has still to read it, and its reply
        serve(proxy, "beta")
        time.sleep(servers.leaving + AWAKE)
        assert servers.loads == ["alpha", "beta"]
        assert "another model is being loaded" in proxy.log
