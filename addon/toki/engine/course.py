"""Course: moves the beliefs on by launches and ends, each in its turn, scores them, and records what has ended."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Iterator
from dataclasses import replace
from math import inf

from toki.engine import abandoned
from toki.engine.contents import UNKNOWN
from toki.engine.contents import Held
from toki.engine.events import Action
from toki.engine.events import Answered
from toki.engine.events import Command
from toki.engine.events import Gone
from toki.engine.events import Kind
from toki.engine.events import Look
from toki.engine.events import Looked
from toki.engine.events import Measured
from toki.engine.events import Replied
from toki.engine.events import Restarted
from toki.engine.flights import Flight
from toki.engine.flights import Flights
from toki.engine.knowledge import Knowledge
from toki.engine.looks import Looks
from toki.engine.record import recorded
from toki.engine.shadow import Wish
from toki.engine.timeline import Cancelled
from toki.engine.timeline import Finished
from toki.engine.timeline import Launched
from toki.engine.timeline import Refused

MOST_PRELUDE = 64  # launches before the server is known that are remembered
REPLIES = 64  # ended requests whose replies are waited for
UNREAD = 2.0  # seconds after its end from which a request that was not read until then never will be
FEW = 8  # requests that are no crowd, however few slots there are


class Course:
    """The course of things on one server."""

    def __init__(self, knowledge: Knowledge, flights: Flights, looks: Looks, min_reuse: int) -> None:
        self._knowledge = knowledge
        self._flights = flights
        self._looks = looks
        self._min_reuse = min_reuse
        # Launches and answers from before the server was known, of which its beliefs have yet to hear.
        self._prelude: list[tuple[Flight, Answered | None]] | None = []
        self._replies: dict[int, tuple[Held, Held]] = {}  # ended request -> its prompt, and what its slot then held
        self._left: dict[int, Held] = {}  # ended request -> what its slot then held, as far as is known now

    @property
    def met(self) -> bool:
        """Whether the server was ever known."""
        return self._prelude is None

    def meet(self, event: Restarted, taken: int) -> None:
        """The server is known: what ran on it since its start happened to it. `taken`: slots that its first requests
        take of which it is yet to hear."""
        prelude, self._prelude = self._prelude or [], None
        ours = sum(flight.slots for flight, end in prelude if end is None) + taken
        self._knowledge.meet(event, () if event.used_by(ours) else event.slots)
        for flight, end in prelude:
            if end is None:
                self._launch(flight)
            else:
                self._finish(flight, end.measured, event.at)

    def stands(self, key: int) -> bool:
        """Whether an idle slot holds all that an ended request left there."""
        belief = self._knowledge.belief
        return belief is not None and self._among(key, (slot.held for slot in belief.base.slots if slot.idle))

    def remains(self, key: int) -> bool:
        """Whether an idle slot or the RAM cache holds all that an ended request left."""
        belief = self._knowledge.belief
        return self.stands(key) or (belief is not None and self._among(key, belief.base.ram))

    def _among(self, key: int, contents: Iterable[Held | None]) -> bool:
        """Whether all that an ended request left is among some contents."""
        left = self._left.get(key)
        if left is None:
            return False
        return any(held is not None and (held.place, held.length) == (left.place, left.length) for held in contents)

    def apply(self, at: float) -> list[Command]:
        """Tell the beliefs what is due."""
        commands: list[Command] = []
        for step in self._flights.due():
            if step.end is None:
                self._launch(step.flight)
            else:
                commands += self._settle(step.flight, step.end, at)
        return commands

    def reply(self, event: Replied) -> None:
        """The reply to a request that has ended stands in its slot."""
        known = self._replies.pop(event.key, None)
        if known is None:
            return
        prompt, old = known
        contents = self._knowledge.contents
        whole = contents[prompt.place].extended(event.ids[: old.length - prompt.length])
        place = contents.add_like(prompt.place, whole, contents.images(prompt.place))
        for belief in self._knowledge.beliefs:
            belief.timeline.reveal(event.key, old, place)
        now = contents.hold(place, old.certain, old.length)
        self._knowledge.conversations.replace_held(old, now)
        self._left[event.key] = now
        self._knowledge.history.reveal(event.key, place, old.length)

    def let_go(self, event: Looked) -> None:
        """Requests whose clients left have ended once a look shows that their slots are idle, or have others."""
        views = {view.id: view for view in event.slots}
        leader = self._knowledge.belief
        for flight in self._flights:
            if flight.left is None or event.asked_at <= flight.left:
                continue
            launch = self._knowledge.launch(flight)
            view = views.get(launch.slot) if launch is not None else None
            if leader is not None and view is not None:
                if abandoned.goes_on(flight, view, event.at):
                    continue
                cleared = leader.rules.clears and self._looks.changed_at > flight.left
                tokens = abandoned.seen(flight, view, launch, cleared=cleared)
                if tokens is not None:
                    self._cut_off(flight, tokens, tokens, event.at)
                else:  # then it ended before the others were launched
                    since = [other.released for other in self._flights if other.released > flight.left]
                    self._cut_off(flight, *abandoned.kept(flight, launch), min([*since, event.at]))
            elif launch is None and not any(view.busy for view in event.slots):
                self._cut_off(flight, 0, 0, event.at)

    def give_up(self, at: float) -> None:
        """Requests whose clients left have ended by now, even if no look showed it; those that have ended and are not
        read by now never will be."""
        for flight in self._flights:
            if flight.left is not None and at >= flight.left + flight.lingers:
                self._cut_off(flight, *abandoned.kept(flight, self._knowledge.launch(flight)), at)
                self._looks.unconfirmed_since = at
        for flight in self._flights:
            if not flight.read and flight.ended is not None and at > flight.ended + UNREAD:
                flight.read = True

    def holds(self) -> Iterator[Held]:
        """All contents that are spoken of here."""
        for pair in self._replies.values():
            yield from pair

    def crowded(self, held: int = 0) -> bool:
        """Whether many requests are under way, or held as `held` of them are: more than the server has slots for."""
        belief = self._knowledge.belief
        return belief is not None and self._flights.wanted + held > max(FEW, belief.rules.n_slots)

    # --- launches ---------------------------------------------------------------------------------

    def _launch(self, flight: Flight) -> None:
        flight.launched = True
        self._looks.launched(flight.slots)
        if self._prelude is not None:
            self._prelude = [*self._prelude[-MOST_PRELUDE:], (flight, None)]
            return
        if flight.prompt is None:
            self._launch_unknown(flight)
            return
        knowledge = self._knowledge
        if flight.before is None and knowledge.belief is not None:  # it was sent unread
            flight.before = knowledge.belief.base.memory
        shares = knowledge.shares(flight.prompt)
        wish = replace(knowledge.wish(flight), shares=shares)
        unsteered = replace(knowledge.wish(flight, steered=False), shares=shares) if flight.key >= 0 else None
        step, at = Launched(flight.key, wish, unsteered), flight.launched_at
        for belief in knowledge.beliefs:
            belief.timeline.take(step, flight.released, flight.seen, at)
        if knowledge.belief is not None:
            flight.slot = knowledge.belief.base.running(flight.key)

    def _launch_unknown(self, flight: Flight) -> None:
        """A request of unknown tokens runs. Where its slot is known only that one is lost, and for all but /infill what
        the RAM cache holds, since the server may have turned to it."""
        ask, measured, knowledge = flight.ask, flight.measured, self._knowledge
        slots = (knowledge.levers.client_slot(ask), flight.decision.id_slot, measured.slot)
        number = next((slot for slot in slots if slot is not None), None)
        if number is None and knowledge.belief is not None and knowledge.belief.rules.n_slots == 1:
            number = 0
        if number is None or flight.slots > 1:
            knowledge.lose_track()
            return
        place, known = UNKNOWN, 0
        if ask.head is not None:
            place, known = knowledge.contents.add(ask.head, ask.lora, owner=ask.owner), len(ask.head)
        prompt = knowledge.contents.hold(place, known, max(measured.prompt_tokens or 1, known + 1))
        wish = Wish(flight.key, prompt, number, ask.kind, flight.cached)
        for belief in knowledge.beliefs:
            belief.timeline.take(Launched(flight.key, wish, wish), flight.released, flight.seen)
            if ask.kind is Kind.COMPLETION:
                belief.timeline.lose_ram()

    # --- ends -------------------------------------------------------------------------------------

    def _settle(self, flight: Flight, end: Answered | Gone, at: float) -> list[Command]:
        """A request ended: score the predictions, move the beliefs on, record."""
        measured, knowledge = end.measured, self._knowledge
        surprised = False
        if flight.launched and (isinstance(end, Answered) or end.sent):  # one that was cut off may have told its reuse
            self._foretell(flight)
            self._ended_unseen(flight, measured)
            surprised = knowledge.learn(flight, measured, at, crowded=self.crowded())
        if isinstance(end, Gone) and end.sent:
            abandoned.leave(flight, at, end.shown, knowledge.launch(flight), knowledge.prices)
            surprised = True
        elif isinstance(end, Gone) and flight.launched:  # it was taken to have launched, and never got there
            self._cut_off(flight, *abandoned.kept(flight, knowledge.launch(flight)), at)
        else:
            self._flights.drop(flight)
            if isinstance(end, Answered) and flight.launched:
                if self._prelude is not None:
                    self._prelude.append((flight, end))
                self._finish(flight, measured, at)
            elif isinstance(end, Answered) and flight.prompt is not None:
                self._refused(flight, flight.prompt, at)
                surprised = True
        commands: list[Command] = []
        if flight.key >= 0:
            commands.append(recorded(flight, measured, knowledge, self._min_reuse))
        if surprised or knowledge.undecided:
            commands.append(Look())
        return commands

    def _foretell(self, flight: Flight) -> None:
        """What is predicted of a request, before its own figures are looked at. For one that left as it came that is
        what the beliefs say of its launch, at which more may be known of what ran before than at its release."""
        belief = self._knowledge.belief
        if belief is None:
            return
        launch, alone = belief.base.launches.get(flight.key), belief.alone.launches.get(flight.key)
        if launch is not None and flight.decision.action is Action.PASSED:
            flight.decision = replace(flight.decision, predicted=launch.reuse)
        if alone is not None:
            flight.decision = replace(flight.decision, alone=alone.reuse if alone.sure else None)

    def _ended_unseen(self, flight: Flight, measured: Measured) -> None:
        """A request reused what only one whose client had left can have left behind: that one had ended before."""
        leader, launch, reused = self._knowledge.belief, self._knowledge.launch(flight), measured.reused
        if reused is None or flight.prompt is None or not flight.prompt.length:
            return
        if leader is None or launch is None or launch.reuse.low <= reused <= launch.reuse.high:
            return
        for other in self._flights:
            if other.left is None or other.prompt is None:
                continue
            end = Cancelled(other.key, *abandoned.kept(other, self._knowledge.launch(other)))
            if not leader.timeline.ended_before(end, flight.key, reused):
                continue
            self._flights.drop(other)
            for belief in self._knowledge.beliefs:
                if belief is not leader and not belief.timeline.ended_before(end, flight.key, reused):
                    belief.timeline.take(end)
            return

    def _finish(self, flight: Flight, measured: Measured, at: float) -> None:
        """An answer came to its end: its slot holds the prompt and the reply."""
        prompt, knowledge = flight.prompt, self._knowledge
        reply = measured.reply_tokens
        if reply is None:  # n > 1 hides it: it may be as long as the request allows
            reply = flight.ask.max_tokens or 1
        ended = flight.ended or at
        likely = min(flight.launched_at + (measured.took or inf), ended)
        soonest = flight.released + measured.took
        step = Finished(flight.key, reply, shifted=measured.truncated)
        for belief in knowledge.beliefs:
            belief.timeline.take(step, soonest, ended, likely)
        if flight.misread:
            knowledge.lose_track()
        if prompt is None or measured.truncated:
            return
        held = knowledge.contents.hold(prompt.place, prompt.certain, prompt.length + max(reply - 1, 0))
        knowledge.conversations.replace_held(prompt, held)
        if flight.key > 0:
            self._left[flight.key] = held
            if len(self._left) > REPLIES:
                del self._left[next(iter(self._left))]
        if held.length > prompt.length and not flight.ask.children:
            self._replies[flight.key] = (prompt, held)
            if len(self._replies) > REPLIES:
                del self._replies[next(iter(self._replies))]

    def _refused(self, flight: Flight, prompt: Held, at: float) -> None:
        """An error came instead of an answer. A prompt too long for a slot was launched all the same."""
        leader = self._knowledge.belief
        if leader is not None and prompt.length >= leader.rules.n_ctx:
            self._looks.launched(flight.slots)
        for belief in self._knowledge.beliefs:
            if prompt.length >= belief.rules.n_ctx:
                wishes = self._knowledge.wish(flight), self._knowledge.wish(flight, steered=False)
                belief.timeline.take(Refused(flight.key, *wishes), flight.released, at, flight.launched_at)

    def _cut_off(self, flight: Flight, least: int, most: int, at: float) -> None:
        """The server is done with a request whose client left; its slot keeps `least` to `most` tokens."""
        self._flights.drop(flight)
        for belief in self._knowledge.beliefs:
            left = flight.left or at
            noticed = min(left if flight.shown else left + flight.lingers, at)
            belief.timeline.take(Cancelled(flight.key, least, most), left, at + abandoned.CANCELLED, noticed)
        if flight.misread:
            self._knowledge.lose_track()
