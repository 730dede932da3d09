"""What stands between the clients and the server: nothing, mitmdump without toki, toki, or callo.

callo has a virtual environment of its own.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event
from threading import Lock
from threading import Timer
from typing import TypeAlias

import requests

from proxy import mitmdump
from proxy import rows_of
from servers import CACHE
from servers import HOST
from servers import LlamaServer
from servers import free_port

CALLO = "callo==0.3.1"
PATIENCE = 60.0  # seconds for callo to start: it asks the model some questions first
INSTALLING = Lock()  # one job at a time
Steered: TypeAlias = Mapping[str, int]


class NotThere(RuntimeError):
    """A side can't be measured here; the text says why in plain words."""


@dataclass(frozen=True, slots=True)
class Side:
    """Where clients send to; `steered(n)`, after n requests, tells how often which action was taken."""

    url: str
    steered: Callable[[int], Steered]


@contextmanager
def in_time(server: LlamaServer, seconds: float) -> Iterator[None]:
    """Kill the server where the block takes longer, and raise NotThere for whatever came of that.

    A pin to a busy slot can leave a server evaluating for ever, and its clients waiting.
    """
    late = Event()

    def give_up() -> None:
        late.set()
        server.kill()

    timer = Timer(seconds, give_up)
    timer.start()
    try:
        yield
    except (OSError, HTTPException) as error:
        if late.is_set():
            raise NotThere(f"not done after {seconds:.0f} s, the server answers no more") from error
        raise
    finally:
        timer.cancel()


@contextmanager
def side(name: str, server: LlamaServer, model: Path) -> Iterator[Side]:
    """The side `name` in front of a server. Raises NotThere where it does not run, or breaks."""
    match name:
        case "alone":
            yield Side(server.url, lambda _: {})
        case "mitmdump":
            with mitmdump(server.url, script=None) as proxy:
                yield Side(proxy.url, lambda _: {})
        case "callo":
            with _callo(server, model) as url:
                yield Side(url, lambda _: {})
        case mode:
            with mitmdump(server.url, options={"toki_mode": mode}) as proxy:

                def steered(sent: int) -> Steered:
                    if "the engine failed" in proxy.said():
                        raise NotThere(f"toki's engine failed:\n{proxy.said()[-3000:]}")
                    counts = Counter(str(row["action"]) for row in rows_of(proxy.db, sent))
                    del counts["passed"]
                    return dict(sorted(counts.items()))

                yield Side(proxy.url, steered)


@contextmanager
def _callo(server: LlamaServer, model: Path) -> Iterator[str]:
    command = [_callo_command(), "serve", "--host", HOST, "--s1-slots", "1"]
    port = free_port()
    with TemporaryDirectory(prefix="bench-callo-") as directory:
        log = Path(directory) / "log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [*command, "--upstream", server.url, "--port", str(port), "--gguf", str(model)],
                cwd=directory,
                env={name: value for name, value in os.environ.items() if not name.upper().endswith("_PROXY")},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        try:
            _wait_until_healthy(process, f"http://{HOST}:{port}", log)
            yield f"http://{HOST}:{port}"
        finally:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(5)
            process.kill()
            process.wait()


def _wait_until_healthy(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    deadline = time.monotonic() + PATIENCE
    with requests.Session() as session:
        session.trust_env = False
        while process.poll() is None and time.monotonic() < deadline:
            with contextlib.suppress(requests.RequestException):
                if session.get(f"{url}/health", timeout=5).status_code == 200:
                    return
            time.sleep(0.05)
    last = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1:]
    raise NotThere(f"callo does not start: {last[0] if last else 'it printed nothing'}")


def _callo_command() -> str:
    """callo's console script, installed from PyPI at first use."""
    directory = CACHE / CALLO.replace("==", "-")
    command = directory / "bin" / "callo"
    with INSTALLING:
        if command.exists():
            return str(command)
        pip = [str(directory / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        for step in ([sys.executable, "-m", "venv", str(directory)], [*pip, CALLO]):
            done = subprocess.run(step, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                raise NotThere(f"{CALLO} can't be installed: {(done.stderr.strip().splitlines() or ['?'])[-1]}")
    return str(command)
