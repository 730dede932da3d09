"""What the documentation names is there: make targets, files, columns, actions; and its queries run."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from dataclasses import fields
from dataclasses import is_dataclass
from pathlib import Path

import pytest

from toki import addon
from toki import defaults
from toki import exchange
from toki import notes
from toki.engine import conversations
from toki.engine import core
from toki.engine import history
from toki.engine import looks
from toki.engine import policy
from toki.engine import trust
from toki.engine.events import Action
from toki.engine.events import Mode
from toki.engine.events import Outcome
from toki.inspect import comparison
from toki.inspect import explain
from toki.inspect import inspector
from toki.inspect.finding import Cause
from toki.inspect.records import Request
from toki.page import history as history_of_page
from toki.page import metrics
from toki.page import model
from toki.page import where
from toki.page.routes import FILTERS
from toki.page.routes import Range
from toki.schema import Row
from toki.store import COLUMNS
from toki.store import Store

ROOT = Path(__file__).parents[1]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PACKAGE = ROOT / "addon" / "toki"

# A code span that can only be a path of this repository; URL paths start with a slash.
PATH = re.compile(r"\.?\w[\w.-]*(?:/[\w.-]+)*(?:\.(?:py|md|toml|svg|json)|/)|\.\w+/[\w/]+")
MADE = {"config.yaml", "overhead.json"}  # by mitmproxy's user, by a benchmark


def spans(text: str) -> list[str]:
    """Code spans of a page, without its fenced blocks."""
    return re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL))


def named_paths(text: str) -> Iterator[str]:
    yield from (span for span in spans(text) if PATH.fullmatch(span) and span not in MADE)


def links(text: str) -> Iterator[str]:
    targets: list[str] = re.findall(r"\]\(([^)#\s]+)[^)]*\)", text)
    yield from (target for target in targets if "://" not in target)


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, flags=re.MULTILINE | re.DOTALL)


def make_targets() -> set[str]:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    return set(re.findall(r"^([a-z-]+):.*## ", makefile, flags=re.MULTILINE)) - {"help"}


def make_commands(text: str) -> set[str]:
    """Targets that a page tells to make: in code spans and at the start of lines of its blocks."""
    commands = [*spans(text), *re.findall(r"^make .+$", text, flags=re.MULTILINE)]
    words = [command.split("#")[0].split() for command in commands if command.startswith("make ")]
    return {word for _, *rest in words for word in rest if "=" not in word}


def test_pages_are_there() -> None:
    names = {str(page.relative_to(ROOT)) for page in PAGES}
    assert names >= {"README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "docs/decisions.md"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_make_targets_exist(page: Path) -> None:
    assert make_commands(page.read_text(encoding="utf-8")) <= make_targets()


def test_every_make_target_is_explained() -> None:
    assert make_commands((ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")) == make_targets()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_paths_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    missing = [path for path in named_paths(text) if not any((base / path).exists() for base in (ROOT, PACKAGE))]
    missing += [path for path in links(text) if not (page.parent / path).exists()]
    assert missing == []


def test_paths_are_recognised() -> None:
    text = "`a.py` `docs/` `.ci/run` `x/y.md` `/v1/messages` `toki.db` `n_predict` `--api-prefix`"
    assert list(named_paths(text)) == ["a.py", "docs/", ".ci/run", "x/y.md"]


def rows_under(heading: str) -> list[str]:
    """First cells of the table under a header row that starts with `heading`."""
    lines = README.splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith(f"| {heading} |"))
    cells = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        cells.append(line.split("|")[1])
    return cells


def test_columns_are_explained() -> None:
    explained = [name for cell in rows_under("Column") for name in spans(cell)]
    assert sorted(explained) == sorted(["id", *COLUMNS])
    assert [field.name for field in fields(Request)] == ["id", *COLUMNS], "what readers know of them"


def test_modes_are_explained() -> None:
    assert [name for cell in rows_under("Mode") for name in spans(cell)] == list(Mode)


def test_actions_and_outcomes_are_explained() -> None:
    section = README.partition("## What is recorded")[2].partition("\n## ")[0]
    assert {*Action, *Outcome} <= set(spans(section))


@pytest.mark.parametrize(
    ("page", "said"),
    [
        ("README.md", f"save more than {100 * policy.MARGIN:g} % of the prompt's full price"),
        ("README.md", f"and more than {policy.LEAST_WIN} tokens are worth"),
        ("README.md", f"at most {1000 * exchange.MOMENT:g} ms of waiting"),
        ("README.md", f"up to {exchange.SAFETY:g} s for a steered one"),
        ("README.md", f"every {1000 * exchange.GLANCE:g} ms during those waits"),
        ("README.md", f"a millisecond more for each {exchange.BYTES_PER_MS} bytes of body"),
        ("README.md", f"each of at most {policy.LONGEST_PRIMER / 1000:g} s, as predicted"),
        ("README.md", f"extends at least {100 * conversations.CONTINUES:g} %"),
        ("README.md", f"become {defaults.SILENCE / 3600:g} hours"),
        ("docs/architecture.md", f"waits for at most {1000 * exchange.MOMENT:g} ms"),
        ("docs/architecture.md", f"with a RAM cache for at most {exchange.SAFETY:g} s"),
        ("docs/architecture.md", f"`toki` ({addon.THREADS} of them)"),
        ("docs/decisions.md", f"The history keeps {history.MOST_REQUESTS} entries"),
    ],
)
def test_figures_are_those_of_the_code(page: str, said: str) -> None:
    assert said in (ROOT / page).read_text(encoding="utf-8")


def test_words_for_figures_are_true() -> None:
    assert trust.ENOUGH == 3, "README: after three right predictions; decisions: at least three times"
    assert trust.WRONG == 4, "decisions: a wrong one counts four times"
    assert core.MOST_PRIMERS == 2, "README: up to two primers"
    assert looks.FOREIGN_PAUSE == 60, "README: steers nothing for a minute"


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[sqlite3.Connection]:
    """A database as toki leaves it behind: two rows, one of them steered."""
    path = tmp_path_factory.mktemp("docs") / "toki.db"
    store = Store(path, keep_days=30)
    for key, action, alone, reused in ((1, Action.PASSED, 0, 0), (2, Action.SWAPPED, 40, 900)):
        store.put(
            Row(
                key=key,
                at=2e9,
                conversation=1,
                endpoint="/v1/chat/completions",
                model="",
                status=200,
                stream=True,
                prompt_tokens=1000,
                reply_tokens=10,
                parent=None if key == 1 else 1,
                shared=0,
                similarity=None,
                predicted=reused,
                alone=alone,
                reused=reused,
                evaluated=1000 - reused,
                outcome=Outcome.HIT if reused else Outcome.MISS,
                slot=None,
                action=action,
                reason="a reason",
                first_byte_ms=20.0,
                added_ms=5.0,
                total_ms=100.0,
            )
        )
    store.close()
    with sqlite3.connect(path) as db:
        db.row_factory = sqlite3.Row
        yield db
    db.close()


QUERIES = [query.strip() for block in blocks("sql") for query in block.split(";") if query.strip()]


@pytest.mark.parametrize("query", QUERIES)
def test_queries_run(database: sqlite3.Connection, query: str) -> None:
    assert database.execute(query).fetchall()


def test_the_totals_are_explained(database: sqlite3.Connection) -> None:
    totals = database.execute("SELECT * FROM totals").fetchone()
    sentence = README.partition("The view `totals` has one row:")[2].partition(".")[0]
    assert spans(sentence) == list(totals.keys())
    assert (totals["evaluated"], totals["alone_evaluated"]) == (1100, 1960)


def test_causes_commands_and_metadata_are_explained() -> None:
    page = (ROOT / "docs" / "inspect.md").read_text(encoding="utf-8")
    named = set(spans(page))
    assert {str(cause) for cause in Cause} <= named
    commands = (PACKAGE / "commands.py").read_text(encoding="utf-8")
    assert set(re.findall(r'command\.command\("(toki\.\w+)"\)', commands)) <= {span.split()[0] for span in named}
    keys = re.findall(r'"(toki_\w+)":', (PACKAGE / "inspect" / "explanation.py").read_text(encoding="utf-8"))
    assert set(keys) <= named
    assert f"at least {comparison.LEAST} and {100 * explain.LEAST_SHARE:g} % of the prompt" in page
    assert f"the latest {explain.KEPT_PROMPTS} prompts, {explain.KEPT_BYTES >> 20} MiB at most" in page
    assert f"at most {notes.PATIENCE:g} s" in page


def test_the_schema_of_the_api_is_documented() -> None:
    page = (ROOT / "docs" / "page.md").read_text(encoding="utf-8")
    rows = [line.split("|") for line in page.splitlines() if re.match(r"\| `[A-Z]", line)]
    documented = {spans(name)[0]: [span for span in spans(of) if span[0].islower()] for _, name, of, _ in rows}
    kinds = [kind for kind in vars(model).values() if isinstance(kind, type) and is_dataclass(kind)]
    assert documented == {kind.__name__: [field.name for field in fields(kind)] for kind in kinds}


def test_metrics_are_documented() -> None:
    page = (ROOT / "docs" / "page.md").read_text(encoding="utf-8")
    documented = re.findall(r"^\| `(toki_\w+)` \|.*\| (.*) \|$", page, flags=re.MULTILINE)
    shown = re.findall(r"^# HELP (\w+) (.*)$", metrics.text("1", [], {}, 0), flags=re.MULTILINE)
    assert documented == shown


def test_what_is_said_of_the_page_is_true() -> None:
    page = (ROOT / "docs" / "page.md").read_text(encoding="utf-8")
    assert f"of the latest {inspector.KEPT} requests of each server" in page
    assert f"http://{where.NAME}/" in page
    assert f"`{where.ROOT}/`" in page
    assert all(f"`{span}`" in page for span in Range)
    assert f"looks through {history_of_page.LOOKED_THROUGH:,} requests at most" in page
    for kind, names in FILTERS.items():
        (line,) = [line for line in page.splitlines() if line.startswith(f"| GET `/toki/api/{kind}` ")]
        assert re.findall(r"`&(\w+)=`", line) == list(names)
