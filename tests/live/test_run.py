"""`make run` as a newcomer meets it: a process of its own, a first request through it, and Ctrl-C."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests
from tests.answering import Answering
from tests.answering import answering
from tests.live.conftest import Llama

from servers import free_port

ROOT = Path(__file__).resolve().parents[2]
OURS = re.compile(r'File ".*(addon/toki|scripts)/')  # a traceback through this project
HELLO = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}


@contextlib.contextmanager
def running(tmp_path: Path, usual: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """scripts/run.py in a process of its own, with `usual` as the address where it looks for a llama-server."""
    program = f"import run, sys; run.USUAL = {usual!r}; sys.exit(run.main())"
    paths = os.pathsep.join([str(ROOT / "addon"), str(ROOT / "scripts")])
    with subprocess.Popen(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": paths, "XDG_STATE_HOME": str(tmp_path), **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=tmp_path,
    ) as process:
        limit = threading.Timer(60, process.kill)
        limit.start()
        try:
            yield process
        finally:
            limit.cancel()
            process.kill()


def printed_until(process: subprocess.Popen[str], words: str) -> str:
    """What the process prints up to the line with `words`, or to its end."""
    assert process.stdout
    lines = []
    for line in process.stdout:
        lines.append(line)
        if words in line:
            break
    return "".join(lines)


def test_before_a_server_that_is_there(llama: Llama, tmp_path: Path) -> None:
    server = llama(n_parallel=2, n_ctx=2048)
    port = free_port()
    with running(tmp_path, "http://127.0.0.1:1", LLAMA_URL=server.url, PORT=str(port)) as process:
        printed = printed_until(process, "listening at")
        assert f"export OPENAI_BASE_URL=http://127.0.0.1:{port}/v1\n" in printed
        assert f"export ANTHROPIC_BASE_URL=http://127.0.0.1:{port}\n" in printed
        assert f"curl http://127.0.0.1:{port}/v1/chat/completions" in printed
        assert "embedded" not in printed
        answer = requests.post(f"http://127.0.0.1:{port}/v1/chat/completions", json=HELLO, timeout=30)
        assert answer.json()["usage"]["completion_tokens"] == 4
        process.send_signal(signal.SIGINT)
        rest = printed_until(process, "\0")
        assert process.wait() == 0, rest
        # asyncio may print a traceback of its own for a connection that was open (mended in later Pythons).
        assert not OURS.search(rest), rest
    assert server.running, "not started here, so not ended here"


def test_with_the_embedded_server(tmp_path: Path) -> None:
    port = free_port()
    nothing = f"http://127.0.0.1:{free_port()}"
    with running(tmp_path, nothing, PORT=str(port)) as process:
        printed = printed_until(process, "listening at")
        embedded = re.search(r"embedded llama-server \(SmolLM2-135M-Instruct\): (http://\S+)", printed)
        assert embedded, printed
        assert f"{nothing}: nothing answers there." in printed
        answer = requests.post(f"http://127.0.0.1:{port}/v1/chat/completions", json=HELLO, timeout=30)
        assert answer.json()["usage"]["completion_tokens"] == 4
        process.send_signal(signal.SIGTERM)
        rest = printed_until(process, "\0")
        assert process.wait() == 0, rest
        with pytest.raises(requests.ConnectionError):
            requests.get(f"{embedded[1]}/health", timeout=5)


def test_ended_while_it_starts(tmp_path: Path) -> None:
    with running(tmp_path, f"http://127.0.0.1:{free_port()}", PORT=str(free_port())) as process:
        printed_until(process, "Starting an embedded llama-server")
        process.send_signal(signal.SIGTERM)
        rest = printed_until(process, "\0")
        assert process.wait() == 0, rest
        assert not OURS.search(rest), rest


def test_nothing_at_llama_url(tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    with running(tmp_path, url, LLAMA_URL=url) as process:
        assert printed_until(process, "\0") == f"LLAMA_URL={url}: nothing answers there\n"
        assert process.wait() == 2


class Other(Answering):
    """Some web server that is no llama-server."""

    def do_GET(self) -> None:
        self.answer(200, b"<html>" if self.path.startswith("/page") else b'["json"]')


@pytest.mark.parametrize("path", ["/page", ""])
def test_something_else_at_llama_url(tmp_path: Path, path: str) -> None:
    with answering(Other) as port:
        url = f"http://127.0.0.1:{port}{path}"
        with running(tmp_path, url, LLAMA_URL=url) as process:
            assert printed_until(process, "\0") == f"LLAMA_URL={url}: what answers there is no llama-server\n"
            assert process.wait() == 2


def test_a_bad_port(llama: Llama, tmp_path: Path) -> None:
    server = llama(n_parallel=2, n_ctx=2048)
    with running(tmp_path, server.url, LLAMA_URL=server.url, PORT="many") as process:
        assert "many" in printed_until(process, "\0")
        assert process.wait() == 2
