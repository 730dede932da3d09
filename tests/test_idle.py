"""Which kept connections mitmproxy may use again."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from mitmproxy.addons.proxyserver import Proxyserver
from mitmproxy.connection import ConnectionState
from mitmproxy.http import HTTPFlow
from mitmproxy.proxy.server import ConnectionIO
from mitmproxy.test import taddons
from mitmproxy.test import tflow

from toki import idle
from toki.idle import Idle


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
    with near:
        writer = SimpleNamespace(get_extra_info={"socket": near}.get)
        io = ConnectionIO(writer=writer)  # type: ignore[arg-type]
        handler = SimpleNamespace(transports={flow.server_conn: io})
        proxyserver.connections[flow.client_conn.id] = handler  # type: ignore[assignment]
        connections.response(flow)
        connections.retire(flow.client_conn)
        assert flow.server_conn.connected
        far.close()
        connections.retire(flow.client_conn)
    assert not flow.server_conn.connected
