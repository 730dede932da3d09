"""Clients and servers that send anything at all, through everything that reads them, up to the engine.

`pytest --hypothesis-profile=long tests/test_hostile.py` tries for some minutes.
"""

from __future__ import annotations

import asyncio
import copy
import gzip
import json
import logging
from collections.abc import Iterator
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from hypothesis import HealthCheck
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
from tests.scripted import Scripted
from tests.scripted import scripted
from tests.scripted import until
from tests.test_exchange import SETTINGS

from toki import endpoints
from toki import splice
from toki.complaints import Complaints
from toki.endpoints import ENDPOINTS
from toki.engine.events import Mode
from toki.exchange import Exchange
from toki.schema import Check
from toki.schema import Found
from toki.schema import Row
from toki.server import Auth
from toki.server import LlamaServerBackend
from toki.upstream import Upstream


def deep() -> Any:
    return json.loads("[" * 400 + "]" * 400)


NUMBERS = [0, 1, -1, 3, 4096, 2**31 - 1, 2**31, 2**53, 2**63, -(2**63), 10**30, 0.5, 1e308, float("nan"), float("inf")]
TEXTS = [
    *("", "x", "\\", "\0", "\ud800", "\u202e\x1b[31m", "é" * 300, "<script>", "'; DROP TABLE requests; --", "1e999"),
    *("assistant", "user", "tool", "stream", "text", "image_url", "data:image/png;base64,AAAA", "<|im_start|>"),
]
LEAVES: st.SearchStrategy[Any] = (
    st.sampled_from([None, True, False, *NUMBERS, *TEXTS]) | st.builds(list) | st.builds(dict) | st.builds(deep)
)
TREES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(TEXTS), inner, max_size=3)
)
WORDS = "In the beginning there was a slot, and it was empty. "
SAID = [
    {"role": "system", "content": "You are here since 2026-11-30 11:12:13. " + WORDS * 8},
    {"role": "user", "content": [{"type": "text", "text": WORDS * 3}]},
    {
        "role": "assistant",
        "content": "Yes.",
        "tool_calls": [{"id": "c1", "function": {"name": "f", "arguments": "{}"}}],
    },
    {"role": "tool", "tool_call_id": "c1", "content": "42"},
    {"role": "user", "content": "And then?"},
]
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
BODIES: dict[str, dict[str, Any]] = {
    "/completion": {"prompt": WORDS * 9, "n_predict": 4, "lora": [{"id": 0, "scale": 0.5}], "id_slot": 1},
    "/v1/completions": {"prompt": [1, 2, "three", 4], "max_tokens": 4, "n": 2},
    "/v1/chat/completions": {"messages": SAID, "tools": [TOOL], "stream": True, "model": "m"},
    "/v1/messages": {
        "system": [{"type": "text", "text": WORDS * 5}],
        "messages": [{"role": "user", "content": [{"type": "text", "text": WORDS}]}],
        "tools": [{"name": "f", "input_schema": {"type": "object"}}],
        "max_tokens": 9,
    },
    "/v1/responses": {"input": [{"role": "user", "content": [{"type": "input_text", "text": WORDS * 6}]}]},
    "/infill": {"input_prefix": "def f(", "input_suffix": "):", "input_extra": [{"text": "x"}]},
}
FIGURES: list[Mapping[str, Any]] = [
    {"id_slot": 1, "tokens_evaluated": 60, "stop": True, "timings": {"cache_n": 20, "prompt_n": 40, "prompt_ms": 9.5}},
    {"usage": {"prompt_tokens": 60, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 9}}},
    {"type": "message_delta", "usage": {"input_tokens": 30, "cache_read_input_tokens": 30, "output_tokens": 3}},
    {"choices": [{"index": 0, "delta": {"content": "so"}, "message": {"content": "so it goes"}}]},
    {"error": {"code": 400, "message": "slot"}},
]
SERVER: dict[str, Any] = {
    "/props": {
        "total_slots": 3,
        "default_generation_settings": {"n_ctx": 4096},
        "build_info": "b1-test",
        "model_path": "/models/test.gguf",
        "chat_template": "{{ messages }}",
        "bos_token": "<s>",
        "modalities": {"vision": True},
        "media_marker": "<__media__>",
        "role": "model",
    },
    "/slots": [
        {"id": n, "n_ctx": 4096, "is_processing": n == 2, "id_task": n, "n_prompt_tokens": 40} for n in range(3)
    ],
    "/tokenize": {"tokens": list(range(60))},
    "/apply-template": {"prompt": WORDS * 12},
    "/running": {"running": [{"model": "m", "state": "ready", "cmd": "llama-server -np 2"}]},
    "/v1/models": {"data": [{"id": "m", "aliases": ["n"], "status": {"args": ["llama-server", "-np", "2"]}}]},
    "/v1/messages/count_tokens": {"input_tokens": 60},
    "/v1/responses/input_tokens": {"input_tokens": 60},
    "/completion": FIGURES[0],
}


OFF = {"/running", "/v1/models"}  # what an honest llama-server does not have, or is not asked for


def nodes(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The places of everything in a JSON value."""
    yield at
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in list(inside)[:20]:
        yield from nodes(inner, (*at, key))


@st.composite
def damaged(draw: st.DrawFn, honest: Any) -> Any:
    """`honest` with up to three of its values replaced, removed, or repeated."""
    made = copy.deepcopy(honest)
    for _ in range(draw(st.integers(0, 3))):
        *way, last = draw(st.sampled_from([each for each in nodes(made) if each] or [(None,)]))
        if last is None:
            return draw(TREES)
        holder = made
        for step in way:
            holder = holder[step]
        match draw(st.integers(0, 3)):
            case 0:
                del holder[last]
            case 1 if isinstance(holder, list):
                holder[last:last] = [holder[last]] * draw(st.integers(1, 40))
            case _:
                holder[last] = draw(TREES)
    return made


@st.composite
def requests(draw: st.DrawFn) -> tuple[str, bytes]:
    """A path and a body."""
    path = draw(st.sampled_from(sorted(BODIES)))
    body = json.dumps(draw(damaged(BODIES[path])), ensure_ascii=draw(st.booleans())).encode(errors="surrogatepass")
    at = draw(st.integers(0, len(body)))
    noise = draw(st.just(b"") | st.binary(max_size=3) | st.sampled_from([b',"id_slot":1,', b"{", b"1e999", b"\\ud800"]))
    return path, body[:at] + noise + body[at:]


ANSWERS = st.tuples(
    st.sampled_from([200, 200, 200, 400, 401, 404, 500, 503]),
    st.sampled_from(["application/json", "text/event-stream", "", "text/event-stream; x"]),
    st.sampled_from(["", "gzip", "br", "identity"]),
    st.lists(st.sampled_from(FIGURES).flatmap(damaged), min_size=1, max_size=3),
)
LIES = st.fixed_dictionaries(
    {}, optional={path: st.tuples(st.sampled_from([200, 200, 200, 404, 500]), damaged(SERVER[path])) for path in SERVER}
)


class Faultless(Complaints):
    """Faults of toki's own fail the test; what a server or a client does wrong may be told."""

    def __init__(self) -> None:
        super().__init__(logging.getLogger("test"))
        self.faults: list[BaseException] = []

    def fault(self, kind: str, text: str, error: BaseException) -> None:
        self.faults.append(error)
        super().fault(kind, text, error)


@pytest.fixture(scope="module")
def script() -> Iterator[Scripted]:
    with scripted() as script:
        yield script


@pytest.fixture(scope="module")
def executor() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as executor:
        yield executor


def answered(answer: tuple[int, Any], *_: object) -> tuple[int, Any]:
    return answer


@contextmanager
def lying(script: Scripted, lies: Mapping[str, tuple[int, Any]]) -> Iterator[None]:
    before = dict(script.answers)
    said: dict[str, tuple[int, Any]] = {path: (200, SERVER[path]) for path in SERVER if path not in OFF}
    said |= lies
    script.answers = {path: partial(answered, answer) for path, answer in said.items()}
    try:
        yield
    finally:
        script.answers = before


def bytes_of(answer: tuple[int, str, str, list[Any]]) -> bytes:
    _, kind, coding, chunks = answer
    events = [
        f"data: {json.dumps(chunk)}\n\n" if kind.startswith("text/event") else json.dumps(chunk) for chunk in chunks
    ]
    content = "".join(events).encode()
    return gzip.compress(content) if coding == "gzip" else content


@settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large], deadline=None)
@given(
    lies=LIES,
    traffic=st.lists(st.tuples(requests(), ANSWERS, st.booleans()), min_size=1, max_size=4),
    mode=st.sampled_from([Mode.AUTO, Mode.PIN, Mode.OBSERVE]),
    key=st.sampled_from([None, "Bearer k", "Bearer \udcff\udc80", "x\ty"]),
)
@pytest.mark.slow
def test_nothing_upsets_toki(
    lies: Mapping[str, tuple[int, Any]],
    traffic: list[tuple[tuple[str, bytes], tuple[int, str, str, list[Any]], bool]],
    mode: Mode,
    key: str | None,
    script: Scripted,
    executor: ThreadPoolExecutor,
) -> None:
    """Each body leaves as it came or with the two keys, each request has its row, and nothing inside toki fails."""
    rows: list[Row | Found | Check] = []
    complaints = Faultless()

    async def serve() -> None:
        backend = LlamaServerBackend(script.url)
        upstream = Upstream(script.url, backend, replace(SETTINGS, mode=mode), rows.append, executor, complaints)
        for number, ((path, sent), answer, leaves) in enumerate(traffic):
            endpoint = endpoints.match("POST", path)
            assert endpoint is not None
            exchange = Exchange(number, endpoint, sent, "", Auth(key), upstream, "client")
            body = await exchange.hold()
            if body is not None:
                read = splice.parse(sent, None)
                assert body in [
                    splice.steer(sent, read, slot) for slot in range(4096) if b'"id_slot":%d,' % slot in body
                ]
            exchange.began(answer[0], answer[1], answer[2])
            exchange.heard(bytes_of(answer))
            if leaves:
                exchange.broke(sent=True, client_left=True)
            else:
                exchange.ended()
        await until(lambda: sum(isinstance(row, Row) for row in rows) == len(traffic))
        upstream.close()
        await asyncio.sleep(0)

    with lying(script, lies):
        asyncio.run(serve())
    assert not complaints.faults


# --- single readers ---


@pytest.mark.parametrize(
    "content",
    [
        b"[" * 10_000 + b"]" * 10_000,
        b'{"prompt":' * 10_000 + b"1" + b"}" * 10_000,
        b'{"prompt":"' + b"x" * 100_000_000 + b'"}',
        b'{"a":1,' * 10_000 + b'"prompt":"x"' + b"}",
        b'{"prompt":' + b"9" * 100_000 + b"}",
        b'{"prompt":"' + b"\\ud800" * 100_000 + b'"}',
    ],
    ids=["levels", "objects", "100 MB", "unclosed", "digits", "surrogates"],
)
def test_bodies_of_odd_sizes_are_read_or_refused(content: bytes) -> None:
    try:
        body = splice.parse(content, None)
    except splice.Unsteerable:
        return
    for endpoint in ENDPOINTS:
        endpoint.read(body)
