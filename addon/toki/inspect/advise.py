"""What recorded traffic would have cost with other flags: replayed on the engine's shadow, for a grid of servers.

All figures here but those of the recording are predictions, of a server that nobody steers.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import asdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toki.engine.rules import UNLIMITED
from toki.engine.rules import Rules
from toki.engine.rules import hypotheses
from toki.facts import known
from toki.flags import ServerFlags
from toki.gguf import Header
from toki.gguf import Layer
from toki.inspect.records import Request
from toki.inspect.replay import replay
from toki.inspect.trace import Trace
from toki.inspect.trace import reconstruct
from toki.server import Props

SLOTS = (1, 2, 4, 8, 16, 32)
RAM_GIB = (0, 1, 2, 4, 8, 16, 32, 64)
USUAL = Header("assumed", 0, 0, (Layer(1024, 1024, False),) * 32)  # 128 KiB a token: 8 billion parameters, f16
CLOSE = 0.02  # settings that differ by less are as good
WORTH = 0.1  # of what was evaluated, to be worth a change


@dataclass(frozen=True, slots=True)
class Setting:
    """One server of the grid. `unified`: slots share one KV cache and are cleared when idle, as by default."""

    slots: int
    ram_mib: int
    unified: bool

    @property
    def flags(self) -> str:
        """As on the command line."""
        shared = " --kv-unified" if self.unified else ""
        return f"-np {self.slots}{shared} --cache-ram {self.ram_mib}"


@dataclass(frozen=True, slots=True)
class Predicted:
    """What one setting would have evaluated, in tokens, and how many requests its context would have refused."""

    setting: Setting
    evaluated: int
    refused: int


@dataclass(frozen=True, slots=True)
class Recorded:
    """The recording itself. Lengths in tokens; `evaluated` is what the server told, of `told` requests, with toki's own
    for them."""

    requests: int
    unread: int
    left_out: int
    prompt_tokens: int
    told: int
    evaluated: int
    bound: int


@dataclass(frozen=True, slots=True)
class Advice:
    """The grid, and the cheapest of its best settings."""

    recorded: Recorded
    grid: Sequence[Predicted]
    best: Predicted
    assumed: str  # what had to be assumed about the server, in words; "" where nothing

    @property
    def worthwhile(self) -> bool:
        """Whether the best setting is predicted to evaluate much less than was evaluated, and to refuse nothing."""
        known_all = self.recorded.told == self.recorded.requests
        return known_all and not self.best.refused and self.best.evaluated < (1 - WORTH) * self.recorded.evaluated


def advise(rows: Sequence[Request], header: Header | None, ctx: int | None, own: Mapping[int, int]) -> Advice:
    """Replay `rows` on each server of the grid. `header`: the model's; `ctx`: tokens of all slots together; `own`: what
    toki's own requests evaluated for a row, by its id.

    Raises ValueError where no row can be replayed.
    """
    trace = reconstruct(rows)
    if not trace.steps:
        raise ValueError("no request was recorded whose length is known")
    grid = list(predict(trace, header or USUAL, ctx))
    least = min(grid, key=lambda one: (one.refused, one.evaluated))
    enough = (1 + CLOSE) * least.evaluated
    best = next(one for one in _by_cost(grid) if one.refused == least.refused and one.evaluated <= enough)
    assumed = [] if header is not None else ["128 KiB of cache for a token"]
    assumed += [] if ctx is not None else ["room in every slot"]
    keys = {step.key for step in trace.steps}
    told = [row for row in rows if row.id in keys and row.evaluated is not None]
    recorded = Recorded(
        requests=len(trace.steps),
        unread=trace.unread,
        left_out=trace.left_out,
        prompt_tokens=sum(step.prompt.length for step in trace.steps),
        told=len(told),
        evaluated=sum((row.evaluated or 0) + own.get(row.id, 0) for row in told),
        bound=trace.bound,
    )
    return Advice(recorded, grid, best, " and ".join(assumed))


def predict(trace: Trace, header: Header, ctx: int | None) -> Iterator[Predicted]:
    """Each server of the grid. A RAM cache beyond what is ever stored makes no difference: it is replayed once."""
    for unified in (False, True):
        for slots in SLOTS[unified:]:  # a single slot shares with none
            enough, before = UNLIMITED, (0, 0)
            for gib in reversed(RAM_GIB):
                setting = Setting(slots, gib * 1024, unified)
                rules = rules_of(setting, header, ctx)
                if not gib or rules.ram < enough:
                    replayed = replay(trace, rules)
                    enough, before = replayed.stored, (replayed.evaluated, replayed.refused)
                yield Predicted(setting, *before)


def rules_of(setting: Setting, header: Header, ctx: int | None) -> Rules:
    """How such a server behaves; `ctx` None: no prompt is too long for its slots."""
    flags = ServerFlags(parallel=setting.slots, cache_ram_mib=setting.ram_mib, kv_unified=setting.unified)
    n_ctx = UNLIMITED if ctx is None else ctx if setting.unified else ctx // setting.slots
    props = Props(setting.slots, n_ctx, "", "", "", "", "", False, {}, "", False)
    return hypotheses(setting.slots, n_ctx, known(props, flags, header))[0]


def _by_cost(grid: Sequence[Predicted]) -> list[Predicted]:
    """Cheap settings first: in memory for the RAM cache, then in slots; of two, the one that clears none."""
    return sorted(grid, key=lambda one: (one.setting.ram_mib, one.setting.slots, one.setting.unified))


def text(advice: Advice) -> str:
    """For people: what was recorded, the table, and the advice."""
    recorded = advice.recorded
    lines = [
        f"{recorded.requests:,} requests with {recorded.prompt_tokens:,} prompt tokens",
        f"evaluated as recorded: {recorded.evaluated:,} ({recorded.told:,} requests told)",
        f"an endless cache would evaluate {recorded.bound:,}",
    ]
    if recorded.unread:
        lines.append(f"{recorded.unread:,} of them were not read, and are taken to share nothing")
    if recorded.left_out:
        lines.append(f"{recorded.left_out:,} more were left out: no answer, or no length")
    if advice.assumed:
        lines.append(f"assumed: {advice.assumed} (see --model and --ctx)")
    lines += ["", "Predicted evaluated tokens of a server that nobody steers, by slots and RAM cache (GiB):", ""]
    heads = ["-np", *(str(gib) for gib in RAM_GIB)]
    for unified in (False, True):
        table = [heads]
        for slots in SLOTS[unified:]:
            row = [one for one in advice.grid if (one.setting.slots, one.setting.unified) == (slots, unified)]
            row.sort(key=lambda one: one.setting.ram_mib)
            table.append([str(slots), *(f"{one.evaluated:,}{'*' if one.refused else ''}" for one in row)])
        widths = [max(len(cells[column]) for cells in table) for column in range(len(heads))]
        lines.append("slots that share one KV cache (--kv-unified)" if unified else "slots of their own")
        lines += ["  ".join(cell.rjust(width) for cell, width in zip(cells, widths, strict=True)) for cells in table]
        lines.append("")
    if any(one.refused for one in advice.grid):
        lines += ["* some prompts were too long for a slot's context, and are not counted", ""]
    refused = f", and {advice.best.refused:,} requests refused" if advice.best.refused else ""
    least = f"{advice.best.setting.flags}: {advice.best.evaluated:,} evaluated tokens{refused}"
    lines.append(f"least for its price: {least}")
    return "\n".join(lines)


def as_json(advice: Advice) -> str:
    """For programs; the same figures."""
    found: dict[str, Any] = {
        "recorded": asdict(advice.recorded),
        "assumed": advice.assumed,
        "predicted": [_flat(one) for one in advice.grid],
        "best": {**_flat(advice.best), "flags": advice.best.setting.flags},
    }
    return json.dumps(found, indent=2)


def _flat(one: Predicted) -> dict[str, Any]:
    return {**asdict(one.setting), "evaluated": one.evaluated, "refused": one.refused}


def plot(advice: Advice, path: Path) -> None:
    """Draw the grid: a line for each number of slots. Raises ImportError, OSError or ValueError."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, panels = plt.subplots(1, 2, figsize=(11, 4.5), sharey=True, layout="constrained")
    for unified, panel in zip((False, True), panels, strict=True):
        for slots in SLOTS[unified:]:
            row = [one for one in advice.grid if (one.setting.slots, one.setting.unified) == (slots, unified)]
            row.sort(key=lambda one: one.setting.ram_mib)
            panel.plot(range(len(row)), [one.evaluated for one in row], marker="o", label=f"-np {slots}")
        panel.axhline(advice.recorded.bound, color="grey", linestyle=":", label="endless cache")
        panel.set_xticks(range(len(RAM_GIB)), [str(gib) for gib in RAM_GIB])
        panel.set_xlabel("RAM cache, GiB")
        panel.set_title("one KV cache for all slots" if unified else "slots of their own")
        panel.legend()
    panels[0].set_ylabel("evaluated tokens, predicted")
    panels[0].set_ylim(bottom=0)
    figure.savefig(path)
    plt.close(figure)
