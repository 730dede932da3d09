"""Waiters: the requests that toki holds for a while, since they come cheaper together with others or after them."""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Iterator
from collections.abc import Sequence
from dataclasses import dataclass

from toki.engine import fork
from toki.engine import waiting
from toki.engine.contents import Held
from toki.engine.events import Action
from toki.engine.events import Arrived
from toki.engine.events import Command
from toki.engine.events import Resume
from toki.engine.events import Wait
from toki.engine.flights import Flight
from toki.engine.flights import Flights
from toki.engine.knowledge import Knowledge
from toki.engine.shadow import Wish
from toki.engine.waiting import Running


@dataclass(slots=True)
class Waiter:
    """A request that waits inside toki, until the time `until` at most; `free`: it has waited for all that it could;
    `behind`: the running request that it waits for; `moment`: only since that is about to end."""

    flight: Flight
    until: float
    free: bool = False
    behind: int | None = None
    moment: bool = False


class Waiters:
    """Those that wait, in the order in which they came."""

    def __init__(self, flights: Flights) -> None:
        self._flights = flights
        self._by_key: dict[int, Waiter] = {}

    def __len__(self) -> int:
        return len(self._by_key)

    def __iter__(self) -> Iterator[Waiter]:
        return iter(self._by_key.values())

    def __getitem__(self, key: int) -> Waiter:
        return self._by_key[key]

    def wait(self, flight: Flight, until: float, behind: int | None = None, *, moment: bool = False) -> Wait:
        """Let a request wait."""
        self._by_key[flight.key] = Waiter(flight, until, behind=behind, moment=moment)
        return Wait(flight.key, until)

    def pop(self, key: int) -> Waiter | None:
        """A request waits no more; None: it did not."""
        return self._by_key.pop(key, None)

    def free(self, members: Collection[int] = ()) -> list[Command]:
        """Let those go on that wait neither for a running request nor, as its `members`, for a fork."""
        return [
            Resume(key) for key, one in self._by_key.items() if key not in members and one.behind not in self._flights
        ]

    def ended(self, key: int) -> list[Command]:
        """Let those go on that wait for a request which has ended."""
        return [Resume(other) for other, one in self._by_key.items() if one.behind == key]

    def gathered(self) -> dict[int, Held]:
        """The prompts of those that may still be forked."""
        return {
            key: one.flight.prompt
            for key, one in self._by_key.items()
            if one.flight.prompt is not None and not one.free and one.behind not in self._flights
        }

    def wait_behind(self, knowledge: Knowledge, flight: Flight, event: Arrived, waiter: Waiter | None) -> list[Command]:
        """Let a request wait for a running one with which it shares much, where that is predicted to pay; nothing: it
        goes on. `waiter`: how it waited before."""
        belief, prompt, levers, prices = knowledge.belief, flight.prompt, knowledge.levers, knowledge.prices
        behind = waiter.behind if waiter is not None else None
        if waiter is not None and behind is not None and event.at >= waiter.until:
            if not waiter.moment:
                levers.judge(Action.WAITED, right=False)
            return []
        if belief is None or prompt is None or not belief.trusted or not levers.usable(Action.WAITED):
            return []
        running: list[Running] = []
        for one in self._flights:
            if knowledge.launch(one) is None or one.prompt is None or one.ended is not None or one.left is not None:
                continue
            kin = knowledge.contents.alike(one.prompt, prompt)
            if kin and knowledge.contents.lcp(one.prompt.place, prompt.place) >= fork.LEAST:
                running.append(knowledge.running(one, event.at))
        wish = knowledge.wish(flight)
        found = waiting.delay(belief.base, wish, running, knowledge.pace, prices) if running else None
        if found is None:
            return self._wait_a_moment(knowledge, flight, event, wish, running, waiter)
        flight.waited = f"waited for a running request that saves it {found.tokens:,} tokens"
        until = event.at + found.ms / 1000 if behind is None or waiter is None else waiter.until
        return [self.wait(flight, until, found.key)]

    def _wait_a_moment(
        self,
        knowledge: Knowledge,
        flight: Flight,
        event: Arrived,
        wish: Wish,
        running: Sequence[Running],
        waiter: Waiter | None,
    ) -> list[Command]:
        """Let a request wait for one that is about to end and would draw it to its slot, then, within the same moment,
        for the next such one; nothing: it goes on."""
        belief = knowledge.belief
        moment = waiter is not None and waiter.moment
        if belief is None or (flight.waited and not moment):
            return []
        found = waiting.draws(belief.base, wish, running, knowledge.pace, knowledge.prices)
        if found is None:
            return []
        flight.waited = f"waited for the end of one whose slot would have drawn it, which saves {found.tokens:,} tokens"
        until = event.at + found.ms / 1000 if waiter is None or not moment else waiter.until
        return [self.wait(flight, until, found.key, moment=True)]

    def holds(self) -> Iterator[Held]:
        """All contents that are spoken of here."""
        for one in self:
            if one.flight.prompt is not None:
                yield one.flight.prompt
