"""What was recorded, summed up: totals, what was processed again and why, and what is not known.

`evaluated` is the server's own word; `alone` is toki's prediction for a server that it never steered. A request without
a prediction counts there as it was, so that it claims neither gain nor loss (as in the view `totals`).
"""

from __future__ import annotations

import json
import re
from array import array
from collections import Counter
from collections import defaultdict
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import asdict
from dataclasses import dataclass
from dataclasses import replace
from datetime import datetime

import numpy as np

from toki.engine.events import Outcome
from toki.inspect.finding import duration
from toki.inspect.records import Checked
from toki.inspect.records import Own
from toki.inspect.records import Request
from toki.inspect.records import Why
from toki.printable import printable
from toki.schema import alone_evaluated

MOST = 10  # lines of a table
NEAR = 0.02  # of a prompt: a prediction that is closer is right
RIGHT = 0.9  # share of predictions that should be right
SLOW_MS = 250.0  # that requests should not be held for longer
MATTERS = 0.01  # of the evaluated tokens: what is less is no advice
GIVEN_UP_S = 300.0  # after so long many clients give up
MARKUP = re.compile(r"[\\`*\[\]|~]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")  # an underscore within a word is one


@dataclass(frozen=True, slots=True)
class Sums:
    """Some requests together. Lengths in tokens."""

    requests: int
    hits: int
    soft_hits: int
    misses: int
    unknown: int
    prompt_tokens: int
    evaluated: int
    alone_evaluated: int


@dataclass(frozen=True, slots=True)
class Group:
    """The requests that have something in common."""

    name: str
    sums: Sums


@dataclass(frozen=True, slots=True)
class Cause:
    """One cause of re-processing. `seconds`: of the `requests` whose time is known, None where it is of none; `example`
    is the costliest."""

    cause: str
    place: str
    requests: int
    tokens: int
    seconds: float | None
    remedy: str
    example: str
    request: int


@dataclass(frozen=True, slots=True)
class Spread:
    """How some milliseconds are spread; None where there are none."""

    p50: float | None
    p95: float | None
    most: float | None


@dataclass(frozen=True, slots=True)
class Report:
    """Everything that is printed. `since` and `until` are seconds of unix time, of the first and the last row."""

    since: float | None
    until: float | None
    totals: Sums
    own: Own | None  # None: not kept by the toki that wrote it
    checked: Checked | None  # None: not kept by the toki that wrote it
    predicted: int  # requests with a prediction and a measurement
    right: int  # of which the prediction was right
    added: Spread  # ms for which toki held requests
    first_byte: Spread  # ms
    actions: Sequence[Group]
    endpoints: Sequence[Group]
    conversations: Sequence[Group]
    reasons: Sequence[tuple[str, int]]  # why requests passed
    causes: Sequence[Cause] | None  # None: not kept by the toki that wrote it
    worst: Sequence[Why]
    unpredicted: int  # requests that count for the server alone as measured, for want of a prediction
    unread: int  # requests whose prompts toki did not read
    failed: int  # requests that the server refused
    unanswered: int  # requests without an answer
    given_up: int  # of which so late that their clients may have given up
    advice: Sequence[str] = ()


class _Tally:
    """Sums that grow row by row."""

    def __init__(self) -> None:
        self._outcomes: Counter[str] = Counter()
        self._prompt_tokens = 0
        self.evaluated = 0
        self._alone_evaluated = 0

    def add(self, row: Request) -> None:
        self._outcomes[row.outcome] += 1
        self._prompt_tokens += row.prompt_tokens or 0
        self.evaluated += row.evaluated or 0
        self._alone_evaluated += alone_evaluated(row.prompt_tokens, row.alone, row.evaluated) or 0

    def sums(self) -> Sums:
        return Sums(
            requests=self._outcomes.total(),
            hits=self._outcomes[Outcome.HIT],
            soft_hits=self._outcomes[Outcome.SOFT_HIT],
            misses=self._outcomes[Outcome.MISS],
            unknown=self._outcomes[Outcome.UNKNOWN],
            prompt_tokens=self._prompt_tokens,
            evaluated=self.evaluated,
            alone_evaluated=self._alone_evaluated,
        )


def report(rows: Iterable[Request], own: Own | None, found: Sequence[Why] | None, checked: Checked | None) -> Report:
    """Sum `rows` up, with what toki sent itself, what was found about them, and how answers that were checked compare.
    Goes through `rows` once."""
    since = until = None
    total, counts, reasons = _Tally(), Counter[str](), Counter[str]()
    actions, endpoints, conversations = (defaultdict[str, _Tally](_Tally) for _ in range(3))
    added, first_byte = array("d"), array("d")
    for row in rows:
        # Rows are in the order of their ends.
        since, until = min(row.at, row.at if since is None else since), max(row.at, row.at if until is None else until)
        endpoint = f"{row.endpoint} {row.model}".rstrip(" ")
        for tally in (total, actions[row.action], endpoints[endpoint], conversations[str(row.conversation)]):
            tally.add(row)
        added.append(row.added_ms)
        if row.first_byte_ms is not None:
            first_byte.append(row.first_byte_ms)
        if row.action == "passed":
            reasons[row.reason] += 1
        if row.predicted is not None and row.reused is not None and row.prompt_tokens:
            counts["predicted"] += 1
            counts["right"] += abs(row.predicted - row.reused) <= NEAR * row.prompt_tokens
        counts["unpredicted"] += row.evaluated is not None and (row.prompt_tokens is None or row.alone is None)
        counts["unread"] += not row.read
        counts["failed"] += row.status not in (None, 200)
        counts["unanswered"] += row.status is None
        counts["given_up"] += row.status is None and row.total_ms >= 1000 * GIVEN_UP_S
    summed = Report(
        since=since,
        until=until,
        totals=total.sums(),
        own=own,
        checked=checked,
        predicted=counts["predicted"],
        right=counts["right"],
        added=_spread(added),
        first_byte=_spread(first_byte),
        actions=_groups(actions),
        endpoints=_groups(endpoints),
        conversations=_groups(conversations)[:MOST],
        reasons=reasons.most_common(MOST),
        causes=None if found is None else _causes(found),
        worst=sorted(found or (), key=lambda why: -why.tokens)[:MOST],
        unpredicted=counts["unpredicted"],
        unread=counts["unread"],
        failed=counts["failed"],
        unanswered=counts["unanswered"],
        given_up=counts["given_up"],
    )
    return replace(summed, advice=tuple(_advice(summed)))


def _time(cause: Cause) -> str:
    return "-" if cause.seconds is None else duration(cause.seconds)


def _groups(tallies: Mapping[str, _Tally]) -> list[Group]:
    """Those that evaluated most come first."""
    ordered = sorted(tallies.items(), key=lambda one: -one[1].evaluated)
    return [Group(name, tally.sums()) for name, tally in ordered]


def _spread(values: Sequence[float]) -> Spread:
    if not values:
        return Spread(None, None, None)
    p50, p95, most = np.percentile(np.array(values), (50, 95, 100))
    return Spread(round(float(p50), 1), round(float(p95), 1), round(float(most), 1))


def _causes(found: Sequence[Why]) -> list[Cause]:
    """Those that cost most come first."""
    groups: dict[tuple[str, str], list[Why]] = {}
    for why in found:
        groups.setdefault((why.cause, why.remedy), []).append(why)
    causes = []
    for (cause, remedy), whys in groups.items():
        worst = max(whys, key=lambda why: why.tokens)
        tokens, times = sum(why.tokens for why in whys), [why.seconds for why in whys if why.seconds is not None]
        seconds = sum(times) if times else None
        requests = len({why.request for why in whys})
        causes.append(Cause(cause, worst.place, requests, tokens, seconds, remedy, worst.verdict, worst.request))
    return sorted(causes, key=lambda one: -one.tokens)


def _advice(summed: Report) -> Iterator[str]:
    """What a person should do something about."""
    totals, own = summed.totals, summed.own
    for cause in summed.causes or ():
        if cause.tokens >= MATTERS * totals.evaluated and cause.remedy != "nothing":
            times = "1 request" if cause.requests == 1 else f"{cause.requests:,} requests"
            cost = f"{cause.cause}, in {times}, {cause.tokens:,} tokens in all ({cause.remedy})"
            yield f"{cost}: e.g. request {cause.request}, {cause.example}"
    spent = totals.evaluated + (own.evaluated if own is not None else 0)
    if spent > (1 + MATTERS) * totals.alone_evaluated:
        yield (
            f"{spent:,} tokens were evaluated where {totals.alone_evaluated:,} are predicted for the server alone: set "
            "toki_mode=observe, and tell toki's developers"
        )
    if summed.predicted >= MOST and summed.right < RIGHT * summed.predicted:
        yield (
            f"{summed.right:,} of {summed.predicted:,} predictions were right: does toki see all requests of this "
            "server, and is it of a kind that can be predicted (toki doctor)?"
        )
    if summed.added.p95 is not None and summed.added.p95 > SLOW_MS:
        yield f"a twentieth of the requests was held for {summed.added.p95:,.0f} ms or more: see toki_deadline_ms"
    if summed.given_up:
        yield (
            f"{summed.given_up:,} requests got no answer within {GIVEN_UP_S:.0f} s: the time-outs of their clients may "
            "be too short for this server's prefill"
        )
    checked = summed.checked
    if checked is not None and checked.substantive:
        yield (
            f"{checked.substantive:,} of {checked.answers:,} checked answers say something else without the server's "
            f"cache, the latest that of request {checked.latest}: where two tokens were nearly tied rounding does that "
            "(docs/divergence.md), but so does a fault of the cache"
        )
    if totals.requests and totals.unknown > totals.requests / 2:
        yield f"{totals.unknown:,} answers told no reuse: see response_fields, and the statuses"


# --- how it is shown --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Table:
    """A part of the report. Cells of all columns but the `left` ones are numbers."""

    title: str
    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    left: tuple[int, ...] = (0,)


def text(summed: Report) -> str:
    """For a terminal."""
    parts = [*_lines(summed), ""]
    for table in _tables(summed):
        parts += [f"{table.title}:", *_aligned(table), ""]
    advice = [f"  - {printable(line)}" for line in summed.advice]
    parts += ["Advice:", *advice] if advice else ["nothing to advise"]
    return "\n".join(parts)


def markdown(summed: Report) -> str:
    """For an issue or a note."""
    parts = ["# toki report", "", *(f"- {line}" for line in _lines(summed)), ""]
    for table in _tables(summed):
        rule = ["---" if column in table.left else "---:" for column in range(len(table.heads))]
        parts += [f"## {table.title}", ""]
        cells = [table.heads, rule, *([_escaped(cell) for cell in row] for row in table.rows)]
        parts += [f"| {' | '.join(row)} |" for row in cells]
        parts.append("")
    parts += ["## Advice", "", *(f"- {_escaped(line)}" for line in summed.advice or ("nothing",))]
    return "\n".join(parts)


def as_json(summed: Report) -> str:
    """For programs: the fields of Report."""
    return json.dumps(asdict(summed), indent=2)


def _lines(summed: Report) -> Iterator[str]:
    totals, own = summed.totals, summed.own
    if summed.since is None or summed.until is None:
        yield "no requests"
        return
    yield f"{totals.requests:,} requests from {_moment(summed.since)} to {_moment(summed.until)}"
    yield (
        f"{totals.hits:,} hits, {totals.soft_hits:,} soft hits, {totals.misses:,} misses, "
        f"{totals.unknown:,} without a figure of the server"
    )
    yield f"evaluated: {totals.evaluated:,} of {totals.prompt_tokens:,} prompt tokens (measured)"
    rest = f"; {summed.unpredicted:,} requests without a prediction count as measured" if summed.unpredicted else ""
    yield f"the server alone: {totals.alone_evaluated:,} (predicted{rest})"
    if own is None:
        yield "toki's own requests: not kept by the toki that wrote this database"
    else:
        more = f", and {own.unknown:,} that told none" if own.unknown else ""
        yield f"toki's own requests: {own.requests:,}, which evaluated {own.evaluated:,} tokens (measured){more}"
        gain = totals.alone_evaluated - totals.evaluated - own.evaluated
        yield f"{'saved' if gain >= 0 else 'lost'}: {abs(gain):,} tokens, own requests included"
    if (checked := summed.checked) is not None and checked.answers:
        yield (
            f"answers asked for again without the server's cache: {checked.answers:,}, of which "
            f"{checked.substantive:,} said something else and {checked.cosmetic:,} were worded otherwise"
        )
    if summed.predicted:
        share = summed.right / summed.predicted
        yield f"predictions: {share:.1%} of {summed.predicted:,} within {NEAR:.0%} of the prompt"
    else:
        yield "predictions: none that could be checked"
    yield f"added by toki: {_spelt(summed.added)}; first byte after: {_spelt(summed.first_byte)}"
    yield (
        f"not known: {summed.unread:,} prompts were not read, {summed.unanswered:,} requests got no answer, "
        f"{summed.failed:,} were refused"
    )


def _tables(summed: Report) -> Iterator[_Table]:
    if summed.causes is None:
        yield _Table("Processed again", ["why"], [["not kept by the toki that wrote this database"]])
    elif summed.causes:
        rows = [
            [one.cause, one.place, f"{one.requests:,}", f"{one.tokens:,}", _time(one), one.remedy]
            for one in summed.causes
        ]
        yield _Table("Processed again", ["cause", "place", "requests", "tokens", "time", "remedy"], rows, (0, 1, 5))
        worst = [[str(one.request), one.verdict] for one in summed.worst]
        yield _Table("Worst requests", ["id", "why"], worst, (1,))
    for title, groups in (
        ("By action", summed.actions),
        ("By endpoint and model", summed.endpoints),
        ("Conversations that evaluated most", summed.conversations),
    ):
        if groups:
            yield _Table(
                title, ["", "requests", "hits", "prompt", "evaluated", "alone"], [_cells(one) for one in groups]
            )
    if summed.reasons:
        yield _Table(
            "Why requests passed", ["reason", "requests"], [[why, f"{times:,}"] for why, times in summed.reasons]
        )


def _cells(group: Group) -> list[str]:
    sums = group.sums
    numbers = (sums.requests, sums.hits, sums.prompt_tokens, sums.evaluated, sums.alone_evaluated)
    return [group.name, *(f"{number:,}" for number in numbers)]


def _aligned(table: _Table) -> Iterator[str]:
    cells = [table.heads, *([printable(cell) for cell in row] for row in table.rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(table.heads))]
    for row in cells:
        padded = [
            cell.ljust(width) if column in table.left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield ("  " + "  ".join(padded)).rstrip()


def _escaped(cell: str) -> str:
    """Text that means itself in Markdown: no markup, no HTML, no other cell."""
    return MARKUP.sub(r"\\\g<0>", printable(cell)).replace("&", "&amp;").replace("<", "&lt;")


def _spelt(spread: Spread) -> str:
    if spread.p50 is None or spread.p95 is None or spread.most is None:
        return "not known"
    p50, p95, most = (duration(ms / 1000) for ms in (spread.p50, spread.p95, spread.most))
    return f"p50 {p50}, p95 {p95}, at most {most}"


def _moment(at: float) -> str:
    return datetime.fromtimestamp(at).astimezone().isoformat(" ", "minutes")
