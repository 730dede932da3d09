"""Reading what was recorded. How fast: tests/test_million.py."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.page import recorded

from toki.engine.events import Action
from toki.engine.events import Outcome
from toki.inspect.records import requests as rows
from toki.page import history as module
from toki.page.history import PAGE
from toki.page.history import TURNS
from toki.page.history import History
from toki.page.history import Unreadable
from toki.page.history import total
from toki.page.model import Sums
from toki.page.routes import Filters
from toki.page.routes import Range
from toki.schema import Own
from toki.schema import Row
from toki.schema import open_database
from toki.store import Database
from toki.store import Store

TOTALS = ("requests", "hits", "soft_hits", "misses", "unknown", "prompt_tokens", "evaluated", "alone_evaluated")
OWN = Own("primer", 50, 40, 10, 3.0)
WRITTEN: dict[str, Any] = {
    "key": 1,
    "conversation": 1,
    "endpoint": "/completion",
    "model": "",
    "status": 200,
    "stream": False,
    "prompt_tokens": 100,
    "reply_tokens": 1,
    "parent": None,
    "shared": 0,
    "similarity": None,
    "predicted": 40,
    "reused": 40,
    "slot": 0,
    "action": Action.PASSED,
    "reason": "",
    "first_byte_ms": None,
    "added_ms": 0.0,
    "total_ms": 1.0,
}


@pytest.fixture
def history(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[History]:
    """Of 1,000 requests of a day."""
    path = tmp_path / "toki.db"
    recorded.many(path, 1000, days=1)
    reader = History(path)
    reader.begin()
    yield reader
    reader.close()


def test_the_sums_of_minutes_follow_what_is_written_and_deleted(tmp_path: Path) -> None:
    path = tmp_path / "toki.db"
    recorded.many(path, 2000, days=1)
    before = minutes(path)
    assert before == recorded.sums(path)
    store = Store(path, keep_days=30)
    store.put(Row(**WRITTEN, at=time.time(), outcome=Outcome.HIT, alone=40, evaluated=60, own=(OWN, OWN)))
    store.put(Row(**(WRITTEN | {"key": 2}), at=time.time(), outcome=Outcome.UNKNOWN, alone=None, evaluated=None))
    store.put(Row(**(WRITTEN | {"key": 3}), at=time.time(), outcome=Outcome.HIT, alone=None, evaluated=60))
    unread = WRITTEN | {"key": 4, "prompt_tokens": None, "reused": None, "predicted": None}
    store.put(Row(**unread, at=time.time(), outcome=Outcome.UNKNOWN, alone=30, evaluated=70))
    store.put(Row(**(unread | {"key": 5}), at=time.time(), outcome=Outcome.UNKNOWN, alone=None, evaluated=None))
    store.close()
    assert minutes(path) == recorded.sums(path) != before
    assert added_up(path) == totals(path)
    database = Database(path)
    middle = time.time() - 43_200
    while database.delete_before(middle, 300):
        assert minutes(path) == recorded.sums(path)
        assert added_up(path) == totals(path)
    database.close()
    assert 0 < len(minutes(path)) < len(before)


@pytest.mark.parametrize(
    ("alone", "evaluated", "own", "saved"),
    [
        (10, 60, (), 30),
        (40, 60, (OWN, OWN), -20),
        (None, 60, (OWN,), -10),
        (10, None, (), 0),
        (None, None, (OWN,), -10),
    ],
)
def test_what_a_request_saved(alone: int | None, evaluated: int | None, own: tuple[Own, ...], saved: int) -> None:
    row = Row(**WRITTEN, at=0.0, outcome=Outcome.HIT, alone=alone, evaluated=evaluated, own=own)
    assert row.saved == saved


def minutes(path: Path) -> list[tuple[int, ...]]:
    db = sqlite3.connect(path)
    try:
        return db.execute("SELECT * FROM minutes ORDER BY minute").fetchall()
    finally:
        db.close()


def totals(path: Path) -> tuple[int, ...]:
    """What the view says."""
    with closing(sqlite3.connect(path)) as db:
        (found,) = db.execute("SELECT * FROM totals").fetchall()
    return tuple(found)


def added_up(path: Path) -> tuple[int, ...]:
    """The same columns of all minutes."""
    with closing(sqlite3.connect(path)) as db:
        (found,) = db.execute(f"SELECT {', '.join(f'sum({name})' for name in TOTALS)} FROM minutes").fetchall()
    return tuple(found)


def test_a_timeline_adds_up_to_the_view_totals(history: History, tmp_path: Path) -> None:
    now = time.time()
    for span in (Range.DAY, Range.WEEK, Range.MONTH):
        bars = history.timeline(span, now)
        assert len({bar.at for bar in bars}) == len(bars)
        assert all(bar.at % 60 == 0 for bar in bars)
    found = total(bar.sums for bar in bars)
    assert totals(tmp_path / "toki.db") == tuple(getattr(found, name) for name in TOTALS)
    assert found.own_evaluated == 200
    assert found.saved == found.alone_evaluated - found.evaluated - 200


def test_only_the_time_that_was_asked_for_is_shown(history: History) -> None:
    now = time.time()
    hour = total(bar.sums for bar in history.timeline(Range.HOUR, now)).requests
    assert 40 <= hour <= 43
    (clock, _) = history.causes(now - Range.HOUR.seconds)
    assert clock.requests + _.requests == pytest.approx(4, abs=1)
    assert history.checks(now - Range.HOUR.seconds).checked <= 1
    assert len(history.conversations(now - Range.HOUR.seconds, 99)) <= 3


def test_causes_are_summed_and_the_costliest_request_is_the_example(history: History) -> None:
    by_name = {cause.cause: cause for cause in history.causes(0)}
    assert {name: cause.requests for name, cause in by_name.items()} == {"clock": 50, "slot-taken": 50}
    assert by_name["clock"].what == "a clock in the system text"
    assert by_name["clock"].example == 990
    assert by_name["clock"].tokens == sum(100 + n for n in range(10, 1000, 20))
    assert by_name["clock"].seconds == pytest.approx(75)


def test_conversations_and_their_curves(history: History) -> None:
    talks = history.conversations(0, 3)
    assert [talk.id for talk in talks] == [1001, 961, 921]
    whole = history.conversation(961)
    assert whole is not None
    conversation, requests = whole
    assert [turn.id for turn in conversation.turns] == list(range(960, 1000))
    assert [one.id for one in requests] == list(range(999, 959, -1))
    assert conversation.sums.requests == 40
    assert conversation.sums.evaluated == sum(100 + n for n in range(40))
    assert history.conversation(5) is None


def test_a_list_goes_on_where_it_ended(history: History) -> None:
    first, older = history.requests()
    second, _ = history.requests(older)
    assert [one.id for one in (*first, *second)] == list(range(1000, 1000 - 2 * PAGE, -1))
    assert [(one.request.id, one.why.cause) for one in history.listed(first) if one.why][:2] == [
        (1000, "slot-taken"),
        (990, "clock"),
    ]
    assert history.requests(PAGE + 2)[1] == 2
    assert [history.requests(number)[1] for number in (PAGE + 1, 1, 0)] == [None, None, None]
    assert history.requests(1) == ((), None)
    assert history.listed(()) == ()


@pytest.mark.parametrize(
    ("filters", "fits"),
    [
        (Filters(outcome="miss"), lambda n: n % 7 == 0),
        (Filters(outcome="soft_hit"), lambda n: False),
        (Filters(outcome="miss", action="pinned", endpoint="/v1/chat/completions", model="m"), lambda n: n % 7 == 0),
        (Filters(action="passed"), lambda n: False),
        (Filters(model="M"), lambda n: False),
        (Filters(cause="clock"), lambda n: n % 20 == 10),
        (Filters(cause="slot-taken", outcome="miss"), lambda n: n % 140 == 0),
        (Filters(conversation=961), lambda n: 960 <= n < 1000),
        (Filters(conversation=961, outcome="miss"), lambda n: 960 <= n < 1000 and n % 7 == 0),
        (Filters(conversation=5), lambda n: False),
    ],
)
@pytest.mark.parametrize("looked_through", [1, 30, 1000, 10_000])
def test_a_list_that_is_narrowed_down_has_all_that_fit_page_by_page(
    history: History,
    monkeypatch: pytest.MonkeyPatch,
    filters: Filters,
    fits: Callable[[int], bool],
    looked_through: int,
) -> None:
    monkeypatch.setattr(module, "LOOKED_THROUGH", looked_through)
    found: list[int] = []
    older: int | None = None
    for _ in range(1001):
        some, older = history.requests(older, filters)
        found += [one.id for one in some]
        if older is None:
            break
    assert older is None
    assert found == [n for n in range(1000, 0, -1) if fits(n)]


def test_the_cause_that_is_asked_for_is_shown_though_another_costs_more(history: History, tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "toki.db")) as db, db:
        db.execute(
            "INSERT INTO findings (request, cause, place, tokens, seconds, times, remedy, verdict) "
            "VALUES (990, 'restarted', '', 9000, NULL, 1, 'nothing', '')"
        )
    for filters, cause in ((Filters(), "restarted"), (Filters(cause="clock"), "clock")):
        found, _ = history.requests(991, filters)
        (shown,) = history.listed(found[:1], filters.cause)
        assert shown.why is not None
        assert (shown.request.id, shown.why.cause) == (990, cause)


def test_conversations_are_narrowed_down_by_their_last_request(history: History, tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "toki.db")) as db, db:
        db.execute("UPDATE requests SET model = 'other' WHERE id IN (970, 959)")
    assert [talk.id for talk in history.conversations(0, 3, Filters(model="other"))] == [921]
    assert history.conversations(0, 3, Filters(model="other", endpoint="/completion")) == ()
    assert history.models() == ("m", "other")


def test_a_request_is_read_as_it_was_recorded(history: History, tmp_path: Path) -> None:
    found = history.request(500)
    (row,) = [row for row in rows(tmp_path / "toki.db") if row.id == 500]
    assert found is not None
    assert found == row
    assert found.stream is row.stream is True
    assert history.request(10**6) is None
    assert history.request(2**63 - 1) is None


def test_nothing_recorded_yet(tmp_path: Path) -> None:
    reader = History(tmp_path / "none.db")
    with pytest.raises(Unreadable, match="nothing is recorded yet"):
        reader.begin()
    open_database(tmp_path / "none.db").close()
    reader.begin()
    assert reader.timeline(Range.DAY, time.time()) == ()
    assert reader.causes(0) == ()
    assert reader.checks(0).checked == 0
    assert reader.conversations(0, 5) == ()
    assert reader.suiting(time.time()) is Range.DAY
    reader.close()


def test_a_file_that_is_none_is_said_to_be_one(tmp_path: Path) -> None:
    path = tmp_path / "toki.db"
    path.write_bytes(b"no database at all" * 100)
    reader = History(path)
    reader.begin()
    with pytest.raises(Unreadable, match="not a database"):
        reader.requests()


def test_a_file_that_was_replaced_is_opened_anew(history: History, tmp_path: Path) -> None:
    other = tmp_path / "other.db"
    recorded.many(other, 10)
    for name in ("toki.db-wal", "toki.db-shm"):
        (tmp_path / name).unlink(missing_ok=True)
    other.replace(tmp_path / "toki.db")
    history.begin()
    assert history.requests()[0][0].id == 10


def test_it_can_only_read(history: History) -> None:
    with pytest.raises(Unreadable, match="readonly"):
        history._rows("DELETE FROM requests")


def test_what_takes_too_long_is_stopped(history: History, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PATIENCE", 0.05)
    history.begin()
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"
    with pytest.raises(Unreadable, match="longer than"):
        history._rows(endless)
    history.begin()
    assert history.requests()


def test_sums_of_nothing() -> None:
    assert total([]) == Sums()
    assert total([Sums(requests=1, reused=5), Sums(requests=2)]) == replace(Sums(), requests=3, reused=5)


def test_long_conversations_show_their_latest_turns(tmp_path: Path) -> None:
    path = tmp_path / "toki.db"
    recorded.many(path, 2 * TURNS)
    db = sqlite3.connect(path)
    with db:
        db.execute("UPDATE requests SET conversation = 7")
    db.close()
    reader = History(path)
    reader.begin()
    found = reader.conversation(7)
    assert found is not None
    assert [turn.id for turn in found[0].turns] == list(range(TURNS + 1, 2 * TURNS + 1))
    reader.close()


@pytest.mark.parametrize("made_by", ["the migration", "the triggers"])
def test_figures_that_no_server_can_mean_break_nothing(tmp_path: Path, made_by: str) -> None:
    path = tmp_path / "toki.db"
    recorded.many(path, 100, days=0.02)
    huge = 2**62
    db = sqlite3.connect(path)
    with db:
        db.execute("UPDATE requests SET reused = :n, evaluated = :n, prompt_tokens = :n, alone = -:n", {"n": huge})
        db.execute("UPDATE findings SET tokens = ?", (huge,))
        if made_by == "the triggers":
            db.execute("CREATE TEMP TABLE copied AS SELECT * FROM requests")
            db.execute("DELETE FROM requests")
            db.execute("INSERT INTO requests SELECT * FROM copied")
        else:
            for trigger in ("minutes_more", "minutes_less", "own_minutes_more", "own_minutes_less"):
                db.execute(f"DROP TRIGGER {trigger}")
            db.execute("DROP TABLE minutes")
            db.execute("DROP INDEX requests_conversation")
            db.execute("DELETE FROM toki_migrations WHERE name = 'm005_minutes'")
    db.close()
    open_database(path).close()
    reader = History(path)
    reader.begin()
    sums = total(bar.sums for bar in reader.timeline(Range.HOUR, time.time()))
    assert sums.requests == 100
    assert min(sums.reused, sums.evaluated, sums.alone_evaluated) > 2**62
    assert all(cause.tokens > 2**60 for cause in reader.causes(0))
    assert reader.conversations(0, 5)
    reader.close()


def test_requests_of_the_future_are_not_drawn(history: History) -> None:
    """The clock was put back meanwhile."""
    found = total(bar.sums for bar in history.timeline(Range.DAY, time.time() - 43_200))
    assert found.requests == pytest.approx(500, abs=3)
