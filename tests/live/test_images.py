"""Images before real servers: the text before one is known, each counts whole or not at all, whatever the shape."""

from __future__ import annotations

import base64
import json
import struct
import zlib
from collections.abc import Iterator
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import pytest
import requests
from tests.answering import Answering
from tests.answering import answering
from tests.live.wire import HOST
from tests.live.wire import Mitmdump
from tests.live.wire import Relay
from tests.live.wire import ask
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
from servers import tiny_projector
from toki.prompt import BEYOND

pytestmark = pytest.mark.live

FLAGS = Flags(n_parallel=3, n_ctx=12288, kv_unified=False, mmproj=str(tiny_projector()))
GIVEN = "--parallel 3"
SLOW = "10000"  # ms: a busy machine must not make toki pass a request unread
UNKNOWN = "the server is not known yet"
OPENINGS = [f"Look closely at what I show you, {who}, and tell me what it is. " * 4 for who in ("Ann", "Bob")]
SHAPES = ("/v1/chat/completions", "/v1/messages", "/v1/responses")

Json = dict[str, Any]
Part = str | bytes  # a text, or an image's data; a URL is told by Link


class Link(str):
    """An image that the server has to fetch."""

    __slots__ = ()


def picture(seed: int) -> bytes:
    """A small PNG of random colours."""
    random = Random(seed)
    width, height = random.randrange(8, 60), random.randrange(8, 60)

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    lines = b"".join(b"\0" + random.randbytes(3 * width) for _ in range(height))
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    body = chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(lines)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


def encoded(image: bytes) -> str:
    return base64.b64encode(image).decode()


def of_chat(part: Part) -> Json:
    match part:
        case Link():
            return {"type": "image_url", "image_url": {"url": part}}
        case bytes():
            return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{encoded(part)}"}}
    return {"type": "text", "text": part}


def of_messages(part: Part) -> Json:
    if isinstance(part, bytes):
        source = {"type": "base64", "media_type": "image/png", "data": encoded(part)}
        return {"type": "image", "source": source}
    return {"type": "text", "text": part}


def of_responses(part: Part) -> Json:
    if isinstance(part, bytes):
        return {"type": "input_image", "image_url": f"data:image/png;base64,{encoded(part)}"}
    return {"type": "input_text", "text": part}


def body(path: str, turns: list[list[Part]], answers: Sequence[str] = ()) -> Json:
    """A conversation in the words of a shape; every second message is an answer."""
    part = {"/v1/chat/completions": of_chat, "/v1/messages": of_messages, "/v1/responses": of_responses}[path]
    said: list[Json] = []
    for number, turn in enumerate(turns):
        said.append({"role": "user", "content": [part(each) for each in turn]})
        if number < len(answers):
            said.append(
                {"role": "assistant", "type": "message", "content": [{"type": "output_text", "text": answers[number]}]}
                if path == "/v1/responses"
                else {"role": "assistant", "content": answers[number]}
            )
    if path == "/v1/responses":
        return {"input": said, "max_output_tokens": 4, "temperature": 0}
    return {"messages": said, "max_tokens": 4, "temperature": 0}


def reply(path: str, answer: Json) -> str:
    match path:
        case "/v1/chat/completions":
            text = answer["choices"][0]["message"]["content"]
        case "/v1/messages":
            text = answer["content"][0]["text"]
        case _:
            text = answer["output"][0]["content"][0]["text"]
    assert isinstance(text, str)
    return text


def serve(proxy: Mitmdump, path: str, sent: Json) -> tuple[Json, Json]:
    """An answer and its row."""
    before = len(proxy.rows("id"))
    answer = ask(proxy.port, request(path, json.dumps(sent).encode()))
    until(lambda: len(proxy.rows("id")) > before)
    return json.loads(answer.body), proxy.rows()[before]


@dataclass(frozen=True, slots=True)
class Way:
    """A server that takes images, what passes before it, and toki."""

    server: LlamaServer
    wire: Relay
    proxy: Mitmdump


@pytest.fixture(scope="module", params=BUILDS)
def way(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Way]:
    build: Build = request.param
    where = tmp_path_factory.mktemp("proxy")
    with (
        start(tiny_model(), FLAGS, build) as server,
        relay(server.port) as wire,
        mitmdump(wire.port, where, toki_server_flags=GIVEN, toki_deadline_ms=SLOW) as proxy,
    ):
        until(lambda: serve(proxy, "/completion", {"prompt": "Hello", "n_predict": 1})[1]["reason"] != UNKNOWN)
        yield Way(server, wire, proxy)


@pytest.fixture
def pictures() -> Iterator[tuple[str, list[str]]]:
    """A server of images: its address, and the paths that were fetched."""
    fetched: list[str] = []

    class Handler(Answering):
        def do_GET(self) -> None:
            fetched.append(self.path)
            self.answer(200, picture(99), Content_Type="image/png")

    with answering(Handler) as port:
        yield f"http://{HOST}:{port}", fetched


def length(server: LlamaServer, text: str) -> int:
    sent = {"content": text, "add_special": True}
    return len(requests.post(f"{server.url}/tokenize", json=sent, timeout=10).json()["tokens"])


def test_images_are_predicted_whole_or_not_at_all(way: Way) -> None:
    opening, cat, dog = "Look closely at what I show you and tell me what it is. " * 5, picture(1), picture(2)
    for path in SHAPES:
        turns: list[list[Part]] = [[opening, cat, " and ", dog, "?"]]
        answer, row = serve(way.proxy, path, body(path, turns))
        assert row["predicted"] == row["reused"]
        turns.append([dog, "is this the second one?"])
        _, row = serve(way.proxy, path, body(path, turns, [reply(path, answer)]))
        assert row["predicted"] == row["reused"] > 60
        assert row["prompt_tokens"] == row["reused"] + row["evaluated"]
    chat = SHAPES[0]
    _, row = serve(way.proxy, chat, body(chat, [[opening, dog, " and ", cat, "?"]]))
    assert row["predicted"] == row["reused"] == length(way.server, f"<|im_start|>user\n{opening}")
    look_ups = [message for path in ("/apply-template", "/tokenize") for message in way.wire.requests(path)]
    assert not any(encoded(image)[-40:].encode() in message.body for message in look_ups for image in (cat, dog))


def test_random_conversations_with_images_are_predicted_and_steered(way: Way) -> None:
    random = Random(5)
    images = [picture(seed) for seed in range(10, 14)]
    kept: list[tuple[list[list[Part]], list[str]]] = [([], []) for _ in range(5)]
    before = len(way.proxy.rows("id"))
    for _ in range(40):
        path, (turns, answers) = random.choice(SHAPES), random.choice(kept)
        if len(turns) == 4:
            turns.clear()
            answers.clear()
        words = [" ".join(random.choices(OPENINGS[0].split(), k=20)) for _ in range(2)]
        turns.append([random.choice(OPENINGS), random.choice(images), *words, random.choice(images), "?"])
        answers.append(reply(path, serve(way.proxy, path, body(path, turns, answers))[0]))
    rows = way.proxy.rows()[before:]
    told = [row for row in rows if "tries whether" not in row["reason"]]
    assert [(row["predicted"], row["reused"]) for row in told if row["predicted"] != row["reused"]] == []
    assert {row["action"] for row in rows} > {"passed"}
    primers = [message for message in way.wire.requests("/completion") if b'"prompt": [' in message.body]
    assert all(max(json.loads(message.body)["prompt"]) < BEYOND for message in primers)


def test_images_in_a_bare_prompt_are_predicted_too(way: Way) -> None:
    marker = requests.get(f"{way.server.url}/props", timeout=10).json()["media_marker"]
    cat, dog = encoded(picture(21)), encoded(picture(22))
    text = f"Two pictures, told in some words: {marker} and {marker}, which differ."
    for number, images in enumerate(((cat, dog), (cat, dog), (cat, cat))):
        sent = {"prompt": {"prompt_string": f"{text} {number}", "multimodal_data": images}, "n_predict": 2}
        _, row = serve(way.proxy, "/completion", sent)
        assert (row["status"], row["prompt_tokens"]) == (200, row["reused"] + row["evaluated"])
        assert row["predicted"] == row["reused"]


def test_an_image_from_elsewhere_is_unknown_and_fetched_once(way: Way, pictures: tuple[str, list[str]]) -> None:
    url, fetched = pictures
    chat = SHAPES[0]
    _, row = serve(way.proxy, chat, body(chat, [["Look.", Link(f"{url}/far.png"), "What is it?"]]))
    assert (row["status"], row["action"], row["predicted"]) == (200, "passed", None)
    assert row["reason"] == "images whose length in tokens can't be had"
    assert fetched == ["/far.png"]


def test_a_bad_image_gets_the_servers_own_error(way: Way) -> None:
    chat = SHAPES[0]
    sent = json.dumps(body(chat, [["Look.", b"no picture", "?"]])).encode()
    direct, proxied = (ask(port, request(chat, sent)) for port in (way.wire.port, way.proxy.port))
    assert direct.first.split(" ")[1] == "400"
    assert proxied.body == direct.body
    assert "Traceback" not in way.proxy.log
