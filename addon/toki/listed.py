"""Bounds the list of flows that mitmweb and mitmproxy's console keep: each flow stays there for ever, with its bodies.

A server's traffic of some days, prompts of hundreds of kilobytes in it, would fill the memory.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Protocol

from mitmproxy.flow import Flow
from mitmproxy.http import HTTPFlow

from toki.inspect.explanation import MARKS

ROOM = 64 * 2**20  # bytes that stay to be looked at
FLOW = 2**14  # bytes that a flow takes without its bodies: its headers, connections, comments and metadata


class View(Protocol):
    """What is used of mitmproxy's addon `view`, which mitmdump has not."""

    def remove(self, flows: Sequence[Flow]) -> None: ...


class Listed:
    """The ended flows in a view, the oldest of which leave it. Flows that the user marked stay, and are not counted."""

    def __init__(self, view: View, room: int = ROOM) -> None:
        self._view = view
        self._room = room
        self._flows: deque[tuple[HTTPFlow, int]] = deque()

    def add(self, flow: HTTPFlow) -> None:
        """`flow` has ended: its bodies are as long as they will be."""
        messages = (flow.request, flow.response)
        size = FLOW + sum(len(message.raw_content or b"") for message in messages if message is not None)
        self._flows.append((flow, size))
        self._room -= size
        while self._room < 0 and len(self._flows) > 1:
            oldest, size = self._flows.popleft()
            self._room += size
            if oldest.marked in ("", *MARKS):  # else it is a mark of the user's
                self._remove(oldest)

    def drop(self, flow: HTTPFlow) -> None:
        """`flow` is no traffic of a server: a page that is looked at all day would push out all others."""
        self._remove(flow)

    def _remove(self, flow: HTTPFlow) -> None:
        live, flow.live = flow.live, False  # the view ends the connection of one that is
        self._view.remove([flow])
        flow.live = live
