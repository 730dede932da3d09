"""Databases for tests of the page: made by SQL, in the schema that the store makes."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from itertools import product
from pathlib import Path

import pytest

from toki import schema
from toki.schema import MIGRATIONS
from toki.schema import m005_minutes
from toki.schema import open_database

HOSTILE = "<script>alert('1')</script>\"&\x1b[31m\u202e\x00'; DROP TABLE requests; --"
DAMAGE = ("much", b"\xff", 1e300, -1e300, float("inf"), float("-inf"), 2**62, -(2**62), 1.5, 0)
FIELDS = (
    *("at", "conversation", "endpoint", "model", "status", "stream", "prompt_tokens", "reply_tokens", "parent"),
    *("shared", "similarity", "predicted", "alone", "reused", "evaluated", "outcome", "slot", "action", "reason"),
    *("first_byte_ms", "added_ms", "total_ms"),
)


def many(path: Path, requests: int, *, days: float = 30.0, text: str = "") -> None:
    """`requests` requests of the last `days`, in conversations of 40, with a finding for every tenth and a check for
    every hundredth; `text` stands wherever a text can."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(schema, "MIGRATIONS", MIGRATIONS[: MIGRATIONS.index(m005_minutes)])
        db = open_database(path)  # without sums by the minute yet: row by row they take three times as long
    now = time.time()
    said = {"endpoint": "/v1/chat/completions", "model": "m", "reason": "longest prefix", "action": "pinned"}
    said = {name: text or usual for name, usual in said.items()}
    with db:
        db.execute("BEGIN")
        db.execute(
            f"""
            WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < :requests)
            INSERT INTO requests (id, {", ".join(FIELDS)})
            SELECT i, :now - :days * 86400 * (1 - i * 1.0 / :requests), i - i % 40 + 1, :endpoint, :model, 200, 1,
                1000 + i % 40, 20, iif(i % 40, i - 1, NULL), 900, 0.9, 900, 400, 900, 100 + i % 40,
                iif(i % 7, 'hit', 'miss'), i % 4, :action, :reason, 12.5, 1.5, 250.0
            FROM n""",
            {"requests": requests, "now": now, "days": days, **said},
        )
        db.execute(
            """
            INSERT INTO findings (request, cause, place, tokens, seconds, times, remedy, verdict)
            SELECT id, coalesce(:text, iif(id % 20, 'clock', 'slot-taken')), coalesce(:text, 'the system text'),
                100 + id % 1000, 1.5, 2, coalesce(:text, 'rewrite'), coalesce(:text, '100 tokens read again; freeze it')
            FROM requests WHERE id % 10 = 0""",
            {"text": text or None},
        )
        db.execute(
            """
            INSERT INTO checks (request, divergence, common, evaluated, slot, ms)
            SELECT id, iif(id % 500, 'identical', 'substantive'), 12, 1000, 1, 90.0 FROM requests WHERE id % 100 = 0"""
        )
        db.execute(
            """
            INSERT INTO own_requests (request, purpose, prompt_tokens, reused, evaluated, ms)
            SELECT id, coalesce(:text, 'primer'), 500, 490, 10, 5.0 FROM requests WHERE id % 50 = 0""",
            {"text": text or None},
        )
    db.close()
    open_database(path).close()


def sums(path: Path) -> list[tuple[int, ...]]:
    """What the table `minutes` should hold, worked out anew."""
    with sqlite3.connect(path) as db:
        found = db.execute("""
            SELECT CAST(at / 60 AS INTEGER), count(*), sum(outcome = 'hit'), sum(outcome = 'soft_hit'),
                sum(outcome = 'miss'), sum(outcome = 'unknown'), coalesce(sum(prompt_tokens), 0),
                coalesce(sum(reused), 0), coalesce(sum(evaluated), 0),
                coalesce(sum(iif(evaluated IS NULL, NULL, coalesce(prompt_tokens - alone, evaluated))), 0),
                coalesce(sum((SELECT sum(evaluated) FROM own_requests WHERE request = requests.id)), 0)
            FROM requests GROUP BY 1 ORDER BY 1""").fetchall()
    db.close()
    return found


def damage(path: Path) -> list[int]:
    """One row of the 1,000 after another, the latest first, has one value in one column; the ids of their requests."""
    found = []
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("UPDATE findings SET request = 1001 - id")  # each of the latest requests has one
        db.execute("UPDATE own_requests SET request = 1001 - id")
        db.execute("UPDATE checks SET request = 1001 - id")
        for table in ("requests", "findings", "own_requests", "checks"):
            key = "id" if table == "requests" else "request"
            ids = [id_ for (id_,) in db.execute(f"SELECT {key} FROM {table} ORDER BY {key} DESC")]
            columns = [name for _, name, *_ in db.execute(f"PRAGMA table_info({table})")]
            for n, (column, value) in enumerate(product([one for one in columns if one not in ("id", key)], DAMAGE)):
                db.execute(f"UPDATE {table} SET {column} = ? WHERE {key} = ?", (value, ids[n % len(ids)]))
                found.append(ids[n % len(ids)])
    return sorted(set(found))
