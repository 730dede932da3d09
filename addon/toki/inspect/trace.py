"""Recorded traffic as token lists with the same lengths and the same common prefixes.

A row tells the length of its prompt and of its reply, which earlier request it shares most with, and how much: `parent`
and `shared`. Common prefixes are ultrametric, so these say all pairs; the tokens themselves do not matter. Prompts that
toki did not read share nothing here.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from toki.engine.contents import Contents
from toki.engine.contents import Held
from toki.engine.events import Kind
from toki.engine.tokens import Tokens
from toki.inspect.records import Request


@dataclass(frozen=True, slots=True)
class Step:
    """One request: its prompt, the tokens of its reply, when it came and for how long it ran (s), and how many tokens
    of its prompt were evaluated (None: not told)."""

    key: int
    prompt: Held
    kind: Kind
    reply: int
    at: float
    seconds: float
    evaluated: int | None

    @property
    def end(self) -> float:
        return self.at + self.seconds


@dataclass(frozen=True, slots=True)
class Trace:
    """Requests in the order in which they came. Lengths in tokens."""

    contents: Contents
    steps: Sequence[Step]
    bound: int  # what a server would evaluate that keeps every prompt for ever
    unread: int  # of the requests, those whose prompts are taken to share nothing, for they were not read
    left_out: int  # requests without a known length, or without an answer


def reconstruct(rows: Iterable[Request]) -> Trace:
    """The trace of `rows`, which are in the order of their ids."""
    rows = list(rows)
    reach: dict[int, int] = {}  # how far into a request's prompt and reply later ones go
    for row in rows:
        if row.parent is not None:
            reach[row.parent] = max(reach.get(row.parent, 0), row.shared)
    contents = Contents()
    lists: dict[int, npt.NDArray[np.int32]] = {}
    steps: list[Step] = []
    fresh = bound = unread = left_out = 0
    for row in rows:
        if row.prompt_tokens is None or row.status != 200:
            left_out += 1
            continue
        if row.parent is not None and row.parent not in lists:  # its row was deleted, or left out
            lists[row.parent] = np.arange(fresh, fresh + reach[row.parent], dtype=np.int32)
            fresh += reach[row.parent]
        before = lists[row.parent] if row.parent is not None else np.empty(0, np.int32)
        shared = min(row.shared, len(before), row.prompt_tokens)
        length = max(row.prompt_tokens + (row.reply_tokens or 0), reach.get(row.id, 0))
        ids = np.concatenate((before[:shared], np.arange(fresh, fresh + length - shared, dtype=np.int32)))
        fresh += length - shared
        lists[row.id] = ids
        if not row.prompt_tokens:
            continue
        place = contents.add(Tokens.of(ids))
        prompt = contents.hold(place, row.prompt_tokens, row.prompt_tokens)
        kind = Kind.INFILL if row.endpoint == "/infill" else Kind.COMPLETION
        seconds = max(row.total_ms - row.added_ms, 0.0) / 1000
        at = row.at + row.added_ms / 1000
        reply = row.reply_tokens or 0
        steps.append(Step(row.id, prompt, kind, reply, at, seconds, row.evaluated))
        bound += max(row.prompt_tokens - shared, 1)
        unread += not row.read
    steps.sort(key=lambda step: step.at)
    return Trace(contents, steps, bound, unread, left_out)
