"""Answers what is asked of the page: who asks, what for, what is in memory, what is recorded, how it is shown.

What is in memory is looked at on the event loop; reading the database, and writing pages, is done in a thread of the
page's own, one answer after the other, so that no request of a client ever waits for it.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from dataclasses import dataclass
from functools import partial
from math import isfinite
from pathlib import Path
from typing import Any
from typing import Protocol

from toki import __version__
from toki.complaints import Complaints
from toki.page import live
from toki.page import metrics
from toki.page.counters import Counters
from toki.page.detail import detail
from toki.page.door import Visit
from toki.page.door import refusal
from toki.page.history import NOTHING
from toki.page.history import History
from toki.page.history import Unreadable
from toki.page.history import total
from toki.page.lists import conversations
from toki.page.lists import one_conversation
from toki.page.lists import requests
from toki.page.model import Conversations
from toki.page.model import ConversationView
from toki.page.model import Memory
from toki.page.model import Overview
from toki.page.model import Requests
from toki.page.model import RequestView
from toki.page.model import Saving
from toki.page.model import Server
from toki.page.overview import overview
from toki.page.routes import FILES
from toki.page.routes import Kind
from toki.page.routes import Range
from toki.page.routes import Unknown
from toki.page.routes import Wanted
from toki.page.routes import wanted
from toki.page.shell import failure
from toki.settings import Settings
from toki.upstream import Upstream

MOST_WAITING = 16  # answers that wait for the thread; more are refused
SHOWN = 10  # conversations, and requests, on the overview
LISTED = 100  # conversations on their own page
HERE = Path(__file__).parent

POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
SAFE = (
    ("Content-Security-Policy", POLICY),
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("Cross-Origin-Opener-Policy", "same-origin"),
    ("X-Frame-Options", "DENY"),
    ("Cache-Control", "no-store"),
)
HTML = "text/html; charset=utf-8"
JSON = "application/json"
PLAIN = "text/plain; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Answer:
    """What the client gets; the headers of SAFE come with it."""

    status: int
    kind: str
    content: bytes
    headers: tuple[tuple[str, str], ...] = ()


class Ids(Protocol):
    """Turns the engine's keys into ids of rows: the Store."""

    @property
    def lost(self) -> int:
        """Rows that were dropped."""

    def row_of(self, key: int) -> int | None: ...

    def conversation_of(self, key: int) -> int | None: ...


class Page:
    """The page of one toki. `upstreams` gives the servers; used on the event loop."""

    def __init__(self, upstreams: Callable[[], Iterable[Upstream]], counters: Counters, complaints: Complaints) -> None:
        self._upstreams = upstreams
        self._counters = counters
        self._complaints = complaints
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="toki-page")
        self._waiting = 0
        self._history: History | None = None
        self._path: Path | None = None

    async def answer(self, visit: Visit, target: str, base: str, settings: Settings, ids: Ids) -> Answer:
        """What `visit` gets for `target` (path and query, below `base`); never raises."""
        refused = refusal(visit, settings.token)
        if refused is not None:
            return Answer(refused.status, PLAIN, f"toki: {refused.text}\n".encode(), refused.headers)
        try:
            asked = wanted(visit.method, target)
        except Unknown as error:
            return Answer(error.status, PLAIN, f"toki: {error}\n".encode())
        if self._waiting >= MOST_WAITING:
            return Answer(503, PLAIN, b"toki: too many ask for the page at once\n")
        self._waiting += 1
        try:
            work = self._prepare(asked, base, settings, ids)
            return await asyncio.get_running_loop().run_in_executor(self._executor, work)
        except Unreadable as error:
            return Answer(503, PLAIN, f"toki: what was recorded can't be read: {error}\n".encode())
        except Exception as error:  # the page alone fails
            self._complaints.fault("page", "the page can't be shown", error)
            return Answer(500, PLAIN, b"toki: the page can't be shown; the log says why\n")
        finally:
            self._waiting -= 1

    def close(self) -> None:
        if self._history is not None:
            self._executor.submit(self._history.close)  # in the thread that opened it
        self._executor.shutdown(wait=False)

    def _prepare(self, asked: Wanted, base: str, settings: Settings, ids: Ids) -> Callable[[], Answer]:
        """Look at what is in memory; what is left can be done in the thread."""
        if asked.kind is Kind.FILE:
            return partial(_file, asked.file)
        if asked.kind is Kind.FORGET:
            for upstream in self._upstreams():
                upstream.inspector.forget()
            return partial(_json, {"forgotten": True})
        history = self._read(settings.db)
        if asked.kind is Kind.REQUEST:
            found = live.find(self._upstreams(), asked.number, ids.row_of)
            memory = None
            if found is not None:
                memory = live.memory(found, ids.row_of, ids.conversation_of, text=settings.text)
            return partial(_request, history, asked, base, memory, settings.text)
        if asked.kind in (Kind.OVERVIEW, Kind.METRICS):
            servers = tuple(live.server(one, ids.conversation_of) for one in self._upstreams())
            if asked.kind is Kind.METRICS:
                text = metrics.text(__version__, servers, self._counters.servers, ids.lost)
                return partial(Answer, 200, metrics.CONTENT_TYPE, text.encode())
            return partial(_overview, history, asked, base, servers)
        if asked.kind is Kind.REQUESTS:
            return partial(_requests, history, asked, base)
        if asked.kind is Kind.CONVERSATION:
            return partial(_conversation, history, asked, base)
        return partial(_conversations, history, asked, base)

    def _read(self, path: Path) -> History:
        if self._history is None or path != self._path:
            if self._history is not None:
                self._executor.submit(self._history.close)
            self._history, self._path = History(path), path
        return self._history


# --- in the thread ---


def _overview(history: History, asked: Wanted, base: str, servers: tuple[Server, ...]) -> Answer:
    now = time.time()
    span = asked.range or Range.DAY
    try:
        history.begin()
        span = asked.range or history.suiting(now)
        since = now - span.seconds
        timeline = history.timeline(span, now)
        causes = history.causes(since)
        checks = history.checks(since)
        talks = history.conversations(since, SHOWN)
        latest = history.listed(history.requests(most=SHOWN)[0])
        trouble = ""
    except Unreadable as error:
        timeline, causes, checks, talks, latest, trouble = (), (), NOTHING, (), (), str(error)
    sums = total(bar.sums for bar in timeline)
    speeds = [one.ms_per_token for one in servers if one.ms_per_token is not None]
    view = Overview(
        at=now,
        version=__version__,
        range=span,
        servers=servers,
        sums=sums,
        # Of several servers rows do not tell which one it was: the fastest claims least.
        saving=Saving(sums.saved, sums.saved * min(speeds) / 1000 if speeds else None),
        step_s=span.step,
        timeline=timeline,
        causes=causes,
        checks=checks,
        conversations=talks,
        latest=latest,
        trouble=trouble,
    )
    return _json(asdict(view)) if asked.api else _html(overview(view, base))


def _requests(history: History, asked: Wanted, base: str) -> Answer:
    history.begin()
    found, older = history.requests(asked.before, asked.filters)
    view = Requests(history.listed(found, asked.filters.cause), older)
    return _json(asdict(view)) if asked.api else _html(requests(view, base, asked.filters, history.models()))


def _conversations(history: History, asked: Wanted, base: str) -> Answer:
    history.begin()
    now = time.time()
    span = asked.range or history.suiting(now)
    view = Conversations(span, history.conversations(now - span.seconds, LISTED, asked.filters))
    if asked.api:
        return _json(asdict(view))
    return _html(conversations(view, base, now, asked.filters, history.models()))


def _conversation(history: History, asked: Wanted, base: str) -> Answer:
    history.begin()
    found = history.conversation(asked.number)
    if found is None:
        return _none(asked, base, f"There is no conversation {asked.number}.")
    view = ConversationView(found[0], history.listed(found[1]))
    return _json(asdict(view)) if asked.api else _html(one_conversation(view, base))


def _request(history: History, asked: Wanted, base: str, memory: Memory | None, text: bool) -> Answer:
    history.begin()
    one = history.request(asked.number)
    if one is None:
        return _none(asked, base, f"There is no request {asked.number}; rows are kept for toki_keep_days.")
    before, after = history.neighbours(one)
    view = RequestView(
        request=one,
        why=history.why(one.id),
        own=history.own(one.id),
        check=history.check(one.id),
        memory=memory,
        previous=before,
        next=after,
        text=text,
    )
    return _json(asdict(view)) if asked.api else _html(detail(view, base))


def _none(asked: Wanted, base: str, text: str) -> Answer:
    return _json({"error": text}, 404) if asked.api else _html(failure(base, "Not found", text), 404)


def _json(data: Mapping[str, Any], status: int = 200) -> Answer:
    return Answer(status, JSON, json.dumps(_finite(data), allow_nan=False).encode())


def _finite(data: Any) -> Any:
    """JSON knows no infinity: what is not finite is not known."""
    if isinstance(data, Mapping):
        return {key: _finite(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [_finite(value) for value in data]
    return None if isinstance(data, float) and not isfinite(data) else data


def _html(page: str, status: int = 200) -> Answer:
    return Answer(status, HTML, page.encode())


def _file(name: str) -> Answer:
    return Answer(200, f"{FILES[name]}; charset=utf-8", (HERE / name).read_bytes())
