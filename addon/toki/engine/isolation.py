"""Isolation: a request of one owner is not to find what another one's left, though the server itself knows no owners.

Where the server can be predicted, policy.py leaves out each way in which a request would reuse another owner's tokens.
Here is what holds where it can't be: while it is being learnt, and while others are on their way. Then the server may
take any contents, and takes those that share most. So a request may use the cache as long as no other owner left more
of its prompt than its own did: all that it then reuses it has sent before.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from toki.engine.contents import UNKNOWN
from toki.engine.contents import Contents
from toki.engine.contents import Held
from toki.engine.events import Action
from toki.engine.events import Decision
from toki.engine.events import Span
from toki.engine.flights import Flight
from toki.engine.flights import Flights
from toki.engine.knowledge import Knowledge

NOTHING = Span(0, 0, 0)


def kept_apart(flight: Flight, decision: Decision, knowledge: Knowledge, flights: Flights) -> Decision:
    """What becomes of the decision to leave the slot to a server that can't be predicted: if the request could find
    what another owner's left, it goes without the cache, where that can be said to the server."""
    if not may_leave_cache(flight, knowledge) or not within_reach(flight, knowledge, flights):
        return decision
    return replace(
        decision,
        action=Action.ISOLATED,
        predicted=None if decision.predicted is None else NOTHING,
        reason="without the cache: it could find what another key's request left",
        cache_prompt=False,
    )


def may_leave_cache(flight: Flight, knowledge: Knowledge) -> bool:
    """Whether owners are kept apart and a request can be sent without the cache: unless its client decides on that or
    on its slot, and where its endpoint passes such keys on to the server."""
    ask = flight.ask
    heard = ask.honours_slot and not ask.fixed and not ask.chose_cache
    return bool(ask.owner) and heard and knowledge.levers.usable(Action.ISOLATED)


def within_reach(flight: Flight, knowledge: Knowledge, flights: Flights) -> bool:
    """Whether a request could find more of its prompt than its own owner left, wherever it lands."""
    leader, owner, contents = knowledge.belief, flight.ask.owner, knowledge.contents
    if leader is None or any(one.prompt is None and one.ask.owner != owner for one in flights if one.key > 0):
        return True
    sure = [slot.held for slot in leader.base.slots if slot.idle and slot.held is not None] + list(leader.base.ram)
    possible = [one.prompt for one in flights if one.prompt is not None and contents.owner(one.prompt.place) != owner]
    for belief in [leader] if leader.trusted else knowledge.beliefs:
        possible += [*belief.base.holds(), *belief.base.gone]
    if flight.prompt is None:
        return any(one.place == UNKNOWN or contents.owner(one.place) != owner for one in possible)
    return exposed(contents, flight.prompt, sure, possible) > 0


def exposed(contents: Contents, prompt: Held, sure: Collection[Held], possible: Collection[Held]) -> int:
    """How many tokens of a prompt others left, where these are more than its own owner did; 0: they are not.

    `sure`: what the server holds; `possible`: what else it may hold. What is not known may be anything, and anyone's.
    """
    held = list({*sure, *possible})
    if not held:
        return 0
    shared = contents.likely(held, [prompt])[0]
    most = int((shared - contents.likely(held, [prompt], alike=True)[0]).max())
    unknown = max((one.length for one in held if one.place == UNKNOWN), default=0)
    most = max(most, min(unknown, prompt.length))
    own = int(contents.likely(list(sure), [prompt], alike=True)[0].max()) if sure else 0
    return most if most > own else 0
