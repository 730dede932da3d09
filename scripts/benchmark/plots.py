"""The figures as pictures, PNG and SVG: for each group of cells one by flag set and one with every cell."""

from __future__ import annotations

import re
import statistics
from collections.abc import Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")  # no display needed

from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Picture
from matplotlib.patches import Rectangle

from benchmark.cells import SIDES
from benchmark.results import Results
from benchmark.results import Run
from benchmark.summary import evaluated
from benchmark.summary import first_p95
from benchmark.summary import groups
from benchmark.summary import ordered
from benchmark.summary import paired
from benchmark.summary import summed
from benchmark.summary import times_bound
from benchmark.summary import wall

COLOURS = {"alone": "#8c8c8c", "mitmdump": "#bcbd22", "auto": "#1f77b4", "pin": "#ff7f0e", "callo": "#9467bd"}
NAMES = {
    "alone": "server alone",
    "mitmdump": "mitmdump without toki",
    "auto": "toki auto",
    "pin": "toki pin",
    "callo": "callo 0.3.1",
}


def plots(results: Results, stem: Path) -> list[Path]:
    """Write the pictures as STEM-GROUP.png and .svg, and STEM-GROUP-cells; what was written."""
    # Equal results give equal files.
    matplotlib.rcParams.update({"svg.hashsalt": "bench", "svg.fonttype": "none", "font.size": 9})
    written = []
    for group, runs in groups(results.runs).items():
        name = re.sub(r"[^a-z0-9]+", "-", " ".join(group).lower()).strip("-")
        for suffix, picture in (("", _by_flags(group, runs)), ("-cells", _cells(group, runs))):
            if picture is None:
                continue
            for kind, metadata in (("png", {}), ("svg", {"Date": None})):
                path = stem.with_name(f"{stem.name}-{name}{suffix}.{kind}")
                picture.savefig(path, dpi=110, metadata=metadata)
                written.append(path)
            pyplot.close(picture)
    return written


def _by_flags(group: Sequence[str], runs: Sequence[Run]) -> Picture:
    """Bars: evaluated tokens over the bound, wall time and time to first token over the server alone."""
    flags = ordered(run.cell.flags for run in runs)
    picture, axes = pyplot.subplots(1, 3, figsize=(13, 2 + 0.55 * len(flags)), sharey=True, layout="constrained")
    here = {flag: [run for run in runs if run.cell.flags == flag] for flag in flags}
    sides = [side for side in SIDES if any(run.side == side for run in runs)]
    for place, side in enumerate(sides):
        offset = (place - (len(sides) - 1) / 2) * 0.8 / len(sides)
        rows = [row + offset for row in range(len(flags))]
        figures = (
            [times_bound([run for run in here[flag] if run.side == side]) for flag in flags],
            [summed(paired(here[flag], side), wall) for flag in flags],
            [summed(paired(here[flag], side), first_p95) for flag in flags],
        )
        for axis, values in zip(axes, figures, strict=True):
            widths = [value or 0.0 for value in values]
            axis.barh(rows, widths, 0.8 / len(sides), color=COLOURS[side], label=NAMES[side])
    titles = ("evaluated tokens, x lower bound", "wall time, x server alone", "first token p95, x server alone")
    for axis, title in zip(axes, titles, strict=True):
        axis.set_title(title)
        axis.axvline(1, color="black", linewidth=0.8)
    axes[0].set_yticks(range(len(flags)), flags)
    axes[0].invert_yaxis()
    picture.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=len(sides))
    picture.suptitle(f"{', '.join(group)}   (all scenarios together, {_seeds(runs)})")
    return picture


def _cells(group: Sequence[str], runs: Sequence[Run]) -> Picture | None:
    """A map of all cells: toki's evaluated tokens over those of the server alone. Blue wins, red loses."""
    pairs = {(each.cell.scenario, each.cell.flags): each for each in paired(runs, "auto")}
    if not pairs:
        return None
    scenarios, flags = ordered(cell for cell, _ in pairs), ordered(flag for _, flag in pairs)
    width, height = 4 + 0.9 * len(flags), 2.4 + 0.32 * len(scenarios)
    picture, axis = pyplot.subplots(figsize=(width, height), layout="constrained")
    for (scenario, flag), each in pairs.items():
        ratio = statistics.median(each.ratios(evaluated))
        column, row = flags.index(flag), scenarios.index(scenario)
        _tile(axis, column, row, ratio)
    axis.set_xlim(-0.5, len(flags) - 0.5)
    axis.set_ylim(len(scenarios) - 0.5, -0.5)
    axis.set_xticks(range(len(flags)), flags, rotation=25, ha="right")
    axis.set_yticks(range(len(scenarios)), scenarios)
    axis.set_title(f"toki's evaluated tokens x server alone\n{', '.join(group)}; median, {_seeds(runs)}", fontsize=8)
    return picture


def _tile(axis: Axes, column: int, row: int, ratio: float) -> None:
    colour = matplotlib.colormaps["RdBu_r"](min(1.0, max(0.0, 0.5 + (ratio - 1) * 0.45)))
    axis.add_patch(Rectangle((column - 0.5, row - 0.5), 1, 1, facecolor=colour, edgecolor="white"))
    shade = "white" if ratio < 0.35 or ratio > 1.65 else "black"
    weight = "bold" if ratio > 1.02 else "normal"
    axis.text(column, row, f"{ratio:.2f}", ha="center", va="center", color=shade, fontweight=weight)


def _seeds(runs: Sequence[Run]) -> str:
    seeds = sorted({run.seed for run in runs})
    return f"seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}"
