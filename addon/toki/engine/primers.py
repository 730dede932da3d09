"""Primers: the requests that toki sends itself before one of a client, to prepare a slot or to try out a lever."""

from __future__ import annotations

from dataclasses import replace

from toki.engine import fork
from toki.engine.events import Action
from toki.engine.events import Answered
from toki.engine.events import Arrived
from toki.engine.events import Ask
from toki.engine.events import Gone
from toki.engine.events import Prime
from toki.engine.events import Primed
from toki.engine.flights import Flight
from toki.engine.flights import Flights
from toki.engine.flights import Priming
from toki.engine.knowledge import Knowledge
from toki.engine.looks import Looks
from toki.engine.policy import Primer
from toki.engine.tokens import Tokens

PATIENCE = 60.0  # seconds for which the answer to a primer is waited for that goes before one request


class Primers:
    """Those of one server."""

    def __init__(self, knowledge: Knowledge, flights: Flights, looks: Looks) -> None:
        self._knowledge = knowledge
        self._flights = flights
        self._looks = looks

    def send(
        self, flight: Flight, event: Arrived, primer: Primer, left: int, action: Action, probes: Action | None = None
    ) -> Prime:
        """Reserve a request's turn for the primer that goes before it, one of `left` that it may have."""
        tokens = self._knowledge.contents[primer.prompt.place].head(primer.prompt.length)
        ask = Ask("/completion", tokens=tokens, client_slot=primer.id_slot)
        own = Flight(-flight.key, ask, replace(flight.decision, action=action), primer.prompt, read=True)
        self._flights.release(own, event.at)
        self._looks.changed_at = event.at
        self._flights.priming = Priming(flight, event, own, left - 1, probes)
        patience = fork.PATIENCE if action is Action.FORKED else PATIENCE
        return Prime(flight.key, tokens, -1 if primer.id_slot is None else primer.id_slot, patience)

    def probe(self, flight: Flight, event: Arrived, id_slot: int, lever: Action, left: int, action: Action) -> Prime:
        """Try a lever before its first use with a prompt of no tokens: it is answered at once from the slot on which it
        lands, and that keeps what it holds (b10434 and b11549). Of an empty slot nothing has to be saved, either."""
        belief, contents = self._knowledge.belief, self._knowledge.contents
        if lever is Action.PINNED and belief is not None and not self._flights:
            slots = belief.base.slots
            id_slot = next((number for number in slots.idle() if slots[number].held is None), id_slot)
        nothing = contents.hold(contents.add(Tokens.of(())), 0, 0)
        return self.send(flight, event, Primer(nothing, id_slot), left + 1, action, lever)

    def done(self, event: Primed) -> Priming | None:
        """A primer has ended: the request that it was sent for; None where none waits for it."""
        priming = self._flights.priming
        if priming is None or priming.flight.key != event.key:
            return None
        self._flights.priming = None
        self._looks.changed_at = event.at
        primer, measured, levers = priming.primer, event.measured, self._knowledge.levers
        if priming.probes is not None:
            slot = self._knowledge.slot(primer.ask.client_slot)
            levers.prove(priming.probes, None if measured is None else measured.slot == slot)
        elif measured is None:
            levers.judge(primer.decision.action, right=False)
        if measured is not None:
            self._flights.place(primer, event.at)
            self._flights.end(primer, Answered(primer.key, event.at, 200, measured))
        else:
            self._flights.end(primer, Gone(primer.key, event.at, sent=priming.probes is None))
        return priming
