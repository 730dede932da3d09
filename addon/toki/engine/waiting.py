"""Waiting: a request that shares much with one that runs may come cheaper once that one has ended.

Its slot serves nobody else while it is busy: a side call that comes meanwhile evaluates what it shares with it anew.
Waiting is worth it where that takes longer than what is left of the other's answer, and never lasts longer than the
prefill that it saves.

And one that is about to end may get in the way: a request that leaves now is launched some milliseconds later, and if
the other's slot is free by then, and shares most with it, the server takes that slot, drops what else it holds, and
does not look for the request's own entry in RAM. Behind that end something can be done about it. Pure: which of the
running requests to wait for, and for how long.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from toki.engine.policy import Prices
from toki.engine.shadow import Shadow
from toki.engine.shadow import Wish

LIKELY = 0.5  # of what is saved, that waiting may be expected to take
LEAST = 20.0  # milliseconds: less is not worth it
MOMENT = 200.0  # milliseconds: a request that likely takes longer is not about to end
NEWEST = 0.2  # weight of the latest answer in the mean


@dataclass(frozen=True, slots=True)
class Running:
    """A request that runs: how long ago it was sent, and its prefill, in milliseconds."""

    key: int
    elapsed: float
    prefill: float


@dataclass(frozen=True, slots=True)
class Pace:
    """How long answers take behind their prefill, in milliseconds; None: not known."""

    answer: float | None = None

    def after(self, answer: float) -> Pace:
        """The pace after one more answer."""
        answer = max(0.0, answer)
        return Pace(answer if self.answer is None else (1 - NEWEST) * self.answer + NEWEST * answer)


@dataclass(frozen=True, slots=True)
class Delay:
    """Wait for the request `key`: that saves so many tokens, and milliseconds, for which to wait at the most."""

    key: int
    tokens: int
    ms: float


def delay(shadow: Shadow, wish: Wish, running: Sequence[Running], pace: Pace, prices: Prices) -> Delay | None:
    """The running request that is best waited for; None where going on is as good."""
    if pace.answer is None or not prices.measured:
        return None
    now = _evaluated(shadow.copy(), wish)
    if now is None:
        return None
    best, won = None, 0.0
    for one in running:
        after = shadow.copy()
        after.finish(one.key, 1)
        then = _evaluated(after, wish)
        saved = (now - then) * prices.evaluate if then is not None else 0.0
        left = max(0.0, one.prefill - one.elapsed) + pace.answer
        if saved >= LEAST and left <= LIKELY * saved and saved - left > won:
            best, won = Delay(one.key, now - (then or 0), saved), saved - left
    return best


def draws(shadow: Shadow, wish: Wish, running: Sequence[Running], pace: Pace, prices: Prices) -> Delay | None:
    """The running request that is about to end and would draw this one to its slot to both their cost; None: none."""
    now = shadow.copy().launch(wish)
    if pace.answer is None or not prices.measured or now is None:
        return None
    best, most = None, LEAST
    for one in running:
        after = shadow.copy()
        after.finish(one.key, 1)
        then = after.launch(wish)
        if then is None or then.loaded is not None:  # what the slot held is in RAM then
            continue
        tokens = now.reuse.likely - then.reuse.likely + then.back
        lost = tokens * prices.evaluate
        left = max(0.0, one.prefill - one.elapsed) + pace.answer
        if left <= min(MOMENT, LIKELY * lost) and lost >= most:
            best, most = Delay(one.key, tokens, min(MOMENT, lost)), lost
    return best


def _evaluated(shadow: Shadow, wish: Wish) -> int | None:
    """Tokens that a request evaluates if it is sent now; None where all slots are busy. Spends `shadow`."""
    launch = shadow.launch(wish)
    return None if launch is None else wish.prompt.length - launch.reuse.likely
