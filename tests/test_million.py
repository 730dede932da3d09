"""A database of a million rows: as quick as a small one, where it counts. Times are those of a busy machine."""

from __future__ import annotations

import os
import re
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest
from tests.test_store import count
from tests.test_store import read
from tests.test_store import row
from tests.test_store import storing
from tests.test_store import until

from toki import schema
from toki.page.history import LOOKED_THROUGH
from toki.page.history import PAGE
from toki.page.history import History
from toki.page.history import total
from toki.page.routes import Filters
from toki.page.routes import Range
from toki.schema import MIGRATIONS
from toki.schema import m005_minutes
from toki.schema import open_database
from toki.store import DAY_S
from toki.store import Database

pytestmark = pytest.mark.slow

ROWS = 1_000_000
DAYS = 30
ALONE = 100  # rows that a test adds one by one
FILL = """
    WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < :rows)
    INSERT INTO requests SELECT
        n, :now - (:rows - n) * :apart, n - n % 20 + 1, '/v1/chat/completions', 'm', 200, 1, 1000 + n % 5000, 20,
        nullif(n - 1, 0), 900, 0.99, 900, 400, 900, 100 + n % 5000, 'hit', n % 4, 'pinned', 'longest prefix',
        12.5, 1.25 + n % 7, 250.0
    FROM numbers"""
FOUND = """
    INSERT INTO findings (request, cause, place, tokens, seconds, times, remedy, verdict)
    SELECT id, 'clock', 'system', 900, 1.5, 3, 'rewrite', '900 tokens read again' FROM requests WHERE id % 10 = 0"""

CHECKED = """
    INSERT INTO checks (request, divergence, common, evaluated, slot, ms)
    SELECT id, iif(id % 500, 'identical', 'substantive'), 12, 1000, 1, 90.0 FROM requests WHERE id % 100 = 0"""


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The rows of a month that ends now, a tenth of them with findings. Tests follow their order in this file."""
    path = tmp_path_factory.mktemp("million") / "toki.db"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(schema, "MIGRATIONS", MIGRATIONS[: MIGRATIONS.index(m005_minutes)])
        with closing(open_database(path)) as db, db:  # without sums by the minute, which take longer row by row
            db.execute("BEGIN")
            db.execute(FILL, {"rows": ROWS, "now": time.time(), "apart": DAYS * DAY_S / ROWS})
            db.execute(FOUND)
            db.execute(CHECKED)
    open_database(path).close()
    return path


def test_a_row_is_written_as_quickly_as_into_an_empty_database(path: Path, tmp_path: Path) -> None:
    def write(to: Path) -> float:
        """CPU seconds of a few rows, each in a transaction of its own."""
        with closing(Database(to)) as database:
            database.write([row(0)])  # opens it
            began = time.process_time()
            for key in range(1, ALONE):
                database.write([row(key)])
            return time.process_time() - began

    assert write(path) < 5 * write(tmp_path / "empty.db") + 0.05


def test_the_totals_are_summed_in_a_moment(path: Path) -> None:
    began = time.process_time()  # which another process's work does not lengthen
    (totals,) = read(path, "SELECT * FROM totals")
    assert time.process_time() - began < 5  # 0.4 s
    assert totals["requests"] == ROWS + ALONE


def test_the_page_is_read_in_a_moment(path: Path) -> None:
    history = History(path)
    now = time.time()

    def overview() -> None:
        sums = total(bar.sums for bar in history.timeline(Range.MONTH, now))
        assert 0.99 * ROWS < sums.requests <= ROWS + ALONE
        assert history.suiting(now) is Range.DAY
        assert history.causes(now - Range.MONTH.seconds)
        assert history.checks(now - Range.MONTH.seconds).substantive
        assert len(history.conversations(now - Range.MONTH.seconds, 10)) == 10
        assert len(history.listed(history.requests()[0])) == PAGE

    def one() -> None:
        found = history.request(ROWS // 2 + 10)
        assert found is not None
        assert history.neighbours(found) == (found.id - 1, found.id + 1)
        assert history.conversation(found.conversation) is not None
        assert history.why(found.id)
        assert len(history.requests(found.id)[0]) == PAGE

    def narrowed() -> None:
        """By what nearly all have, by what none has, and by what is found at other places."""
        assert len(history.requests(filters=Filters(outcome="hit", model="m"))[0]) == PAGE
        (latest,), _ = history.requests(most=1)
        assert history.requests(filters=Filters(outcome="hit", model="x")) == ((), latest.id + 1 - LOOKED_THROUGH)
        assert history.requests(filters=Filters(action="isolated", cause="clock"))[0] == ()
        assert len(history.requests(filters=Filters(cause="clock"))[0]) == PAGE
        assert len(history.requests(filters=Filters(conversation=41))[0]) == 20
        assert history.models() == ("m",)

    for look, most in ((overview, 0.5), (one, 0.1), (narrowed, 0.5)):
        times = []
        for _ in range(3):
            history.begin()
            began = time.process_time()
            look()
            times.append(time.process_time() - began)
        assert min(times) < most
    history.close()


def test_the_report_takes_seconds_and_little_memory(path: Path) -> None:
    script = "import re, sys, time; from pathlib import Path; from toki.cli import main; status = main(sys.argv[1:]);"
    # Not ru_maxrss: a process inherits that of the one which started it.
    script += "memory = re.search(r'VmHWM:\\s+(\\d+) kB', Path('/proc/self/status').read_text())[1];"
    script += "print('used', time.process_time(), int(memory) // 1024); sys.exit(status)"
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1] / "addon")}
    command = [sys.executable, "-c", script, "report", "--db", str(path)]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert ended.returncode == 1, ended.stderr
    assert ended.stdout.startswith("1,000,")
    used = re.search(r"^used ([\d.]+) (\d+)$", ended.stdout, re.MULTILINE)
    assert used is not None
    assert float(used[1]) < 40  # seconds
    assert int(used[2]) < 400  # MiB


def page_count(path: Path) -> int:
    return int(read(path, "PRAGMA page_count")[0]["page_count"])


@pytest.fixture
def other(path: Path) -> Iterator[sqlite3.Connection]:
    """Another program that reads while toki cleans."""
    with closing(sqlite3.connect(path)) as db:
        yield db


def test_old_rows_go_in_steps_between_which_new_ones_are_written(path: Path, other: sqlite3.Connection) -> None:

    def seen(model: str) -> bool:
        return other.execute("SELECT 1 FROM requests WHERE id > ? AND model = ?", (ROWS, model)).fetchone() is not None

    before, pages = count(path), page_count(path)
    latencies = []
    with storing(path, keep_days=DAYS // 2) as cleaning:
        until(lambda: count(path) < before)  # it has begun
        for key in range(1_000_000, 1_000_020):
            cleaning.put(row(key, model=f"beside {key}"))
            began = time.monotonic()
            until(partial(seen, f"beside {key}"))
            latencies.append(time.monotonic() - began)
        left = count(path)
        until(lambda: page_count(path) < 0.75 * pages, seconds=120)
    assert left > ROWS // 2 + 1000, "it was over before the rows were written beside it"
    assert sorted(latencies)[len(latencies) // 2] < 1.0
    assert ROWS // 2 - 1000 < count(path) - 20 - ALONE < ROWS // 2 + 1000
    assert read(path, "PRAGMA integrity_check") == [{"integrity_check": "ok"}]
