"""Connections to a server that have been idle for long are not used again.

A server closes a connection that was idle for its keep-alive time (llama-server: 5 s), and a request that is written to
it at that moment is lost: mitmproxy answers 502, and a POST must not be sent again, for it may have been taken up. The
window is as long as the event loop is busy, so toki's work makes it wider than it is in mitmproxy alone. A connection
that is left alone long before has no such window; opening another one takes less than a millisecond. And where a
machine was so busy that the end of a connection came without being seen, its socket tells.
"""

from __future__ import annotations

import selectors
import time
from collections import defaultdict

from mitmproxy import ctx
from mitmproxy.connection import Client
from mitmproxy.connection import ConnectionState
from mitmproxy.connection import Server
from mitmproxy.http import HTTPFlow

# Unlike the system's default it needs no file descriptor of its own.
POLL: type[selectors.BaseSelector] = getattr(selectors, "PollSelector", selectors.SelectSelector)
LONGEST = 2.0  # seconds; the event loop of a busy machine may lag behind by one or two more


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
                # As if it were half closed, which mitmproxy takes for the end of its use. The server closes it soon.
                server.state &= ~ConnectionState.CAN_WRITE

    def response(self, flow: HTTPFlow) -> None:
        # Over HTTP/2 other requests may be under way on it, and a server says which ones it has not taken up.
        if flow.client_conn.connected and flow.server_conn.alpn != b"h2":
            self._since[flow.client_conn.id][flow.server_conn] = time.monotonic()

    def client_disconnected(self, client: Client) -> None:
        self._since.pop(client.id, None)


def _unread(client: Client, server: Server) -> bool:
    """Whether something came on a connection that mitmproxy has not read yet: on an idle one that is its end.

    The sockets are not for addons; where another mitmproxy keeps them elsewhere, nothing is known.
    """
    proxyserver = ctx.master.addons.get("proxyserver")  # type: ignore[no-untyped-call]
    handler = getattr(proxyserver, "connections", {}).get(client.id)
    transport = getattr(handler, "transports", {}).get(server)
    writer = getattr(transport, "writer", None)
    socket = writer.get_extra_info("socket") if writer is not None else None
    if socket is None or socket.fileno() < 0:
        return False
    with POLL() as selector:
        selector.register(socket, selectors.EVENT_READ)
        return bool(selector.select(0))
