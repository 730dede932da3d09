"""The exact prompt of a request in tokens, as the server will see it; only what is new is tokenised.

Tokenising a prompt of 64k tokens takes the server tens of milliseconds, its last message one. So a text that begins as
one seen before keeps those tokens up to a seam (see seams.py), and only the rest is sent. Where there is no seam, or
where anything does not add up, the text is tokenised whole.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from collections.abc import Sequence
from dataclasses import dataclass
from time import monotonic
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from toki.counts import Counts
from toki.endpoints.question import Chat
from toki.endpoints.question import Ids
from toki.endpoints.question import Question
from toki.endpoints.question import Raw
from toki.endpoints.question import Unreadable
from toki.engine.tokens import Tokens
from toki.engine.window import user_starts
from toki.seams import Recent
from toki.seams import Tokenizer
from toki.seams import continued
from toki.seams import last_seam
from toki.seams import learn
from toki.seams import whole
from toki.server import Auth
from toki.server import LlamaServerBackend
from toki.server import Props
from toki.server import ServerError
from toki.turns import user_delimiter

# A chat that every template takes: rendered, it shows the control tokens which a template puts together from pieces.
_SAMPLE = [{"role": role, "content": "a"} for role in ("user", "assistant", "user")]

T = TypeVar("T")


class UnreadablePrompt(ValueError):
    """The exact tokens of a prompt can't be had; the text says why in plain words."""


class PromptReader:
    """Reads prompts for one server and model. After a restart with another model, make a new one.

    Thread-safe. `deadline` is a time.monotonic(); what is left until then is the timeout of each call. The methods
    raise TimeoutError past it, ServerError where the server fails, UnreadablePrompt where exact tokens can't be had.
    """

    def __init__(self, backend: LlamaServerBackend) -> None:
        self.counts = Counts()
        self._backend = backend
        self._recent = Recent()
        self._delimiter: tuple[int, ...] | None = None  # token ids before each user message; None: not asked yet
        self._known: tuple[Props, Tokenizer | None] | None = None

    def read(self, question: Question, body: bytes, auth: Auth, deadline: float) -> Tokens:
        """The prompt's tokens. `body` is the client's JSON; a chat is rendered from it unless it was converted."""
        if not isinstance(question.prompt, Ids):
            text = self.text(question, body, auth, deadline)
            return self.tokens(text, question.model, auth, deadline)
        ids = question.prompt.ids
        if any(isinstance(each, str) for each in ids):
            return Tokens.of(self._calls(question.model, auth, deadline).tokenize(ids, add_special=True))
        try:
            return Tokens.of(np.array(ids, np.int64))
        except (OverflowError, ValueError) as error:
            raise UnreadablePrompt(f"the prompt's token ids: {error}") from None

    def text(self, question: Question, body: bytes, auth: Auth, deadline: float) -> str:
        """The prompt's text, as the client or the chat template wrote it. A prompt of token ids has none."""
        match question.prompt:
            case Raw(text):
                return text
            case Chat(converted):
                calls = self._calls(question.model, auth, deadline)
                return self._render(body if converted is None else json.dumps(converted).encode(), calls)
            case Ids():
                raise UnreadablePrompt("the prompt is given as token ids")
            case Unreadable(why):
                raise UnreadablePrompt(why)

    def tokens(self, text: str, model: str, auth: Auth, deadline: float) -> Tokens:
        """The tokens of a prompt's whole text, with those that the vocabulary puts around it."""
        calls = self._calls(model, auth, deadline)
        _, tokenizer = self._learned(calls)
        if tokenizer is None:
            return Tokens.of(calls.tokenize(text, add_special=True))
        try:
            data = text.encode()
        except UnicodeEncodeError:
            raise UnreadablePrompt("the prompt is no valid Unicode text") from None
        used, shared = self._recent.longest(data)
        if used is not None and used.text == data:
            return used.tokens
        seam = None if used is None else last_seam(used, shared)
        if used is not None and seam is not None:
            tail = calls.tokenize(data[seam.start :].decode(), add_special=False)
            seen = continued(tokenizer, used, seam, data, tail)
            if seen is not None:
                self._recent.put(seen, used)
                return seen.tokens
        ids = calls.tokenize(text, add_special=True)
        seen = whole(tokenizer, data, ids)
        if seen is None:
            return Tokens.of(ids)
        self._recent.put(seen)
        return seen.tokens

    def user_starts(self, question: Question, tokens: Tokens, auth: Auth, deadline: float) -> tuple[int, ...]:
        """How many tokens lie before each user message of a chat, as far as its template shows where they start.

        The template is asked once. Where it refuses, nothing is said: only the checkpoints of sliding-window models
        depend on it.
        """
        if not isinstance(question.prompt, Chat):
            return ()
        if self._delimiter is None:
            calls = self._calls(question.model, auth, deadline)
            try:
                delimiter = user_delimiter(calls.apply_template)
                self._delimiter = tuple(calls.tokenize(delimiter, add_special=False).tolist()) if delimiter else ()
            except ServerError as error:
                if error.status is None:
                    raise
                self._delimiter = ()
        return user_starts(tokens.ids, self._delimiter)

    def _calls(self, model: str, auth: Auth, deadline: float) -> _Calls:
        return _Calls(self._backend, model, auth, deadline)

    def _render(self, body: bytes, calls: _Calls) -> str:
        props, _ = self._learned(calls)
        text = calls.apply_template(body)
        if props.media_marker and props.media_marker in text:
            raise UnreadablePrompt("the prompt holds images or sound")
        return text

    def _learned(self, calls: _Calls) -> tuple[Props, Tokenizer | None]:
        """What is known of the server: asked for once (by each of the threads that come first)."""
        if self._known is None:
            props = calls.props()
            self._known = props, _tokenizer(props, calls)
        return self._known


@dataclass(frozen=True, slots=True)
class _Calls:
    """The look-ups of one request: its model, its credentials, its deadline."""

    backend: LlamaServerBackend
    model: str
    auth: Auth
    deadline: float

    def props(self) -> Props:
        return self._in_time(lambda left: self.backend.props(self.auth, left, self.model))

    def apply_template(self, body: bytes) -> str:
        return self._in_time(lambda left: self.backend.apply_template(body, self.auth, left))

    def tokenize(
        self, content: str | Sequence[int | str], *, add_special: bool, parse_special: bool = True
    ) -> npt.NDArray[np.int32]:
        return self._in_time(
            lambda left: self.backend.tokenize(
                content, self.auth, left, add_special=add_special, parse_special=parse_special, model=self.model
            )
        )

    def _in_time(self, call: Callable[[float], T]) -> T:
        left = self.deadline - monotonic()
        if left > 0:
            try:
                return call(left)
            except ServerError:
                if monotonic() < self.deadline:
                    raise
        raise TimeoutError("the deadline for look-ups has passed")


def _tokenizer(props: Props, calls: _Calls) -> Tokenizer | None:
    """None where the server answers but refuses to help with the proof: then texts are tokenised whole."""
    named = {"model": calls.model} if calls.model else {}
    try:
        sample = calls.apply_template(json.dumps({"messages": _SAMPLE, **named}).encode())
        return learn((props.chat_template, props.bos_token, props.eos_token, sample), calls.tokenize)
    except ServerError as error:
        if error.status is None:
            raise
        return None
