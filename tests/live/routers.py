"""A llama-server that starts others by model name. Of the two builds only one can."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import requests
from tests.live.wire import HOST
from tests.live.wire import until

from servers import free_port
from servers import llama_server_binary


@contextmanager
def routing(presets: str, where: Path) -> Iterator[str]:
    """The URL of a router for the models of `presets` (INI), none of which is loaded."""
    file = where / "models.ini"
    file.write_text(presets, encoding="utf-8")
    binary, port = llama_server_binary(), free_port()
    with subprocess.Popen(
        [str(binary), "--models-preset", str(file), "--host", HOST, "--port", str(port), "--device", "none"],
        env={**os.environ, "LD_LIBRARY_PATH": str(binary.parent)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        url = f"http://{HOST}:{port}"
        try:
            until(lambda: _healthy(url))
            yield url
        finally:
            process.terminate()  # ends its models too


def _healthy(url: str) -> bool:
    with contextlib.suppress(requests.RequestException):
        return requests.get(f"{url}/health", timeout=1).status_code == 200
    return False
