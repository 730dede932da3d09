"""The relay that pings, between a server that answers when the test says and a client that sees raw bytes."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from collections.abc import Awaitable
from collections.abc import Callable
from contextlib import asynccontextmanager
from typing import Self

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toki.relay import PING
from toki.relay import WAITING
from toki.relay import Relay
from toki.relay import error_event
from toki.relay import late_status
from toki.relay import without_pings

BODY = b'{"stream":true}'
STREAM = (
    b"HTTP/1.1 200 OK\r\nServer: llama.cpp\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
)
CHUNKS = b"6\r\ndata: \r\n4\r\n1\n\n:\r\n0\r\n\r\n"
WITHIN = 20.0  # seconds that anything may take on a busy machine


class Server:
    """Takes requests; what it answers, and when, is the test's business."""

    def __init__(self) -> None:
        self.port = 0
        self.got: list[bytes] = []
        self.connections: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
        self.asked = asyncio.Event()
        self.answer: Callable[[asyncio.StreamWriter], Awaitable[None]] = self.silent

    async def silent(self, writer: asyncio.StreamWriter) -> None:
        """Say nothing and keep the connection."""

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections.append((reader, writer))
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            head = await reader.readuntil(b"\r\n\r\n")
            self.got.append(head + await reader.readexactly(len(BODY)))
            self.asked.set()
            await self.answer(writer)


class Client:
    """mitmproxy's side: a tunnel, and requests in it."""

    def __init__(self, relay: Relay, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.relay = relay
        self.reader = reader
        self.writer = writer

    @classmethod
    async def connect(cls, relay: Relay, host: str, port: int) -> Self:
        client = cls(relay, *await asyncio.open_connection(*await relay.address()))
        client.writer.write(f"CONNECT {host}:{port} HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n".encode())
        return client

    def ask(self, path: str = "/v1/chat/completions", headers: str = "") -> bytes:
        head = f"POST {path} HTTP/1.1\r\nHost: there\r\nX-Odd: Case\r\n{headers}Content-Length: {len(BODY)}\r\n\r\n"
        self.writer.write(head.encode() + BODY)
        return head.encode() + BODY

    async def until(self, text: bytes) -> bytes:
        return await asyncio.wait_for(self.reader.readuntil(text), WITHIN)

    async def rest(self) -> bytes:
        return await asyncio.wait_for(self.reader.read(), WITHIN)

    async def chunks(self) -> bytes:
        """The body of a chunked answer, to its end."""
        body = b""
        while size := int((await self.until(b"\r\n")), 16):
            body += await self.reader.readexactly(size)
            await self.reader.readexactly(2)
        await self.reader.readexactly(2)
        return body


@asynccontextmanager
async def between(ping_s: float) -> AsyncIterator[tuple[Client, Server]]:
    """A client with a tunnel to a server, through a relay."""
    server = Server()
    listener = await asyncio.start_server(server.accept, "127.0.0.1", 0)
    server.port = listener.sockets[0].getsockname()[1]
    relay = Relay(ping_s, lambda host, port: (host, port) == ("127.0.0.1", server.port))
    client = await Client.connect(relay, "127.0.0.1", server.port)
    assert (await client.until(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
    try:
        yield client, server
    finally:
        client.writer.close()
        relay.close()
        listener.close()
        for _, writer in server.connections:
            writer.close()


def saying(*pieces: bytes) -> Callable[[asyncio.StreamWriter], Awaitable[None]]:
    async def answer(writer: asyncio.StreamWriter) -> None:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()

    return answer


async def closing(writer: asyncio.StreamWriter) -> None:
    writer.close()


async def test_in_time_everything_passes_as_it_is() -> None:
    async with between(WITHIN) as (client, server):
        server.answer = saying(STREAM, CHUNKS)
        sent = client.ask()
        assert await client.until(b"\r\n\r\n") == STREAM
        assert await client.chunks() == b"data: 1\n\n:"
        assert server.got == [sent]


async def test_a_tunnel_carries_one_request() -> None:
    async with between(WITHIN) as (client, server):
        server.answer = saying(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 2\r\nX-Own: Kept\r\n\r\n{}")
        client.ask()
        head = await client.until(b"\r\n\r\n")
        assert head == b"HTTP/1.1 400 Bad Request\r\nContent-Length: 2\r\nX-Own: Kept\r\n\r\n"
        assert await client.rest() == b"{}"
        assert len(server.got) == 1


async def test_pings_come_until_the_answer_does() -> None:
    async with between(0.02) as (client, server):
        client.ask(headers="Origin: http://page\r\n")
        head = await client.until(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n" + WAITING.encode())
        assert b"Access-Control-Allow-Origin: http://page\r\n" in head
        for _ in range(3):
            assert await client.until(PING + b"\r\n") == b"8\r\n" + PING + b"\r\n"
        await saying(STREAM, CHUNKS)(server.connections[0][1])
        assert without_pings(await client.chunks()) == b"data: 1\n\n:"


async def test_no_ping_cuts_an_event_in_two() -> None:
    """Once the first byte is there the server's own pings, if any, must do."""
    async with between(0.02) as (client, server):
        server.answer = saying(STREAM)
        client.ask()
        assert await client.until(b"\r\n\r\n") == STREAM
        await client.until(PING + b"\r\n")
        server.connections[0][1].write(b"6\r\ndata: \r\n")
        while (await client.until(b"\r\n")) != b"6\r\n":
            pass
        assert await client.reader.readexactly(8) == b"data: \r\n"
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(client.reader.read(1), 0.2)  # ten times the silence that brings a ping


ERROR = b'{"type": "exceeded", "message": "too long", "code": 400}'


@pytest.mark.parametrize(
    ("path", "event"),
    [
        ("/v1/chat/completions", b'data: {"error": ' + ERROR + b"}\n\n"),
        ("/v1/messages?beta=true", b'event: error\ndata: {"type": "error", "error": ' + ERROR + b"}\n\n"),
    ],
)
async def test_an_error_that_comes_late_is_an_event(path: str, event: bytes) -> None:
    body = b'{"error":{"code":400,"message":"too long","type":"exceeded","n_ctx":256}}'
    refusal = b"HTTP/1.1 400 Bad Request\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
    async with between(0.02) as (client, server):
        client.ask(path)
        await client.until(PING + b"\r\n")
        await saying(refusal, body)(server.connections[0][1])
        assert without_pings(await client.chunks()) == event
        assert late_status(event) == 400
        assert await client.rest() == b""


@pytest.mark.parametrize("code", ["1e999", "Infinity", "NaN", "null", "[]", '"x"'])
def test_an_odd_number_in_a_first_event_is_no_status(code: str) -> None:
    assert late_status(b'data: {"error":{"code":%s}}\n\n' % code.encode()) == 200


async def test_a_server_that_goes_away() -> None:
    async with between(0.02) as (client, server):
        client.ask()
        await client.until(PING + b"\r\n")
        server.connections[0][1].close()
        event = without_pings(await client.chunks())
        assert json.loads(event.removeprefix(b"data: "))["error"]["message"].startswith("the server closed")
        assert late_status(event) == 502


async def test_a_server_that_goes_away_at_once_leaves_nothing() -> None:
    async with between(WITHIN) as (client, server):
        server.answer = closing
        client.ask()
        assert await client.rest() == b""


async def test_a_stream_outlives_the_relay_that_takes_no_more() -> None:
    async with between(60) as (client, server):
        go_on = asyncio.Event()

        async def answer(writer: asyncio.StreamWriter) -> None:
            writer.write(STREAM)
            await go_on.wait()
            writer.write(CHUNKS)

        server.answer = answer
        client.ask()
        assert (await client.until(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
        client.relay.close()
        await asyncio.sleep(0)
        go_on.set()
        assert await client.chunks() == b"data: 1\n\n:"


async def test_an_answer_that_breaks_off_does_not_look_complete() -> None:
    async with between(WITHIN) as (client, server):
        server.answer = saying(STREAM, b"6\r\ndata: \r\n")
        client.ask()
        await client.until(b"data: \r\n")
        server.connections[0][1].close()
        with contextlib.suppress(ConnectionResetError):
            assert await client.rest() == b""


@pytest.mark.parametrize("pinged", [False, True])
async def test_a_client_that_leaves_takes_its_request_along(pinged: bool) -> None:
    async with between(0.02 if pinged else WITHIN) as (client, server):
        client.ask()
        await asyncio.wait_for(server.asked.wait(), WITHIN)
        if pinged:
            await client.until(PING + b"\r\n")
        client.writer.close()
        with contextlib.suppress(ConnectionResetError):
            assert await asyncio.wait_for(server.connections[0][0].read(), WITHIN) == b""


@pytest.mark.parametrize("line", ["CONNECT 127.0.0.1:9", "CONNECT 127.0.0.1:x", "POST http://127.0.0.1:9/", "nonsense"])
async def test_it_is_no_open_proxy(line: str) -> None:
    relay = Relay(1, lambda host, port: False)
    try:
        reader, writer = await asyncio.open_connection(*await relay.address())
        writer.write(f"{line} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 0\r\n\r\n".encode())
        assert await asyncio.wait_for(reader.read(), WITHIN) == b""
        writer.close()
    finally:
        relay.close()


@given(st.integers(400, 599), st.binary(max_size=200))
def test_any_error_becomes_an_event(status: int, body: bytes) -> None:
    for path in ("/v1/messages", "/v1/responses"):
        event = error_event(path, status, body)
        assert event.endswith(b"\n\n")
        assert event.count(b"\n\n") == 1
        assert late_status(event) == status


@given(st.binary(max_size=200))
def test_what_is_no_error_event_is_an_answer(data: bytes) -> None:
    assert late_status(data) == 200
    assert without_pings(PING + PING + data) == without_pings(data)
