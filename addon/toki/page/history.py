"""What was recorded, read for the page: each query is bounded, whatever the database holds.

Used by one thread, on a connection that can only read. Times come from the table `minutes`; the rest looks at the
latest rows alone. A query that takes too long all the same is stopped. A file can be damaged, and SQLite keeps any
value in any column: a row without a time or a length that can be one is left out, another bad value is not known.
"""

from __future__ import annotations

import sqlite3
import time
from collections import defaultdict
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import fields
from math import isfinite
from pathlib import Path
from types import NoneType
from typing import Any
from typing import TypeVar
from typing import get_args
from typing import get_type_hints

from toki.inspect.finding import WHAT
from toki.inspect.finding import Cause as Known
from toki.inspect.records import Request
from toki.page.model import Bar
from toki.page.model import Cause
from toki.page.model import Check
from toki.page.model import Checks
from toki.page.model import Conversation
from toki.page.model import Listed
from toki.page.model import Own
from toki.page.model import Sums
from toki.page.model import Turn
from toki.page.model import Why
from toki.page.routes import Filters
from toki.page.routes import Range
from toki.schema import alone_evaluated

RECENT = 2_000  # latest requests that conversations, and the names of models, are looked for in
LOOKED_THROUGH = 100_000  # requests among which those of one answer are looked for
MODELS = 50  # names that are proposed
RECENT_FINDINGS = 20_000  # latest findings that are summed up by cause
RECENT_CHECKS = 5_000
PAGE = 50  # requests of a list
TURNS = 500  # of a conversation
SPARK = 40  # turns that a list of conversations shows of each
PATIENCE = 5.0  # seconds for all queries of one answer
BUSY_S = 1.0
PULSE = 50_000  # SQLite's instructions between two looks at the clock: some milliseconds

T = TypeVar("T")

# The requests that can be shown. A text is more than any number, and so is no time. The + keeps SQLite from taking the
# index of `at` for this, which would be all rows.
_SOUND = """(
    SELECT * FROM requests WHERE +at BETWEEN 0 AND 1e11 AND typeof(conversation) = 'integer'
    AND typeof(shared) = 'integer' AND added_ms BETWEEN 0 AND 1e15 AND total_ms BETWEEN 0 AND 1e15
) AS requests"""
NOTHING = Checks(0, 0, 0, ())
ALL = Filters()
# total and not sum, which raises on an overflow: a server may claim any number.
_SUMS = ", ".join(f"CAST(total({field.name}) AS INTEGER)" for field in fields(Sums))
_REQUEST = ", ".join(f"requests.{field.name}" for field in fields(Request))
_WHY = "cause, place, tokens, seconds, times, remedy, verdict"
_OWN = ", ".join(field.name for field in fields(Own))


class Unreadable(Exception):
    """What was recorded can't be read; the text says why."""


class History:
    """Reads the database at `path`. All methods raise Unreadable."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._db: sqlite3.Connection | None = None
        self._file: tuple[int, int] | None = None
        self._until = 0.0

    def begin(self) -> None:
        """A new answer: its queries have PATIENCE together. Opens the file that is there now."""
        self._until = time.monotonic() + PATIENCE
        try:
            status = self._path.stat()
        except OSError as error:
            self.close()
            raise Unreadable(f"nothing is recorded yet ({error.strerror})") from error
        file = (status.st_dev, status.st_ino)
        if self._db is not None and file == self._file:
            return
        self.close()
        try:
            db = sqlite3.connect(f"{self._path.as_uri()}?mode=ro", uri=True, timeout=BUSY_S, isolation_level=None)
            db.execute("PRAGMA query_only = ON")
            db.text_factory = lambda raw: raw.decode("utf-8", "replace")
        except sqlite3.Error as error:
            raise Unreadable(str(error)) from error
        db.set_progress_handler(lambda: time.monotonic() > self._until, PULSE)
        self._db, self._file = db, file

    def close(self) -> None:
        if self._db is not None:
            self._db.close()
            self._db = None

    def suiting(self, now: float) -> Range:
        """The last hour where all of the last day's requests came in it, else the last day."""
        ((first,),) = self._rows("SELECT min(minute) FROM minutes WHERE minute > ?", (now - Range.DAY.seconds) // 60)
        return Range.HOUR if first is not None and 60 * first > now - Range.HOUR.seconds else Range.DAY

    def timeline(self, range_: Range, now: float) -> tuple[Bar, ...]:
        """The sums of each step until `now`, the latest last; steps without a request are not there."""
        step = range_.step // 60
        query = f"SELECT minute / ? * ?, {_SUMS} FROM minutes WHERE minute > ? AND minute <= ? GROUP BY 1 ORDER BY 1"
        rows = self._rows(query, step, step, (now - range_.seconds) // 60, now // 60)
        return tuple(Bar(60 * minute, one) for minute, *sums in rows for one in _sound(Sums, [sums]))

    def causes(self, since: float) -> tuple[Cause, ...]:
        """Each cause once, the costliest first."""
        # SQLite takes the other columns from the row with the maximum.
        query = f"""
            SELECT cause, place, remedy, count(DISTINCT request), CAST(total(f.tokens) AS INTEGER),
                sum(seconds), request, verdict,
                max(f.tokens)
            FROM findings AS f JOIN {_SOUND} ON requests.id = f.request
            WHERE f.id > (SELECT max(id) FROM findings) - ? AND at >= ?
            GROUP BY cause, remedy ORDER BY 5 DESC"""
        rows = self._rows(query, RECENT_FINDINGS, since)
        return _sound(Cause, ((cause, what(cause, place), *rest) for cause, place, *rest, _ in rows))

    def checks(self, since: float) -> Checks:
        """The latest checks of answers, the substantive ones by name."""
        recent = f"FROM checks JOIN {_SOUND} ON requests.id = request WHERE checks.id > ? AND at >= ?"
        ((last,),) = self._rows("SELECT max(id) FROM checks")
        after = (last or 0) - RECENT_CHECKS
        kinds = dict(self._rows(f"SELECT divergence, count(*) {recent} GROUP BY 1", after, since))
        query = (
            f"SELECT request, at, divergence, common {recent} AND divergence = 'substantive' ORDER BY checks.id DESC"
        )
        latest = _sound(Check, self._rows(f"{query} LIMIT 5", after, since))
        return Checks(sum(kinds.values()), kinds.get("identical", 0), kinds.get("substantive", 0), latest)

    def conversations(self, since: float, most: int, filters: Filters = ALL) -> tuple[Conversation, ...]:
        """Those of the latest requests since then, the latest first, `most` of them; with their latest turns. Model and
        endpoint are those of a conversation's last request."""
        query = f"""
            SELECT {_REQUEST} FROM {_SOUND}
            WHERE id > (SELECT max(id) FROM requests) - ? AND at >= ? ORDER BY id DESC"""
        talks: defaultdict[int, list[Request]] = defaultdict(list)
        for request in _sound(Request, self._rows(query, RECENT, since)):
            talks[request.conversation].append(request)
        found = [requests for requests in talks.values() if _passes(requests[0], filters)]
        return tuple(_conversation(requests, SPARK) for requests in found[:most])

    def conversation(self, number: int) -> tuple[Conversation, tuple[Request, ...]] | None:
        """One conversation and its latest requests, the latest first; None where there is none of that number."""
        query = f"SELECT {_REQUEST} FROM {_SOUND} WHERE conversation = ? ORDER BY id DESC LIMIT ?"
        requests = _sound(Request, self._rows(query, number, TURNS))
        return (_conversation(requests, TURNS), requests) if requests else None

    def requests(
        self, before: int | None = None, filters: Filters = ALL, most: int = PAGE
    ) -> tuple[tuple[Request, ...], int | None]:
        """The latest ones, or the latest before that id, and the id before which there are more, None at the end.

        Where `filters` leave few, the answer ends with the requests that were looked through: older ones are left for
        the next. Those of a conversation have an index.
        """
        ((last,),) = self._rows("SELECT max(id) FROM requests")
        end = (last or 0) + 1 if before is None else min(before, (last or 0) + 1)
        first = max(0, end - LOOKED_THROUGH) if filters != ALL and filters.conversation is None else 0
        columns = {name: value for name, value in filters.given().items() if name != "cause"}
        conditions = [f"{name} = ?" for name in columns]
        if filters.cause is not None:
            conditions.append("EXISTS (SELECT 1 FROM findings WHERE request = requests.id AND cause = ?)")
        where = " AND ".join(["id < ?", "id >= ?", *conditions])
        values = (*columns.values(), *([filters.cause] if filters.cause is not None else []))
        query = f"SELECT {_REQUEST} FROM {_SOUND} WHERE {where} ORDER BY id DESC LIMIT ?"
        rows = self._rows(query, end, first, *values, most + 1)
        older = rows[most - 1][0] if len(rows) > most else first if first > 0 and self._is_any_before(first) else None
        return _sound(Request, rows[:most]), older

    def models(self) -> tuple[str, ...]:
        """Names of models that were asked for lately."""
        query = "SELECT DISTINCT model FROM (SELECT model FROM requests ORDER BY id DESC LIMIT ?) ORDER BY model"
        return tuple(name for (name,) in self._rows(query, RECENT) if isinstance(name, str) and name)[:MODELS]

    def request(self, number: int) -> Request | None:
        return next(iter(_sound(Request, self._rows(f"SELECT {_REQUEST} FROM {_SOUND} WHERE id = ?", number))), None)

    def listed(self, requests: Sequence[Request], cause: str | None = None) -> tuple[Listed, ...]:
        """With the costliest cause of each, or the one that is asked for."""
        marks = ", ".join("?" * len(requests))
        query = f"SELECT request, {_WHY} FROM findings WHERE request IN ({marks}) ORDER BY cause = ?, tokens"
        rows = self._rows(query, *(one.id for one in requests), cause)
        found = {number: why for number, *rest in rows for why in _whys([rest])}
        return tuple(Listed(one, found.get(one.id)) for one in requests)

    def why(self, number: int) -> tuple[Why, ...]:
        """What was found about a request, the costliest first."""
        query = f"SELECT {_WHY} FROM findings WHERE request = ? ORDER BY tokens DESC"
        return _whys(self._rows(query, number))

    def own(self, number: int) -> tuple[Own, ...]:
        """What toki sent on behalf of a request."""
        return _sound(Own, self._rows(f"SELECT {_OWN} FROM own_requests WHERE request = ? ORDER BY id", number))

    def check(self, number: int) -> Check | None:
        query = f"SELECT request, at, divergence, common FROM checks JOIN {_SOUND} ON requests.id = request"
        rows = self._rows(f"{query} WHERE request = ? ORDER BY checks.id DESC LIMIT 1", number)
        return next(iter(_sound(Check, rows)), None)

    def neighbours(self, request: Request) -> tuple[int | None, int | None]:
        """The requests before and after it in its conversation."""
        query = f"SELECT {{}}(id) FROM {_SOUND} WHERE conversation = ? AND id {{}} ?"
        ((before,),) = self._rows(query.format("max", "<"), request.conversation, request.id)
        ((after,),) = self._rows(query.format("min", ">"), request.conversation, request.id)
        return before, after

    def _is_any_before(self, number: int) -> bool:
        return bool(self._rows("SELECT 1 FROM requests WHERE id < ? LIMIT 1", number))

    def _rows(self, query: str, *values: float | str | None) -> list[tuple[Any, ...]]:
        assert self._db is not None, "begin comes first"
        try:
            return self._db.execute(query, values).fetchall()
        except sqlite3.Error as error:
            self.close()
            late = time.monotonic() > self._until
            raise Unreadable(f"it took longer than {PATIENCE:g} s" if late else str(error)) from error


def total(sums: Iterable[Sums]) -> Sums:
    """All of them together."""
    values = [tuple(getattr(one, field.name) for field in fields(Sums)) for one in sums]
    return Sums(*map(sum, zip(*values, strict=True))) if values else Sums()


def what(cause: str, place: str) -> str:
    """A recorded cause in plain words; of one that this toki does not know its name."""
    try:
        return WHAT[Known(cause)].format(place or "the prompt")
    except ValueError:
        return cause


def _passes(request: Request, filters: Filters) -> bool:
    return filters.model in (None, request.model) and filters.endpoint in (None, request.endpoint)


def _whys(rows: Iterable[Sequence[Any]]) -> tuple[Why, ...]:
    return _sound(Why, ((cause, place, what(cause, place), *rest) for cause, place, *rest in rows))


def _sound(kind: type[T], rows: Iterable[Sequence[Any]]) -> tuple[T, ...]:
    """Those of `rows`, the fields of `kind` in their order, that hold what their types say. Where a value that may be
    missing is bad it is missing; a bad name is a question mark."""
    types = _TYPES[kind]
    read = ([_value(of, value) for of, value in zip(types, row, strict=True)] for row in rows)
    needed = [place for place, of in enumerate(types) if NoneType not in of]
    return tuple(kind(*row) for row in read if all(row[place] is not None for place in needed))


def _types(kind: type[Any]) -> tuple[tuple[type, ...], ...]:
    """What each field may be."""
    hints = get_type_hints(kind)
    return tuple(get_args(hints[field.name]) or (hints[field.name],) for field in fields(kind))


_TYPES: Mapping[Any, tuple[tuple[type, ...], ...]] = {
    kind: _types(kind) for kind in (Cause, Check, Own, Request, Sums, Why)
}


def _value(of: tuple[type, ...], value: Any) -> Any:
    """A value from SQLite (int, float, str, bytes or None) as one of these types; None: it is none of them."""
    if bool in of:
        return bool(value)
    if str in of:
        return value if isinstance(value, str) else "?"
    if float in of:
        return float(value) if isinstance(value, int | float) and isfinite(value) else None
    return value if isinstance(value, int) else None


def _conversation(requests: Sequence[Request], turns: int) -> Conversation:
    """Of its requests, the latest first."""
    last = requests[0]
    curve = [
        Turn(one.id, one.at, one.prompt_tokens, one.reused, one.evaluated, one.alone) for one in requests[:turns][::-1]
    ]
    return Conversation(
        last.conversation, last.at, last.endpoint, last.model, total(map(_sums, requests)), tuple(curve)
    )


def _sums(one: Request) -> Sums:
    return Sums(
        requests=1,
        hits=int(one.outcome == "hit"),
        soft_hits=int(one.outcome == "soft_hit"),
        misses=int(one.outcome == "miss"),
        unknown=int(one.outcome == "unknown"),
        prompt_tokens=one.prompt_tokens or 0,
        reused=one.reused or 0,
        evaluated=one.evaluated or 0,
        alone_evaluated=alone_evaluated(one.prompt_tokens, one.alone, one.evaluated) or 0,
    )
