"""Two kept results side by side: what changed from one to the other."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import Any

from benchmark.cells import Cell
from benchmark.results import Results
from benchmark.results import Run
from benchmark.summary import ordered

NOTEWORTHY = 0.01  # change of the mean of evaluated tokens


def compare(one: Results, other: Results) -> Iterator[str]:
    """Lines: what was measured with, sums per side and flag set, then each cell whose evaluated tokens changed."""
    for name, results in (("A", one), ("B", other)):
        for session in results.sessions:
            yield f"{name}: {_described(session)}"
    before, after = _by_cell(one), _by_cell(other)
    both = {key: seeds for key in before if key in after and (seeds := sorted(before[key].keys() & after[key].keys()))}
    yield f"{len(both)} cells and sides with seeds in common; of {len(before)} in A, {len(after)} in B"
    yield f"\n{'':62} {'evaluated A':>12} {'B':>12} {'B/A':>7}   wall B/A"
    for title in ordered(_title(cell, side) for cell, side in both):
        here = {key: seeds for key, seeds in both.items() if _title(*key) == title}
        pairs = [(before[key][seed], after[key][seed]) for key, seeds in here.items() for seed in seeds]
        yield _line(title, pairs)
    changed = []
    for key, seeds in both.items():
        pairs = [(before[key][seed], after[key][seed]) for seed in seeds]
        if abs(_ratio([(a.evaluated, b.evaluated) for a, b in pairs]) - 1) > NOTEWORTHY:
            changed.append(_line(f"{key[1]}: {key[0]}", pairs))
    yield f"\n{len(changed)} cells changed by more than {NOTEWORTHY:.0%}:"
    yield from changed


def _title(cell: Cell, side: str) -> str:
    return f"{side}: {', '.join(cell.group)}, {cell.flags}"


def _line(title: str, pairs: list[tuple[Run, Run]]) -> str:
    tokens = [(float(a.evaluated), float(b.evaluated)) for a, b in pairs]
    a, b = (statistics.fmean(side) for side in zip(*tokens, strict=True))
    walls = _ratio([(a.wall_s, b.wall_s) for a, b in pairs])
    return f"{title:62} {a:12,.0f} {b:12,.0f} {_ratio(tokens):7.3f} {walls:10.3f}"


def _ratio(pairs: list[tuple[Any, Any]]) -> float:
    return float(sum(b for _, b in pairs) / max(1e-9, sum(a for a, _ in pairs)))


def _by_cell(results: Results) -> dict[tuple[Cell, str], dict[int, Run]]:
    found: dict[tuple[Cell, str], dict[int, Run]] = {}
    for run in results.runs:
        found.setdefault((run.cell, run.side), {})[run.seed] = run
    return found


def _described(session: dict[str, Any]) -> str:
    return ", ".join(f"{key} {value}" for key, value in session.items())
