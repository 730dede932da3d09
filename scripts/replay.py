"""Replays an event log (`--set toki_log_events=FILE`): do engines that hear the same decide the same, byte for byte?

    PYTHONPATH=addon python scripts/replay.py FILE

Prints the first difference and exits with 1 where there is one; with 2 where the file can't be read.
The last digits of a `similarity` depend on the machine's BLAS: elsewhere they may differ where nothing else does.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

from toki.engine.core import Engine
from toki.eventlog import Heard
from toki.eventlog import Made
from toki.eventlog import answer_line
from toki.eventlog import read


@dataclass(frozen=True, slots=True)
class Replayed:
    """How many engines and events were replayed, and the first difference: "" where there was none."""

    engines: int
    events: int
    difference: str


def replay(lines: Iterable[bytes]) -> Replayed:
    """Let new engines hear what stands in a log, until one answers otherwise. Raises ValueError for what is no log."""
    engines: dict[tuple[int, int], Engine] = {}
    events = 0
    for entry in read(lines):
        if isinstance(entry, Made):
            engines[entry.engine] = Engine(entry.mode, entry.min_reuse)
            continue
        events += 1
        answer = answer_line(entry.engine[1], _answer(engines[entry.engine], entry))
        if answer != entry.answer:
            what = f"line {entry.number}, {type(entry.event).__name__}"
            where = _difference(json.loads(entry.answer), json.loads(answer)) or "written otherwise"
            return Replayed(len(engines), events, f"{what}: {where}")
    return Replayed(len(engines), events, "")


def _answer(engine: Engine, entry: Heard) -> Any:
    try:
        return engine.handle(entry.event)
    except Exception as error:  # it may have failed then as well
        return error


def _difference(logged: Any, replayed: Any, path: str = "") -> str:
    """Where two JSON values differ first, and how; "" where they are equal."""
    parts: list[str]
    if isinstance(logged, dict) and isinstance(replayed, dict):
        names = sorted({*logged, *replayed})
        parts = [_difference(logged.get(name), replayed.get(name), f"{path}.{name}") for name in names]
    elif isinstance(logged, list) and isinstance(replayed, list):
        pairs = enumerate(zip_longest(logged, replayed))
        parts = [_difference(old, new, f"{path}[{place}]") for place, (old, new) in pairs]
    elif logged == replayed:
        parts = []
    else:
        parts = [f"{path.lstrip('.')} was {json.dumps(logged)} and is {json.dumps(replayed)}"]
    return next(filter(None, parts), "")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Replay an event log of toki: are its decisions the same again?")
    parser.add_argument("file", type=Path)
    path: Path = parser.parse_args(arguments).file
    try:
        with path.open("rb") as file:
            replayed = replay(file)
    except (OSError, ValueError) as error:
        print(f"{path}: {error}", file=sys.stderr)
        return 2
    print(f"{replayed.events:,} events of {replayed.engines:,} engines: {replayed.difference or 'the same decisions'}")
    return 1 if replayed.difference else 0


if __name__ == "__main__":
    sys.exit(main())
