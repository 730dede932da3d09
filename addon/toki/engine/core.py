"""Engine: events in, commands out. Deciding and reserving are one call, so they are atomic.

What is certain and what is under way are kept apart. A request that was released but whose launch was not seen is
*unplaced*: the order on the wire is not the order in which the server takes requests up, so while one is unplaced
nothing is decided that its landing could change. Launches are applied to the beliefs in the order in which they were
seen: a stream's headers come at its launch (b10434 and b11549: 5 to 7 ms, where the first chunk takes seconds).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field
from dataclasses import replace
from functools import partial
from math import inf

from toki.engine import fork
from toki.engine import waiting
from toki.engine.account import Account
from toki.engine.contents import UNKNOWN
from toki.engine.contents import UNLIMITED
from toki.engine.contents import Contents
from toki.engine.contents import Held
from toki.engine.conversations import Conversations
from toki.engine.events import Action
from toki.engine.events import Answered
from toki.engine.events import Arrived
from toki.engine.events import Ask
from toki.engine.events import Began
from toki.engine.events import Believed
from toki.engine.events import Command
from toki.engine.events import Decision
from toki.engine.events import Event
from toki.engine.events import Gone
from toki.engine.events import Holding
from toki.engine.events import Kind
from toki.engine.events import Look
from toki.engine.events import Looked
from toki.engine.events import Measured
from toki.engine.events import Mode
from toki.engine.events import Option
from toki.engine.events import Outcome
from toki.engine.events import Prime
from toki.engine.events import Primed
from toki.engine.events import Read
from toki.engine.events import Record
from toki.engine.events import Replied
from toki.engine.events import Restarted
from toki.engine.events import Resume
from toki.engine.events import Send
from toki.engine.events import Span
from toki.engine.events import Unsteered
from toki.engine.events import Wait
from toki.engine.history import History
from toki.engine.policy import LEAST_WIN
from toki.engine.policy import MARGIN
from toki.engine.policy import Priced
from toki.engine.policy import Prices
from toki.engine.policy import Primer
from toki.engine.policy import Returns
from toki.engine.policy import Want
from toki.engine.policy import cheapest
from toki.engine.policy import options
from toki.engine.rules import Known
from toki.engine.rules import deviations
from toki.engine.rules import hypotheses
from toki.engine.shadow import Wish
from toki.engine.timeline import Cancelled
from toki.engine.timeline import Finished
from toki.engine.timeline import Launched
from toki.engine.timeline import Refused
from toki.engine.tokens import Tokens
from toki.engine.trust import Actions
from toki.engine.trust import Belief

CHECK = 0  # names a request that is only thought of: keys of real ones start at 1, or at -1
COLLECT = 1024  # token lists at which those that nothing refers to are forgotten
MOST_PRELUDE = 64  # launches before the server is known that are remembered
MOST_PRIMERS = 2  # that go before one request
REPLIES = 64  # ended requests whose replies are waited for
FOREIGN_PAUSE = 60.0  # seconds without steering after traffic of others was seen on a server with a RAM cache
LINGER = 30.0  # seconds after which any request whose client left is taken to have ended, where no look tells
UNREAD = 2.0  # seconds after its end from which a request that was not read until then never will be
CANCELLED = 1.2  # seconds after which a prefill is cancelled, unless answers to others go out (llama-server 6.2)
SHORT = 0.25  # seconds between a release and the sign of a launch that are no sign of a busy server
LIKELY = 4  # hypotheses for which another order of what happened is looked for
ON_THE_WAY = 8  # tokens of a stream that may be sampled before the server sees that its client left
TOKEN = 0.02  # seconds after which a stream in decode is cancelled: at its next token


PASSED = Decision(Action.PASSED, None, None, None, None, None, "")


@dataclass(slots=True)
class Flight:
    """One request, from its arrival until the server is done with it."""

    key: int
    ask: Ask
    decision: Decision = PASSED
    prompt: Held | None = None  # None: its tokens are not known (yet)
    read: bool = False  # its tokens are as known as they will ever be
    placed: bool = False  # its launch was seen, or concluded
    launched: bool = False  # its launch was applied to the beliefs
    misread: bool = False  # it was launched with tokens that the server's figures contradict
    measured: Measured = field(default_factory=Measured)
    trial: Span | None = None  # it tries whether `id_slot` is honoured: reuse if not
    refused: Decision | None = None  # how it was steered where the server refused that
    overlapped: bool = False  # others were under way between its release and its end
    primed: int | None = None  # the slot that a primer was sent to for it
    helped: bool = False  # it had a primer
    waited: str = ""  # what it has waited for, in plain words
    left: float | None = None  # when its client went away; the server may not have noticed yet
    shown: int = 0  # pieces of its answer that it had got by then
    quick: bool = False  # whether its prefill is over before it would be cancelled
    lingers: float = 0.0  # seconds for which the server may still work on it
    released: float = 0.0  # when it left for the server
    seen: float = inf  # when its launch was seen
    ended: float | None = None  # when its last byte was seen
    before: Sequence[tuple[int | None, Held, bool]] = ()  # slot, contents, busy: as believed when it was decided
    slot: int | None = None  # where it was launched, as believed
    thread: int = 0  # the conversation that it continues, and the name that this is recorded under
    conversation: int = 0

    @property
    def slots(self) -> int:
        """Slots that it takes."""
        return self.ask.prompts + self.ask.children


@dataclass(frozen=True, slots=True)
class Priming:
    """A request that waits for its primer, and how it is decided behind that; `left`: how many more it may have.

    `probes`: the lever that the primer only tries out.
    """

    flight: Flight
    event: Arrived
    left: int
    probes: Action | None = None


@dataclass(slots=True)
class Waiter:
    """A request that waits inside toki, until the time `until` at most; `free`: it has waited for all that it could;
    `behind`: the running request that it waits for."""

    flight: Flight
    until: float
    free: bool = False
    behind: int | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """Something to apply to the beliefs, in its turn: a launch (`end` None) or an end."""

    flight: Flight
    end: Answered | Gone | None = None


class Engine:
    """All of toki's judgement about one server (and one of its models)."""

    def __init__(self, mode: Mode, min_reuse: int) -> None:
        self._mode = mode
        self._min_reuse = min_reuse
        self._flights: dict[int, Flight] = {}  # in the order of their release
        self._priming: Priming | None = None
        self._waiting: dict[int, Waiter] = {}  # by key
        self._fork: fork.Fork | None = None
        # Launches and answers from before the server was known, of which its beliefs have yet to hear.
        self._prelude: list[tuple[Flight, Answered | None]] | None = []
        self._now = 0.0
        self._start_over()

    def _start_over(self) -> None:
        self._contents = Contents()
        self._history = History(self._contents)
        self._conversations = Conversations(self._contents)
        self._beliefs: list[Belief] = []
        self._actions = Actions()
        self._honoured: dict[str, bool] = {}  # whether endpoints that may ignore `id_slot` do, where it was tried
        self._prices = Prices()
        self._pace = waiting.Pace()
        self._steps: deque[Step] = deque()
        self._replies: dict[int, tuple[Held, Held]] = {}  # ended request -> its prompt, and what its slot then held
        self._tasks: dict[int, int] | None = None  # slot -> task id at the last quiet look
        self._launches = 0  # of ours since then
        self._changed_at = 0.0
        self._said = Known()  # what is said of the server's flags
        self._unconfirmed = False  # a request is taken to have ended that no look has shown to have
        self._foreign_until = 0.0
        self._account = Account()

    @property
    def wants_tokens(self) -> bool:
        """Whether a decision can depend on tokens: then requests are held until these are known."""
        return self._mode in (Mode.AUTO, Mode.PIN)

    @property
    def unplaced(self) -> bool:
        """Whether a request is on its way whose landing could change what is decided now."""
        return bool(self._steps) or self._priming is not None or any(not one.placed for one in self._flights.values())

    @property
    def must_wait(self) -> bool:
        """Whether a request that leaves now could overtake a steered one and take its slot, where a pin to a busy slot
        damages the answer that runs there. That holds for any request, steered or not."""
        belief = self.belief
        if belief is None or not belief.rules.risky_pins:
            return False
        return any(
            not one.placed and (one.decision.id_slot is not None or (one.key < 0 and one.ask.client_slot is not None))
            for one in self._flights.values()
        )

    @property
    def should_wait(self) -> bool:
        """Whether a moment's patience would let it decide what can't be decided now."""
        belief = self.belief
        return self.wants_tokens and belief is not None and belief.trusted and self.unplaced

    @property
    def belief(self) -> Belief | None:
        """The hypothesis that was wrong least; the likeliest one where several were."""
        return min(self._beliefs, key=lambda belief: belief.errors) if self._beliefs else None

    def handle(self, event: Event) -> list[Command]:
        """Take in what happened; return what to do, in order."""
        self._now = event.at
        if isinstance(event, Looked):  # what it shows is better than what would be assumed
            self._let_go(event)
        self._give_up(event.at)
        late = self._apply(event.at)
        return [*late, *self._take(event)] if late else self._take(event)

    def _take(self, event: Event) -> list[Command]:
        match event:
            case Arrived():
                return self._arrived(event)
            case Read():
                return self._read(event)
            case Primed():
                return self._primed(event)
            case Began():
                return self._began(event)
            case Unsteered():
                return self._unsteered(event)
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
        first = self._prelude
        owed: list[Step] = []
        if first is None:  # what was sent to the server before says nothing of this one
            owed = [step for step in self._steps if step.end is not None]
            self._start_over()
            self._fork = None
            for held in (*self._waiting.values(), *((self._priming,) if self._priming is not None else ())):
                held.flight.prompt = None
            for flight in self._flights.values():
                self._carry_over(flight)
        self._prelude = None
        self._said = event.known
        freed = self._free(self._waiting)
        used = sum(1 for view in event.slots or () if view.n_tokens or view.task >= 0)
        ours = sum(flight.slots for flight, end in first or () if end is None)
        slots = () if event.slots is not None and used <= ours else event.slots
        self._beliefs = [
            Belief(rules, self._contents, slots, event.known)
            for rules in hypotheses(event.total_slots, event.n_ctx, event.known)
        ]
        for flight, end in first or ():
            if end is None:
                self._launch(flight)
            else:
                self._finish(flight, end.measured)
        self._steps.extend(owed)
        return [*freed, *self._apply(event.at)]

    def _carry_over(self, flight: Flight) -> None:
        """A request that is under way when another server is met: if it gets an answer, it is from that one."""
        flight.prompt = None
        flight.decision = replace(flight.decision, predicted=None, alone=None)
        if flight.placed or flight.ended is not None or flight.key < 0:
            # What was seen of the slots may be from before its launch, or from after it.
            flight.misread = True
            flight.read = flight.placed = flight.launched = True
        else:
            if flight.ask.tokens is not None:
                self._know(flight)

    def _arrived(self, event: Arrived) -> list[Command]:
        if event.key in self._flights:
            raise ValueError(f"request {event.key} has arrived before")
        commands: list[Command] = []
        if event.slots is not None and event.looked_at is not None:
            commands = self._looked(Looked(event.at, event.looked_at, event.slots))
        waiter = self._waiting.pop(event.key, None)
        flight = waiter.flight if waiter is not None else Flight(event.key, event.ask)
        flight.ask = event.ask
        if waiter is None and event.ask.tokens is not None:
            self._know(flight)
        held = self._hold(flight, event, waiter)
        if held:
            return [*commands, *held]
        freed = self._free(self._waiting) if not event.company else []
        return [*commands, *freed, self._go_on(flight, event, MOST_PRIMERS)]

    def _go_on(self, flight: Flight, event: Arrived, left: int) -> Prime | Send:
        """Decide on a request, which may still have `left` primers: what is sent next, it or what goes before it."""
        flight.decision = PASSED  # what was decided before is not part of the question
        flight.decision, primer = self._decide(flight, event, left)
        id_slot = flight.decision.id_slot if primer is None else primer.id_slot
        lever = self._untried(id_slot)
        if id_slot is not None and lever is not None:
            return self._probe(flight, event, id_slot, lever, left)
        if primer is not None:
            return self._prime(flight, event, primer, left)
        if flight.helped:
            flight.decision = replace(flight.decision, action=Action.PRIMED)
        elif flight.waited:
            action = Action.WAITED if flight.decision.action is Action.PASSED else flight.decision.action
            reason = f"{flight.waited}; {flight.decision.reason}"
            flight.decision = replace(flight.decision, action=action, reason=reason)
        self._release(flight, event.at)
        return Send(flight.key, flight.decision)

    def _untried(self, id_slot: int | None) -> Action | None:
        """The lever that a slot id pulls, if it was never tried on this server."""
        if id_slot is None or self.belief is None:
            return None
        lever = Action.PINNED if id_slot < self.belief.rules.n_slots else Action.SWAPPED
        return None if lever in self._actions.proven else lever

    def _probe(self, flight: Flight, event: Arrived, id_slot: int, lever: Action, left: int) -> Prime:
        """Try a lever before its first use with a prompt of no tokens: it is answered at once from the slot on which it
        lands, and that keeps what it holds (b10434 and b11549). Of an empty slot nothing has to be saved, either."""
        if lever is Action.PINNED and self.belief is not None and not self._flights:
            slots = self.belief.base.slots
            id_slot = next((number for number in slots.idle() if slots[number].held is None), id_slot)
        place = self._contents.add(Tokens.of(()))
        primer = Primer(self._contents.hold(place, 0, 0), id_slot)
        return self._prime(flight, event, primer, left + 1, lever)

    def _prime(self, flight: Flight, event: Arrived, primer: Primer, left: int, probes: Action | None = None) -> Prime:
        """Reserve a request's turn for the primer that goes before it."""
        tokens = self._contents[primer.prompt.place].head(primer.prompt.length)
        ask = Ask("/completion", tokens=tokens, client_slot=primer.id_slot)
        decision = replace(flight.decision, action=Action.PRIMED if self._carried(flight) is None else Action.FORKED)
        self._release(Flight(-flight.key, ask, decision, primer.prompt, read=True), event.at)
        self._priming = Priming(flight, event, left - 1, probes)
        return Prime(flight.key, tokens, -1 if primer.id_slot is None else primer.id_slot)

    def _primed(self, event: Primed) -> list[Command]:
        """The primer is done: what is best for the request is decided anew."""
        priming, primer = self._priming, self._flights.get(-event.key)
        if priming is None or priming.flight.key != event.key or primer is None:
            return []
        self._priming = None
        self._changed_at = event.at
        commands: list[Command] = []
        slot = primer.ask.client_slot
        slot = None if slot is None or self.belief is None else slot % self.belief.rules.n_slots
        if priming.probes is not None:
            works = event.measured is not None and event.measured.slot == slot
            self._actions.prove(priming.probes, works)
            end = Answered(primer.key, event.at, 200, event.measured) if event.measured is not None else None
            self._place(primer)
            self._steps.append(Step(primer, end or Gone(primer.key, event.at, sent=False)))
        elif event.measured is None:
            self._actions.judge(primer.decision.action, right=False)
            self._steps.append(Step(primer, Gone(primer.key, event.at, sent=True)))
        else:
            self._place(primer)
            self._steps.append(Step(primer, Answered(primer.key, event.at, 200, event.measured)))
        commands += self._apply(event.at)
        flight = priming.flight
        active = self._carried(flight)
        if active is not None:
            arrived = replace(priming.event, at=event.at)
            if priming.probes is not None:
                return [*commands, *self._copy(active, flight, arrived)]
            return [*commands, *self._primed_fork(active, flight, arrived, event)]
        again = replace(priming.event, at=event.at, slots=None, looked_at=None)
        flight.trial = None
        if priming.probes is not None:
            flight.primed = slot if self._flights else None
            return [*commands, self._go_on(flight, again, priming.left)]
        flight.primed, flight.helped = slot, True
        return [*commands, self._go_on(flight, again, priming.left if event.measured is not None else 0)]

    def _release(self, flight: Flight, at: float) -> None:
        """A request is about to leave."""
        for other in self._flights.values():
            if other.ended is None:
                flight.overlapped = other.overlapped = True
        flight.released = at
        self._flights[flight.key] = flight
        self._changed_at = at

    def _read(self, event: Read) -> list[Command]:
        flight = self._flights.get(event.key)
        if flight is None or flight.read:
            return []
        flight.ask = event.ask
        self._know(flight)
        self._check_length(flight)
        return self._apply(event.at)

    def _began(self, event: Began) -> list[Command]:
        flight = self._flights.get(event.key)
        if flight is None or not flight.ask.stream or event.status != 200:
            return []
        self._changed_at = event.at
        self._place(flight)
        return self._apply(event.at)

    def _unsteered(self, event: Unsteered) -> list[Command]:
        """A request goes as it came after all; its lever is dropped if the server takes it then."""
        flight = self._flights.get(event.key)
        if flight is None or flight.ended is not None or flight.decision.id_slot is None:
            return []
        flight.refused, flight.trial = flight.decision, None
        predicted, alone = self._predictions(flight)
        reason = "the server refused it as it was steered, so it went as it came"
        flight.decision = replace(
            flight.decision,
            action=Action.PASSED,
            slot=None,
            id_slot=None,
            predicted=predicted,
            alone=alone,
            reason=reason,
        )
        self._changed_at = event.at
        return []

    def _conclude_refusal(self, flight: Flight, status: int) -> None:
        """What a server refuses only where toki has put something into it, toki puts there no more."""
        if flight.refused is None or status >= 400:
            return
        if flight.refused.action is Action.SWAPPED:
            self._actions.drop(Action.SWAPPED)
        else:
            self._honoured[flight.ask.endpoint] = False
            self._actions.drop(flight.refused.action)

    def _ended(self, event: Answered | Gone) -> list[Command]:
        flight = self._flights.get(event.key)
        if flight is None or flight.left is not None or flight.ended is not None:
            self._waiting.pop(event.key, None)
            return []
        self._changed_at = event.at
        flight.ended = event.at
        flight.measured = event.measured
        self._check_length(flight)
        self._conclude_trial(flight)
        if isinstance(event, Answered):
            self._conclude_refusal(flight, event.status)
        if event.sent if isinstance(event, Gone) else event.status == 200:
            self._place(flight)
        self._steps.append(Step(flight, event))
        if isinstance(event, Answered) and event.status == 200:
            self._learn_pace(flight, event.at)
        freed = [Resume(key) for key, one in self._waiting.items() if one.behind == event.key]
        return [*self._apply(event.at), *freed]

    def _learn_pace(self, flight: Flight, at: float) -> None:
        launch = self.belief.base.launches.get(flight.key) if self.belief is not None else None
        if launch is not None and flight.prompt is not None and self._prices.measured:
            prefill = (flight.prompt.length - launch.reuse.likely) * self._prices.evaluate
            self._pace = self._pace.after(1000 * (at - flight.released) - prefill)

    def _check_length(self, flight: Flight) -> None:
        """A prompt of which the server says another length was read wrongly: nothing may be built on it."""
        if flight.prompt is not None and flight.measured.prompt_tokens not in (None, flight.prompt.length):
            self._conversations.forget(flight.prompt)
            flight.prompt = None
            flight.misread = flight.launched

    def _conclude_trial(self, flight: Flight) -> None:
        """Only a slot that was honoured explains the reuse that was predicted for it: the two are far apart. Where the
        server told nothing, its client having left, it is taken to have ignored the slot, as the known builds do, and
        the next one is a trial again."""
        ignored, decision, reused = flight.trial, flight.decision, flight.measured.reused
        if ignored is None or decision.predicted is None:
            return
        flight.trial = None
        honoured = reused is not None and decision.predicted.low <= reused <= decision.predicted.high
        if not honoured:  # what was predicted was for the other case
            flight.decision = replace(decision, id_slot=None, predicted=None)
        if honoured or (reused is not None and ignored.low <= reused <= ignored.high):
            self._honoured[flight.ask.endpoint] = honoured
        elif reused is not None and flight.prompt is not None:  # it may have landed anywhere
            self._conversations.forget(flight.prompt)
            flight.prompt = None

    def _replied(self, event: Replied) -> list[Command]:
        known = self._replies.pop(event.key, None)
        if known is None:
            return []
        prompt, old = known
        reply = event.ids[: old.length - prompt.length]
        whole = self._contents[prompt.place].extended(reply)
        place = self._contents.add(whole, self._contents.lora(prompt.place), self._contents.images(prompt.place))
        for belief in self._beliefs:
            belief.timeline.reveal(event.key, old, place)
        self._conversations.replace_held(old, self._contents.hold(place, old.certain, old.length))
        self._history.reveal(event.key, place, old.length)
        return []

    def _looked(self, event: Looked) -> list[Command]:
        """Compare a look with the beliefs, where nothing has changed since it was asked for."""
        self._let_go(event)
        if event.asked_at <= self._changed_at or self._steps:
            return []
        if any(flight.trial is not None for flight in self._flights.values()):
            return []
        busy = sum(view.busy for view in event.slots)
        taken = sum(flight.slots for flight in self._flights.values())
        if busy < taken:
            return []  # something has ended, or has not yet begun, of which nothing was heard so far
        for flight in [flight for flight in self._flights.values() if not flight.placed]:
            self._place(flight)
        self._apply(event.at)
        tasks = {view.id: view.task for view in event.slots}
        if self._tasks is not None:
            changed = sum(task != self._tasks.get(number) for number, task in tasks.items())
            if busy > taken or changed > self._launches:
                self._foreign_until = event.at + FOREIGN_PAUSE
        self._tasks, self._launches = tasks, 0
        self._unconfirmed = self._unconfirmed and busy > taken
        if busy > taken:
            return []
        for belief in self._beliefs:
            belief.compare(event.slots)
        return []

    def _give_up(self, at: float) -> None:
        """Requests whose clients left have ended by now, even if no look showed it. A stream that answers is cancelled
        at its next token, one in prefill within a second or when that is over; a plain one runs to its end."""
        for flight in list(self._flights.values()):
            if flight.left is None or at < flight.left + flight.lingers:
                continue
            self._cut_off(flight, *self._kept(flight))
            self._unconfirmed = True
        for flight in self._flights.values():
            if not flight.read and flight.ended is not None and at > flight.ended + UNREAD:
                flight.read = True

    def _kept(self, flight: Flight) -> tuple[int, int]:
        """The least and the most tokens that stay in the slot of a request whose client left."""
        if flight.prompt is None:
            return 0, 0
        length = flight.prompt.length
        if not flight.ask.stream:
            return length, length + max((flight.ask.max_tokens or 1) - 1, 0)
        if flight.shown:
            return length, length + min(flight.shown + ON_THE_WAY, max((flight.ask.max_tokens or UNLIMITED) - 1, 0))
        launch = self.belief.base.launches.get(flight.key) if self.belief is not None else None
        return (length if flight.quick else launch.reuse.low if launch is not None else 0), length

    def _let_go(self, event: Looked) -> None:
        """Requests whose clients left have ended once a look shows their slots idle."""
        views = {view.id: view for view in event.slots}
        for flight in list(self._flights.values()):
            if flight.left is None or event.asked_at <= flight.left:
                continue
            leader = self.belief
            number = leader.base.running(flight.key) if leader else None
            view = views.get(number) if number is not None else None
            if view is not None and not view.busy:
                kept = view.n_tokens if view.n_tokens is not None else 0
                self._cut_off(flight, kept, kept)
            elif number is None and not any(view.busy for view in event.slots):
                self._cut_off(flight, 0, 0)

    # --- deciding ---------------------------------------------------------------------------------

    def _decide(self, flight: Flight, event: Arrived, primers: int) -> tuple[Decision, Primer | None]:
        """What to do with a request, with the predictions for just that; and what to send before it, if anything."""
        ask, prompt, belief = flight.ask, flight.prompt, self.belief
        why = self._why_not(flight, event)
        if prompt is None:
            return replace(flight.decision, reason=why), None
        similarity = self._history.best_similarity(ask.vector, ask.semantic)
        predicted, alone = self._predictions(flight)
        passed = Decision(Action.PASSED, None, None, predicted, alone, similarity, why)
        if why or belief is None:
            return passed, None
        idle = self._idle_slots(belief, flight, event)
        full = [number for number in idle if belief.base.slots[number].held is not None]
        swaps = full if belief.rules.ram and self._actions.usable(Action.SWAPPED) else []
        # Where there is a RAM cache, a pin to an empty slot keeps the server from looking there.
        pins = full if belief.rules.ram else idle
        if not self._actions.usable(Action.PINNED):
            pins = []
        may_prime = primers > 0 and self._mode is Mode.AUTO and self._actions.usable(Action.PRIMED)
        if self._mode is Mode.PIN:
            pins, swaps = self._longest_prefix(flight, belief, pins), []
        wants = [
            Want(conversation.held, self._conversations.chance(conversation))
            for conversation in self._conversations.recent.values()
            if conversation.key != flight.thread
        ]
        priced_as = partial(
            options, belief.base, self._wish(flight), Returns(belief.base, wants), self._prices, pins=pins, swaps=swaps
        )

        def choose(priced: Sequence[Priced]) -> Priced:
            if self._mode is Mode.PIN:
                return priced[-1]
            margin, stake = max(MARGIN * prompt.length, LEAST_WIN), self._account.stake(prompt.length)
            return cheapest(priced, margin * self._prices.evaluate, stake * self._prices.evaluate)

        priced = priced_as(
            primers=may_prime,
            honours_slot=self._honours(ask),
            siblings=self._conversations.siblings(flight.thread) if flight.primed is None else 0.0,
        )
        if not priced:
            return replace(passed, reason="all slots are busy"), None
        best, tries = choose(priced), ""
        if self._may_try(flight):
            tried = priced_as(honours_slot=True)
            pinned, ignored = choose(tried), tried[0].launch.reuse
            if pinned.launch.reuse.low > ignored.high:
                priced, best, flight.trial = tried, pinned, ignored
                tries = f"; tries whether {ask.endpoint} honours id_slot"
        decision = replace(
            passed,
            action=best.plan.action,
            slot=best.launch.slot,
            id_slot=best.plan.id_slot,
            predicted=best.launch.reuse,
            reason=_reason(priced[0].option, best.option) + tries,
            options=tuple(one.option for one in priced),
        )
        return decision, next(iter(best.plan.primers), None)

    def _honours(self, ask: Ask) -> bool:
        return self._honoured.get(ask.endpoint, ask.honours_slot)

    def _client_slot(self, ask: Ask) -> int | None:
        """The slot that the client chose, where its endpoint honours that."""
        return ask.client_slot if self._honours(ask) else None

    def _may_try(self, flight: Flight) -> bool:
        """Whether to find out if an endpoint honours `id_slot`: once, with a request that is alone and would gain by
        it. A server that ignores the key does with it what it does without."""
        ask = flight.ask
        return not ask.honours_slot and ask.endpoint not in self._honoured and not self._flights

    def _why_not(self, flight: Flight, event: Arrived) -> str:
        """Why a request must leave as it came, in plain words; "" where it may be steered."""
        ask, belief = flight.ask, self.belief
        if not self.wants_tokens:
            return f"toki_mode is {self._mode}"
        if ask.fixed:
            return ask.fixed
        if flight.prompt is None:
            return ask.unknown or "its tokens are not known"
        if not self._honours(ask) and not self._may_try(flight) and self._mode is Mode.PIN:
            return f"{ask.endpoint} ignores id_slot"
        if belief is None:
            return "the server is not known yet"
        if not belief.trusted:
            return "still learning how this server chooses"
        if belief.rules.n_slots == 1 and self._mode is Mode.PIN:
            return "the server has one slot"
        if event.at < self._foreign_until and belief.rules.ram:
            return "others use this server too"
        if self.unplaced:
            return "another request is on its way to the server"
        return ""

    def _idle_slots(self, belief: Belief, flight: Flight, event: Arrived) -> list[int]:
        """Slots that are known to be idle and to hold what is believed.

        A pin to a busy slot damages the running answer where there is a RAM cache, so while other requests run only a
        fresh look counts; with idle clearing also because a slot may be emptied before its last byte is seen.
        """
        idle = belief.base.slots.idle()
        if flight.primed is not None:
            return [number for number in idle if number == flight.primed]
        if not self._flights and not self._unconfirmed:
            return idle  # a look may still show the last answer's slot as busy for a moment
        if event.slots is None or event.looked_at is None or event.looked_at <= self._changed_at:
            return []
        if sum(view.busy for view in event.slots) != sum(flight.slots for flight in self._flights.values()):
            return []
        held = {number: slot.held.length if (slot := belief.base.slots[number]).held else 0 for number in idle}
        return [view.id for view in event.slots if not view.busy and view.n_tokens == held.get(view.id)]

    def _longest_prefix(self, flight: Flight, belief: Belief, slots: Sequence[int]) -> list[int]:
        """The slot that holds the longest verified prefix of the prompt, at least `min_reuse` tokens: the candidates of
        the index and all live slots are compared token for token."""
        prompt = flight.prompt
        assert prompt is not None
        proposed = set(self._history.candidates(flight.ask.vector, flight.ask.semantic))
        verified: dict[int, tuple[int, bool]] = {}
        for number in slots:
            held = belief.base.slots[number].held
            if held is not None:
                verified[number] = (self._contents.span(held, prompt).likely, held.place in proposed)
        best = max(verified, key=lambda number: verified[number], default=None)
        return [best] if best is not None and verified[best][0] >= self._min_reuse else []

    def _predictions(self, flight: Flight) -> tuple[Span | None, Span | None]:
        """Reuse predicted for a request that leaves as it came: by this server, and by one that was never steered. The
        latter only where it can't rest on contents from before toki's time: gains are reckoned from it."""
        belief = self.belief
        if belief is None:
            return None, None
        flight.before = self._places(belief)
        spans: list[Span | None] = []
        for shadow in (belief.base, belief.alone):
            after = shadow.copy()
            for other in self._flights.values():
                if not other.launched and other.prompt is not None:
                    after.launch(self._wish(other, steered=shadow is belief.base))
            launch = after.launch(self._wish(flight))
            known = launch is not None and (launch.sure or shadow is belief.base)
            spans.append(launch.reuse if launch is not None and known else None)
        return spans[0], spans[1]

    # --- together ---------------------------------------------------------------------------------

    def _hold(self, flight: Flight, event: Arrived, waiter: Waiter | None) -> list[Command]:
        """Let a request wait for others that share a long prefix with it, or fork them; nothing: it goes on by itself.

        While others are still being read it waits a moment for them. The last one to come carries out the fork.
        """
        active, belief, prompt = self._fork, self.belief, flight.prompt
        if active is not None and (event.at >= active.until or not self._forkable(flight)):
            active.members.discard(flight.key)
            if active.carrier == flight.key or event.at >= active.until:
                self._fork = active = None  # its other members come again when their time is over
        if belief is None or prompt is None or not self._forkable(flight) or (waiter is not None and waiter.free):
            return []
        if active is not None:
            return self._hold_for(active, flight, prompt, event)
        gathers = waiter is None or (waiter.behind is None and event.at < waiter.until)
        if event.company and prompt.length >= fork.LEAST and gathers:
            until = event.at + fork.gathering(prompt.length, self._prices) if waiter is None else waiter.until
            return [self._wait(flight, until)]
        others = {
            key: one.flight.prompt
            for key, one in self._waiting.items()
            if one.flight.prompt is not None and not one.free and one.behind not in self._flights
        }
        head, near = fork.kin(self._contents, prompt, others)
        head = min(head, *self._contents.images(prompt.place)[:1], prompt.length)  # a primer can't hold images
        if not near or head < fork.LEAST:
            return self._hold_behind(belief, flight, prompt, event, waiter)
        members = [flight, *(self._waiting[key].flight for key in near)]
        primers = self._worth_forking(belief, members, head) if self._priming is None else []
        if not primers:
            for key in near:
                self._waiting[key].free = True
            return []
        shared = self._contents.hold(prompt.place, head, head)
        until = event.at + fork.patience(head, self._prices)
        self._fork = fork.Fork(flight.key, {one.key for one in members}, shared, until, primers[1:], len(primers))
        return [*self._free(self._waiting), self._prime(flight, event, Primer(primers[0], None), 1)]

    def _hold_behind(
        self, belief: Belief, flight: Flight, prompt: Held, event: Arrived, waiter: Waiter | None
    ) -> list[Command]:
        """Let a request wait for a running one with which it shares much, where that is predicted to pay."""
        behind = waiter.behind if waiter is not None else None
        if waiter is not None and behind is not None and event.at >= waiter.until:
            self._actions.judge(Action.WAITED, right=False)
            return []
        if not belief.trusted or not self._actions.usable(Action.WAITED):
            return []
        running = []
        for one in self._flights.values():
            launch = belief.base.launches.get(one.key)
            if launch is None or one.prompt is None or one.ended is not None or one.left is not None:
                continue
            if self._contents.lcp(one.prompt.place, prompt.place) >= fork.LEAST:
                prefill = (one.prompt.length - launch.reuse.likely) * self._prices.evaluate
                running.append(waiting.Running(one.key, 1000 * (event.at - one.released), prefill))
        found = waiting.delay(belief.base, self._wish(flight), running, self._pace, self._prices) if running else None
        if found is None:
            return []
        flight.waited = f"waited for a running request that saves it {found.tokens:,} tokens"
        until = event.at + found.ms / 1000 if behind is None or waiter is None else waiter.until
        self._waiting[flight.key] = Waiter(flight, until, behind=found.key)
        return [Wait(flight.key, until)]

    def _hold_for(self, active: fork.Fork, flight: Flight, prompt: Held, event: Arrived) -> list[Command]:
        """A request comes, or comes again, while a fork is under way."""
        belief = self.belief
        assert belief is not None
        if active.carrier == flight.key:
            number = active.slot
            held = belief.base.slots[number].held if number is not None and number < belief.rules.n_slots else None
            still = held is not None and self._contents.span(held, active.head).low == active.head.length
            if (
                self.unplaced
                or not still
                or not belief.rules.ram
                or number not in self._idle_slots(belief, flight, event)
            ):
                active.left.clear()
            return self._copy(active, flight, event)
        if flight.key not in active.members:
            if self._contents.lcp(prompt.place, active.head.place) < active.head.length:
                return []
            active.members.add(flight.key)
            if active.left:
                active.left += self._primers(flight, active.head.length, active.planned + 1)[active.planned :]
                active.planned += 1
        return [self._wait(flight, active.until)]

    def _carried(self, flight: Flight) -> fork.Fork | None:
        """The fork that a request carries out."""
        return self._fork if self._fork is not None and self._fork.carrier == flight.key else None

    def _forkable(self, flight: Flight) -> bool:
        """Whether it may go together with others."""
        ask = flight.ask
        return (
            self._mode is Mode.AUTO
            and flight.prompt is not None
            and not ask.fixed
            and ask.cache_prompt
            and ask.kind is Kind.COMPLETION
            and not ask.lora  # a primer knows of no adapters
            and self._actions.usable(Action.FORKED)
        )

    def _wait(self, flight: Flight, until: float) -> Wait:
        self._waiting[flight.key] = Waiter(flight, until)
        return Wait(flight.key, until)

    def _free(self, keys: Iterable[int]) -> list[Command]:
        """Let those go on that wait neither for a fork nor for one that runs."""
        members = self._fork.members if self._fork is not None else ()
        return [Resume(key) for key in keys if key not in members and self._waiting[key].behind not in self._flights]

    def _worth_forking(self, belief: Belief, members: Sequence[Flight], head: int) -> list[Held]:
        """The primers that make the requests cheaper; none where they don't. A server that is not trusted yet must be
        known to hold nothing else, and no hypothesis that agrees with what is said of it may speak against it."""
        idle = len(belief.base.slots.idle())
        wishes = [self._wish(one) for one in members]
        if idle < 2 or not fork.may_pay(belief.base, wishes, head, self._prices):
            return []
        copies = min(len(members), idle) if self._actions.usable(Action.SWAPPED) else 1
        primers = self._primers(members[0], head, copies)
        primers = primers[: fork.best(belief.base, wishes, primers, self._prices)]
        if primers and not belief.trusted:
            if deviations(belief.rules, self._said):
                return []
            for other in [one for one in self._beliefs if not deviations(one.rules, self._said)]:
                plain = fork.cost(other.base, wishes, (), self._prices)
                if not other.base.known or fork.cost(other.base, wishes, primers, self._prices) > fork.NO_WORSE * plain:
                    return []
        return primers

    def _primers(self, flight: Flight, head: int, n: int) -> list[Held]:
        """Different primers for the first `head` tokens of a prompt."""
        assert flight.prompt is not None
        lists = fork.heads(self._contents[flight.prompt.place], head, n)
        return [self._contents.hold(self._contents.add(one), len(one), len(one)) for one in lists]

    def _primed_fork(self, active: fork.Fork, flight: Flight, arrived: Arrived, event: Primed) -> list[Command]:
        """A primer of a fork is done. The next one needs a slot that is surely idle, so the carrier comes again."""
        if event.measured is None:
            return self._send_forked(active, flight, event.at, Action.PASSED, "a primer failed")
        active.done += 1
        if active.slot is not None:
            return self._copy(active, flight, arrived)
        active.slot = event.measured.slot
        return [self._wait(flight, event.at)]

    def _copy(self, active: fork.Fork, flight: Flight, event: Arrived) -> list[Command]:
        """Send the next primer of a fork, or, behind the last one, the requests."""
        belief = self.belief
        if not self._actions.usable(Action.SWAPPED):
            active.left.clear()
        if active.left and active.slot is not None and belief is not None:
            lever = self._untried(active.slot + belief.rules.n_slots)
            if lever is not None:
                return [self._probe(flight, event, active.slot + belief.rules.n_slots, lever, 1)]
            primer = Primer(active.left.pop(0), active.slot + belief.rules.n_slots)
            return [self._prime(flight, event, primer, 1)]
        others = len(active.members) - 1
        kin = "another one that came" if others == 1 else f"{others} others that came"
        reason = f"shares {active.head.length:,} tokens with {kin} at once: evaluated once, {active.done} in cache"
        return self._send_forked(active, flight, event.at, Action.FORKED, reason)

    def _send_forked(self, active: fork.Fork, carrier: Flight, at: float, action: Action, reason: str) -> list[Command]:
        """All members of a fork leave together, as they came."""
        self._fork = None
        commands: list[Command] = []
        others = [self._waiting.pop(key).flight for key in sorted(active.members) if key in self._waiting]
        for flight in [carrier, *others]:
            predicted, alone = self._predictions(flight)
            similarity = self._history.best_similarity(flight.ask.vector, flight.ask.semantic)
            flight.decision = Decision(action, None, None, predicted, alone, similarity, reason)
            self._release(flight, at)
            commands.append(Send(flight.key, flight.decision))
        return commands

    def holdings(self) -> tuple[Holding, ...]:
        """What slots and RAM entries are believed to hold now."""
        return () if self.belief is None else self._described(self._places(self.belief), None)

    def _places(self, belief: Belief) -> Sequence[tuple[int | None, Held, bool]]:
        """Slots and RAM entries (None) that hold something, what that is, and whether they are busy."""
        slots = [(number, slot.held, slot.key is not None) for number, slot in enumerate(belief.base.slots)]
        held: list[tuple[int | None, Held, bool]] = [(n, one, busy) for n, one, busy in slots if one is not None]
        held += [(None, one, False) for one in belief.base.ram]
        return held

    def _described(self, places: Sequence[tuple[int | None, Held, bool]], prompt: Held | None) -> tuple[Holding, ...]:
        """These in numbers, with how much of each `prompt` starts with. Not for a request that waits: with many RAM
        entries it takes a millisecond."""
        shares = [0] * len(places)
        if prompt is not None:
            shares = self._contents.likely([one for _, one, _ in places], [prompt])[0].tolist()
        names = {one.held.place: one.name for one in self._conversations.recent.values()}
        return tuple(
            Holding(number, one.length, shared, busy, names.get(one.place))
            for (number, one, busy), shared in zip(places, shares, strict=True)
        )

    def spare(self, tokens: Tokens, reply: int, lora: str = "") -> int | None:
        """A slot on which `tokens` could be answered from scratch, with `reply` tokens, and no one would lose a token.

        None where there is none, while anything runs, and where that is not known for sure. Requests of toki's own that
        arrive with a negative key are followed like any other, but not remembered.
        """
        belief = self.belief
        if belief is None or not belief.trusted or self._flights or self._waiting or not belief.base.known:
            return None
        place, shared = self._contents.nearest(tokens, lora)  # nothing is added: what is asked here stands in no log
        if place is None or shared < len(tokens):
            return None
        prompt = self._contents.hold(place, len(tokens), len(tokens))
        before = belief.base.holds()
        for number in reversed(range(belief.rules.n_slots)):
            trial = belief.base.copy()
            if trial.launch(Wish(CHECK, prompt, number, cache_prompt=False)) is None:
                continue
            trial.finish(CHECK, reply)
            trial.correct(number, None)  # what it leaves behind is no one's
            if self._covered(before, trial.holds()):
                return number
        return None

    def _covered(self, before: Sequence[Held], after: Sequence[Held]) -> bool:
        """Whether all that was held is still the beginning of something that is."""
        if not before or not after:
            return not before
        shared = self._contents.likely(after, before)
        return all(one.place != UNKNOWN and row.max() >= one.length for one, row in zip(before, shared, strict=True))

    # --- keeping up -------------------------------------------------------------------------------

    def _know(self, flight: Flight) -> None:
        """The tokens of a request are known, or known to be unknowable."""
        ask = flight.ask
        flight.read = True
        if ask.tokens is None:
            return
        if len(self._contents) >= COLLECT:
            self._collect()
        place = self._contents.add(ask.tokens, ask.lora, ask.images)
        flight.prompt = self._contents.hold(place, len(ask.tokens), len(ask.tokens))
        if flight.key < 0:  # toki's own: it continues nothing
            return
        conversation = self._conversations.note(flight.key, flight.prompt)
        flight.thread, flight.conversation = conversation.key, conversation.name

    def _wish(self, flight: Flight, steered: bool = True) -> Wish:
        ask = flight.ask
        assert flight.prompt is not None
        pinned = self._client_slot(ask)
        if pinned is None and steered:
            pinned = flight.decision.id_slot
        return Wish(
            flight.key, flight.prompt, pinned, ask.kind, ask.cache_prompt, ask.children, user_starts=ask.user_starts
        )

    def _place(self, flight: Flight) -> None:
        """A launch was seen: it goes to the beliefs, behind what was surely launched before it.

        A plain answer's headers come only at its end, so plain requests that were released earlier are taken to have
        launched in that order; a stream of which no headers were seen has not launched.
        """
        if flight.placed or flight.trial is not None:
            return
        flight.seen = self._now
        for other in self._flights.values():
            if other is flight or not (other.placed or other.ask.stream or other.trial is not None):
                other.placed = True
                self._steps.append(Step(other))
            if other is flight:
                return

    def _apply(self, at: float) -> list[Command]:
        """Apply what is due to the beliefs; stop before a request whose tokens are still being read."""
        commands: list[Command] = []
        while self._steps and self._steps[0].flight.read:
            step = self._steps.popleft()
            if step.end is None:
                self._launch(step.flight)
            else:
                commands += self._settle(step.flight, step.end, at)
        return commands

    def _launch(self, flight: Flight) -> None:
        flight.launched = True
        self._launches += flight.slots
        if self._prelude is not None:
            self._prelude = [*self._prelude[-MOST_PRELUDE:], (flight, None)]
            return
        if flight.prompt is None:
            self._launch_unknown(flight)
            return
        if not flight.before and self.belief is not None:  # it was sent unread
            flight.before = self._places(self.belief)
        for belief in self._beliefs:
            unsteered = self._wish(flight, steered=False) if flight.key >= 0 else None
            step = Launched(flight.key, self._wish(flight), unsteered)
            belief.timeline.take(step, flight.released, flight.seen, _launched_at(flight))
        if self.belief is not None:
            flight.slot = self.belief.base.running(flight.key)

    def _launch_unknown(self, flight: Flight) -> None:
        """A request of unknown tokens runs. Where its slot is known only that one is lost, and for all but /infill what
        the RAM cache holds, since the server may have turned to it."""
        ask, measured = flight.ask, flight.measured
        slots = (self._client_slot(ask), flight.decision.id_slot, measured.slot)
        number = next((slot for slot in slots if slot is not None), None)
        if number is None and self.belief is not None and self.belief.rules.n_slots == 1:
            number = 0
        if number is None or flight.slots > 1:
            self._lose_track()
            return
        place, known = UNKNOWN, 0
        if ask.head is not None:
            place, known = self._contents.add(ask.head, ask.lora), len(ask.head)
        prompt = self._contents.hold(place, known, max(measured.prompt_tokens or 1, known + 1))
        wish = Wish(flight.key, prompt, number, ask.kind, ask.cache_prompt)
        for belief in self._beliefs:
            belief.timeline.take(Launched(flight.key, wish, wish), flight.released, flight.seen)
            if ask.kind is Kind.COMPLETION:
                belief.timeline.lose_ram()

    def _settle(self, flight: Flight, end: Answered | Gone, at: float) -> list[Command]:
        """A request ended: score the predictions, move the beliefs on, record."""
        measured = end.measured
        surprised = False
        if isinstance(end, Gone) and end.sent:
            # The server notices that a client left only later: until a look shows it, the slot counts as busy.
            flight.left = at
            flight.shown = end.shown
            flight.lingers = self._lingers(flight)
            surprised = True
        else:
            if self._flights.get(flight.key) is flight:  # a further primer of the same request has the same key
                del self._flights[flight.key]
            if isinstance(end, Answered) and flight.launched:
                if self._prelude is not None:
                    self._prelude.append((flight, end))
                self._foretell(flight)
                surprised = self._score(flight, measured)
                self._finish(flight, measured)
            elif isinstance(end, Answered) and flight.prompt is not None:
                surprised = self._refused(flight, flight.prompt)
        commands: list[Command] = [self._record(flight, measured)] if flight.key >= 0 else []
        if surprised or self._undecided():
            commands.append(Look())
        return commands

    def _foretell(self, flight: Flight) -> None:
        """What is predicted of a request, before its own figures are looked at. For one that left as it came that is
        what the beliefs say of its launch, at which more may be known of what ran before than at its release."""
        belief = self.belief
        if belief is None:
            return
        launch, alone = belief.base.launches.get(flight.key), belief.alone.launches.get(flight.key)
        if launch is not None and flight.decision.action is Action.PASSED:
            flight.decision = replace(flight.decision, predicted=launch.reuse)
        if alone is not None:
            flight.decision = replace(flight.decision, alone=alone.reuse if alone.sure else None)

    def _lingers(self, flight: Flight) -> float:
        """Seconds for which the server may go on with a request whose client left."""
        if not flight.ask.stream:
            return LINGER
        if flight.shown:
            return TOKEN
        launch = self.belief.base.launches.get(flight.key) if self.belief is not None else None
        if launch is None or flight.prompt is None:
            return CANCELLED
        # Its prefill ends, and with the first token the server sees that nobody listens; or it is cancelled before.
        prefill = (flight.prompt.length - launch.reuse.likely) * self._prices.evaluate / 1000
        flight.quick = prefill < CANCELLED / 2
        return prefill if flight.quick else min(LINGER, prefill + CANCELLED)

    def _score(self, flight: Flight, measured: Measured) -> bool:
        """Compare each belief's prediction with the server's figure; whether the leading one was wrong."""
        leader = self.belief
        if leader is None or measured.reused is None or flight.prompt is None:
            return flight.prompt is None
        if not flight.prompt.length:
            return False  # a probe proves nothing of what is reused
        self._ended_unseen(flight, measured.reused)
        surprised = False
        latest = (flight.ended or self._now) - measured.took
        likely = sorted(self._beliefs, key=lambda belief: belief.errors)[:LIKELY]
        for belief in self._beliefs:
            belief.timeline.launched_by(flight.key, latest)
            right = belief.judge(flight.key, measured.reused, flight.overlapped, measured.slot, belief in likely)
            if belief is leader and right is not None:
                surprised = not right
                self._actions.judge(flight.decision.action, right)
        self._learn_speed(measured)
        alone = flight.decision.alone
        if flight.key < 0:
            if flight.decision.action is not Action.PASSED:  # a check of an answer steers nothing
                self._account.spend(flight.prompt.length - measured.reused)
        elif alone is not None:
            self._account.settle(flight.prompt.length, alone.likely, measured.reused)
        return surprised

    def _ended_unseen(self, flight: Flight, reused: int) -> None:
        """A request reused what only one whose client had left can have left behind: that one had ended before."""
        leader = self.belief
        launch = leader.base.launches.get(flight.key) if leader is not None else None
        if leader is None or launch is None or launch.reuse.low <= reused <= launch.reuse.high:
            return
        for other in [one for one in self._flights.values() if one.left is not None and one.prompt is not None]:
            end = Cancelled(other.key, *self._kept(other))
            if not leader.timeline.ended_before(end, flight.key, reused):
                continue
            del self._flights[other.key]
            for belief in self._beliefs:
                if belief is not leader and not belief.timeline.ended_before(end, flight.key, reused):
                    belief.timeline.take(end)
            return

    def _learn_speed(self, measured: Measured) -> None:
        if measured.prompt_ms is not None and measured.evaluated is not None and measured.evaluated >= 64:
            self._prices = self._prices.after(measured.prompt_ms / measured.evaluated)

    def _finish(self, flight: Flight, measured: Measured) -> None:
        prompt = flight.prompt
        reply = measured.reply_tokens
        if reply is None:  # n > 1 hides it: it may be as long as the request allows
            reply = flight.ask.max_tokens or 1
        ended = flight.ended or self._now
        took = measured.took or inf
        soonest = flight.released + measured.took
        step = Finished(flight.key, reply, shifted=measured.truncated)
        for belief in self._beliefs:
            belief.timeline.take(step, soonest, ended, min(_launched_at(flight) + took, ended))
        if flight.misread:
            self._lose_track()
        if prompt is None or measured.truncated:
            return
        held = self._contents.hold(prompt.place, prompt.certain, prompt.length + max(reply - 1, 0))
        self._conversations.replace_held(prompt, held)
        if held.length > prompt.length and not flight.ask.children:
            self._replies[flight.key] = (prompt, held)
            if len(self._replies) > REPLIES:
                del self._replies[next(iter(self._replies))]

    def _refused(self, flight: Flight, prompt: Held) -> bool:
        """An error came instead of an answer. A prompt too long for a slot was launched all the same."""
        for belief in self._beliefs:
            if prompt.length >= belief.rules.n_ctx:
                step = Refused(flight.key, self._wish(flight), self._wish(flight, steered=False))
                belief.timeline.take(step, flight.released, self._now, _launched_at(flight))
        return True

    def _cut_off(self, flight: Flight, least: int, most: int) -> None:
        """The server is done with a request whose client left; its slot keeps `least` to `most` tokens."""
        self._flights.pop(flight.key, None)
        for belief in self._beliefs:
            left = flight.left or self._now
            noticed = min(left if flight.shown else left + flight.lingers, self._now)
            belief.timeline.take(Cancelled(flight.key, least, most), left, self._now + CANCELLED, noticed)
        if flight.misread:
            self._lose_track()

    def _lose_track(self) -> None:
        """A request of unknown tokens runs: any idle slot, and the RAM cache, may hold something else now."""
        for belief in self._beliefs:
            belief.timeline.lose_ram()
            for shadow in (belief.base, belief.alone):
                for number, slot in enumerate(shadow.slots):
                    if slot.idle:
                        length = slot.held.length if slot.held else 1
                        shadow.correct(number, self._contents.hold(UNKNOWN, 0, length))

    def _undecided(self) -> bool:
        """Whether hypotheses that did equally well think different things of the slots, so that a look tells."""
        leader = self.belief
        if leader is None:
            return False
        lengths = leader.lengths()
        return any(b.errors < leader.errors + 1 and b.lengths() != lengths for b in self._beliefs)

    def _record(self, flight: Flight, measured: Measured) -> Record:
        parent, shared, similarity = None, 0, None
        ask, decision = flight.ask, flight.decision
        if flight.prompt is not None:
            parent, shared = self._history.parent(flight.key, flight.prompt)
            similarity = self._history.similarity(parent, ask.vector, ask.semantic)
            self._history.record(flight.key, flight.prompt, ask.vector, ask.semantic)
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
            believed=self._believed(flight),
            span=decision.predicted,
        )

    def _believed(self, flight: Flight) -> Believed | None:
        belief = self.belief
        if belief is None or flight.prompt is None:
            return None
        speed = self._prices.evaluate if self._prices.measured else None
        holdings = self._described(flight.before, flight.prompt)
        return Believed(belief.rules, holdings, flight.slot, flight.decision.options, speed)

    def _collect(self) -> None:
        """Forget token lists that nothing refers to any more, so that memory stays bounded."""
        live = {held.place for belief in self._beliefs for held in belief.timeline.holds()}
        live |= {conversation.held.place for conversation in self._conversations.recent.values()}
        live |= {flight.prompt.place for flight in self._flights.values() if flight.prompt}
        live |= {held.place for flight in self._flights.values() for _, held, _ in flight.before}
        if self._priming is not None and self._priming.flight.prompt is not None:
            live.add(self._priming.flight.prompt.place)
        live |= {one.flight.prompt.place for one in self._waiting.values() if one.flight.prompt}
        if self._fork is not None:
            live |= {held.place for held in (self._fork.head, *self._fork.left)}
        live |= {held.place for pair in self._replies.values() for held in pair}
        self._contents.keep(live | self._history.places())


def _launched_at(flight: Flight) -> float:
    """When a request was most likely launched. Short delays are those of the way there and of what hears of it: then it
    was between its release and the sign of it. Where it took longer the server was busy, and its headers came at once.
    """
    latest = min(flight.seen, inf if flight.ended is None else flight.ended - flight.measured.took)
    if latest == inf:
        return flight.released
    return latest if latest - flight.released > SHORT else (flight.released + latest) / 2


def _reason(passing: Option, chosen: Option) -> str:
    """Why an option was taken rather than passing the request on."""
    if chosen.action is Action.PASSED:
        return "the server's own choice is as good"
    now = passing.now - chosen.now
    later = passing.later - chosen.later
    return (
        f"slot {chosen.slot}: reuses {chosen.reuse.likely:,} tokens (alone {passing.reuse.likely:,}), "
        f"saves {now:,.0f} ms now and {later:,.0f} ms later"
    )


def outcome(reused: int | None, min_reuse: int) -> Outcome:
    """What a measured reuse amounts to; without a figure it is unknown, never a miss."""
    if reused is None:
        return Outcome.UNKNOWN
    if reused >= min_reuse:
        return Outcome.HIT
    return Outcome.SOFT_HIT if reused else Outcome.MISS
