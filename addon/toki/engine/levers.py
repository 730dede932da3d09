"""Levers: the ways to steer a request that work on this server and keep what they promise.

Not every endpoint honours `id_slot`, and not every build lets a slot be swapped. Each lever is tried before its first
use. One that is refused, or lands elsewhere, is dropped for good; one that does not bring what was predicted for as
long as it takes a hundred requests to pass as predicted: then it may be used once more.
"""

from __future__ import annotations

from dataclasses import dataclass
from dataclasses import field
from dataclasses import replace

from toki.engine.events import Action
from toki.engine.events import Ask
from toki.engine.flights import Flight

ENOUGH = 3  # right or wrong predictions between an action that is used and one that is dropped
AGAIN = 100  # requests that pass as predicted until one that was wrong too often is used again


@dataclass(slots=True)
class Levers:
    """What was found out of them on one server."""

    score: dict[Action, int] = field(default_factory=dict)
    broken: set[Action] = field(default_factory=set)  # those that the server has not
    calm: int = 0  # requests that passed as predicted
    proven: set[Action] = field(default_factory=set)  # those that were tried out before their first use
    honoured: dict[str, bool] = field(default_factory=dict)  # endpoints that may ignore `id_slot`, where it was tried

    def usable(self, action: Action) -> bool:
        return action not in self.broken and self.score.get(action, 0) > -ENOUGH

    def untried(self, id_slot: int, n_slots: int) -> Action | None:
        """The lever that a slot id pulls, if it was never tried on this server."""
        lever = Action.PINNED if id_slot < n_slots else Action.SWAPPED
        return None if lever in self.proven else lever

    def prove(self, lever: Action, works: bool | None) -> None:
        """A lever was tried out at no cost; None: the server did not answer, so that it is to be tried again."""
        if works is None:
            self.score[lever] = -ENOUGH
            return
        self.proven.add(lever)
        if not works:
            self.drop(lever)

    def drop(self, action: Action) -> None:
        """It does not work here."""
        self.broken.add(action)

    def judge(self, action: Action, right: bool) -> None:
        """What was predicted of an action came true, or did not."""
        now = self.score.get(action, 0)
        if action is not Action.PASSED:
            self.score[action] = min(ENOUGH, now + 1) if right else max(-ENOUGH, now - 2)
        elif right:
            self.calm += 1
            if self.calm % AGAIN == 0:
                self.score = {one: max(score, 1 - ENOUGH) for one, score in self.score.items()}

    # --- endpoints --------------------------------------------------------------------------------

    def honours(self, ask: Ask) -> bool:
        """Whether a request's endpoint honours `id_slot`."""
        return self.honoured.get(ask.endpoint, ask.honours_slot)

    def client_slot(self, ask: Ask) -> int | None:
        """The slot that the client chose, where its endpoint honours that."""
        return ask.client_slot if self.honours(ask) else None

    def unsure(self, ask: Ask) -> bool:
        """Whether it is still to be found out if a request's endpoint honours `id_slot`. A server that ignores the key
        does with it what it does without."""
        return not ask.honours_slot and ask.endpoint not in self.honoured

    def conclude_trial(self, flight: Flight) -> bool:
        """A request that tried whether `id_slot` is honoured has ended: only a slot that was honoured explains the
        reuse that was predicted for it, the two are far apart. Whether it was found out where the request ran.

        Where the server told nothing, its client having left, it is taken to have ignored the slot, as the known builds
        do, and the next one is a trial again.
        """
        ignored, decision, reused = flight.trial, flight.decision, flight.measured.reused
        if ignored is None or decision.predicted is None:
            return True
        flight.trial = None
        honoured = reused is not None and decision.predicted.low <= reused <= decision.predicted.high
        if not honoured:  # what was predicted was for the other case
            flight.decision = replace(decision, id_slot=None, predicted=None)
        if honoured or (reused is not None and ignored.low <= reused <= ignored.high):
            self.honoured[flight.ask.endpoint] = honoured
            return True
        return reused is None

    def conclude_refusal(self, flight: Flight, status: int) -> None:
        """What a server refuses only where toki has put something into it, toki puts there no more."""
        if flight.refused is None or status >= 400:
            return
        if flight.refused.action not in (Action.SWAPPED, Action.ISOLATED):
            self.honoured[flight.ask.endpoint] = False
        self.drop(flight.refused.action)
