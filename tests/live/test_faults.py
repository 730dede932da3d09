"""Faults that are injected for real: the client sees what it would see without toki, and nothing false is believed on.

Servers that die, are down or ask for a key, and clients that leave: test_proxy.py. Databases: tests/test_store.py.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sqlite3
import threading
import time
import uuid
from collections.abc import Callable
from collections.abc import Iterator
from contextlib import ExitStack
from contextlib import closing
from functools import partial
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler
from http.server import ThreadingHTTPServer
from itertools import count
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from tests.live.wire import HOST
from tests.live.wire import PATIENCE
from tests.live.wire import Client
from tests.live.wire import Mitmdump
from tests.live.wire import Relay
from tests.live.wire import Unchunk
from tests.live.wire import ask
from tests.live.wire import mitmdump
from tests.live.wire import relay
from tests.live.wire import request
from tests.live.wire import until

from servers import Flags
from servers import LlamaServer
from servers import free_port
from servers import start
from servers import tiny_model
from toki.idle import LONGEST

FLAGS = Flags(n_parallel=2, n_ctx=16384)
CHAT = "/v1/chat/completions"
ROUNDS = 4
MOST_TURNS = 60  # of a conversation, before which predictions must be right
FULL = 65536  # bytes that a file may be longer than mitmdump's log
SLOW = 0.6  # seconds that a slow look-up takes: more than toki_deadline_ms
Lie = Callable[[Any], tuple[int, Any]]  # of the server's JSON: the status and JSON to answer with instead


CLOCK = """
import time
from mitmproxy import http
real, ahead = time.time, 0.0
time.time = lambda: real() + ahead

class Clock:
    def requestheaders(self, flow: http.HTTPFlow) -> None:
        global ahead
        ahead = float(flow.request.headers.pop("x-clock", ahead))

addons = [Clock()]
"""


@pytest.fixture(scope="module")
def server() -> Iterator[LlamaServer]:
    with start(tiny_model(), FLAGS) as running:
        yield running


@pytest.fixture(scope="module")
def wire(server: LlamaServer) -> Iterator[Relay]:
    with relay(server.port) as running:
        yield running


@pytest.fixture(scope="module")
def proxy(wire: Relay, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mitmdump]:
    where = tmp_path_factory.mktemp("proxy")
    script = where / "clock.py"
    script.write_text(CLOCK)
    with mitmdump(wire.port, where, beside=[script]) as running:
        yield running


def body(prompt: str, **more: Any) -> bytes:
    return json.dumps({"prompt": prompt, "n_predict": 4, "temperature": 0, "seed": 1, **more}).encode()


def told(port: int, prompt: str, *, chat: bool = False, **more: Any) -> str:
    """What a request is answered with, without what differs each time; `chat`: as one message."""
    if chat:
        more["messages"] = [{"role": "user", "content": prompt}]
    answer = ask(port, request(CHAT if chat else "/completion", body(prompt, **more)))
    assert answer.first.endswith("200 OK"), answer
    said = json.loads(answer.body)
    return str(said["choices"][0]["message"]["content"] if chat else said["content"])


def through(proxy: Mitmdump, prompt: str, *, chat: bool = False) -> tuple[str, dict[str, Any]]:
    """What a request through `proxy` is answered with, and its row: a name of its own tells it from all others."""
    name = uuid.uuid4().hex
    answer = told(proxy.port, prompt, chat=chat, model=name)
    return answer, proxy.row_of(name)


def grow(proxy: Mitmdump, topic: str, turns: int, *, chat: bool = False) -> list[dict[str, Any]]:
    """A conversation through `proxy`; its rows."""
    return list(islice(conversation(proxy, topic, chat=chat), turns))


def conversation(proxy: Mitmdump, topic: str, *, chat: bool = False) -> Iterator[dict[str, Any]]:
    prompt = f"Let us talk of {topic} " + "and of what goes with it " * 20
    for turn in count():
        answer, row = through(proxy, prompt, chat=chat)
        prompt += answer + f" Go on with part {turn}."
        yield row


def settled(proxy: Mitmdump, topic: str) -> bool:
    """Whether a conversation ends with three exact predictions in a row, within MOST_TURNS."""
    rows: list[tuple[int | None, int | None]] = []
    for row in islice(conversation(proxy, topic), MOST_TURNS):
        rows.append((row["predicted"], row["reused"]))
        if len(rows) >= 6 and all(predicted == reused for predicted, reused in rows[-3:]):
            return True
    return False


def known_well(proxy: Mitmdump, topic: str) -> None:
    """Soon all predictions are exact: three in a row, as soon as toki has looked at the server again. On a quick
    machine a conversation may be over before that."""
    until(lambda: settled(proxy, topic))
    assert "addon/toki" not in proxy.log, "a traceback"


def test_a_server_that_hangs(server: LlamaServer, wire: Relay, proxy: Mitmdump) -> None:
    """A request is not held past its deadline, and is answered as soon as the server goes on."""
    known_well(proxy, "rivers")
    answers: list[Any] = []
    os.kill(server.pid, signal.SIGSTOP)
    try:
        asking = threading.Thread(target=lambda: answers.append(told(proxy.port, "hung", model="hung")))
        asking.start()
        until(lambda: any(b"hung" in message.body for message in wire.requests("/completion")))
    finally:
        os.kill(server.pid, signal.SIGCONT)
    asking.join(PATIENCE)
    assert answers == [told(server.port, "hung")]
    row = proxy.row_of("hung")
    assert (row["status"], row["action"]) == (200, "passed")
    assert row["added_ms"] < 5000
    known_well(proxy, "lakes")


def lying(code: int, change: Callable[[Any], Any] = lambda said: said) -> Lie:
    return lambda said: (code, change(said))


def slow(said: Any) -> tuple[int, Any]:
    time.sleep(SLOW)
    return 200, said


LIES: dict[str, tuple[str, Lie]] = {
    "no /tokenize": ("/tokenize", lying(404)),
    "/tokenize fails": ("/tokenize", lying(500)),
    "/tokenize is short": ("/tokenize", lying(200, lambda said: {"tokens": said["tokens"][:-3]})),
    "/tokenize is odd": ("/tokenize", lying(200, lambda said: {"tokens": [2**63, -1, None]})),
    "/tokenize is slow": ("/tokenize", slow),
    "no /apply-template": ("/apply-template", lying(404)),
    "/apply-template fails": ("/apply-template", lying(500)),
    "/apply-template lies": ("/apply-template", lying(200, lambda said: {"prompt": said["prompt"][:-9] + "and so"})),
    "/apply-template is odd": ("/apply-template", lying(200, lambda _: {"prompt": ["", 1e300]})),
    "/apply-template is slow": ("/apply-template", slow),
    "/slots is slow": ("/slots", slow),
    "no /slots": ("/slots", lying(404)),
    "/slots lies": ("/slots", lying(200, lambda said: [{**slot, "n_prompt_tokens": 5} for slot in said])),
    "/slots is of another server": ("/slots", lying(200, lambda said: said * 4)),
    "/props is nonsense": ("/props", lying(200, lambda said: {"total_slots": -4, "default_generation_settings": 7})),
}


def whole(status: str, content: bytes, more: str = "") -> bytes:
    head = f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {len(content)}\r\n{more}\r\n"
    return head.encode() + content


def error(code: int, message: str) -> bytes:
    return json.dumps({"error": {"code": code, "message": message, "type": "server_error"}}).encode()


STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
EVENT = b'data: {"index":0,"content":" and","stop":false}\n\n'
# What a server sends on /completion before it closes the connection.
ANSWERS = {
    "500": whole("500 Internal Server Error", error(500, "the model is on fire")),
    "503 loading": whole("503 Service Unavailable", error(503, "Loading model"), "Retry-After: 1\r\n"),
    "401": whole("401 Unauthorized", error(401, "Invalid API Key")),
    "429": whole("429 Too Many Requests", error(429, "later")),
    "half a JSON": whole("200 OK", b'{"content":" and","timings":{"cache_n":'),
    "lying figures": whole(
        "200 OK",
        b'{"content":" and","id_slot":-7,"tokens_evaluated":-5,"tokens_cached":9223372036854775808,"stop":true,'
        b'"timings":{"cache_n":9223372036854775808,"prompt_n":-1,"prompt_ms":1e999,"predicted_n":NaN}}',
    ),
    "huge": whole("200 OK", b'{"content":"' + b"and so on " * 2_000_000 + b'"}'),
    "a huge event": STREAM + b"%x\r\n" % 20_000_008 + b"data: " + bytes(20_000_000) + b"\n\n\r\n0\r\n\r\n",
    "cut short": whole("200 OK", b'{"content":" and"}').replace(b"Length: 18", b"Length: 1800"),
    "a stream that is cut short": STREAM + b"%x\r\n%s\r\n" % (len(EVENT), EVENT) + b"40\r\ndata: {",
}
# What mitmproxy can't pass on, with toki or without.
NONE = {"nothing": b"", "no HTTP": b"I speak another language.\r\n\r\n", "half a head": b"HTTP/1.1 200 OK\r\nContent-"}


class Between:
    """Stands before a server and answers as it does, but for the path that `lie` names; `answer` is what goes out in
    place of the next completion."""

    def __init__(self, server: LlamaServer) -> None:
        self.lie: tuple[str, Lie] | None = None
        self.answer: bytes | None = None
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
                if self.path == "/completion" and outer.answer is not None:
                    self.wfile.write(outer.answer)
                    self.close_connection = True
                    return
                with closing(HTTPConnection(HOST, server.port, timeout=PATIENCE)) as connection:
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
    rows = grow(lied_to, f"lies like {name}", 4, chat="template" in name)
    assert [row["status"] for row in rows] == [200] * 4
    assert {row["action"] for row in rows} == {"passed"}
    assert through(lied_to, name)[0] == told(server.port, name)
    between.lie = None
    troubles = [line for line in lied_to.log[before:].splitlines() if "] toki: " in line]
    assert len(troubles) == len({line.partition("] ")[2] for line in troubles}), troubles
    known_well(lied_to, f"truth after {name}")


def everything(port: int, data: bytes) -> tuple[bytes, bytes, bool]:
    """What comes until the connection closes: the head, the body with its whole chunks joined, and whether it is
    complete."""
    with Client(port) as client:
        client.send(data)
        while client.receive():
            pass
        head, _, body = client.data.partition(b"\r\n\r\n")
    if b"chunked" not in head:
        return head, body, f"Length: {len(body)}".encode() in head
    chunks = Unchunk()
    return head, chunks.feed(body), chunks.complete


@pytest.mark.parametrize("name", ANSWERS)
def test_answers_that_are_wrong(liar: tuple[LlamaServer, Between], lied_to: Mitmdump, name: str) -> None:
    """The client gets to the byte what it gets directly, and toki learns nothing false from it."""
    _, between = liar
    before = len(lied_to.log)
    between.answer = ANSWERS[name]
    model = uuid.uuid4().hex
    sent = request("/completion", body(name, model=model, stream="event" in name), headers="Connection: close\r\n")
    try:
        direct, proxied = everything(between.listener.server_port, sent), everything(lied_to.port, sent)
    finally:
        between.answer = None
    assert (proxied[0], proxied[2]) == (direct[0], direct[2])
    assert proxied[1] == direct[1] or (not direct[2] and proxied[1].startswith(direct[1]))
    row = lied_to.row_of(model)
    assert str(row["status"]) == ANSWERS[name].split(b" ")[1].decode()
    assert (row["outcome"], row["reused"], row["evaluated"]) == ("unknown", None, None)
    assert lied_to.log[before:].count("] toki: ") <= 1
    known_well(lied_to, f"truth after {name}")


@pytest.fixture(scope="module")
def bare(liar: tuple[LlamaServer, Between], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mitmdump]:
    """mitmdump without toki."""
    where = tmp_path_factory.mktemp("bare")
    with mitmdump(liar[1].listener.server_port, where, None, connection_strategy="lazy") as proxy:
        yield proxy


@pytest.mark.parametrize("name", NONE)
def test_no_answer_at_all(liar: tuple[LlamaServer, Between], lied_to: Mitmdump, bare: Mitmdump, name: str) -> None:
    _, between = liar
    between.answer = NONE[name]
    model = uuid.uuid4().hex
    sent = request("/completion", body(name, model=model))
    try:
        assert ask(lied_to.port, sent) == ask(bare.port, sent)
    finally:
        between.answer = None
    row = lied_to.row_of(model)
    assert (row["status"], row["outcome"]) == (None, "unknown")
    known_well(lied_to, f"truth after {name}")


def test_a_server_that_is_killed_comes_back(tmp_path: Path) -> None:
    """In mid-stream, and between two requests: nothing of what it held is believed any more."""
    port = free_port()
    with mitmdump(port, tmp_path / "proxy") as proxy, ExitStack() as stack:
        server = stack.enter_context(start(tiny_model(), FLAGS, port=port))
        known_well(proxy, "rivers")
        server.kill()
        server = stack.enter_context(start(tiny_model(), FLAGS, port=port))
        known_well(proxy, "rivers")
        with Client(proxy.port) as client:
            endless = body("cut", n_predict=8000, ignore_eos=True, stream=True, model="cut")
            client.send(request("/completion", endless, headers="Connection: close\r\n"))
            client.receive_until(b"data:")
            server.kill()
            while client.receive():
                pass
            assert not client.data.endswith(b"0\r\n\r\n"), "it must not look complete"
        assert proxy.row_of("cut")["outcome"] in ("unknown", "miss", "soft_hit")
        stack.enter_context(start(tiny_model(), FLAGS, port=port))
        known_well(proxy, "rivers")


def test_a_database_in_trouble(proxy: Mitmdump) -> None:
    """Answers come as ever; the log says each trouble once and its end; rows wait for the file."""
    known_well(proxy, "rivers")
    limits = resource.prlimit(proxy.pid, resource.RLIMIT_FSIZE)

    def during(trouble: str) -> str:
        """Serve until the log tells of the trouble; the name of these requests."""
        name = uuid.uuid4().hex
        for sent in range(1, 500):
            told(proxy.port, f"meanwhile {trouble}", model=name)
            if trouble in proxy.log:
                names[name] = sent
                return name
        pytest.fail(f"nothing was said of: {trouble}")

    def all_there(name: str) -> bool:
        return [row["model"] for row in proxy.rows()].count(name) == names[name]

    names: dict[str, int] = {}
    with closing(sqlite3.connect(proxy.db, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        locked = during("another program holds its lock")
        other.execute("ROLLBACK")
    until(lambda: all_there(locked))
    resource.prlimit(proxy.pid, resource.RLIMIT_FSIZE, (len(proxy.log) + FULL, limits[1]))  # as on a disk that is full
    full = during("disk I/O error")
    resource.prlimit(proxy.pid, resource.RLIMIT_FSIZE, limits)
    until(lambda: all_there(full))
    proxy.db.unlink()
    deleted = during("was deleted or replaced")
    until(lambda: all_there(deleted))
    rubbish = proxy.db.with_name("rubbish")
    rubbish.write_bytes(b"These are not the rows. " * 500)
    for log in ("-wal", "-shm"):  # it would bring the rows back
        proxy.db.with_name(proxy.db.name + log).unlink()
    rubbish.replace(proxy.db)
    damaged = during("it is not a database")
    proxy.db.rename(rubbish)
    until(lambda: all_there(damaged))
    assert proxy.log.count("cannot be written") == 3
    assert proxy.log.count("is written again; 0 rows were lost") == 3
    known_well(proxy, "lakes")


def test_a_clock_that_jumps(proxy: Mitmdump) -> None:
    """Years back and ahead, between requests and within one: only `at` follows it."""
    known_well(proxy, "rivers")
    for name, ahead in (("back", -(10**9)), ("ahead", 10**9)):
        with Client(proxy.port) as client:
            client.send(request("/completion", body(name, n_predict=200, stream=True, model=name)))
            client.receive_until(b"data:")
            sent = request("/completion", body("jump", model=f"jump {name}"), headers=f"X-Clock: {ahead}\r\n")
            assert ask(proxy.port, sent).first.endswith("200 OK")
            client.answer()
        during, after = proxy.row_of(name), proxy.row_of(f"jump {name}")
        assert 0 <= during["added_ms"] <= during["first_byte_ms"] <= during["total_ms"] < 1000 * PATIENCE
        assert after["at"] - during["at"] == pytest.approx(ahead, abs=PATIENCE)
        ask(proxy.port, request("/completion", body("jump"), headers="X-Clock: 0\r\n"))
        known_well(proxy, f"lakes {name}")


def test_the_end_with_streams_and_held_requests_open(server: LlamaServer, tmp_path: Path) -> None:
    """All rows are there, nothing hangs, and no traceback."""
    with (
        relay(server.port) as wire,
        mitmdump(wire.port, tmp_path / "proxy", toki_deadline_ms="60000") as proxy,
        ExitStack() as stack,
    ):
        known_well(proxy, "rivers")
        known = len(proxy.rows())
        clients = [stack.enter_context(Client(proxy.port)) for _ in range(6)]
        endless = body("open", n_predict=6000, ignore_eos=True, stream=True, model="stream")
        for client in clients[:2]:
            client.send(request("/completion", endless))
        for client in clients[:2]:
            client.receive_until(b"data:")
        os.kill(server.pid, signal.SIGSTOP)
        try:
            asked = len(wire.requests("/tokenize"))
            for number, client in enumerate(clients[2:]):
                client.send(request("/completion", body(f"{number} held", stream=True, model="held")))
            until(lambda: len(wire.requests("/tokenize")) > asked)
            began = time.monotonic()
            assert proxy.stop() == 0
            assert time.monotonic() - began < 20
        finally:
            os.kill(server.pid, signal.SIGCONT)
        models = [row["model"] for row in proxy.rows()]
        assert models.count("stream") == 2
        assert len(models) == known + len(clients), "a row for each request, also where its model was not read yet"
        assert "addon/toki" not in proxy.log, "a traceback"  # mitmproxy has some of its own there on Python 3.11
        assert "toki: stopped" in proxy.log


def test_no_file_descriptors_left(proxy: Mitmdump) -> None:
    """What can't be accepted waits or is refused by mitmproxy; toki loses no row and works again once some are free."""
    with ExitStack() as stack:
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


def test_two_tokis_before_one_server(tmp_path: Path) -> None:
    """Each sees the other as a stranger at its server: answers stay right, and both write to one database."""
    with (
        start(tiny_model(), FLAGS) as server,
        mitmdump(server.port, tmp_path / "one") as one,
        mitmdump(server.port, tmp_path / "two", toki_db=str(tmp_path / "one" / "toki.db")) as two,
    ):
        alone = {topic: told(server.port, topic * 200) for topic in ("rivers", "lakes")}
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


def test_a_loop_of_aborted_bodies(server: LlamaServer, wire: Relay, proxy: Mitmdump) -> None:
    """A client that gives up while its prompt is read, and tries again: told from the second round on, and each try
    reaches the server once."""
    known_well(proxy, "rivers")
    prompt = "This takes long to read, " * 800

    def sent() -> int:
        return sum(prompt.encode() in message.body for message in wire.requests("/completion"))

    def reached(times: int) -> bool:
        return sent() == times

    for number in range(ROUNDS):
        with Client(proxy.port) as client:
            client.send(request("/completion", body(prompt, model=f"round {number}")))
            until(partial(reached, number + 1))
        assert proxy.row_of(f"round {number}")["first_byte_ms"] is None
    ids = [proxy.row_of(f"round {number}")["id"] for number in range(ROUNDS)]

    def found() -> list[tuple[int, str, int]]:
        rows = proxy.rows("*", "findings")
        return [(row["request"], row["cause"], row["times"]) for row in rows if row["request"] in ids]

    until(lambda: len(found()) >= ROUNDS - 1)
    assert found() == [(ids[number], "aborted", number) for number in range(1, ROUNDS)]
    assert sent() == ROUNDS
    known_well(proxy, "lakes")
    assert through(proxy, prompt)[0] == told(server.port, prompt)


def test_a_connection_that_was_idle_for_long_is_not_used_again(wire: Relay, proxy: Mitmdump) -> None:
    """The server could close it just as the next request is written to it."""
    with Client(proxy.port) as client:
        before = len(wire.passed)

        def connections() -> list[int]:
            """How many requests each new connection has carried, of those that carried any."""
            carried = [bytes(passed.up).count(b"POST /completion ") for passed in wire.passed[before:]]
            return [number for number in carried if number]

        for pause in (0.0, 0.0, LONGEST + 0.1):
            time.sleep(pause)
            client.forget()
            client.send(request("/completion", body("still there")))
            assert client.answer().first.endswith("200 OK")
        assert connections() == [2, 1]
