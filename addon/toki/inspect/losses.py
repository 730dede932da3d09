"""Why a server processed again what it had: judged from what its slots and its RAM cache held, as toki believes.

Line by line the rules of llama-server (see engine/shadow.py), read backwards: from what was not reused to what must
have happened to it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from toki.engine.events import Believed
from toki.inspect.comparison import SLACK
from toki.inspect.finding import Cause


@dataclass(frozen=True, slots=True)
class Past:
    """What became of an earlier request. `slot`: where it ran, as far as known; `run`: which life of the server.
    `population`: the conversations that start as its own does."""

    key: int
    population: int
    slot: int | None = None
    unread: bool = False  # it was given up before its prompt was read
    reply_tokens: int | None = None
    run: int = 0
    ran: tuple[float, float] | None = None  # from when till when, in seconds

    def still_ran(self, other: Past) -> bool:
        """Whether this one had not ended when `other` began, as far as known."""
        return self.ran is not None and other.ran is not None and self.ran[1] > other.ran[0]


def why_lost(
    expected: int,
    reused: int,
    owner: Past,
    now: Past,
    believed: Believed | None,
    past: Mapping[int, Past],
    *,
    branched: bool,
    predicted: int | None,
    whole: bool,
) -> tuple[Cause, str]:
    """The cause, and numbers to it. `expected` tokens were once processed, for the request `owner`, and only `reused`
    were found again by the request `now`. `past`: the requests until then, in their order. `branched`: the answer to
    `owner` came back other than it was generated. `predicted`: the reuse that toki expected, with what it knows of the
    model's window. `whole`: the model is known to be able to go back to any token."""
    if owner.run != now.run:
        return Cause.RESTARTED, ""
    if owner.unread:
        return Cause.ABORTED, ""
    if owner.still_ran(now):
        return Cause.SLOT_BUSY, ""
    if believed is None:
        return Cause.UNEXPLAINED, ""
    holders = [one for one in believed.holdings if one.shared >= expected - SLACK]
    slots = [one for one in holders if one.slot is not None]
    here = next((one for one in slots if not one.busy and now.slot in (None, one.slot)), None)
    if here is not None:
        surprise = predicted is None or predicted > reused + SLACK
        if whole or (predicted is not None and surprise == (believed.rules.window is not None)):
            return Cause.UNEXPLAINED, ""  # it could have gone back there, or the rules of one that can tell why not
        if branched or here.shared < here.length - SLACK:
            return Cause.CANNOT_ROLL_BACK, f"it branches at token {expected:,}, and was read anew from {reused:,} on"
        return Cause.UNEXPLAINED, ""
    if any(one.busy for one in slots):
        return Cause.SLOT_BUSY, ""
    if slots:
        return Cause.SLOT_NOT_CHOSEN, f"slot {slots[0].slot} holds {slots[0].shared:,} tokens of it"
    if holders:
        return Cause.RAM_NOT_CONSULTED, f"an entry holds {holders[0].shared:,} tokens of it"
    others = [one for one in past.values() if one.key > owner.key and one.key != now.key and one.run == now.run]
    single = believed.rules.n_slots == 1
    takers = [one for one in others if single or (one.slot is not None and one.slot == owner.slot)]
    if believed.rules.clears and others and all(one.population != owner.population for one in takers):
        # Each launch empties the others' slots, whoever takes them then, and another one may have loaded the copy.
        if expected + believed.stored > believed.rules.ram:
            return Cause.IDLE_CLEARED, ""
        return Cause.SLOT_TAKEN, "with its copy in the RAM cache"
    if takers or (others and (owner.slot is None or any(one.slot is None for one in others))):
        return Cause.SLOT_TAKEN, ""
    return Cause.UNEXPLAINED, ""
