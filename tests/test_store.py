"""The store against real files, real locks, real processes and real trouble."""

from __future__ import annotations

import logging
import os
import queue
import shutil
import signal
import sqlite3
import stat
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import Callable
from collections.abc import Iterator
from contextlib import closing
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.effort import examples

from toki import schema
from toki import store as module
from toki.engine.events import Action
from toki.engine.events import Outcome
from toki.schema import MIGRATIONS
from toki.schema import Check
from toki.schema import Found
from toki.schema import Own
from toki.schema import Refused
from toki.schema import Row
from toki.schema import open_database
from toki.store import FOUND_COLUMNS
from toki.store import OWN_COLUMNS
from toki.store import Store
from toki.store import trouble

ROOT = Path(__file__).parents[1]
SCHEMAS = Path(__file__).with_name("schemas")
COLUMNS = [
    *("id", "at", "conversation", "endpoint", "model", "status", "stream", "prompt_tokens", "reply_tokens", "parent"),
    *("shared", "similarity", "predicted", "alone", "reused", "evaluated", "outcome", "slot", "action", "reason"),
    *("first_byte_ms", "added_ms", "total_ms"),
]
TOTALS = ["requests", "hits", "soft_hits", "misses", "unknown", "prompt_tokens", "evaluated", "alone_evaluated"]


def row(key: int, **changes: Any) -> Row:
    plain = Row(
        key=key,
        at=time.time(),
        conversation=key,
        endpoint="/v1/chat/completions",
        model="m",
        status=200,
        stream=True,
        prompt_tokens=1000,
        reply_tokens=20,
        parent=None,
        shared=0,
        similarity=None,
        predicted=900,
        alone=400,
        reused=900,
        evaluated=100,
        outcome=Outcome.HIT,
        slot=2,
        action=Action.PINNED,
        reason="longest prefix",
        first_byte_ms=12.5,
        added_ms=1.25,
        total_ms=250.0,
    )
    return replace(plain, **changes)


def read(path: Path, sql: str = "SELECT * FROM requests ORDER BY id") -> list[dict[str, Any]]:
    with closing(sqlite3.connect(path)) as db:
        db.row_factory = sqlite3.Row
        return [dict(found) for found in db.execute(sql)]


def count(path: Path) -> int:
    """How many rows there are; 0 as long as there is no database (opening one would make it)."""
    if not path.exists() or not read(path, "SELECT * FROM sqlite_schema WHERE name = 'requests'"):
        return 0
    return int(read(path, "SELECT count(*) AS n FROM requests")[0]["n"])


def until(holds: Callable[[], bool], seconds: float = 20.0) -> None:
    """Poll until `holds()`."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it never came true"
        time.sleep(0.002)


@contextmanager
def storing(path: Path, keep_days: int = 30) -> Iterator[Store]:
    store = Store(path, keep_days)
    try:
        yield store
    finally:
        store.close()


class Log(logging.Handler):
    """What the store logs, for tests to wait for."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []
        self._new: queue.SimpleQueue[str] = queue.SimpleQueue()

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())
        self._new.put(record.getMessage())

    def wait_for(self, part: str) -> str:
        while part not in (text := self._new.get(timeout=20)):
            pass
        return text

    def times(self, part: str) -> int:
        return sum(part in text for text in self.texts)


@pytest.fixture
def log() -> Iterator[Log]:
    handler = Log()
    module.logger.addHandler(handler)
    yield handler
    module.logger.removeHandler(handler)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema, "BUSY_S", 0.02)
    monkeypatch.setattr(module, "RETRY_S", 0.01)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "toki.db"


def child(script: str, *arguments: object) -> subprocess.Popen[str]:
    """A process that runs `script` with Row, Store and row() at hand and `arguments` in sys.argv."""
    prelude = "import sys\nfrom pathlib import Path\nfrom tests.test_store import *\n"
    return subprocess.Popen(
        [sys.executable, "-c", prelude + textwrap.dedent(script), *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "addon")])},
    )


def finish(process: subprocess.Popen[str]) -> str:
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    return output


# --- the schema -----------------------------------------------------------------------------------


def test_table_and_view_have_exactly_the_documented_columns(path: Path) -> None:
    open_database(path).close()
    assert [found["name"] for found in read(path, "PRAGMA table_info(requests)")] == COLUMNS
    assert [found["name"] for found in read(path, "PRAGMA table_info(totals)")] == TOTALS


def test_database_is_in_wal_mode_and_its_owners_alone(path: Path) -> None:
    old_mask = os.umask(0)
    try:
        with storing(path) as store:
            store.put(row(1))
            until(lambda: count(path) == 1)
            modes = {file.name: file.stat().st_mode & 0o777 for file in path.parent.iterdir()}
            (journal,) = read(path, "PRAGMA journal_mode")
    finally:
        os.umask(old_mask)
    assert modes == {"toki.db": 0o600, "toki.db-wal": 0o600, "toki.db-shm": 0o600}
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert journal == {"journal_mode": "wal"}


@pytest.mark.parametrize(("before", "after"), [(0o644, 0o600), (0o444, 0o400)])
def test_wider_permissions_are_narrowed_and_never_widened(path: Path, before: int, after: int) -> None:
    open_database(path).close()
    path.chmod(before)
    open_database(path).close()
    assert path.stat().st_mode & 0o777 == after


def test_totals_of_an_empty_database_are_zero(path: Path) -> None:
    open_database(path).close()
    assert read(path, "SELECT * FROM totals") == [dict.fromkeys(TOTALS, 0)]


def test_totals_compare_the_same_rows(path: Path) -> None:
    with storing(path) as store:
        store.put(row(1, prompt_tokens=1000, evaluated=100, alone=400, outcome=Outcome.HIT))
        store.put(row(2, prompt_tokens=500, evaluated=500, alone=0, outcome=Outcome.MISS))
        store.put(row(3, prompt_tokens=300, evaluated=295, alone=None, outcome=Outcome.SOFT_HIT))  # no prediction
        store.put(row(4, prompt_tokens=70, evaluated=None, alone=60, outcome=Outcome.UNKNOWN))  # no measurement
        store.put(row(5, prompt_tokens=None, evaluated=9, alone=1, outcome=Outcome.UNKNOWN))
    (totals,) = read(path, "SELECT * FROM totals")
    assert totals == {
        "requests": 5,
        "hits": 1,
        "soft_hits": 1,
        "misses": 1,
        "unknown": 2,
        "prompt_tokens": 1870,
        "evaluated": 100 + 500 + 295 + 9,
        "alone_evaluated": 600 + 500 + 295 + 9,
    }


# --- rows -----------------------------------------------------------------------------------------

whole = st.integers(-(2**63), 2**63 - 1)
figure = st.none() | whole
number = st.floats(allow_nan=False)
text = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)


@st.composite
def histories(draw: st.DrawFn) -> list[Row]:
    """Rows as an engine may send them: keys are unique, parents and conversations any keys, known or not."""
    keys = draw(st.lists(st.integers(0, 40), unique=True, max_size=8))
    some_key = st.integers(0, 40)
    return [
        draw(
            st.builds(
                Row,
                key=st.just(key),
                at=number,
                conversation=st.just(key) | some_key,
                endpoint=text,
                model=text,
                status=figure,
                stream=st.booleans(),
                prompt_tokens=figure,
                reply_tokens=figure,
                parent=st.none() | some_key,
                shared=whole,
                similarity=st.none() | number,
                predicted=figure,
                alone=figure,
                reused=figure,
                evaluated=figure,
                outcome=st.sampled_from(Outcome),
                slot=figure,
                action=st.sampled_from(Action),
                reason=text,
                first_byte_ms=st.none() | number,
                added_ms=number,
                total_ms=number,
            )
        )
        for key in keys
    ]


@examples(30)
@given(histories())
def test_every_row_is_read_back_equal(rows: list[Row]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "toki.db"
        with storing(path, keep_days=10**30) as store:
            for each in rows:
                store.put(each)
        found = read(path)
        assert store.lost == 0
    ids: dict[int, int] = {}
    firsts: dict[int, int] = {}
    expected = []
    for row_id, each in enumerate(rows, start=1):
        parent = None if each.parent is None else ids.get(each.parent)
        ids[each.key] = row_id
        first = firsts.setdefault(each.conversation, row_id)
        values = {name: getattr(each, name) for name in COLUMNS[1:]}
        expected.append({"id": row_id, **values, "parent": parent, "conversation": first})
    assert found == expected


def test_conversation_and_parent_are_row_ids(path: Path) -> None:
    with storing(path) as store:
        store.put(row(70))
        store.put(row(71, conversation=70, parent=70))
        store.put(row(80, parent=71))
        store.put(row(72, conversation=70, parent=71))
        store.put(row(90, conversation=89, parent=88))  # of these no row ever came
        store.put(row(91, conversation=89, parent=90))
    links = [(found["id"], found["conversation"], found["parent"]) for found in read(path)]
    assert links == [(1, 1, None), (2, 1, 1), (3, 3, 2), (4, 1, 2), (5, 5, None), (6, 5, 5)]


def test_keys_that_were_long_unused_are_forgotten(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KNOWN_KEYS", 3)
    monkeypatch.setattr(module, "BATCH", 1)
    with storing(path) as store:
        for key in range(4):
            store.put(row(key, parent=0 if key else None, conversation=0))  # 0 stays in use
        for key in range(4, 7):
            store.put(row(key))
        store.put(row(7, parent=0, conversation=0))
        store.put(row(8, parent=6))
    links = [(found["conversation"], found["parent"]) for found in read(path)]
    assert links == [(1, None), (1, 1), (1, 1), (1, 1), (5, None), (6, None), (7, None), (8, None), (9, 7)]


def test_hostile_texts_and_figures_are_stored_harmlessly(path: Path) -> None:
    evil = "'); DROP TABLE requests; -- <script>alert(1)</script> \0 \N{SNOWMAN}"
    with storing(path) as store:
        store.put(row(1, model=evil, reason=evil))
        store.put(row(2, model="\ud800" + "x" * 2_000_000))
        store.put(row(3, prompt_tokens=2**63, reused=-(2**63) - 1, evaluated=-5, similarity=float("nan")))
        store.put(row(4, shared=np.int64(7), similarity=np.float32(0.5)))
    first, second, third, fourth = read(path)
    assert (first["model"], first["reason"]) == (evil, evil)
    assert second["model"].startswith("\\ud800xxx")
    assert len(second["model"]) < 1_100
    assert [third[name] for name in ("prompt_tokens", "reused", "evaluated", "similarity")] == [None, None, -5, None]
    assert (fourth["shared"], fourth["similarity"]) == (7, 0.5)
    assert store.lost == 0


def test_a_row_that_cannot_be_stored_costs_no_other(path: Path, log: Log) -> None:
    with storing(path) as store:
        store.put(row(1))
        store.put(row(2, reason=None))
        store.put(row(3, parent=2))
    assert [(found["id"], found["parent"]) for found in read(path)] == [(1, None), (2, None)]
    assert store.lost == 1
    assert log.times("1 rows could not be stored and are lost") == 1


def test_ten_thousand_rows_are_quick(path: Path) -> None:
    rows = [row(key, conversation=key % 50, parent=key - 1) for key in range(10_000)]
    began = time.perf_counter()
    with storing(path) as store:
        for each in rows:
            store.put(each)
        put = time.perf_counter() - began
    closed = time.perf_counter() - began
    assert (count(path), store.lost) == (10_000, 0)
    assert put < 10  # 0.1 s on an idle machine
    assert closed < 20  # 0.2 s


# --- other processes ------------------------------------------------------------------------------


def test_a_row_is_visible_to_another_process_within_a_second(path: Path) -> None:
    open_database(path).close()
    reader = child(
        """
        print("ready", flush=True)
        until(lambda: count(Path(sys.argv[1])) == 1)
        print(time.time())
        """,
        path,
    )
    assert reader.stdout is not None
    assert reader.stdout.readline() == "ready\n"
    with storing(path) as store:
        put = time.time()
        store.put(row(1))
        seen = float(finish(reader))
    assert seen - put < 1.0


@pytest.mark.slow
def test_two_processes_share_one_database(path: Path) -> None:
    script = """
        with storing(Path(sys.argv[1])) as store:
            for key in range(600):
                store.put(row(key, model=sys.argv[2], conversation=0, parent=key - 1 if key else None))
        print(store.lost)
        """
    writers = [child(script, path, name) for name in ("one", "two")]
    assert [finish(writer) for writer in writers] == ["0\n", "0\n"]
    rows = read(path)
    assert [found["id"] for found in rows] == list(range(1, 1201))
    for name in ("one", "two"):
        own = [found for found in rows if found["model"] == name]
        assert [found["parent"] for found in own] == [None, *(found["id"] for found in own[:-1])]
        assert {found["conversation"] for found in own} == {own[0]["id"]}


@pytest.mark.slow
def test_a_killed_writer_leaves_a_good_database(path: Path) -> None:
    open_database(path).close()
    writer = child(
        """
        store = Store(Path(sys.argv[1]), 30)
        for key in range(10**9):
            until(lambda: len(store._rows) < 100)
            store.put(row(key, parent=key - 1))
        """,
        path,
    )
    try:
        until(lambda: count(path) > 500)
    finally:
        writer.send_signal(signal.SIGKILL)
        writer.communicate()
    assert read(path, "PRAGMA integrity_check") == [{"integrity_check": "ok"}]
    rows = count(path)
    assert rows > 500
    with storing(path) as store:
        store.put(row(1))
    assert [found["id"] for found in read(path)] == list(range(1, rows + 2))


# --- migrations -----------------------------------------------------------------------------------


def m999_note(db: sqlite3.Connection) -> None:
    db.execute("ALTER TABLE requests ADD COLUMN note TEXT")


def m999_breaks(db: sqlite3.Connection) -> None:
    db.execute("DROP VIEW totals")
    db.execute("no such statement")


def test_migrations_run_once_and_keep_the_rows(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with storing(path) as store:
        store.put(row(1))
    monkeypatch.setattr(schema, "MIGRATIONS", (*MIGRATIONS, m999_note))
    open_database(path).close()
    with storing(path) as store:
        store.put(row(1))
    assert [(found["id"], found["note"]) for found in read(path)] == [(1, None), (2, None)]
    names = [found["name"] for found in read(path, "SELECT name FROM toki_migrations ORDER BY name")]
    assert names == ["m001_requests", "m002_own_requests", "m003_findings", "m004_checks", "m005_minutes", "m999_note"]


@pytest.mark.parametrize("schema", sorted(SCHEMAS.iterdir()), ids=lambda schema: schema.stem)
def test_a_database_of_each_earlier_schema_becomes_todays_and_keeps_its_rows(path: Path, schema: Path) -> None:
    """tests/schemas has a database as each migration left it, in SQL: a migration that is out never changes."""
    path.parent.mkdir()
    with closing(sqlite3.connect(path)) as db:
        db.executescript(schema.read_text())
        tables = ["requests", *(name for name in ("own_requests", "findings", "checks") if name in schema.read_text())]
        before = {name: db.execute(f"SELECT * FROM {name}").fetchall() for name in tables}
    assert all(before.values())
    with storing(path, keep_days=10**6) as store:
        store.put(row(1))
    new = path.with_name("new.db")
    open_database(new).close()
    assert structure(path) == structure(new)
    with closing(sqlite3.connect(path)) as db:
        for name, rows in before.items():
            assert db.execute(f"SELECT * FROM {name} LIMIT {len(rows)}").fetchall() == rows
        assert db.execute("SELECT id FROM requests").fetchall() == [(1,), (2,), (3,), (4,)]
        assert db.execute("SELECT requests FROM totals").fetchall() == [(4,)]
        assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def structure(path: Path) -> list[dict[str, Any]]:
    found = read(path, "SELECT type, name, tbl_name, sql FROM sqlite_schema ORDER BY type, name")
    return [{**one, "sql": " ".join((one["sql"] or "").replace('"', "").split())} for one in found]


def test_a_migration_that_fails_changes_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    open_database(path).close()
    monkeypatch.setattr(schema, "MIGRATIONS", (*MIGRATIONS, m999_breaks))
    with pytest.raises(sqlite3.OperationalError, match="syntax error"):
        open_database(path)
    assert len(read(path, "SELECT name FROM toki_migrations")) == len(MIGRATIONS)
    assert read(path, "SELECT * FROM totals")
    assert read(path, "SELECT requests FROM totals") == [{"requests": 0}]


def test_a_newer_database_is_refused_and_left_alone(path: Path, monkeypatch: pytest.MonkeyPatch, log: Log) -> None:
    with monkeypatch.context() as newer:
        newer.setattr(schema, "MIGRATIONS", (*MIGRATIONS, m999_note))
        open_database(path).close()
    before = path.read_bytes()
    with pytest.raises(Refused, match=r"a newer toki wrote it \(m999_note\): update toki"):
        open_database(path)
    with storing(path) as store:
        store.put(row(1))
        store.put(row(2))
    assert path.read_bytes() == before
    assert store.lost == 2
    assert log.times("a newer toki wrote it") == 1
    assert log.times("2 rows were never written") == 1


def test_the_database_of_another_program_is_left_alone(path: Path) -> None:
    path.parent.mkdir()
    with closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE requests (theirs)")
    before = path.read_bytes()
    with pytest.raises(Refused, match="another program"):
        open_database(path)
    assert path.read_bytes() == before


# --- trouble --------------------------------------------------------------------------------------


@pytest.mark.usefixtures("impatient")
def test_rows_wait_while_another_writer_holds_the_lock(path: Path, log: Log) -> None:
    with closing(open_database(path)) as other, storing(path) as store:
        other.execute("BEGIN IMMEDIATE")
        for key in range(1000):
            store.put(row(key))
        log.wait_for("another program holds its lock")
        assert count(path) == 0
        other.execute("ROLLBACK")
        log.wait_for("is written again; 0 rows were lost")
    assert count(path) == 1000
    assert store.lost == 0
    assert (len(log.texts), log.times("cannot be written")) == (2, 1)


@pytest.mark.usefixtures("impatient")
def test_the_oldest_rows_are_dropped_when_trouble_lasts(path: Path, monkeypatch: pytest.MonkeyPatch, log: Log) -> None:
    monkeypatch.setattr(module, "KEPT_ROWS", 700)
    with closing(open_database(path)) as other, storing(path) as store:
        other.execute("BEGIN IMMEDIATE")
        store.put(row(0))
        log.wait_for("the last 700 rows wait")
        for key in range(1, 1000):
            store.put(row(key, prompt_tokens=key))
        until(lambda: store.lost == 300)
        other.execute("ROLLBACK")
        log.wait_for("is written again; 300 rows were lost")
    assert [found["prompt_tokens"] for found in read(path)] == list(range(300, 1000))
    assert store.lost == 300


def test_close_gives_up_on_a_lock_that_stays(path: Path, monkeypatch: pytest.MonkeyPatch, log: Log) -> None:
    monkeypatch.setattr(schema, "BUSY_S", 0.02)
    with closing(open_database(path)) as other:
        other.execute("BEGIN IMMEDIATE")
        store = Store(path, 30)
        store.put(row(1))
        store.close()
        assert store.lost == 1
    assert log.times("1 rows were never written") == 1


def test_close_does_not_wait_longer_than_told(path: Path, log: Log) -> None:
    with closing(open_database(path)) as other:
        other.execute("BEGIN IMMEDIATE")
        store = Store(path, 30)
        store.put(row(1))
        store.close(timeout=0.01)
        assert log.times("leaving without them") == 1
        other.execute("ROLLBACK")
    store.close()
    assert count(path) == 1


def test_a_row_after_close_is_counted(path: Path) -> None:
    store = Store(path, 30)
    store.close()
    store.close()
    store.put(row(1))
    assert store.lost == 1


def damage_all(path: Path) -> None:
    path.write_bytes(b"These are not the rows you are looking for. " * 500)


def damage_tables(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * (path.stat().st_size - 4096))


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(
    ("damage", "kind"), [(damage_all, "it is not a database"), (damage_tables, "it is damaged")], ids=["all", "tables"]
)
def test_a_damaged_file_is_left_and_rows_wait_for_a_good_one(
    path: Path, log: Log, damage: Callable[[Path], None], kind: str
) -> None:
    with storing(path) as store:
        for key in range(300):
            store.put(row(key))
    damage(path)
    before = path.read_bytes()
    with storing(path) as store:
        store.put(row(1))
        log.wait_for(kind)
        assert path.read_bytes() == before
        path.rename(path.with_suffix(".damaged"))
        log.wait_for("is written again; 0 rows were lost")
    assert count(path) == 1
    assert log.times("cannot be written") == 1


@pytest.mark.usefixtures("impatient")
def test_a_directory_that_cannot_be_made(path: Path, log: Log) -> None:
    path.parent.write_text("a file")
    with storing(path) as store:
        store.put(row(1))
        log.wait_for("cannot be written")
        path.parent.unlink()
        log.wait_for("is written again")
    assert count(path) == 1


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("what", ["file", "directory"])
def test_a_deleted_database_is_made_anew(path: Path, log: Log, what: str) -> None:
    with storing(path) as store:
        store.put(row(1))
        until(lambda: count(path) == 1)
        if what == "directory":
            shutil.rmtree(path.parent)
        else:
            path.unlink()
        store.put(row(2, conversation=1, parent=1))
    (found,) = read(path)
    assert (found["id"], found["conversation"], found["parent"]) == (1, 1, None)
    assert log.times("deleted or replaced while open") == 1


def test_a_replaced_database_does_not_suffer_from_the_old_ones_end(path: Path) -> None:
    """Closing a deleted database must not take the log of its successor at the same path with it."""
    with storing(path) as first:
        first.put(row(1))
        until(lambda: count(path) == 1)
        for file in path.parent.iterdir():
            file.unlink()
        with storing(path) as second:
            second.put(row(1, model="second"))
            until(lambda: count(path) == 1)
            first.put(row(2, model="first"))
            until(lambda: count(path) == 2)
            second.put(row(2, model="second"))
            until(lambda: count(path) == 3)
    assert [found["model"] for found in read(path)] == ["second", "first", "second"]
    assert read(path, "PRAGMA integrity_check") == [{"integrity_check": "ok"}]


@pytest.fixture
def plain_user() -> Iterator[Path]:
    """A directory of a user whom file modes bind: root becomes `nobody` for the test."""
    shared = (tempfile.gettempdir(), "/var/tmp", "/dev/shm")  # the first may be root's alone
    where = next(place for place in shared if Path(place).stat().st_mode & stat.S_IXOTH)
    with tempfile.TemporaryDirectory(dir=where) as directory:
        if os.geteuid() != 0:
            yield Path(directory)
            return
        os.chown(directory, 65534, 65534)
        os.seteuid(65534)
        try:
            yield Path(directory)
        finally:
            os.seteuid(0)


@pytest.mark.usefixtures("impatient")
def test_a_read_only_file(plain_user: Path, log: Log) -> None:
    path = plain_user / "toki.db"
    open_database(path).close()
    path.chmod(0o400)
    with storing(path) as store:
        store.put(row(1))
        log.wait_for("it is read-only")
        path.chmod(0o600)
        log.wait_for("is written again")
    assert count(path) == 1


@pytest.mark.usefixtures("impatient")
def test_a_directory_that_may_not_be_written(plain_user: Path, log: Log) -> None:
    path = plain_user / "toki.db"
    plain_user.chmod(0o500)
    with storing(path) as store:
        store.put(row(1))
        log.wait_for("Permission denied")
        plain_user.chmod(0o700)
        log.wait_for("is written again")
    assert count(path) == 1


def test_a_file_that_may_not_grow(path: Path) -> None:
    """The kernel refuses each write beyond a size, as a full disk does, and later takes them again."""
    process = child(
        """
        import resource
        module.RETRY_S = 0.01
        log = Log()
        module.logger.addHandler(log)
        with storing(Path(sys.argv[1])) as store:
            store.put(row(0))
            until(lambda: count(Path(sys.argv[1])) == 1)
            resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
            for key in range(1, 3000):
                store.put(row(key))
            log.wait_for("cannot be written: disk I/O error")
            resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            log.wait_for("is written again; 0 rows were lost")
        print(len(log.texts))
        """,
        path,
    )
    assert finish(process) == "2\n"
    assert count(path) == 3000
    assert read(path, "PRAGMA integrity_check") == [{"integrity_check": "ok"}]


def test_a_full_disk_is_called_so(path: Path) -> None:
    with closing(open_database(path)) as db:
        db.execute("PRAGMA max_page_count = 1")
        with pytest.raises(sqlite3.OperationalError) as caught:
            db.execute("CREATE TABLE more AS SELECT randomblob(100000)")
    assert trouble(caught.value) == "the disk is full"


def test_many_threads_may_put(path: Path) -> None:
    with storing(path) as store:

        def put_some(start: int) -> None:
            for key in range(start, start + 200):
                store.put(row(key))

        threads = [threading.Thread(target=put_some, args=[start]) for start in range(0, 1000, 200)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert (count(path), store.lost) == (1000, 0)


# --- retention ------------------------------------------------------------------------------------


def test_own_requests_belong_to_their_row_and_go_with_it(path: Path) -> None:
    now = time.time()
    primers = (Own("primer", 900, 800, 100, 12.5), Own("primer", 2000, None, None, 60_000.0))
    with storing(path, keep_days=10) as store:
        store.put(row(1, at=now - 8 * 86_400, own=primers[:1]))
        store.put(row(2, own=primers))
        store.put(row(3))
    found = read(path, "SELECT * FROM own_requests ORDER BY id")
    assert [(one["request"], *(one[name] for name in OWN_COLUMNS)) for one in found] == [
        (1, "primer", 900, 800, 100, 12.5),
        (2, "primer", 900, 800, 100, 12.5),
        (2, "primer", 2000, None, None, 60_000.0),
    ]
    with storing(path, keep_days=7):
        until(lambda: count(path) == 2)
    assert {one["request"] for one in read(path, "SELECT request FROM own_requests")} == {2}


def test_findings_belong_to_their_row_and_go_with_it(path: Path) -> None:
    now = time.time()
    why = Found(1, "clock", "system", 900, 1.5, 3, "rewrite", "900 tokens read again: a clock in system")
    with storing(path, keep_days=10) as store:
        store.put(row(1, at=now - 8 * 86_400))
        store.put(row(2))
        store.put(why)
        store.put(replace(why, key=2, seconds=None))
        store.put(replace(why, key=3))  # of this request there is no row
    found = read(path, "SELECT * FROM findings ORDER BY id")
    assert [(one["request"], *(one[name] for name in FOUND_COLUMNS)) for one in found] == [
        (1, "clock", "system", 900, 1.5, 3, "rewrite", "900 tokens read again: a clock in system"),
        (2, "clock", "system", 900, None, 3, "rewrite", "900 tokens read again: a clock in system"),
    ]
    with storing(path, keep_days=7):
        until(lambda: count(path) == 1)
    assert [one["request"] for one in read(path, "SELECT request FROM findings")] == [2]


def test_checks_belong_to_their_row_and_go_with_it(path: Path) -> None:
    now = time.time()
    check = Check(1, "substantive", 12, 900, 3, 41.5)
    with storing(path, keep_days=10) as store:
        store.put(row(1, at=now - 8 * 86_400))
        store.put(row(2))
        for key in (1, 2, 3):  # of the third there is no row
            store.put(replace(check, key=key))
    found = read(path, "SELECT * FROM checks ORDER BY id")
    values = ("substantive", 12, 900, 3, 41.5)
    assert [tuple(one.values())[1:] for one in found] == [
        (1, *values),
        (2, *values),
    ]
    with storing(path, keep_days=7):
        until(lambda: count(path) == 1)
    assert [one["request"] for one in read(path, "SELECT request FROM checks")] == [2]


def test_old_rows_are_deleted_at_start_and_ids_never_come_back(path: Path) -> None:
    now = time.time()
    with storing(path, keep_days=10) as store:
        until(path.exists)
        for key in range(2500):
            store.put(row(key, at=now - 8 * 86_400))
        store.put(row(2500, at=now - 6 * 86_400))
    with storing(path, keep_days=7):
        until(lambda: count(path) == 1)
    with storing(path, keep_days=5) as store:
        until(lambda: count(path) == 0)
        store.put(row(1))
    assert [found["id"] for found in read(path)] == [2502]


def test_old_rows_are_deleted_again_later(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "DAY_S", 0.1)
    with storing(path, keep_days=1) as store:
        store.put(row(1))
        until(lambda: count(path) == 1)
        until(lambda: count(path) == 0)


def test_the_space_of_old_rows_is_given_back(path: Path) -> None:
    old = time.time() - 8 * 86_400
    with storing(path, keep_days=10) as store:
        for key in range(8000):
            store.put(row(key, at=old))
    size = path.stat().st_size
    with storing(path, keep_days=7):
        until(lambda: 4096 * read(path, "PRAGMA page_count")[0]["page_count"] < size / 4)
    assert path.stat().st_size < size / 4
    assert read(path, "PRAGMA integrity_check") == [{"integrity_check": "ok"}]


def test_a_file_that_cannot_shrink_in_steps_is_used_again(path: Path) -> None:
    """Files that were made without it keep their size, as they always did."""
    path.parent.mkdir()
    with closing(sqlite3.connect(path)) as db:
        db.executescript((SCHEMAS / "m001_requests.sql").read_text())
    with storing(path, keep_days=1) as store:
        until(lambda: count(path) == 0)
        store.put(row(1))
    assert [found["id"] for found in read(path)] == [4]
