"""Recorded traffic, read from the database beside whatever writes to it."""

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
    """One row of `requests`: see the README. Lengths in tokens, `at` in seconds of unix time; None: not known."""

    id: int
    at: float
    conversation: int
    endpoint: str
    model: str
    status: int | None
    prompt_tokens: int | None
    reply_tokens: int | None
    parent: int | None
    shared: int
    predicted: int | None
    alone: int | None
    reused: int | None
    evaluated: int | None
    outcome: str
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


COLUMNS = ", ".join(field.name for field in fields(Request))


def requests(path: Path, since: float = 0.0, latest: int | None = None) -> list[Request]:
    """The rows from `since` (unix time, s) on, the `latest` ones only, in the order of their ids. Raises Unreadable."""
    query = f"SELECT {COLUMNS} FROM requests WHERE at >= ? ORDER BY id DESC LIMIT ?"
    rows = _rows(path, query, (since, -1 if latest is None else latest))
    return [Request(*row) for row in reversed(rows)]


def each(path: Path, since: float = 0.0) -> Iterator[Request]:
    """The rows from `since` on in the order of their ids, however many they are: none is kept. Raises Unreadable."""
    with _reading(path) as db:
        for row in db.execute(f"SELECT {COLUMNS} FROM requests WHERE at >= ? ORDER BY id", (since,)):
            yield Request(*row)


def own(path: Path, since: float = 0.0) -> Own | None:
    """toki's own requests for rows from `since` on; None where the database is of a toki that did not keep them."""
    query = """
        SELECT count(*), coalesce(sum(own.evaluated), 0), count(*) - count(own.evaluated)
        FROM own_requests AS own JOIN requests ON requests.id = own.request WHERE requests.at >= ?"""
    rows = _rows_if_kept(path, query, since)
    return None if rows is None else Own(*rows[0])


def findings(path: Path, since: float = 0.0) -> list[Why] | None:
    """What was found about rows from `since` on; None where the database is of a toki that did not keep it."""
    columns = ", ".join(f"findings.{field.name}" for field in fields(Why))
    query = f"SELECT {columns} FROM findings JOIN requests ON requests.id = findings.request WHERE requests.at >= ?"
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
            yield db
    except sqlite3.Error as error:
        raise Unreadable(f"{path} can't be read as toki's database: {error}") from error
