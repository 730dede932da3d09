"""Decider: whether a request may be steered, and the plan for it that `policy` finds cheapest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from toki.engine.contents import Held
from toki.engine.events import Action
from toki.engine.events import Arrived
from toki.engine.events import Decision
from toki.engine.events import Mode
from toki.engine.events import Option
from toki.engine.flights import Flight
from toki.engine.flights import Flights
from toki.engine.isolation import kept_apart
from toki.engine.isolation import may_leave_cache
from toki.engine.knowledge import Knowledge
from toki.engine.looks import Looks
from toki.engine.policy import LEAST_WIN
from toki.engine.policy import MARGIN
from toki.engine.policy import Plan
from toki.engine.policy import Priced
from toki.engine.policy import Primer
from toki.engine.policy import Returns
from toki.engine.policy import Want
from toki.engine.policy import cheapest
from toki.engine.policy import evaluated
from toki.engine.policy import options
from toki.engine.rules import deviations
from toki.engine.shadow import Wish
from toki.engine.trust import Belief

LITTLE = 1.05  # times what passing costs, for what is done on a server that is not trusted yet
LEARNING = "still learning how this server chooses"


class Decider:
    """Decides for one server."""

    def __init__(self, mode: Mode, min_reuse: int, knowledge: Knowledge, flights: Flights, looks: Looks) -> None:
        self._mode = mode
        self._min_reuse = min_reuse
        self._knowledge = knowledge
        self._flights = flights
        self._looks = looks

    def decide(self, flight: Flight, event: Arrived, primers: int) -> tuple[Decision, Primer | None]:
        """What to do with a request, with the predictions for just that; and what to send before it, if anything, where
        `primers` more are allowed."""
        ask, prompt, belief = flight.ask, flight.prompt, self._knowledge.belief
        levers, conversations, prices = self._knowledge.levers, self._knowledge.conversations, self._knowledge.prices
        why = self._why_not(flight, event)
        if prompt is None:
            return self._kept_apart(flight, replace(flight.decision, reason=why)), None
        similarity = self._knowledge.history.best_similarity(ask.vector, ask.semantic)
        predicted, alone = self._knowledge.predict(flight, self._flights)
        passed = Decision(Action.PASSED, None, None, predicted, alone, similarity, why)
        if why or belief is None:
            return self._kept_apart(flight, passed), None
        idle = self._idle(flight, belief, event)
        pins, swaps = self._steerable(flight, belief, idle) if belief.trusted else ([], [])
        primed = primers > 0 and self._mode is Mode.AUTO and levers.usable(Action.PRIMED)
        wants = [Want(held, chance) for held, chance in conversations.wanted(flight.thread)]
        wish, returns = self._knowledge.wish(flight), Returns(belief.base, wants)
        uncached = may_leave_cache(flight, self._knowledge)
        priced_as = partial(options, belief.base, wish, returns, prices, pins=pins, swaps=swaps, uncached=uncached)
        priced = priced_as(
            primers=primed,
            honours_slot=levers.honours(ask) and belief.trusted,
            siblings=conversations.siblings(flight.thread) if flight.primed is None else 0.0,
            beds=idle if primed and levers.usable(Action.PINNED) else [],
        )
        if not priced:
            return self._kept_apart(flight, replace(passed, reason="all slots are busy")), None
        best, tries = self._choose(priced, prompt.length), ""
        if self._may_try(flight) and not priced[0].option.why:
            tried = priced_as(honours_slot=True)
            pinned, ignored = self._choose(tried, prompt.length), tried[0].launch.reuse
            if pinned.launch.reuse.low > ignored.high:
                priced, best, flight.trial = tried, pinned, ignored
                tries = f"; tries whether {ask.endpoint} honours id_slot"
        if not belief.trusted and not self._agreed(wish, best.plan):
            return replace(passed, reason=LEARNING), None
        decision = replace(
            passed,
            action=best.plan.action,
            slot=best.launch.slot,
            id_slot=best.plan.id_slot,
            predicted=best.launch.reuse,
            reason=_reason(priced[0].option, best.option) + tries,
            options=tuple(one.option for one in priced),
            cache_prompt=best.plan.cache_prompt,
        )
        return decision, next(iter(best.plan.primers), None)

    def _why_not(self, flight: Flight, event: Arrived) -> str:
        """Why a request must leave as it came, in plain words; "" where it may be steered."""
        ask, belief = flight.ask, self._knowledge.belief
        if not self._mode.steers:
            return f"toki_mode is {self._mode}"
        if ask.fixed:
            return ask.fixed
        if flight.prompt is None:
            return ask.unknown or "its tokens are not known"
        if self._mode is Mode.PIN and not self._knowledge.levers.honours(ask) and not self._may_try(flight):
            return f"{ask.endpoint} ignores id_slot"
        if belief is None:
            return "the server is not known yet"
        if not belief.trusted and not self._may_plant(flight, belief):
            return LEARNING
        if belief.rules.n_slots == 1 and self._mode is Mode.PIN and not ask.owner:
            return "the server has one slot"
        if self._looks.foreign(event.at) and belief.rules.ram:
            return "others use this server too"
        if self._flights.unplaced:
            return "another request is on its way to the server"
        return ""

    def _may_try(self, flight: Flight) -> bool:
        """Whether to find out if an endpoint honours `id_slot`: once, with a request that is alone and would gain by
        it."""
        return self._knowledge.levers.unsure(flight.ask) and not self._flights

    def _may_plant(self, flight: Flight, belief: Belief) -> bool:
        """Whether a request to a server that is not trusted yet may have a checkpoint planted for its siblings, of
        which the first ones are worth most. It is a part of the prompt itself, so little can be lost by it where all is
        as said and nothing was there before."""
        first = belief.score > 0 and belief.base.known and not deviations(belief.rules, self._knowledge.said)
        return first and belief.rules.window is not None and self._mode is Mode.AUTO and not flight.ask.owner

    def _agreed(self, wish: Wish, plan: Plan) -> bool:
        """Whether a plan makes a request hardly dearer by any of the hypotheses that did equally well."""
        if not plan.primers:
            return False
        for one in self._knowledge.equals:
            passing = evaluated(one.base, wish, Plan(Action.PASSED, None, None), self._knowledge.prices)
            then = evaluated(one.base, wish, plan, self._knowledge.prices)
            if not one.base.known or then > LITTLE * passing:
                return False
        return True

    def _idle(self, flight: Flight, belief: Belief, event: Arrived) -> list[int]:
        """The slots that are known to be idle and hold nothing of another owner's."""
        idle = self._looks.idle_slots(belief, self._flights, flight, event)
        if not flight.ask.owner:
            return idle
        return [number for number in idle if self._own(flight, belief.base.slots[number].held)]

    def _steerable(self, flight: Flight, belief: Belief, idle: Sequence[int]) -> tuple[list[int], list[int]]:
        """Those of the `idle` slots to which a request may be pinned, and those that may be swapped for it."""
        levers = self._knowledge.levers
        full = [number for number in idle if belief.base.slots[number].held is not None]
        swaps = full if belief.rules.ram and levers.usable(Action.SWAPPED) else []
        # Where there is a RAM cache, a pin to an empty slot keeps the server from looking there: only of use to keep it
        # from what another owner left.
        apart = bool(flight.ask.owner) and not may_leave_cache(flight, self._knowledge)
        pins = full if belief.rules.ram and not apart else [*idle]
        if not levers.usable(Action.PINNED):
            pins = []
        if self._mode is Mode.PIN:
            return self._longest_prefix(flight, belief, pins), []
        return pins, swaps

    def _longest_prefix(self, flight: Flight, belief: Belief, slots: Sequence[int]) -> list[int]:
        """The slot that holds the longest verified prefix of the prompt, at least `min_reuse` tokens: the candidates of
        the index and all live slots are compared token for token."""
        prompt = flight.prompt
        assert prompt is not None
        proposed = set(self._knowledge.history.candidates(flight.ask.vector, flight.ask.semantic))
        verified: dict[int, tuple[int, bool]] = {}
        for number in slots:
            held = belief.base.slots[number].held
            if held is not None:
                verified[number] = (self._knowledge.contents.span(held, prompt).likely, held.place in proposed)
        best = max(verified, key=lambda number: verified[number], default=None)
        return [best] if best is not None and verified[best][0] >= self._min_reuse else []

    def _own(self, flight: Flight, held: Held | None) -> bool:
        """Whether a slot holds nothing, or what a request of the same owner left."""
        return held is None or flight.prompt is None or self._knowledge.contents.alike(held, flight.prompt)

    def _kept_apart(self, flight: Flight, decision: Decision) -> Decision:
        return kept_apart(flight, decision, self._knowledge, self._flights)

    def _choose(self, priced: Sequence[Priced], length: int) -> Priced:
        """The plan to take for a prompt of `length` tokens."""
        if self._mode is Mode.PIN:
            return priced[-1]
        evaluate = self._knowledge.prices.evaluate
        margin, stake = max(MARGIN * length, LEAST_WIN), self._knowledge.account.stake(length)
        return cheapest(priced, margin * evaluate, stake * evaluate)


def _reason(passing: Option, chosen: Option) -> str:
    """Why an option was taken rather than passing the request on."""
    if chosen.action is Action.PASSED:
        return "the server's own choice is as good"
    if chosen.action is Action.ISOLATED:
        return f"without the cache: {chosen.why}"
    if chosen.why:
        return f"slot {chosen.slot}: reuses {chosen.reuse.likely:,} tokens: {chosen.why}"
    now = passing.now - chosen.now
    later = passing.later - chosen.later
    return (
        f"slot {chosen.slot}: reuses {chosen.reuse.likely:,} tokens (alone {passing.reuse.likely:,}), "
        f"saves {now:,.0f} ms now and {later:,.0f} ms later"
    )
