"""toki in a real mitmdump before real llama-servers: what a client sees is what it would see without toki."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.live.wire import HOST
from tests.live.wire import PATIENCE
from tests.live.wire import ROOT
from tests.live.wire import Client
from tests.live.wire import Message
from tests.live.wire import Mitmdump
from tests.live.wire import Relay
from tests.live.wire import Unchunk
from tests.live.wire import ask
from tests.live.wire import messages
from tests.live.wire import mitmdump
from tests.live.wire import relay
from tests.live.wire import request
from tests.live.wire import until

from servers import BUILDS
from servers import Build
from servers import Flags
from servers import LlamaServer
from servers import free_port
from servers import smollm2
from servers import start
from servers import tiny_model

pytestmark = [pytest.mark.live, pytest.mark.proxy]

FLAGS = Flags(n_parallel=2, n_ctx=8192, n_ubatch=64, n_batch=64)
UNKNOWN = "the server is not known yet"
# What differs between two answers to one request, whoever asks.
VOLATILE = {
    "id", "created", "created_at", "completed_at", "item_id", "timings", "id_slot", "tokens_cached", "cached_tokens",
    "prompt_tokens_details", "input_tokens_details", "cache_read_input_tokens", "input_tokens", "system_fingerprint",
}  # fmt: skip
SAMPLING = {"seed": 7, "temperature": 0.0}
CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Say something about slots."}]
BODIES: dict[str, dict[str, Any]] = {
    "/completion": {"prompt": "Once upon a time", "n_predict": 12},
    "/completions": {"prompt": "Once upon a time", "n_predict": 12},
    "/v1/completions": {"prompt": "Once upon a time", "max_tokens": 12},
    "/v1/chat/completions": {"messages": CHAT, "max_tokens": 12},
    "/chat/completions": {"messages": CHAT, "max_tokens": 12},
    "/v1/messages": {"messages": CHAT[1:], "system": "Be brief.", "max_tokens": 12},
    "/v1/responses": {"input": "Say something about slots.", "max_output_tokens": 12},
    "/infill": {"input_prefix": "def f(", "input_suffix": "):", "n_predict": 12},
}


@pytest.fixture(scope="module", params=BUILDS)
def server(request: pytest.FixtureRequest) -> Iterator[LlamaServer]:
    build: Build = request.param
    with start(smollm2(), FLAGS, build) as running:
        yield running


@pytest.fixture(scope="module")
def wire(server: LlamaServer) -> Iterator[Relay]:
    with relay(server.port) as running:
        yield running


@pytest.fixture(scope="module")
def proxy(wire: Relay, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mitmdump]:
    with mitmdump(wire.port, tmp_path_factory.mktemp("proxy")) as running:
        warm(running)
        yield running


@pytest.fixture(scope="module")
def one_server() -> Iterator[LlamaServer]:
    """Of either build: for what does not depend on the server."""
    with start(smollm2(), FLAGS) as running:
        yield running


@pytest.fixture(scope="module")
def one_wire(one_server: LlamaServer) -> Iterator[Relay]:
    with relay(one_server.port) as running:
        yield running


def body(fields: dict[str, Any], **more: Any) -> bytes:
    return json.dumps(fields | SAMPLING | more).encode()


def complete(proxy: Mitmdump, prompt: str, headers: str = "", **more: Any) -> Message:
    fields = {"prompt": prompt, "n_predict": 2}
    return ask(proxy.port, request("/completion", body(fields, **more), headers=headers))


def warm(proxy: Mitmdump, headers: str = "") -> None:
    """Send small prompts until toki knows the server."""

    def known() -> bool:
        before = len(proxy.rows())
        assert complete(proxy, "Hello", headers).first.endswith("200 OK")
        until(lambda: len(proxy.rows()) > before)
        return bool(proxy.rows()[-1]["reason"] != UNKNOWN)

    until(known)


def masked(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: None if key in VOLATILE else masked(each) for key, each in value.items()}
    return [masked(each) for each in value] if isinstance(value, list) else value


def content(answer: Message) -> Any:
    """An answer's JSON, or that of all its events, without what differs each time."""
    if "event-stream" not in (answer.header("content-type") or ""):
        return masked(json.loads(answer.body))
    lines = answer.body.decode().split("\n")
    return [masked(json.loads(line[6:])) if line.startswith("data: {") else line for line in lines]


def lines_of(head: bytes) -> list[bytes]:
    """The lines of a head; the server's own Content-Length varies with the figures in its body."""
    return [re.sub(rb"(?i)^content-length:.*", b"content-length", line) for line in head.split(b"\r\n")]


# --- what the client sees ---


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
@pytest.mark.parametrize("path", BODIES)
def test_an_answer_equals_a_direct_one(server: LlamaServer, proxy: Mitmdump, path: str, stream: bool) -> None:
    model = f"{path} {stream}"
    data = request(path, body(BODIES[path], stream=stream, model=model))
    ask(server.port, data)  # so that both find the same cache
    direct = ask(server.port, data)
    proxied = ask(proxy.port, data)
    assert content(proxied) == content(direct)
    assert lines_of(proxied.head) == lines_of(direct.head)
    row = proxy.row_of(model)
    assert (row["endpoint"], row["status"], row["stream"]) == (path, int(direct.first.split(" ")[1]), int(stream))
    if row["status"] == 200 and path != "/infill":
        assert row["reused"] + row["evaluated"] == row["prompt_tokens"]


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
def test_what_the_server_sent_is_what_the_client_gets(proxy: Mitmdump, wire: Relay, stream: bool) -> None:
    marker = f"marker {stream}"
    sent = body({"prompt": f"{marker} and more", "n_predict": 30}, stream=stream)
    answer = ask(proxy.port, request("/completion", sent))
    passed = wire.connection("/completion", marker.encode())
    assert answer in messages(passed.answers)
    arrived = [message.body for message in wire.requests("/completion") if marker.encode() in message.body]
    assert [re.sub(rb'^\{"id_slot":\d+,"cache_prompt":true,', b"{", each) for each in arrived] == [sent]


def test_chunks_are_not_kept_back(proxy: Mitmdump, wire: Relay) -> None:
    with Client(proxy.port) as client:
        client.send(request("/completion", body({"prompt": "unhurried", "n_predict": 80}, stream=True)))
        client.answer()
    passed = wire.connection("/completion", b"unhurried")
    sent, seen = arrivals(passed.down), arrivals(client.seen)
    assert [event for _, event in sent] == [event for _, event in seen]
    assert len(sent) > 50
    assert seen[0][0] < sent[-1][0]  # the first one had arrived before the last one was sent
    assert seen[0][0] < sent[-1][0]


def arrivals(pieces: list[tuple[float, bytes]]) -> list[tuple[float, bytes]]:
    """The events of a streamed answer, each with the time of its last byte. Each came in one piece or more."""
    found: list[tuple[float, bytes]] = []
    chunks: Unchunk | None = None
    rest = b""
    for at, piece in pieces:
        if chunks is None:
            _, separator, piece = piece.partition(b"\r\n\r\n")
            assert separator
            chunks = Unchunk()
        *events, rest = (rest + chunks.feed(piece)).split(b"\n\n")
        found += [(at, event) for event in events]
    return found


def test_a_row_is_there_within_a_second(proxy: Mitmdump) -> None:
    complete(proxy, "quick row", model="quick")
    proxy.row_of("quick", within=1.0)


def test_a_body_of_a_megabyte(server: LlamaServer, proxy: Mitmdump, wire: Relay) -> None:
    sent = body({"prompt": "megabyte " + "x" * 2**20, "n_predict": 1})
    answer = ask(proxy.port, request("/completion", sent))
    assert answer.first == ask(server.port, request("/completion", sent)).first
    assert wire.requests("/completion")[-1].body == sent
    noted = body({"prompt": "short", "n_predict": 1, "note": "n" * 2**20, "model": "noted"})
    assert ask(proxy.port, request("/completion", noted)).first.endswith("200 OK")
    assert proxy.row_of("noted")["prompt_tokens"] < 10


@pytest.mark.parametrize(
    "sent",
    [b"{", b"", b"[]", b'{"prompt": NaN}', b"\xff\xfe", b'{"n_predict": 1}', b'{"prompt": "x", "n_predict": "y"}'],
)
def test_a_bad_body_gets_the_servers_own_error(server: LlamaServer, proxy: Mitmdump, sent: bytes) -> None:
    data = request("/completion", sent)
    direct, proxied = ask(server.port, data), ask(proxy.port, data)
    assert proxied.first == direct.first
    assert proxied.body == direct.body or proxied.first.endswith("200 OK")


def test_a_chunked_body(proxy: Mitmdump) -> None:
    sent = body({"prompt": "chunked", "n_predict": 1})
    head = f"POST /completion HTTP/1.1\r\nHost: {HOST}\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
    chunks = b"".join(b"%x\r\n%s\r\n" % (1, sent[n : n + 1]) for n in range(len(sent)))
    assert ask(proxy.port, head + chunks + b"0\r\n\r\n").first.endswith("200 OK")


def test_several_requests_on_one_connection(proxy: Mitmdump) -> None:
    with Client(proxy.port) as client:
        for number in range(5):
            client.forget()
            client.send(request("/completion", body({"prompt": f"keep alive {number}", "n_predict": 1})))
            assert client.answer().first.endswith("200 OK")


# --- clients that leave ---


def test_a_client_that_leaves_while_held_is_never_sent(server: LlamaServer, wire: Relay, tmp_path: Path) -> None:
    with mitmdump(wire.port, tmp_path / "held", toki_deadline_ms="20000") as proxy:
        warm(proxy)
        os.kill(server.pid, signal.SIGSTOP)  # look-ups hang, so the request stays held
        try:
            with Client(proxy.port) as client:
                client.send(request("/completion", body({"prompt": "left while held", "model": "held"})))
                until(lambda: any(b"left while held" in each.body for each in wire.requests("/tokenize")))
            row = proxy.row_of("held")
        finally:
            os.kill(server.pid, signal.SIGCONT)
        assert row["status"] is None
        assert row["reason"] == "the client left while its request was held"
        assert complete(proxy, "after it").first.endswith("200 OK")
        assert not [each for each in wire.requests("/completion") if b"left while held" in each.body]


@pytest.mark.parametrize("stage", ["prefill", "stream"])
def test_a_client_that_leaves_closes_the_upstream(proxy: Mitmdump, wire: Relay, stage: str) -> None:
    marker = f"leaves in {stage}"
    prompt = marker + (" and on" * 1500 if stage == "prefill" else "")
    with Client(proxy.port) as client:
        client.send(request("/completion", body({"prompt": prompt, "n_predict": 2000}, stream=True, model=marker)))
        passed = wire.connection("/completion", marker.encode())
        if stage == "stream":
            client.receive_until(b"data:")
        until(lambda: wire.requests("/completion")[-1].body.endswith(b"}"))
    assert passed.left.wait(1.0), "the upstream is closed within a second"
    row = proxy.row_of(marker)
    assert (row["first_byte_ms"] is not None) == (stage == "stream")
    until(lambda: complete(proxy, "again").first.endswith("200 OK"))


# --- servers that fail ---


def test_a_server_that_is_down(tmp_path: Path) -> None:
    port = free_port()
    data = request("/completion", body({"prompt": "x" * 200_000, "model": "down"}))
    with (
        mitmdump(port, tmp_path / "toki") as proxy,
        mitmdump(port, tmp_path / "bare", script=None, connection_strategy="lazy") as bare,
    ):
        assert ask(proxy.port, data) == ask(bare.port, data)
        row = proxy.row_of("down")
        assert (row["status"], row["outcome"]) == (None, "unknown")
        assert ask(proxy.port, data.replace(b"/completion", b"/elsewhere")).first.startswith("HTTP/1.1 502")
        assert "Traceback" not in proxy.log


@pytest.mark.parametrize("build", BUILDS)
def test_a_server_that_dies_and_comes_back(build: Build, tmp_path: Path) -> None:
    port = free_port()
    with mitmdump(port, tmp_path / "proxy") as proxy:
        with start(smollm2(), FLAGS, build, port) as server:
            warm(proxy)
            with Client(proxy.port) as client:
                sent = body({"prompt": "cut", "n_predict": 2000}, stream=True, model="cut")
                client.send(request("/completion", sent))
                client.receive_until(b"data:")
                server.kill()
                while client.receive():
                    pass
            cut = proxy.row_of("cut")
            assert (cut["status"], cut["evaluated"] is None or cut["reused"] is not None) == (200, True)
            assert complete(proxy, "down", model="down").first.startswith("HTTP/1.1 502")
            assert proxy.row_of("down")["status"] is None
        with start(tiny_model(), Flags(n_parallel=3, n_ctx=3072), build, port):
            assert complete(proxy, "back", model="back").first.endswith("200 OK")
            assert proxy.row_of("back")["reason"] == UNKNOWN
            warm(proxy)
        assert "Traceback" not in proxy.log


@pytest.mark.parametrize("build", BUILDS)
def test_api_keys(build: Build, tmp_path: Path) -> None:
    with (
        start(tiny_model(), Flags(n_ctx=2048, api_key="right"), build) as server,
        mitmdump(server.port, tmp_path / "proxy") as proxy,
    ):
        for headers in ("", "Authorization: Bearer wrong\r\n"):
            data = request("/completion", body({"prompt": "key", "n_predict": 1}), headers=headers)
            direct, proxied = ask(server.port, data), ask(proxy.port, data)
            assert direct.first.startswith("HTTP/1.1 401")
            assert (proxied.first, proxied.body) == (direct.first, direct.body)
        warm(proxy, "Authorization: Bearer right\r\n")
        warm(proxy, "X-Api-Key: right\r\n")
        rows = proxy.rows()
        assert rows[-1]["prompt_tokens"] == rows[-1]["reused"] + rows[-1]["evaluated"]
        assert ask(proxy.port, request("/completion", b"{}", headers="X-Api-Key: no\r\n")).first.startswith(
            "HTTP/1.1 401"
        )
        assert "right" not in proxy.log
        assert "wrong" not in proxy.log


@pytest.mark.parametrize("build", BUILDS)
def test_without_slots(build: Build, tmp_path: Path) -> None:
    with (
        start(tiny_model(), Flags(n_ctx=2048, slots=False), build) as server,
        mitmdump(server.port, tmp_path / "proxy") as proxy,
    ):
        warm(proxy)
        assert complete(proxy, "no slots").first.endswith("200 OK")
        assert proxy.log.count("status 501") == 1


def test_a_server_that_can_save_slots_gets_the_same_requests(tmp_path: Path) -> None:
    """Looks come when they come, and a request may be steered once they have told what slots hold: it may take a few
    tries until they come alike on both sides."""
    for attempt in range(4):
        with_path = bodies_that_reach(tmp_path / f"with {attempt}", str(tmp_path))
        without = bodies_that_reach(tmp_path / f"without {attempt}", None)
        assert len(with_path) == len(without) == 12
        if with_path == without:
            return
    assert with_path == without


def bodies_that_reach(where: Path, slot_save_path: str | None) -> list[bytes]:
    """What a server gets of twelve prompts to /completion; its slots are neither saved nor restored."""
    with (
        start(tiny_model(), Flags(n_parallel=4, n_ctx=8192, slot_save_path=slot_save_path)) as server,
        relay(server.port) as wire,
        mitmdump(wire.port, where, toki_mode="pin", toki_deadline_ms="20000") as proxy,
    ):
        warm(proxy)
        for name, count in (("earlier", 24), ("conversation", 12)):
            for number in range(count):
                prompt = f"{name} {number % 3} " + "and on " * (20 + number)
                assert complete(proxy, prompt, model=f"{name} {number}").first.endswith("200 OK")
                proxy.row_of(f"{name} {number}")
        routes = {each.first.split(" ")[1] for passed in wire.passed for each in messages(bytes(passed.up))}
        assert not [route for route in routes if "action=" in route]
        return [each.body for each in wire.requests("/completion") if b"conversation" in each.body]


# --- life of the addon ---


def test_the_end_of_mitmdump_loses_no_row(one_wire: Relay, tmp_path: Path) -> None:
    with mitmdump(one_wire.port, tmp_path / "proxy") as proxy, Client(proxy.port) as client:
        client.send(request("/completion", body({"prompt": "until the end", "n_predict": 2000}, stream=True)))
        client.receive_until(b"data:")
        assert proxy.stop() == 0
        (row,) = proxy.rows()
        assert row["status"] == 200
        assert row["total_ms"] >= row["first_byte_ms"]
        assert "addon/toki" not in proxy.log, "a traceback"


def test_an_edited_script_starts_over(one_wire: Relay, tmp_path: Path) -> None:
    script = Path(shutil.copy(ROOT / "toki_addon.py", tmp_path))
    (tmp_path / "addon").symlink_to(ROOT / "addon")
    with mitmdump(one_wire.port, tmp_path / "proxy", script) as proxy, Client(proxy.port) as client:
        client.send(
            request("/completion", body({"prompt": "through a reload", "n_predict": 150}, stream=True, model="through"))
        )
        client.receive_until(b"data:")
        later = script.stat().st_mtime + 5
        os.utime(script, (later, later))
        until(lambda: proxy.log.count("toki: starts afresh") == 2)
        assert b'"stop":true' in client.answer().body
        assert complete(proxy, "after the reload", model="after").first.endswith("200 OK")
        assert proxy.row_of("through")["status"] == 200
        assert proxy.row_of("after")["reason"] in (UNKNOWN, "still learning how this server chooses")
        assert "Addon error" not in proxy.log
        # what toki changed for the first instance, it changed again for the second
        assert complete(proxy, "host", headers="X-Marker: 1\r\n").first.endswith("200 OK")
        (marked,) = [each for each in one_wire.requests("/completion") if each.header("x-marker")]
        assert marked.header("host") == f"{HOST}:{one_wire.port}"


def test_the_script_alone_says_what_to_install(tmp_path: Path) -> None:
    script = shutil.copy(ROOT / "toki_addon.py", tmp_path)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    program = Path(sys.executable).with_name("mitmdump")
    command = [str(program), "-p", str(free_port()), "--set", f"confdir={tmp_path}", "-s", str(script)]
    (tmp_path / "toki").mkdir()  # a package of the same name that is not ours comes first
    (tmp_path / "toki" / "__init__.py").touch()
    ended = subprocess.run(
        command, cwd=tmp_path, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60
    )
    said = ended.stdout + ended.stderr
    assert ended.returncode == 1
    assert said.count("pip install mitmproxy-toki") == 1
    assert "Traceback" not in said


# --- traffic that is not toki's ---


@pytest.fixture(scope="module")
def origin() -> Iterator[socket.socket]:
    with socket.create_server((HOST, 0)) as listener:
        listener.settimeout(PATIENCE)
        yield listener


@pytest.fixture(scope="module")
def passing(origin: socket.socket, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mitmdump]:
    # Off, it asks nothing of a server before the first request, as it would of this one.
    with mitmdump(origin.getsockname()[1], tmp_path_factory.mktemp("passing"), toki_mode="off") as running:
        yield running


def accept(origin: socket.socket) -> socket.socket:
    connection, _ = origin.accept()
    connection.settimeout(PATIENCE)
    return connection


def read_until(connection: socket.socket, text: bytes) -> bytes:
    data = b""
    while text not in data:
        data += (piece := connection.recv(65536))
        assert piece, data
    return data


@pytest.mark.parametrize(
    ("headers", "first", "second"),
    [
        ("Content-Length: 10\r\n", b"first", b"next!"),
        ("Transfer-Encoding: chunked\r\n", b"5\r\nfirst\r\n", b"5\r\nnext!\r\n0\r\n\r\n"),
    ],
)
def test_another_paths_upload_streams(
    origin: socket.socket, passing: Mitmdump, headers: str, first: bytes, second: bytes
) -> None:
    with Client(passing.port) as client:
        client.send(f"POST /upload HTTP/1.1\r\nHost: {HOST}\r\n{headers}\r\n".encode() + first)
        with accept(origin) as upstream:
            read_until(upstream, b"first")
            client.send(second)
            read_until(upstream, b"next!")
            upstream.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
            assert client.answer().body == b"ok"
    assert passing.rows() == []


@pytest.mark.parametrize(
    ("headers", "first", "second"),
    [
        ("Content-Length: 10\r\n", b"first", b"next!"),
        ("Transfer-Encoding: chunked\r\n", b"5\r\nfirst\r\n", b"5\r\nnext!\r\n0\r\n\r\n"),
        ("Content-Type: text/event-stream\r\n", b"first", b"next!"),
    ],
)
def test_another_paths_answer_streams(
    origin: socket.socket, passing: Mitmdump, headers: str, first: bytes, second: bytes
) -> None:
    with Client(passing.port) as client:
        client.send(request("/download", method="GET"))
        with accept(origin) as upstream:
            read_until(upstream, b"\r\n\r\n")
            upstream.sendall(f"HTTP/1.1 200 OK\r\n{headers}\r\n".encode() + first)
            client.receive_until(b"first")
            upstream.sendall(second)
        client.receive_until(b"next!")


@pytest.mark.parametrize(
    ("method", "answer"),
    [
        ("HEAD", b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n"),
        ("GET", b"HTTP/1.1 204 No Content\r\n\r\n"),
        ("GET", b"HTTP/1.1 304 Not Modified\r\nETag: x\r\n\r\n"),
        ("GET", b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"),
        ("DELETE", b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"),
        ("OPTIONS", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n"),
    ],
)
def test_another_paths_answer_without_much_in_it(
    origin: socket.socket, passing: Mitmdump, method: str, answer: bytes
) -> None:
    with Client(passing.port) as client:
        client.send(request("/other", method=method))
        with accept(origin) as upstream:
            for _ in range(2):  # the second on the same connections: the first has come to its end
                read_until(upstream, b"\r\n\r\n")
                upstream.sendall(answer)
                got = client.answer(bodiless=method == "HEAD")
                assert got.head == answer.partition(b"\r\n\r\n")[0]
                client.forget()
                client.send(request("/other", method=method))
            read_until(upstream, b"\r\n\r\n")


@pytest.mark.parametrize("path", ["/tokenize", "/completion"])
def test_expect_100_continue(proxy: Mitmdump, path: str) -> None:
    # Both read the body. A path that llama-server does not have is answered and closed before it came.
    sent = body({"content": "expected", "prompt": "expected", "n_predict": 1})
    with Client(proxy.port) as client:
        head, _, _ = request(path, sent, headers="Expect: 100-continue\r\n").partition(b"\r\n\r\n")
        client.send(head + b"\r\n\r\n")
        client.receive_until(b"HTTP/1.1 100 Continue\r\n\r\n")
        client.forget()
        client.send(sent)
        assert client.answer().first.split(" ")[1] == "200"


def test_websockets_pass(origin: socket.socket, passing: Mitmdump) -> None:
    upgrade = (
        "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
    )
    with Client(passing.port) as client:
        client.send(request("/socket", method="GET", headers=upgrade))
        with accept(origin) as upstream:
            read_until(upstream, b"\r\n\r\n")
            upstream.sendall(
                b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
                b"Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n"
            )
            client.receive_until(b"\r\n\r\n")
            upstream.sendall(b"\x81\x05hello")
            client.receive_until(b"\x81\x05hello")
            client.send(b"\x81\x82\x00\x00\x00\x00hi")
            assert read_until(upstream, b"\x82")[:2] == b"\x81\x82"
