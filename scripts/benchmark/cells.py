"""What the benchmark runs: a cell is one kind of server and one kind of traffic; the plan is the list of all cells."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field
from dataclasses import fields
from itertools import product
from pathlib import Path

from benchmark.siblings import SIBLINGS
from play import Form
from servers import Build
from servers import Flags
from servers import gemma3
from servers import smollm2
from servers import tiny_model
from servers import tiny_window_model
from traffic import SCENARIOS

KEPT = "-np 16 -kvu --no-cache-idle-slots"
FLAGS: dict[str, Flags] = {
    "default": Flags(),
    "-np 4": Flags(n_parallel=4),
    "-np 4 -cram 0": Flags(n_parallel=4, cache_ram_mib=0),
    KEPT: Flags(n_parallel=16, kv_unified=True, cache_idle_slots=False),
    f"{KEPT} -cram 0": Flags(n_parallel=16, kv_unified=True, cache_idle_slots=False, cache_ram_mib=0),
    "-np 1": Flags(n_parallel=1),
    "-np 1 -cram 0": Flags(n_parallel=1, cache_ram_mib=0),  # nothing to steer
    "-cram 1": Flags(cache_ram_mib=1),
    "-cram 3": Flags(cache_ram_mib=3),
    "-cram 6": Flags(cache_ram_mib=6),
}
MODELS: dict[str, Callable[[], Path]] = {
    "tiny": tiny_model,
    "tiny window": tiny_window_model,
    "SmolLM2": smollm2,
    "Gemma 3": gemma3,
}
LIMIT_S = {
    "tiny": 180.0,
    "tiny window": 180.0,
    "SmolLM2": 1800.0,
    "Gemma 3": 1800.0,
}  # for one run: many times what it should take
SIDES = ("alone", "mitmdump", "auto", "pin", "callo")
SHAPES: tuple[Form, ...] = ("chat", "messages", "responses", "completion")
RANDOM = "mixed"  # hang-ups and several answers: no bound, and no two plays of it are quite the same
EVERY = tuple(SCENARIOS)
TRAFFIC = {**SCENARIOS, SIBLINGS.name: SIBLINGS}
DOCUMENT = "same-document"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One kind of server and of traffic. `reply` is the length of answers in tokens, `scale` a factor on all texts."""

    model: str = "tiny"
    build: Build = "skulk"
    flags: str
    scenario: str
    at_once: int = 1
    reply: int = 8
    shape: Form = "chat"
    scale: float = 1.0

    @property
    def group(self) -> tuple[str, ...]:
        """What its table is headed with: all but flags and scenario, in words."""
        how = "in turn" if self.at_once == 1 else f"{self.at_once} at once"
        size = () if self.scale == 1 else (f"texts x {self.scale:g}",)
        build = () if self.build == "skulk" else (self.build,)
        return (self.model, *build, self.shape, how, f"answers of {self.reply}", *size)

    def __str__(self) -> str:
        return ", ".join((*self.group, self.flags, self.scenario))


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A part of the plan: all combinations of its axes, played against each of `sides`."""

    model: Sequence[str] = ("tiny",)
    flags: Sequence[str] = tuple(FLAGS)
    scenario: Sequence[str] = EVERY
    at_once: Sequence[int] = (1, 4)
    reply: Sequence[int] = (8,)
    shape: Sequence[Form] = ("chat",)
    scale: float = 1.0
    sides: Sequence[str] = ("alone", "auto")

    def cells(self, build: Build) -> Iterator[Cell]:
        for shape, at_once, reply, model, flags, scenario in product(
            self.shape, self.at_once, self.reply, self.model, self.flags, self.scenario
        ):
            yield Cell(
                model=model,
                build=build,
                flags=flags,
                scenario=scenario,
                at_once=at_once,
                reply=reply,
                shape=shape,
                scale=self.scale,
            )


ALMOST_EVERY = tuple(name for name in EVERY if name != RANDOM)
OTHERS: tuple[Form, ...] = ("messages", "responses", "completion")
FULL = (
    Block(sides=SIDES),
    Block(scenario=ALMOST_EVERY, at_once=(4,), reply=(200,)),
    Block(scenario=ALMOST_EVERY, at_once=(1,), reply=(200,), flags=("default", "-np 4", f"{KEPT} -cram 0")),
    Block(scenario=ALMOST_EVERY, at_once=(1,), shape=OTHERS, flags=("default", "-np 4", KEPT, "-np 1")),
    Block(scenario=ALMOST_EVERY, at_once=(4,), shape=OTHERS, flags=("default", "-np 4")),
    Block(scenario=(DOCUMENT,), at_once=(4,), scale=2.0, flags=("default", "-np 4", KEPT)),
    Block(
        model=("SmolLM2", "Gemma 3"),
        flags=("default", "-np 4"),
        scenario=("shared-preamble", "parent-and-subagents", DOCUMENT),
        scale=0.15,
    ),
    Block(model=("tiny window",), flags=("-np 4",), scenario=(SIBLINGS.name,)),
    Block(model=("Gemma 3",), flags=("-np 4",), scenario=(SIBLINGS.name,), at_once=(1,)),
    Block(model=("Gemma 3",), flags=("default",), scenario=(DOCUMENT,), at_once=(4,), scale=2.0),
)
QUICK = (
    Block(flags=("default", "-np 4"), scenario=("shared-preamble", "big-with-sides"), at_once=(1,), scale=0.3),
    Block(flags=("-np 4",), scenario=(DOCUMENT,), at_once=(4,), scale=2.0),
)


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a person asked for: each axis that is not None narrows the plan."""

    axes: dict[str, tuple[object, ...]] = field(default_factory=dict)  # field of Cell -> allowed values
    sides: tuple[str, ...] | None = None
    build: Build = "skulk"

    def allows(self, cell: Cell) -> bool:
        return all(getattr(cell, axis) in values for axis, values in self.axes.items())


@dataclass(frozen=True, slots=True)
class Planned:
    cell: Cell
    sides: tuple[str, ...]


def plan(blocks: Sequence[Block], wanted: Wanted) -> list[Planned]:
    """The cells of the blocks that are wanted, none twice. Raises ValueError where nothing is left."""
    assert set(wanted.axes) <= {axis.name for axis in fields(Cell)}
    found: dict[Cell, tuple[str, ...]] = {}
    for block in blocks:
        sides = tuple(side for side in block.sides if wanted.sides is None or side in wanted.sides)
        for cell in block.cells(wanted.build):
            if sides and wanted.allows(cell):
                found.setdefault(cell, sides)
    if not found:
        raise ValueError("nothing in the plan is all of that; see --list")
    return [Planned(cell, sides) for cell, sides in found.items()]


def in_order(sides: Sequence[str], seed: int) -> list[str]:
    """The sides in the order for this seed: each comes first in its turn, so that a drift hits all alike."""
    start = seed % len(sides)
    return [*sides[start:], *sides[:start]]
