"""Forks: carries out what `fork` finds worth it.

Requests that share a long prefix and come at once wait for each other, then for the primers that evaluate what they
share, and leave together.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import replace

from toki.engine import fork
from toki.engine.contents import Held
from toki.engine.events import Action
from toki.engine.events import Arrived
from toki.engine.events import Command
from toki.engine.events import Decision
from toki.engine.events import Kind
from toki.engine.events import Mode
from toki.engine.events import Primed
from toki.engine.events import Send
from toki.engine.flights import Flight
from toki.engine.flights import Flights
from toki.engine.flights import Priming
from toki.engine.isolation import kept_apart
from toki.engine.isolation import within_reach
from toki.engine.knowledge import Knowledge
from toki.engine.looks import Looks
from toki.engine.policy import Primer
from toki.engine.primers import Primers
from toki.engine.rules import deviations
from toki.engine.trust import Belief
from toki.engine.waiters import Waiter
from toki.engine.waiters import Waiters


@dataclass(slots=True)
class Fork:
    """A fork under way, carried out by the request `carrier` on behalf of all `members`, itself included."""

    carrier: int
    members: set[int]
    head: Held  # what they share
    until: float  # when they stop waiting for it
    left: list[Held]  # primers that are still to be sent
    planned: int  # primers in all
    next_ones: set[int]  # what any member's prompt goes on with behind the head, which no primer may
    slot: int | None = None  # where the first one was evaluated
    done: int = 0  # primers that were evaluated


class Forks:
    """The forks of one server, one at a time."""

    def __init__(
        self, mode: Mode, knowledge: Knowledge, flights: Flights, looks: Looks, waiters: Waiters, primers: Primers
    ) -> None:
        self._mode = mode
        self._knowledge = knowledge
        self._flights = flights
        self._looks = looks
        self._waiters = waiters
        self._primers = primers
        self._active: Fork | None = None

    @property
    def members(self) -> set[int]:
        """The requests that wait for the fork under way."""
        return self._active.members if self._active is not None else set()

    def forkable(self, flight: Flight) -> bool:
        """Whether a request may go together with others."""
        ask = flight.ask
        return (
            self._mode is Mode.AUTO
            and flight.prompt is not None
            and not ask.fixed
            and ask.cache_prompt
            and ask.kind is Kind.COMPLETION
            and not ask.lora  # a primer knows of no adapters
            and self._knowledge.levers.usable(Action.FORKED)
        )

    def carries(self, flight: Flight) -> bool:
        """Whether a request carries out the fork under way."""
        return self._active is not None and self._active.carrier == flight.key

    def hold(self, flight: Flight, event: Arrived, waiter: Waiter | None) -> list[Command] | None:
        """Let a request wait for others that share a long prefix with it, or fork them; nothing: it goes on by itself;
        None: it does so too, but might wait for one that runs. `waiter`: how it waited before.

        While others are still being read it waits a moment for them. The last one to come carries out the fork.
        """
        active, belief, prompt = self._active, self._knowledge.belief, flight.prompt
        if active is not None and (event.at >= active.until or not self.forkable(flight)):
            active.members.discard(flight.key)
            if active.carrier == flight.key or event.at >= active.until:
                self._active = active = None  # its other members come again when their time is over
        if belief is None or prompt is None or not self.forkable(flight):
            return []
        if waiter is not None and waiter.free:
            return None if waiter.moment else []
        if active is not None:
            return self._join(active, flight, prompt, event)
        gathers = waiter is None or (waiter.behind is None and event.at < waiter.until)
        if event.company and prompt.length >= fork.LEAST and gathers:
            gathering = fork.gathering(prompt.length, self._knowledge.prices)
            return [self._waiters.wait(flight, event.at + gathering if waiter is None else waiter.until)]
        return self._start(belief, flight, prompt, event)

    def primed(self, priming: Priming, event: Primed) -> list[Command]:
        """A primer of the fork is done. The next one needs a slot that is surely idle, so the carrier comes again."""
        active, flight = self._active, priming.flight
        assert active is not None
        arrived = replace(priming.event, at=event.at)
        kept = not self._flights.followed(priming)
        if priming.probes is not None:
            return self._go_on(active, flight, arrived) if kept else [self._waiters.wait(flight, event.at)]
        if event.measured is None:
            return self._send(active, flight, event.at, Action.PASSED, "a primer failed")
        active.done += 1
        if active.slot is not None and kept:
            return self._go_on(active, flight, arrived)
        active.slot = event.measured.slot
        return [self._waiters.wait(flight, event.at)]

    def holds(self) -> Iterator[Held]:
        """All contents that are spoken of here."""
        if self._active is not None:
            yield from (self._active.head, *self._active.left)

    def _start(self, belief: Belief, flight: Flight, prompt: Held, event: Arrived) -> list[Command] | None:
        """Fork a request and those that wait, where that pays; None: nobody shares enough with it."""
        knowledge = self._knowledge
        gathered = self._waiters.gathered().items()
        others = {key: held for key, held in gathered if knowledge.contents.alike(held, prompt)}
        head, near = fork.kin(knowledge.contents, prompt, others)
        head = min(head, *knowledge.contents.images(prompt.place)[:1], prompt.length)  # a primer can't hold images
        if belief.rules.window is not None and belief.rules.window.thins:
            head -= fork.STEP_BACK
        if not near or head < fork.LEAST:
            return None
        members = [flight, *(self._waiters[key].flight for key in near)]
        alone = self._flights.priming is None and not (
            flight.ask.owner and within_reach(flight, knowledge, self._flights)
        )
        next_ones = self._next_ones(members, head)
        primers = self._worth_it(belief, members, head, next_ones) if alone else []
        if not primers:
            for key in near:
                self._waiters[key].free = True
            return []
        shared = knowledge.contents.hold(prompt.place, head, head)
        until = event.at + fork.PATIENCE
        keys = {one.key for one in members}
        self._active = Fork(flight.key, keys, shared, until, primers[1:], len(primers), next_ones)
        first = self._primers.send(flight, event, Primer(primers[0], None), 1, Action.FORKED)
        return [*self._waiters.free(self.members), first]

    def _worth_it(self, belief: Belief, members: Sequence[Flight], head: int, next_ones: set[int]) -> list[Held]:
        """The primers that make the requests cheaper (see `fork.heads`); none where they don't. A server that is not
        trusted yet must be known to hold nothing else, and no hypothesis that agrees with what is said of it may speak
        against it."""
        knowledge, prices = self._knowledge, self._knowledge.prices
        idle = len(belief.base.slots.idle())
        wishes = [knowledge.wish(one) for one in members]
        if idle < 2 or not fork.may_pay(belief.base, wishes, head, prices):
            return []
        copies = min(len(members), idle) if knowledge.levers.usable(Action.SWAPPED) else 1
        primers = self._heads(members[0], head, copies, next_ones)
        primers = primers[: fork.best(belief.base, wishes, primers, prices)]
        if primers and not belief.trusted:
            if deviations(belief.rules, knowledge.said):
                return []
            for other in [one for one in knowledge.beliefs if not deviations(one.rules, knowledge.said)]:
                plain = fork.cost(other.base, wishes, (), prices)
                if not other.base.known or fork.cost(other.base, wishes, primers, prices) > fork.NO_WORSE * plain:
                    return []
        return primers

    def _next_ones(self, members: Iterable[Flight], head: int) -> set[int]:
        """The tokens that prompts go on with behind their first `head`."""
        contents = self._knowledge.contents
        prompts = [one.prompt for one in members if one.prompt is not None]
        return {token for prompt in prompts for token in contents[prompt.place].ids[head : head + 1].tolist()}

    def _heads(self, flight: Flight, head: int, n: int, next_ones: set[int]) -> list[Held]:
        """Different primers for the first `head` tokens of a prompt; see `fork.heads`."""
        assert flight.prompt is not None
        contents = self._knowledge.contents
        lists = fork.heads(contents[flight.prompt.place], head, n, next_ones)
        return [contents.hold(contents.add_like(flight.prompt.place, one), len(one), len(one)) for one in lists]

    def _join(self, active: Fork, flight: Flight, prompt: Held, event: Arrived) -> list[Command]:
        """A request comes, or comes again, while a fork is under way."""
        if active.carrier == flight.key:
            if not self._may_copy(active, flight, event):
                active.left.clear()
            return self._go_on(active, flight, event)
        if flight.key not in active.members:
            contents = self._knowledge.contents
            kin = contents.alike(prompt, active.head)
            if not kin or contents.lcp(prompt.place, active.head.place) < active.head.length:
                return []
            active.members.add(flight.key)
            belief = self._knowledge.belief
            if active.left and belief is not None and active.planned < belief.rules.n_slots:
                active.next_ones |= self._next_ones([flight], active.head.length)
                heads = self._heads(flight, active.head.length, active.planned + 1, active.next_ones)
                active.left += heads[active.planned :]
                active.planned += 1
        return [self._waiters.wait(flight, active.until)]

    def _may_copy(self, active: Fork, flight: Flight, event: Arrived) -> bool:
        """Whether the slot with the shared head is surely idle and holds it still, and the server saves it to RAM."""
        belief, number = self._knowledge.belief, active.slot
        if belief is None or self._flights.unplaced or number is None or number >= belief.rules.n_slots:
            return False
        held = belief.base.slots[number].held
        still = held is not None and self._knowledge.contents.span(held, active.head).low == active.head.length
        idle = self._looks.idle_slots(belief, self._flights, flight, event)
        return still and bool(belief.rules.ram) and number in idle

    def _go_on(self, active: Fork, flight: Flight, event: Arrived) -> list[Command]:
        """Send the next primer, or, behind the last one, the requests."""
        belief, levers = self._knowledge.belief, self._knowledge.levers
        if not levers.usable(Action.SWAPPED):
            active.left.clear()
        if active.left and active.slot is not None and belief is not None:
            id_slot = active.slot + belief.rules.n_slots
            if fork.strays(belief.base, active.left[0], id_slot):
                active.left.clear()
        if active.left and active.slot is not None and belief is not None:
            lever = levers.untried(id_slot, belief.rules.n_slots)
            if lever is not None:
                return [self._primers.probe(flight, event, id_slot, lever, 1, Action.FORKED)]
            return [self._primers.send(flight, event, Primer(active.left.pop(0), id_slot), 1, Action.FORKED)]
        others = len(active.members) - 1
        kin = "another one that came" if others == 1 else f"{others} others that came"
        reason = f"shares {active.head.length:,} tokens with {kin} at once: evaluated once, {active.done} in cache"
        return self._send(active, flight, event.at, Action.FORKED, reason)

    def _send(self, active: Fork, carrier: Flight, at: float, action: Action, reason: str) -> list[Command]:
        """All members leave together, as they came."""
        self._active = None
        waiters = [self._waiters.pop(key) for key in sorted(active.members)]
        commands: list[Command] = []
        for flight in [carrier, *(waiter.flight for waiter in waiters if waiter is not None)]:
            predicted, alone = self._knowledge.predict(flight, self._flights)
            similarity = self._knowledge.history.best_similarity(flight.ask.vector, flight.ask.semantic)
            decision = Decision(action, None, None, predicted, alone, similarity, reason)
            flight.decision = kept_apart(flight, decision, self._knowledge, self._flights)
            self._flights.release(flight, at)
            self._looks.changed_at = at
            commands.append(Send(flight.key, flight.decision))
        return commands
