"""Flights: the requests that were sent to the server, and the order in which it takes them up.

What is certain and what is under way are kept apart. A request that was released but whose launch was not seen is
*unplaced*: the order on the wire is not the order in which the server takes requests up, so while one is unplaced
nothing is decided that its landing could change. Launches are applied to the beliefs in the order in which they were
seen: a stream's headers come at its launch (b10434 and b11549: 5 to 7 ms, where the first chunk takes seconds).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field
from math import inf

from toki.engine.contents import Held
from toki.engine.events import Action
from toki.engine.events import Answered
from toki.engine.events import Arrived
from toki.engine.events import Ask
from toki.engine.events import Decision
from toki.engine.events import Gone
from toki.engine.events import Measured
from toki.engine.events import Span
from toki.engine.ram import Memory

SHORT = 0.25  # seconds between a release and the sign of a launch that are no sign of a busy server

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
    task: int | None = None  # the server's number for it, where a look behind that has shown its slot busy
    filled: int = 0  # tokens that its slot held by the latest such look
    released: float = 0.0  # when it left for the server
    began: float | None = None  # when its headers were seen
    seen: float = inf  # when its launch was seen
    ended: float | None = None  # when its last byte was seen
    before: Memory | None = None  # what the server held when it was decided, as believed
    slot: int | None = None  # where it was launched, as believed
    thread: int = 0  # the conversation that it continues, and the name that this is recorded under
    conversation: int = 0

    @property
    def slots(self) -> int:
        """Slots that it takes."""
        return self.ask.prompts + self.ask.children

    @property
    def names_slot(self) -> bool:
        """Whether toki chose its slot."""
        return self.decision.id_slot is not None or (self.key < 0 and self.ask.client_slot is not None)

    @property
    def served(self) -> bool:
        """Whether the server that is there now has it, or has answered it."""
        answered = self.ended is not None and self.measured.prompt_tokens is not None
        return self.key >= 0 and self.left is None and (self.ended is None or answered)

    @property
    def cached(self) -> bool:
        """Whether the server may use its cache for it."""
        return self.ask.cache_prompt and self.decision.cache_prompt

    @property
    def launched_at(self) -> float:
        """When it was most likely launched. Short delays are those of the way there and of what hears of it: then it
        was between its release and the sign of it. Where it took longer the server was busy, and its headers came at
        once."""
        latest = min(self.seen, inf if self.ended is None else self.ended - self.measured.took)
        if latest == inf:
            return self.released
        return latest if latest - self.released > SHORT else (self.released + latest) / 2


@dataclass(frozen=True, slots=True)
class Priming:
    """A request that waits for its primer, and how it is decided behind that; `left`: how many more it may have.

    `probes`: the lever that the primer only tries out.
    """

    flight: Flight
    event: Arrived
    primer: Flight
    left: int
    probes: Action | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """Something to apply to the beliefs, in its turn: a launch (`end` None) or an end."""

    flight: Flight
    end: Answered | Gone | None = None


class Flights:
    """What is under way, in the order of its release; requests whose clients left too, until the server is done."""

    def __init__(self) -> None:
        self._by_key: dict[int, Flight] = {}
        self._steps: deque[Step] = deque()
        self.latest: int | None = None  # the request that was released last
        self.ended: set[int] = set()  # those whose ends were seen since
        self.priming: Priming | None = None  # the request whose turn it stays while its primer runs

    def __len__(self) -> int:
        return len(self._by_key)

    def __iter__(self) -> Iterator[Flight]:
        return iter(list(self._by_key.values()))

    def __contains__(self, key: int | None) -> bool:
        return key in self._by_key

    def get(self, key: int) -> Flight | None:
        return self._by_key.get(key)

    @property
    def slots(self) -> int:
        """Slots that are taken."""
        return sum(flight.slots for flight in self)

    @property
    def wanted(self) -> int:
        """Slots that requests have, or wait for, whose ends were not heard of."""
        return sum(flight.slots for flight in self if flight.ended is None)

    @property
    def unsettled(self) -> bool:
        """Whether something was seen that the beliefs have yet to hear of."""
        return bool(self._steps)

    @property
    def running(self) -> bool:
        """Whether the server may still work on something; requests whose clients left count for as long."""
        left = any(isinstance(step.end, Gone) for step in self._steps)
        return left or self.priming is not None or any(one.ended is None or one.left is not None for one in self)

    @property
    def unplaced(self) -> bool:
        """Whether a request is on its way whose landing could change what is decided now."""
        return self.unsettled or self.priming is not None or any(not flight.placed for flight in self)

    @property
    def steered_at(self) -> float:
        """When the latest left that names a slot and is on its way still; -inf: none is."""
        return max((one.released for one in self if not one.placed and one.names_slot), default=-inf)

    def release(self, flight: Flight, at: float) -> None:
        """A request is about to leave."""
        for other in self:
            if other.ended is None:
                flight.overlapped = other.overlapped = True
        flight.released = at
        self.latest = flight.key
        self.ended.clear()
        self._by_key[flight.key] = flight

    def followed(self, priming: Priming) -> bool:
        """Whether something was released behind a primer: that may have taken its slot."""
        return self.latest != priming.primer.key

    def drop(self, flight: Flight) -> None:
        """The server is done with a request."""
        if self._by_key.get(flight.key) is flight:  # a further primer of the same request has the same key
            del self._by_key[flight.key]

    def place(self, flight: Flight, at: float) -> None:
        """A launch was seen: its turn comes behind what was surely launched before it.

        A plain answer's headers come only at its end, so plain requests that were released earlier are taken to have
        launched in that order; a stream of which no headers were seen has not launched.
        """
        if flight.placed or flight.trial is not None:
            return
        flight.seen = at
        for other in self:
            if other is flight or not (other.placed or other.ask.stream or other.trial is not None):
                other.placed = True
                self._steps.append(Step(other))
            if other is flight:
                return

    def told(self, flight: Flight) -> None:
        """A request that was sent unread is read now: whether its headers are the sign of its launch is known. Streams
        of which none were seen had been taken for plain requests."""
        if not flight.ask.stream or flight.ended is not None:
            return
        if flight.began is not None:
            self.place(flight, flight.began)
        elif flight.placed and not flight.launched:
            flight.placed = False
            self._steps = deque(step for step in self._steps if step.flight is not flight)

    def end(self, flight: Flight, end: Answered | Gone) -> None:
        """An end was seen; its turn comes behind all that was seen before."""
        self.ended.add(flight.key)
        self._steps.append(Step(flight, end))

    def due(self) -> Iterator[Step]:
        """What the beliefs are to hear of now, up to a request whose tokens are still being read."""
        while self._steps and self._steps[0].flight.read:
            yield self._steps.popleft()

    def holds(self) -> Iterator[Held]:
        """All contents that are spoken of here."""
        for flight in (*self, *((self.priming.flight,) if self.priming is not None else ())):
            if flight.prompt is not None:
                yield flight.prompt
            if flight.before is not None:
                yield from flight.before.holds()

    def forget_launches(self, but: Sequence[Flight]) -> None:
        """What was seen of launches says nothing of the server that is there now, `but` of those that it has launched;
        ends are still to be recorded."""
        self._steps = deque(step for step in self._steps if step.end is not None)
        self._steps.extendleft(Step(flight) for flight in reversed(but) if flight.placed)
        for flight in but:
            flight.launched = False
