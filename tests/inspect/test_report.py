"""The report: sums that agree with the database's own, advice, and what is said where little is known."""

from __future__ import annotations

import json
import re
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.inspect.recorded import row
from tests.inspect.recorded import write
from tests.page import recorded

from toki.cli import main
from toki.engine.events import Action
from toki.engine.events import Outcome
from toki.inspect.records import Checked
from toki.inspect.records import Own as OwnSums
from toki.inspect.records import Request
from toki.inspect.records import Why
from toki.inspect.records import checked
from toki.inspect.records import findings
from toki.inspect.records import own
from toki.inspect.records import requests
from toki.inspect.records import working_set
from toki.inspect.report import Report
from toki.inspect.report import as_json
from toki.inspect.report import markdown
from toki.inspect.report import report
from toki.inspect.report import text
from toki.schema import Check
from toki.schema import Found
from toki.schema import Own
from toki.store import Database

PRIMER = Own("primer", 800, 500, 300, 40.0)
CLOCK = Found(
    1, "clock", "system", 900, 1.5, 1, "rewrite", "900 tokens read again (1.5 s): a clock in system; freeze it"
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Five requests of two conversations."""
    return write(
        tmp_path / "toki.db",
        [
            row(1),
            row(
                2,
                conversation=1,
                parent=1,
                shared=1019,
                prompt_tokens=1200,
                predicted=1019,
                alone=200,
                reused=1019,
                evaluated=181,
                outcome=Outcome.HIT,
                action=Action.PRIMED,
                reason="slot 1: reuses 1,019 tokens",
                own=(PRIMER, replace(PRIMER, evaluated=None)),
            ),
            row(
                3, model="a|b\n", prompt_tokens=500, predicted=None, alone=None, evaluated=None, outcome=Outcome.UNKNOWN
            ),
            row(4, status=None, prompt_tokens=None, evaluated=None, outcome=Outcome.UNKNOWN, total_ms=301_000.0),
            row(5, status=400, endpoint="/completion", added_ms=900.0, evaluated=None, outcome=Outcome.UNKNOWN),
        ],
    )


def add(path: Path, *found: Found) -> None:
    """Findings about requests, whose keys are those of new rows that are written with them."""
    with closing(Database(path)) as database:
        database.write([row(one.key) for one in found] + list(found))


def of(path: Path, since: float = 0.0) -> Report:
    return report(requests(path, since), own(path, since), findings(path, since), checked(path, since))


def test_totals_are_those_of_the_view(path: Path) -> None:
    with closing(sqlite3.connect(path)) as db:
        view = db.execute("SELECT * FROM totals").fetchone()
    totals = of(path).totals
    assert view == tuple(getattr(totals, name) for name in totals.__slots__)


def test_own_requests_count(path: Path) -> None:
    found = of(path)
    assert found.own == OwnSums(requests=2, evaluated=300, unknown=1)
    assert of(path, since=1000.0 + 60 * 3).own == OwnSums()


def test_predictions_and_unknowns(path: Path) -> None:
    found = of(path)
    assert (found.predicted, found.right) == (3, 3)
    assert (found.unread, found.failed, found.unanswered, found.given_up) == (1, 1, 1, 1)
    assert found.added.most == 900.0
    assert [(group.name, group.sums.requests) for group in found.endpoints] == [
        ("/v1/chat/completions m", 3),
        ("/v1/chat/completions a|b\n", 1),
        ("/completion m", 1),
    ]
    assert found.conversations[0].name == "1"
    assert found.reasons == [("the server's own choice is as good", 4)]


def test_who_has_no_prediction_is_not_called_predicted(path: Path) -> None:
    assert "the server alone: 2,000 (predicted)" in text(of(path))
    with closing(Database(path)) as database:
        database.write([row(9, alone=None, evaluated=100), row(10, prompt_tokens=None, evaluated=None)])
    assert of(path).unpredicted == 1
    assert "the server alone: 2,100 (predicted; 1 requests without a prediction count as measured)" in text(of(path))


def test_checks_are_summed_and_what_says_something_else_is_advice(path: Path) -> None:
    assert of(path).checked == Checked()
    with closing(Database(path)) as database:
        kinds = ("identical", "whitespace-only", "restore-noise", "substantive", "substantive")
        made = [Check(key, kind, 4, 1000, 1, 90.0) for key, kind in enumerate(kinds, 1)]
        database.write([*(row(one.key, at=9000.0) for one in made), *made])
    found = of(path)
    assert found.checked == Checked(answers=5, cosmetic=2, substantive=2, latest=10)
    assert of(path, since=9000.5).checked == Checked()
    assert [line for line in found.advice if line.startswith("2 of 5 checked answers say something else")]
    assert "without the server's cache: 5, of which 2 said something else and 2 were worded otherwise" in text(found)


def test_checks_of_an_older_toki_are_not_known(path: Path) -> None:
    with closing(sqlite3.connect(path)) as db:
        db.execute("DROP TABLE checks")
    assert of(path).checked is None
    assert "asked for again" not in text(of(path))


def test_causes_are_summed_and_advised(path: Path) -> None:
    add(
        path,
        CLOCK,
        replace(CLOCK, key=2, tokens=1000, seconds=None, times=2, verdict="1,000 tokens read again: a clock"),
    )
    add(path, replace(CLOCK, key=1, cause="compaction", remedy="nothing", tokens=9000))
    found = of(path)
    assert found.causes is not None
    assert [(one.cause, one.requests, one.tokens, one.seconds) for one in found.causes] == [
        ("compaction", 1, 9000, 1.5),
        ("clock", 2, 1900, 1.5),
    ]
    assert [why.tokens for why in found.worst] == [9000, 1000, 900]
    assert "1.5 s" in text(found)
    advice = [line for line in found.advice if line.startswith("clock, in 2 requests, 1,900 tokens in all (rewrite): ")]
    assert len(advice) == 1
    assert "1,000 tokens read again: a clock" in advice[0]
    assert not [line for line in found.advice if line.startswith("compaction")], "nothing would help"


def test_a_time_that_is_not_known_is_none(path: Path) -> None:
    add(path, replace(CLOCK, seconds=None))
    found = of(path)
    assert found.causes is not None
    assert [one.seconds for one in found.causes] == [None]
    assert "0 ms" not in text(found).split("Processed again")[1].split("Worst")[0]


def test_rows_in_the_order_of_their_ends(tmp_path: Path) -> None:
    found = of(write(tmp_path / "ends.db", [row(1, at=5000.0), row(2, at=2000.0)]))
    assert (found.since, found.until) == (2000.0, 5000.0)


def test_advice() -> None:
    good = Request(
        *(1, 0.0, 1, "/completion", "m", 200, False, 1000, 8, None, 0, None, 0, 0, 0, 1000, "miss", None, "passed", ""),
        *(5.0, 2.0, 900.0),
    )
    assert report([good] * 20, OwnSums(), [], None).advice == ()
    for changes, words in (
        ({"predicted": 500, "reused": 0}, "0 of 20 predictions were right"),
        ({"alone": 500}, "20,000 tokens were evaluated where 10,000 are predicted for the server alone"),
        ({"added_ms": 400.0}, "held for 400 ms or more"),
        ({"status": None, "total_ms": 300_000.0}, "20 requests got no answer within 300 s"),
        ({"outcome": "unknown"}, "20 answers told no reuse"),
    ):
        advice = report([replace(good, **changes)] * 20, OwnSums(), [], None).advice
        assert len(advice) == 1
        assert words in advice[0]
    assert "21,000 tokens were evaluated" in report([good] * 20, OwnSums(3, 1000), [], None).advice[0], (
        "primers are no gain"
    )


def test_working_set(path: Path) -> None:
    assert working_set(requests(path)).conversations == 0
    one, other = requests(path)[:2]
    rows = [one, replace(other, id=9, conversation=9), other, replace(other, id=10, conversation=9, prompt_tokens=2000)]
    found = working_set(rows)
    assert (found.requests, found.conversations, found.longest, found.tokens) == (4, 2, 2020, 1220 + 2020)


@pytest.mark.parametrize("form", ["text", "markdown", "json"])
def test_command(path: Path, capsys: pytest.CaptureFixture[str], form: str) -> None:
    add(path, CLOCK)
    assert main(["report", "--db", str(path), "--format", form]) == 1
    said = capsys.readouterr().out
    if form == "json":
        found = json.loads(said)
        assert found["totals"]["requests"] == 6
        assert found["causes"][0]["cause"] == "clock"
        assert found["own"] == {"requests": 2, "evaluated": 300, "unknown": 1}
        return
    for line in (
        "6 requests from ",
        "1 hits, 0 soft hits, 2 misses, 3 without a figure of the server",
        "evaluated: 2,181 of 4,700 prompt tokens (measured)",
        "the server alone: 3,000 (predicted)",
        "added by toki: p50 2 ms, p95 ",
        "toki's own requests: 2, which evaluated 300 tokens (measured), and 1 that told none",
        "saved: 519 tokens, own requests included",
        "predictions: 100.0% of 4 within 2% of the prompt",
        "not known: 1 prompts were not read, 1 requests got no answer, 1 were refused",
        CLOCK.verdict,
    ):
        assert line in said
    assert ("| /v1/chat/completions a\\|b\\\\n | 1 | 0 | 500 | 0 | 0 |" in said) == (form == "markdown")


@given(st.text(st.sampled_from("\x00\x07\r\n\x1b\x9b\u202e\u2028\udcffa'|`*_[](<>&;\\"), max_size=12))
def test_whatever_a_row_holds_is_shown_harmlessly(odd: str) -> None:
    """A client chooses its model's name, and a database may come from anyone."""
    sent = Request(
        *(1, 0.0, 1, f"/{odd}", odd, 200, False, 1000, 8, None, 0, None, 0, 0, 0, 1000, "miss", None, "passed", odd),
        *(5.0, 2.0, 900.0),
    )
    found = report([sent, replace(sent, action=odd)], OwnSums(), [Why(1, odd, odd, 900, 1.0, 1, odd, odd)], None)
    lines = [*text(found).split("\n"), *markdown(found).split("\n"), *as_json(found).split("\n")]
    assert all(map(str.isprintable, lines))
    # In Markdown each cell is one cell, and none begins markup or a tag.
    for line in markdown(found).split("\n"):
        assert "<" not in line
        if line.startswith("|"):
            bare = re.sub(r"\\[\\`*_\[\]|~]", "", line)
            assert not set("`*[]") & set(bare)
            assert bare.count("|") in (2, 3, 7)
    row = json.loads(as_json(found))["causes"][0]
    assert row["cause"] == odd


def test_since(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "--db", str(path), "--since", "1970-01-01T00:20:00+00:00"]) == 1
    assert capsys.readouterr().out.startswith("2 requests from ")
    assert main(["report", "--db", str(path), "--since", "30m"]) == 0
    assert capsys.readouterr().out.startswith("no requests\n")
    with pytest.raises(SystemExit) as stop:
        main(["report", "--since", "yesterday"])
    assert stop.value.code == 2
    assert "'yesterday' is not of the form 30m, 12h, 7d or 2026-01-31T12:00" in capsys.readouterr().err


def test_a_database_of_an_older_toki(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with closing(sqlite3.connect(path)) as db:
        db.execute("DROP TABLE own_requests")
        db.execute("DROP TABLE findings")
        db.commit()
    main(["report", "--db", str(path)])
    said = capsys.readouterr().out
    assert said.count("not kept by the toki that wrote this database") == 2
    assert "saved" not in said


def test_no_database(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["report", "--db", str(tmp_path)]) == 2
    assert f"toki: there is no database at {tmp_path}\n" == capsys.readouterr().err
    (tmp_path / "other.db").write_bytes(b"")
    assert main(["report", "--db", str(tmp_path / "other.db")]) == 2
    assert "can't be read as toki's database" in capsys.readouterr().err


def test_a_damaged_row_is_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "toki.db"
    recorded.many(path, 1000, days=1)
    bad = set(recorded.damage(path))
    for arguments in (["report"], ["report", "--format", "json"], ["advise", "--json", "--latest", "50"]):
        assert main([*arguments, "--db", str(path)]) in (0, 1), arguments
        printed = capsys.readouterr().out
        if "json" in arguments[-1] or "--json" in arguments:
            json.loads(printed, parse_constant=pytest.fail)
    read = [one.id for one in requests(path)]
    assert set(range(1, 1001)) - bad <= set(read)
    assert read == sorted(set(read))
