"""/v1/messages: the shape that Claude Code speaks. No endpoint renders it, so it is converted to the chat shape here.

The conversion follows the server's own, step by step (llama.cpp b11549, server-chat.cpp,
server_chat_convert_anthropic_to_oai; b10434 gives the same), so that /apply-template of the converted body gives the
prompt that the server will use. Builds may differ: `count_path` names the endpoint that counts the untouched body.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import replace
from typing import Any

from toki.endpoints.conversion import Json
from toki.endpoints.conversion import RefusedError
from toki.endpoints.conversion import converted
from toki.endpoints.conversion import dump
from toki.endpoints.conversion import member
from toki.endpoints.conversion import text
from toki.endpoints.figures import Figures
from toki.endpoints.figures import Reply
from toki.endpoints.figures import count
from toki.endpoints.figures import part
from toki.endpoints.options import question
from toki.endpoints.question import Question
from toki.engine.events import Measured

ATTRIBUTION = "x-anthropic-billing-header:"
STAMP = 5  # bytes
DEFAULT_MAX_TOKENS = 4096
DEFAULT_THINKING_BUDGET = 10_000
COPIED = ("temperature", "top_p", "top_k", "stream", "chat_template_kwargs", "model")
TOOL_CHOICES = {"auto": "auto", "any": "required", "tool": "required"}


def to_chat(body: Mapping[str, Any]) -> Json:
    """The chat body that the server makes of a messages body. Raises RefusedError where it refuses.

    The model's name goes along, which the server drops: /apply-template of a router goes by it.
    """
    if "messages" not in body:
        raise RefusedError("'messages' is required")
    messages: list[Any] = []
    if body.get("system") is not None:
        messages.append({"role": "system", "content": _system(body["system"])})
    given = body["messages"]
    for message in given if isinstance(given, list) else ():
        messages += _message(message)

    chat: Json = {"messages": messages}
    if isinstance(body.get("tools"), list):
        chat["tools"] = [_tool(tool) for tool in body["tools"]]
    choice = TOOL_CHOICES.get(text(body.get("tool_choice"), "type"))
    if choice is not None:
        chat["tool_choice"] = choice
    if "stop_sequences" in body:
        chat["stop"] = body["stop_sequences"]
    chat["max_tokens"] = body.get("max_tokens", DEFAULT_MAX_TOKENS)
    chat |= {key: body[key] for key in COPIED if key in body}
    thinking = body.get("thinking")
    if text(thinking, "type") == "enabled":
        chat["thinking_budget_tokens"] = _budget(member(thinking, "budget_tokens"))
    user = text(body.get("metadata"), "user_id")
    if user:
        chat["__metadata_user_id"] = user
    return chat


def _system(system: object) -> str:
    if isinstance(system, str):
        return mask_attribution(system)
    if isinstance(system, list):
        return "".join(mask_attribution(text(block, "text")) for block in system if text(block, "type") == "text")
    return ""


def mask_attribution(system: str) -> str:
    """`system` with the stamp of its attribution line, new in each request, replaced as the server does.

    Only the first `cch=` counts, and only where exactly five bytes and a `;` follow it (llama.cpp PR #21793).
    """
    if not system.startswith(ATTRIBUTION):
        return system
    raw = system.encode("utf-8", "surrogatepass")
    found = raw.find(b"cch=", len(ATTRIBUTION))
    start, end = found + 4, found + 4 + STAMP
    if found < 0 or raw[end : end + 1] != b";":
        return system
    return (raw[:start] + b"f" * STAMP + raw[end:]).decode("utf-8", "surrogatepass")


def _message(message: Any) -> list[Any]:
    """One message, turned into the messages it becomes: itself without its tool results, then each of those."""
    if not isinstance(message, Mapping) or "content" not in message:
        return [] if text(message, "role") == "assistant" else [message]
    if not isinstance(message["content"], list):
        return [message]

    content: list[Any] = []
    reasoning = ""
    calls: list[Json] = []
    results: list[Json] = []
    for block in message["content"]:
        match text(block, "type"):
            case "text":
                content.append(block)
            case "thinking":
                reasoning += text(block, "thinking")
            case "image":
                content += _image(block)
            case "tool_use":
                calls.append(_call(block))
            case "tool_result":
                results.append(_result(block))
            case _:  # documents, redacted thinking, the results of tools that run elsewhere: not shown to the model
                pass
    if not (content or calls or reasoning):
        return results
    said: Json = {"role": text(message, "role"), "content": content or ""}
    if calls:
        said["tool_calls"] = calls
    if reasoning:
        said["reasoning_content"] = reasoning
    return [said, *results]


def _image(block: object) -> list[Json]:
    source = member(block, "source")
    match text(source, "type"):
        case "base64":
            url = f"data:{text(source, 'media_type', 'image/jpeg')};base64,{text(source, 'data')}"
        case "url":
            url = text(source, "url")
        case _:
            return []
    return [{"type": "image_url", "image_url": {"url": url}}]


def _call(block: object) -> Json:
    given = member(block, "input")
    function = {"name": text(block, "name"), "arguments": dump({} if given is None else given)}
    return {"id": text(block, "id"), "type": "function", "function": function}


def _result(block: object) -> Json:
    """A tool result as a message of its own: its texts joined, or its parts where one of them is an image."""
    given = member(block, "content")
    content: str | list[Json] = given if isinstance(given, str) else ""
    if isinstance(given, list):
        parts: list[Json] = []
        kinds = [text(piece, "type") for piece in given]
        for kind, piece in zip(kinds, given, strict=True):
            if kind == "text":
                parts.append({"type": "text", "text": text(piece, "text")})
            elif kind == "image":
                parts += _image(piece)
        content = parts if "image" in kinds else "".join(piece["text"] for piece in parts)
    return {"role": "tool", "tool_call_id": text(block, "tool_use_id"), "content": content}


def _tool(tool: object) -> Json:
    schema = tool["input_schema"] if isinstance(tool, Mapping) and "input_schema" in tool else {}
    function = {"name": text(tool, "name"), "description": text(tool, "description"), "parameters": schema}
    return {"type": "function", "function": function}


def _budget(value: object) -> int:
    """The server reads any number or bool as an int32."""
    if not isinstance(value, int | float) or not math.isfinite(value):
        return DEFAULT_THINKING_BUDGET
    return (int(value) + 2**31) % 2**32 - 2**31


@dataclass(frozen=True, slots=True)
class Messages:
    """`honours_slot`: whether the server passes `id_slot` on. b10434 and b11549 drop it (llama.cpp PR #26758)."""

    name: str
    honours_slot: bool = False

    def read(self, body: Mapping[str, Any]) -> Question:
        """Of the options only those count that the server carries over."""
        chat, prompt = converted(body, to_chat)
        found = question(self.name, chat | {key: body[key] for key in ("id_slot",) if key in body}, prompt)
        return replace(
            found,
            honours_slot=self.honours_slot,
            count_path=f"{self.name}/count_tokens",
        )

    def meter(self) -> MessagesMeter:
        return MessagesMeter()


class MessagesMeter:
    """The figures of the prompt come with the first event of a stream, message_start; there are no timings.

    `input_tokens` is what was evaluated; on builds that tell no cache_read_input_tokens it is the whole prompt.
    """

    def __init__(self) -> None:
        self._figures = Figures()
        self._reply = Reply()

    def feed(self, chunk: Mapping[str, Any]) -> None:
        start = part(chunk, "message")
        usage = part(start or chunk, "usage")
        if "cache_read_input_tokens" in usage:
            reused, evaluated = count(usage["cache_read_input_tokens"]), count(usage.get("input_tokens"))
            whole = None if reused is None or evaluated is None else reused + evaluated
            self._figures.note(prompt_tokens=whole, reused=reused, evaluated=evaluated)
        else:
            self._figures.note(prompt_tokens=usage.get("input_tokens"))
        if not start:  # message_start counts the reply as 0
            self._figures.note(reply_tokens=usage.get("output_tokens"))
        content = chunk.get("content")
        for block in content if isinstance(content, list) else (chunk.get("content_block"), chunk.get("delta")):
            self._show(block)
        if text(chunk, "stop_sequence") or text(chunk.get("delta"), "stop_sequence"):
            self._reply.spoil()  # the stop word was sampled but is not shown

    def _show(self, block: object) -> None:
        """A block of a plain answer, or the start or a further piece of one in a stream."""
        kind = text(block, "type")
        if kind in ("text", "text_delta"):
            self._reply.add(text(block, "text"))
        elif kind:  # thinking, a call of a tool
            self._reply.spoil()

    def measured(self, finished: bool) -> Measured:
        return self._figures.measured(finished, self._reply.text)
