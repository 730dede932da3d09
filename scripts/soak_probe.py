"""An addon beside toki, for soak.py: writes how many tasks, flows and, at rest, other objects live in the proxy to the
file `soak_probe`."""

from __future__ import annotations

import asyncio
import gc
import json
from pathlib import Path

from mitmproxy import ctx
from mitmproxy.addonmanager import Loader
from mitmproxy.http import HTTPFlow

EVERY = 0.5  # seconds
AT_REST = 4  # of these without a flow: then nothing is counted that belongs to one, nor what waits for the collector


class Probe:
    def __init__(self) -> None:
        self._flows: set[str] = set()
        self._task: asyncio.Task[None] | None = None
        self._idle = 0
        self._objects: int | None = None  # once the proxy is at rest

    def load(self, loader: Loader) -> None:
        loader.add_option("soak_probe", str, "", "Where the figures go.")

    def running(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._write())

    def request(self, flow: HTTPFlow) -> None:
        self._flows.add(flow.id)
        self._idle, self._objects = 0, None

    def response(self, flow: HTTPFlow) -> None:
        self._flows.discard(flow.id)

    def error(self, flow: HTTPFlow) -> None:
        self._flows.discard(flow.id)

    async def _write(self) -> None:
        while True:
            self._idle = 0 if self._flows else self._idle + 1
            if self._idle == AT_REST:
                gc.collect()
                self._objects = len(gc.get_objects())
            self._tell()
            await asyncio.sleep(EVERY)

    def _tell(self) -> None:
        told = {"tasks": len(asyncio.all_tasks()), "flows": len(self._flows), "objects": self._objects}
        partial = Path(f"{ctx.options.soak_probe}.partial")
        partial.write_text(json.dumps(told), encoding="utf-8")
        partial.replace(ctx.options.soak_probe)


addons = [Probe()]
