"""What a server with other rules would have evaluated of recorded traffic, if nobody had steered it.

Where requests ran beside each other, their order decides, and another server would have had them in another one. So its
clients wait for answers as they did: a request is sent once all those have come that had come before it in the
recording. And the server works in passes, as llama-server does: each takes one token of every answer that is being
written, and as many prompt tokens as fit beside them; between two passes it launches what has come. How long a pass
takes is worked out from the recording. Arrivals that are close come in any order, so such traffic is replayed several
times, and the mean counts.
"""

from __future__ import annotations

import heapq
import math
import random
from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from toki.engine.rules import Rules
from toki.engine.shadow import Shadow
from toki.engine.shadow import Wish
from toki.inspect.trace import Step
from toki.inspect.trace import Trace

BATCH = 2048  # tokens of one pass, llama-server's --batch-size
JITTER_S = 0.005  # by which arrivals come later; what came so long before an end is taken to follow it
TIMES = 3  # that traffic with requests beside each other is replayed
USUAL_PASS_S, USUAL_TOKEN_S = 0.02, 0.001  # where the recording does not tell


@dataclass(frozen=True, slots=True)
class Replay:
    """What a server would have done. Lengths in tokens."""

    evaluated: int
    refused: int  # requests that did not fit into a slot's context
    stored: int  # the most that the RAM cache held, with room for one more entry


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds that a pass takes by itself, and for each of its tokens."""

    per_pass: float
    per_token: float


def replay(trace: Trace, rules: Rules) -> Replay:
    """Send the trace to a server with these rules that starts empty."""
    beside = any(after.at <= _over(before) for before, after in pairwise(trace.steps))
    speed = pace(trace.steps)
    seeds = range(TIMES if beside else 1)
    runs = [_Server(trace, rules, speed, _Clients(trace.steps, seed)).run() for seed in seeds]
    return Replay(
        round(sum(run.evaluated for run in runs) / len(runs)), runs[0].refused, max(run.stored for run in runs)
    )


def _over(step: Step) -> float:
    """When a request has ended so surely that one which comes later waited for it."""
    return max(step.end - JITTER_S, step.at)


def pace(steps: Sequence[Step]) -> Pace:
    """The pace at which the recorded server worked: the least squares over the periods in which it was never idle.

    While it answers c requests at once, a pass makes c of their tokens.
    """
    periods: list[list[Step]] = []
    until = 0.0
    for step in steps:
        if step.at > until or not periods:
            periods.append([])
        periods[-1].append(step)
        until = max(until, step.end)
    passes, tokens, seconds = [], [], []
    for period in periods:
        took = max(step.end for step in period) - period[0].at
        at_once = sum(step.seconds for step in period) / took if took else 1.0
        if took and all(step.evaluated is not None for step in period):
            written = sum(max(step.reply, 1) for step in period)
            passes.append(written / at_once)
            tokens.append(sum(step.evaluated or 0 for step in period) + written)
            seconds.append(took)
    if not seconds:
        return Pace(USUAL_PASS_S, USUAL_TOKEN_S)
    return Pace(*_least_squares(passes, tokens, seconds))


def _least_squares(a: Sequence[float], b: Sequence[float], y: Sequence[float]) -> tuple[float, float]:
    """The x, y >= 0 for which x * a + y * b is closest to `y`."""
    aa, ab, bb = (sum(s * t for s, t in zip(*pair, strict=True)) for pair in ((a, a), (a, b), (b, b)))
    ay, by = (sum(s * t for s, t in zip(one, y, strict=True)) for one in (a, b))
    determinant = aa * bb - ab * ab
    if determinant > 1e-9 * aa * bb:
        first, second = (ay * bb - by * ab) / determinant, (by * aa - ay * ab) / determinant
        if first >= 0 and second >= 0:
            return first, second
    alone = (ay / aa, 0.0), (0.0, by / bb)  # one of them is 0: the one without which it fits better
    return alone[0] if ay * ay / aa >= by * by / bb else alone[1]


@dataclass(slots=True)
class _Running:
    """What is left of a request: prompt tokens to be read, and tokens to be written."""

    unread: int
    unwritten: int


class _Clients:
    """When each request is sent: once all the answers have come that had come before it, and as much later."""

    def __init__(self, steps: Sequence[Step], seed: int) -> None:
        self._random = random.Random(seed)
        self._ends = sorted((_over(step), step.key) for step in steps)
        self._answered: set[int] = set()
        self._through = 0  # so many of `_ends` are answered, from the first one on
        self._waiting = deque(steps)
        self.sent: list[tuple[float, int]] = []  # a heap: when, and which
        self._send(0.0)

    def take(self, now: float) -> int | None:
        """The next request that has been sent by now."""
        return heapq.heappop(self.sent)[1] if self.sent and self.sent[0][0] <= now else None

    def answered(self, key: int, now: float) -> None:
        self._answered.add(key)
        while self._through < len(self._ends) and self._ends[self._through][1] in self._answered:
            self._through += 1
        self._send(now)

    def _send(self, now: float) -> None:
        ahead = self._ends[self._through][0] if self._through < len(self._ends) else math.inf
        while self._waiting and self._waiting[0].at <= ahead:
            step = self._waiting.popleft()
            before = bisect_left(self._ends, (step.at, 0))
            pause = step.at - self._ends[before - 1][0] if before else step.at
            heapq.heappush(self.sent, (now + pause + self._random.uniform(0, JITTER_S), step.key))


class _Server:
    """A server that works off what its clients send, pass by pass."""

    def __init__(self, trace: Trace, rules: Rules, speed: Pace, clients: _Clients) -> None:
        self._rules = rules
        self._speed = speed
        self._clients = clients
        self._shadow = Shadow(rules, trace.contents)
        self._steps = {step.key: step for step in trace.steps}
        self._running: dict[int, _Running] = {}
        self.evaluated = self.refused = self.stored = 0

    def run(self) -> Replay:
        now = 0.0
        while self._running or self._clients.sent:
            if not self._running:
                now = max(now, self._clients.sent[0][0])
            while (key := self._clients.take(now)) is not None:
                self._launch(key, now)
            if self._running:
                now += self._work(now)
                for key in [key for key, one in self._running.items() if not one.unwritten]:
                    del self._running[key]
                    self._shadow.finish(key, self._steps[key].reply)
                    self._clients.answered(key, now)
                self._note_launches()
        return Replay(self.evaluated, self.refused, self.stored)

    def _launch(self, key: int, now: float) -> None:
        step = self._steps[key]
        wish = Wish(key, step.prompt, kind=step.kind)
        if step.prompt.length >= self._rules.n_ctx:
            self._shadow.refuse(wish)
            self.refused += 1
            self._clients.answered(key, now)
            return
        self._shadow.launch(wish)
        self._note_launches()
        sizes = [entry.length + self._rules.ram_entry for entry in self._shadow.ram]
        self.stored = max(self.stored, sum(sizes) + max(sizes, default=0))

    def _note_launches(self) -> None:
        """Those that were deferred are launched as others end."""
        for key, launch in self._shadow.launches.items():
            if key not in self._running:
                step = self._steps[key]
                unread = step.prompt.length - launch.reuse.likely
                self._running[key] = _Running(unread, max(step.reply, 1))
                self.evaluated += unread
        self._running = dict(sorted(self._running.items(), key=lambda one: self._shadow.running(one[0]) or 0))

    def _work(self, now: float) -> float:
        """Work one pass, or as many as nothing can come between; the seconds that it takes."""
        passes = 1
        writing = [one for one in self._running.values() if not one.unread]
        each = self._speed.per_pass + self._speed.per_token * len(writing)
        if len(writing) == len(self._running):
            passes = min(one.unwritten for one in writing)
            if self._clients.sent and each:
                passes = min(passes, max(math.ceil((self._clients.sent[0][0] - now) / each), 1))
        for one in writing:
            one.unwritten -= passes
        room, read = BATCH - len(writing), 0
        for one in self._running.values():
            if one.unread and read < room:
                part = min(one.unread, room - read)
                one.unread -= part
                one.unwritten -= not one.unread  # the last prompt token brings the first one of the answer
                read += part
        return passes * each + self._speed.per_token * read
