from __future__ import annotations

import asyncio
import json
import logging
import threading
import time
from collections.abc import Callable
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.scripted import Scripted
from tests.scripted import scripted
from tests.scripted import until

from toki import endpoints
from toki import exchange as module
from toki import splice
from toki import upstream as upstream_module
from toki.answer import AnswerReader
from toki.complaints import Complaints
from toki.counts import ENOUGH
from toki.engine.embedding import embed_prefix
from toki.engine.events import Action
from toki.engine.events import Answered
from toki.engine.events import Arrived
from toki.engine.events import Began
from toki.engine.events import Command
from toki.engine.events import Decision
from toki.engine.events import Event
from toki.engine.events import Gone
from toki.engine.events import Look
from toki.engine.events import Looked
from toki.engine.events import Measured
from toki.engine.events import Mode
from toki.engine.events import Outcome
from toki.engine.events import Read
from toki.engine.events import Record
from toki.engine.events import Replied
from toki.engine.events import Restarted
from toki.engine.events import Resume
from toki.engine.events import Send
from toki.engine.events import Wait
from toki.exchange import MUTE
from toki.exchange import ONWARD
from toki.exchange import Exchange
from toki.exchange import budget
from toki.schema import Check
from toki.schema import Found
from toki.schema import Row
from toki.server import Auth
from toki.server import LlamaServerBackend
from toki.settings import Isolate
from toki.settings import Settings
from toki.upstream import MOST_MODELS
from toki.upstream import Upstream
from toki.upstream import describe

AUTH = Auth("Bearer key", "other key")
PROMPT = "Once upon a time"
TOKENS = [ord(character) for character in PROMPT]
SETTINGS = Settings(
    servers=(),
    mode=Mode.AUTO,
    min_reuse=10,
    db=Path("/nowhere"),
    embed_url="",
    deadline_ms=5_000,
    keep_days=1,
    server_flags="",
    log_events="",
    ping_s=0,
    verify=0,
    text=False,
    token="",
    isolate=Isolate.OFF,
)


class Engine:
    """Notes its events and decides as the test says."""

    def __init__(self, mode: Mode, min_reuse: int) -> None:
        self.events: list[Event] = []
        self.steer: int | None = 2
        self.broken = False
        self.wants_tokens = mode in (Mode.AUTO, Mode.PIN)
        self.should_wait, self.endangered_at = False, -inf
        self.crowd = 64  # requests that are held from which on there are too many
        self.gone_on: set[int] = set()  # ended requests that others may go on from
        self.kept: list[Record] | None = None  # a list: records are kept back in it
        self.more: list[Command] = []
        self.waits: list[float] = []  # how long the next arrivals have to wait
        self.unread: set[int] = set()
        self.late: dict[int, Record] = {}  # of requests that ended before they were read

    def lets_go_on(self, key: int, at: float) -> bool:
        return key in self.gone_on

    def crowded(self, held: int) -> bool:
        return held >= self.crowd

    def handle(self, event: Event) -> list[Command]:
        if self.broken:
            raise RuntimeError("broken engine")
        self.events.append(event)
        if isinstance(event, Read):
            self.unread.discard(event.key)
            return [self.late.pop(event.key)] if event.key in self.late else []
        if isinstance(event, Arrived):
            if event.ask.tokens is None:
                self.unread.add(event.key)
            if self.waits and not event.ask.fixed:
                return [Wait(event.key, event.at + self.waits.pop(0))]
            steer = self.steer if event.ask.tokens is not None and not event.ask.fixed else None
            action = Action.PASSED if steer is None else Action.PINNED
            return [*self.more, Send(event.key, Decision(action, steer, steer, None, None, None, "as told"))]
        if isinstance(event, Answered | Gone):
            record = Record(
                event.key, event.key, None, 0, 0.5, 7, 6, Outcome.HIT, 2, Action.PINNED, "as told", event.measured
            )
            if event.key in self.unread:
                self.late[event.key] = record
                return []
            if self.kept is None:
                return [record]
            self.kept.append(record)
        return []


class Bench:
    """An upstream on a scripted server, under an engine that does as it is told."""

    def __init__(self, script: Scripted, executor: ThreadPoolExecutor) -> None:
        self.script = script
        self.rows: list[Row] = []
        self.complaints = Complaints(logging.getLogger("test"))
        self.executor = executor
        self.keys = iter(range(1, 1000))
        self.upstreams: list[Upstream] = []

    def open(self, **changes: Any) -> Upstream:
        settings = replace(SETTINGS, **changes)
        backend = LlamaServerBackend(self.script.url, settings.embed_url)
        self.upstreams.append(Upstream(self.script.url, backend, settings, self._put, self.executor, self.complaints))
        return self.upstreams[-1]

    def _put(self, entry: Row | Found | Check) -> None:
        if isinstance(entry, Row):
            self.rows.append(entry)

    async def known(self, **changes: Any) -> Upstream:
        """An upstream whose server is known, with nothing in flight."""
        upstream = self.open(**changes)
        upstream.watch.arrived(AUTH)
        await until(lambda: upstream.watch.known)
        upstream.watch.ended(AUTH, accepted=True, gone_in_prefill=False)
        await until(lambda: len(asyncio.all_tasks()) == 1)
        self.events.clear()
        self.script.calls.clear()
        return upstream

    def exchange(
        self, upstream: Upstream, body: Any = None, path: str = "/completion", coding: str = "", owner: str = ""
    ) -> Exchange:
        endpoint = endpoints.match("POST", path)
        assert endpoint is not None
        content = body if isinstance(body, bytes) else json.dumps(body or {"prompt": PROMPT}).encode()
        return Exchange(next(self.keys), endpoint, content, coding, AUTH, upstream, "client", owner)

    @property
    def engine(self) -> Engine:
        engine = self.upstreams[-1]._engine
        assert isinstance(engine, Engine)
        return engine

    @property
    def events(self) -> list[Event]:
        return self.engine.events

    def told(self, kind: type[Event]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    monkeypatch.setattr(upstream_module, "Engine", Engine)
    with scripted() as script, ThreadPoolExecutor(8) as executor:
        bench = Bench(script, executor)
        yield bench
        for gate in script.gates.values():
            gate.set()
        for upstream in bench.upstreams:
            upstream.backend.close()


def answer(exchange: Exchange, status: int = 200, content: bytes = b"{}", kind: str = "application/json") -> None:
    exchange.began(status, kind, "")
    exchange.heard(content)
    exchange.ended()


def ids(event: Arrived | Read) -> list[int] | None:
    return None if event.ask.tokens is None else event.ask.tokens.ids.tolist()


# --- going on ---


CHAT: dict[str, Any] = {
    "messages": [{"role": "system", "content": "Be brief. " * 40}, {"role": "user", "content": "a"}]
}
LATER = [{"role": "assistant", "content": "{}"}, {"role": "user", "content": "b"}]
CHATS = "/v1/chat/completions"


@pytest.mark.parametrize(("lets_go_on", "ended"), [(True, True), (False, True), (True, False)])
async def test_what_goes_on_where_an_earlier_request_ended_is_not_held(
    bench: Bench, lets_go_on: bool, ended: bool
) -> None:
    upstream = await bench.known()
    first = bench.exchange(upstream, CHAT, CHATS)
    await first.hold()
    bench.engine.gone_on |= {first.key} if lets_go_on else set()
    first.began(200, "application/json", "")
    first.heard(json.dumps({"choices": [{"finish_reason": "stop"}]}).encode())
    if ended:
        first.ended()
    else:
        first.broke(sent=True, client_left=True)
    rendering = bench.script.block("/apply-template")
    exchange = bench.exchange(upstream, {**CHAT, "messages": CHAT["messages"] + LATER}, CHATS)
    holding = asyncio.ensure_future(exchange.hold())
    if not (lets_go_on and ended):
        await until(lambda: bench.script.count("/apply-template") == 2)
        assert not holding.done()
        rendering.set()
        assert await holding is not None
        return
    assert await holding is None
    assert bench.told(Arrived)[-1].ask.unknown == ONWARD
    rendering.set()
    await until(lambda: bench.told(Read))
    assert len(ids(bench.told(Read)[0]) or ()) == sum(len(one["content"]) for one in CHAT["messages"] + LATER)


# --- held ---


async def test_a_request_is_held_until_its_tokens_are_known_and_then_steered(bench: Bench) -> None:
    upstream = await bench.known()
    gate = bench.script.block("/tokenize")
    exchange = bench.exchange(upstream)
    holding = asyncio.ensure_future(exchange.hold())
    await until(lambda: bench.script.count("/tokenize"))
    assert not holding.done()
    assert bench.told(Arrived) == []
    gate.set()
    assert await holding == b'{"id_slot":2,"cache_prompt":true,"prompt": "Once upon a time"}'
    (arrived,) = bench.told(Arrived)
    assert ids(arrived) == TOKENS
    assert np.array_equal(arrived.ask.vector, embed_prefix(arrived.ask.tokens))
    assert not arrived.ask.semantic
    assert exchange.content == b'{"prompt": "Once upon a time"}'
    for _, headers in bench.script.calls:
        assert headers["Authorization"] == "Bearer key"


async def test_in_a_crowd_a_request_is_not_held_but_read_all_the_same(bench: Bench) -> None:
    upstream = await bench.known()
    bench.engine.crowd = 3
    bench.engine.steer = None
    gate = bench.script.block("/tokenize")
    held = [asyncio.ensure_future(bench.exchange(upstream).hold()) for _ in range(2)]
    await until(lambda: bench.script.count("/tokenize") == 2)
    assert await bench.exchange(upstream).hold() is None
    (arrived,) = bench.told(Arrived)
    assert ids(arrived) is None
    assert not any(one.done() for one in held)
    gate.set()
    await asyncio.gather(*held)
    await until(lambda: bench.told(Read))
    assert ids(bench.told(Read)[0]) == TOKENS


async def test_in_a_crowd_too_none_overtakes_a_steered_request(bench: Bench) -> None:
    upstream = await bench.known()
    bench.engine.crowd = 0
    bench.engine.endangered_at = time.monotonic()
    holding = [asyncio.ensure_future(bench.exchange(upstream).hold()) for _ in range(3)]
    await until(lambda: bench.script.count("/slots") > 1)  # which shows it as soon as it runs
    assert not bench.told(Arrived)
    bench.engine.endangered_at = -inf
    await asyncio.gather(*holding)
    assert len(bench.told(Arrived)) == 3


async def test_who_waited_in_line_for_long_does_not_overtake_a_steered_request_either(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SAFETY", 0.5)
    upstream = await bench.known()
    bench.engine.steer = None
    async with upstream.turn:  # a primer takes longer than that
        bench.engine.endangered_at = inf
        holding = asyncio.ensure_future(bench.exchange(upstream).hold())
        await until(lambda: bench.script.count("/slots") > 1)
        assert not bench.told(Arrived)
        bench.engine.endangered_at = -inf
        await holding
    assert len(bench.told(Arrived)) == 1


async def test_none_waits_for_a_steered_request_that_left_long_ago(bench: Bench) -> None:
    upstream = await bench.known()
    bench.engine.endangered_at = time.monotonic() - module.SAFETY
    begun = time.monotonic()
    await bench.exchange(upstream).hold()
    assert time.monotonic() - begun < module.SAFETY


async def test_what_is_kept_apart_is_held_in_a_crowd_too(bench: Bench) -> None:
    upstream = await bench.known()
    bench.engine.crowd = 0
    assert await bench.exchange(upstream, owner="a").hold() is not None
    (arrived,) = bench.told(Arrived)
    assert (ids(arrived), arrived.ask.owner, arrived.ask.fixed) == (TOKENS, "a", "")


async def test_what_is_kept_apart_waits_beyond_its_deadline_until_its_body_is_read(bench: Bench) -> None:
    upstream = await bench.known(deadline_ms=1)
    gate = threading.Event()
    for _ in range(8):  # all threads are busy
        bench.executor.submit(gate.wait)
    try:
        holding = asyncio.ensure_future(bench.exchange(upstream, owner="a").hold())
        await asyncio.sleep(0.05)
        assert not bench.told(Arrived)
    finally:
        gate.set()
    await holding
    (arrived,) = bench.told(Arrived)
    assert (arrived.ask.owner, arrived.ask.fixed) == ("a", "")


async def test_a_chat_is_read_from_the_clients_own_bytes(bench: Bench) -> None:
    upstream = await bench.known()
    body = {"messages": [{"role": "user", "content": PROMPT}], "stream": True, "model": "some"}
    assert await bench.exchange(upstream, body, "/v1/chat/completions").hold() is not None
    (arrived,) = bench.told(Arrived)
    assert ids(arrived) == TOKENS
    assert (arrived.ask.endpoint, arrived.ask.stream, arrived.ask.model) == ("/v1/chat/completions", True, "some")


async def test_a_look_beside_counts_where_it_is_there_in_time(bench: Bench) -> None:
    upstream = await bench.known()
    gate = bench.script.block("/tokenize")
    holding = asyncio.ensure_future(bench.exchange(upstream).hold())
    await until(lambda: bench.script.count("/slots"))
    await until(lambda: len(asyncio.all_tasks()) == 3)  # this test, the request that is held, and its look-ups
    gate.set()
    await holding
    (arrived,) = bench.told(Arrived)
    assert [slot.id for slot in arrived.slots] == [0, 1, 2, 3]
    assert arrived.looked_at is not None
    assert arrived.looked_at < arrived.at


async def test_a_look_beside_is_not_waited_for(bench: Bench) -> None:
    upstream = await bench.known()
    gate = bench.script.block("/slots")
    assert await bench.exchange(upstream).hold() is not None
    (arrived,) = bench.told(Arrived)
    assert arrived.slots is None
    gate.set()
    await until(lambda: bench.told(Looked))


async def test_past_its_deadline_a_request_passes_and_is_read_later(bench: Bench) -> None:
    upstream = await bench.known(deadline_ms=1)
    gate = bench.script.block("/tokenize")
    assert await bench.exchange(upstream).hold() is None
    assert await bench.exchange(upstream).hold() is None
    assert [ids(arrived) for arrived in bench.told(Arrived)] == [None, None]
    assert bench.complaints.total("deadline") == 2
    gate.set()
    await until(lambda: len(bench.told(Read)) == 2)
    assert [ids(read) for read in bench.told(Read)] == [TOKENS, TOKENS]


@pytest.mark.parametrize(("size", "seconds"), [(0, 0.25), (256, 0.251), (2**20, 4.346)])
def test_the_deadline_grows_with_the_body(size: int, seconds: float) -> None:
    assert budget(250, size) == pytest.approx(seconds)


async def test_a_client_that_leaves_while_held_gives_its_place_up_at_once(bench: Bench) -> None:
    upstream = await bench.known()
    bench.script.block("/tokenize")
    exchange = bench.exchange(upstream)
    holding = asyncio.ensure_future(exchange.hold())
    await until(lambda: bench.script.count("/tokenize"))
    exchange.leave()
    assert await holding is None
    (arrived,) = bench.told(Arrived)
    assert arrived.ask.fixed == "the client left while its request was held"
    exchange.broke(sent=True, client_left=True)  # mitmproxy still has an older connection to the server
    await until(lambda: bench.rows)
    (gone,) = bench.told(Gone)
    assert not gone.sent
    assert bench.rows[0].status is None
    assert await upstream.watch.look() is not None  # nothing was aborted on the server: looks may go on


@pytest.mark.parametrize("path", ["/tokenize", "/apply-template"])
async def test_a_failed_look_up_lets_the_request_pass_and_is_told_once(bench: Bench, path: str) -> None:
    upstream = await bench.known()
    bench.script.answers[path] = lambda *_: (500, {})
    body = {"messages": [{"role": "user", "content": PROMPT}]}
    for _ in range(2):
        exchange = bench.exchange(upstream, body, "/v1/chat/completions")
        assert await exchange.hold() is None
        answer(exchange)
    assert [ids(arrived) for arrived in bench.told(Arrived)] == [None, None]
    assert bench.told(Arrived)[0].ask.unknown == f"a look-up failed: POST {path}: status 500"
    assert bench.complaints.total(f"look-up: POST {path}: status 500") == 2
    assert len(bench.rows) == 2


async def test_a_fault_while_reading_lets_the_request_pass(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    upstream = await bench.known()
    monkeypatch.setattr(upstream, "prompts", None)
    assert await bench.exchange(upstream).hold() is None
    assert bench.complaints.total("reading a request: AttributeError") == 1


async def test_a_fault_while_releasing_lets_the_request_pass(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    upstream = await bench.known()

    def steer(*_: object, **__: object) -> bytes:
        raise RuntimeError

    monkeypatch.setattr(splice, "steer", steer)
    assert await bench.exchange(upstream).hold() is None
    assert bench.complaints.total("releasing a request: RuntimeError") == 1


# --- released first ---


@pytest.mark.parametrize(
    ("body", "readable"),
    [
        ({"prompt": PROMPT, "id_slot": 1}, True),
        ({"prompt": [PROMPT, "b"]}, False),
        (b'{"prompt": NaN}', False),
        (b"\xff", False),
    ],
)
async def test_what_cannot_be_steered_is_released_before_it_is_read(bench: Bench, body: Any, readable: bool) -> None:
    upstream = await bench.known()
    gate = bench.script.block("/tokenize")
    exchange = bench.exchange(upstream, body)
    assert await exchange.hold() is None
    (arrived,) = bench.told(Arrived)
    assert arrived.ask.fixed
    assert arrived.ask.tokens is None
    gate.set()
    answer(exchange)
    await until(lambda: bench.rows)
    reads = bench.told(Read)
    assert [ids(read) for read in reads] == [TOKENS if readable else None]
    assert bench.script.count("/slots") == 0


async def test_a_body_with_a_content_encoding_passes(bench: Bench) -> None:
    upstream = await bench.known()
    assert await bench.exchange(upstream, coding="gzip").hold() is None
    assert "content encoding" in bench.told(Arrived)[0].ask.fixed


async def test_in_observe_nothing_is_waited_for_and_the_tokens_follow(bench: Bench) -> None:
    upstream = await bench.known(mode=Mode.OBSERVE)
    gate = bench.script.block("/tokenize")
    exchange = bench.exchange(upstream)
    assert await exchange.hold() is None
    assert [ids(arrived) for arrived in bench.told(Arrived)] == [None]
    answer(exchange)
    assert bench.rows == []  # the engine should know the prompt first
    gate.set()
    await until(lambda: bench.rows)
    assert [type(event) for event in bench.events] == [Arrived, Began, Answered, Read]
    assert bench.rows[0].prompt_tokens == len(TOKENS)


async def test_a_row_does_not_wait_for_look_ups_that_hang(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "AFTERMATH", 0.02)
    upstream = await bench.known(mode=Mode.OBSERVE)
    bench.script.block("/tokenize")
    exchange = bench.exchange(upstream)
    await exchange.hold()
    answer(exchange)
    await until(lambda: bench.rows)
    assert [(read.ask.tokens, read.ask.unknown) for read in bench.told(Read)] == [(None, "not read in time")]


async def test_in_off_the_server_is_asked_nothing(bench: Bench) -> None:
    upstream = bench.open(mode=Mode.OFF)
    exchange = bench.exchange(upstream, {"prompt": PROMPT, "stream": True, "model": "some"})
    assert await exchange.hold() is None
    answer(exchange)
    await until(lambda: bench.rows)
    assert (bench.rows[0].stream, bench.rows[0].model) == (True, "some")
    assert sorted(type(event).__name__ for event in bench.events) == ["Answered", "Arrived", "Began", "Read"]
    assert bench.script.calls == []


async def test_until_the_server_is_known_requests_pass(bench: Bench) -> None:
    upstream = bench.open()
    exchange = bench.exchange(upstream)
    assert await exchange.hold() is None
    (arrived,) = bench.told(Arrived)
    assert arrived.ask.fixed == "the server is not known yet"
    await until(lambda: bench.told(Restarted) and bench.told(Read))
    assert ids(bench.told(Read)[0]) == TOKENS
    assert bench.told(Read)[0].ask.fixed == ""
    answer(exchange)
    known = bench.exchange(upstream)
    assert await known.hold() is not None
    answer(known)
    assert [(row.predicted, row.alone) for row in bench.rows] == [(None, None), (7, 6)]


async def test_behind_a_router_each_model_has_an_upstream_of_its_own(bench: Bench) -> None:
    bench.script.props = {"role": "router"}
    upstream = await bench.known()
    bench.script.props = {"total_slots": 1, "default_generation_settings": {"n_ctx": 64}}
    bench.script.tasks = [-1]
    exchange = bench.exchange(upstream, {"prompt": PROMPT, "model": "a"})
    assert await exchange.hold() is None
    model = upstream.serving("a")
    assert model is not upstream
    assert model is upstream.serving("a")
    assert model is not upstream.serving("b")
    assert len({upstream.name, model.name, upstream.serving("a ").name, upstream.serving(" ").name}) == 4
    await until(lambda: model.watch.known)
    answer(exchange)
    steered = bench.exchange(upstream, {"prompt": PROMPT, "model": "a"})
    assert await steered.hold() is not None
    assert bench.events == []
    answer(steered)
    upstream.close()
    assert [row.model for row in bench.rows] == ["a", "a"]


async def test_a_server_without_props_is_asked_nothing_that_could_load_a_model(bench: Bench) -> None:
    del bench.script.answers["/props"]
    upstream = bench.open()
    upstream.watch.introduce()
    for number in range(2):
        body = {"messages": [{"role": "user", "content": PROMPT}], "model": f"model {number}"}
        exchange = bench.exchange(upstream, body, "/v1/chat/completions")
        assert await exchange.hold() is None
        answer(exchange)
    await until(lambda: len(bench.rows) == 2)
    assert {path for path, _ in bench.script.calls} == {"/props", "/running"}
    assert [event.ask.fixed for event in bench.told(Arrived)] == [MUTE, MUTE]
    assert [row.model for row in bench.rows] == ["model 0", "model 1"]


async def test_an_alias_is_asked_for_again_where_the_router_did_not_tell(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.script.props = {"role": "router"}
    upstream = await bench.known()
    bench.script.answers["/v1/models"] = lambda *_: (500, {})
    assert await upstream.name_of("short", AUTH) == "short"
    bench.script.answers["/v1/models"] = lambda *_: (200, {"data": [{"id": "long", "aliases": ["short"]}]})
    assert await upstream.name_of("short", AUTH) == "short"  # not at once
    assert bench.script.count("/v1/models") == 1
    monkeypatch.setattr(upstream, "_unnamed_until", 0.0)
    assert await upstream.name_of("short", AUTH) == "long"


async def test_names_of_models_do_not_pile_up(bench: Bench) -> None:
    bench.script.props = {"role": "router"}
    upstream = await bench.known()
    busy = upstream.serving("busy")
    exchange = bench.exchange(busy, {"prompt": PROMPT, "model": "busy"})
    await exchange.hold()
    for number in range(3 * MOST_MODELS):
        assert upstream.serving(f"model {number}") is upstream.serving(f"model {number}")
        assert len(upstream._models) <= MOST_MODELS
    assert upstream.serving("busy") is busy
    answer(exchange)


# --- the server's own count ---


async def count(bench: Bench, upstream: Upstream, told: int, counted: int | None, path: str = "/v1/responses") -> bool:
    """Whether a prompt was believed. The server counts `counted` tokens beside; the answer tells `told`."""
    counts = f"{path}/input_tokens"
    bench.script.answers[counts] = lambda *_: (200, {"input_tokens": counted})
    before = bench.script.count(counts)
    body = {"input": PROMPT, "messages": [{"role": "user", "content": PROMPT}]}
    exchange = bench.exchange(upstream, body, path)
    steered = await exchange.hold() is not None
    assert bench.script.count(counts) - before == (counted is not None)
    answer(exchange, content=json.dumps({"usage": {"input_tokens": told, "prompt_tokens": told}}).encode())
    assert steered is (ids(bench.told(Arrived)[-1]) == TOKENS)
    return steered


async def test_the_first_converted_bodies_are_counted_too(bench: Bench) -> None:
    upstream, n = await bench.known(), len(TOKENS)
    for _ in range(ENOUGH):
        assert await count(bench, upstream, told=n, counted=n)
    assert await count(bench, upstream, told=n, counted=None)


async def test_a_body_that_the_server_counts_otherwise_is_not_believed_and_counting_starts_over(bench: Bench) -> None:
    upstream, n = await bench.known(), len(TOKENS)
    assert await count(bench, upstream, told=n, counted=n)
    assert not await count(bench, upstream, told=n, counted=n + 1)
    assert bench.told(Arrived)[-1].ask.unknown == f"{n} tokens were read where the server counts {n + 1}"
    for _ in range(ENOUGH):
        assert await count(bench, upstream, told=n, counted=n)
    assert await count(bench, upstream, told=n, counted=None)


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/chat/completions"])
async def test_an_answer_that_tells_another_length_brings_the_count_back(bench: Bench, path: str) -> None:
    upstream, n = await bench.known(), len(TOKENS)
    for _ in range(ENOUGH if path == "/v1/responses" else 0):
        assert await count(bench, upstream, told=n, counted=n, path=path)
    assert await count(bench, upstream, told=n + 2, counted=None, path=path)
    assert bench.complaints.total(f"length: {path}") == 1
    for _ in range(ENOUGH):
        assert await count(bench, upstream, told=n, counted=n, path=path)
    assert await count(bench, upstream, told=n, counted=None, path=path)


async def test_another_server_is_doubted_anew(bench: Bench) -> None:
    upstream, n = await bench.known(), len(TOKENS)
    for _ in range(ENOUGH):
        assert await count(bench, upstream, told=n, counted=n)
    upstream.tell(Restarted(time.monotonic(), 4, 4096))
    assert await count(bench, upstream, told=n, counted=n)


async def test_a_server_that_cannot_count_is_believed(bench: Bench) -> None:
    upstream = await bench.known()
    for _ in range(2):
        assert await bench.exchange(upstream, {"input": PROMPT}, "/v1/responses").hold() is not None
    assert bench.script.count("/v1/responses/input_tokens") == 1


async def test_a_count_that_fails_lets_the_request_pass(bench: Bench) -> None:
    upstream = await bench.known()
    bench.script.answers["/v1/responses/input_tokens"] = lambda *_: (500, {})
    assert await bench.exchange(upstream, {"input": PROMPT}, "/v1/responses").hold() is None
    assert bench.told(Arrived)[-1].ask.unknown == "a look-up failed: POST /v1/responses/input_tokens: status 500"


# --- embedding ---


def embedding_server(vector: list[float]) -> Callable[[Any, Any], tuple[int, Any]]:
    return lambda body, _: (200, {"data": [{"index": n, "embedding": vector} for n in range(len(body["input"]))]})


async def test_an_embedding_server_is_asked_without_the_clients_key(bench: Bench) -> None:
    with scripted() as other:
        other.answers["/v1/embeddings"] = embedding_server([3.0, 4.0])
        upstream = await bench.known(embed_url=other.url)
        await bench.exchange(upstream).hold()
        assert all("Authorization" not in headers and "X-Api-Key" not in headers for _, headers in other.calls)
    (arrived,) = bench.told(Arrived)
    assert arrived.ask.semantic
    assert arrived.ask.vector.tolist() == pytest.approx([0.6, 0.8])


async def test_where_the_embedding_server_fails_prefixes_are_embedded(bench: Bench) -> None:
    upstream = await bench.known(embed_url=bench.script.url)  # which has no /v1/embeddings
    assert await bench.exchange(upstream).hold() is not None
    (arrived,) = bench.told(Arrived)
    assert not arrived.ask.semantic
    assert np.array_equal(arrived.ask.vector, embed_prefix(arrived.ask.tokens))
    await until(lambda: bench.complaints.total("embedding: POST /v1/embeddings: status 404") == 1)


async def test_a_slow_embedding_server_leaves_time_to_steer(bench: Bench) -> None:
    upstream = await bench.known(embed_url=bench.script.url, deadline_ms=1000)
    bench.script.block("/v1/embeddings")
    assert await bench.exchange(upstream).hold() is not None
    (arrived,) = bench.told(Arrived)
    assert not arrived.ask.semantic
    assert np.array_equal(arrived.ask.vector, embed_prefix(arrived.ask.tokens))
    assert bench.complaints.total("deadline") == 0


# --- the answer ---

STREAM = b"""data: {"content":"A","stop":false,"id_slot":-1}

data: {"content":"B","stop":false}

data: {"content":"","stop":true,"id_slot":3,"timings":{"cache_n":12,"prompt_n":4,"predicted_n":2,"prompt_ms":5.5}}

"""


async def test_a_stream_is_measured_recorded_once_and_its_reply_tokenised(bench: Bench) -> None:
    upstream = await bench.known()
    exchange = bench.exchange(upstream, {"prompt": PROMPT, "stream": True})
    await exchange.hold()
    exchange.began(200, "text/event-stream", "")
    for start in range(0, len(STREAM), 7):
        exchange.heard(STREAM[start : start + 7])
    exchange.ended()
    exchange.ended()
    exchange.broke(sent=True, client_left=True)
    exchange.close()
    (row,) = bench.rows
    assert row.status == 200
    assert (row.prompt_tokens, row.reused, row.evaluated, row.reply_tokens) == (16, 12, 4, 2)
    assert (row.outcome, row.slot, row.action, row.predicted, row.alone) == (Outcome.HIT, 2, Action.PINNED, 7, 6)
    assert row.first_byte_ms is not None
    assert 0 <= row.added_ms <= row.first_byte_ms <= row.total_ms
    assert abs(row.at - time.time()) < 60
    (answered,) = bench.told(Answered)
    assert (answered.measured.slot, answered.measured.finished) == (3, True)
    await until(lambda: bench.told(Replied))
    assert bench.told(Replied)[0].ids.tolist() == [65, 66]


async def test_a_stream_that_breaks_tells_what_it_had_shown(bench: Bench) -> None:
    upstream = await bench.known()
    exchange = bench.exchange(upstream, {"prompt": PROMPT, "stream": True})
    await exchange.hold()
    exchange.began(200, "text/event-stream", "")
    exchange.heard(STREAM)
    exchange.broke(sent=True, client_left=True)
    (gone,) = bench.told(Gone)
    assert gone.sent
    assert gone.shown
    assert (gone.measured.reused, gone.measured.finished) == (12, False)
    assert bench.told(Replied) == []


async def test_a_client_that_leaves_in_prefill_stops_the_looks(bench: Bench) -> None:
    upstream = await bench.known()
    exchange = bench.exchange(upstream)
    await exchange.hold()
    exchange.began(200, "text/event-stream", "")
    exchange.heard(b'data: {"prompt_progress":{}}\n\n')
    exchange.broke(sent=True, client_left=True)
    assert not bench.told(Gone)[0].shown
    assert await upstream.watch.look() is None


@pytest.mark.parametrize(("status", "known"), [(500, True), (503, False), (400, True)])
async def test_a_server_that_fails_is_doubted(bench: Bench, status: int, known: bool) -> None:
    upstream = await bench.known()
    exchange = bench.exchange(upstream)
    await exchange.hold()
    answer(exchange, status, b'{"error": {}}')
    assert upstream.watch.known is known
    assert bench.rows[0].status == status
    assert bench.rows[0].reused is None


@pytest.mark.parametrize("sent", [True, False])
async def test_a_server_that_cannot_be_reached_is_unknown(bench: Bench, sent: bool) -> None:
    upstream = await bench.known()
    exchange = bench.exchange(upstream)
    await exchange.hold()
    exchange.broke(sent=sent, client_left=False)
    assert bench.told(Gone)[0].sent is sent
    assert upstream.watch.known is sent


async def test_an_answer_that_another_addon_gave_is_recorded(bench: Bench) -> None:
    upstream = await bench.known()
    exchange = bench.exchange(upstream)
    await exchange.hold()
    exchange.ended()
    assert not bench.told(Gone)[0].sent
    assert len(bench.rows) == 1


async def test_a_fault_in_the_tap_costs_only_the_figures(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    upstream = await bench.known()
    exchange = bench.exchange(upstream)
    await exchange.hold()
    exchange.began(200, "application/json", "")
    monkeypatch.setattr(AnswerReader, "feed", None)
    exchange.heard(b"a")
    exchange.heard(b"b")
    exchange.ended()
    assert bench.rows[0].reused is None
    assert bench.complaints.total("reading an answer: TypeError") == 1


async def test_a_reply_that_cannot_be_tokenised_is_told(bench: Bench) -> None:
    upstream = await bench.known()
    exchange = bench.exchange(upstream, {"prompt": PROMPT, "stream": True})
    await exchange.hold()
    bench.script.answers["/tokenize"] = lambda *_: (500, {})
    answer(exchange, 200, STREAM, "text/event-stream")
    await until(lambda: bench.complaints.total("reply: POST /tokenize: status 500"))
    assert len(bench.rows) == 1


# --- the upstream ---


async def test_toki_stops_and_no_row_is_lost(bench: Bench) -> None:
    upstream = await bench.known()
    sent = bench.exchange(upstream)
    await sent.hold()
    sent.began(200, "text/event-stream", "")
    bench.engine.kept = []
    late = bench.exchange(upstream)
    await late.hold()
    answer(late)
    bench.script.block("/tokenize")
    asked = bench.script.count("/tokenize")
    held = bench.exchange(upstream, {"prompt": "another"})
    holding = asyncio.ensure_future(held.hold())
    await until(lambda: bench.script.count("/tokenize") > asked)
    assert bench.rows == []
    for exchange in (sent, held):
        exchange.close()
    upstream.close()
    assert [row.key for row in bench.rows] == [sent.key, late.key, held.key]
    assert [(gone.key, gone.sent) for gone in bench.told(Gone)] == [(sent.key, True), (held.key, False)]
    assert await holding is None


async def test_the_engines_other_commands(bench: Bench) -> None:
    upstream = await bench.known()
    bench.engine.more = [
        Look(),
        Record(77, 77, None, 0, None, None, None, Outcome.MISS, None, Action.PASSED, "", Measured()),
    ]
    await bench.exchange(upstream).hold()
    assert bench.rows == []  # of a request that is not here
    await until(lambda: bench.told(Looked))


async def test_a_broken_engine_is_replaced_and_costs_no_request(bench: Bench) -> None:
    upstream = await bench.known()
    ended, exchange = bench.exchange(upstream), bench.exchange(upstream, {"prompt": PROMPT, "stream": True})
    await ended.hold()
    bench.engine.kept = []
    answer(ended)
    assert bench.rows == []
    await until(lambda: len(asyncio.all_tasks()) == 1)  # no late look breaks the engine before the next request does
    broken = bench.engine
    broken.broken = True
    assert await exchange.hold() is None
    assert bench.engine is not broken
    assert not upstream.watch.known
    assert [row.key for row in bench.rows] == [ended.key]  # what the engine still owed
    await until(lambda: bench.told(Restarted))
    answer(exchange, 200, STREAM, "text/event-stream")  # of which the new engine knows nothing
    assert bench.told(Answered) == []
    assert [row.reason for row in bench.rows] == ["a fault inside toki"] * 2
    assert bench.rows[1].reused == 12
    assert bench.complaints.total("engine: RuntimeError") == 1


async def test_an_engine_that_breaks_at_the_end_of_a_request_costs_no_row(bench: Bench) -> None:
    upstream = await bench.known()
    exchange = bench.exchange(upstream)
    await exchange.hold()
    bench.engine.broken = True
    exchange.ended()
    assert [row.reason for row in bench.rows] == ["a fault inside toki"]


ROW = Row(
    1, 0.0, 1, "/completion", "m", 200, True, 8012, 5, None, 0, None, 7950, 0, 7950, 62, Outcome.HIT, 2,
    Action.PINNED, "it holds the prefix", 1.0, 2.0, 3.0,
)  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        (
            {},
            "toki 200 /completion 8,012 tokens: 7,950 reused (hit), 62 evaluated, slot 2, pinned: it holds the prefix",
        ),
        (
            {"status": None, "prompt_tokens": None, "reused": None, "evaluated": None, "slot": None},
            "toki --- /completion ? tokens: reuse unknown, pinned: it holds the prefix",
        ),
    ],
)
def test_describe(changes: dict[str, Any], line: str) -> None:
    assert describe(replace(ROW, **changes)) == line


# --- waiting ---


def steered(body: bytes | None) -> object:
    """The slot that a body names."""
    return None if body is None else json.loads(body).get("id_slot")


async def test_one_that_waits_comes_again_when_its_time_is_over_with_a_fresh_look(bench: Bench) -> None:
    upstream = await bench.known()
    bench.engine.waits = [0.02]
    assert steered(await bench.exchange(upstream).hold()) == 2
    first, again = bench.told(Arrived)
    assert first.key == again.key
    assert again.at - first.at >= 0.02
    assert again.looked_at > first.at


async def test_or_when_what_it_waits_for_is_over(bench: Bench) -> None:
    upstream = await bench.known()
    bench.engine.waits = [600.0]
    holding = asyncio.ensure_future(bench.exchange(upstream).hold())
    await until(lambda: bench.told(Arrived))
    bench.engine.more = [Resume(bench.told(Arrived)[0].key), Resume(999)]
    assert steered(await bench.exchange(upstream).hold()) == 2
    assert steered(await holding) == 2
    assert len(bench.told(Arrived)) == 3


async def test_or_goes_as_another_event_has_decided(bench: Bench) -> None:
    upstream = await bench.known()
    bench.engine.waits = [600.0]
    holding = asyncio.ensure_future(bench.exchange(upstream).hold())
    await until(lambda: bench.told(Arrived))
    forked = Decision(Action.FORKED, None, None, None, None, None, "with others")
    bench.engine.more = [Send(bench.told(Arrived)[0].key, forked), Resume(bench.told(Arrived)[0].key)]
    assert steered(await bench.exchange(upstream).hold()) == 2
    assert await holding is None
    assert len(bench.told(Arrived)) == 2


async def waiting(bench: Bench) -> tuple[Exchange, asyncio.Future[bytes | None]]:
    """A request that the engine has told to wait, and what it is held by."""
    upstream = await bench.known()
    bench.engine.waits = [600.0]
    exchange = bench.exchange(upstream)
    holding = asyncio.ensure_future(exchange.hold())
    await until(lambda: bench.told(Arrived))
    return exchange, holding


async def test_a_client_that_leaves_while_it_waits_is_let_go(bench: Bench) -> None:
    exchange, holding = await waiting(bench)
    exchange.leave()
    assert await holding is None
    assert bench.told(Arrived)[-1].ask.fixed == "the client left while its request was held"


async def test_toki_stops_while_one_waits(bench: Bench) -> None:
    exchange, holding = await waiting(bench)
    exchange.close()
    assert await holding is None
    assert len(bench.rows) == 1


async def test_a_request_knows_how_many_of_its_size_are_being_read(bench: Bench) -> None:
    upstream = await bench.known()
    gate = bench.script.block("/tokenize")
    bodies = [{"prompt": PROMPT * 60}, {"prompt": PROMPT * 70}, {"prompt": PROMPT}]
    holding = [asyncio.ensure_future(bench.exchange(upstream, body).hold()) for body in bodies]
    ids_only = asyncio.ensure_future(bench.exchange(upstream, {"prompt": [1] * 500}).hold())
    await ids_only
    assert bench.told(Arrived)[0].company == 2
    gate.set()
    await asyncio.gather(*holding)
    assert bench.told(Arrived)[-1].company == 0
