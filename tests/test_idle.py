"""Which kept connections mitmproxy may use again."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from mitmproxy import ctx
from mitmproxy.addons.proxyserver import Proxyserver
from mitmproxy.connection import Connection
from mitmproxy.connection import ConnectionState
from mitmproxy.connection import Server
from mitmproxy.http import HTTPFlow
from mitmproxy.proxy.context import Context
from mitmproxy.proxy.layer import Layer
from mitmproxy.proxy.layer import NextLayer
from mitmproxy.proxy.layers import HttpLayer
from mitmproxy.proxy.layers.http import HTTPMode
from mitmproxy.proxy.layers.modes import ReverseProxy
from mitmproxy.proxy.mode_specs import ProxyMode
from mitmproxy.proxy.server import ConnectionIO
from mitmproxy.proxy.server import SimpleConnectionHandler
from mitmproxy.test import taddons
from mitmproxy.test import tflow

from toki import idle
from toki.idle import Idle
from toki.relay import Relay

pytestmark = pytest.mark.proxy
REQUEST = b"POST /completion HTTP/1.1\r\nHost: there\r\nContent-Length: 2\r\n\r\n{}"
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"


class Handler:
    """What holds a client's connections."""

    def __init__(self, transports: dict[Connection, ConnectionIO]) -> None:
        self.transports = transports
        self.closed: list[Connection] = []

    def close_connection(self, connection: Connection) -> None:
        self.closed.append(connection)


async def answer_for_ever(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A server that never closes a connection by itself."""
    with contextlib.suppress(OSError, asyncio.IncompleteReadError):
        while await reader.readuntil(b"\r\n\r\n{}"):
            writer.write(ANSWER)
    await closed(writer)


async def closed(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


@pytest.fixture(autouse=True)
def proxyserver() -> Iterator[Proxyserver]:
    addon = Proxyserver()  # type: ignore[no-untyped-call]
    with taddons.context(addon):  # type: ignore[no-untyped-call]
        yield addon


def answered() -> HTTPFlow:
    flow = tflow.tflow(resp=True)
    flow.client_conn.state = flow.server_conn.state = ConnectionState.OPEN
    return flow


@pytest.mark.parametrize(("longest", "kept"), [(1000.0, True), (-1.0, False)])
def test_a_connection_that_was_idle_for_long_is_not_used_again(
    monkeypatch: pytest.MonkeyPatch, longest: float, kept: bool
) -> None:
    monkeypatch.setattr(idle, "LONGEST", longest)
    flow, connections = answered(), Idle()
    connections.response(flow)
    connections.retire(flow.client_conn)
    assert flow.server_conn.connected is kept
    assert flow.server_conn.state & ConnectionState.CAN_READ


def test_those_of_other_clients_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idle, "LONGEST", -1.0)
    flow, other, connections = answered(), answered(), Idle()
    for each in (flow, other):
        connections.response(each)
    connections.retire(other.client_conn)
    assert flow.server_conn.connected


def test_nothing_is_kept_of_clients_that_left() -> None:
    flow, late, connections = answered(), answered(), Idle()
    connections.response(flow)
    connections.client_disconnected(flow.client_conn)
    late.client_conn.state = ConnectionState.CLOSED
    connections.response(late)
    connections.retire(late.client_conn)
    assert not connections._since


def test_a_connection_that_is_shared_by_requests_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idle, "LONGEST", -1.0)
    flow, connections = answered(), Idle()
    flow.server_conn.alpn = b"h2"
    connections.response(flow)
    connections.retire(flow.client_conn)
    assert flow.server_conn.connected


def test_a_connection_that_was_closed_unseen_is_not_used_again(proxyserver: Proxyserver) -> None:
    flow, connections = answered(), Idle()
    near, far = socket.socketpair()
    writer = SimpleNamespace(get_extra_info={"socket": near}.get)
    handler = Handler({flow.server_conn: ConnectionIO(writer=writer)})  # type: ignore[arg-type]
    proxyserver.connections[flow.client_conn.id] = handler  # type: ignore[assignment]
    with near:
        connections.response(flow)
        connections.retire(flow.client_conn)
        assert flow.server_conn.connected
        far.close()
        connections.retire(flow.client_conn)
    assert handler.closed == [flow.server_conn]
    assert not flow.server_conn.state & ConnectionState.CAN_WRITE


async def test_a_connection_that_a_client_of_http_2_used_is_closed(
    monkeypatch: pytest.MonkeyPatch, proxyserver: Proxyserver
) -> None:
    """mitmproxy keeps it open and does not use it again."""
    monkeypatch.setattr(idle, "HANDED_ON", 0.0)
    flow, connections = answered(), Idle()
    flow.client_conn.alpn = b"h2"
    handler = Handler({flow.client_conn: ConnectionIO(), flow.server_conn: ConnectionIO()})
    proxyserver.connections[flow.client_conn.id] = handler  # type: ignore[assignment]
    connections.response(flow)
    await asyncio.sleep(0.01)
    assert handler.closed == [flow.server_conn]


@pytest.mark.parametrize("relayed", [False, True])
async def test_a_client_gets_all_its_answers_where_a_server_never_closes(
    monkeypatch: pytest.MonkeyPatch, proxyserver: Proxyserver, relayed: bool
) -> None:
    """mitmproxy opens no more than five connections for it to one address."""
    monkeypatch.setattr(idle, "LONGEST", -1.0)
    connections, relay = Idle(), Relay(60.0, lambda host, port: True)
    server = await asyncio.start_server(answer_for_ever, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    host, way = await relay.address()

    def ask(flow: HTTPFlow) -> None:
        connections.retire(flow.client_conn)
        if relayed:
            flow.server_conn = Server(address=("127.0.0.1", port))
            flow.server_conn.via = ("http", (host, way))

    layers: list[Callable[[Context], Layer]] = [ReverseProxy, lambda c: HttpLayer(c, HTTPMode.transparent)]

    def choose(hook: NextLayer) -> None:
        hook.layer = layers.pop(0)(hook.context)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        hooks = {"next_layer": choose, "request": ask, "response": connections.response}
        mode = ProxyMode.parse(f"reverse:http://127.0.0.1:{port}")
        handler = SimpleConnectionHandler(reader, writer, ctx.options, mode, hooks)  # type: ignore[no-untyped-call]
        proxyserver.connections[handler.client.id] = handler  # type: ignore[assignment]
        await handler.handle_client()
        await closed(writer)
        left.set()

    left = asyncio.Event()
    ctx.options.update(connection_strategy="lazy")  # type: ignore[no-untyped-call]
    entrance = await asyncio.start_server(serve, "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*entrance.sockets[0].getsockname()[:2])
    for _ in range(8):
        writer.write(REQUEST)
        assert await asyncio.wait_for(reader.readexactly(len(ANSWER)), 10) == ANSWER
    await closed(writer)
    await asyncio.wait_for(left.wait(), 10)
    for listener in (entrance, server):
        listener.close()
        await listener.wait_closed()
    relay.close()
    await asyncio.sleep(0.05)  # until it has closed its ends
