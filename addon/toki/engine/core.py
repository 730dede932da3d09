"""Engine: events in, commands out. Deciding and reserving are one call, so they are atomic.

What is certain and what is under way are kept apart. A request that was released but whose launch was not seen is
*unplaced*: the order on the wire is not the order in which the server takes requests up, so while one is unplaced
nothing is decided that its landing could change. Launches are applied to the beliefs in the order in which they were
seen: a stream's headers come at its launch (b10434 and b11549: 5 to 7 ms, where the first chunk takes seconds).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from dataclasses import field
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from toki.engine.contents import UNKNOWN
from toki.engine.contents import Contents
from toki.engine.contents import Held
from toki.engine.conversations import Conversation
from toki.engine.conversations import Conversations
from toki.engine.embedding import DIMENSIONS
from toki.engine.events import Action
from toki.engine.events import Answered
from toki.engine.events import Arrived
from toki.engine.events import Ask
from toki.engine.events import Began
from toki.engine.events import Command
from toki.engine.events import Decision
from toki.engine.events import Event
from toki.engine.events import Gone
from toki.engine.events import Look
from toki.engine.events import Looked
from toki.engine.events import Measured
from toki.engine.events import Mode
from toki.engine.events import Outcome
from toki.engine.events import Read
from toki.engine.events import Record
from toki.engine.events import Replied
from toki.engine.events import Restarted
from toki.engine.events import Send
from toki.engine.events import SlotView
from toki.engine.events import Span
from toki.engine.index import BruteForceIndex
from toki.engine.policy import MARGIN
from toki.engine.policy import Prices
from toki.engine.policy import Returns
from toki.engine.policy import Want
from toki.engine.policy import cheapest
from toki.engine.policy import id_slot
from toki.engine.policy import options
from toki.engine.rules import hypotheses
from toki.engine.shadow import Launch
from toki.engine.shadow import Wish
from toki.engine.trust import Actions
from toki.engine.trust import Belief

MEMORY = 512  # token lists kept beyond those that slots, RAM entries and conversations hold
FOREIGN_PAUSE = 60.0  # seconds without steering after traffic of others was seen on a server with a RAM cache


@dataclass(slots=True)
class Flight:
    """One request from its arrival to its end."""

    key: int
    ask: Ask
    decision: Decision
    prompt: Held | None = None  # None: its tokens are not known (yet)
    read: bool = False  # whether its tokens are as known as they will be
    placed: bool = False  # its launch was seen or concluded
    overlapped: bool = False  # others were under way between its release and its end
    launch: Launch | None = None  # as the leading belief had it
    conversation: int = 0
    steps: list[Answered | Gone] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Step:
    """Something to apply to the beliefs, in order: a launch (`end` None) or an end."""

    flight: Flight
    end: Answered | Gone | None = None


class Engine:
    """All of toki's judgement about one server (and one of its models)."""

    def __init__(self, mode: Mode, min_reuse: int) -> None:
        self._mode = mode
        self._min_reuse = min_reuse
        self._prices = Prices()
        self._reset()

    def _reset(self) -> None:
        self._contents = Contents()
        self._index = BruteForceIndex(DIMENSIONS)
        self._vectors: dict[int, npt.NDArray[np.float32]] = {}
        self._recorded: dict[int, int] = {}  # place -> key of the latest recorded request with these contents
        self._conversations = Conversations(self._contents)
        self._beliefs: list[Belief] = []
        self._actions = Actions()
        self._flights: dict[int, Flight] = {}
        self._steps: deque[Step] = deque()
        self._replies: dict[int, tuple[Held, Held]] = {}  # ended request -> its prompt and what its slot held
        self._tasks: dict[int, int] = {}  # slot -> task id at the last quiet look
        self._launched = 0  # requests since then
        self._changed_at = 0.0
        self._foreign_until = 0.0

    @property
    def wants_tokens(self) -> bool:
        """Whether a decision can depend on tokens: then requests are held until these are known."""
        return self._mode in (Mode.AUTO, Mode.PIN) and bool(self._beliefs)

    @property
    def belief(self) -> Belief | None:
        """The hypothesis that was wrong least; the likeliest one where several were."""
        return min(self._beliefs, key=lambda belief: belief.errors) if self._beliefs else None

    def handle(self, event: Event) -> list[Command]:
        """Take in what happened; return what to do, in order."""
        match event:
            case Arrived():
                return self._arrived(event)
            case Read():
                return self._read(event)
            case Began():
                return self._began(event)
            case Answered() | Gone():
                return self._ended(event)
            case Replied():
                return self._replied(event)
            case Looked():
                return self._looked(event)
            case Restarted():
                return self._restarted(event)

    # --- events -----------------------------------------------------------------------------------

    def _restarted(self, event: Restarted) -> list[Command]:
        flights = self._flights
        self._reset()
        self._beliefs = [
            Belief.start(rules, self._contents, event.slots)
            for rules in hypotheses(event.total_slots, event.n_ctx, event.known)
        ]
        self._flights = flights
        for flight in flights.values():  # what was sent to the old server says nothing of the new one
            flight.prompt = flight.launch = None
            flight.read = flight.placed = True
        return []

    def _arrived(self, event: Arrived) -> list[Command]:
        ask = event.ask
        if event.slots is not None and event.looked_at is not None:
            self._looked(Looked(event.at, event.looked_at, event.slots))
        nothing = Decision(Action.PASSED, None, None, None, None, None, "")
        flight = Flight(event.key, ask, nothing)
        if ask.tokens is not None:
            self._know(flight)
        flight.decision = self._decide(flight, event)
        flight.overlapped = bool(self._flights)
        for other in self._flights.values():
            other.overlapped = True
        self._flights[event.key] = flight
        self._changed_at = event.at
        self._launched += max(1, ask.prompts) + ask.children
        return [Send(event.key, flight.decision)]

    def _read(self, event: Read) -> list[Command]:
        flight = self._flights.get(event.key)
        if flight is None or flight.read:
            return []
        flight.ask = event.ask
        self._know(flight)
        if flight.prompt is not None:
            flight.decision = replace(flight.decision, **self._predictions(flight.prompt, flight.ask, flight.key, None))
        return self._apply()

    def _began(self, event: Began) -> list[Command]:
        flight = self._flights.get(event.key)
        if flight is None or not flight.ask.stream or event.status != 200:
            return []
        self._changed_at = event.at
        self._place(flight)
        return self._apply()

    def _ended(self, event: Answered | Gone) -> list[Command]:
        flight = self._flights.get(event.key)
        if flight is None:
            return []
        self._changed_at = event.at
        if isinstance(event, Gone) and not event.sent:
            flight.placed = True
            flight.prompt = None
        self._place(flight)
        if not flight.read and flight.ask.tokens is None and flight.ask.unknown:
            flight.read = True
        self._steps.append(Step(flight, event))
        return self._apply()

    def _replied(self, event: Replied) -> list[Command]:
        known = self._replies.pop(event.key, None)
        if known is None:
            return []
        prompt, old = known
        reply = event.ids[: old.length - prompt.length]
        place = self._contents.add(self._contents[prompt.place].extended(reply), self._contents.lora(prompt.place))
        for belief in self._beliefs:
            belief.reveal(old, place)
        self._conversations.replace_held(old, self._contents.hold(place, old.certain, old.length))
        return []

    def _looked(self, event: Looked) -> list[Command]:
        """Compare a look with the beliefs, where nothing changed since it was asked for."""
        if event.asked_at <= self._changed_at or self._steps:
            return []
        running = [flight for flight in self._flights.values() if not isinstance(flight.prompt, type(None))]
        busy = sum(view.busy for view in event.slots)
        unplaced = [flight for flight in self._flights.values() if not flight.placed]
        if unplaced and busy == sum(1 + flight.ask.children for flight in self._flights.values()):
            for flight in unplaced:
                self._place(flight)
            self._apply()
        elif unplaced:
            return []
        changed = [view.id for view in event.slots if view.task >= 0 and view.task != self._tasks.get(view.id, -1)]
        if self._tasks or not self._launched:
            if len(changed) > self._launched or busy > sum(1 + f.ask.children for f in self._flights.values()):
                self._foreign_until = event.at + FOREIGN_PAUSE
        self._tasks = {view.id: view.task for view in event.slots}
        self._launched = 0
        keys = frozenset(flight.key for flight in running)
        for belief in self._beliefs:
            belief.compare(event.slots, keys)
        return []

    # --- deciding ---------------------------------------------------------------------------------

    def _decide(self, flight: Flight, event: Arrived) -> Decision:
        """What to do with a request; its predictions are made for just that."""
        passed = Decision(Action.PASSED, None, None, None, None, None, "")
        ask, prompt = flight.ask, flight.prompt
        why = self._why_not(flight, event)
        if prompt is None:
            return replace(passed, reason=why)
        similarity = self._similarity(ask)
        belief = self.belief
        if belief is None or why:
            facts = self._predictions(prompt, ask, flight.key, None)
            return replace(passed, similarity=similarity, reason=why, **facts)
        wish = self._wish(flight, None)
        slots = self._steerable_slots(belief, event)
        swappable = slots if self._actions.usable(Action.SWAPPED) and belief.rules.ram else []
        pinnable = [k for k in slots if belief.base.slots[k].held is not None or not belief.rules.ram]
        if not self._actions.usable(Action.PINNED):
            pinnable = []
        if self._mode is Mode.PIN:
            swappable = []
            pinnable = self._longest_prefix(belief, prompt, pinnable)
        wants = [
            Want(conversation.held, self._conversations.chance(conversation))
            for conversation in self._conversations.recent.values()
            if conversation.key != flight.conversation
        ]
        returns = Returns(belief.base, wants)
        priced = options(
            belief.base,
            wish,
            returns,
            self._prices,
            pins=pinnable,
            swaps=[k for k in swappable if belief.base.slots[k].held is not None],
        )
        if not priced:
            return replace(passed, similarity=similarity, reason="all slots are busy")
        if self._mode is Mode.PIN and len(priced) > 1:
            best = 1
        else:
            best = cheapest(priced, MARGIN * prompt.length * self._prices.evaluate)
        option, launch = priced[best]
        reason = self._reason(priced[0][0], option)
        steer = id_slot(option.action, option.slot, belief.base)
        facts = self._predictions(prompt, ask, flight.key, launch)
        return Decision(
            option.action,
            option.slot,
            steer,
            facts["predicted"],
            facts["alone"],
            similarity,
            reason,
            tuple(option for option, _ in priced),
        )

    def _why_not(self, flight: Flight, event: Arrived) -> str:
        """Why a request must leave as it came, in plain words; "" where it may be steered."""
        ask, belief = flight.ask, self.belief
        if self._mode is Mode.OFF:
            return "toki_mode is off"
        if self._mode is Mode.OBSERVE:
            return "toki_mode is observe"
        if ask.fixed:
            return ask.fixed
        if flight.prompt is None:
            return ask.unknown or "its tokens are not known"
        if not ask.honours_slot:
            return f"{ask.endpoint} ignores id_slot"
        if belief is None:
            return "the server is not known yet"
        if not belief.trusted:
            return "still learning how this server chooses"
        if belief.rules.n_slots == 1 and self._mode is Mode.PIN:
            return "the server has one slot"
        if event.at < self._foreign_until and belief.rules.ram:
            return "others use this server too"
        if any(not other.placed for other in self._flights.values()) or self._steps:
            return "another request is on its way to the server"
        return ""

    def _steerable_slots(self, belief: Belief, event: Arrived) -> list[int]:
        """Slots that are known to be idle and to hold what is believed.

        A pin to a busy slot damages the running answer where there is a RAM cache, so while other requests run only a
        fresh look counts; with idle clearing also because a slot may be emptied before its last byte is seen.
        """
        idle = [number for number, slot in enumerate(belief.base.slots) if slot.idle]
        if not self._flights:
            return idle
        if event.slots is None or event.looked_at is None or event.looked_at <= self._changed_at:
            return []
        seen = {view.id: view for view in event.slots}
        busy = sum(view.busy for view in event.slots)
        if busy != sum(1 + flight.ask.children for flight in self._flights.values()):
            return []
        agreed = []
        for number in idle:
            view, held = seen.get(number), belief.base.slots[number].held
            if view is not None and not view.busy and view.n_tokens == (held.length if held else 0):
                agreed.append(number)
        return agreed

    def _longest_prefix(self, belief: Belief, prompt: Held, slots: list[int]) -> list[int]:
        """The slot whose contents share the longest verified prefix with the prompt, at least `min_reuse` tokens."""
        reuse = {k: self._contents.span(held, prompt).low for k in slots if (held := belief.base.slots[k].held)}
        best = max(reuse, key=lambda k: reuse[k], default=None)
        return [best] if best is not None and reuse[best] >= self._min_reuse else []

    def _similarity(self, ask: Ask) -> float | None:
        """Cosine of the best earlier prompt that the index proposes."""
        if ask.vector is None or not len(self._index):
            return None
        candidates = self._index.search(ask.vector)
        return max((candidate.similarity for candidate in candidates), default=None)

    def _predictions(self, prompt: Held, ask: Ask, key: int, launch: Launch | None) -> dict[str, Span | None]:
        """Reuse predicted for the action taken (`launch`; None: passed), and for a server that was never steered."""
        belief = self.belief
        if belief is None:
            return {"predicted": None, "alone": None}
        wish = Wish(key, prompt, ask.client_slot, ask.kind, ask.cache_prompt, ask.children)
        pending = [
            self._wish(flight, flight.decision.id_slot)
            for flight in self._flights.values()
            if not flight.placed and flight.prompt is not None
        ]
        spans: list[Span | None] = []
        for shadow in (belief.base, belief.alone):
            if shadow is belief.base and launch is not None:
                spans.append(launch.reuse)
                continue
            after = shadow.copy()
            for other in pending:
                after.launch(other if shadow is belief.base else replace(other, id_slot=None))
            done = after.launch(wish)
            spans.append(done.reuse if done else None)
        return {"predicted": spans[0], "alone": spans[1]}

    def _reason(self, passing: object, chosen: object) -> str:
        from toki.engine.events import Option

        assert isinstance(passing, Option) and isinstance(chosen, Option)
        if chosen.action is Action.PASSED:
            return "the server's own choice is as good"
        return (
            f"slot {chosen.slot}: {chosen.reuse.likely} tokens reused (alone {passing.reuse.likely}), "
            f"{passing.now + passing.later - chosen.now - chosen.later:.0f} ms saved by now and later"
        )

    # --- keeping up -------------------------------------------------------------------------------

    def _know(self, flight: Flight) -> None:
        """The tokens of a request are known, or known to be unknowable."""
        ask = flight.ask
        flight.read = True
        if ask.tokens is None:
            return
        self._collect()
        place = self._contents.add(ask.tokens, ask.lora)
        flight.prompt = self._contents.hold(place, len(ask.tokens), len(ask.tokens))
        flight.conversation = self._conversations.note(flight.key, flight.prompt).key
        if ask.vector is not None:
            self._vectors[place] = ask.vector

    def _wish(self, flight: Flight, steer: int | None) -> Wish:
        ask = flight.ask
        assert flight.prompt is not None
        pinned = ask.client_slot if ask.client_slot is not None else steer
        return Wish(flight.key, flight.prompt, pinned, ask.kind, ask.cache_prompt, ask.children)

    def _place(self, flight: Flight) -> None:
        """A launch was seen: it and what was surely launched before it go to the beliefs.

        A plain answer's headers come at its end, so those released earlier are taken to have launched in order.
        """
        if flight.placed:
            return
        for other in list(self._flights.values()):
            if other is flight:
                break
            if not other.placed and not other.ask.stream:
                other.placed = True
                self._steps.append(Step(other))
        flight.placed = True
        self._steps.append(Step(flight))

    def _apply(self) -> list[Command]:
        """Apply what is due to the beliefs; stop before a request whose tokens are still being read."""
        commands: list[Command] = []
        while self._steps and (self._steps[0].flight.read or self._steps[0].end is not None):
            step = self._steps.popleft()
            if step.end is None:
                if step.flight.prompt is not None:
                    wish = self._wish(step.flight, step.flight.decision.id_slot)
                    steered = step.flight.decision.id_slot is not None
                    for belief in self._beliefs:
                        belief.launch(wish, steered)
            else:
                commands += self._settle(step.flight, step.end)
        return commands

    def _settle(self, flight: Flight, end: Answered | Gone) -> list[Command]:
        """A request ended: score the predictions, move the shadows on, record."""
        measured = end.measured
        self._flights.pop(flight.key, None)
        commands: list[Command] = []
        surprised = False
        if flight.prompt is not None:
            surprised = self._score(flight, measured)
            if isinstance(end, Answered) and end.status == 200 and measured.finished:
                self._finish(flight, measured)
            else:
                least = max(measured.reused or 0, 0)
                for belief in self._beliefs:
                    belief.cancel(flight.key, least, flight.prompt.length)
                surprised = True
        elif flight.ask.tokens is None and self._beliefs and not (isinstance(end, Gone) and not end.sent):
            surprised = True
            self._unknown_landing(measured)
        commands.append(self._record(flight, measured))
        if surprised or self._undecided():
            commands.append(Look())
        return commands

    def _undecided(self) -> bool:
        """Whether hypotheses that did equally well think different things of the slots, so that a look tells."""
        leader = self.belief
        if leader is None:
            return False
        lengths = leader.lengths()
        return any(b.errors < leader.errors + 1 and b.lengths() != lengths for b in self._beliefs)

    def _score(self, flight: Flight, measured: Measured) -> bool:
        """Compare each belief's prediction with the server's figure; whether the leading one was wrong."""
        leader = self.belief
        if leader is None or measured.reused is None or flight.prompt is None:
            return False
        tolerance = flight.prompt.length // 20 if leader.rules.window else 0
        weight = 0.3 if flight.overlapped else 1.0
        surprised = False
        for belief in self._beliefs:
            launch = belief.base.launches.get(flight.key)
            if launch is None:
                continue
            if belief is leader:
                flight.launch = launch
            if belief.learn_ram(launch, measured.reused):
                surprised = surprised or belief is leader
                continue
            right = belief.judge(launch, measured.reused, tolerance, weight)
            if belief is leader and right is not None:
                surprised = not right
                self._actions.judge(flight.decision.action, right)
        return surprised

    def _finish(self, flight: Flight, measured: Measured) -> None:
        prompt = flight.prompt
        assert prompt is not None
        reply = measured.reply_tokens or 0
        for belief in self._beliefs:
            belief.finish(flight.key, reply)
        held = self._contents.hold(prompt.place, prompt.certain, prompt.length + max(reply - 1, 0))
        self._conversations.replace_held(prompt, held)
        if held.length > prompt.length:
            self._replies[flight.key] = (prompt, held)
            while len(self._replies) > 64:
                self._replies.pop(next(iter(self._replies)))

    def _unknown_landing(self, measured: Measured) -> None:
        """A request of unknown tokens ran: any idle slot may hold something else now."""
        for belief in self._beliefs:
            for shadow in (belief.base, belief.alone):
                shadow.ram_known = shadow.ram_known and not belief.rules.ram
                for number, slot in enumerate(shadow.slots):
                    if slot.idle and (measured.slot is None or measured.slot == number):
                        length = slot.held.length if slot.held else (measured.prompt_tokens or 1)
                        shadow.correct(number, self._contents.hold(UNKNOWN, 0, length))

    def _record(self, flight: Flight, measured: Measured) -> Record:
        parent, shared, similarity = None, 0, None
        if flight.prompt is not None:
            parent, shared, similarity = self._parent(flight.prompt)
            self._recorded.pop(flight.prompt.place, None)
            self._recorded[flight.prompt.place] = flight.key
            if flight.ask.vector is not None and flight.prompt.place not in self._index:
                self._index.add(flight.prompt.place, flight.ask.vector, flight.prompt.length)
        decision = flight.decision
        return Record(
            key=flight.key,
            conversation=flight.conversation or flight.key,
            parent=parent,
            shared=shared,
            similarity=similarity,
            predicted=decision.predicted.likely if decision.predicted else None,
            alone=decision.alone.likely if decision.alone else None,
            outcome=outcome(measured.reused, self._min_reuse),
            slot=measured.slot,
            action=decision.action,
            reason=decision.reason,
            measured=measured,
        )

    def _parent(self, prompt: Held) -> tuple[int | None, int, float | None]:
        """The recorded request that shares most with a prompt: its key, the common prefix, the cosine of the two."""
        if not self._recorded:
            return None, 0, None
        places = np.fromiter(self._recorded, np.intp, len(self._recorded))
        shared = self._contents.row(prompt.place)[places]
        most = int(shared.max())
        if not most:
            return None, 0, None
        place = int(places[np.flatnonzero(shared == most)[-1]])
        similarity = None
        if place in self._vectors and prompt.place in self._vectors:
            similarity = float(self._vectors[place] @ self._vectors[prompt.place])
        return self._recorded[place], most, similarity

    def _collect(self) -> None:
        """Forget token lists that nothing refers to, the longest unrecorded first, so that memory stays bounded."""
        if len(self._contents) < 2 * MEMORY:
            return
        live = {held.place for belief in self._beliefs for s in (belief.base, belief.alone) for held in s.holds()}
        live |= {conversation.held.place for conversation in self._conversations.recent.values()}
        live |= {flight.prompt.place for flight in self._flights.values() if flight.prompt}
        live |= {held.place for pair in self._replies.values() for held in pair}
        recent = list(self._recorded)[-MEMORY:]
        self._contents.keep(live | set(recent))
        for place in list(self._recorded):
            if place not in live and place not in recent:
                del self._recorded[place]
                self._index.remove(place)
                self._vectors.pop(place, None)


def outcome(reused: int | None, min_reuse: int) -> Outcome:
    """What a measured reuse amounts to; without a figure it is unknown, never a miss."""
    if reused is None:
        return Outcome.UNKNOWN
    if reused >= min_reuse:
        return Outcome.HIT
    return Outcome.SOFT_HIT if reused else Outcome.MISS


__all__ = ["Conversation", "Engine", "outcome"]
