"""Record: what the engine has to say of a request that has ended."""

from __future__ import annotations

from toki.engine.events import Believed
from toki.engine.events import Measured
from toki.engine.events import Outcome
from toki.engine.events import Record
from toki.engine.flights import Flight
from toki.engine.knowledge import Knowledge
from toki.engine.ram import EMPTY
from toki.engine.ram import Memory

MOST_ENTRIES = 16  # of the RAM cache that a record tells of


def recorded(flight: Flight, measured: Measured, knowledge: Knowledge, min_reuse: int) -> Record:
    """The record of a request, which is history from now on."""
    parent, shared, similarity = None, 0, None
    ask, decision, history = flight.ask, flight.decision, knowledge.history
    if flight.prompt is not None:
        parent, shared = history.parent(flight.key, flight.prompt)
        similarity = history.similarity(parent, ask.vector, ask.semantic)
        history.record(flight.key, flight.prompt, ask.vector, ask.semantic)
    return Record(
        key=flight.key,
        conversation=flight.conversation or flight.key,
        parent=parent,
        shared=shared,
        similarity=similarity,
        predicted=decision.predicted.likely if decision.predicted else None,
        alone=decision.alone.likely if decision.alone else None,
        outcome=outcome(measured.reused, min_reuse),
        slot=measured.slot,
        action=decision.action,
        reason=decision.reason,
        measured=measured,
        believed=_believed(flight, knowledge),
        span=decision.predicted,
    )


def outcome(reused: int | None, min_reuse: int) -> Outcome:
    """What a measured reuse amounts to; without a figure it is unknown, never a miss."""
    if reused is None:
        return Outcome.UNKNOWN
    if reused >= min_reuse:
        return Outcome.HIT
    return Outcome.SOFT_HIT if reused else Outcome.MISS


def _believed(flight: Flight, knowledge: Knowledge) -> Believed | None:
    belief = knowledge.belief
    if belief is None or flight.prompt is None:
        return None
    speed = knowledge.prices.evaluate if knowledge.prices.measured else None
    before = flight.before or Memory((), EMPTY)
    return Believed(
        rules=belief.rules,
        holdings=knowledge.describe(before, flight.prompt, MOST_ENTRIES),
        slot=flight.slot,
        options=flight.decision.options,
        ms_per_token=speed,
        left_out=max(0, len(before.ram) - MOST_ENTRIES),
        stored=before.ram.stored,
    )
