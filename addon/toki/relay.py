"""Comment pings for a stream that has heard nothing for long: a small proxy of toki's own, on loopback.

mitmproxy's hooks can't send anything before the server answers, and clients give up a silent connection (Node's fetch
after 300 s) while a long prompt is still being read. With `toki_ping_s` set, a streamed request goes through here:
mitmproxy asks for a tunnel (CONNECT) to the llama-server, and within it the request is sent on as it is. Until the
server answers, the client gets an SSE comment every so many seconds, which every reader of event streams skips.

An answer that comes in time passes untouched. After a first ping the status line is gone, so an error that comes later
is sent as the API's own error event.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from collections.abc import Coroutine
from typing import Any
from typing import TypeVar

import h11

from toki import endpoints
from toki.answer import is_stream
from toki.endpoints.messages import Messages

PING = b": ping\n\n"
WAITING = "toki-waiting"  # header of an answer that began with pings; the addon takes it out
PIECE = 2**16  # bytes that are read at once
LONGEST = 2**20  # bytes of a head, or of an error's body, that are read

logger = logging.getLogger(__name__)

_T = TypeVar("_T")


class Relay:
    """Listens on a loopback port from its first use; `serves(host, port)` says where it may connect to."""

    def __init__(self, ping_s: float, serves: Callable[[str, int], bool]) -> None:
        self._ping_s = ping_s
        self._serves = serves
        self._starting = asyncio.Lock()
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def address(self) -> tuple[str, int]:
        """Where it listens, as host and port. Raises OSError where no port can be had."""
        async with self._starting:
            if self._server is None:
                self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        host, port = self._server.sockets[0].getsockname()
        return host, port

    def close(self) -> None:
        """Stop listening. What runs comes to its end: toki may be loaded anew, or another time be set, beside it."""
        if self._server is not None:
            self._server.close()
            self._server = None

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            client = _Peer(h11.SERVER, reader, writer)
            target = await self._tunnel(client)
            if target is not None:
                tunnelled = _Peer(h11.SERVER, reader, writer, client.http.trailing_data[0])
                await self._pass_on(tunnelled, *target)
            writer.close()
        except (OSError, h11.ProtocolError) as error:
            logger.debug("relay: %r", error)  # mitmproxy says 502, as if the server itself had closed
        except asyncio.CancelledError:
            pass  # nobody waits for this task
        finally:
            self._tasks.discard(task)
            if not writer.is_closing():
                writer.transport.abort()  # what is not complete must not look complete

    async def _tunnel(self, client: _Peer) -> tuple[str, int] | None:
        """Where mitmproxy wants to be connected to; None where that is no server of ours."""
        request = await client.receive()
        if not isinstance(request, h11.Request) or request.method != b"CONNECT":
            return None
        host, _, port = request.target.decode("latin-1").rpartition(":")
        if not port.isdecimal() or not self._serves(host.strip("[]"), int(port)):
            return None
        await client.receive()  # the end of the request
        await client.send(h11.Response(status_code=200, headers=[]))
        return host.strip("[]"), int(port)

    async def _pass_on(self, client: _Peer, host: str, port: int) -> None:
        """One request and its answer. No other one follows in the same tunnel (idle.py)."""
        request = await client.receive()
        if not isinstance(request, h11.Request):
            return
        server = _Peer(h11.CLIENT, *await asyncio.open_connection(host, port))
        try:
            await server.send(h11.Request(method=request.method, target=request.target, headers=request.headers))
            while isinstance(piece := await client.receive(), h11.Data):
                await server.send(piece)
            await server.send(piece)
            await client.unless_gone(self._answer(request, client, server))
        finally:
            server.writer.transport.abort()

    async def _answer(self, request: h11.Request, client: _Peer, server: _Peer) -> None:
        """Pass the answer on, with pings until its first byte is here."""
        ping = _Ping(client, _header(request, b"origin"))
        path = request.target.decode("latin-1")
        try:
            head = await self._with_pings(server.head(), ping)
        except (OSError, h11.RemoteProtocolError):
            if not ping.answered:
                raise
            await client.finish(error_event(path, 502, b"the server closed the connection without an answer"))
            return
        stream = is_stream(_header(head, b"content-type").decode("latin-1"))
        if ping.answered and (head.status_code != 200 or not stream):
            await client.finish(error_event(path, head.status_code, await server.body()))
            return
        if not ping.answered:
            await client.send(h11.Response(status_code=head.status_code, headers=head.headers, reason=head.reason))
        endless = stream and not _header(head, b"content-length")
        piece = await (self._with_pings(server.receive(), ping) if endless else server.receive())
        while isinstance(piece, h11.Data):
            await client.send(piece)
            piece = await server.receive()
        await client.send(piece)

    async def _with_pings(self, wanted: Coroutine[Any, Any, _T], ping: _Ping) -> _T:
        """What `wanted` gives; meanwhile a ping for each time that nothing came for so long."""
        task = asyncio.create_task(wanted)
        try:
            while not (await asyncio.wait({task}, timeout=self._ping_s))[0]:
                await ping.send()
            return task.result()
        finally:
            task.cancel()


class _Peer:
    """One end of a connection: h11's state machine for it, and the streams that feed it."""

    def __init__(
        self,
        role: type[h11.SERVER | h11.CLIENT],
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        received: bytes = b"",
    ) -> None:
        self.http = h11.Connection(role, max_incomplete_event_size=LONGEST)
        self.writer = writer
        self._reader = reader
        if received:
            self.http.receive_data(received)

    async def receive(self) -> h11.Event:
        """What comes next. Raises h11.RemoteProtocolError where that is no HTTP, or its end comes too early."""
        while (event := self.http.next_event()) is h11.NEED_DATA:
            self.http.receive_data(await self._reader.read(PIECE))
        assert isinstance(event, h11.Event)
        return event

    async def head(self) -> h11.Response:
        """The head of the final answer."""
        while isinstance(event := await self.receive(), h11.InformationalResponse):
            pass
        if not isinstance(event, h11.Response):
            raise h11.RemoteProtocolError("closed without an answer")
        return event

    async def body(self) -> bytes:
        """The rest of the answer, cut off where it is very long."""
        body = bytearray()
        while isinstance(piece := await self.receive(), h11.Data) and len(body) < LONGEST:
            body += piece.data
        return bytes(body)

    async def send(self, event: h11.Event) -> None:
        if data := self.http.send(event):
            self.writer.write(data)
        await self.writer.drain()

    async def finish(self, data: bytes) -> None:
        await self.send(h11.Data(data=data))
        await self.send(h11.EndOfMessage())

    async def unless_gone(self, work: Coroutine[Any, Any, None]) -> None:
        """Do `work`; it is given up where this peer closes before it comes to its end."""
        tasks = asyncio.create_task(work), asyncio.create_task(self._gone())
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if tasks[0].done():
                tasks[0].result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _gone(self) -> None:
        while data := await self._reader.read(PIECE):
            self.http.receive_data(data)


class _Ping:
    """Sends a ping to the client; before the first one, the head of a stream where the server has sent none."""

    def __init__(self, client: _Peer, origin: bytes) -> None:
        self.answered = False  # whether the head is ours
        self._client = client
        self._origin = origin

    async def send(self) -> None:
        if self._client.http.our_state is h11.SEND_RESPONSE:
            self.answered = True
            headers = [(b"Content-Type", b"text/event-stream"), (WAITING.encode(), b"1")]
            if self._origin:  # llama-server lets every page in: server-http.cpp, set_pre_routing_handler
                headers.append((b"Access-Control-Allow-Origin", self._origin))
            await self._client.send(h11.Response(status_code=200, headers=headers, reason=b"OK"))
        await self._client.send(h11.Data(data=PING))


def error_event(path: str, status: int, body: bytes) -> bytes:
    """An answer that is an error, as an event of the stream that the client of `path` reads.

    OpenAI's SDKs raise at `data: {"error": ...}` (so llama-server itself reports what goes wrong in a stream),
    Anthropic's at the event `error`.
    """
    try:
        error = json.loads(body)["error"]
        message, kind = str(error["message"]), str(error.get("type", "server_error"))
    except (ValueError, RecursionError, LookupError, TypeError, AttributeError):
        message, kind = body.decode("utf-8", "replace").strip() or f"HTTP status {status}", "server_error"
    error = {"type": kind, "message": message, "code": status}
    if isinstance(endpoints.match("POST", path), Messages):
        return b"event: error\ndata: " + json.dumps({"type": "error", "error": error}).encode() + b"\n\n"
    return b"data: " + json.dumps({"error": error}).encode() + b"\n\n"


def without_pings(data: bytes) -> bytes:
    """What follows the pings at the begin of `data`, which may hold several pieces that were sent."""
    while data.startswith(PING):
        data = data[len(PING) :]
    return data


def late_status(data: bytes) -> int:
    """The status that the first bytes after the pings stand for: that of an `error_event`, else 200."""
    try:
        return int(json.loads(data.removeprefix(b"event: error\n").removeprefix(b"data: "))["error"]["code"])
    except (ValueError, OverflowError, RecursionError, LookupError, TypeError):
        return 200


def _header(message: h11.Request | h11.Response, name: bytes) -> bytes:
    return next((value for key, value in message.headers if key == name), b"")
