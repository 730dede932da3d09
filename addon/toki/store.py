"""One row per request in SQLite, written by one thread, so that no disk ever stands in the way of a request.

`Store.put` only appends to a bounded queue. Whatever happens to the file (locked, full, damaged, read-only, deleted,
no directory, written by a newer toki) costs rows at worst, never a request: rows wait in the queue while it lasts, the
log says each kind of trouble once, and that it is over. A file is never moved, repaired or replaced.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import fields
from dataclasses import replace
from numbers import Integral
from numbers import Real
from operator import attrgetter
from pathlib import Path
from typing import Any

from toki.schema import Check
from toki.schema import Found
from toki.schema import Own
from toki.schema import Row
from toki.schema import open_database

logger = logging.getLogger(__name__)

KEPT_ROWS = 20_000  # rows that wait for a database in trouble; beyond that the oldest are dropped
BATCH = 500  # rows of one transaction
RETRY_S = 0.5  # between two tries while there is trouble
CLEAN_BATCH = 1_000  # old rows deleted at once: a few milliseconds, so that other writers get their turn
FREE_BATCH = 1_000  # pages (of 4 KiB) given back at once, likewise
DAY_S = 86_400
KNOWN_KEYS = 8_192  # requests, and conversations, whose row ids are remembered for later rows; an engine knows 512
TEXT_LIMIT = 1_000  # characters of a text: a client chooses the model's name

# The table's columns behind `id`, in its order. Row has the same, with keys in place of ids.
COLUMNS = tuple(field.name for field in fields(Row) if field.name not in ("key", "own"))
OWN_COLUMNS = tuple(field.name for field in fields(Own))
FOUND_COLUMNS = tuple(field.name for field in fields(Found) if field.name != "key")
CHECK_COLUMNS = tuple(field.name for field in fields(Check) if field.name != "key")
_values = attrgetter(*COLUMNS)
_own_values = attrgetter(*OWN_COLUMNS)


def _insert(table: str, first: str, columns: Sequence[str]) -> str:
    return f"INSERT INTO {table} ({first}, {', '.join(columns)}) VALUES (?{', ?' * len(columns)})"


_INSERT = _insert("requests", "id", COLUMNS)
_INSERT_OWN = _insert("own_requests", "request", OWN_COLUMNS)
# What is known of a request later than its row: how it is written, and its values.
_INSERT_LATER: Mapping[type[Found | Check], tuple[str, attrgetter[tuple[Any, ...]]]] = {
    Found: (_insert("findings", "request", FOUND_COLUMNS), attrgetter(*FOUND_COLUMNS)),
    Check: (_insert("checks", "request", CHECK_COLUMNS), attrgetter(*CHECK_COLUMNS)),
}

_TROUBLES: Mapping[int, str] = {
    sqlite3.SQLITE_BUSY: "another program holds its lock",
    sqlite3.SQLITE_LOCKED: "another program holds its lock",
    sqlite3.SQLITE_FULL: "the disk is full",
    sqlite3.SQLITE_READONLY: "it is read-only",
    sqlite3.SQLITE_CORRUPT: "it is damaged; toki leaves it as it is: move it away and a new one is made",
    sqlite3.SQLITE_NOTADB: "it is not a database; toki leaves it as it is: move it away and a new one is made",
}


class Database:
    """The writer's connection: opened when first needed, opened anew when the file is not the same any more.

    Used by one thread, but for row_of and conversation_of. write and delete_before raise what open_database raises.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._db: sqlite3.Connection | None = None
        self._file: tuple[int, int] | None = None  # device and inode of the file that _db writes to
        self._born: float | None = None  # when the database was made whose ids are in the next two
        self._rows: dict[int, int] = {}  # key → row id, least recently used first
        self._conversations: dict[int, int] = {}  # key of the conversation → id of its first row that is known here

    def write(self, rows: Sequence[Row | Found | Check]) -> list[Exception]:
        """Write `rows` in one transaction, all or none, but for those that no database could take: their errors.

        What was found of a request whose row is not known any more is dropped.
        """
        errors: list[Exception] = []
        db = self._connection()
        known: dict[int, int] = {}
        conversations: dict[int, int] = {}
        with db:
            db.execute("BEGIN IMMEDIATE")
            (last,) = db.execute("SELECT max(seq) FROM sqlite_sequence WHERE name = 'requests'").fetchone()
            row_id = (last or 0) + 1
            for row in rows:
                if not isinstance(row, Row):
                    request = known.get(row.key, self._rows.get(row.key))
                    if request is not None:
                        insert, values = _INSERT_LATER[type(row)]
                        db.execute(insert, (request, *values(row)))
                    continue
                parent = None if row.parent is None else known.get(row.parent, self._rows.get(row.parent))
                first = conversations.get(row.conversation, self._conversations.get(row.conversation, row_id))
                try:
                    db.execute(_INSERT, (row_id, *_values(replace(row, parent=parent, conversation=first))))
                    db.executemany(_INSERT_OWN, [(row_id, *_own_values(own)) for own in row.own])
                except Exception as error:
                    if _of_the_file(error):
                        raise
                    errors.append(error)
                    continue
                if row.parent is not None and parent is not None:
                    known[row.parent] = parent
                known[row.key] = row_id
                conversations[row.conversation] = first
                row_id += 1
        # Only now: a transaction that failed gives its ids to others.
        _remember(self._rows, known)
        _remember(self._conversations, conversations)
        return errors

    def delete_before(self, at: float, limit: int) -> int:
        """Delete at most `limit` rows older than `at` (unix time, s), and what belongs to them; how many it were."""
        db = self._connection()
        old = "SELECT id FROM requests WHERE at < ? ORDER BY at LIMIT ?"
        with db:
            db.execute("BEGIN IMMEDIATE")
            for table in ("own_requests", "findings", "checks"):
                db.execute(f"DELETE FROM {table} WHERE request IN ({old})", (at, limit))
            return db.execute(f"DELETE FROM requests WHERE id IN ({old})", (at, limit)).rowcount

    def give_back(self, limit: int) -> int:
        """Return at most `limit` unused pages to the disk; how many it were. 0 for a file that can't shrink in steps,
        whose unused pages are used again."""
        db = self._connection()
        (before,) = db.execute("PRAGMA freelist_count").fetchone()
        db.executescript(f"PRAGMA incremental_vacuum({limit})")  # `execute` takes but its first step, one page
        (after,) = db.execute("PRAGMA freelist_count").fetchone()
        return int(before - after)

    def row_of(self, key: int) -> int | None:
        return self._rows.get(key)  # one look-up is whole beside the writer

    def conversation_of(self, key: int) -> int | None:
        return self._conversations.get(key)

    def close(self) -> None:
        if self._db is not None:
            self._db.close()
            self._db = None

    def _connection(self) -> sqlite3.Connection:
        # SQLite goes on writing to a deleted file without an error, where no one will ever read it.
        if self._db is not None and _identity(self._path) != self._file:
            logger.warning(f"toki: {self._path} was deleted or replaced while open; opening it anew")
            self.close()
        if self._db is None:
            self._db = open_database(self._path)
            self._file = _identity(self._path)
            (born,) = self._db.execute("SELECT min(applied_at) FROM toki_migrations").fetchone()
            if born != self._born:
                self._rows.clear()
                self._conversations.clear()
                self._born = born
        return self._db


class Store:
    """The queue and the thread in front of a Database. `lost` counts the rows that were dropped."""

    def __init__(self, path: Path, keep_days: int) -> None:
        self._path = path
        self._database = Database(path)
        self._keep_s = keep_days * DAY_S
        self._rows: deque[Row | Found | Check] = deque()
        self._wake = threading.Condition()  # guards _rows, _closing and lost; never held while the disk is waited for
        self._closing = False
        self.lost = 0
        # The writer's own: the kinds of trouble said since it last succeeded, and how much of `lost` was said.
        self._told: set[str] = set()
        self._lost_said = 0
        self._thread = threading.Thread(target=self._run, name="toki-store", daemon=True)
        self._thread.start()

    def put(self, row: Row | Found | Check) -> None:
        """Queue `row`. Never waits for the disk; where the queue is full the oldest row is dropped and counted."""
        if isinstance(row, Row):
            row = _storable(row)
        with self._wake:
            if self._closing:
                self._lose(1)
                return
            if len(self._rows) == KEPT_ROWS:
                self._rows.popleft()
                self._lose(1)
            self._rows.append(row)
            self._wake.notify()

    def row_of(self, key: int) -> int | None:
        """The id of the row of the request `key`; None where it has none (yet), or is long past. From any thread."""
        return self._database.row_of(key)

    def conversation_of(self, key: int) -> int | None:
        """The id that the conversation `key` goes by in the rows, likewise."""
        return self._database.conversation_of(key)

    def close(self, timeout: float = 5.0) -> None:
        """Write what is queued and end the thread, for at most `timeout` seconds; says what could not be written."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        self._thread.join(timeout)
        if self._thread.is_alive():
            logger.warning(f"toki: {self._path} does not take the last rows in {timeout:g} s; leaving without them")

    def _run(self) -> None:
        clean_at = time.monotonic()  # at start, then once a day
        failed = False
        while True:
            rows, closing = self._take(failed, clean_at)
            if closing and not rows:
                break
            try:
                if rows:
                    self._tell_errors(self._database.write(rows))
                    rows = []
                if not closing and time.monotonic() >= clean_at and not self._clean():
                    clean_at = time.monotonic() + DAY_S
                failed = False
            except Exception as error:
                failed = True
                self._put_back(rows)
                self._database.close()
                self._tell_trouble(error)
                if closing:
                    break
            else:
                self._tell_success()
        self._database.close()
        self._tell_end()

    def _take(self, failed: bool, clean_at: float) -> tuple[list[Row | Found | Check], bool]:
        """The next batch, as soon as there is work (or time for another try); and whether the store is closing."""
        with self._wake:
            if failed:
                self._wake.wait_for(lambda: self._closing, RETRY_S)
            else:
                self._wake.wait_for(lambda: self._closing or self._rows, clean_at - time.monotonic())
            return [self._rows.popleft() for _ in range(min(BATCH, len(self._rows)))], self._closing

    def _put_back(self, rows: list[Row | Found | Check]) -> None:
        with self._wake:
            room = KEPT_ROWS - len(self._rows)
            kept = rows[max(0, len(rows) - room) :]
            self._rows.extendleft(reversed(kept))
            self._lose(len(rows) - len(kept))

    def _clean(self) -> bool:
        """Delete some of the rows that are too old, or then give some of their space back; True where more may be left.

        One step, after which the rows that came meanwhile are written.
        """
        # In whole numbers, and not before 1970: any number of days is fine.
        before = max(0, int(time.time()) - self._keep_s)
        if self._database.delete_before(before, CLEAN_BATCH):
            return True
        return self._database.give_back(FREE_BATCH) == FREE_BATCH

    def _tell_trouble(self, error: Exception) -> None:
        kind = trouble(error)
        if kind not in self._told:
            self._told.add(kind)
            logger.warning(
                f"toki: {self._path} cannot be written: {kind}. No request is affected; the last {KEPT_ROWS:,} rows "
                "wait until it can be"
            )

    def _tell_success(self) -> None:
        # A disk that is nearly full takes some rows now and then: only an empty queue is the end of trouble.
        if not self._rows and (self._told or self.lost > self._lost_said):
            self._told.clear()
            lost = self._newly_lost()
            logger.warning(f"toki: {self._path} is written again; {lost:,} rows were lost meanwhile")

    def _tell_errors(self, errors: Sequence[Exception]) -> None:
        if errors:
            self._lose(len(errors))
            logger.warning(f"toki: {self._newly_lost():,} rows could not be stored and are lost: {errors[0]}")

    def _tell_end(self) -> None:
        with self._wake:
            self._lose(len(self._rows))
            self._rows.clear()
        lost = self._newly_lost()
        if lost:
            logger.warning(f"toki: {lost:,} rows were never written to {self._path} and are lost")

    def _lose(self, rows: int) -> None:
        with self._wake:  # reentrant
            self.lost += rows

    def _newly_lost(self) -> int:
        """How many rows were lost since this was asked last: each loss is said once."""
        newly, self._lost_said = self.lost - self._lost_said, self.lost
        return newly


def trouble(error: Exception) -> str:
    """The kind of trouble that `error` is, in words that say what to do where there is something to do."""
    # The low byte is the primary code: https://sqlite.org/rescode.html
    known = _TROUBLES.get(getattr(error, "sqlite_errorcode", 0) & 0xFF)
    return known or (error.strerror if isinstance(error, OSError) and error.strerror else str(error))


def _of_the_file(error: Exception) -> bool:
    """Whether a failed INSERT is the file's fault (sqlite3 raises DatabaseError itself for a damaged one)."""
    return isinstance(error, sqlite3.OperationalError) or type(error) is sqlite3.DatabaseError


def _storable(row: Row) -> Row:
    """`row` as SQLite can hold it."""
    changes = {
        name: plain for name, value in zip(COLUMNS, _values(row), strict=True) if (plain := _plain(value)) is not value
    }
    if row.own:
        changes["own"] = tuple(Own(*map(_plain, _own_values(own))) for own in row.own)
    return replace(row, **changes) if changes else row


def _plain(value: Any) -> Any:
    """Texts short and without lone surrogates; numbers Python's own (SQLite would store numpy's as bytes); no integers
    beyond 64 bits: a server may claim any, and one that cannot be stored is no figure."""
    if value is None or isinstance(value, bool | float):
        return value
    if isinstance(value, str):
        text = value[:TEXT_LIMIT].encode(errors="backslashreplace").decode()
        return value if text == value else text
    if isinstance(value, Integral):
        return int(value) if -(2**63) <= int(value) < 2**63 else None
    return float(value) if isinstance(value, Real) else value


def _remember(ids: dict[int, int], newest: Mapping[int, int]) -> None:
    """Move `newest` to the end of `ids`, and keep the last KNOWN_KEYS."""
    for key, row_id in newest.items():
        ids.pop(key, None)
        ids[key] = row_id
    while len(ids) > KNOWN_KEYS:
        del ids[next(iter(ids))]


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino
