"""Looks: what a look at the slots may tell, and whether others use the server beside toki.

A look says how things were when it was asked for. What was released, began or ended since then it does not show.
"""

from __future__ import annotations

from math import inf

from toki.engine.events import Arrived
from toki.engine.events import Looked
from toki.engine.flights import Flight
from toki.engine.flights import Flights
from toki.engine.trust import Belief

FOREIGN_PAUSE = 60.0  # seconds without steering after traffic of others was seen on a server with a RAM cache
UNCONFIRMED = 60.0  # seconds after which a request that is taken to have ended has, though no look has shown it


class Looks:
    """The looks at one server."""

    def __init__(self) -> None:
        self.changed_at = 0.0  # when something happened last that a look from before does not show
        self.unconfirmed_since = -inf  # when a request was taken to have ended that no look has shown to have
        self._tasks: dict[int, int] | None = None  # slot -> task id at the last quiet look
        self._launches = 0  # of ours since then
        self._foreign_until = 0.0

    def fresh(self, asked_at: float | None) -> bool:
        """Whether nothing has changed since a look was asked for (None: there was none)."""
        return asked_at is not None and asked_at > self.changed_at

    def foreign(self, at: float) -> bool:
        """Whether others were seen to use the server a short while ago."""
        return at < self._foreign_until

    def unconfirmed(self, at: float) -> bool:
        """Whether a request may still run that is taken to have ended. Where a server shows no slots no look tells."""
        return at < self.unconfirmed_since + UNCONFIRMED

    def launched(self, slots: int) -> None:
        """A request of ours took so many slots."""
        self._launches += slots

    def note(self, event: Looked, taken: int) -> bool:
        """A look that is fresh, at which requests of ours take `taken` slots: whether only these are busy."""
        busy = sum(view.busy for view in event.slots)
        tasks = {view.id: view.task for view in event.slots}
        if self._tasks is not None:
            changed = sum(task != self._tasks.get(number) for number, task in tasks.items())
            if (busy > taken and not self.unconfirmed(event.at)) or changed > self._launches:
                self._foreign_until = event.at + FOREIGN_PAUSE
        self._tasks, self._launches = tasks, 0
        if busy <= taken:
            self.unconfirmed_since = -inf
        return busy <= taken

    def idle_slots(self, belief: Belief, flights: Flights, flight: Flight, event: Arrived) -> list[int]:
        """Slots that are known to be idle and to hold what is believed.

        A pin to a busy slot damages the running answer where there is a RAM cache, so while other requests run only a
        fresh look counts; with idle clearing also because a slot may be emptied before its last byte is seen.
        """
        idle = belief.base.slots.idle()
        if flight.primed is not None:
            return [number for number in idle if number == flight.primed]
        if not flights and not self.unconfirmed(event.at):
            return idle  # a look may still show the last answer's slot as busy for a moment
        if event.slots is None or not self.fresh(event.looked_at):
            return []
        if sum(view.busy for view in event.slots) != flights.slots:
            return []
        held = {number: slot.held.length if (slot := belief.base.slots[number]).held else 0 for number in idle}
        return [view.id for view in event.slots if not view.busy and view.n_tokens == held.get(view.id)]
