"""The list that mitmweb and the console show stays bounded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mitmproxy.addons.view import View
from mitmproxy.flow import Flow
from mitmproxy.http import HTTPFlow
from mitmproxy.test import tflow

from toki.inspect.explanation import MARKS
from toki.listed import FLOW
from toki.listed import Listed


class Removed:
    """A view that only remembers what was taken from it."""

    def __init__(self) -> None:
        self.flows: list[Flow] = []

    def remove(self, flows: Sequence[Flow]) -> None:
        self.flows += flows


def ended(size: int) -> HTTPFlow:
    """A flow whose bodies are together of `size` bytes."""
    flow = tflow.tflow(resp=True)
    assert flow.response
    flow.request.content = b"x" * (size // 2)
    flow.response.content = b"x" * (size - size // 2)
    return flow


def test_the_oldest_leave_where_there_is_no_room() -> None:
    view = Removed()
    listed = Listed(view, room=2 * FLOW + 100)
    flows = [ended(40) for _ in range(5)]
    for flow in flows:
        listed.add(flow)
    assert view.flows == flows[:3]


def test_the_latest_stays_however_large() -> None:
    view = Removed()
    listed = Listed(view, room=2 * FLOW + 100)
    flows = [ended(10), ended(1000)]
    for flow in flows:
        listed.add(flow)
    assert view.flows == flows[:1]


def test_what_the_user_marked_stays() -> None:
    view = Removed()
    listed = Listed(view, room=2 * FLOW + 100)
    flows = [ended(90) for _ in range(3)]
    flows[0].marked = ":pin:"
    for flow in flows:
        listed.add(flow)
    assert view.flows == flows[1:2]


def test_what_toki_marked_leaves() -> None:
    view = Removed()
    listed = Listed(view, room=FLOW)
    flows = [ended(0) for _ in range(3)]
    for flow, mark in zip(flows, (*MARKS, ""), strict=True):
        flow.marked = mark
        listed.add(flow)
    assert view.flows == flows[:2]


def test_flows_with_next_to_nothing_in_them_do_not_pile_up() -> None:
    view = Removed()
    listed = Listed(view, room=10 * FLOW)
    for _ in range(30):
        listed.add(ended(0))
    assert len(view.flows) == 20


def test_a_flow_without_an_answer_counts_its_request() -> None:
    view = Removed()
    listed = Listed(view, room=FLOW + 5)
    failed = tflow.tflow(err=True)
    failed.request.content = b"x" * 6
    failed.response = None
    listed.add(failed)
    listed.add(ended(0))
    assert view.flows == [failed]


def test_what_is_no_traffic_is_not_listed() -> None:
    view = Removed()
    flow = ended(10)
    Listed(view, room=100).drop(flow)
    assert view.flows == [flow]


def test_what_is_not_listed_is_answered_all_the_same() -> None:
    """mitmproxy's own view kills a flow that is removed from it while it is under way."""
    view: Any = View()
    flow = tflow.tflow()
    flow.live = True
    view.requestheaders(flow)
    assert len(view) == 1
    Listed(view).drop(flow)
    assert len(view) == 0
    assert flow.live
    assert flow.error is None
