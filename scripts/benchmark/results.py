"""The figures that are kept, as JSON: one line per run, so that two files also compare well as text."""

from __future__ import annotations

import json
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import asdict
from dataclasses import dataclass
from dataclasses import field
from pathlib import Path
from typing import Any

from benchmark.cells import Cell

FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One play of one cell with one seed on a fresh server, by one side. Tokens, or seconds."""

    cell: Cell
    side: str
    seed: int
    session: int  # which of Results.sessions it was measured in
    requests: int
    failed: int  # answers other than 200
    prompt_tokens: int  # of all prompts
    evaluated: int  # by the server's own counter
    bound: int  # what a server with an endless cache would have evaluated for the same prompts
    wall_s: float
    first_p50_s: float | None  # time to first token, of the requests that stream; None: none of them does
    first_p95_s: float | None
    wave_s: float | None  # from the start to the last first token of the requests that were sent at once at the start
    steered: Mapping[str, int] = field(default_factory=dict)  # action -> requests
    load: float = 0.0  # of the machine, when it began


@dataclass(frozen=True, slots=True, kw_only=True)
class Absence:
    """A run that was wanted and could not be measured."""

    cell: Cell
    side: str
    seed: int
    session: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """One run of several at once whose every answer was compared with an uncached one."""

    cell: Cell
    side: str
    seed: int
    session: int
    compared: int
    differ: int  # texts that are not equal: cells of a shared cache in another order round otherwise
    damaged: Sequence[str]  # what no rounding explains, one line each
    steered: Mapping[str, int] = field(default_factory=dict)  # action -> requests


@dataclass(slots=True)
class Results:
    """What a file holds. `sessions` say with what and where runs were measured; `costs` are milliseconds and shares."""

    sessions: list[dict[str, Any]] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)
    absences: list[Absence] = field(default_factory=list)
    answers: list[Answers] = field(default_factory=list)
    costs: dict[str, float] = field(default_factory=dict)

    def has(self, cell: Cell, side: str, seed: int) -> bool:
        measured: Sequence[Run | Absence | Answers] = (*self.runs, *self.absences, *self.answers)
        return any((one.cell, one.side, one.seed) == (cell, side, seed) for one in measured)


LISTS = {"runs": Run, "absences": Absence, "answers": Answers}


def save(results: Results, path: Path) -> None:
    """Write the file as a whole or not at all."""
    parts = [
        f'"format": {FORMAT}',
        f'"sessions": {_lines(results.sessions)}',
        f'"costs": {json.dumps(results.costs)}',
        *(f'"{name}": {_lines([asdict(one) for one in getattr(results, name)])}' for name in LISTS),
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.new")
    partial.write_text("{\n" + ",\n".join(parts) + "\n}\n", encoding="utf-8")
    partial.replace(path)


def _lines(items: Sequence[Mapping[str, Any]]) -> str:
    return "[\n" + ",\n".join(json.dumps(item, ensure_ascii=False) for item in items) + "\n]" if items else "[]"


def load(path: Path) -> Results:
    """Raises OSError where there is no such file, ValueError where it is none of ours."""
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
        if kept["format"] != FORMAT:
            raise ValueError(f"its format is {kept['format']}, not {FORMAT}")
        lists = {
            name: [kind(**(item | {"cell": Cell(**item["cell"])})) for item in kept[name]]
            for name, kind in LISTS.items()
        }
        return Results(sessions=kept["sessions"], costs=kept["costs"], **lists)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} holds no results of this benchmark: {error!r}") from None
