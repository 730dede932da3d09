"""Policy: the possible actions for one request, each priced in milliseconds; the choice and its reason.

The price of an action is what the server must do now and what it takes from the conversations that will come back:
a look ahead by one step on a copy of the shadow. Pure: the same state gives the same choice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from toki.engine.contents import UNKNOWN
from toki.engine.contents import Held
from toki.engine.events import Action
from toki.engine.events import Option
from toki.engine.shadow import Launch
from toki.engine.shadow import Shadow
from toki.engine.shadow import Wish

MARGIN = 0.01  # of the prompt's full price: a smaller win is not worth a deviation from the server's own choice
TRIED = 2  # slots of each kind for which a pin and a swap are priced
MOVE = 0.01  # what moving a token to or from RAM costs, as a share of evaluating it (measured: 0.002 to 0.03)
LOADABLE = 0.25  # the server loads no RAM entry of which less would stay (llama.cpp b11434, server-task.cpp 1804)


@dataclass(frozen=True, slots=True)
class Prices:
    """What a server's work costs, in milliseconds."""

    evaluate: float = 1.0  # one prompt token
    move: float = MOVE  # one token saved to or loaded from RAM

    def after(self, evaluate: float) -> Prices:
        """The prices after one more measurement of what a token costs."""
        mean = 0.8 * self.evaluate + 0.2 * evaluate if self.evaluate != 1.0 else evaluate
        return Prices(mean, MOVE * mean)


@dataclass(frozen=True, slots=True)
class Want:
    """What a conversation's next prompt will start with, and how likely it comes."""

    held: Held
    chance: float


class Returns:
    """What the conversations that may return would cost then, given what `shadow` or a copy of it holds."""

    def __init__(self, shadow: Shadow, wants: Sequence[Want]) -> None:
        kept = [want for want in wants if want.held.place != UNKNOWN and want.chance > 0]
        self._shadow = shadow
        self._prompts = [want.held for want in kept]
        self._lengths = np.array([want.held.length for want in kept], np.int64)
        self._chances = np.array([want.chance for want in kept])
        slots = [slot.held for slot in shadow.slots]
        held = [one for one in slots if one is not None]
        self._slot_columns: dict[int, int] = {}
        for number, one in enumerate(slots):
            if one is not None:
                self._slot_columns[number] = len(self._slot_columns)
        self._ram_columns = {entry: len(held) + n for n, entry in enumerate(shadow.ram)}
        self._reuse = self._reusable(held + list(shadow.ram), len(held))
        self._new: dict[tuple[Held, bool], npt.NDArray[np.int64]] = {}

    def evaluated(self, after: Shadow) -> float:
        """Expected prompt tokens to evaluate when the conversations return to what `after`, a copy gone on, holds."""
        if not self._prompts:
            return 0.0
        mask = np.ones(self._reuse.shape[1], np.bool_)
        extra: list[tuple[Held, bool]] = []
        for number, (old, new) in enumerate(zip(self._shadow.slots, after.slots, strict=True)):
            if old.held is not new.held:
                if old.held is not None:
                    mask[self._slot_columns[number]] = False
                if new.held is not None:
                    extra.append((new.held, False))
        for entry in self._shadow.ram.keys() - after.ram.keys():
            mask[self._ram_columns[entry]] = False
        extra += [(entry, True) for entry in after.ram.keys() - self._shadow.ram.keys()]
        best = self._reuse.max(axis=1, where=mask, initial=0)
        for held, stored in extra:
            column = self._new.get((held, stored))
            if column is None:
                column = self._new[held, stored] = self._reusable([held], 0 if stored else 1)[:, 0]
            np.maximum(best, column, out=best)
        return float(self._chances @ (self._lengths - best))

    def losses(self) -> dict[int, float]:
        """For each slot, the tokens that the conversations would miss if just its contents were gone."""
        if not self._prompts or not self._slot_columns:
            return dict.fromkeys(self._slot_columns, 0.0)
        rows = np.arange(len(self._prompts))
        first = self._reuse.argmax(axis=1)
        best = self._reuse[rows, first]
        others = self._reuse.copy()
        others[rows, first] = 0
        missed = self._chances * (best - others.max(axis=1))
        by_column = np.bincount(first, missed, self._reuse.shape[1])
        return {number: float(by_column[column]) for number, column in self._slot_columns.items()}

    def _reusable(self, held: Sequence[Held], in_slots: int) -> npt.NDArray[np.int64]:
        """Tokens that each conversation would find in each of `held`, the first `in_slots` of which are in slots and
        the others in RAM: int64, shape (conversations, held)."""
        if not held or not self._prompts:
            return np.zeros((len(self._prompts), len(held)), np.int64)
        reuse = self._shadow.contents.likely(held, self._prompts)
        stored = reuse[:, in_slots:]
        stored[stored < LOADABLE * np.array([one.length for one in held[in_slots:]])] = 0
        return reuse


def options(
    shadow: Shadow, wish: Wish, returns: Returns, prices: Prices, *, pins: Sequence[int], swaps: Sequence[int]
) -> list[tuple[Option, Launch]]:
    """Price passing the request on, and steering it to the slots that are worth a try; passing comes first.

    Empty where every slot is busy. `pins` and `swaps`: slots that may be steered to.
    """
    tries: list[tuple[Action, int | None]] = [(Action.PASSED, None)]
    held = shadow.holds()
    wish = replace(wish, shares=dict(zip(held, shadow.contents.likely(held, [wish.prompt])[0].tolist(), strict=True)))
    if pins or swaps:
        worth = _worth_trying(shadow, wish, returns)
        tries += [(Action.PINNED, slot) for slot in worth if slot in pins]
        tries += [(Action.SWAPPED, slot) for slot in worth if slot in swaps]
    priced: list[tuple[Option, Launch]] = []
    for action, slot in tries:
        after = shadow.copy()
        launch = after.launch(replace(wish, id_slot=id_slot(action, slot, shadow)))
        if launch is None:
            continue
        now = (wish.prompt.length - launch.reuse.likely) * prices.evaluate + launch.moved * prices.move
        later = returns.evaluated(after) * prices.evaluate
        priced.append((Option(action, launch.slot, launch.reuse, now, later, ""), launch))
    return priced


def _worth_trying(shadow: Shadow, wish: Wish, returns: Returns) -> list[int]:
    """Idle slots of which one is surely as good as any other: those that share most with the prompt, those whose
    contents would be missed least, the least recently used, and one that is empty."""
    idle = [number for number, slot in enumerate(shadow.slots) if slot.idle]
    if len(idle) <= 4:
        return idle
    shared = {number: wish.shares[held] for number in idle if (held := shadow.slots[number].held) is not None}
    losses = returns.losses()
    chosen = [number for number in idle if number not in shared][:1]
    chosen += sorted(shared, key=lambda number: -shared[number])[:TRIED]
    chosen += sorted(shared, key=lambda number: (losses[number], shadow.slots[number].used))[:TRIED]
    return list(dict.fromkeys(chosen))


def id_slot(action: Action, slot: int | None, shadow: Shadow) -> int | None:
    """The `id_slot` that makes the server do it: k + n_slots makes it fetch from RAM into k (a swap)."""
    if slot is None or action is Action.PASSED:
        return None
    return slot + shadow.rules.n_slots if action is Action.SWAPPED else slot


def cheapest(priced: Sequence[tuple[Option, Launch]], margin: float) -> int:
    """The place of the cheapest option; the first (pass) unless another saves more than `margin` milliseconds."""
    best = min(range(len(priced)), key=lambda n: priced[n][0].now + priced[n][0].later)
    saved = priced[0][0].now + priced[0][0].later - priced[best][0].now - priced[best][0].later
    return best if saved > margin else 0
