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
from typing import TypeVar

from toki.engine.events import Measured

T = TypeVar("T")

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


def choice(chunk: Mapping[str, Any]) -> Mapping[str, Any]:
    """The first of the OpenAI form's `choices`; empty where there is none."""
    choices = chunk.get("choices")
    if isinstance(choices, list) and choices and isinstance(choices[0], Mapping):
        return choices[0]
    return {}


class Reply:
    """The reply's text as far as seen: None where none was shown, it cannot be whole, or it passes MAX_REPLY."""

    def __init__(self) -> None:
        self._parts: list[str] = []
        self._size = 0
        self._whole = True

    def add(self, text: object) -> None:
        """The next piece; what is no text is passed over."""
        if not isinstance(text, str):
            return
        self._size += len(text)
        if self._size > MAX_REPLY:
            self.spoil()
        elif self._whole:
            self._parts.append(text)

    def spoil(self) -> None:
        """What the answer shows is not all that was sampled (tool calls, reasoning, a stop word, several choices)."""
        self._whole = False
        self._parts.clear()

    @property
    def text(self) -> str | None:
        return "".join(self._parts) if self._parts else None


@dataclass(slots=True)
class Figures:
    """The figures seen so far in one answer. A later figure replaces an earlier one; an unbelievable one does not."""

    prompt_tokens: int | None = None
    reused: int | None = None
    evaluated: int | None = None
    reply_tokens: int | None = None
    slot: int | None = None
    prompt_ms: float | None = None
    reply_ms: float | None = None
    truncated: bool = False
    several: bool = False  # the answer has several results; no figure covers them all

    def note(
        self,
        *,
        prompt_tokens: object = None,
        reused: object = None,
        evaluated: object = None,
        reply_tokens: object = None,
        slot: object = None,
        prompt_ms: object = None,
        reply_ms: object = None,
    ) -> None:
        """Keep what can be true of values as they stood in an answer (an `id_slot` of -1 means not yet known)."""
        self.prompt_tokens = _newer(count(prompt_tokens), self.prompt_tokens)
        self.reused = _newer(count(reused), self.reused)
        self.evaluated = _newer(count(evaluated), self.evaluated)
        self.reply_tokens = _newer(count(reply_tokens), self.reply_tokens)
        self.slot = _newer(count(slot), self.slot)
        self.prompt_ms = _newer(milliseconds(prompt_ms), self.prompt_ms)
        self.reply_ms = _newer(milliseconds(reply_ms), self.reply_ms)

    def progress(self, chunk: Mapping[str, Any]) -> None:
        """`prompt_progress`, sent before the first token where the client set return_progress."""
        found = part(chunk, "prompt_progress")
        self.note(prompt_tokens=found.get("total"), reused=found.get("cache"))

    def timings(self, chunk: Mapping[str, Any]) -> None:
        """The `timings` of `chunk`: cache_n, prompt_n, predicted_n, prompt_ms, predicted_ms.

        `response_fields` can move single ones to the root of a /completion answer, as "timings/cache_n".
        """
        found = part(chunk, "timings")
        self.note(
            reused=found.get("cache_n", chunk.get("timings/cache_n")),
            evaluated=found.get("prompt_n", chunk.get("timings/prompt_n")),
            reply_tokens=found.get("predicted_n", chunk.get("timings/predicted_n")),
            prompt_ms=found.get("prompt_ms", chunk.get("timings/prompt_ms")),
            reply_ms=found.get("predicted_ms", chunk.get("timings/predicted_ms")),
        )

    def usage(self, chunk: Mapping[str, Any]) -> None:
        """The `usage` of `chunk` in the form of the OpenAI completions."""
        found = part(chunk, "usage")
        self.note(
            prompt_tokens=found.get("prompt_tokens"),
            reply_tokens=found.get("completion_tokens"),
            reused=part(found, "prompt_tokens_details").get("cached_tokens"),
        )

    def result(self, result: Mapping[str, Any]) -> None:
        """The server's own result object: an answer of /completion, or `__verbose` elsewhere."""
        self.note(
            prompt_tokens=result.get("tokens_evaluated"),
            reply_tokens=result.get("tokens_predicted"),
            slot=result.get("id_slot"),
        )
        self.truncated |= result.get("truncated") is True

    def openai(self, chunk: Mapping[str, Any]) -> None:
        """All figures of an answer, or of one chunk of it, in the form of the OpenAI completions."""
        choices = chunk.get("choices")
        self.several |= (isinstance(choices, list) and len(choices) > 1) or choice(chunk).get("index", 0) != 0
        self.progress(chunk)
        self.usage(chunk)
        self.timings(chunk)
        self.result(part(chunk, "__verbose"))

    def measured(self, finished: bool, reply_text: str | None = None) -> Measured:
        """All figures, each missing one filled in where two others give it; contradictions are dropped.

        Of an answer that did not finish, the figures are those so far: they need not add up, and nothing is filled in.
        """
        if self.several:
            return Measured(finished=finished)
        prompt, reused, evaluated = self.prompt_tokens, self.reused, self.evaluated
        if prompt is None and finished and reused is not None and evaluated is not None:
            prompt = count(reused + evaluated)
        if prompt is not None:
            reused = None if reused is not None and reused > prompt else reused
            evaluated = None if evaluated is not None and evaluated > prompt else evaluated
        if prompt is not None and finished:
            match reused, evaluated:
                case int(), int() if reused + evaluated != prompt:
                    reused = evaluated = None
                case int(), None:
                    evaluated = prompt - reused
                case None, int():
                    reused = prompt - evaluated
        return Measured(
            prompt_tokens=prompt,
            reused=reused,
            evaluated=evaluated,
            reply_tokens=self.reply_tokens,
            slot=self.slot,
            prompt_ms=self.prompt_ms,
            reply_ms=self.reply_ms,
            reply_text=reply_text,
            truncated=self.truncated,
            finished=finished,
        )


def _newer(new: T | None, old: T | None) -> T | None:
    return old if new is None else new
