"""What `test_modes.test_transparent_mode` runs in a network namespace of its own: `python transparent.py DIRECTORY`.

Packets for the server's port go to mitmdump instead, all but those of mitmdump's own group.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.live.wire import HOST
from tests.live.wire import Mitmdump
from tests.live.wire import mitmdump

from servers import Flags
from servers import start
from servers import tiny_model

GROUP = 4711  # of mitmdump; it needs no name
RULES = """
table ip toki {{
    chain output {{
        type nat hook output priority -100;
        oif lo tcp dport {server} meta skgid != {group} redirect to :{proxy}
    }}
}}
"""
BODY = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 40, "temperature": 0, "stream": True}


def curl(url: str, model: str) -> str:
    """An unmodified client: it is told the server's own address."""
    command = ["curl", "-sSN", f"{url}/v1/chat/completions", "-d", json.dumps(BODY | {"model": model})]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def text(events: str) -> str:
    chunks = [json.loads(line[6:]) for line in events.splitlines() if line.startswith("data: {")]
    return "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks if chunk["choices"])


def main(where: Path) -> None:
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    with start(tiny_model(), Flags(n_parallel=2, n_ctx=8192)) as server:
        wanted = text(curl(server.url, "direct"))
        os.setegid(GROUP)
        with mitmdump(0, where / "proxy", modes=[f"transparent@{HOST}:{{port}}"], toki_server=server.url) as proxy:
            os.setegid(0)
            rules = RULES.format(server=server.port, group=GROUP, proxy=proxy.port)
            subprocess.run(["nft", "-f", "-"], input=rules, text=True, check=True)
            check(proxy, server.url, wanted)


def check(proxy: Mitmdump, url: str, wanted: str) -> None:
    for number in range(4):
        assert text(curl(url, f"unaware {number}")) == wanted
        row = proxy.row_of(f"unaware {number}")
        assert (row["status"], row["stream"], row["reply_tokens"]) == (200, 1, 40), row
    assert row["reason"] != "the server is not known yet", row
    assert HOST in url


if __name__ == "__main__":
    main(Path(sys.argv[1]))
