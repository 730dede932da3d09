"""Ties explanations to the traffic of one server: what was asked goes in, explanations come out, in bounded memory.

A prompt is compared while the server answers, in a worker thread, so that nothing waits for it; what is left when the
answer is there takes microseconds.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any
from typing import Protocol

from toki.engine.events import Action
from toki.engine.events import Record
from toki.engine.tokens import Tokens
from toki.inspect.comparison import Comparison
from toki.inspect.comparison import Prompt
from toki.inspect.comparison import compare
from toki.inspect.explain import Explainer
from toki.inspect.explain import Tally
from toki.inspect.explanation import Explanation
from toki.inspect.finding import Finding
from toki.inspect.outline import of_chat
from toki.inspect.outline import of_text
from toki.schema import Row

KEPT = 512  # explanations

Complain = Callable[[BaseException], None]


class Submit(Protocol):
    """Runs a call in a worker thread."""

    def __call__(self, call: Callable[[], Comparison]) -> asyncio.Future[Comparison]: ...


@dataclass(frozen=True, slots=True)
class Asked:
    """What was read of a request: its body in the chat shape (None: it has no messages), the prompt's whole text ("":
    it can't be had) and tokens; `owner` and `cached` as in Prompt."""

    chat: Mapping[str, Any] | None
    text: str = ""
    tokens: Tokens | None = None
    owner: str = ""
    cached: bool = True


class Inspector:
    """The explanations of one server. Used on the event loop. `complain` is told of faults, which cost explanations
    only."""

    def __init__(self, submit: Submit, complain: Complain) -> None:
        self.latest: deque[Explanation] = deque(maxlen=KEPT)
        self._explainer = Explainer()
        self._submit = submit
        self._complain = complain
        self._comparing: dict[int, asyncio.Future[Comparison]] = {}
        self._met = False

    @property
    def causes(self) -> tuple[Tally, ...]:
        """What was found until now, each cause once, the one seen last at the end."""
        return self._explainer.causes

    @property
    def remembered(self) -> tuple[int, int]:
        """How many prompts are in memory, and how many bytes they take."""
        memory = self._explainer.memory
        return len(memory.prompts), memory.size

    def forget(self) -> None:
        """Forget all prompts, causes and explanations."""
        self._explainer.forget()
        self.latest.clear()

    def restarted(self, whole: bool) -> None:
        """The server is new, or another one. The first time it is merely met. `whole`: its model is known to be able to
        go back to any token."""
        if self._met:
            self._explainer.restarted()
        self._met = True
        self._explainer.whole = whole

    def begin(self, key: int, asked: Asked) -> None:
        """A request is under way: compare its prompt with earlier ones."""
        self._comparing[key] = comparing = self._submit(partial(_compare, key, asked, self._explainer))
        comparing.add_done_callback(self._compared)

    def conclude(self, row: Row, record: Record, unread: bool, tell: Callable[[Explanation], None]) -> None:
        """A request has ended: `tell` is called with its explanation, at once where its prompt has been compared."""
        comparing = self._comparing.pop(row.key, None)
        conclude = partial(self._conclude, row, record, unread, tell)
        if comparing is None or comparing.done():
            conclude(comparing)
        else:
            comparing.add_done_callback(conclude)

    def _compared(self, comparing: asyncio.Future[Comparison]) -> None:
        if comparing.cancelled():
            return
        error = comparing.exception()
        if error is None:
            self._explainer.memory.add(comparing.result())
        else:
            self._complain(error)

    def _conclude(
        self,
        row: Row,
        record: Record,
        unread: bool,
        tell: Callable[[Explanation], None],
        comparing: asyncio.Future[Comparison] | None,
    ) -> None:
        known = comparing is not None and not comparing.cancelled() and comparing.exception() is None
        compared = comparing.result() if comparing is not None and known else None
        try:
            findings: tuple[Finding, ...] = ()
            if compared is not None:
                findings = self._explainer.conclude(
                    compared,
                    record.measured,
                    record.believed,
                    unread=unread,
                    predicted=record.predicted,
                    cached=record.action is not Action.ISOLATED,
                    ran=(row.at + row.added_ms / 1000, row.at + row.total_ms / 1000),
                )
        except Exception as error:
            self._complain(error)
            findings = ()
        against = compared.against.key if compared is not None and compared.against is not None else None
        shared = compared.shared if compared is not None else None
        explanation = Explanation(row, record.believed, against, shared, findings)
        self.latest.append(explanation)
        tell(explanation)


def _compare(key: int, asked: Asked, explainer: Explainer) -> Comparison:
    """In a worker thread."""
    outline = of_text(asked.text) if asked.chat is None else of_chat(asked.chat)
    prompt = Prompt(key, outline, asked.text, asked.tokens, asked.owner, asked.cached)
    assert prompt.memory >= 0  # worked out here, not on the event loop
    return compare(prompt, [one for one in explainer.memory.prompts if one.prompt.owner == prompt.owner])
