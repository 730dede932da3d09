"""Do answers change with what the server reuses, and does toki change any? `make divergence`

python scripts/divergence.py collect --models smollm2 --builds xllamacpp   # hours on two cores; goes on where it was
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator
from collections.abc import Sequence
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import get_args

from benchmark.machine import session
from divergence_calibrate import report as calibration
from divergence_prompts import PARTS
from divergence_prompts import prompts
from divergence_report import actions
from divergence_report import comparisons
from divergence_report import page
from divergence_report import read
from divergence_report import text
from divergence_ways import MODELS
from divergence_ways import N_CTX
from divergence_ways import WAYS
from divergence_ways import Pass
from divergence_ways import run
from servers import BUILDS
from servers import CACHE
from servers import ROOT
from servers import Build
from servers import runnable
from toki.divergence import embedding_in_use
from toki.divergence.meaning import best
from toki.divergence.meaning import deterministic

ANSWERS = CACHE / "divergence"
TEMPERATURES = (0.0, 0.8)


def passes(models: Sequence[str], builds: Sequence[Build], temperatures: Sequence[float]) -> Iterator[Pass]:
    """All passes, those first that already tell something without the others."""
    for model, build, temperature in product(models, builds, temperatures):
        for number, way, part in product((1, 2), WAYS, range(PARTS)):
            yield Pass(model, build, way, temperature, number, part)


def collect(wanted: Sequence[Pass], into: Path, seconds: float) -> bool:
    """Run the passes that are not in `into` yet, one file each, for `seconds` at most; whether all are there."""
    into.mkdir(parents=True, exist_ok=True)
    until = time.monotonic() + seconds
    for one in wanted:
        file = into / f"{one.name}.json"
        if file.exists():
            continue
        if time.monotonic() > until:
            return False
        begun = time.monotonic()
        answers = run(one, prompts(one.part))
        took = time.monotonic() - begun
        weights = runnable(MODELS[one.model](), one.build).name
        found = {"pass": asdict(one), "weights": weights, "seconds": took, "load": os.getloadavg()[0]}
        partial = file.with_suffix(".partial")
        partial.write_text(json.dumps({**found, "answers": [asdict(answer) for answer in answers]}), encoding="utf-8")
        partial.replace(file)
        print(f"{one.name}: {len(answers)} answers in {took:.0f} s", flush=True)
    return True


def report(folder: Path, output: Path) -> int:
    """Write OUTPUT.txt, .json and .html, and print the text."""
    kept = read(folder)
    figures = [comparison.figures() for comparison in comparisons(kept)]
    if not figures:
        print(f"{folder}: no answers that could be compared; first: divergence.py collect")
        return 2
    about = session("divergence.py report", 1) | {
        "embedding": embedding_in_use(),
        "flags": {
            "restore": "one slot, no RAM cache, --slot-save-path",
            "alone-cram0": "--cache-ram 0",
            "toki-cram0": "--cache-ram 0",
            "others": "defaults",
        },
        "n_ctx": N_CTX,
        "threads": 1,
        "ways": WAYS,
        "passes": [
            {**file["pass"], "weights": file["weights"], "actions": actions(file), "load": file["load"]}
            for file in kept
        ],
    }
    table = text(figures)
    weights = sorted({f"{file['pass']['model']}, {file['pass']['build']}: {file['weights']}" for file in kept})
    line = "; ".join([f"{about['cpu']}, {about['cores']} cores", *weights, f"embeddings: {about['embedding']}"])
    line += f"; {about['date']}"
    output.with_suffix(".txt").write_text(f"{line}\n\n{table}\n", encoding="utf-8")
    content = json.dumps({"about": about, "comparisons": figures}, indent=1, ensure_ascii=False)
    output.with_suffix(".json").write_text(content + "\n", encoding="utf-8")
    output.with_suffix(".html").write_text(page(figures, line), encoding="utf-8")
    print(table)
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    collecting = commands.add_parser("collect", help="send the prompts and keep the answers")
    collecting.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    collecting.add_argument("--builds", nargs="+", choices=get_args(Build), default=list(BUILDS))
    collecting.add_argument("--temperatures", nargs="+", type=float, default=list(TEMPERATURES))
    collecting.add_argument("--seconds", type=float, default=float("inf"), help="start no pass after that")
    collecting.add_argument("--answers", type=Path, default=ANSWERS)
    reporting = commands.add_parser("report", help="judge the answers that are kept: text, JSON and HTML")
    reporting.add_argument("--answers", type=Path, default=ANSWERS)
    reporting.add_argument("--output", type=Path, default=ROOT / "docs" / "bench" / "divergence")
    commands.add_parser("calibrate", help="judge the labelled pairs")
    given = parser.parse_args(arguments)
    if given.command == "collect":
        wanted = list(passes(given.models, given.builds, given.temperatures))
        return 0 if collect(wanted, given.answers, given.seconds) else 1
    if given.command == "report":
        return report(given.answers, given.output)
    if given.command == "calibrate":
        for meaning in (best(), deterministic()):
            print(calibration(meaning, meaning.name), end="\n\n")
        return 0
    return 2


if __name__ == "__main__":
    sys.exit(main())
