"""The figures as text: for each group of cells, each flag set and scenario one line per side, losses marked."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from collections.abc import Sequence

from benchmark.cells import SIDES
from benchmark.results import Results
from benchmark.results import Run
from benchmark.summary import EVALUATED_LIMIT
from benchmark.summary import TIME_LIMIT
from benchmark.summary import Figure
from benchmark.summary import Pairs
from benchmark.summary import evaluated
from benchmark.summary import first_p50
from benchmark.summary import first_p95
from benchmark.summary import groups
from benchmark.summary import ordered
from benchmark.summary import paired
from benchmark.summary import summed
from benchmark.summary import times_bound
from benchmark.summary import wall

HEAD = (
    f"{'':24} {'side':8} {'evaluated: mean':>15} {'median':>9} {'worst':>9} {'x bound':>8} {'x alone':>8} {'worst':>6}"
    f" {'wall s':>8} {'x alone':>8} {'first p50':>10} {'p95 ms':>8}  steered"
)
LEGEND = f"""\
evaluated: prompt tokens by the server's own counter, primers of a proxy included; bound: a server with an endless
cache; x alone: median over seeds of the ratio to the server alone, and its worst seed; wall: mean seconds; first: time
to first token of requests that stream, mean over seeds; steered: requests, mean over seeds. "all together": sums over
scenarios of medians over seeds, over those of the server alone (p50 and p95 too), and evaluated over the bound.
<< marks a loss: evaluated above {EVALUATED_LIMIT} x alone or, several at once, wall above {TIME_LIMIT} x alone."""


def tables(results: Results) -> Iterator[str]:
    """All lines, the longest about 150 characters."""
    yield LEGEND
    for group, runs in groups(results.runs).items():
        seeds = sorted({run.seed for run in runs})
        for flags in ordered(run.cell.flags for run in runs):
            here = [run for run in runs if run.cell.flags == flags]
            yield f"\n== {', '.join(group)}: {flags}   (seeds {', '.join(map(str, seeds))})"
            yield HEAD
            for scenario in ordered(run.cell.scenario for run in here):
                yield from _scenario([run for run in here if run.cell.scenario == scenario])
            yield from _sums(here)
    if results.absences:
        yield "\nNot measured:"
        reasons = {(one.side, one.cell.flags, one.reason) for one in results.absences}
        for side, flags, reason in sorted(reasons):
            number = sum((one.side, one.cell.flags, one.reason) == (side, flags, reason) for one in results.absences)
            yield f"  {side}, {flags} ({number} runs): {reason}"
    if results.answers:
        yield "\nAnswers beside those to the same prompts alone, without a cache:"
        for answers in results.answers:
            yield (
                f"  {answers.cell}, {answers.side}, seed {answers.seed}: {answers.compared} compared, {answers.differ}"
                f" differ in their text, {len(answers.damaged)} damaged"
            )
            yield from (f"    {line}" for line in answers.damaged)


def _scenario(runs: Sequence[Run]) -> Iterator[str]:
    title = runs[0].cell.scenario
    yield f"{title:24} bound    {statistics.fmean(run.bound for run in runs):15,.0f}"
    for side in SIDES:
        of_side = [run for run in runs if run.side == side]
        if not of_side:
            continue
        tokens = [run.evaluated for run in of_side]
        pairs = paired(runs, side)
        share = times_bound(of_side)
        steered = _steered(of_side)
        failed = sum(run.failed for run in of_side)
        yield (
            f"{'':24} {side:8} {statistics.fmean(tokens):15,.0f} {statistics.median(tokens):9,.0f} {max(tokens):9,}"
            f" {_ratio(share):>8} {_against_alone(pairs)} {_mean(of_side, wall, 1):>8} {_median(pairs, wall):>8}"
            f" {_mean(of_side, first_p50, 1000):>10} {_mean(of_side, first_p95, 1000):>8}  {steered}"
            f"{f'  {failed} FAILED' if failed else ''}{_loss(pairs) if side != 'alone' else ''}"
        )


def _sums(runs: Sequence[Run]) -> Iterator[str]:
    for side in SIDES:
        of_side = [run for run in runs if run.side == side]
        if of_side:
            pairs = paired(runs, side)
            yield (
                f"{'all together' if side == 'alone' else '':24} {side:8} {'':15} {'':9} {'':9}"
                f" {_ratio(times_bound(of_side)):>8} {_ratio(summed(pairs, evaluated)):>8} {'':6} {'':8}"
                f" {_ratio(summed(pairs, wall)):>8} {_ratio(summed(pairs, first_p50)):>10}"
                f" {_ratio(summed(pairs, first_p95)):>8}"
            )


def _against_alone(pairs: Sequence[Pairs]) -> str:
    ratios = [ratio for each in pairs for ratio in each.ratios(evaluated)]
    if not ratios:
        return f"{'-':>8} {'-':>6}"
    return f"{statistics.median(ratios):8.3f} {max(ratios):6.2f}"


def _loss(pairs: Sequence[Pairs]) -> str:
    lost = []
    for each in pairs:
        tokens, times = each.ratios(evaluated), each.ratios(wall)
        if tokens and statistics.median(tokens) > EVALUATED_LIMIT:
            lost.append("evaluated")
        if each.cell.at_once > 1 and times and statistics.median(times) > TIME_LIMIT:
            lost.append("wall")
    return f"  << WORSE: {', '.join(lost)}" if lost else ""


def _steered(runs: Sequence[Run]) -> str:
    actions = ordered(action for run in runs for action in run.steered)
    means = {action: statistics.fmean(run.steered.get(action, 0) for run in runs) for action in actions}
    return " ".join(f"{action} {mean:.0f}" for action, mean in means.items())


def _mean(runs: Sequence[Run], figure: Figure, factor: float) -> str:
    values = [value for run in runs if (value := figure(run)) is not None]
    return f"{statistics.fmean(values) * factor:,.{1 if factor == 1 else 0}f}" if values else "-"


def _median(pairs: Sequence[Pairs], figure: Figure) -> str:
    ratios = [ratio for each in pairs for ratio in each.ratios(figure)]
    return _ratio(statistics.median(ratios) if ratios else None)


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
