"""`toki_ping_s` before a real server that is silent for a while: a stream hears pings, and nothing else changes."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import pytest
from tests.live.forcing import TEMPLATE
from tests.live.test_sdks import CALLS
from tests.live.test_sdks import KEY
from tests.live.test_sdks import Sdks
from tests.live.test_sdks import sdks
from tests.live.test_sdks import shown
from tests.live.wire import HOST
from tests.live.wire import PATIENCE
from tests.live.wire import Client
from tests.live.wire import Mitmdump
from tests.live.wire import mitmdump
from tests.live.wire import request

from servers import Flags
from servers import LlamaServer
from servers import start
from servers import tiny_model
from toki.relay import PING

pytestmark = [pytest.mark.live, pytest.mark.proxy]

TOO_LONG: Any = [{"role": "user", "content": "and on " * 4000}]
STREAMED = ["chat, streamed", "text, streamed", "responses, streamed", "messages, streamed", "chat, a tool, streamed"]


@pytest.fixture(scope="module")
def server() -> Iterator[LlamaServer]:
    with start(tiny_model(), Flags(n_parallel=1, n_ctx=4096, chat_template=TEMPLATE)) as running:
        yield running


@pytest.fixture(scope="module")
def proxy(server: LlamaServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mitmdump]:
    port = server.port
    with mitmdump(port, tmp_path_factory.mktemp("proxy"), toki_ping_s="1") as running:
        yield running


class Listening(httpx.HTTPTransport):
    """Notes the bytes of the answers that an SDK reads."""

    def __init__(self) -> None:
        super().__init__()
        self.heard = b""
        self.pinged = threading.Event()

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        response = super().handle_request(request)
        response.stream = _Heard(response.stream, self)
        return response


class _Heard(httpx.SyncByteStream):
    def __init__(self, stream: Any, to: Listening) -> None:
        self._stream = stream
        self._to = to

    def __iter__(self) -> Iterator[bytes]:
        for piece in self._stream:
            self._to.heard += piece
            if PING in self._to.heard:
                self._to.pinged.set()
            yield piece

    def close(self) -> None:
        self._stream.close()


@pytest.fixture
def listening() -> Listening:
    return Listening()


@pytest.fixture
def proxied(proxy: Mitmdump, listening: Listening) -> Iterator[Sdks]:
    url = f"http://{HOST}:{proxy.port}"
    with httpx.Client(transport=listening, timeout=PATIENCE) as http:
        yield Sdks(
            openai.OpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0, http_client=http),
            anthropic.Anthropic(base_url=url, api_key=KEY, max_retries=0, http_client=http),
        )


@contextmanager
def paused(server: LlamaServer, listening: Listening) -> Iterator[None]:
    """The server is silent until the first ping is heard."""

    def resume() -> None:
        listening.pinged.wait(PATIENCE)
        os.kill(server.pid, signal.SIGCONT)

    os.kill(server.pid, signal.SIGSTOP)
    resuming = threading.Thread(target=resume)
    resuming.start()
    try:
        yield
    finally:
        listening.pinged.set()
        resuming.join()


@pytest.mark.parametrize("name", STREAMED)
def test_an_sdk_hears_pings_and_gets_its_answer(
    name: str, server: LlamaServer, proxied: Sdks, listening: Listening
) -> None:
    direct = sdks(server.port)
    with paused(server, listening):
        answer = shown(CALLS[name](proxied))
    assert listening.heard.startswith(PING)
    assert answer == shown(CALLS[name](direct))
    listening.heard = b""
    assert shown(CALLS[name](proxied)) == answer
    assert PING not in listening.heard, "the server answered at once"


def test_openai_raises_an_error_that_comes_late(server: LlamaServer, proxied: Sdks, listening: Listening) -> None:
    with paused(server, listening), pytest.raises(openai.APIError, match="context"):
        list(proxied.openai.chat.completions.create(model="tiny", messages=TOO_LONG, stream=True))
    assert listening.pinged.is_set()


def test_anthropic_raises_an_error_that_comes_late(server: LlamaServer, proxied: Sdks, listening: Listening) -> None:
    with paused(server, listening), pytest.raises(anthropic.APIError, match="context"):
        list(proxied.anthropic.messages.create(model="tiny", messages=TOO_LONG, stream=True, max_tokens=4))
    assert listening.pinged.is_set()


def test_without_a_stream_there_is_nothing_to_ping(server: LlamaServer, proxy: Mitmdump) -> None:
    with Client(proxy.port) as client:
        client.send(request("/completion", b'{"prompt":"B","n_predict":4}'))
        assert client.answer().first.endswith("200 OK")


@pytest.mark.parametrize("mode", ["observe", "off"])
def test_a_stream_that_was_not_held_hears_pings_too(server: LlamaServer, tmp_path: Path, mode: str) -> None:
    port = server.port
    with mitmdump(port, tmp_path / mode, toki_ping_s="1", toki_mode=mode) as proxy, Client(proxy.port) as client:
        os.kill(server.pid, signal.SIGSTOP)
        try:
            client.send(request("/completion", b'{"prompt":"D","n_predict":4,"stream":true}'))
            client.receive_until(PING)
        finally:
            os.kill(server.pid, signal.SIGCONT)
        client.receive_until(b'"stop":true')


def test_a_client_that_leaves_while_it_hears_pings(server: LlamaServer, proxy: Mitmdump, listening: Listening) -> None:
    with paused(server, listening):
        with Client(proxy.port) as client:
            client.send(request("/completion", b'{"prompt":"C","model":"left","n_predict":-1,"stream":true}'))
            client.receive_until(PING)
        row = proxy.row_of("left")
    assert row["outcome"] == "unknown"
    assert row["first_byte_ms"] is None, "a ping is no answer"
    with Client(proxy.port) as client:
        client.send(request("/completion", b'{"prompt":"D","n_predict":4}'))
        assert client.answer().first.endswith("200 OK")
