"""Plays sessions against each other: who may send next, one at a time or N at once, in an order that a seed decides.

A session is a script, a generator in the style of the real agent's loop: it yields a request and is sent the answer;
it yields a tuple of scripts and is sent what they returned, once all of them have ended. So a parent waits for its
subagents, and a side call runs beside the turn it belongs to, without locks, threads or a clock.
"""

from __future__ import annotations

import random
from collections.abc import Generator
from collections.abc import Iterable
from dataclasses import dataclass
from dataclasses import field
from typing import Any
from typing import Literal
from typing import TypeAlias

from traffic.request import Request

# yields: see above; is sent: str or tuple[str, ...]; returns: its last answer
Script: TypeAlias = "Generator[Request | tuple[Script, ...], Any, str]"
Order: TypeAlias = Literal["random", "rotation"]


def once(request: Request) -> Script:
    """The script of a single request."""
    answer: str = yield request
    return answer


def together(*scripts: Script) -> Generator[tuple[Script, ...], Any, tuple[str, ...]]:
    """Start the scripts beside each other (`yield from`); what each returned, when all have ended."""
    answers: tuple[str, ...] = yield scripts
    return answers


@dataclass(slots=True, eq=False)
class _Task:
    script: Script
    parent: _Task | None
    place: int  # among the parent's children
    results: list[str] = field(default_factory=list)  # of its own children
    running: int = 0  # children that have not ended


class Run:
    """One seeded play of a scenario.

    Who sends next is drawn from those that could ("random"), or is the one that has waited longest ("rotation").
    """

    def __init__(self, scripts: Iterable[Script], order: Order, seed: int) -> None:
        self._order = order
        self._random = random.Random(f"{seed}/order")
        self._ready: list[tuple[_Task, Request]] = []
        self._in_flight: dict[str, _Task] = {}
        for script in scripts:
            self._advance(_Task(script, None, 0), None)

    def ready(self) -> tuple[str, ...]:
        """The sessions that could send now and have nothing in flight, the longest waiting first."""
        return tuple(request.session for _, request in self._ready)

    def take(self) -> Request | None:
        """The next request to send; None when no session is ready (the run is over if nothing is in flight either)."""
        if not self._ready:
            return None
        place = 0 if self._order == "rotation" else self._random.randrange(len(self._ready))
        task, request = self._ready.pop(place)
        if request.session in self._in_flight:
            raise ValueError(f"session {request.session!r} has a request in flight already")
        self._in_flight[request.session] = task
        return request

    def answer(self, session: str, reply: str) -> None:
        """Hand over the answer to the session's request; what came of it, if it was cut short.

        Raises KeyError if the session has no request in flight.
        """
        self._advance(self._in_flight.pop(session), reply)

    def _advance(self, task: _Task, value: str | tuple[str, ...] | None) -> None:
        try:
            step = task.script.send(value)
        except StopIteration as end:
            self._end(task, end.value)
            return
        if isinstance(step, Request):
            self._ready.append((task, step))
            return
        task.results = [""] * len(step)
        task.running = len(step)
        for place, script in enumerate(step):
            self._advance(_Task(script, task, place), None)

    def _end(self, task: _Task, returned: str) -> None:
        parent = task.parent
        if parent is None:
            return
        parent.results[task.place] = returned
        parent.running -= 1
        if not parent.running:
            self._advance(parent, tuple(parent.results))


def sequential(run: Run) -> Generator[Request, str, None]:
    """The requests one after another: send in the answer to each, get the next."""
    while (request := run.take()) is not None:
        reply = yield request
        run.answer(request.session, reply)


def at_once(run: Run, n: int) -> Generator[list[Request], tuple[str, str], None]:
    """The requests with up to `n` in flight.

    Yields what is to be sent now (often one request, at times none), wants (session, answer) of whichever ends next.
    """
    in_flight = 0
    while True:
        now: list[Request] = []
        while in_flight < n and (request := run.take()) is not None:
            now.append(request)
            in_flight += 1
        if not in_flight:
            return
        session, reply = yield now
        run.answer(session, reply)
        in_flight -= 1
