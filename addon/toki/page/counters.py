"""Counts what was recorded since toki started, for metrics: as counters have to, they only grow, and start over.

Pure. Used on the event loop.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections import defaultdict
from dataclasses import dataclass
from dataclasses import field

from toki.schema import Check
from toki.schema import Found
from toki.schema import Row
from toki.schema import alone_evaluated

# Seconds; of the time for which toki held a request, and of the time to the first byte.
HELD = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10, 60)
FIRST_BYTE = (0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)


class Histogram:
    """How values are spread: `counts[n]` of them are at most `bounds[n]` and more than the bound before; the last
    count is of those above all bounds."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def add(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value


@dataclass(slots=True)
class Counts:
    """Of one server. `requests`: by action and outcome; `tokens`: by kind, see the page's documentation."""

    requests: Counter[tuple[str, str]] = field(default_factory=Counter)
    tokens: Counter[str] = field(default_factory=Counter)
    own_requests: Counter[str] = field(default_factory=Counter)
    own_evaluated: Counter[str] = field(default_factory=Counter)
    reread: Counter[str] = field(default_factory=Counter)  # tokens, by cause
    checks: Counter[str] = field(default_factory=Counter)  # by divergence
    held: Histogram = field(default_factory=lambda: Histogram(HELD))
    first_byte: Histogram = field(default_factory=lambda: Histogram(FIRST_BYTE))


class Counters:
    """By server: the URL that toki knows it by."""

    def __init__(self) -> None:
        self.servers: defaultdict[str, Counts] = defaultdict(Counts)

    def count(self, server: str, row: Row | Found | Check) -> None:
        counts = self.servers[server]
        match row:
            case Row():
                _count_row(counts, row)
            case Found():
                counts.reread[row.cause] += row.tokens
            case Check():
                counts.checks[row.divergence] += 1


def _count_row(counts: Counts, row: Row) -> None:
    counts.requests[row.action, row.outcome] += 1
    counts.tokens["prompt"] += row.prompt_tokens or 0
    counts.tokens["reused"] += row.reused or 0
    counts.tokens["reply"] += row.reply_tokens or 0
    counts.tokens["evaluated"] += row.evaluated or 0
    counts.tokens["alone_evaluated"] += alone_evaluated(row.prompt_tokens, row.alone, row.evaluated) or 0
    for own in row.own:
        counts.own_requests[own.purpose] += 1
        counts.own_evaluated[own.purpose] += own.evaluated or 0
    counts.held.add(row.added_ms / 1000)
    if row.first_byte_ms is not None:
        counts.first_byte.add(row.first_byte_ms / 1000)
