"""Connections to a server that have been idle for long are closed before they could be used again.

A server closes a connection that was idle for its keep-alive time (llama-server: 5 s), and a request that is written to
it at that moment is lost: mitmproxy answers 502, and a POST must not be sent again, for it may have been taken up. The
window is as long as the event loop is busy, so toki's work makes it wider than it is in mitmproxy alone. A connection
that is left alone long before has no such window; opening another one takes less than a millisecond. And where a
machine was so busy that the end of a connection came without being seen, its socket tells.

Left alone is not enough: mitmproxy opens five connections for one client to one address (`max_conns`), and a sixth
request waits until one of them is closed. Servers without a keep-alive time never do that.
"""

from __future__ import annotations

import asyncio
import selectors
import time
from collections import defaultdict
from math import inf
from typing import Any

from mitmproxy import ctx
from mitmproxy.connection import Client
from mitmproxy.connection import ConnectionState
from mitmproxy.connection import Server
from mitmproxy.http import HTTPFlow

# Unlike the system's default it needs no file descriptor of its own.
POLL: type[selectors.BaseSelector] = getattr(selectors, "PollSelector", selectors.SelectSelector)
LONGEST = 2.0  # seconds; the event loop of a busy machine may lag behind by one or two more
HANDED_ON = 1.0  # seconds in which the end of an answer is surely on its way to the client


class Idle:
    """An addon that knows since when each client's connections to servers are idle."""

    def __init__(self) -> None:
        self._since: dict[str, dict[Server, float]] = defaultdict(dict)  # by the client's id

    def retire(self, client: Client) -> None:
        """Let the client's next request not take a connection that has been idle for long, or has been closed."""
        connections = self._since.get(client.id, {})  # it may have left while its request was held
        too_long = time.monotonic() - LONGEST
        for server, since in list(connections.items()):
            if since < too_long or _unread(client, server):
                del connections[server]
                _close(client, server)

    def response(self, flow: HTTPFlow) -> None:
        client, server = flow.client_conn, flow.server_conn
        if not client.connected or server.alpn == b"h2":  # other requests may be under way on it
            return
        if client.alpn == b"h2":  # mitmproxy uses it no more (`get_connection`), and leaves it open
            asyncio.get_running_loop().call_later(HANDED_ON, _close, client, server)
        else:  # one through another proxy is not used again: toki's own ends it then (relay.py)
            self._since[client.id][server] = -inf if server.via else time.monotonic()

    def client_disconnected(self, client: Client) -> None:
        self._since.pop(client.id, None)


def _close(client: Client, server: Server) -> None:
    """Close a connection on which nothing is under way."""
    handler = _handler(client)
    # Through another proxy it is the connection to that; a client of HTTP/1 has nothing else under way there.
    proxy = server.via[1] if server.via and client.alpn != b"h2" else None
    for connection in list(getattr(handler, "transports", ())):
        through = proxy is not None and isinstance(connection, Server) and connection.address == proxy
        if connection is server or through:
            handler.close_connection(connection)
    server.state &= ~ConnectionState.CAN_WRITE  # as if it were half closed: no request takes it


def _unread(client: Client, server: Server) -> bool:
    """Whether something came on a connection that mitmproxy has not read yet: on an idle one that is its end."""
    transport = getattr(_handler(client), "transports", {}).get(server)
    writer = getattr(transport, "writer", None)
    socket = writer.get_extra_info("socket") if writer is not None else None
    if socket is None or socket.fileno() < 0:
        return False
    with POLL() as selector:
        selector.register(socket, selectors.EVENT_READ)
        return bool(selector.select(0))


def _handler(client: Client) -> Any:
    """What holds a client's connections in mitmproxy. That is not for addons; where another mitmproxy keeps it
    elsewhere, nothing is known."""
    proxyserver = ctx.master.addons.get("proxyserver")  # type: ignore[no-untyped-call]
    return getattr(proxyserver, "connections", {}).get(client.id)
