"""Puts explanations onto flows: a comment and a mark for the list, metadata for filters, views and saved files.

mitmproxy writes a flow to a file (-w) as soon as the `response` hook is through, so where flows are saved, the end of a
very short answer waits for its explanation. Where none are, nothing waits.
"""

from __future__ import annotations

import asyncio
import contextlib

from mitmproxy import ctx
from mitmproxy.hooks import UpdateHook
from mitmproxy.http import HTTPFlow

from toki.inspect.explanation import Explanation

PATIENCE = 1.0  # seconds; an answer that came before its prompt was read is judged within half of that


class Notes:
    """An addon inside the addon; its hooks come after those of the one around it."""

    def __init__(self) -> None:
        self._open: dict[str, asyncio.Event] = {}  # by flow id: is it explained?

    def expect(self, flow: HTTPFlow) -> None:
        """An explanation of this flow will come."""
        self._open[flow.id] = asyncio.Event()

    def explained(self, flow: HTTPFlow, explanation: Explanation) -> None:
        """Annotate a flow; what a person wrote there stays."""
        flow.metadata.update(explanation.as_data())
        flow.comment = flow.comment or f"toki: {explanation.comment}"
        flow.marked = flow.marked or explanation.mark
        if flow.id in self._open:
            self._open[flow.id].set()
        else:  # too late for the update that follows each hook
            ctx.master.addons.trigger(UpdateHook([flow]))

    async def response(self, flow: HTTPFlow) -> None:
        event = self._open.get(flow.id)
        if event is not None and not event.is_set() and ctx.options.save_stream_file:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(PATIENCE):
                    await event.wait()
        self._open.pop(flow.id, None)

    async def error(self, flow: HTTPFlow) -> None:
        await self.response(flow)
