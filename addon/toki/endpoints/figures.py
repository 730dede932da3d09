"""The figures that the answers of all shapes share: `timings`, token counts, and the reply's text.

A figure that cannot be true (negative, a float or bool where a count belongs, beyond an int32, more reused than
the prompt has) is dropped alone: "unknown" is safe, a wrong number would teach the engine wrong things.

Name traps: `tokens_cached` is what the slot holds after the request, not the reuse; `tokens_evaluated` is the whole
prompt. The reuse is `timings.cache_n`, and cache_n + prompt_n is the length of the prompt.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from toki.engine.events import Measured

MAX_COUNT = 2**31 - 1  # the server counts tokens in int32
MAX_REPLY = 4 * 2**20  # characters of reply text that are kept


def count(value: object) -> int | None:
    """A count of tokens, or None where `value` cannot be one."""
    if type(value) is int and 0 <= value <= MAX_COUNT:
        return value
    return None


def milliseconds(value: object) -> float | None:
    """A duration, or None where `value` cannot be one."""
    if type(value) is int and 0 <= value <= MAX_COUNT:
        return float(value)
    if type(value) is float and math.isfinite(value) and value >= 0:
        return value
    return None


def part(value: object, key: str) -> Mapping[str, Any]:
    """The object at `key` of `value`; empty where there is none."""
    if isinstance(value, Mapping):
        found = value.get(key)
        if isinstance(found, Mapping):
            return found
    return {}


class Reply:
    """The concatenated reply text: None once it cannot be the whole raw text, or passes 4 Mi characters."""

    def __init__(self) -> None:
        self._parts: list[str] | None = []
        self._size = 0

    def add(self, text: str) -> None:
        self._size += len(text)
        if self._size > MAX_REPLY:
            self.spoil()
        elif self._parts is not None:
            self._parts.append(text)

    def spoil(self) -> None:
        """What the answer shows is not all that was sampled (tool calls, reasoning, several choices)."""
        self._parts = None

    @property
    def text(self) -> str | None:
        return None if self._parts is None else "".join(self._parts)


@dataclass(slots=True)
class Figures:
    """The figures seen so far in one answer. A later figure replaces an earlier one; an unbelievable one does not."""

    prompt_tokens: int | None = None
    reused: int | None = None
    evaluated: int | None = None
    reply_tokens: int | None = None
    slot: int | None = None
    prompt_ms: float | None = None
    truncated: bool = False

    def note(
        self,
        *,
        prompt_tokens: object = None,
        reused: object = None,
        evaluated: object = None,
        reply_tokens: object = None,
        slot: object = None,
        prompt_ms: object = None,
    ) -> None:
        """Keep what can be true of values as they stood in an answer (an `id_slot` of -1 means not yet known)."""
        self.prompt_tokens = _newer(count(prompt_tokens), self.prompt_tokens)
        self.reused = _newer(count(reused), self.reused)
        self.evaluated = _newer(count(evaluated), self.evaluated)
        self.reply_tokens = _newer(count(reply_tokens), self.reply_tokens)
        self.slot = _newer(count(slot), self.slot)
        told = milliseconds(prompt_ms)
        self.prompt_ms = self.prompt_ms if told is None else told

    def timings(self, chunk: Mapping[str, Any]) -> None:
        """The `timings` object of `chunk`, where it has one: cache_n, prompt_n, predicted_n, prompt_ms."""
        found = part(chunk, "timings")
        self.note(
            reused=found.get("cache_n"),
            evaluated=found.get("prompt_n"),
            reply_tokens=found.get("predicted_n"),
            prompt_ms=found.get("prompt_ms"),
        )

    def measured(self, finished: bool, reply_text: str | None = None) -> Measured:
        """All figures, each missing one filled in where two others give it; contradictions are dropped."""
        prompt, reused, evaluated = self.prompt_tokens, self.reused, self.evaluated
        if prompt is None and reused is not None and evaluated is not None:
            prompt = count(reused + evaluated)
        if prompt is not None:
            if reused is not None and reused > prompt:
                reused = None
            if evaluated is not None and evaluated > prompt:
                evaluated = None
            if reused is not None and evaluated is not None and reused + evaluated != prompt:
                reused = evaluated = None
            elif reused is not None and evaluated is None:
                evaluated = prompt - reused
            elif evaluated is not None and reused is None:
                reused = prompt - evaluated
        return Measured(
            prompt_tokens=prompt,
            reused=reused,
            evaluated=evaluated,
            reply_tokens=self.reply_tokens,
            slot=self.slot,
            prompt_ms=self.prompt_ms,
            reply_text=reply_text,
            truncated=self.truncated,
            finished=finished,
        )


def _newer(new: int | None, old: int | None) -> int | None:
    return old if new is None else new
