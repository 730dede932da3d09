"""Starts mitmdump in front of a server, with toki or without, for the demo, the benchmarks and the accuracy check.

The proxy ends with its `with` block, and also when Python dies without saying goodbye.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from servers import HOST
from servers import ROOT
from servers import free_port
from servers import uninterrupted

ADDON = ROOT / "toki_addon.py"
READY = "toki: starts afresh"  # toki's first words, once its script is loaded
PATIENCE = 90.0  # seconds for mitmdump to start, and for it to end: a busy machine takes that long


@dataclass(frozen=True, slots=True)
class Proxy:
    """A running mitmdump. `db` is toki's database, `log` what it printed."""

    url: str
    pid: int
    db: Path
    log: Path

    def said(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")


@contextmanager
def mitmdump(
    upstream: str,
    *,
    script: Path | None = ADDON,
    options: Mapping[str, str] | None = None,
    beside: Sequence[Path] = (),
    program: str = "mitmdump",
) -> Iterator[Proxy]:
    """mitmdump, or another `program` of mitmproxy's, in reverse mode before `upstream` (a URL) on a free port of the
    loopback interface.

    `script` None: without toki. `beside`: more scripts. `options` are mitmproxy's and toki's, as `--set` takes them.
    Raises RuntimeError with what mitmdump printed where it does not start, or does not end when asked to.
    """
    with TemporaryDirectory(prefix="toki-proxy-") as name, contextlib.ExitStack() as stack:
        where = Path(name)
        port = free_port()
        proxy_settings = {"confdir": name, "flow_detail": "0", **({"toki_db": f"{name}/toki.db"} if script else {})}
        proxy_settings |= options or {}
        scripts = [*([script] if script else []), *beside]
        log = where / "mitmdump.log"
        with uninterrupted(), log.open("wb") as output:
            process = subprocess.Popen(
                command([f"reverse:{upstream}@{HOST}:{port}"], scripts, proxy_settings, program),
                cwd=where,
                env=environment(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C is ours to handle
            )
            stack.callback(_end, process)
        stack.enter_context(_dies_with_us(process.pid))
        db = Path(proxy_settings.get("toki_db", where / "toki.db"))
        proxy = Proxy(f"http://{HOST}:{port}", process.pid, db, log)
        _wait_until_ready(process, proxy, port, bool(script))
        yield proxy


def command(
    modes: Sequence[str], scripts: Sequence[Path], settings: Mapping[str, str], program: str = "mitmdump"
) -> list[str]:
    """The command line of one of mitmproxy's programs beside this Python."""
    words = [str(Path(sys.executable).with_name(program))]
    for mode in modes:
        words += ["--mode", mode]
    for script in scripts:
        words += ["--scripts", str(script)]
    for name, value in settings.items():
        words += ["--set", f"{name}={value}"]
    return words


def environment() -> dict[str, str]:
    """Ours without what would send mitmdump's own requests elsewhere, and without our own modules."""
    kept = {name: value for name, value in os.environ.items() if not name.upper().endswith("_PROXY")}
    kept.pop("PYTHONPATH", None)
    return kept | {"PYTHONUNBUFFERED": "1"}  # its log is read while it runs


def rows(db: Path, columns: str = "*", table: str = "requests") -> list[dict[str, Any]]:
    """toki's rows, oldest first; none where it has not written any yet."""
    if not db.exists():
        return []
    with contextlib.closing(sqlite3.connect(db)) as connection:
        connection.row_factory = sqlite3.Row
        try:
            return [dict(row) for row in connection.execute(f"SELECT {columns} FROM {table} ORDER BY id")]
        except sqlite3.OperationalError:  # the table is not there yet
            return []


def rows_of(db: Path, number: int) -> list[dict[str, Any]]:
    """The rows, once there are `number` of them. Raises TimeoutError where they do not come."""
    deadline = time.monotonic() + PATIENCE
    while len(found := rows(db)) < number:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{len(found)} rows in {db}, {number} expected")
        time.sleep(0.05)
    return found


@contextmanager
def _dies_with_us(pid: int) -> Iterator[None]:
    """Kill `pid` once our end of a pipe closes: the only sign of our death that needs no help from us."""
    watchdog = subprocess.Popen(
        ["/bin/sh", "-c", f"read -r _; kill -9 {pid} 2>/dev/null"], stdin=subprocess.PIPE, start_new_session=True
    )
    try:
        yield
    finally:
        watchdog.kill()
        watchdog.wait()
        assert watchdog.stdin
        watchdog.stdin.close()


def _wait_until_ready(process: subprocess.Popen[bytes], proxy: Proxy, port: int, with_toki: bool) -> None:
    deadline = time.monotonic() + PATIENCE
    while process.poll() is None:
        # The script is loaded in a task of its own, before or after the port is open.
        if not with_toki or READY in proxy.said():
            with contextlib.suppress(OSError), socket.create_connection((HOST, port), timeout=1):
                return
        if time.monotonic() > deadline:
            raise RuntimeError(f"mitmdump is not ready in time; it printed:\n{proxy.said()}")
        time.sleep(0.02)
    raise RuntimeError(f"mitmdump ended at its start; it printed:\n{proxy.said()}")


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ask it to end, insist after a while, and wait for the end."""
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(PATIENCE)
    process.kill()
    process.wait()
