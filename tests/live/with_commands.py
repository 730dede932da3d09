"""toki with one more addon beside it, which runs toki's commands: mitmdump has no prompt to type at.

A request of /commands names a directory; what the commands say is there when it is answered.
"""

from __future__ import annotations

import json
import runpy
from pathlib import Path

from mitmproxy import ctx
from mitmproxy import http

ROOT = Path(__file__).resolve().parent.parent.parent


class Runner:
    def __init__(self) -> None:
        self._seen: list[http.HTTPFlow] = []

    def requestheaders(self, flow: http.HTTPFlow) -> None:
        if not flow.request.path.startswith("/commands"):
            self._seen.append(flow)
            return
        where = Path(flow.request.query["where"])
        call = ctx.master.commands.call
        said = {
            "status": call("toki.status"),
            "slots": call("toki.slots"),
            "explain": call("toki.explain", self._seen),
        }
        call("toki.export", str(where / "export.json"))
        call("toki.forget")
        said["afterwards"] = call("toki.status")
        (where / "said.json").write_text(json.dumps(said))
        flow.response = http.Response.make(200, b"{}")


addons = [*runpy.run_path(str(ROOT / "toki_addon.py"))["addons"], Runner()]
