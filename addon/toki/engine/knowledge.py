"""Knowledge: all that is known of one server and of what was asked of it. With another server it starts over.

Flags that matter can't be read over HTTP, so there are several hypotheses about it (`Belief`); the one that was wrong
least leads.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
from operator import attrgetter

import numpy as np

from toki.engine.account import Account
from toki.engine.contents import UNKNOWN
from toki.engine.contents import Contents
from toki.engine.contents import Held
from toki.engine.conversations import Conversations
from toki.engine.events import Action
from toki.engine.events import Holding
from toki.engine.events import Measured
from toki.engine.events import Restarted
from toki.engine.events import SlotView
from toki.engine.events import Span
from toki.engine.flights import Flight
from toki.engine.history import History
from toki.engine.levers import Levers
from toki.engine.policy import Prices
from toki.engine.ram import Memory
from toki.engine.rules import Known
from toki.engine.rules import hypotheses
from toki.engine.shadow import Launch
from toki.engine.shadow import Wish
from toki.engine.trust import CLOSE
from toki.engine.trust import Belief
from toki.engine.waiting import Pace
from toki.engine.waiting import Running

COLLECT = 1024  # token lists at which those that nothing refers to are forgotten, and half as many more each time after
LIKELY = 4  # hypotheses for which another order of what happened is looked for
WORTH_TIMING = 64  # evaluated tokens from which the time that they took tells the server's speed

_errors = attrgetter("errors")


class Knowledge:
    """What is known of one server."""

    def __init__(self) -> None:
        self.contents = Contents()
        self.history = History(self.contents)
        self.conversations = Conversations(self.contents)
        self.beliefs: list[Belief] = []  # none before the server is known
        self.said = Known()  # what is said of the server's flags
        self.levers = Levers()
        self.prices = Prices()
        self.pace = Pace()
        self.account = Account()
        self._needed = 0  # token lists that were left when the others were forgotten: a RAM cache may hold thousands

    def meet(self, event: Restarted, slots: Sequence[SlotView] | None) -> None:
        """The server is known now, its slots are as seen (None: not shown)."""
        self.said = event.known
        found = hypotheses(event.total_slots, event.n_ctx, event.known)
        beliefs = (Belief(rules, self.contents, slots, event.known) for rules in found)
        self.beliefs = [belief for belief in beliefs if belief.tenable]

    @property
    def belief(self) -> Belief | None:
        """The hypothesis that was wrong least; the likeliest one where several were."""
        return min(self.beliefs, key=_errors, default=None)

    @property
    def undecided(self) -> bool:
        """Whether hypotheses that did equally well think different things of the slots, so that a look tells."""
        leader = self.belief
        if leader is None:
            return False
        lengths = leader.lengths()
        return any(b.errors < leader.errors + 1 and b.lengths() != lengths for b in self.beliefs)

    @property
    def equals(self) -> list[Belief]:
        """The leading hypothesis, and those that did as well and are no more otherwise than said."""
        leader = self.belief
        return [] if leader is None else [one for one in self.beliefs if one.errors < leader.errors + CLOSE]

    # --- requests ---------------------------------------------------------------------------------

    def read(self, flight: Flight) -> None:
        """The tokens of a request are known, or known to be unknowable."""
        ask = flight.ask
        flight.read = True
        if ask.tokens is None:
            return
        place = self.contents.add(ask.tokens, ask.lora, ask.images, ask.owner)
        flight.prompt = self.contents.hold(place, len(ask.tokens), len(ask.tokens))
        if flight.key < 0:  # toki's own: it continues nothing
            return
        conversation = self.conversations.note(flight.key, flight.prompt)
        flight.thread, flight.conversation = conversation.key, conversation.name

    def unread(self, flight: Flight) -> None:
        """The tokens of a request were not what the server had, or not where they were thought to be: nothing may be
        built on them."""
        if flight.prompt is not None:
            self.conversations.forget(flight.prompt)
            flight.prompt = None

    def wish(self, flight: Flight, steered: bool = True) -> Wish:
        """A request, whose tokens are known, as the server gets it; or as it came."""
        ask = flight.ask
        assert flight.prompt is not None
        pinned = self.levers.client_slot(ask)
        if pinned is None and steered:
            pinned = flight.decision.id_slot
        cached = flight.cached if steered else ask.cache_prompt
        return Wish(flight.key, flight.prompt, pinned, ask.kind, cached, ask.children, user_starts=ask.user_starts)

    def shares(self, prompt: Held) -> dict[Held, int]:
        """How much a prompt likely starts with of all that slots are believed to hold now."""
        shadows = {shadow for belief in self.beliefs for shadow in (belief.base, belief.alone)}
        held = list({slot.held for shadow in shadows for slot in shadow.slots if slot.held is not None})
        return dict(zip(held, self.contents.likely(held, [prompt])[0].tolist(), strict=True))

    def launch(self, flight: Flight) -> Launch | None:
        """How a request was launched, as believed; None where it does not run."""
        return self.belief.base.launches.get(flight.key) if self.belief is not None else None

    def predict(self, flight: Flight, flights: Iterable[Flight]) -> tuple[Span | None, Span | None]:
        """Reuse predicted for a request that leaves as it came behind `flights`: by this server, and by one that was
        never steered. The latter only where it can't rest on contents from before toki's time: gains are reckoned from
        it."""
        belief = self.belief
        if belief is None:
            return None, None
        flight.before = belief.base.memory
        spans: list[Span | None] = []
        for shadow in (belief.base, belief.alone):
            after = shadow.copy()
            for other in flights:
                if not other.launched and other.prompt is not None:
                    after.launch(self.wish(other, steered=shadow is belief.base))
            launch = after.launch(self.wish(flight))
            known = launch is not None and (launch.sure or shadow is belief.base)
            spans.append(launch.reuse if launch is not None and known else None)
        return spans[0], spans[1]

    def slot(self, id_slot: int | None) -> int | None:
        """The slot that an `id_slot` names; those beyond the last are swaps of the same ones."""
        return None if id_slot is None or self.belief is None else id_slot % self.belief.rules.n_slots

    # --- what answers tell ------------------------------------------------------------------------

    def learn(self, flight: Flight, measured: Measured, at: float, *, crowded: bool) -> bool:
        """Compare each belief's prediction with the server's figures; whether the leading one was wrong.

        `crowded`: so much is under way that it is not looked into what else may have happened, which would take longer
        than it could help.
        """
        leader = self.belief
        if leader is None or measured.reused is None or flight.prompt is None:
            return flight.prompt is None
        if not flight.prompt.length:
            return False  # a probe proves nothing of what is reused
        if measured.evaluated is not None and measured.evaluated >= WORTH_TIMING:
            if measured.prompt_ms is not None:
                self.prices = self.prices.after(measured.prompt_ms / measured.evaluated)
            elif measured.finished and flight.ended is not None:
                self.prices = self.prices.within(1000 * (flight.ended - flight.released) / measured.evaluated)
        if not flight.cached and not measured.reused:
            return False  # nor does one that could reuse nothing
        surprised = False
        latest = (flight.ended or at) - measured.took
        likely, slot = ([], None) if crowded else (self._likely, measured.slot)
        for belief in self.beliefs:
            belief.timeline.launched_by(flight.key, latest)
            right = belief.judge(flight.key, measured.reused, flight.overlapped, slot, belief in likely)
            if belief is leader and right is not None:
                surprised = not right
                self.levers.judge(flight.decision.action, right)
        alone, unsteered = flight.decision.alone, leader.alone.launches.get(flight.key)
        if flight.key < 0:
            if flight.decision.action is not Action.PASSED:  # a check of an answer steers nothing
                self.account.spend(flight.prompt.length - measured.reused)
        elif alone is not None and not (flight.ask.owner and unsteered is not None and unsteered.foreign):
            steered = leader.alone is not leader.base  # before that nothing is won or lost, whatever was predicted
            self.account.settle(flight.prompt.length, alone.likely if steered else measured.reused, measured.reused)
        return surprised

    def compare(self, slots: Sequence[SlotView]) -> None:
        """Compare each belief with a look at the slots while nothing changes."""
        likely = self._likely
        for belief in self.beliefs:
            belief.compare(slots, belief in likely)

    @property
    def _likely(self) -> list[Belief]:
        """Those for which another order of what happened is looked for."""
        return sorted(self.equals, key=_errors)[:LIKELY]

    def learn_pace(self, flight: Flight, at: float) -> None:
        """An answer is complete: how long it took behind its prefill."""
        if self.launch(flight) is not None and flight.prompt is not None and self.prices.measured:
            running = self.running(flight, at)
            self.pace = self.pace.after(running.elapsed - running.prefill)

    def running(self, flight: Flight, at: float) -> Running:
        """A request that the server works on, as far as is known."""
        launch, prompt = self.launch(flight), flight.prompt
        evaluated = prompt.length - launch.reuse.likely if launch is not None and prompt is not None else 0
        return Running(flight.key, 1000 * (at - flight.released), evaluated * self.prices.evaluate)

    def lose_track(self) -> None:
        """A request of unknown tokens runs: any idle slot, and the RAM cache, may hold something else now."""
        for belief in self.beliefs:
            belief.timeline.lose_ram()
            for shadow in (belief.base, belief.alone):
                for number, slot in enumerate(shadow.slots):
                    if slot.idle:
                        length = slot.held.length if slot.held else 1
                        shadow.correct(number, self.contents.hold(UNKNOWN, 0, length))

    # --- contents ---------------------------------------------------------------------------------

    def describe(self, memory: Memory, prompt: Held | None, most: int | None = None) -> tuple[Holding, ...]:
        """Slots and RAM entries in numbers, with how much of each `prompt` starts with. `most`: of so many RAM entries
        alone, those that share most with it."""
        shelf = memory.ram.shelf
        of_slots, of_ram = [0] * len(memory.slots), np.zeros(len(memory.ram), np.int64)
        if prompt is not None:
            of_slots = self.contents.likely([held for _, held, _ in memory.slots], [prompt])[0].tolist()
            of_ram = self.contents.likely(shelf, [prompt])[0]
        chosen = range(len(memory.ram)) if most is None else np.argsort(-of_ram, kind="stable")[:most].tolist()
        entries = [(None, shelf.held[number], False) for number in chosen]
        shares = [*of_slots, *of_ram[list(chosen)].tolist()]
        names = {one.held.place: one.name for one in self.conversations.recent.values()}
        return tuple(
            Holding(number, one.length, shared, busy, names.get(one.place))
            for (number, one, busy), shared in zip([*memory.slots, *entries], shares, strict=True)
        )

    @property
    def cluttered(self) -> bool:
        """Whether it is time to forget token lists that nothing refers to any more, so that memory stays bounded."""
        return len(self.contents) >= max(COLLECT, self._needed + COLLECT // 2)

    def collect(self, others: Iterable[Held]) -> None:
        """Forget all token lists but its own and those of `others`."""
        live = {held.place for held in (*self._holds(), *others)}
        self.contents.keep(live | self.history.places())
        self._needed = len(self.contents)

    def _holds(self) -> Iterator[Held]:
        for belief in self.beliefs:
            yield from belief.timeline.holds()
        for conversation in self.conversations.recent.values():
            yield conversation.held
