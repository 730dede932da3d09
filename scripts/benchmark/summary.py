"""Sums up runs: seeds into means, medians and worst, cells into groups and flag sets, sides into ratios."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Sequence
from dataclasses import dataclass

from benchmark.cells import RANDOM
from benchmark.cells import Cell
from benchmark.results import Run

EVALUATED_LIMIT = 1.02  # times the server alone: more is a loss
TIME_LIMIT = 1.05

Figure = Callable[[Run], float | None]


def evaluated(run: Run) -> float:
    return run.evaluated


def wall(run: Run) -> float:
    return run.wall_s


def first_p50(run: Run) -> float | None:
    return run.first_p50_s


def first_p95(run: Run) -> float | None:
    return run.first_p95_s


def wave(run: Run) -> float | None:
    return run.wave_s


@dataclass(frozen=True, slots=True)
class Pairs:
    """The seeds of one cell that both sides have played, as (by the one, by the other)."""

    cell: Cell
    runs: Sequence[tuple[Run, Run]]

    def ratios(self, figure: Figure) -> list[float]:
        """Seed by seed, the figure of the one over that of the other; seeds without it are left out."""
        pairs = [(figure(one), figure(other)) for one, other in self.runs]
        return [one / other for one, other in pairs if one is not None and other]

    def medians(self, figure: Figure) -> tuple[float, float] | None:
        """The medians over the seeds, of the one and of the other."""
        pairs = [(figure(one), figure(other)) for one, other in self.runs]
        both = [(one, other) for one, other in pairs if one is not None and other is not None]
        if not both:
            return None
        return statistics.median(one for one, _ in both), statistics.median(other for _, other in both)


def paired(runs: Iterable[Run], one: str, other: str = "alone") -> list[Pairs]:
    """The cells that both sides have played, in the order of the runs."""
    found: dict[Cell, dict[tuple[str, int], Run]] = {}
    for run in runs:
        found.setdefault(run.cell, {})[run.side, run.seed] = run
    pairs = []
    for cell, by in found.items():
        seeds = sorted(seed for side, seed in by if side == one and (other, seed) in by)
        if seeds:
            pairs.append(Pairs(cell, [(by[one, seed], by[other, seed]) for seed in seeds]))
    return pairs


def summed(pairs: Iterable[Pairs], figure: Figure) -> float | None:
    """The ratio of the sums over cells of the medians over seeds; None where there is nothing."""
    medians = [both for each in pairs if (both := each.medians(figure))]
    bottom = sum(other for _, other in medians)
    return sum(one for one, _ in medians) / bottom if bottom else None


def times_bound(runs: Sequence[Run]) -> float | None:
    """Evaluated tokens of all runs together over their lower bound; None without runs. Random traffic has no bound."""
    counted = [run for run in runs if run.cell.scenario != RANDOM]
    bound = sum(run.bound for run in counted)
    return sum(run.evaluated for run in counted) / bound if bound else None


def groups(runs: Iterable[Run]) -> dict[tuple[str, ...], list[Run]]:
    """By what their tables are headed with."""
    found: dict[tuple[str, ...], list[Run]] = {}
    for run in runs:
        found.setdefault(run.cell.group, []).append(run)
    return found


def ordered(values: Iterable[str]) -> list[str]:
    """Each once, as first seen."""
    return list(dict.fromkeys(values))
