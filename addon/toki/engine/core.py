"""Engine: events in, commands out. Deciding and reserving are one call, so they are atomic.

The order of it all: what each event means for the requests that are held (`waiters`, `forks`, `primers`), for those
that are under way (`flights`), and for what is known of the server (`knowledge`, moved on by `course`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf

from toki.engine import waiting
from toki.engine.course import Course
from toki.engine.decider import Decider
from toki.engine.events import Action
from toki.engine.events import Answered
from toki.engine.events import Arrived
from toki.engine.events import Began
from toki.engine.events import Command
from toki.engine.events import Event
from toki.engine.events import Gone
from toki.engine.events import Holding
from toki.engine.events import Look
from toki.engine.events import Looked
from toki.engine.events import Mode
from toki.engine.events import Prime
from toki.engine.events import Primed
from toki.engine.events import Read
from toki.engine.events import Replied
from toki.engine.events import Restarted
from toki.engine.events import Send
from toki.engine.events import Unsteered
from toki.engine.flights import PASSED
from toki.engine.flights import Flight
from toki.engine.flights import Flights
from toki.engine.forks import Forks
from toki.engine.isolation import kept_apart
from toki.engine.knowledge import Knowledge
from toki.engine.looks import Looks
from toki.engine.primers import Primers
from toki.engine.spare import spare
from toki.engine.tokens import Tokens
from toki.engine.trust import Belief
from toki.engine.waiters import Waiter
from toki.engine.waiters import Waiters

MOST_PRIMERS = 2  # that go before one request
MOST_SPS = 0.5  # the highest `--slot-prompt-similarity` that a prompt surely passes which goes on
REFUSED = "the server refused it as it was steered"


class Engine:
    """All of toki's judgement about one server (and one of its models)."""

    def __init__(self, mode: Mode, min_reuse: int) -> None:
        self._mode = mode
        self._min_reuse = min_reuse
        self._flights = Flights()
        self._waiters = Waiters(self._flights)
        self._start_over()

    def _start_over(self) -> None:
        """Nothing is known of the server."""
        self._knowledge = Knowledge()
        self._looks = Looks()
        self._course = Course(self._knowledge, self._flights, self._looks, self._min_reuse)
        self._decider = Decider(self._mode, self._min_reuse, self._knowledge, self._flights, self._looks)
        self._primers = Primers(self._knowledge, self._flights, self._looks)
        self._forks = Forks(self._mode, self._knowledge, self._flights, self._looks, self._waiters, self._primers)

    @property
    def wants_tokens(self) -> bool:
        """Whether a decision can depend on tokens: then requests are held until these are known."""
        return self._mode.steers

    def crowded(self, held: int) -> bool:
        """Whether so many requests are under way, or held, that none finds an idle slot to be steered to: it is not
        worth holding them."""
        return self._course.crowded(held)

    @property
    def unplaced(self) -> bool:
        """Whether a request is on its way whose landing could change what is decided now."""
        return self._flights.unplaced

    @property
    def endangered_at(self) -> float:
        """When the latest steered request left that is on its way still, where any that overtakes it could take its
        slot, and a pin to a busy slot damages the answer that runs there; -inf: none is."""
        risky = self.belief is not None and self.belief.rules.risky_pins
        return self._flights.steered_at if risky else -inf

    def lets_go_on(self, key: int, at: float) -> bool:
        """Whether a request that goes on where the request `key` ended needs no decision: its slot holds all of that
        still, the server chooses by itself what a prompt shares most with, and nothing is dropped for it; or the server
        finds it in its RAM cache, and by the time of a decision might not."""
        belief = self.belief
        if self._mode is not Mode.AUTO or belief is None or not 0 < belief.rules.sps <= MOST_SPS:
            return False
        if belief.rules.clears:
            return self._found_anyway(key, at)
        if self._waiters or not belief.base.roomy:
            return False
        if key == self._flights.latest and not self._flights.running:  # whether it is read or not
            return True
        return not self._flights.unplaced and self._course.stands(key)

    def _found_anyway(self, key: int, at: float) -> bool:
        """Whether a server whose launches empty the idle slots into its RAM cache finds what the request `key` left,
        whatever is on its way to it.

        Where none was released since, that is in its slot, or a launch has put it into RAM. Then it is found as well if
        no other slot draws the request that goes on: one that holds what ended since, or is about to end. (Where all
        that runs goes on for longer than a decision takes, there is time for one.)
        """
        flights, pace = self._flights, self._knowledge.pace
        if key in flights.ended:
            return True
        if flights.ended or flights.priming is not None or flights.latest not in flights or not pace.answers:
            return False
        running = [one for one in flights if one.ended is None]
        if any(one.left is not None for one in running):  # the server ends it as soon as it notices
            return False
        soonest = min((waiting.left(self._knowledge.running(one, at), pace) for one in running), default=0.0)
        # Without its own entry the server takes another one's, and drops most of that.
        return waiting.LAUNCH < soonest <= waiting.HELD and self._course.remains(key)

    @property
    def should_wait(self) -> bool:
        """Whether a moment's patience would let it decide what can't be decided now. Where requests have all slots
        there is nothing to decide: it takes an idle one to steer to."""
        belief = self.belief
        if not self.wants_tokens or belief is None or not belief.trusted or not self.unplaced:
            return False
        return self._flights.wanted < belief.rules.n_slots

    @property
    def belief(self) -> Belief | None:
        """The hypothesis about the server that was wrong least; the likeliest one where several were."""
        return self._knowledge.belief

    @property
    def beliefs(self) -> Sequence[Belief]:
        """The hypotheses about the server that are followed side by side; none before it is known."""
        return self._knowledge.beliefs

    def holdings(self) -> tuple[Holding, ...]:
        """What slots and RAM entries are believed to hold now."""
        return () if self.belief is None else self._knowledge.describe(self.belief.base.memory, None)

    def spare(self, tokens: Tokens, reply: int, lora: str = "") -> int | None:
        """A slot on which `tokens` could be answered from scratch, with `reply` tokens, and no one would lose a token.

        None where there is none, while anything runs, and where that is not known for sure: hypotheses that did
        equally well must agree. A RAM cache whose size nobody told has room, until it shows otherwise. Requests of
        toki's own that arrive with a negative key are followed like any other, but not remembered.
        """
        belief = self.belief
        if belief is None or not belief.trusted or self._flights or self._waiters or not belief.base.known:
            return None
        return spare([one.base for one in self._knowledge.equals], tokens, reply, lora)

    def handle(self, event: Event) -> list[Command]:
        """Take in what happened; return what to do, in order."""
        look = _look(event)
        if look is not None:  # what it shows is better than what would be assumed
            self._course.let_go(look)
        self._course.give_up(event.at)
        late = self._course.apply(event.at)
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
                self._course.reply(event)
                return []
            case Looked():
                return self._looked(event)
            case Restarted():
                return self._restarted(event)

    # --- the server -------------------------------------------------------------------------------

    def _restarted(self, event: Restarted) -> list[Command]:
        taken = 0
        if self._course.met:  # what was sent to the server before says nothing of this one
            self._start_over()
            for waiter in self._waiters:
                waiter.flight.prompt = None
            if self._flights.priming is not None:
                self._flights.priming.flight.prompt = None
            served = [flight for flight in self._flights if flight.served]
            taken = sum(flight.slots for flight in served)
            first = event.used_by(taken) and not event.used_by(0)  # nothing else was there before these
            self._flights.forget_launches(but=served if first else ())
            for flight in self._flights:
                self._carry_over(flight, first and flight.served)
        freed = self._waiters.free()
        self._course.meet(event, taken)
        return [*freed, *self._course.apply(event.at)]

    def _carry_over(self, flight: Flight, first: bool) -> None:
        """A request that is under way when another server is met: if it gets an answer, it is from that one. `first`:
        that is sure, since it is all that the server has seen."""
        flight.prompt = None
        flight.decision = replace(flight.decision, predicted=None, alone=None)
        if first:
            if flight.read:
                self._know(flight)
        elif flight.placed or flight.ended is not None or flight.key < 0:
            # What was seen of the slots may be from before its launch, or from after it.
            flight.misread = True
            flight.read = flight.placed = flight.launched = True
        elif flight.ask.tokens is not None:
            self._know(flight)

    def _looked(self, event: Looked) -> list[Command]:
        """What a look shows; another one is wanted while the server goes on with requests whose clients left."""
        self._compare(event)
        return [Look()] if any(flight.left is not None for flight in self._flights) else []

    def _compare(self, event: Looked) -> None:
        """Compare a look with the beliefs, where nothing has changed since it was asked for."""
        self._course.let_go(event)
        if not self._looks.fresh(event.asked_at) or self._flights.unsettled:
            return
        if any(flight.trial is not None for flight in self._flights):
            return
        taken = self._flights.slots
        busy = sum(view.busy for view in event.slots)
        if busy < taken:  # something has ended, or has not yet begun, of which nothing was heard so far
            if busy == sum(flight.slots for flight in self._flights if flight.launched):
                for belief in self._knowledge.beliefs:
                    belief.rearrange(event.slots)
            return
        for flight in self._flights:
            self._flights.place(flight, event.at)
        self._course.apply(event.at)
        if not all(flight.launched for flight in self._flights):
            return  # it shows a launch of which the beliefs hear only once the request is read
        if self._looks.note(event, taken):
            self._knowledge.compare(event.slots)

    # --- requests that are held -------------------------------------------------------------------

    def _arrived(self, event: Arrived) -> list[Command]:
        if event.key in self._flights:
            raise ValueError(f"request {event.key} has arrived before")
        look = _look(event)
        commands = [] if look is None else self._looked(look)
        waiter = self._waiters.pop(event.key)
        flight = waiter.flight if waiter is not None else Flight(event.key, event.ask)
        flight.ask = event.ask
        if waiter is None and event.ask.tokens is not None:
            self._know(flight)
        forked = self._forks.members
        held = self._hold(flight, event, waiter)
        if held:
            return [*commands, *held]
        over = bool(forked) and not self._forks.members  # its members wait for nothing any more
        freed = self._waiters.free(self._forks.members) if over or not event.company else []
        return [*commands, *freed, self._go_on(flight, event, MOST_PRIMERS)]

    def _hold(self, flight: Flight, event: Arrived, waiter: Waiter | None) -> list[Command]:
        """Let a request wait for others, those that come with it or one that runs; nothing: it goes on."""
        held = self._forks.hold(flight, event, waiter)
        return self._waiters.wait_behind(self._knowledge, flight, event, waiter) if held is None else held

    def _go_on(self, flight: Flight, event: Arrived, left: int) -> Prime | Send:
        """Decide on a request, which may still have `left` primers: what is sent next, it or what goes before it."""
        flight.decision = PASSED  # what was decided before is not part of the question
        flight.decision, primer = self._decider.decide(flight, event, left)
        id_slot = flight.decision.id_slot if primer is None else primer.id_slot
        if id_slot is not None and self.belief is not None:
            lever = self._knowledge.levers.untried(id_slot, self.belief.rules.n_slots)
            if lever is not None:
                return self._primers.probe(flight, event, id_slot, lever, left, Action.PRIMED)
        if primer is not None:
            return self._primers.send(flight, event, primer, left, Action.PRIMED)
        if flight.helped:
            flight.decision = replace(flight.decision, action=Action.PRIMED)
        elif flight.waited:
            action = Action.WAITED if flight.decision.action is Action.PASSED else flight.decision.action
            reason = f"{flight.waited}; {flight.decision.reason}"
            flight.decision = replace(flight.decision, action=action, reason=reason)
        self._flights.release(flight, event.at)
        self._looks.changed_at = event.at
        return Send(flight.key, flight.decision)

    def _primed(self, event: Primed) -> list[Command]:
        """The primer is done: what is best for the request is decided anew."""
        priming = self._primers.done(event)
        if priming is None:
            return []
        commands = self._course.apply(event.at)
        flight, left = priming.flight, priming.left
        if self._forks.carries(flight):
            return [*commands, *self._forks.primed(priming, event)]
        flight.trial = None
        followed = self._flights.followed(priming)
        slot = None if followed else self._knowledge.slot(priming.primer.ask.client_slot)
        if priming.probes is not None:
            flight.primed = slot if self._flights else None
        else:
            flight.primed, flight.helped = slot, True
            left = left if event.measured is not None else 0
        again = replace(priming.event, at=event.at, slots=None, looked_at=None)
        return [*commands, self._go_on(flight, again, left)]

    # --- requests under way -----------------------------------------------------------------------

    def _read(self, event: Read) -> list[Command]:
        flight = self._flights.get(event.key)
        if flight is None or flight.read:
            return []
        flight.ask = event.ask
        self._know(flight)
        self._check_length(flight)
        self._flights.told(flight)
        return self._course.apply(event.at)

    def _began(self, event: Began) -> list[Command]:
        flight = self._flights.get(event.key)
        if flight is None or event.status != 200:
            return []
        flight.began = event.at
        if flight.ask.stream or not flight.read:
            self._looks.changed_at = event.at
        if not flight.ask.stream:
            return []
        self._flights.place(flight, event.at)
        return self._course.apply(event.at)

    def _unsteered(self, event: Unsteered) -> list[Command]:
        """A request goes as it came after all, or, where owners are kept apart, without the cache; its lever is dropped
        if the server takes it then."""
        flight = self._flights.get(event.key)
        if flight is None or flight.ended is not None or not flight.decision.steers:
            return []
        refused = flight.refused = flight.decision
        flight.trial = None
        flight.decision = replace(refused, action=Action.PASSED, slot=None, id_slot=None, cache_prompt=True)
        predicted = alone = None
        if flight.prompt is not None:
            predicted, alone = self._knowledge.predict(flight, self._flights)
        reason = f"{REFUSED}, so it went as it came"
        flight.decision = passed = replace(flight.decision, predicted=predicted, alone=alone, reason=reason)
        if refused.cache_prompt:  # else that may be what the server does not take
            apart = kept_apart(flight, passed, self._knowledge, self._flights)
            if apart is not passed:
                flight.decision = replace(apart, reason=f"{REFUSED}, so it went {apart.reason}")
        self._looks.changed_at = event.at
        return [Send(flight.key, flight.decision)]

    def _ended(self, event: Answered | Gone) -> list[Command]:
        flight = self._flights.get(event.key)
        if flight is None or flight.left is not None or flight.ended is not None:
            self._waiters.pop(event.key)
            return []
        self._looks.changed_at = event.at
        flight.ended = event.at
        flight.measured = event.measured
        self._check_length(flight)
        if not self._knowledge.levers.conclude_trial(flight):  # it may have landed anywhere
            self._knowledge.unread(flight)
        if isinstance(event, Answered):
            self._knowledge.levers.conclude_refusal(flight, event.status)
        if event.sent if isinstance(event, Gone) else event.status == 200:
            self._flights.place(flight, event.at)
        self._flights.end(flight, event)
        if isinstance(event, Answered) and event.status == 200:
            self._knowledge.learn_pace(flight, event.at)
        freed = self._waiters.ended(event.key)
        return [*self._course.apply(event.at), *freed]

    def _know(self, flight: Flight) -> None:
        """The tokens of a request are known, or known to be unknowable."""
        if self._knowledge.cluttered:
            rooms = (self._flights, self._waiters, self._forks, self._course)
            self._knowledge.collect(held for room in rooms for held in room.holds())
        self._knowledge.read(flight)

    def _check_length(self, flight: Flight) -> None:
        """A prompt of which the server says another length was read wrongly."""
        if flight.prompt is not None and flight.measured.prompt_tokens not in (None, flight.prompt.length):
            self._knowledge.unread(flight)
            flight.misread = flight.launched


def _look(event: Event) -> Looked | None:
    """The look that an event brings."""
    match event:
        case Looked():
            return event
        case Arrived(slots=slots, looked_at=asked_at) if slots is not None and asked_at is not None:
            return Looked(event.at, asked_at, slots)
        case _:
            return None
