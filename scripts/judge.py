"""Judges an event log: what toki predicted of each request against what was measured, and a naive belief beside it.

The engine is replayed, since the predicted range stands in no row. What it says then is what it said live: it is pure.
The log shows no token, but lists share the prefixes in it that they had: so the naive belief can be replayed as well.
"""

from __future__ import annotations

from dataclasses import dataclass
from dataclasses import field
from pathlib import Path

from toki.engine.abandoned import ON_THE_WAY
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
from toki.engine.events import Restarted
from toki.engine.events import Span
from toki.engine.rules import Rules
from toki.engine.tokens import Tokens
from toki.eventlog import Made
from toki.eventlog import read

CANCELLED_S = 0.05  # within which the server mostly sees that a client left


@dataclass(frozen=True, slots=True)
class Verdict:
    """One request whose reuse the server told. Lengths are tokens."""

    key: int
    prompt: int
    predicted: Span | None  # None: nothing was predicted
    reused: int
    reply: (
        int | None
    )  # tokens of the longest reply behind a prompt that ends where the range begins; None: no such prompt
    naive: int | None  # the longest common prefix with what ran last on any slot
    slot: int | None
    action: Action
    reason: str
    server: int  # which one of those that toki met, from 1; 0: none was known yet
    since_met: int  # how many requests after it was met
    overlaps: bool  # between its release and its launch another request ended: no order can be known
    since_left: int | None  # how many requests after one whose client left; None: none has
    left: (
        int  # tokens in common with a prompt whose client left, where that is half of it and no other has more; else 0
    )
    since_copies: int | None  # how many requests after one with n > 1
    rules: Rules | None  # of the leading hypothesis at the request's end
    rivals: tuple[Rules, ...]  # of those that were wrong no more than that one by then, it among them
    trusted: bool

    @property
    def inside(self) -> bool:
        """Whether the measured reuse lies in the predicted range."""
        return self.predicted is not None and self.predicted.low <= self.reused <= self.predicted.high

    @property
    def likely(self) -> int:
        """The likely value; 0 where nothing was predicted."""
        return self.predicted.likely if self.predicted is not None else 0

    @property
    def low(self) -> int:
        """The least that was predicted; 0 where nothing was."""
        return self.predicted.low if self.predicted is not None else 0

    @property
    def width(self) -> int:
        """How wide the predicted range is; the whole prompt where nothing was predicted."""
        return self.prompt if self.predicted is None else self.predicted.high - self.predicted.low

    def within(self, share: float) -> bool:
        """Whether the likely value is off by at most `share` of the prompt."""
        return self.predicted is not None and abs(self.predicted.likely - self.reused) <= share * self.prompt

    def naive_within(self, share: float) -> bool:
        return self.naive is not None and abs(self.naive - self.reused) <= share * self.prompt


def verdicts(path: Path) -> tuple[list[Verdict], list[str]]:
    """The judgement of each request in the event log of one toki before one server, in the order of their ends.

    And the faults of its engines: after one of them toki makes a new engine. Raises ValueError for no event log.
    """
    with path.open("rb") as file:
        entries = list(read(file))
    overlapping = _overlapping([entry.event for entry in entries if not isinstance(entry, Made)])
    found: list[Verdict] = []
    faults: list[str] = []
    engine: Engine | None = None
    naive, replies, kin = Naive(), Replies(), Kin()
    server, met, latest = 0, 0, 0
    left, copied = 0, 0  # keys of the latest request whose client left, and with n > 1
    for entry in entries:
        if isinstance(entry, Made):
            engine, naive, replies, kin = Engine(entry.mode, entry.min_reuse), Naive(), Replies(), Kin()
            continue
        assert engine
        event = entry.event
        naive.hear(event, engine)
        replies.hear(event)
        kin.hear(event)
        if isinstance(event, Arrived):
            latest = event.key
        match event:
            case Restarted():
                server, met = server + 1, latest
            case Gone():
                left = max(left, event.key)
            case Arrived() | Read() if event.ask.children:
                copied = max(copied, event.key)
        try:
            commands = engine.handle(event)
        except Exception as error:  # whatever it is, it is what is to be told
            faults.append(f"line {entry.number}, {type(event).__name__}: {error!r}")
            continue
        for command in commands:
            if not isinstance(command, Record) or command.measured.reused is None:
                continue
            key, measured, belief = command.key, command.measured, engine.belief
            found.append(
                Verdict(
                    key=key,
                    prompt=measured.prompt_tokens or 0,
                    predicted=command.span,
                    reused=command.measured.reused,
                    reply=replies.longest.get(command.span.low) if command.span else None,
                    naive=naive.beliefs.get(key),
                    slot=command.slot,
                    action=command.action,
                    reason=command.reason,
                    server=server,
                    since_met=max(0, key - met),
                    overlaps=key in overlapping,
                    since_left=key - left if left and left < key else None,
                    left=kin.left.get(key, 0),
                    since_copies=key - copied if copied and copied < key else None,
                    rules=belief.rules if belief else None,
                    rivals=tuple(one.rules for one in engine.beliefs if belief and one.errors <= belief.errors),
                    trusted=belief is not None and belief.trusted,
                )
            )
    return found, faults


def _overlapping(events: list[Event]) -> set[int]:
    """Keys of the requests that may have been launched before or after another one ended: no order can be known.

    A launch lies between release and headers of a stream; the server's own figures say how long it worked, so that a
    launch was at least so long before the end that was seen, and an end at least so long after its release.
    """
    released: dict[int, float] = {}
    launched: dict[int, float] = {}  # at the latest
    ends: dict[int, tuple[float, float]] = {}
    for event in events:
        match event:
            case Arrived():
                released[event.key] = event.at
            case Began() if event.status == 200:
                launched[event.key] = event.at
            case Answered() if event.status == 200:
                took = event.measured.took
                launched[event.key] = min(launched.get(event.key, event.at), event.at - took)
                ends[event.key] = (released[event.key] + took, event.at)
            case Gone() if event.sent:
                ends[event.key] = (event.at, event.at + CANCELLED_S)
    return {
        key
        for key, latest in launched.items()
        if any(other != key and soonest <= latest and end >= released[key] for other, (soonest, end) in ends.items())
    }


@dataclass(slots=True)
class Replies:
    """How long the replies were, by the length of the prompt."""

    longest: dict[int, int] = field(default_factory=dict)
    _prompts: dict[int, int] = field(default_factory=dict)  # request -> length of its prompt
    _ended: dict[int, int] = field(default_factory=dict)  # request that was not read yet -> length of its reply

    def hear(self, event: Event) -> None:
        match event:
            case Arrived() | Read() if event.ask.tokens is not None:
                self._prompts[event.key] = len(event.ask.tokens)
                self._note(event.key, self._ended.pop(event.key, 0))
            case Answered():
                self._note(event.key, event.measured.reply_tokens or 0)
            case Gone():
                self._note(event.key, event.shown + ON_THE_WAY)

    def _note(self, key: int, reply: int) -> None:
        prompt = self._prompts.get(key)
        if prompt is None:
            self._ended[key] = reply
        else:
            self.longest[prompt] = max(reply, self.longest.get(prompt, 0))


@dataclass(slots=True)
class Kin:
    """Whose earlier prompts the prompts share most with: of interest are those whose clients left."""

    left: dict[int, int] = field(default_factory=dict)  # request -> tokens in common with such a one, if it is that
    _prompts: dict[int, Tokens] = field(default_factory=dict)
    _gone: set[int] = field(default_factory=set)

    def hear(self, event: Event) -> None:
        match event:
            case Gone() if event.sent:
                self._gone.add(event.key)
            case Arrived() | Read() if event.ask.tokens is not None:
                tokens = event.ask.tokens
                shares = {key: tokens.common_prefix(one) for key, one in self._prompts.items()}
                others = max((shared for key, shared in shares.items() if key not in self._gone), default=0)
                gone = max((shared for key, shared in shares.items() if key in self._gone), default=0)
                self.left[event.key] = gone if gone >= max(others, len(tokens) / 2) else 0
                self._prompts[event.key] = tokens


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
