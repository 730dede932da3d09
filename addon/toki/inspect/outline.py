"""What a prompt is made of, and where each part stands in its rendered text.

The chat template is the server's and can be anything, so its output is not parsed: the texts of the request's messages
and the names of its tools are looked up in it, in their order. What lies between them is the template's own.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from dataclasses import replace
from functools import cached_property
from itertools import zip_longest
from typing import Any

from toki.inspect.finding import Block
from toki.inspect.finding import Part

# Of a body: what a chat template may look at beside messages and tools.
ARGUMENTS = (
    "chat_template_kwargs", "reasoning_effort", "reasoning_format", "tool_choice", "parallel_tool_calls",
    "response_format", "json_schema", "grammar", "add_generation_prompt", "continue_final_message",
)  # fmt: skip
# How templates of the usual kinds write a message: before its role, behind that, and at its end.
TURNS = (
    ("<|im_start|>", "\n", "<|im_end|>"),  # ChatML
    ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),  # Llama 3
    ("<start_of_turn>", "\n", "<end_of_turn>"),  # Gemma
)
MOST_LINES = 4096  # of a text; a longer one is taken as a whole
FEWEST = 2  # messages by which such a template is known
PARTS = {
    "system": Part.SYSTEM,
    "developer": Part.SYSTEM,
    "user": Part.USER,
    "assistant": Part.ASSISTANT,
    "model": Part.ASSISTANT,
}
RESULTS = ("tool", "function", "ipython")
IMAGE = "\ufffc"
MEDIA = ("image_url", "input_audio", "input_video", "video_url", "image", "input_image")


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool: its definition as JSON with its keys as they came, and with them sorted."""

    name: str
    written: str
    sorted: str


@dataclass(frozen=True, slots=True)
class Message:
    """A message in the terms of the chat shape. `content` has an IMAGE in the place of each image; `images` tell which.
    `calls`: its tool calls as JSON, as they came and with sorted keys."""

    role: str
    content: str = ""
    reasoning: str = ""
    calls: str = ""
    calls_sorted: str = ""
    images: tuple[int, ...] = ()

    @property
    def part(self) -> Part:
        return PARTS.get(self.role, Part.TOOL_RESULT if self.role in RESULTS else Part.PROMPT)

    @property
    def size(self) -> int:
        """Characters."""
        return len(self.content) + len(self.reasoning) + len(self.calls)


@dataclass(frozen=True)
class Outline:
    """The parts of one prompt, in the order of its body. `arguments`: JSON of what else the template gets."""

    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()
    arguments: str = ""

    @cached_property
    def head(self) -> str:
        """The system text: of all messages before the first other one."""
        return "\n".join(message.content for message in self.messages[: self.heads])

    @cached_property
    def heads(self) -> int:
        """How many messages the head has."""
        return next((n for n, one in enumerate(self.messages) if one.part is not Part.SYSTEM), len(self.messages))

    @cached_property
    def talk(self) -> frozenset[Message]:
        """All messages behind the head that say something."""
        return frozenset(message for message in self.messages[self.heads :] if message.size)

    def block(self, number: int) -> Block:
        """The place of message `number`."""
        part = self.messages[number].part
        return Block(part, None if part is Part.PROMPT else number)


@dataclass(frozen=True, slots=True)
class Span:
    """Where something stands in a rendered text. Equal `key`s mean equal things."""

    start: int
    end: int
    block: Block
    key: object


def of_chat(body: Mapping[str, Any]) -> Outline:
    """The outline of a body of the chat shape. Never raises: what is odd is left out."""
    given = body.get("messages")
    messages = tuple(_message(one) for one in given if isinstance(one, Mapping)) if isinstance(given, list) else ()
    tools = body.get("tools")
    return Outline(
        messages,
        tuple(_tool(one) for one in tools if isinstance(one, Mapping)) if isinstance(tools, list) else (),
        _sorted({key: body[key] for key in ARGUMENTS if key in body}),
    )


def of_text(text: str) -> Outline:
    """The outline of a prompt that the client rendered itself: its messages where it has used a template of a usual
    kind, else its lines."""
    for begin, behind, end in TURNS:
        turns = [turn.partition(behind) for turn in text.split(begin)[1:] if end in turn]
        if len(turns) >= FEWEST:
            return Outline(tuple(Message(role.strip(), said.partition(end)[0].strip()) for role, _, said in turns))
    lines = text.splitlines(keepends=True)
    return Outline(tuple(Message("", line) for line in (lines if len(lines) <= MOST_LINES else [text])))


def _message(given: Mapping[str, Any]) -> Message:
    content, images = "", []
    match given.get("content"):
        case str() as text:
            content = text
        case list() as pieces:
            for piece in pieces:
                if isinstance(piece, Mapping):
                    said = piece.get("text")
                    content += said if isinstance(said, str) else ""
                    if piece.get("type") in MEDIA:
                        content += IMAGE
                        images.append(hash(repr(piece)))
    reasoning = given.get("reasoning_content") or given.get("reasoning")
    calls = given.get("tool_calls")
    functions = [_function(call) for call in calls if isinstance(call, Mapping)] if isinstance(calls, list) else []
    role = given.get("role")
    return Message(
        role if isinstance(role, str) else "",
        content,
        reasoning if isinstance(reasoning, str) else "",
        _written(functions) if functions else "",
        _sorted(functions) if functions else "",
        tuple(images),
    )


def _function(call: Mapping[str, Any]) -> dict[str, Any]:
    """A call without its id, which templates mostly leave out; its arguments parsed where they are JSON."""
    function = call.get("function")
    found = function if isinstance(function, Mapping) else call
    arguments = found.get("arguments")
    if isinstance(arguments, str):
        with suppress(ValueError, RecursionError):
            arguments = json.loads(arguments)
    return {"name": found.get("name"), "arguments": arguments}


def _tool(given: Mapping[str, Any]) -> Tool:
    function = given.get("function")
    found = function if isinstance(function, Mapping) else given
    return Tool(str(found.get("name", "")), _written(given), _sorted(given))


def _written(value: Any) -> str:
    return _dump(value, sort_keys=False)


def _sorted(value: Any) -> str:
    return _dump(value, sort_keys=True)


def _dump(value: Any, *, sort_keys: bool) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, sort_keys=sort_keys, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError):
        return repr(value)


def locate(outline: Outline, text: str) -> tuple[Span, ...]:
    """Where the parts of `outline` stand in its rendered text, in the order of the text. What is not found is left out:
    a template may drop things, or write them in another way."""
    spans: list[Span] = []
    cursor = 0
    for number, message in enumerate(outline.messages):
        first = None
        for piece in _pieces(message):
            start = text.find(piece, cursor)
            if start >= 0:
                first = start if first is None else first
                cursor = start + len(piece)
            elif message.part is Part.SYSTEM and (start := text.find(piece)) >= 0:  # moved to the head
                spans.append(Span(start, start + len(piece), outline.block(number), message))
        if first is not None:
            spans.append(Span(first, cursor, outline.block(number), message))
    spans.extend(_tools(outline.tools, text, spans))
    spans.sort(key=lambda span: span.start)
    return tuple(_with_arguments(span, following, text) for span, following in zip_longest(spans, spans[1:]))


def _pieces(message: Message) -> Iterator[str]:
    """Texts of a message that a template writes as they are, in the usual order."""
    for piece in (message.reasoning, *message.content.split(IMAGE)):
        if piece.strip():
            yield piece.strip()
    for call in json.loads(message.calls) if message.calls else ():
        if isinstance(call.get("name"), str) and call["name"]:
            yield call["name"]


def _with_arguments(span: Span, following: Span | None, text: str) -> Span:
    """A call's arguments can be written in many ways: they are taken to end with a brace."""
    if not (isinstance(span.key, Message) and span.key.calls):
        return span
    end = text.rfind("}", span.end, len(text) if following is None else following.start) + 1
    return replace(span, end=max(span.end, end))


def _tools(tools: Sequence[Tool], text: str, spans: Sequence[Span]) -> Iterator[Span]:
    """Each tool from its name to that of the next one; the last one to the next message."""
    starts: list[int] = []
    cursor = 0
    for tool in tools:
        start = _find_name(tool.name, text, cursor)
        if start < 0:
            return
        starts.append(start)
        cursor = start + len(tool.name)
    for tool, start, following in zip(tools, starts, [*starts[1:], None], strict=False):
        if following is None:
            following = min((span.start for span in spans if span.start > start), default=len(text))
            line = text.find("\n", start)
            end = following if line < 0 or "\n" in tool.written else min(line, following)
        else:
            end = following
        yield Span(start, end, Block(Part.TOOLS), tool.sorted)


def _find_name(name: str, text: str, cursor: int) -> int:
    for form in (f'"name": "{name}"', f'"name":"{name}"', f"type {name} =", f'"{name}"'):
        start = text.find(form, cursor)
        if start >= 0:
            return start
    return -1
