"""Timeline: a shadow with its latest steps, so that these can be put into the order in which they really happened.

What is heard first did not always happen first: the end of one answer and the launch of another request come over
different connections, a few milliseconds apart, and of a request whose client left it is seen only later when it ended.
Where the server's figures for a request contradict the order in which things were heard, a nearby order that explains
them, and all else that was measured, is taken instead; where none does, they may still tell the slot.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import replace
from math import inf
from typing import TypeAlias

from toki.engine.contents import UNKNOWN
from toki.engine.contents import Held
from toki.engine.events import Span
from toki.engine.shadow import Launch
from toki.engine.shadow import Shadow
from toki.engine.shadow import Wish

KEPT = 24  # steps that can be gone back
REACH = 6  # steps past which a step may be moved
ORDERS = 16  # orders that are tried at most
VAIN = 16  # searches for one in a row that found none, from which on it is looked for seldom:
SELDOM = 8  # for each eighth of the figures that don't fit


@dataclass(frozen=True, slots=True)
class Launched:
    """A request started; `unsteered` is what it would have been, had toki left it alone: None for toki's own.

    `landed`: the slot that it took, where this was concluded from its figures against the rules.
    """

    key: int
    wish: Wish
    unsteered: Wish | None
    landed: int | None = None

    def apply(self, shadow: Shadow, *, steered: bool) -> None:
        wish = self.wish if steered else self.unsteered
        if wish is None:
            return
        if self.landed is not None and (steered or self.wish == self.unsteered):
            wish = replace(wish, id_slot=self.landed)
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
    """A request ended after `reply` sampled tokens. `revealed`: what it left, and the place of the list that has the
    reply too, once that is known. `shifted`: on the way the context was full, and earlier tokens were dropped."""

    key: int
    reply: int
    revealed: tuple[Held, int] | None = None
    shifted: bool = False

    def apply(self, shadow: Shadow, *, steered: bool) -> None:
        number = shadow.running(self.key)
        shadow.finish(self.key, self.reply)
        if self.shifted and number is not None:
            shadow.forget(number)
        if self.revealed is not None:
            shadow.reveal(*self.revealed)


@dataclass(frozen=True, slots=True)
class Cancelled:
    """A request was cut off; its slot keeps `least` to `most` tokens."""

    key: int
    least: int
    most: int

    def apply(self, shadow: Shadow, *, steered: bool) -> None:
        shadow.cancel(self.key, self.least, self.most)


Step: TypeAlias = Launched | Refused | Finished | Cancelled


@dataclass(frozen=True, slots=True)
class Seen:
    """What was seen of a request: the tokens that it reused, and its slot; None: nothing told that (yet)."""

    reused: int | None
    slot: int | None

    def fits(self, launch: Launch) -> bool:
        return self.slot in (None, launch.slot) and self.reusing(launch.reuse)

    def reusing(self, span: Span) -> bool:
        return self.reused is None or span.low <= self.reused <= span.high


@dataclass(frozen=True, slots=True)
class Moment:
    """A step, which happened between `since` and `until`, most likely `at`, and the shadows as they were before it."""

    step: Step
    since: float
    until: float
    at: float
    base: Shadow
    alone: Shadow

    def may_precede(self, other: Moment) -> bool:
        return self.since <= other.until and self.step.key != other.step.key


class Timeline:
    """`base` is the server as it is, `alone` as it would be had it never been steered: the same object until it is."""

    def __init__(self, base: Shadow) -> None:
        self.base = base
        self.alone = base
        self._moments: deque[Moment] = deque(maxlen=KEPT)
        self._seen: dict[int, Seen] = {}  # of the requests whose launches can still be moved
        self._vain = 0  # figures that did not fit since another order explained some

    def take(self, step: Step, since: float = -inf, until: float = inf, at: float | None = None) -> None:
        """Something happened between `since` and `until`, most likely `at` (None: just now): it comes before what most
        likely happened later, unless more of what was measured contradicts that."""
        latest = self._moments[-1].at if self._moments else -inf
        if at is None or latest <= at:
            self._append(step, since, until, latest if at is None else at)
            return
        moments = list(self._moments)
        moment = Moment(step, since, until, at, self.base, self.alone)
        place = len(moments)
        while place > max(0, len(moments) - REACH):
            before = moments[place - 1]
            if before.at <= at or not moment.may_precede(before):
                break
            place -= 1
        if place < len(moments):
            order = [*moments[:place], moment, *moments[place:]]
            heard = [*moments, moment]
            measured = any(isinstance(one.step, Launched) and one.step.key in self._seen for one in moments[place:])
            if not measured or len(self._contradictions(order, place)) <= len(self._contradictions(heard, place)):
                self._replay(order, place)
                return
        self._append(step, since, until, at)

    def _append(self, step: Step, since: float, until: float, at: float) -> None:
        base, alone = self._copies(self.base, self.alone)
        self._moments.append(Moment(step, since, until, at, base, alone))
        if self.alone is self.base and isinstance(step, Launched | Refused) and step.wish != step.unsteered:
            self.alone = self.base.copy()
        step.apply(self.base, steered=True)
        if self.alone is not self.base:
            step.apply(self.alone, steered=False)

    @staticmethod
    def _copies(base: Shadow, alone: Shadow) -> tuple[Shadow, Shadow]:
        twin = base.copy()
        return twin, twin if alone is base else alone.copy()

    def launched_by(self, key: int, latest: float) -> None:
        """The request `key` was launched at the `latest` then, as its answer tells."""
        for number in range(len(self._moments) - 1, -1, -1):
            moment = self._moments[number]
            if moment.step.key == key and isinstance(moment.step, Launched):
                until = max(moment.since, min(moment.until, latest))
                self._moments[number] = Moment(moment.step, moment.since, until, moment.at, moment.base, moment.alone)
                return

    def reveal(self, key: int, old: Held, place: int) -> None:
        """The request `key` has left `old`; all of that is now said by the list at `place`."""
        shadows = [self.base, self.alone]
        for number in range(len(self._moments) - 1, -1, -1):
            moment = self._moments[number]
            if moment.step.key == key and isinstance(moment.step, Finished):
                self._moments[number] = replace(moment, step=replace(moment.step, revealed=(old, place)))
                break
            shadows += [moment.base, moment.alone]
        for shadow in set(shadows):
            shadow.reveal(old, place)

    def forget(self) -> None:
        """What was seen of the slots settles all that happened before."""
        self._moments.clear()
        self._seen.clear()

    def lose_ram(self) -> None:
        """Something happened after which the RAM cache, where there is one, may hold anything."""
        self.forget()
        for shadow in (self.base, self.alone):
            shadow.ram_known = not shadow.rules.ram

    def holds(self) -> Iterator[Held]:
        """All contents that it speaks of."""
        before = [shadow for moment in self._moments for shadow in (moment.base, moment.alone)]
        for shadow in {*before, self.base, self.alone}:
            yield from shadow.holds()
            yield from shadow.gone

    def measured(self, key: int, reused: int, slot: int | None = None, *, reorder: bool = True) -> bool:
        """The server reused `reused` tokens for the request `key`, which runs still, on `slot` (None: it did not say);
        whether the order of the latest steps explains it, or another one that was possible. The nearest such order is
        taken, unless it contradicts more of what was measured. Where there is none, or none is to be looked for
        (`reorder`), the request is at least put on the slot that alone explains its figures.

        Where many are at work such a search takes half of the time, and one of sixteen finds anything; so after several
        in vain it is made seldom, until one finds something.
        """
        keys = {moment.step.key for moment in self._moments if isinstance(moment.step, Launched)}
        located = self._seen[key].slot if slot is None and key in self._seen else slot
        seen = Seen(reused, located)
        self._seen = {one: told for one, told in self._seen.items() if one in keys} | {key: seen}
        launch = self.base.launches.get(key)
        if launch is not None and seen.fits(launch):
            return True
        moments = list(self._moments)
        place = next((n for n, moment in enumerate(moments) if moment.step.key == key), None)
        if place is None or not isinstance(moments[place].step, Launched):
            return False
        searched = reorder and (self._vain < VAIN or self._vain % SELDOM == 0)
        for old, new in _moves(moments, place) if searched else ():
            order = moments[:old] + moments[old + 1 :]
            order.insert(new, moments[old])
            if self._explains(order, min(old, new), key):
                self._replay(order, min(old, new))
                self._vain = 0
                return True
        self._vain += reorder
        self._put_down(moments, place, seen)
        return False

    def located(self, slots: Mapping[int, int]) -> None:
        """Requests run on these `slots`, by their keys. As long as one is elsewhere and a nearby order contradicts less
        of all that was seen, the one that does so least is taken; then those that are left are put on their slots, if
        all of them fit there."""
        for key, slot in slots.items():
            if any(moment.step.key == key and _starts(moment) for moment in self._moments):
                self._seen[key] = Seen(None, slot)
        most = inf
        while (moments := list(self._moments)) and (wrong := self._contradictions(moments, 0)):
            if len(wrong) >= most:
                return  # what looks have set right since can't be replayed: no order is found to be better for ever
            most = len(wrong)
            elsewhere = [n for n, one in enumerate(moments) if one.step.key in wrong & slots.keys() and _starts(one)]
            if not elsewhere:
                return
            least, best = len(wrong), None
            for order, start in _others(moments, elsewhere[-1]):
                earlier = wrong.intersection(moment.step.key for moment in moments[:start] if _starts(moment))
                left = len(earlier) + len(self._contradictions(order, start))
                if left < least:
                    least, best = left, (order, start)
                if least <= len(wrong) - len(elsewhere):
                    break  # all that are elsewhere fit there
            if best is None:
                for place in elsewhere:
                    step = moments[place].step
                    assert isinstance(step, Launched)
                    moments[place] = replace(moments[place], step=replace(step, landed=slots[step.key]))
                if not self._contradictions(moments, elsewhere[0]) & slots.keys():
                    self._replay(moments, elsewhere[0])
                return
            self._replay(*best)

    def ended_before(self, end: Cancelled, key: int, reused: int) -> bool:
        """Whether the end of a request, of which nothing was seen yet, explains what the later request `key` reused.
        Then it is put just before that one's launch."""
        moments = list(self._moments)
        place = next((n for n, moment in enumerate(moments) if moment.step.key == key), None)
        if place is None or any(moment.step.key == end.key for moment in moments[place:]):  # launched behind it
            return False
        launch = moments[place]
        self._seen[key] = Seen(reused, None)
        order = [*moments[:place], Moment(end, -inf, inf, launch.at, launch.base, launch.alone), *moments[place:]]
        if key in self._contradictions(order, place):
            return False
        self._replay(order, place)
        return True

    def _put_down(self, moments: list[Moment], place: int, seen: Seen) -> None:
        """Put a request on the slot that explains what was seen of it, if just one does; of several whose contents are
        unknown on that which holds least: what it leaves where it did not run stays unknown."""
        launch, before = moments[place].step, moments[place].base
        assert isinstance(launch, Launched)
        fitting: dict[int, Held | None] = {}
        for number in before.slots.idle():
            if seen.slot not in (None, number):
                continue
            held = before.slots[number].held
            span = None if held is None else before.reusable(held, launch.wish.prompt)
            if seen.reusing(Span(0, 0, 0) if span is None else span):
                fitting[number] = held
        unknown = {
            number: held.length for number, held in fitting.items() if held is not None and held.place == UNKNOWN
        }
        if not fitting or (len(fitting) > 1 and len(unknown) < len(fitting)):
            return
        number = min(fitting, key=lambda number: unknown.get(number, 0))
        landed = replace(moments[place], step=replace(launch, landed=number))
        order = [*moments[:place], landed, *moments[place + 1 :]]
        if self._explains(order, place, launch.key):
            self._replay(order, place)

    def _explains(self, order: Sequence[Moment], start: int, key: int) -> bool:
        """Whether an order, new from `start` on, explains the figures of `key`, and contradicts less than before."""
        if not self._fits(order, start, key):  # most don't, which a part of the steps shows
            return False
        return len(self._contradictions(order, start)) < len(self._contradictions(list(self._moments), start))

    def _fits(self, order: Sequence[Moment], start: int, key: int) -> bool:
        """Whether an order explains the figures of `key`."""
        shadow = self._moments[start].base.copy()
        for moment in order[start:]:
            moment.step.apply(shadow, steered=True)
            launch = shadow.launches.get(key)
            if launch is not None:
                return self._seen[key].fits(launch)
        return False

    def _replay(self, order: Sequence[Moment], start: int) -> None:
        """Take the steps in a new order from `start` on."""
        first = self._moments[start]
        self.base, self.alone = self._copies(first.base, first.alone)
        while len(self._moments) > start:
            self._moments.pop()
        for moment in order[start:]:
            self._append(moment.step, moment.since, moment.until, moment.at)

    def _contradictions(self, order: Sequence[Moment], start: int) -> set[int]:
        """Requests launched from `start` on whose figures do not fit if the steps happened in this order."""
        shadow = self._moments[start].base.copy()
        launches: dict[int, Launch] = {}
        wanted: set[int] = set()
        for moment in order[start:]:
            if isinstance(moment.step, Launched):
                wanted.add(moment.step.key)
            moment.step.apply(shadow, steered=True)
            launches.update(shadow.launches)
        return {
            key
            for key, seen in self._seen.items()
            if key in wanted and (key not in launches or not seen.fits(launches[key]))
        }


def _starts(moment: Moment) -> bool:
    return isinstance(moment.step, Launched)


def _others(moments: Sequence[Moment], place: int) -> Iterator[tuple[list[Moment], int]]:
    """Other orders that were possible, and where each begins to differ: two launches, one of them that at `place`, at
    each other's places, or a step at another place."""
    for other, moment in enumerate(moments):
        first, last = min(place, other), max(place, other)
        early, late = moments[first], moments[last]
        if not 0 < last - first <= REACH or not _starts(moment) or not late.may_precede(early):
            continue
        if all(late.may_precede(one) and one.may_precede(early) for one in moments[first + 1 : last]):
            order = list(moments)
            order[first], order[last] = late, early
            yield order, first
    for old, new in _moves(moments, place):
        order = [*moments[:old], *moments[old + 1 :]]
        order.insert(new, moments[old])
        yield order, min(old, new)


def _moves(moments: Sequence[Moment], place: int) -> list[tuple[int, int]]:
    """Steps that may have happened at another place, as far as the one at `place` can depend on it: (old, new), the
    nearest first."""
    found = []
    for old, moment in enumerate(moments):
        for new in range(old - 1, max(old - REACH, 0) - 1, -1):
            if not moment.may_precede(moments[new]):
                break
            if new <= place:
                found.append((old, new))
        for new in range(old + 1, min(old + REACH, len(moments) - 1) + 1):
            if not moments[new].may_precede(moment):
                break
            if old <= place:
                found.append((old, new))
    found.sort(key=lambda move: (abs(move[1] - move[0]), abs(move[0] - place)))
    return found[:ORDERS]


__all__ = ["Cancelled", "Finished", "Launched", "Refused", "Step", "Timeline"]
