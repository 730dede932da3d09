"""Rules: one frozen hypothesis about how a llama-server chooses slots, saves and loses.

The flags that decide cannot be read over HTTP; the engine holds a few Rules side by side and observation picks one.
Builds that behave differently are other Rules, not ifs.
"""

from __future__ import annotations

from dataclasses import dataclass
from dataclasses import replace
from typing import TypeVar

from toki.engine.window import Window

T = TypeVar("T")

UNLIMITED = 1 << 62


@dataclass(frozen=True, slots=True)
class Rules:
    """What a server does. Sizes are in tokens.

    The defaults are those of `llama-server` without flags (llama.cpp b10434 and b11549): four slots that share one
    unified KV cache, a RAM prompt cache, idle slots moved to it at every launch.
    """

    n_slots: int = 4
    n_ctx: int = UNLIMITED  # context of one slot
    pool: int = UNLIMITED  # cells of the whole KV cache; unified slots share them
    unified: bool = True  # --kv-unified: idle clearing empties slots, and slots compete for cells
    idle_save: bool = True  # --cache-idle-slots: every launch saves the other idle slots to RAM
    ram: int = UNLIMITED  # --cache-ram: tokens that fit; 0: no RAM cache
    ram_entry: int = 0  # fixed cost of one RAM entry, in tokens
    sps: float = 0.1  # --slot-prompt-similarity
    window: Window | None = None  # of a sliding-window model without --swa-full; None: full attention

    @property
    def clears(self) -> bool:
        """Whether a launch empties the other idle slots (llama.cpp b11434, server-context.cpp 2641-2656)."""
        return self.unified and self.idle_save and self.ram > 0

    @property
    def risky_pins(self) -> bool:
        """Whether a pin to a busy slot damages the running answer: it does wherever a pin consults the RAM cache."""
        return self.ram > 0 and self.sps > 0


@dataclass(frozen=True, slots=True)
class Known:
    """What is said of a server's flags; None: nothing. Sizes are in tokens."""

    unified: bool | None = None
    idle_save: bool | None = None
    ram: int | None = None
    ram_entry: int = 0
    sps: float | None = None
    window: Window | None = None  # None: full attention, as far as is known
    whole: bool = False  # known to have full attention in all layers: it can go back to any token
    pool: int | None = None  # cells that unified slots share, where each may fill only a part (--kv-unified-per-slot)


def hypotheses(total_slots: int, n_ctx: int, known: Known) -> list[Rules]:
    """The Rules that a server may follow, the likeliest first: those as `known`, then all others, for what is said may
    be of another server, or of another build.

    `n_ctx` is the context of one slot. A single slot is never told apart as unified or not: it makes no difference but
    for its name. Where the RAM cache is off, nothing is saved at a launch. Beside the default `sps` two thresholds are
    tried that people set: off, and what was the default until 2025-09 (PR #15913).
    """
    windows = [replace(known.window, thins=thins) for thins in (True, False)] if known.window else [None]
    found = [
        Rules(
            n_slots=total_slots,
            n_ctx=n_ctx,
            pool=(known.pool or n_ctx) if unified else UNLIMITED,
            unified=unified,
            idle_save=save,
            ram=ram,
            ram_entry=known.ram_entry,
            sps=sps,
            window=window and replace(window, sharing=total_slots if unified else 1),
        )
        for sps in _first(known.sps, 0.1, 0.0, 0.5)
        for ram in _first(known.ram, known.ram or UNLIMITED, 0)
        for save in (_first(known.idle_save, True, False) if ram else [False])
        for unified in (_first(known.unified, True, False) if total_slots > 1 else [known.unified is not False])
        for window in windows
    ]
    return sorted(found, key=lambda rules: deviations(rules, known))


def _first(known: T | None, *usual: T) -> list[T]:
    """What is known, then what is usual."""
    return list(dict.fromkeys(usual if known is None else (known, *usual)))


def deviations(rules: Rules, known: Known) -> int:
    """How many things are other than said. Where there is no RAM cache, nothing is saved whatever was said."""
    saves = known.idle_save if rules.ram else None
    said = (known.unified, saves, known.ram, known.sps)
    found = (rules.unified, rules.idle_save, rules.ram, rules.sps)
    return sum(one is not None and one != other for one, other in zip(said, found, strict=True))
