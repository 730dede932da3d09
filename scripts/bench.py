"""How much is evaluated, and how long does it take? Seeded traffic to real servers, each run on a fresh one, for the
server alone, mitmdump without toki, toki (auto and pin) and callo, beside the lower bound: a server with an endless
cache.

    make bench [SEEDS=1,2]          everything; many hours: see --list, the options that narrow it, and --resume
    make bench-quick                a first look, under two minutes
    python scripts/bench.py --flags default --scenarios codex --at-once 4 --seeds 1
    python scripts/bench.py --report docs/bench/bench.json --check
    python scripts/bench.py --compare A.json B.json

Sides alternate: all of them play a seed of a cell before the next seed comes. Results are kept after every run. The
pictures lie beside them. Exit status: 0 fine, 1 a check fails (with --check), 2 could not run.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException
from pathlib import Path
from threading import Lock
from typing import Any

from benchmark import damage
from benchmark.cells import FLAGS
from benchmark.cells import FULL
from benchmark.cells import MODELS
from benchmark.cells import QUICK
from benchmark.cells import SHAPES
from benchmark.cells import SIDES
from benchmark.cells import TRAFFIC
from benchmark.cells import Planned
from benchmark.cells import Wanted
from benchmark.cells import in_order
from benchmark.cells import plan
from benchmark.checks import checks
from benchmark.checks import lines
from benchmark.choice import costs
from benchmark.compare import compare
from benchmark.machine import session
from benchmark.measure import measured
from benchmark.results import Absence
from benchmark.results import Results
from benchmark.results import Run
from benchmark.results import load
from benchmark.results import save
from benchmark.summary import EVALUATED_LIMIT
from benchmark.tables import tables
from servers import BUILDS
from servers import ROOT

KEPT_IN = ROOT / "docs" / "bench"
SEEDS = (1, 2, 3, 4, 5)


def one_of(names: Sequence[str]) -> Callable[[str], tuple[str, ...]]:
    """An option's value: some of `names`, with commas between."""

    def parse(text: str) -> tuple[str, ...]:
        given = tuple(name.strip() for name in text.split(","))
        for name in given:
            if name not in names:
                raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(names)}")
        return given

    return parse


def numbers(text: str) -> tuple[int, ...]:
    """An option's value: positive numbers, with commas between, none twice."""
    try:
        given = tuple(int(number) for number in text.split(","))
    except ValueError:
        given = ()
    if not given or min(given) < 1 or len(set(given)) < len(given):
        raise argparse.ArgumentTypeError(f"{text!r} must be different numbers from 1 up, like 1,2,3")
    return given


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = found.add_argument_group("what to play (each narrows the plan; several with commas between)")
    what.add_argument("--quick", action="store_true", help="a small plan, one seed")
    what.add_argument("--seeds", type=numbers, help="default: 1,2,3,4,5")
    what.add_argument("--scenarios", type=one_of(tuple(TRAFFIC)), help=", ".join(TRAFFIC))
    what.add_argument("--flags", type=one_of(tuple(FLAGS)), help=", ".join(FLAGS))
    what.add_argument("--at-once", type=numbers, help="requests in flight: 1, 4")
    what.add_argument("--reply", type=numbers, help="length of answers in tokens: 8, 200")
    what.add_argument("--shapes", type=one_of(SHAPES), help=", ".join(SHAPES))
    what.add_argument("--model", type=one_of(tuple(MODELS)), help=", ".join(MODELS))
    what.add_argument("--sides", type=one_of(SIDES), help=", ".join(SIDES))
    what.add_argument("--build", choices=BUILDS, default="skulk", help="of llama-server (default: skulk)")
    what.add_argument("--damage", choices=("no", "also", "only"), help="compare answers with uncached ones")
    what.add_argument("--list", action="store_true", help="only say what would be played")
    how = found.add_argument_group("how")
    how.add_argument("--jobs", type=int, default=1, help="cells at a time; times mean little above 1 (default: 1)")
    how.add_argument("--output", type=Path, help="default: bench.json or quick.json in docs/bench")
    how.add_argument("--resume", action="store_true", help="keep what the output holds, play what it lacks")
    how.add_argument("--check", action="store_true", help="exit with 1 where a check fails")
    how.add_argument("--report", type=Path, metavar="FILE", help="play nothing: tables, pictures, checks of a file")
    how.add_argument("--compare", type=Path, nargs=2, metavar=("A", "B"), help="play nothing: compare two files")
    return found


def wanted(options: argparse.Namespace) -> Wanted:
    axes = {
        "scenario": options.scenarios,
        "flags": options.flags,
        "at_once": options.at_once,
        "reply": options.reply,
        "shape": options.shapes,
        "model": options.model,
    }
    given = {axis: values for axis, values in axes.items() if values is not None}
    return Wanted(axes=given, sides=options.sides, build=options.build)


def play_all(planned: Sequence[Planned], seeds: Sequence[int], results: Results, keep: Path, jobs: int) -> None:
    """Play what the results lack, seed by seed; the file is written after every run."""
    now = len(results.sessions) - 1
    todo = [
        (seed, each.cell, missing)
        for seed in seeds
        for each in planned
        if (missing := [side for side in in_order(each.sides, seed) if not results.has(each.cell, side, seed)])
    ]
    total = sum(len(sides) for _, _, sides in todo)
    print(f"{total} runs to play", flush=True)
    began = time.monotonic()
    lock = Lock()
    done = 0

    def one_cell(item: tuple[int, Any, list[str]]) -> None:
        nonlocal done
        seed, cell, sides = item
        for side in sides:
            found = measured(cell, side, seed, now)
            with lock:
                (results.runs if isinstance(found, Run) else results.absences).append(found)  # type: ignore[arg-type]
                save(results, keep)
                done += 1
                left = (time.monotonic() - began) / done * (total - done)
                print(f"{progress(found, results)}   {left / 60:.0f} min left", flush=True)

    with ThreadPoolExecutor(jobs) as pool:
        try:
            for _ in pool.map(one_cell, todo):
                pass
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def progress(found: Run | Absence, results: Results) -> str:
    """One line on a run that has just ended."""
    head = f"{found.cell}, seed {found.seed}, {found.side}:"
    if isinstance(found, Absence):
        return f"{head} NOT MEASURED: {found.reason}"
    alone = next((o for o in results.runs if (o.cell, o.side, o.seed) == (found.cell, "alone", found.seed)), None)
    beside = ""
    if alone is not None and alone is not found:
        ratio = found.evaluated / max(1, alone.evaluated)
        beside = f", alone {alone.evaluated:,}{' << WORSE' if ratio > EVALUATED_LIMIT else ''}"
    return f"{head} evaluated {found.evaluated:,} (bound {found.bound:,}{beside}), {found.wall_s:.1f} s"


def compare_answers(results: Results, options: argparse.Namespace, keep: Path) -> None:
    """The cells of damage.py that are wanted, through toki."""
    now = len(results.sessions) - 1
    seed = (options.seeds or SEEDS)[0]
    for cell in damage.cells():
        if cell.model not in (options.model or MODELS) or cell.flags not in (options.flags or FLAGS):
            continue
        for side in (side for side in ("auto", "pin") if side in (options.sides or SIDES)):
            if results.has(cell, side, seed):
                continue
            try:
                found = damage.compared(cell, side, seed, now)
            except (OSError, HTTPException, RuntimeError) as error:
                lost = Absence(cell=cell, side=side, seed=seed, session=now, reason=str(error) or repr(error))
                results.absences.append(lost)
                print(progress(lost, results), flush=True)
            else:
                results.answers.append(found)
                tail = f"{found.compared} answers, {found.differ} differ, {len(found.damaged)} damaged"
                print(f"{cell}, {side}: {tail}", flush=True)
            save(results, keep)


def report(results: Results, keep: Path, pictures: bool) -> Iterator[str]:
    """Tables, pictures, checks."""
    yield from tables(results)
    if pictures:
        from benchmark.plots import plots  # slow to import, and an extra of its own

        yield ""
        yield from (f"wrote {path}" for path in plots(results, keep.with_suffix("")))
    yield ""
    yield from lines(checks(results))


def main() -> int:
    options = parser().parse_args()
    try:
        return run(options)
    except (OSError, HTTPException, RuntimeError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2


def run(options: argparse.Namespace) -> int:
    if options.compare:
        print("\n".join(compare(*map(load, options.compare))))
        return 0
    keep = options.report or options.output or KEPT_IN / ("quick.json" if options.quick else "bench.json")
    if options.report:
        results = load(options.report)
    else:
        planned = plan(QUICK if options.quick else FULL, wanted(options))
        seeds = options.seeds or (SEEDS[:1] if options.quick else SEEDS)
        if options.list:
            for each in planned:
                print(f"{each.cell}: {', '.join(each.sides)}")
            print(f"{sum(len(each.sides) for each in planned) * len(seeds)} runs with {len(seeds)} seeds")
            return 0
        results = load(keep) if options.resume and keep.exists() else Results()
        results.sessions.append(session(" ".join(sys.argv[1:]), options.jobs))
        answers = options.damage or ("no" if options.quick or wanted(options).axes else "also")
        if answers != "only":
            play_all(planned, seeds, results, keep, options.jobs)
        if answers != "no":
            compare_answers(results, options, keep)
        if not options.quick and not wanted(options).axes:
            results.costs = costs()
        save(results, keep)
    print("\n".join(report(results, keep, pictures=bool(results.runs))))
    return 1 if options.check and any(check.held is False for check in checks(results)) else 0


if __name__ == "__main__":
    sys.exit(main())
