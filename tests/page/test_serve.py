"""What the page answers, from a real database and real upstreams: HTML, JSON, metrics; whatever stands in the rows."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any
from typing import get_args
from typing import get_type_hints
from urllib.parse import urlencode

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.page import recorded
from tests.page.test_door import visit
from tests.page.test_html import Seen
from tests.test_exchange import SETTINGS

from toki.complaints import Complaints
from toki.page import history
from toki.page import model
from toki.page import serve
from toki.page.counters import Counters
from toki.page.serve import Answer
from toki.page.serve import Page
from toki.server import LlamaServerBackend
from toki.settings import Settings
from toki.upstream import Upstream

PAGES = ("/", "/requests", "/requests/1000", "/conversations", "/conversations/961")
NARROWED = ("/requests?outcome=hit&cause=clock&before=900", "/conversations?range=week&model=m")
TAGS = {"script"}  # the page's own
logger = logging.getLogger(__name__)


class Ids:
    lost = 0

    def row_of(self, key: int) -> int | None:
        return key

    conversation_of = row_of


class Desk:
    """A page before a server that is not there."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.complaints = Complaints(logger)
        self.executor = ThreadPoolExecutor(1)
        backend = LlamaServerBackend("http://127.0.0.1:1")
        self.upstream = Upstream(
            "http://127.0.0.1:1", backend, settings, lambda row: None, self.executor, self.complaints
        )
        self.counters = Counters()
        self.upstreams = [self.upstream]
        self.page = Page(lambda: self.upstreams, self.counters, self.complaints)

    async def ask(self, target: str, base: str = "/toki", method: str = "GET", **headers: Any) -> Answer:
        return await self.page.answer(visit(method=method, **headers), target, base, self.settings, Ids())

    async def html(self, target: str) -> str:
        answer = await self.ask(target)
        assert (answer.status, answer.kind) == (200, serve.HTML), answer.content
        return answer.content.decode()

    async def json(self, target: str) -> Any:
        answer = await self.ask(f"/api{target}")
        assert (answer.status, answer.kind) == (200, serve.JSON), answer.content
        return json.loads(answer.content)

    def close(self) -> None:
        self.page.close()
        self.upstream.close()
        self.executor.shutdown()


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncIterator[Desk]:
    """Before 1,000 requests of a day."""
    recorded.many(tmp_path / "toki.db", 1000, days=1)
    found = Desk(_settings(tmp_path))
    yield found
    found.close()


@pytest.fixture
async def hostile(tmp_path: Path) -> AsyncIterator[Desk]:
    """The same, with the worst that a client could choose in each text."""
    recorded.many(tmp_path / "toki.db", 1000, days=1, text=recorded.HOSTILE)
    found = Desk(_settings(tmp_path))
    yield found
    found.close()


def _settings(where: Path) -> Settings:
    values = {field.name: getattr(SETTINGS, field.name) for field in fields(Settings)}
    return Settings(**values | {"db": where / "toki.db", "token": "open-sesame"})


@pytest.mark.parametrize("target", [*PAGES, *NARROWED])
async def test_pages_are_whole_and_stay_where_they_are(desk: Desk, target: str) -> None:
    seen = Seen(await desk.html(target))
    names = [name for name, _ in seen.tags]
    assert names.count("h1") == names.count("main") == names[:5].count("title") == 1
    linked = [v for _, attributes in seen.tags for key, v in attributes.items() if key in ("href", "src", "action")]
    assert all(value and value.startswith(("/toki/", "#")) for value in linked)
    ids = [attributes["id"] for _, attributes in seen.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert not any(key.startswith("on") or key == "style" for _, attributes in seen.tags for key in attributes)


@pytest.mark.parametrize("target", [*PAGES, *NARROWED])
async def test_everything_has_a_name_for_those_who_do_not_see_it(desk: Desk, target: str) -> None:
    tags = Seen(await desk.html(target)).tags
    pictures = [attributes for name, attributes in tags if name == "svg"]
    assert all(one.get("aria-hidden") == "true" or (one.get("role") == "img" and one["aria-label"]) for one in pictures)
    assert all(one.get("aria-label") for _, one in tags if one.get("tabindex") == "0" and "role" in one)
    assert all(one.get("scope") in ("col", "row") for name, one in tags if name == "th")


@pytest.mark.parametrize("target", [*PAGES, *NARROWED])
async def test_links_lead_somewhere(desk: Desk, target: str) -> None:
    linked = {one["href"] or "" for name, one in Seen(await desk.html(target)).tags if name == "a" and "href" in one}
    for href in sorted(one.removeprefix("/toki") for one in linked if one.startswith("/toki"))[:20]:
        assert (await desk.ask(href)).status == 200


async def test_a_list_is_narrowed_down_by_a_form_that_keeps_what_was_chosen(desk: Desk) -> None:
    page = await desk.html("/requests?outcome=miss&model=m")
    tags = Seen(page).tags
    (form,) = [one for name, one in tags if name == "form"]
    assert form["action"] == "/toki/requests"
    assert "method" not in form, "it only asks"
    fields = [one["name"] for name, one in tags if name in ("select", "input")]
    assert fields == ["outcome", "action", "cause", "endpoint", "model", "conversation"]
    assert [one["value"] for name, one in tags if name == "option" and "selected" in one] == ["miss"]
    assert [one["value"] for name, one in tags if name == "input"] == ["m", ""]
    links = [one["href"] or "" for name, one in tags if name == "a" and one.get("rel") == "next"]
    assert links == ["/toki/requests?outcome=miss&model=m&before=651"]
    shown = (await desk.json("/requests?outcome=miss&model=m"))["requests"]
    assert [one["request"]["id"] for one in shown] == list(range(994, 650, -7))
    again = await desk.json(links[0].removeprefix("/toki"))
    assert again["requests"][0]["request"]["id"] == 644
    assert (await desk.json("/requests?outcome=soft_hit")) == {"requests": [], "older": None}


async def test_conversations_are_narrowed_down_in_the_time_that_is_shown(desk: Desk) -> None:
    tags = Seen(await desk.html("/conversations?range=week&model=none&endpoint=/completion")).tags
    assert [one["value"] for name, one in tags if name == "input"] == ["week", "none"]
    hrefs = [one["href"] or "" for name, one in tags if name == "a" and "range=" in (one.get("href") or "")]
    assert hrefs[0] == "/toki/conversations?endpoint=%2Fcompletion&model=none&range=hour"
    assert hrefs[-1] == "/toki/conversations?range=week"
    assert (await desk.json("/conversations?range=week&model=none"))["conversations"] == []
    assert len((await desk.json("/conversations?range=week&model=m"))["conversations"]) == 26


async def test_what_was_not_looked_through_is_said(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "LOOKED_THROUGH", 100)
    page = await desk.html("/requests?outcome=miss")
    assert "back to number 901" in page
    assert 'href="/toki/requests?outcome=miss&amp;before=901"' in page
    assert "back to number" not in await desk.html("/requests")


async def test_a_hostile_model_can_be_asked_for(hostile: Desk) -> None:
    query = urlencode({"model": recorded.HOSTILE})
    found = await hostile.json(f"/requests?{query}")
    assert found["requests"][0]["request"]["id"] == 1000
    seen = Seen(await hostile.html(f"/requests?{query}"))
    (older,) = [one["href"] or "" for name, one in seen.tags if name == "a" and one.get("rel") == "next"]
    assert (await hostile.json(older.removeprefix("/toki")))["requests"][0]["request"]["id"] == 950


async def test_predictions_are_called_so(desk: Desk) -> None:
    page = await desk.html("/?range=day")
    for figure in ("Saved", "Server alone"):
        assert re.search(rf"<dt>{figure}<span class=\"predicted\">predicted</span></dt>", page)
    for figure in ("Evaluated", "Reused", "Requests"):
        assert f"<dt>{figure}</dt>" in page
    assert "evaluated by the server alone (predicted)" in page


async def test_each_of_several_servers_tells_what_was_saved_there(desk: Desk) -> None:
    desk.upstream.saved = -1200
    assert "since toki looks after it" not in await desk.html("/"), "it is what was saved in all"
    desk.upstreams.append(desk.upstream)
    assert (await desk.html("/")).count("lost 1,200 tokens, since toki looks after it (predicted)") == 2
    found = await desk.json("/overview")
    assert [one["saving"] for one in found["servers"]] == [{"tokens": -1200, "seconds": None}] * 2


async def test_another_answer_without_the_cache_is_a_warning(desk: Desk) -> None:
    page = await desk.html("/")
    assert "2 of 10 answers that were asked for again" in page
    assert "answer said something else, from its character 13 on" in await desk.html("/requests/1000")
    assert "cache: identical" in await desk.html("/requests/100")


async def test_what_was_recorded_is_shown_without_what_was_in_memory(desk: Desk) -> None:
    page = await desk.html("/requests/990")
    for part in (
        "A clock" if False else "a clock in the system text",
        "freeze it",
        "not there any more",
        "longest prefix",
    ):
        assert part in page


@pytest.mark.parametrize("target", [*PAGES, "/requests/990"])
async def test_hostile_texts_are_shown_and_do_nothing(hostile: Desk, target: str) -> None:
    page = await hostile.html(target)
    seen = Seen(page)
    assert "<script>alert('1')</script>" in seen.text
    assert page.isascii() or page.replace("\n", "").isprintable()
    assert [one for name, one in seen.tags if name == "script"] in ([], [{"src": "/toki/live.js", "defer": None}])
    assert not any(
        "alert" in (value or "") for name, one in seen.tags for key, value in one.items() if key != "aria-label"
    )


@pytest.mark.parametrize("target", ["/overview", "/requests", "/requests/990", "/conversations", "/conversations/961"])
async def test_hostile_texts_are_plain_json(hostile: Desk, target: str) -> None:
    answer = await hostile.ask(f"/api{target}")
    assert answer.content.isascii()
    assert recorded.HOSTILE[:20] in json.dumps(json.loads(answer.content))


SCHEMA = {
    "/overview": model.Overview,
    "/requests": model.Requests,
    "/requests/1000": model.RequestView,
    "/conversations": model.Conversations,
    "/conversations/961": model.ConversationView,
}


@pytest.mark.parametrize("target", SCHEMA)
async def test_json_has_the_fields_that_are_documented(desk: Desk, target: str) -> None:
    _compare(await desk.json(target), SCHEMA[target])


def _compare(data: Any, kind: Any) -> None:
    """Whether plain data is what a dataclass of the model says."""
    if is_dataclass(kind):
        assert isinstance(data, dict)
        hints = get_type_hints(kind)
        assert list(data) == list(hints)
        for name, hint in hints.items():
            _compare(data[name], hint)
    elif isinstance(data, list):
        for one in data:
            _compare(one, get_args(kind)[0])
    elif data is not None and get_args(kind):
        _compare(data, get_args(kind)[0])
    elif data is not None:
        assert isinstance(data, (int, float) if kind is float else kind)
        assert not isinstance(data, bool) or kind is bool


async def test_json_and_page_say_the_same(desk: Desk) -> None:
    found = await desk.json("/overview?range=day")
    page = await desk.html("/?range=day")
    for name in ("evaluated", "alone_evaluated", "prompt_tokens", "reused", "hits"):
        assert f"{found['sums'][name]:,}" in page
    assert found["saving"]["tokens"] == found["sums"]["alone_evaluated"] - found["sums"]["evaluated"] - 200
    assert found["saving"]["seconds"] is None, "no speed was measured"
    assert sum(bar["sums"]["requests"] for bar in found["timeline"]) == found["sums"]["requests"]
    assert found["range"] == "day"


async def test_the_first_hour_is_shown_as_one(tmp_path: Path) -> None:
    recorded.many(tmp_path / "toki.db", 100, days=0.02)
    desk = Desk(_settings(tmp_path))
    assert (await desk.json("/overview"))["range"] == "hour"
    assert (await desk.json("/overview?range=month"))["range"] == "month"
    desk.close()


async def test_without_a_database_the_servers_are_shown(tmp_path: Path) -> None:
    desk = Desk(_settings(tmp_path))
    page = await desk.html("/")
    assert "nothing is recorded yet" in page
    assert "http://127.0.0.1:1" in page
    assert (await desk.json("/overview"))["trouble"].startswith("nothing is recorded yet")
    assert (await desk.ask("/requests")).status == 503
    assert (await desk.ask("/metrics")).status == 200
    desk.close()


@pytest.mark.parametrize(
    "target", ["/requests/123456", "/conversations/2", "/api/requests/123456", "/x", "/?range=ages"]
)
async def test_what_is_not_there_is_said(desk: Desk, target: str) -> None:
    assert (await desk.ask(target)).status in (400, 404)


async def test_files_are_there_under_their_types(desk: Desk) -> None:
    for name, kind in (("style.css", "text/css"), ("live.js", "text/javascript"), ("icon.svg", "image/svg+xml")):
        answer = await desk.ask(f"/{name}")
        assert (answer.status, answer.kind) == (200, f"{kind}; charset=utf-8")
        assert b"http" not in answer.content.replace(b"http://www.w3.org/2000/svg", b""), "nothing from elsewhere"


async def test_a_fault_of_the_page_is_an_answer_and_a_complaint(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> str:
        raise RuntimeError("a fault")

    monkeypatch.setattr(serve, "overview", broken)
    answer = await desk.ask("/")
    assert answer.status == 500
    assert b"fault" not in answer.content
    assert desk.complaints.total("page: RuntimeError") == 1
    assert (await desk.ask("/requests")).status == 200


async def test_only_so_many_wait(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = [asyncio.ensure_future(desk.ask("/")) for _ in range(serve.MOST_WAITING + 4)]
    answers = [await one for one in asked]
    assert [one.status for one in answers].count(503) == 4
    assert [one.status for one in answers].count(200) == serve.MOST_WAITING
    assert (await desk.ask("/")).status == 200


async def test_forgetting_needs_the_token(desk: Desk) -> None:
    assert (await desk.ask("/api/forget", method="POST")).status == 401
    assert (await desk.ask("/api/forget", authorization="Bearer open-sesame")).status == 405
    answer = await desk.ask("/api/forget", method="POST", authorization="Bearer open-sesame")
    assert (answer.status, json.loads(answer.content)) == (200, {"forgotten": True})


async def test_the_loop_is_free_while_the_page_is_made(desk: Desk) -> None:
    asked = asyncio.ensure_future(desk.ask("/?range=month"))
    longest, last = 0.0, time.thread_time()
    while not asked.done():
        await asyncio.sleep(0)
        now = time.thread_time()
        longest, last = max(longest, now - last), now
    assert (await asked).status == 200
    assert longest < 0.05


async def test_metrics_are_what_prometheus_reads(desk: Desk) -> None:
    answer = await desk.ask("/metrics")
    assert answer.kind == "text/plain; version=0.0.4; charset=utf-8"
    families = {family.name: family for family in text_string_to_metric_families(answer.content.decode())}
    assert all(name.startswith("toki_") and family.documentation for name, family in families.items())
    assert families["toki_trusted"].samples[0].labels == {"server": "http://127.0.0.1:1"}


async def test_a_damaged_row_takes_nothing_else_with_it(desk: Desk) -> None:
    """SQLite keeps any value in any column, so each value that is bad somewhere stands in a row of each of them."""
    path = desk.settings.db
    damaged = recorded.damage(path)
    alone = [f"/requests/{id_}" for id_ in damaged]
    for target in ("/", "/requests", "/requests?before=900", "/conversations", "/conversations/961", *NARROWED, *alone):
        answer = await desk.ask(target)
        assert answer.status == 200 or (answer.status == 404 and target.startswith("/requests/")), (target, answer)
    for target in ("/overview", "/requests", "/conversations", "/conversations/961", *alone):
        answer = await desk.ask(f"/api{target}")
        assert answer.status in (200, 404), (target, answer)
        json.loads(answer.content, parse_constant=pytest.fail)
    shown: list[int] = []
    before: Any = 10**6
    while before is not None:
        view = await desk.json(f"/requests?before={before}")
        shown += [one["request"]["id"] for one in view["requests"]]
        before = view["older"]
    assert set(range(1, 1001)) - set(damaged) <= set(shown)
    assert shown == sorted(set(shown), reverse=True)
