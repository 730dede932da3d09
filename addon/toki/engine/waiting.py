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
LAUNCH = 30.0  # milliseconds that a launch takes on a busy server (20 to 50): who ends sooner has ended by then
HELD = 150.0  # milliseconds that a decision takes on a busy machine, look-ups and its turn included (40 to 150)
LOST = 64  # tokens that are surely lost then: fewer are not worth a wait
MOMENT = 200.0  # milliseconds: a request that likely takes longer is not about to end
KNOWN = 32  # answers that are remembered


@dataclass(frozen=True, slots=True)
class Running:
    """A request that runs: how long ago it was sent, and its prefill, in milliseconds."""

    key: int
    elapsed: float
    prefill: float


@dataclass(frozen=True, slots=True)
class Pace:
    """How long the latest answers took behind their prefill, in milliseconds."""

    answers: tuple[float, ...] = ()

    def after(self, answer: float) -> Pace:
        """The pace after one more answer."""
        return Pace((*self.answers, max(0.0, answer))[-KNOWN:])

    def left(self, age: float) -> float:
        """What an answer of such an age likely takes yet: what those took yet that came to be older. One that is older
        than all of them goes on for as long again as it has outlasted them."""
        older = [answer - age for answer in self.answers if answer > age]
        return sum(older) / len(older) if older else age - max(self.answers)


@dataclass(frozen=True, slots=True)
class Delay:
    """Wait for the request `key`: that saves so many tokens, and milliseconds, for which to wait at the most."""

    key: int
    tokens: int
    ms: float


def delay(shadow: Shadow, wish: Wish, running: Sequence[Running], pace: Pace, prices: Prices) -> Delay | None:
    """The running request that is best waited for; None where going on is as good."""
    if not pace.answers or not prices.measured:
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
        rest = left(one, pace)
        if saved >= LEAST and rest <= LIKELY * saved and saved - rest > won:
            best, won = Delay(one.key, now - (then or 0), saved), saved - rest
    return best


def draws(shadow: Shadow, wish: Wish, running: Sequence[Running], pace: Pace, prices: Prices) -> Delay | None:
    """The running request that is about to end and would draw this one to its slot to both their cost; None: none."""
    now = shadow.copy().launch(wish)
    if not pace.answers or not prices.measured or now is None:
        return None
    best, most = None, 0.0
    for one in running:
        after = shadow.copy()
        after.finish(one.key, 1)
        then = after.launch(wish)
        if then is None or then.loaded is not None:  # what the slot held is in RAM then
            continue
        tokens = now.reuse.likely - then.reuse.likely + then.back
        lost = tokens * prices.evaluate
        rest = left(one, pace)
        gone = rest <= LAUNCH and tokens >= LOST
        if (gone or (rest <= min(MOMENT, LIKELY * lost) and lost >= LEAST)) and lost > most:
            best, most = Delay(one.key, tokens, min(MOMENT, max(lost, 4 * LAUNCH))), lost
    return best


def left(one: Running, pace: Pace) -> float:
    """Milliseconds until a running request likely ends; there must have been answers."""
    return max(0.0, one.prefill - one.elapsed) + pace.left(max(0.0, one.elapsed - one.prefill))


def _evaluated(shadow: Shadow, wish: Wish) -> int | None:
    """Tokens that a request evaluates if it is sent now; None where all slots are busy. Spends `shadow`."""
    launch = shadow.launch(wish)
    return None if launch is None else wish.prompt.length - launch.reuse.likely
