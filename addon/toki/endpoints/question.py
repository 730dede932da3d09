"""What a request asks of the server, in the terms that every API shape shares, and the two protocols a shape fulfils.

Each shape (completion.py, chat.py, …) turns its own body into one Question and its own answers into one Measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from typing import Protocol

from toki.engine.events import Kind
from toki.engine.events import Measured


@dataclass(frozen=True, slots=True)
class Media:
    """An image or sound of a chat.

    `part` is the part of a message that holds it, in the chat shape; `modality` is what a server needs to take it, as
    /props names it. `name` stands for its bytes (hex digits); "" where these are not in the body, so that only the
    server can get them.
    """

    part: Mapping[str, Any]
    modality: str
    name: str = ""


@dataclass(frozen=True, slots=True)
class Chat:
    """Messages: the server's own /apply-template renders them.

    `body` is the body to render where it is not the client's own: converted from another shape, or with stand-ins in
    place of `media`, which are told in their order. None: render the client's own bytes.
    """

    body: Mapping[str, Any] | None = None
    media: tuple[Media, ...] = ()


@dataclass(frozen=True, slots=True)
class Raw:
    """One text, tokenised with add_special and parse_special. `media`: what its markers stand for, in their order."""

    text: str
    media: tuple[Media, ...] = ()


@dataclass(frozen=True, slots=True)
class Ids:
    """Token ids, or ids and texts mixed; add_special counts only where the first element is a text."""

    ids: tuple[int | str, ...]


@dataclass(frozen=True, slots=True)
class Unreadable:
    """The exact prompt cannot be had; `why` says so in plain words."""

    why: str


Prompt = Chat | Raw | Ids | Unreadable


@dataclass(frozen=True, slots=True)
class Question:
    """One request, read: what the engine's Ask needs but for the tokens.

    `fixed` says in plain words why the request must leave as it came ("" where it may be steered).
    """

    endpoint: str
    prompt: Prompt
    kind: Kind = Kind.COMPLETION
    model: str = ""
    stream: bool = False
    fixed: str = ""
    honours_slot: bool = True  # the endpoint passes `id_slot` on to the task
    client_slot: int | None = None  # the client's own id_slot as a server that honours it reads it; None: automatic
    cache_prompt: bool = True
    chose_cache: bool = False  # the body says whether the cache is used
    children: int = 0  # copies beside the first completion (n - 1)
    prompts: int = 1  # a list of prompts becomes that many tasks
    max_tokens: int | None = None  # None: unlimited or not said
    lora: str = ""  # the adapter set, canonical; "" where the body names none
    count_path: str = ""  # POST the client's body there: the server's own length of its prompt; "" where none counts


class Meter(Protocol):
    """Reads the server's own figures from one answer: one JSON object of a plain answer, many of a stream.

    A lying or odd answer never raises; what cannot be believed is None in the result.
    """

    def feed(self, chunk: Mapping[str, Any]) -> None: ...

    def measured(self, finished: bool) -> Measured: ...


class Endpoint(Protocol):
    """One route of the server. `name` is that route without a server prefix, such as "/v1/chat/completions"."""

    @property
    def name(self) -> str: ...

    def read(self, body: Mapping[str, Any]) -> Question: ...

    def meter(self) -> Meter: ...
