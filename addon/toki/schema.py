"""What stands in toki's database: the rows, and the tables that each version has made.

The rows hold lengths and names, never the text of a prompt, and the file is its owner's alone (mode 0600).
"""

from __future__ import annotations

import os
import sqlite3
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from toki.engine.events import Action
from toki.engine.events import Outcome

BUSY_S = 2.0  # how long SQLite waits for another writer; at close two such waits fit into the store's time-out


@dataclass(frozen=True, slots=True)
class Own:
    """One request of toki's own on behalf of a client's. Lengths are in tokens; None: no figure came."""

    purpose: str  # "primer", or "probe": one of no tokens, before the first use of a lever
    prompt_tokens: int
    reused: int | None
    evaluated: int | None
    ms: float  # until its answer


@dataclass(frozen=True, slots=True)
class Row:
    """One request. Requests are named by the engine's keys, unique within a process; the store turns them into ids.

    `conversation` is the key of the conversation's first request (its own key for a first one), `parent` that of the
    earlier request with the longest common prefix. Lengths are in tokens, `at` in seconds of unix time, *_ms in ms.
    """

    key: int
    at: float
    conversation: int
    endpoint: str
    model: str
    status: int | None  # None: no answer came
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
    outcome: Outcome
    slot: int | None
    action: Action
    reason: str
    first_byte_ms: float | None
    added_ms: float
    total_ms: float
    own: tuple[Own, ...] = ()  # what toki itself sent for it, in rows of another table

    @property
    def saved(self) -> int:
        """Tokens that were not evaluated, against the server left alone as predicted; own requests counted."""
        alone = alone_evaluated(self.prompt_tokens, self.alone, self.evaluated) or 0
        return alone - (self.evaluated or 0) - sum(own.evaluated or 0 for own in self.own)


@dataclass(frozen=True, slots=True)
class Found:
    """Why tokens of the request `key` were processed again: one cause, in words that hold none of the prompt."""

    key: int
    cause: str
    place: str  # in the prompt; "" where the cause lies elsewhere
    tokens: int
    seconds: float | None  # None: the server's speed was not known yet
    times: int  # requests until then that showed this cause
    remedy: str  # what kind of thing would help
    verdict: str


@dataclass(frozen=True, slots=True)
class Check:
    """How the answer to the request `key` compares with one that was given without the server's cache (toki_verify)."""

    key: int
    divergence: str  # a class of toki.divergence
    common: int  # characters before the first difference
    evaluated: int | None  # tokens that the check made the server evaluate
    slot: int
    ms: float


def alone_evaluated(prompt_tokens: int | None, alone: int | None, evaluated: int | None) -> int | None:
    """What the server left alone would have evaluated of a request, as predicted; as measured where that was not. None
    where the server told nothing: such a request counts for neither."""
    if evaluated is None or prompt_tokens is None or alone is None:
        return evaluated
    return prompt_tokens - alone


class Refused(Exception):
    """The file is one that toki must not write to; the text says why and what to do."""


def m001_requests(db: sqlite3.Connection) -> None:
    # AUTOINCREMENT: the id of a deleted row never comes back, so parent and conversation stay true or dangle.
    db.execute("""
        CREATE TABLE requests (
            id INTEGER PRIMARY KEY AUTOINCREMENT,
            at REAL NOT NULL,
            conversation INTEGER NOT NULL,
            endpoint TEXT NOT NULL,
            model TEXT NOT NULL,
            status INTEGER,
            stream INTEGER NOT NULL,
            prompt_tokens INTEGER,
            reply_tokens INTEGER,
            parent INTEGER,
            shared INTEGER NOT NULL,
            similarity REAL,
            predicted INTEGER,
            alone INTEGER,
            reused INTEGER,
            evaluated INTEGER,
            outcome TEXT NOT NULL,
            slot INTEGER,
            action TEXT NOT NULL,
            reason TEXT NOT NULL,
            first_byte_ms REAL,
            added_ms REAL NOT NULL,
            total_ms REAL NOT NULL
        )""")
    db.execute("CREATE INDEX requests_at ON requests (at)")
    # prompt_tokens sums what is known. evaluated and alone_evaluated sum the same rows, those whose evaluated the
    # server told, so that their difference is toki's gain. Of these, a row without a prediction for the server left
    # alone counts as evaluated the same there: it claims neither gain nor loss.
    db.execute("""
        CREATE VIEW totals AS SELECT
            count(*) AS requests,
            count(*) FILTER (WHERE outcome = 'hit') AS hits,
            count(*) FILTER (WHERE outcome = 'soft_hit') AS soft_hits,
            count(*) FILTER (WHERE outcome = 'miss') AS misses,
            count(*) FILTER (WHERE outcome = 'unknown') AS unknown,
            coalesce(sum(prompt_tokens), 0) AS prompt_tokens,
            coalesce(sum(evaluated), 0) AS evaluated,
            coalesce(sum(coalesce(prompt_tokens - alone, evaluated)) FILTER (WHERE evaluated IS NOT NULL), 0)
                AS alone_evaluated
        FROM requests""")


def m002_own_requests(db: sqlite3.Connection) -> None:
    # The tokens that toki makes a server evaluate must show beside those that it saves.
    db.execute("""
        CREATE TABLE own_requests (
            id INTEGER PRIMARY KEY,
            request INTEGER NOT NULL,
            purpose TEXT NOT NULL,
            prompt_tokens INTEGER NOT NULL,
            reused INTEGER,
            evaluated INTEGER,
            ms REAL NOT NULL
        )""")
    db.execute("CREATE INDEX own_requests_request ON own_requests (request)")


def m003_findings(db: sqlite3.Connection) -> None:
    db.execute("""
        CREATE TABLE findings (
            id INTEGER PRIMARY KEY,
            request INTEGER NOT NULL,
            cause TEXT NOT NULL,
            place TEXT NOT NULL,
            tokens INTEGER NOT NULL,
            seconds REAL,
            times INTEGER NOT NULL,
            remedy TEXT NOT NULL,
            verdict TEXT NOT NULL
        )""")
    db.execute("CREATE INDEX findings_request ON findings (request)")


def m004_checks(db: sqlite3.Connection) -> None:
    db.execute("""
        CREATE TABLE checks (
            id INTEGER PRIMARY KEY,
            request INTEGER NOT NULL,
            divergence TEXT NOT NULL,
            common INTEGER NOT NULL,
            evaluated INTEGER,
            slot INTEGER NOT NULL,
            ms REAL NOT NULL
        )""")
    db.execute("CREATE INDEX checks_request ON checks (request)")


def m005_minutes(db: sqlite3.Connection) -> None:
    # Sums by the minute, kept by the database itself, so that a month of a million requests is drawn in milliseconds.
    # The sums are those of the view `totals`; own_evaluated is what toki's own requests made the server evaluate.
    # total and not sum, which raises on an overflow: a server may claim any number.
    db.execute("CREATE INDEX requests_conversation ON requests (conversation, id)")
    db.execute("""
        CREATE TABLE minutes (
            minute INTEGER PRIMARY KEY,
            requests INTEGER NOT NULL,
            hits INTEGER NOT NULL,
            soft_hits INTEGER NOT NULL,
            misses INTEGER NOT NULL,
            unknown INTEGER NOT NULL,
            prompt_tokens INTEGER NOT NULL,
            reused INTEGER NOT NULL,
            evaluated INTEGER NOT NULL,
            alone_evaluated INTEGER NOT NULL,
            own_evaluated INTEGER NOT NULL DEFAULT 0
        )""")
    db.execute("""
        INSERT INTO minutes SELECT
            CAST(at / 60 AS INTEGER),
            count(*),
            count(*) FILTER (WHERE outcome = 'hit'),
            count(*) FILTER (WHERE outcome = 'soft_hit'),
            count(*) FILTER (WHERE outcome = 'miss'),
            count(*) FILTER (WHERE outcome = 'unknown'),
            CAST(total(prompt_tokens) AS INTEGER),
            CAST(total(reused) AS INTEGER),
            CAST(total(evaluated) AS INTEGER),
            CAST(total(coalesce(prompt_tokens - alone, evaluated)) FILTER (WHERE evaluated IS NOT NULL) AS INTEGER),
            CAST(total((SELECT total(own.evaluated) FROM own_requests AS own WHERE own.request = requests.id))
                AS INTEGER)
        FROM requests GROUP BY 1""")
    sums = (
        ("requests", "1"),
        ("hits", "({0}.outcome = 'hit')"),
        ("soft_hits", "({0}.outcome = 'soft_hit')"),
        ("misses", "({0}.outcome = 'miss')"),
        ("unknown", "({0}.outcome = 'unknown')"),
        ("prompt_tokens", "coalesce({0}.prompt_tokens, 0)"),
        ("reused", "coalesce({0}.reused, 0)"),
        ("evaluated", "coalesce({0}.evaluated, 0)"),
        (
            "alone_evaluated",
            "iif({0}.evaluated IS NULL, 0, coalesce({0}.prompt_tokens - {0}.alone, {0}.evaluated))",
        ),
    )
    names = ", ".join(name for name, _ in sums)
    values = ", ".join(value.format("NEW") for _, value in sums)
    more = ", ".join(f"{name} = {name} + excluded.{name}" for name, _ in sums)
    less = ", ".join(f"{name} = {name} - {value.format('OLD')}" for name, value in sums)
    db.execute(f"""
        CREATE TRIGGER minutes_more AFTER INSERT ON requests BEGIN
            INSERT INTO minutes (minute, {names}) VALUES (CAST(NEW.at / 60 AS INTEGER), {values})
            ON CONFLICT (minute) DO UPDATE SET {more};
        END""")
    db.execute(f"""
        CREATE TRIGGER minutes_less AFTER DELETE ON requests BEGIN
            UPDATE minutes SET {less} WHERE minute = CAST(OLD.at / 60 AS INTEGER);
            DELETE FROM minutes WHERE minute = CAST(OLD.at / 60 AS INTEGER) AND requests = 0;
        END""")
    # A request's own ones are written behind it and deleted before it.
    at = "(SELECT CAST(at / 60 AS INTEGER) FROM requests WHERE id = {0}.request)"
    for trigger, event, row, sign in (("more", "INSERT", "NEW", "+"), ("less", "DELETE", "OLD", "-")):
        db.execute(f"""
            CREATE TRIGGER own_minutes_{trigger} AFTER {event} ON own_requests WHEN {row}.evaluated IS NOT NULL BEGIN
                UPDATE minutes SET own_evaluated = own_evaluated {sign} {row}.evaluated
                WHERE minute = {at.format(row)};
            END""")


# Applied in this order, each once, and named in the table toki_migrations. Append; never change one that was released.
MIGRATIONS = (m001_requests, m002_own_requests, m003_findings, m004_checks, m005_minutes)


def open_database(path: Path) -> sqlite3.Connection:
    """The database at `path`, made and migrated where needed. Raises Refused, sqlite3.Error or OSError."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not path.exists():
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    # Only ever narrower for the file itself. SQLite makes -wal and -shm with its mode; those left over may differ.
    mode = path.stat().st_mode & 0o700
    for file in (path, path.with_name(f"{path.name}-wal"), path.with_name(f"{path.name}-shm")):
        with suppress(FileNotFoundError):  # another process that closes takes -wal and -shm away
            if file.stat().st_mode & 0o777 != mode:
                file.chmod(mode)
    db = sqlite3.connect(path, timeout=BUSY_S, isolation_level=None)
    try:
        if not _applied(db):  # refuses before anything is written
            db.execute("PRAGMA auto_vacuum = INCREMENTAL")  # of no effect once there is a table
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = NORMAL")
        with db:
            db.execute("BEGIN IMMEDIATE")  # another process may be migrating: what is applied is read behind the lock
            applied = _applied(db)
            db.execute("CREATE TABLE IF NOT EXISTS toki_migrations (name TEXT PRIMARY KEY, applied_at REAL NOT NULL)")
            for step in MIGRATIONS:
                if step.__name__ not in applied:
                    step(db)
                    db.execute("INSERT INTO toki_migrations VALUES (?, ?)", (step.__name__, time.time()))
    except BaseException:
        db.close()
        raise
    return db


def _applied(db: sqlite3.Connection) -> set[str]:
    """Names of the migrations that `db` has seen. Raises Refused where it is not this toki's to write."""
    tables = {name for (name,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}
    if not tables:
        return set()
    if "toki_migrations" not in tables:
        raise Refused("it is the database of another program: name another file with toki_db")
    applied = {name for (name,) in db.execute("SELECT name FROM toki_migrations")}
    newer = applied - {step.__name__ for step in MIGRATIONS}
    if newer:
        raise Refused(
            f"a newer toki wrote it ({', '.join(sorted(newer))}): update toki or name another file with toki_db"
        )
    return applied
