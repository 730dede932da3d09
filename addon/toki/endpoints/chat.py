"""/v1/chat/completions: messages, rendered by the template of the model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import replace
from typing import Any

from toki.endpoints.figures import Figures
from toki.endpoints.figures import Reply
from toki.endpoints.figures import choice
from toki.endpoints.figures import part
from toki.endpoints.media import KINDS
from toki.endpoints.media import media
from toki.endpoints.media import parts
from toki.endpoints.media import without_data
from toki.endpoints.options import question
from toki.endpoints.question import Chat
from toki.endpoints.question import Question
from toki.endpoints.question import Unreadable
from toki.engine.events import Measured

NO_STAND_IN = ("input_video", "video_url")


def read_chat(body: Mapping[str, Any], *, converted: bool = False) -> Chat | Unreadable:
    """The prompt of a body in the chat shape; `converted`: it is not the client's own."""
    messages = body.get("messages")
    if not isinstance(messages, list):
        return Unreadable("no messages")
    found = []
    for piece in parts(messages):
        kind = piece.get("type") if isinstance(piece, Mapping) else None
        if kind in KINDS:
            found.append(media(piece))
        elif kind in NO_STAND_IN:
            return Unreadable("videos")
        elif kind != "text":
            return Unreadable("a content part of an odd type")
    if found:
        return Chat({**body, "messages": without_data(messages)}, tuple(found))
    return Chat(body) if converted else Chat()


@dataclass(frozen=True, slots=True)
class ChatCompletion:
    """/v1/chat/completions and /chat/completions."""

    name: str

    def read(self, body: Mapping[str, Any]) -> Question:
        found = question(self.name, body, read_chat(body))
        return replace(found, count_path=f"{self.name}/input_tokens")

    def meter(self) -> ChatMeter:
        return ChatMeter()


class ChatMeter:
    """The last chunk of a stream has the timings without being asked; the usage only comes with include_usage."""

    def __init__(self) -> None:
        self._figures = Figures()
        self._reply = Reply()

    def feed(self, chunk: Mapping[str, Any]) -> None:
        self._figures.openai(chunk)
        shown = choice(chunk)
        message = part(shown, "message") or part(shown, "delta")
        self._reply.add(message.get("content"))
        if message.get("tool_calls") or message.get("reasoning_content"):
            self._reply.spoil()

    def measured(self, finished: bool) -> Measured:
        return self._figures.measured(finished, self._reply.text)
