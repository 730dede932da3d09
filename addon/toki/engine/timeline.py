"""Timeline: a shadow with its latest steps, so that these can be put into the order in which they really happened.

What is heard first did not always happen first: the end of one answer and the launch of another request come over
different connections, a few milliseconds apart. Where the server's figure for a request contradicts the order in
which things were heard, a nearby order that explains it, and all else that was measured, is taken instead.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from toki.engine.contents import Held
from toki.engine.events import Span
from toki.engine.shadow import Shadow
from toki.engine.shadow import Wish

KEPT = 16  # steps that can be gone back
REACH = 4  # steps past which a launch may be moved


@dataclass(frozen=True, slots=True)
class Launched:
    """A request started; `unsteered` is what it would have been, had toki left it alone: None for toki's own."""

    key: int
    wish: Wish
    unsteered: Wish | None

    def apply(self, shadow: Shadow, *, steered: bool) -> None:
        wish = self.wish if steered else self.unsteered
        if wish is not None:
            shadow.launch(wish)


@dataclass(frozen=True, slots=True)
class Refused:
    """A request was launched and refused, since it was too long."""

    key: int
    wish: Wish
    unsteered: Wish

    def apply(self, shadow: Shadow, *, steered: bool) -> None:
        shadow.refuse(self.wish if steered else self.unsteered)


@dataclass(frozen=True, slots=True)
class Finished:
    """A request ended after `reply` sampled tokens."""

    key: int
    reply: int

    def apply(self, shadow: Shadow, *, steered: bool) -> None:
        shadow.finish(self.key, self.reply)


@dataclass(frozen=True, slots=True)
class Cancelled:
    """A request was cut off; its slot keeps `least` to `most` tokens."""

    key: int
    least: int
    most: int

    def apply(self, shadow: Shadow, *, steered: bool) -> None:
        shadow.cancel(self.key, self.least, self.most)


@dataclass(frozen=True, slots=True)
class Revealed:
    """More is known of some contents."""

    key: int
    old: Held
    place: int

    def apply(self, shadow: Shadow, *, steered: bool) -> None:
        shadow.reveal(self.old, self.place)


Step: TypeAlias = Launched | Refused | Finished | Cancelled | Revealed


@dataclass(frozen=True, slots=True)
class Moment:
    """A step, and the shadows as they were before it."""

    step: Step
    base: Shadow
    alone: Shadow


class Timeline:
    """`base` is the server as it is, `alone` as it would be had it never been steered."""

    def __init__(self, base: Shadow, alone: Shadow) -> None:
        self.base = base
        self.alone = alone
        self._moments: deque[Moment] = deque(maxlen=KEPT)
        self._reused: dict[int, int] = {}  # measured, of the requests whose launches can still be moved

    def take(self, step: Step) -> None:
        """Something happened."""
        self._moments.append(Moment(step, self.base.copy(), self.alone.copy()))
        step.apply(self.base, steered=True)
        step.apply(self.alone, steered=False)

    def forget(self) -> None:
        """What was seen of the slots settles all that happened before."""
        self._moments.clear()
        self._reused.clear()

    def lose_ram(self) -> None:
        """Something happened after which the RAM cache, where there is one, may hold anything."""
        self.forget()
        for shadow in (self.base, self.alone):
            shadow.ram_known = not shadow.rules.ram

    def holds(self) -> Iterator[Held]:
        """All contents that it speaks of."""
        for moment in self._moments:
            yield from moment.base.holds()
            yield from moment.alone.holds()
        yield from self.base.holds()
        yield from self.alone.holds()

    def measured(self, key: int, reused: int) -> bool:
        """The server reused `reused` tokens for the request `key`, which runs still; whether an order of the latest
        steps explains it. The nearest such order is taken, unless it contradicts more of what was measured."""
        keys = {moment.step.key for moment in self._moments if isinstance(moment.step, Launched)}
        self._reused = {one: n for one, n in self._reused.items() if one in keys} | {key: reused}
        moments = list(self._moments)
        launch = self.base.launches.get(key)
        if launch is not None and _within(launch.reuse, reused):
            return True
        start = next((n for n, moment in enumerate(moments) if moment.step.key == key), None)
        if start is None or not isinstance(moments[start].step, Launched):
            return False
        steps = [moment.step for moment in moments]
        for distance in range(1, REACH + 1):
            for place in (start - distance, start + distance):
                if not 0 <= place < len(steps) or not self._fits(moments, start, place, reused):
                    continue
                order = steps[:start] + steps[start + 1 :]
                order.insert(place, steps[start])
                left = self._contradictions(moments[0].base.copy(), order)
                if len(left) < len(self._contradictions(moments[0].base.copy(), steps)):
                    self._replay(moments[0], order)
                    return True
        return False

    def _fits(self, moments: Sequence[Moment], start: int, place: int, reused: int) -> bool:
        """Whether the launch at `start` would have reused `reused` tokens at `place`. Few places pass, and to find
        them out takes a few steps, where to replay all of them for each place takes hundreds."""
        step = moments[start].step
        between = moments[start + 1 : place + 1]  # none where it moves to the front
        shadow = moments[min(start, place)].base.copy()
        for each in (*(moment.step for moment in between), step):
            each.apply(shadow, steered=True)
        launch = shadow.launches.get(step.key)
        return launch is not None and _within(launch.reuse, reused)

    def ended_before(self, end: Cancelled, key: int, reused: int) -> bool:
        """Whether the end of a request, of which nothing was seen yet, explains what the later request `key` reused.
        Then it is put just before that one's launch."""
        moments = list(self._moments)
        start = next((n for n, moment in enumerate(moments) if moment.step.key == key), None)
        if start is None:
            return False
        steps = [moment.step for moment in moments[start:]]
        self._reused[key] = reused
        if key in self._contradictions(moments[start].base.copy(), [end, *steps]):
            return False
        del moments[start:]
        first = self._moments[start]
        self._moments.clear()
        self._moments.extend(moments)
        self.base, self.alone = first.base.copy(), first.alone.copy()
        for step in (end, *steps):
            self.take(step)
        return True

    def _replay(self, first: Moment, order: Sequence[Step]) -> None:
        self.base, self.alone = first.base.copy(), first.alone.copy()
        self._moments.clear()
        for step in order:
            self.take(step)

    def _contradictions(self, shadow: Shadow, order: Sequence[Step]) -> set[int]:
        """Requests whose measured reuse does not fit if the steps happened in this order. Spends `shadow`."""
        spans: dict[int, Span] = {}
        for step in order:
            step.apply(shadow, steered=True)
            spans.update((key, launch.reuse) for key, launch in shadow.launches.items())
        return {key for key, reused in self._reused.items() if key not in spans or not _within(spans[key], reused)}


def _within(span: Span, reused: int) -> bool:
    return span.low <= reused <= span.high


__all__ = ["Cancelled", "Finished", "Launched", "Refused", "Revealed", "Step", "Timeline"]
