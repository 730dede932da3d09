"""Rules: one frozen hypothesis about how a llama-server chooses slots, saves and loses.

The flags that decide cannot be read over HTTP; the engine holds a few Rules side by side and observation picks one.
Builds that behave differently are other Rules, not ifs.
"""

from __future__ import annotations

from dataclasses import dataclass
from dataclasses import replace

from toki.engine.window import Window

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
    """What is known of a server's flags; None: find out by observation. `ram` in tokens."""

    unified: bool | None = None
    idle_save: bool | None = None
    ram: int | None = None
    sps: float | None = None
    window: Window | None = None  # None: full attention, as far as is known


def hypotheses(total_slots: int, n_ctx: int, known: Known) -> list[Rules]:
    """The Rules that a server may follow, the likeliest first.

    `n_ctx` is the context of one slot. A single slot is never told apart as unified or not: it makes no difference but
    for its name. Where the RAM cache is off, nothing is saved at a launch.
    """
    unified = [known.unified] if known.unified is not None else ([True, False] if total_slots > 1 else [True])
    rams = [known.ram] if known.ram is not None else [UNLIMITED, 0]
    windows = [replace(known.window, thins=thins) for thins in (True, False)] if known.window else [None]
    found: list[Rules] = []
    for ram in rams:
        saves = [known.idle_save] if known.idle_save is not None else [True, False]
        for save in saves if ram else [False]:
            for one in unified:
                found += [
                    Rules(
                        n_slots=total_slots,
                        n_ctx=n_ctx,
                        pool=n_ctx if one else UNLIMITED,
                        unified=one,
                        idle_save=save,
                        ram=ram,
                        sps=0.1 if known.sps is None else known.sps,
                        window=window and replace(window, sharing=total_slots if one else 1),
                    )
                    for window in windows
                ]
    if known.sps is None:
        # Two other thresholds that people set: off, and what was the default until 2025-09 (PR #15913).
        found += [replace(rules, sps=sps) for sps in (0.0, 0.5) for rules in found]
    return found
