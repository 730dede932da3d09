"""Recorded traffic, read from the database beside whatever writes to it.

A file can be damaged, and SQLite keeps any value in any column: a row that lacks something is left out, and where a
value that may be missing is bad, it is missing.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterator
from collections.abc import Sequence
from contextlib import closing
from contextlib import contextmanager
from dataclasses import dataclass
from dataclasses import fields
from pathlib import Path
from typing import Any

BUSY_S = 5.0  # how long SQLite waits for a lock


class Unreadable(Exception):
    """The file holds no rows that can be read; the text says why, in one line."""


@dataclass(frozen=True, slots=True)
class Request:
    """One row of `requests`, all of its columns in their order: see the README. Whatever reads them takes their names
    from here. Lengths in tokens, `at` in seconds of unix time; None: not known."""

    id: int
    at: float
    conversation: int
    endpoint: str
    model: str
    status: int | None
    stream: bool
    prompt_tokens: int | None
    reply_tokens: int | None
    parent: int | None
    shared: int
    similarity: float | None
    predicted: int | None
    alone: int | None
    reused: int | None
    evaluated: int | None
    outcome: str
    slot: int | None
    action: str
    reason: str
    first_byte_ms: float | None
    added_ms: float
    total_ms: float

    @property
    def read(self) -> bool:
        """Whether toki knew the prompt's tokens, as far as the row shows it; else `shared` means nothing."""
        return self.parent is not None or self.predicted is not None or self.alone is not None


@dataclass(frozen=True, slots=True)
class Own:
    """toki's own requests on behalf of the recorded ones: how many, and the tokens that they evaluated."""

    requests: int = 0
    evaluated: int = 0
    unknown: int = 0  # of which the server did not say how many tokens they evaluated


@dataclass(frozen=True, slots=True)
class Why:
    """One row of `findings`: why tokens of a request were processed again."""

    request: int
    cause: str
    place: str
    tokens: int
    seconds: float | None
    times: int
    remedy: str
    verdict: str


@dataclass(frozen=True, slots=True)
class Checked:
    """Answers that were asked for again without the server's cache (toki_verify). Of these `substantive` then said
    something else, the one to the request `latest` last, and `cosmetic` ones were worded otherwise."""

    answers: int = 0
    cosmetic: int = 0
    substantive: int = 0
    latest: int | None = None


@dataclass(frozen=True, slots=True)
class WorkingSet:
    """What the recorded traffic needs a server to keep, in tokens."""

    requests: int
    conversations: int  # that went on after others had come between
    longest: int  # prompt and reply
    tokens: int  # of all these conversations, at their longest


# What a column holds where it is sound, by the type of its field; texts are more than any number.
_SOUND = {
    "int": "typeof({0}) = 'integer' AND {0} BETWEEN 0 AND 1e9",
    "float": "+{} BETWEEN 0 AND 1e11",
    "str": "typeof({}) = 'text'",
    "bool": "{} IN (0, 1)",
}


def _columns(kind: type[Request | Why], table: str) -> str:
    """The columns of a kind of rows."""
    return ", ".join(
        f"iif({_SOUND[of].format(name)}, {name}, NULL)" if optional else name
        for name, of, optional in _fields(kind, table)
    )


def _whole(kind: type[Request | Why], table: str) -> str:
    """The condition that all is there which can't be missing."""
    return " AND ".join(_SOUND[of].format(name) for name, of, optional in _fields(kind, table) if not optional)


def _fields(kind: type[Request | Why], table: str) -> Iterator[tuple[str, str, bool]]:
    """Each field's column, its type, and whether it may be missing."""
    for field in fields(kind):
        of, _, none = str(field.type).partition(" | ")
        yield f"{table}.{field.name}", of, bool(none)


COLUMNS, WHOLE = _columns(Request, "requests"), _whole(Request, "requests")
_STREAM = [field.name for field in fields(Request)].index("stream")


def requests(path: Path, since: float = 0.0, latest: int | None = None) -> list[Request]:
    """The rows from `since` (unix time, s) on, the `latest` ones only, in the order of their ids. Raises Unreadable."""
    query = f"SELECT {COLUMNS} FROM requests WHERE at >= ? AND {WHOLE} ORDER BY id DESC LIMIT ?"
    rows = _rows(path, query, (since, -1 if latest is None else latest))
    return [_request(row) for row in reversed(rows)]


def each(path: Path, since: float = 0.0) -> Iterator[Request]:
    """The rows from `since` on in the order of their ids, however many they are: none is kept. Raises Unreadable."""
    with _reading(path) as db:
        for row in db.execute(f"SELECT {COLUMNS} FROM requests WHERE at >= ? AND {WHOLE} ORDER BY id", (since,)):
            yield _request(row)


def _request(row: Sequence[Any]) -> Request:
    """Of its columns; SQLite has no truth values."""
    values = list(row)
    values[_STREAM] = bool(values[_STREAM])
    return Request(*values)


def own(path: Path, since: float = 0.0) -> Own | None:
    """toki's own requests for rows from `since` on; None where the database is of a toki that did not keep them."""
    sound = _SOUND["int"].format("own.evaluated")
    query = f"""
        SELECT count(*), CAST(total(own.evaluated) FILTER (WHERE {sound}) AS INTEGER),
            count(*) - count(*) FILTER (WHERE {sound})
        FROM own_requests AS own JOIN requests ON requests.id = own.request WHERE requests.at >= ?"""
    rows = _rows_if_kept(path, query, since)
    return None if rows is None else Own(*rows[0])


def own_of_each(path: Path, since: float = 0.0) -> dict[int, int]:
    """Tokens that toki's own requests evaluated, by the row that they were sent for."""
    query = f"""
        SELECT own.request, CAST(total(own.evaluated) AS INTEGER) FROM own_requests AS own
        JOIN requests ON requests.id = own.request
        WHERE requests.at >= ? AND {_SOUND["int"].format("own.evaluated")} GROUP BY own.request"""
    return dict(_rows_if_kept(path, query, since) or ())


def findings(path: Path, since: float = 0.0) -> list[Why] | None:
    """What was found about rows from `since` on; None where the database is of a toki that did not keep it."""
    query = f"""
        SELECT {_columns(Why, "findings")} FROM findings JOIN requests ON requests.id = findings.request
        WHERE requests.at >= ? AND {_whole(Why, "findings")}"""
    rows = _rows_if_kept(path, query, since)
    return None if rows is None else [Why(*row) for row in rows]


def checked(path: Path, since: float = 0.0) -> Checked | None:
    """The checks of answers to rows from `since` on; None where the database is of a toki that did not keep them."""
    query = """
        SELECT count(*),
            count(*) FILTER (WHERE checks.divergence NOT IN ('identical', 'substantive')),
            count(*) FILTER (WHERE checks.divergence = 'substantive'),
            max(checks.request) FILTER (WHERE checks.divergence = 'substantive')
        FROM checks JOIN requests ON requests.id = checks.request WHERE requests.at >= ?"""
    rows = _rows_if_kept(path, query, since)
    return None if rows is None else Checked(*rows[0])


def _rows_if_kept(path: Path, query: str, since: float) -> list[tuple[Any, ...]] | None:
    try:
        return _rows(path, query, (since,))
    except Unreadable as error:
        if isinstance(error.__cause__, sqlite3.OperationalError) and "no such table" in str(error.__cause__):
            return None
        raise


def working_set(rows: Sequence[Request]) -> WorkingSet:
    """What `rows` need kept: conversations are named by their first row."""
    turns: Counter[int] = Counter()
    lengths: dict[int, int] = {}
    returned: set[int] = set()
    previous = None
    for row in rows:
        if row.prompt_tokens is None:
            continue
        turns[row.conversation] += 1
        if turns[row.conversation] > 1 and previous != row.conversation:
            returned.add(row.conversation)
        length = row.prompt_tokens + (row.reply_tokens or 0)
        lengths[row.conversation] = max(lengths.get(row.conversation, 0), length)
        previous = row.conversation
    return WorkingSet(len(rows), len(returned), max(lengths.values(), default=0), sum(lengths[one] for one in returned))


def _rows(path: Path, query: str, values: Sequence[float]) -> list[tuple[Any, ...]]:
    with _reading(path) as db:
        return db.execute(query, values).fetchall()


@contextmanager
def _reading(path: Path) -> Iterator[sqlite3.Connection]:
    if not path.is_file():
        raise Unreadable(f"there is no database at {path}")
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", timeout=BUSY_S, uri=True)) as db:
            db.text_factory = lambda raw: raw.decode("utf-8", "replace")
            yield db
    except sqlite3.Error as error:
        raise Unreadable(f"{path} can't be read as toki's database: {error}") from error
