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
from toki.endpoints.options import question
from toki.endpoints.question import Chat
from toki.endpoints.question import Question
from toki.endpoints.question import Unreadable
from toki.engine.events import Measured

MEDIA = ("image_url", "input_audio", "input_video", "video_url")


def read_messages(messages: object) -> Chat | Unreadable:
    """Chat where the messages hold nothing but text.

    Media stay unread although the template could be rendered: their tokens can't be had, and rendering would make
    the server fetch and decode them a second time.
    """
    if not isinstance(messages, list):
        return Unreadable("no messages")
    for message in messages:
        content = message.get("content") if isinstance(message, Mapping) else None
        for piece in content if isinstance(content, list) else ():
            kind = piece.get("type") if isinstance(piece, Mapping) else None
            if kind in MEDIA:
                return Unreadable("images")
            if kind != "text":
                return Unreadable("a content part of an odd type")
    return Chat()


@dataclass(frozen=True, slots=True)
class ChatCompletion:
    """/v1/chat/completions and /chat/completions."""

    name: str

    def read(self, body: Mapping[str, Any]) -> Question:
        found = question(self.name, body, read_messages(body.get("messages")))
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
