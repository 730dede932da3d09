"""Clients that no one here wrote, unmodified, and a server that each of them asks both directly and through toki."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.live.forcing import TEMPLATE
from tests.live.wire import HOST
from tests.live.wire import Mitmdump
from tests.live.wire import ask
from tests.live.wire import mitmdump
from tests.live.wire import request
from tests.live.wire import until

import install
from servers import Flags
from servers import LlamaServer
from servers import start
from servers import tiny_model

HERE = Path(__file__).parent
PATIENCE = 300.0  # seconds for a client to come to its end, on a machine where each takes seconds to import
MAX_TOKENS = 48  # for clients that set no limit of their own


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.live)


@pytest.fixture(scope="session")
def installed() -> None:
    """The clients themselves. Only outside CI, and only the npm that can't be installed from here, may be missing."""
    if shutil.which("npm") is None and os.environ.get("CI") != "true":
        pytest.skip("npm is not installed")
    cache = install.ROOT / ".cache"
    cache.mkdir(exist_ok=True)
    with (cache / "clients.lock").open("w") as lock:  # one installation for all workers
        fcntl.flock(lock, fcntl.LOCK_EX)
        install.install_clients()


@pytest.fixture(scope="module")
def server() -> Iterator[LlamaServer]:
    with start(tiny_model(), Flags(n_parallel=2, n_ctx=8192, n_predict=MAX_TOKENS, chat_template=TEMPLATE)) as running:
        yield running


@pytest.fixture(scope="module")
def proxy(server: LlamaServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mitmdump]:
    """Before the server, which it knows already."""
    with mitmdump(server.port, tmp_path_factory.mktemp("proxy")) as running:
        until(lambda: known(running))
        yield running


def known(proxy: Mitmdump) -> bool:
    """Whether toki knows the server by the end of another request."""
    before = len(proxy.rows())
    body = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 2}
    answer = ask(proxy.port, request("/v1/chat/completions", json.dumps(body).encode()))
    assert answer.first.endswith("200 OK")
    until(lambda: len(proxy.rows()) > before)
    return bool(proxy.rows()[-1]["reason"] != "the server is not known yet")


@dataclass(frozen=True, slots=True)
class Sides:
    """Where a client asks: at the server itself, and through toki."""

    direct: str
    proxied: str
    proxy: Mitmdump

    def rows_of(self, count: int, work: Callable[[], Any]) -> tuple[Any, list[dict[str, Any]]]:
        """What `work` returns, and the rows of the `count` requests that it sent through toki."""
        before = len(self.proxy.rows())
        result = work()
        until(lambda: len(self.proxy.rows()) >= before + count)
        known(self.proxy)  # so that a row too many would be there
        *rows, _ = self.proxy.rows()[before:]
        assert len(rows) == count
        return result, rows


@pytest.fixture
def sides(installed: None, server: LlamaServer, proxy: Mitmdump) -> Sides:
    return Sides(server.url, f"http://{HOST}:{proxy.port}", proxy)


def run(command: Sequence[str | Path], home: Path, *, fails: bool = False, **environment: str) -> str:
    """What a client prints (to both streams), run with no setting of ours but those of `environment`."""
    kept = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
    ended = subprocess.run(
        [str(word) for word in command],
        cwd=home,
        env={**kept, "HOME": str(home), **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert (ended.returncode != 0) is fails, ended.stdout
    return ended.stdout
