"""Abandoned: what the server does with a request whose client left, which it notices only later (llama-server 6.2).

A stream that answers is cancelled at its next token, one in prefill within a second or when that is over; a plain one
runs to its end.
"""

from __future__ import annotations

from toki.engine.contents import UNLIMITED
from toki.engine.events import SlotView
from toki.engine.flights import Flight
from toki.engine.policy import Prices
from toki.engine.shadow import Launch

LINGER = 30.0  # seconds after which any request whose client left is taken to have ended, where no look tells
CANCELLED = 1.2  # seconds after which a prefill is cancelled, unless answers to others go out
ON_THE_WAY = 8  # tokens of a stream that may be sampled before the server sees that its client left
TOKEN = 0.02  # seconds after which a stream in decode is cancelled: at its next token


def leave(flight: Flight, at: float, shown: int, launch: Launch | None, prices: Prices) -> None:
    """The client of a request left, having got `shown` pieces of its answer: until a look shows otherwise its slot
    counts as busy, for as long as the server may go on with it."""
    flight.left = at
    flight.shown = shown
    if not flight.ask.stream:
        flight.lingers = LINGER
    elif shown:
        flight.lingers = TOKEN
    elif launch is None or flight.prompt is None:
        flight.lingers = CANCELLED
    else:
        # Its prefill ends, and with the first token the server sees that nobody listens; or it is cancelled before.
        prefill = (flight.prompt.length - launch.reuse.likely) * prices.likely / 1000
        flight.quick = prefill < CANCELLED / 2
        flight.lingers = prefill if flight.quick else min(LINGER, prefill + CANCELLED)


def goes_on(flight: Flight, view: SlotView, at: float) -> bool:
    """Whether the server still works on a request whose client left, by what a look at the time `at` shows of its slot:
    then it is noted how much of it is done."""
    if not view.busy or flight.task not in (None, view.task):
        return False
    flight.task = view.task
    flight.filled = max(flight.filled, view.n_tokens or 0)
    flight.lingers = max(flight.lingers, at - (flight.left or at) + TOKEN)
    return True


def kept(flight: Flight, launch: Launch | None) -> tuple[int, int]:
    """The least and the most tokens that stay in the slot of a request whose client left."""
    if flight.prompt is None:
        return 0, 0
    length, least = flight.prompt.length, _done(flight, launch)
    if not flight.ask.stream:
        return least, max(least, length + max((flight.ask.max_tokens or 1) - 1, 0))
    if flight.quick or least >= length:
        reply = min(flight.shown + ON_THE_WAY, max((flight.ask.max_tokens or UNLIMITED) - 1, 0))
        return max(least, length), max(least, length + reply)
    return least, length


def seen(flight: Flight, view: SlotView, launch: Launch | None, *, cleared: bool) -> int | None:
    """The tokens that stay there, by what a look shows of the slot once it has ended. None: that is not to be seen,
    since others have taken the slot by then, or may have `cleared` it."""
    tokens = view.n_tokens
    if tokens is None or flight.task not in (None, view.task) or tokens < _done(flight, launch):
        return None
    return tokens if tokens or not cleared else None


def _done(flight: Flight, launch: Launch | None) -> int:
    """Tokens that surely were in its slot: a plain request runs to its end, and with an answer begins what comes behind
    its prompt."""
    if flight.prompt is None:
        return 0
    if flight.shown or not flight.ask.stream:
        return max(flight.filled, flight.prompt.length)
    return max(flight.filled, launch.reuse.low if launch is not None else 0)
