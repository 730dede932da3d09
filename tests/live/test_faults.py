"""Faults that are injected for real: the client sees what it would see without toki, and nothing false is believed on.

Servers that die, are down or ask for a key, and clients that leave: test_proxy.py. Databases: tests/test_store.py.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import threading
import uuid
from collections.abc import Callable
from collections.abc import Iterator
from contextlib import ExitStack
from contextlib import closing
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from tests.live.wire import HOST
from tests.live.wire import PATIENCE
from tests.live.wire import Client
from tests.live.wire import Mitmdump
from tests.live.wire import ask
from tests.live.wire import mitmdump
from tests.live.wire import request
from tests.live.wire import until

from servers import Flags
from servers import LlamaServer
from servers import start
from servers import tiny_model

FLAGS = Flags(n_parallel=2, n_ctx=16384)
Lie = Callable[[Any], tuple[int, Any]]  # of the server's JSON: the status and JSON to answer with instead


@pytest.fixture
def server() -> Iterator[LlamaServer]:
    with start(tiny_model(), FLAGS) as running:
        yield running


def port_of(server: LlamaServer) -> int:
    return int(server.url.rpartition(":")[2])


def body(prompt: str, **more: Any) -> bytes:
    return json.dumps({"prompt": prompt, "n_predict": 4, "temperature": 0, "seed": 1, **more}).encode()


def told(port: int, prompt: str, **more: Any) -> Any:
    """What a request is answered with, without what differs each time."""
    answer = ask(port, request("/completion", body(prompt, **more)))
    assert answer.first.endswith("200 OK"), answer
    return json.loads(answer.body)["content"]


def through(proxy: Mitmdump, prompt: str) -> tuple[Any, dict[str, Any]]:
    """What a request through `proxy` is answered with, and its row: a name of its own tells it from all others."""
    name = uuid.uuid4().hex
    answer = told(proxy.port, prompt, model=name)
    return answer, proxy.row_of(name)


def grow(proxy: Mitmdump, topic: str, turns: int) -> list[dict[str, Any]]:
    """A conversation through `proxy`; its rows."""
    rows = []
    prompt = f"Let us talk of {topic} " + "and of what goes with it " * 20
    for turn in range(turns):
        answer, row = through(proxy, prompt)
        prompt += answer + f" Go on with part {turn}."
        rows.append(row)
    return rows


def known_well(proxy: Mitmdump, topic: str) -> None:
    """The latest of a few predictions are exact."""
    rows = grow(proxy, topic, 6)[-3:]
    assert [row["predicted"] for row in rows] == [row["reused"] for row in rows], rows
    assert "addon/toki" not in proxy.log, "a traceback"


def test_a_server_that_hangs(server: LlamaServer, tmp_path: Path) -> None:
    """A request is not held past its deadline, and is answered as soon as the server goes on."""
    with mitmdump(port_of(server), tmp_path / "proxy") as proxy:
        known_well(proxy, "rivers")
        answers: list[Any] = []
        os.kill(server.pid, signal.SIGSTOP)
        try:
            asking = threading.Thread(target=lambda: answers.append(told(proxy.port, "hung", model="hung")))
            asking.start()
            until(lambda: "toki_deadline_ms" in proxy.log)
        finally:
            os.kill(server.pid, signal.SIGCONT)
        asking.join(PATIENCE)
        assert answers == [told(port_of(server), "hung")]
        row = proxy.row_of("hung")
        assert (row["status"], row["action"]) == (200, "passed")
        assert row["added_ms"] < 5000
        known_well(proxy, "lakes")


def lying(code: int, change: Callable[[Any], Any] = lambda said: said) -> Lie:
    return lambda said: (code, change(said))


LIES: dict[str, tuple[str, Lie]] = {
    "no /tokenize": ("/tokenize", lying(404)),
    "/tokenize fails": ("/tokenize", lying(500)),
    "/tokenize is short": ("/tokenize", lying(200, lambda said: {"tokens": said["tokens"][:-3]})),
    "/tokenize is odd": ("/tokenize", lying(200, lambda said: {"tokens": [2**63, -1, None]})),
    "no /slots": ("/slots", lying(404)),
    "/slots lies": ("/slots", lying(200, lambda said: [{**slot, "n_prompt_tokens": 5} for slot in said])),
    "/slots is of another server": ("/slots", lying(200, lambda said: said * 4)),
    "/props is nonsense": ("/props", lying(200, lambda said: {"total_slots": -4, "default_generation_settings": 7})),
}


class Between:
    """Stands before a server and answers as it does, but for the path that `lie` names."""

    def __init__(self, server: LlamaServer) -> None:
        self.lie: tuple[str, Lie] | None = None
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            wbufsize = -1

            def do_GET(self) -> None:
                self._pass_on(None)

            def do_POST(self) -> None:
                self._pass_on(self.rfile.read(int(self.headers["Content-Length"])))

            def log_message(self, *args: object) -> None:
                pass

            def _pass_on(self, sent: bytes | None) -> None:
                with closing(HTTPConnection(HOST, port_of(server), timeout=PATIENCE)) as connection:
                    connection.request(self.command, self.path, sent, {"Content-Type": "application/json"})
                    answer = connection.getresponse()
                    status, content = answer.status, answer.read()
                if outer.lie is not None and self.path.partition("?")[0] == outer.lie[0]:
                    status, said = outer.lie[1](json.loads(content))
                    content = json.dumps(said).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

        self.listener = ThreadingHTTPServer((HOST, 0), Handler)
        self.listener.daemon_threads = True


@pytest.fixture(scope="module")
def liar() -> Iterator[tuple[LlamaServer, Between]]:
    with start(tiny_model(), FLAGS) as server:
        between = Between(server)
        serving = threading.Thread(target=between.listener.serve_forever)
        serving.start()
        try:
            yield server, between
        finally:
            between.listener.shutdown()
            serving.join()
            between.listener.server_close()


@pytest.fixture(scope="module")
def lied_to(liar: tuple[LlamaServer, Between], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mitmdump]:
    with mitmdump(liar[1].listener.server_port, tmp_path_factory.mktemp("proxy")) as proxy:
        known_well(proxy, "rivers")
        yield proxy


@pytest.mark.parametrize("name", LIES)
def test_look_ups_that_fail_or_lie(liar: tuple[LlamaServer, Between], lied_to: Mitmdump, name: str) -> None:
    """Answers are those of a direct call, each request has its row, troubles are told once, and no lie is believed
    for longer than it is told."""
    server, between = liar
    before = len(lied_to.log)
    between.lie = LIES[name]
    rows = grow(lied_to, f"lies like {name}", 4)
    assert [row["status"] for row in rows] == [200] * 4
    assert {row["action"] for row in rows} == {"passed"}
    assert through(lied_to, name)[0] == told(port_of(server), name)
    between.lie = None
    troubles = [line for line in lied_to.log[before:].splitlines() if "] toki: " in line]
    assert len(troubles) == len({line.partition("] ")[2] for line in troubles}), troubles
    known_well(lied_to, f"truth after {name}")


def test_no_file_descriptors_left(server: LlamaServer, tmp_path: Path) -> None:
    """What can't be accepted waits or is refused by mitmproxy; toki loses no row and works again once some are free."""
    with mitmdump(port_of(server), tmp_path / "proxy") as proxy, ExitStack() as stack:
        known_well(proxy, "rivers")
        before = len(proxy.rows())
        limits = resource.prlimit(proxy.pid, resource.RLIMIT_NOFILE)
        in_use = len(list(Path(f"/proc/{proxy.pid}/fd").iterdir()))
        resource.prlimit(proxy.pid, resource.RLIMIT_NOFILE, (in_use + 6, limits[1]))
        clients = [stack.enter_context(Client(proxy.port)) for _ in range(12)]
        for client in clients:
            client.send(request("/completion", body("crowded")))
        until(lambda: "Too many open files" in proxy.log)
        resource.prlimit(proxy.pid, resource.RLIMIT_NOFILE, limits)
        statuses = [client.answer().first.split(" ")[1] for client in clients]
        assert set(statuses) <= {"200", "502"}
        until(lambda: len(proxy.rows()) == before + len(clients))
        known_well(proxy, "lakes")


def test_two_tokis_before_one_server(server: LlamaServer, tmp_path: Path) -> None:
    """Each sees the other as a stranger at its server: answers stay right, and both write to one database."""
    with (
        mitmdump(port_of(server), tmp_path / "one") as one,
        mitmdump(port_of(server), tmp_path / "two", toki_db=str(tmp_path / "one" / "toki.db")) as two,
    ):
        alone = {topic: told(port_of(server), topic * 200) for topic in ("rivers", "lakes")}
        found: list[tuple[str, Any]] = []

        def talk(proxy: Mitmdump, topic: str) -> None:
            for _ in range(8):
                found.append((topic, told(proxy.port, topic * 200)))

        talking = [threading.Thread(target=talk, args=each) for each in ((one, "rivers"), (two, "lakes"))]
        for each in talking:
            each.start()
        for each in talking:
            each.join(PATIENCE)
        assert len(found) == 16
        assert all(answer == alone[topic] for topic, answer in found)
        until(lambda: len(one.rows()) == 16)
        assert len({row["id"] for row in one.rows()}) == 16
        assert "addon/toki" not in one.log + two.log, "a traceback"
