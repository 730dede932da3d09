"""Judges recorded events: what toki predicted of each request against what was measured, and a naive belief beside it.

The engine is replayed, since the predicted range stands in no row. What it says then is what it said live: it is pure.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from dataclasses import dataclass
from dataclasses import field
from pathlib import Path
from typing import Any

from toki.engine.core import Engine
from toki.engine.events import Action
from toki.engine.events import Answered
from toki.engine.events import Arrived
from toki.engine.events import Began
from toki.engine.events import Event
from toki.engine.events import Gone
from toki.engine.events import Read
from toki.engine.events import Record
from toki.engine.events import Replied
from toki.engine.events import Span
from toki.engine.rules import Rules
from toki.engine.tokens import Tokens

LAUNCH_S = 0.05  # within which a request that does not stream is taken to be launched: nothing shows when it was


@dataclass(frozen=True, slots=True)
class Verdict:
    """One request whose reuse the server told. Lengths are tokens."""

    key: int
    prompt: int
    predicted: Span | None  # None: nothing was predicted
    reused: int
    naive: int | None  # the longest common prefix with what ran last on any slot
    slot: int | None
    action: Action
    reason: str
    overlaps: bool  # between its release and its launch another request ended: no order can be known
    rules: Rules | None  # of the leading hypothesis at the request's end
    trusted: bool

    @property
    def inside(self) -> bool:
        """Whether the measured reuse lies in the predicted range."""
        return self.predicted is not None and self.predicted.low <= self.reused <= self.predicted.high

    @property
    def width(self) -> int:
        """How wide the predicted range is; the whole prompt where nothing was predicted."""
        return self.prompt if self.predicted is None else self.predicted.high - self.predicted.low

    def within(self, share: float) -> bool:
        """Whether the likely value is off by at most `share` of the prompt."""
        return self.predicted is not None and abs(self.predicted.likely - self.reused) <= share * self.prompt

    def naive_within(self, share: float) -> bool:
        return self.naive is not None and abs(self.naive - self.reused) <= share * self.prompt


def verdicts(path: Path) -> list[Verdict]:
    """The judgement of each request in a file of recording_addon.py, in the order of their ends."""
    items = list(_read(path))
    overlapping = _overlapping([item for item in items if not isinstance(item, tuple)])
    found: list[Verdict] = []
    engine: Engine | None = None
    naive = Naive()
    for item in items:
        if isinstance(item, tuple):
            engine, naive = Engine(*item), Naive()
            continue
        assert engine
        open_now = dict(engine._flights)  # the only place where the range of a request sent unread can be seen
        naive.hear(item, engine)
        for command in engine.handle(item):
            if not isinstance(command, Record) or command.measured.reused is None:
                continue
            measured, flight, belief = command.measured, open_now.get(command.key), engine.belief
            found.append(
                Verdict(
                    key=command.key,
                    prompt=measured.prompt_tokens or 0,
                    predicted=flight.decision.predicted if flight else None,
                    reused=command.measured.reused,
                    naive=naive.beliefs.get(command.key),
                    slot=command.slot,
                    action=command.action,
                    reason=command.reason,
                    overlaps=command.key in overlapping,
                    rules=belief.rules if belief else None,
                    trusted=belief is not None and belief.trusted,
                )
            )
    return found


def _read(path: Path) -> Iterator[Event | tuple[Any, ...]]:
    with path.open("rb") as file:
        while True:
            try:
                yield pickle.load(file)
            except EOFError:
                return


def _overlapping(events: list[Event]) -> set[int]:
    """Keys of the requests between whose release and launch another one ended."""
    ends = [(event.at, event.key) for event in events if isinstance(event, Answered | Gone)]
    signs = {event.key: event.at for event in events if isinstance(event, Began)}
    found = set()
    for event in events:
        if isinstance(event, Arrived):
            launched = event.at + LAUNCH_S
            if event.ask.stream:
                launched = signs.get(event.key, launched)
            if any(event.at <= at <= launched and key != event.key for at, key in ends):
                found.add(event.key)
    return found


@dataclass(slots=True)
class Naive:
    """The belief of a proxy that knows slots but not the server's rules: each holds what ran on it last."""

    beliefs: dict[int, int] = field(default_factory=dict)  # request -> its reuse
    _prompts: dict[int, Tokens] = field(default_factory=dict)
    _slots: dict[int | None, tuple[int, Tokens]] = field(default_factory=dict)  # slot -> request and contents

    def hear(self, event: Event, engine: Engine) -> None:
        """`engine` tells the slot where the answer does not: only /completion shows it."""
        match event:
            case Arrived() | Read() if event.ask.tokens is not None:
                tokens = self._prompts[event.key] = event.ask.tokens
                reuse = max((tokens.common_prefix(held) for _, held in self._slots.values()), default=0)
                self.beliefs[event.key] = min(reuse, len(tokens) - 1)
            case Answered() if event.status == 200 and event.key in self._prompts:
                belief = engine.belief
                launch = belief.base.launches.get(event.key) if belief else None
                slot = event.measured.slot if event.measured.slot is not None else (launch.slot if launch else None)
                self._slots[slot] = (event.key, self._prompts.pop(event.key))
            case Replied():
                for slot, (key, held) in self._slots.items():
                    if key == event.key:
                        self._slots[slot] = (key, held.extended(event.ids))
