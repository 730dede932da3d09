"""Onward: requests that go on where an earlier one ended, told by their bodies alone.

While a slot still holds all that the earlier one left, such a request needs no decision: what it shares most with is
that slot, so the server takes it by itself and keeps all that it holds, and no other way could reuse more or lose less.
(Simulated: of 1,044 such requests of seven scenarios before six kinds of servers the choice steered none.) So it need
not be held until its prompt is rendered and tokenised, which for a long chat takes longer than all else that toki does.
The same holds where a launch has just put it into the RAM cache, if no other slot draws it from there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from toki.endpoints.question import Chat
from toki.endpoints.question import Ids
from toki.endpoints.question import Question
from toki.endpoints.question import Raw
from toki.server import Auth

MOSTLY = 2 / 3  # of the bytes of the new body must be the earlier one's: well above any `--slot-prompt-similarity`
MARK = "cache_control"  # Anthropic's
FREE = frozenset(
    {"max_tokens", "max_completion_tokens", "n_predict", "stream", "stream_options"}
)  # no part of a prompt


@dataclass(frozen=True, slots=True)
class Turn:
    """What a request asks: its body of `size` bytes, the same as a question, and on whose behalf."""

    body: Mapping[str, Any]
    question: Question
    size: int
    auth: Auth

    def goes_on(self, earlier: Turn) -> bool:
        """Whether its prompt is that of an `earlier` request and more.

        What a template makes of that is not asked: where it renders the history otherwise, the server's own choice is
        a good one all the same, and what it found is known soon after.
        """
        if (self.question.endpoint, self.auth) != (earlier.question.endpoint, earlier.auth):
            return False
        if not MOSTLY * self.size <= earlier.size < self.size:
            return False
        try:
            return self._grew(earlier)
        except RecursionError:  # it is nested so deeply that it can be read, but not be compared
            return False

    def _grew(self, earlier: Turn) -> bool:
        match self.question.prompt, earlier.question.prompt:
            case Raw(text, ()), Raw(old, ()):
                return text.startswith(old) and _alike(self.body, earlier.body, "prompt")
            case Ids(ids), Ids(old):
                return ids[: len(old)] == old and _alike(self.body, earlier.body, "prompt")
            case Chat(rendered, ()), Chat(old_rendered, ()):
                new, old_body = rendered or self.body, old_rendered or earlier.body
                return _grows(new.get("messages"), old_body.get("messages")) and _alike(new, old_body, "messages")
        return False


class Turns:
    """What was asked lately and answered, by key: at most `count` requests and `limit` bytes of their bodies."""

    def __init__(self, count: int = 32, limit: int = 32 * 2**20) -> None:
        self._count = count
        self._limit = limit
        self._by_key: dict[int, Turn] = {}

    def add(self, key: int, turn: Turn, earlier: int | None) -> None:
        """A request was answered; the `earlier` one that it goes on from is of no more use."""
        if earlier is not None:
            self._by_key.pop(earlier, None)  # others may have pushed it out meanwhile
        self._by_key[key] = turn
        while len(self._by_key) > self._count or sum(one.size for one in self._by_key.values()) > self._limit:
            del self._by_key[next(iter(self._by_key))]

    def before(self, turn: Turn) -> int | None:
        """The latest request that `turn` goes on from."""
        return next((key for key, one in reversed(self._by_key.items()) if turn.goes_on(one)), None)


def _grows(new: object, old: object) -> bool:
    """Whether messages are others, an answer, and what came behind that."""
    if not isinstance(new, list) or not isinstance(old, list) or not old or len(new) < len(old) + 2:
        return False
    answer = new[len(old)]
    if not isinstance(answer, Mapping) or answer.get("role") != "assistant":
        return False
    return all(one == other or _unmarked(one) == _unmarked(other) for one, other in zip(old, new, strict=False))


def _unmarked(value: Any) -> Any:
    """A message without the marks of a cache that llama-server has not, which clients move on with each turn."""
    if isinstance(value, Mapping):
        return {key: _unmarked(each) for key, each in value.items() if key != MARK}
    return [_unmarked(each) for each in value] if isinstance(value, list) else value


def _alike(new: Mapping[str, Any], old: Mapping[str, Any], grown: str) -> bool:
    """Whether bodies are the same but for the part that has `grown`, and for what is no part of a prompt."""
    apart = FREE | {grown}
    return {key: new[key] for key in new.keys() - apart} == {key: old[key] for key in old.keys() - apart}
