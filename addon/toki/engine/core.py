"""Engine: events in, commands out. Deciding and reserving are one call, so they are atomic."""

from __future__ import annotations

from toki.engine.events import Action
from toki.engine.events import Answered
from toki.engine.events import Arrived
from toki.engine.events import Command
from toki.engine.events import Decision
from toki.engine.events import Event
from toki.engine.events import Gone
from toki.engine.events import Mode
from toki.engine.events import Outcome
from toki.engine.events import Record
from toki.engine.events import Send


class Engine:
    """All of toki's judgement about one server (and one of its models)."""

    def __init__(self, mode: Mode, min_reuse: int) -> None:
        self._mode = mode
        self._min_reuse = min_reuse

    @property
    def wants_tokens(self) -> bool:
        """Whether a decision can depend on tokens: then requests are held until these are known."""
        return self._mode in (Mode.AUTO, Mode.PIN)

    def handle(self, event: Event) -> list[Command]:
        """Take in what happened; return what to do, in order."""
        if isinstance(event, Arrived):
            return [Send(event.key, Decision(Action.PASSED, None, None, None, None, None, "not built yet"))]
        if isinstance(event, Answered | Gone):
            return [
                Record(
                    key=event.key,
                    conversation=event.key,
                    parent=None,
                    shared=0,
                    similarity=None,
                    predicted=None,
                    alone=None,
                    outcome=Outcome.UNKNOWN,
                    slot=event.measured.slot,
                    action=Action.PASSED,
                    reason="not built yet",
                    measured=event.measured,
                )
            ]
        return []
