"""Every API shape before real servers: figures that an answer hides, and bodies that are broken, pass as they are."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from typing import Any

import pytest
from tests.live.wire import Message
from tests.live.wire import Mitmdump
from tests.live.wire import Relay
from tests.live.wire import ask
from tests.live.wire import messages
from tests.live.wire import mitmdump
from tests.live.wire import relay
from tests.live.wire import request
from tests.live.wire import until

from servers import BUILDS
from servers import Build
from servers import Flags
from servers import LlamaServer
from servers import start
from servers import tiny_model
from toki.endpoints import ENDPOINTS

pytestmark = pytest.mark.live

UNKNOWN = "the server is not known yet"
STEERED = rb'^(\s*)\{"id_slot":\d+,("cache_prompt":true,)?'
SAID = [{"role": "user", "content": "Say something about slots, please."}]
CHAT = {"messages": SAID, "max_tokens": 6, "temperature": 0}
TEXT = {"prompt": "Once upon a time in a slot", "temperature": 0}
BODIES: dict[str, dict[str, Any]] = {
    "/completion": {**TEXT, "n_predict": 6},
    "/completions": {**TEXT, "n_predict": 6},
    "/v1/completions": {**TEXT, "max_tokens": 6},
    "/v1/chat/completions": CHAT,
    "/chat/completions": CHAT,
    "/v1/messages": {**CHAT, "system": "Be brief."},
    "/v1/responses": {"input": "Say something about slots, please.", "max_output_tokens": 6, "temperature": 0},
    "/responses": {"input": SAID, "max_output_tokens": 6, "temperature": 0},
    "/infill": {"input_prefix": "def f(", "input_suffix": "):", "n_predict": 6, "temperature": 0},
}
STREAM = {"stream": True}
# What a client may say that changes which figures its answer shows; and those that toki then finds there.
HIDDEN: list[tuple[str, dict[str, Any], set[str]]] = [
    ("/completion", {}, {"reused", "evaluated", "slot", "reply_tokens"}),
    ("/completion", {"response_fields": ["content"]}, set()),
    ("/completion", {"response_fields": ["timings/cache_n", "timings/prompt_n"]}, {"reused", "evaluated"}),
    ("/completion", {"response_fields": ["id_slot"]}, {"slot"}),
    ("/completion", STREAM, {"reused", "evaluated", "slot", "reply_tokens"}),
    ("/completion", {"timings_per_token": True, "return_progress": True, **STREAM}, {"reused", "evaluated", "slot"}),
    ("/v1/completions", {}, {"reused", "evaluated", "reply_tokens"}),
    ("/v1/completions", {"verbose": True}, {"reused", "evaluated", "slot"}),
    ("/v1/completions", STREAM, {"reused", "evaluated", "reply_tokens"}),
    ("/v1/chat/completions", {}, {"reused", "evaluated", "reply_tokens"}),
    ("/v1/chat/completions", STREAM, {"reused", "evaluated", "reply_tokens"}),
    ("/v1/chat/completions", {"stream_options": {"include_usage": True}, **STREAM}, {"reused", "evaluated"}),
    ("/v1/chat/completions", {"stream_options": {"include_usage": False}, **STREAM}, {"reused", "evaluated"}),
    ("/v1/chat/completions", {"verbose": True, **STREAM}, {"reused", "evaluated", "slot"}),
    ("/v1/chat/completions", {"timings_per_token": True, "return_progress": True, **STREAM}, {"reused", "evaluated"}),
    ("/v1/messages", {}, {"reused", "evaluated", "reply_tokens"}),
    ("/v1/messages", STREAM, {"reused", "evaluated", "reply_tokens"}),
    ("/v1/messages", {"verbose": True, "timings_per_token": True, **STREAM}, {"reused", "evaluated"}),
    ("/v1/responses", {}, {"reused", "evaluated", "reply_tokens"}),
    ("/v1/responses", STREAM, {"reused", "evaluated", "reply_tokens"}),
    ("/v1/responses", {"verbose": True, "return_progress": True, **STREAM}, {"reused", "evaluated"}),
]
BROKEN = [
    b"", b"{", b"[]", b"null", b"{}", b"\xff\xfe", b"\xef\xbb\xbf{}", b'{"stream": 5}', b'{"prompt": NaN}',
    b'{"messages": 5, "prompt": {}, "input": 5, "input_prefix": 5}',
    b'{"messages": [5], "prompt": [{}], "input": [5], "input_prefix": [5]}',
    b'{"messages": [{"role": "user", "content": [{"type": "odd"}]}], "prompt": [[[]]], "input": [{"type": "odd"}]}',
    b'{"messages": [], "prompt": [], "input": [], "temperature": "warm"}',
]  # fmt: skip


@pytest.fixture(scope="module", params=BUILDS)
def server(request: pytest.FixtureRequest) -> Iterator[LlamaServer]:
    build: Build = request.param
    with start(tiny_model(), Flags(n_parallel=2, n_ctx=4096), build) as running:
        yield running


@pytest.fixture(scope="module")
def wire(server: LlamaServer) -> Iterator[Relay]:
    with relay(server.port) as running:
        yield running


@pytest.fixture(scope="module")
def proxy(wire: Relay, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mitmdump]:
    with mitmdump(wire.port, tmp_path_factory.mktemp("proxy")) as running:

        def known() -> bool:
            return bool(served(running, "/completion", b'{"prompt": "Hello", "n_predict": 1}')[1]["reason"] != UNKNOWN)

        until(known)
        yield running


def served(proxy: Mitmdump, path: str, sent: bytes) -> tuple[Message, dict[str, Any]]:
    """The answer that came through toki, and the row of its request."""
    before = len(proxy.rows("id"))
    answer = ask(proxy.port, request(path, sent))
    until(lambda: len(proxy.rows("id")) > before)
    return answer, proxy.rows()[before]


def arrived(wire: Relay, path: str) -> list[bytes]:
    """The bodies that the server was sent for clients, those without toki's two keys that have them. Of toki's own
    requests there may be one at any time: it tries a lever before its first use."""
    sent = [message for message in wire.requests(path) if b"\r\nuser-agent: toki\r\n" not in message.head.lower()]
    return [re.sub(STEERED, rb"\1{", message.body) for message in sent]


def heads(message: Message) -> list[bytes]:
    return [re.sub(rb"(?i)^content-length:.*", b"content-length", line) for line in message.head.split(b"\r\n")]


def test_these_are_all_routes() -> None:
    assert set(BODIES) == {endpoint.name for endpoint in ENDPOINTS}


@pytest.mark.parametrize(("path", "more", "shown"), HIDDEN)
def test_figures_are_read_where_they_are_and_nothing_more_is_asked_for(
    proxy: Mitmdump, wire: Relay, path: str, more: dict[str, Any], shown: set[str]
) -> None:
    sent = json.dumps(BODIES[path] | more).encode()
    asked, passed = len(wire.requests(path)), len(wire.passed)
    answer, row = served(proxy, path, sent)
    assert arrived(wire, path)[asked:] == [sent]
    assert row["status"] == 200
    assert answer in [each for one in wire.passed[passed:] for each in messages(one.answers)]
    figures = {"reused", "evaluated", "slot", "reply_tokens"}
    found = {name for name in figures if row[name] is not None}
    assert shown <= found
    assert shown or not found
    assert (row["outcome"] == "unknown") is ("reused" not in found)
    until(lambda: f"{path} " in proxy.log and row["reason"] in proxy.log)  # the row may be there before the line


@pytest.mark.parametrize("path", BODIES)
def test_broken_bodies_get_the_servers_own_errors(server: LlamaServer, proxy: Mitmdump, wire: Relay, path: str) -> None:
    asked = len(arrived(wire, path))
    for sent in BROKEN:
        direct = ask(server.port, request(path, sent))
        answer, row = served(proxy, path, sent)
        assert heads(answer) == heads(direct)
        if row["status"] != 200:
            assert answer.body == direct.body
        assert (row["endpoint"], row["reason"] != "") == (path, True)
    assert arrived(wire, path)[asked:] == BROKEN
    assert "Traceback" not in proxy.log


def mutated(data: bytes, chance: random.Random) -> bytes:
    """`data` with a few bytes or spans deleted, inserted, changed or repeated."""
    made = bytearray(data)
    for _ in range(chance.randint(1, 3)):
        at, to = sorted((chance.randrange(len(made) + 1), chance.randrange(len(made) + 1)))
        match chance.randrange(5):
            case 0:
                del made[at : at + chance.randint(1, 4)]
            case 1:
                made[at:at] = bytes(chance.choices(b'{}[]",:\\0tfn \xc3\x00\xff', k=chance.randint(1, 3)))
            case 2 if at < len(made):
                made[at] = chance.randrange(256)
            case 3:
                made[at:at] = made[at:to][:20]
            case _:
                del made[to:]
        made = made or bytearray(b"{}")
    return bytes(made)


@pytest.mark.parametrize("path", BODIES)
def test_fuzzed_bodies_pass_unmodified(server: LlamaServer, proxy: Mitmdump, wire: Relay, path: str) -> None:
    chance = random.Random(f"{path} {server.build}")
    body = json.dumps(BODIES[path]).encode()
    asked = len(arrived(wire, path))
    fuzzed = [mutated(body, chance) for _ in range(25)]
    for sent in fuzzed:
        direct = ask(server.port, request(path, sent))
        answer = ask(proxy.port, request(path, sent))
        assert answer.first == direct.first
        if not direct.first.endswith("200 OK"):
            assert (heads(answer), answer.body) == (heads(direct), direct.body)
    assert arrived(wire, path)[asked:] == fuzzed
    assert "Traceback" not in proxy.log
