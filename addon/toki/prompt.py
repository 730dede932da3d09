"""The exact prompt of a request in tokens, as the server will see it; only what is new is tokenised.

Tokenising a prompt of 64k tokens takes the server tens of milliseconds, its last message one. So a text that begins as
one seen before keeps those tokens up to a seam (see seams.py), and only the rest is sent. Where there is no seam, or
where anything does not add up, the text is tokenised whole.

An image has no token ids. In the slot it is so many places with its own name, and is reused whole or not at all; so
here it is as many equal ids, made of its name and beyond any vocabulary. How many tell the server's counts.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
from dataclasses import dataclass
from threading import Event
from threading import Lock
from time import monotonic
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from toki.counts import Counts
from toki.endpoints.chat import read_chat
from toki.endpoints.question import Chat
from toki.endpoints.question import Ids
from toki.endpoints.question import Media
from toki.endpoints.question import Question
from toki.endpoints.question import Raw
from toki.endpoints.question import Unreadable
from toki.engine.tokens import Tokens
from toki.engine.window import user_starts
from toki.seams import Recent
from toki.seams import Tokenizer
from toki.seams import common_prefix
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

COUNTS_CHATS = "/v1/chat/completions/input_tokens"
BEYOND = 2**30  # token ids from here up stand for images
LEAST_SHARED = 4096  # bytes of a text for which it pays to wait for another one that begins as it does
MOST_SIZES = 4096  # images whose sizes are remembered

T = TypeVar("T")


class UnreadablePrompt(ValueError):
    """The exact tokens of a prompt can't be had; the text says why in plain words.

    `head`: the tokens with which it begins, where these can be had.
    """

    def __init__(self, why: str, head: Tokens | None = None) -> None:
        super().__init__(why)
        self.head = head


class PromptReader:
    """Reads prompts for one server and model. After a restart with another model, make a new one.

    Thread-safe. `deadline` is a time.monotonic(); what is left until then is the timeout of each call. The methods
    raise TimeoutError past it, ServerError where the server fails, UnreadablePrompt where exact tokens can't be had.
    """

    def __init__(self, backend: LlamaServerBackend) -> None:
        self.counts = Counts()
        self._backend = backend
        self._recent = Recent()
        self._asking = Lock()
        self._whole: dict[bytes, Event] = {}  # texts that are being tokenised whole
        self._delimiter: tuple[int, ...] | None = None  # token ids before each user message; None: not asked yet
        self._sizes: dict[str, int] = {}  # the tokens of images, by name
        self._known: tuple[Props, Tokenizer | None] | None = None

    def read(self, question: Question, body: bytes, auth: Auth, deadline: float) -> Tokens:
        """The prompt's tokens. `body` is the client's JSON; a chat is rendered from it where it has no body itself."""
        if not isinstance(question.prompt, Ids):
            return self.tokens(question, self.text(question, body, auth, deadline), auth, deadline)
        ids = question.prompt.ids
        if any(isinstance(each, str) for each in ids):
            return Tokens.of(self._calls(question.model, auth, deadline).tokenize(ids, add_special=True))
        try:
            return Tokens.of(np.array(ids, np.int64))
        except (OverflowError, ValueError):
            raise UnreadablePrompt("token ids of the prompt are out of range") from None

    def text(self, question: Question, body: bytes, auth: Auth, deadline: float) -> str:
        """The prompt's text, as the client or the chat template wrote it, with the server's marker in place of images.
        A prompt of token ids has none."""
        match question.prompt:
            case Raw(text, _):
                return text
            case Chat(other, media):
                calls = self._calls(question.model, auth, deadline)
                takes = self._learned(calls)[0].modalities if media else {}
                if not all(takes.get(each.modality) for each in media):
                    raise UnreadablePrompt("images or sound, which this server does not take")
                return calls.apply_template(body if other is None else json.dumps(other).encode())
            case Ids():
                raise UnreadablePrompt("the prompt is given as token ids")
            case Unreadable(why):
                raise UnreadablePrompt(why)

    def tokens(self, question: Question, text: str, auth: Auth, deadline: float) -> Tokens:
        """The tokens of a prompt, given its whole text, with those that the vocabulary puts around it."""
        calls = self._calls(question.model, auth, deadline)
        props, tokenizer = self._learned(calls)
        prompt = question.prompt
        media = prompt.media if isinstance(prompt, Chat | Raw) else ()
        marks = props.media_marker and (media or isinstance(prompt, Chat))  # in a bare text it is a text like others
        marked = text.split(props.media_marker) if marks else [text]
        if len(marked) != len(media) + 1:
            raise UnreadablePrompt("the prompt does not show each of its images once")
        pieces = self._pieces(tokenizer, marked, calls)
        tokens = next(pieces)
        for each, piece in zip(media, pieces, strict=True):
            size = self._size(each, calls)
            if size is None:
                raise UnreadablePrompt("images whose length in tokens can't be had", tokens)
            tokens = tokens.extended(np.full(size, _id(each), np.int64)).extended(piece.ids)
        return tokens

    def _pieces(self, tokenizer: Tokenizer | None, texts: Sequence[str], calls: _Calls) -> Iterator[Tokens]:
        """The tokens of the texts between images, which the server tokenises each for itself (llama.cpp, mtmd.cpp);
        those that the vocabulary puts before a prompt come with the first one only."""
        for number, text in enumerate(texts):
            if tokenizer is None:
                yield Tokens.of(calls.tokenize(text, add_special=number == 0))
            else:
                tokens = self._seen(tokenizer, text, calls)
                yield tokens if number == 0 else Tokens.of(tokens.ids[tokenizer.lead :])

    def _seen(self, tokenizer: Tokenizer, text: str, calls: _Calls) -> Tokens:
        """The tokens of a text, of which only what is new is tokenised."""
        try:
            data = text.encode()
        except UnicodeEncodeError:
            raise UnreadablePrompt("the prompt is no valid Unicode text") from None
        used, shared = self._recent.longest(data)
        if used is not None and used.text == data:
            return used.tokens
        seam = None if used is None else last_seam(used, shared)
        if seam is None and self._wait_for_kin(data, calls):
            return self._seen(tokenizer, text, calls)
        if used is not None and seam is not None:
            tail = calls.tokenize(data[seam.start :].decode(), add_special=False)
            seen = continued(tokenizer, used, seam, data, tail)
            if seen is not None:
                self._recent.put(seen, used)
                return seen.tokens
        with self._under_way(data):
            ids = calls.tokenize(text, add_special=True)
            seen = whole(tokenizer, data, ids)
            if seen is None:
                return Tokens.of(ids)
            self._recent.put(seen)
            return seen.tokens

    def _wait_for_kin(self, data: bytes, calls: _Calls) -> bool:
        """Wait where a text that is half of this one, or more, is being tokenised whole; whether that is done."""
        for text, done in list(self._whole.items()):
            if 2 * common_prefix(text, data) >= len(data) >= LEAST_SHARED:
                return done.wait(max(0.0, calls.deadline - monotonic()))
        return False

    @contextlib.contextmanager
    def _under_way(self, data: bytes) -> Iterator[None]:
        """While a text is tokenised whole."""
        done = self._whole[data] = Event()
        try:
            yield
        finally:
            self._whole.pop(data, None)
            done.set()

    def user_starts(self, question: Question, tokens: Tokens, auth: Auth, deadline: float) -> tuple[int, ...]:
        """How many tokens lie before each user message of a chat, as far as its template shows where they start.

        The template is asked once. Where it refuses, nothing is said: only the checkpoints of sliding-window models
        depend on it.
        """
        if not isinstance(question.prompt, Chat):
            return ()
        return user_starts(tokens.ids, self._delimited(self._calls(question.model, auth, deadline)))

    def prepare(self, auth: Auth, deadline: float) -> None:
        """Ask now what is asked only once, so that the first prompts need not."""
        calls = self._calls("", auth, deadline)
        self._learned(calls)
        self._delimited(calls)

    def _delimited(self, calls: _Calls) -> tuple[int, ...]:
        """The tokens that stand before each user message of a chat; empty where the template does not tell."""
        with self._asking:
            if self._delimiter is None:
                try:
                    delimiter = user_delimiter(calls.apply_template)
                    self._delimiter = tuple(calls.tokenize(delimiter, add_special=False).tolist()) if delimiter else ()
                except ServerError as error:
                    if error.status is None:
                        raise
                    self._delimiter = ()
            return self._delimiter

    def _calls(self, model: str, auth: Auth, deadline: float) -> _Calls:
        return _Calls(self._backend, model, auth, deadline)

    def _size(self, media: Media, calls: _Calls) -> int | None:
        """The tokens that an image takes, with those that the server writes around each; None where they can't be had.

        The server counts a chat of nothing but that image, which is done once for each image.
        """
        if not media.name:
            return None
        if media.name not in self._sizes:
            named = {"model": calls.model} if calls.model else {}
            alone = {"messages": [{"role": "user", "content": [media.part]}], **named}
            question = Question("", read_chat(alone), model=calls.model)
            text = self.text(question, b"", calls.auth, calls.deadline)
            try:
                counted = calls.count(COUNTS_CHATS, json.dumps(alone).encode())
            except ServerError as error:
                if error.status is None:
                    raise
                return None  # the request will be refused too
            props, tokenizer = self._learned(calls)
            around = self._pieces(tokenizer, text.split(props.media_marker), calls)
            if len(self._sizes) >= MOST_SIZES:
                self._sizes.clear()
            self._sizes[media.name] = counted - sum(map(len, around))
        size = self._sizes[media.name]
        return size if size > 0 else None

    def _learned(self, calls: _Calls) -> tuple[Props, Tokenizer | None]:
        """What is known of the server: asked for once. Who comes meanwhile waits for it: it is the fastest way."""
        with self._asking:
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

    def count(self, path: str, body: bytes) -> int:
        return self._in_time(lambda left: self.backend.count(path, body, self.auth, left))

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


def image_starts(tokens: Tokens) -> tuple[int, ...]:
    """How many tokens of a prompt lie before each image or sound; equal ones that adjoin count as one."""
    beyond = np.concatenate(([0], np.where(tokens.ids < BEYOND, 0, tokens.ids)))
    return tuple(np.flatnonzero((np.diff(beyond) != 0) & (beyond[1:] != 0)).tolist())


def _id(media: Media) -> int:
    """The token id that stands for an image: no vocabulary is so large."""
    return BEYOND + int(media.name, 16) % BEYOND


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
