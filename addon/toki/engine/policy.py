"""Policy: the possible actions for one request, each priced in milliseconds; the choice and its reason.

The price of an action is what the server must do now and what it takes from the conversations that will come back:
a look ahead by one step on a copy of the shadow. Pure: the same state gives the same choice.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from toki.engine.contents import UNKNOWN
from toki.engine.contents import Contents
from toki.engine.contents import Held
from toki.engine.events import Action
from toki.engine.events import Option
from toki.engine.shadow import Launch
from toki.engine.shadow import Shadow
from toki.engine.shadow import Wish

MARGIN = 0.01  # of the prompt's full price: a smaller win is not worth a deviation from the server's own choice


@dataclass(frozen=True, slots=True)
class Prices:
    """What a server's work costs, in milliseconds."""

    evaluate: float = 1.0  # one prompt token
    move: float = 0.01  # one token saved to or loaded from RAM


class Returns:
    """What the conversations that may return would cost then, for any set of contents that is left to them."""

    def __init__(self, contents: Contents, wanted: Sequence[tuple[Held, float]]) -> None:
        """`wanted`: what each conversation will start with, and how likely it comes."""
        kept = [(held, weight) for held, weight in wanted if held.place != UNKNOWN and weight > 0]
        self._contents = contents
        self._places = np.array([held.place for held, _ in kept], np.intp)
        self._lengths = np.array([held.length for held, _ in kept], np.int64)
        self._weights = np.array([weight for _, weight in kept])
        self._columns: dict[tuple[Held, bool], npt.NDArray[np.int64]] = {}

    def evaluated(self, shadow: Shadow) -> float:
        """Expected prompt tokens to evaluate when the conversations return to what `shadow` holds."""
        if not len(self._places):
            return 0.0
        best = np.zeros(len(self._places), np.int64)
        for slot in shadow.slots:
            if slot.held is not None:
                np.maximum(best, self._column(slot.held, stored=False), out=best)
        for entry in shadow.ram:
            np.maximum(best, self._column(entry, stored=True), out=best)
        return float(self._weights @ (self._lengths - best))

    def _column(self, held: Held, stored: bool) -> npt.NDArray[np.int64]:
        """Reuse that each conversation would find in some contents: int64, shape (conversations,)."""
        column = self._columns.get((held, stored))
        if column is None:
            if held.place == UNKNOWN:
                column = np.zeros(len(self._places), np.int64)
            else:
                shared = self._contents.row(held.place)[self._places].astype(np.int64)
                whole = shared >= len(self._contents[held.place])
                column = np.minimum(np.where(whole, held.length, np.minimum(shared, held.length)), self._lengths)
                if stored:  # the server does not load an entry of which less than a quarter would stay
                    column[column < 0.25 * held.length] = 0
            self._columns[held, stored] = column
        return column


def options(
    shadow: Shadow,
    wish: Wish,
    returns: Returns,
    prices: Prices,
    *,
    pins: Iterable[int],
    swaps: Iterable[int],
) -> list[tuple[Option, Launch | None]]:
    """Price passing the request on, and steering it to each of the slots given; passing comes first."""
    tries: list[tuple[Action, int | None]] = [(Action.PASSED, None)]
    tries += [(Action.PINNED, slot) for slot in pins]
    tries += [(Action.SWAPPED, slot) for slot in swaps]
    priced: list[tuple[Option, Launch | None]] = []
    for action, slot in tries:
        after = shadow.copy()
        launch = after.launch(Wish(wish.key, wish.prompt, id_slot(action, slot, shadow), wish.kind, wish.cache_prompt))
        if launch is None:
            continue
        now = (wish.prompt.length - launch.reuse.likely) * prices.evaluate + launch.moved * prices.move
        later = returns.evaluated(after) * prices.evaluate
        priced.append((Option(action, launch.slot, launch.reuse, now, later, ""), launch))
    return priced


def id_slot(action: Action, slot: int | None, shadow: Shadow) -> int | None:
    """The `id_slot` that makes the server do it: k + n_slots makes it fetch from RAM into k (a swap)."""
    if slot is None or action is Action.PASSED:
        return None
    return slot + shadow.rules.n_slots if action is Action.SWAPPED else slot


def cheapest(priced: Sequence[tuple[Option, Launch | None]], margin: float) -> int:
    """The place of the cheapest option; the first (pass) unless another saves more than `margin` milliseconds."""
    if not priced:
        return 0
    best = min(range(len(priced)), key=lambda n: priced[n][0].now + priced[n][0].later)
    saved = priced[0][0].now + priced[0][0].later - priced[best][0].now - priced[best][0].later
    return best if saved > margin else 0
