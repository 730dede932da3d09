"""What agents send: one request, and the bodies it becomes on each endpoint of llama-server.

The generator thinks in one form, OpenAI chat messages and tools. Every other form says the same conversation.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from typing import Literal
from typing import TypeAlias

Message: TypeAlias = Mapping[str, Any]
Tool: TypeAlias = Mapping[str, Any]
Body: TypeAlias = dict[str, Any]
Form: TypeAlias = Literal["chat", "raw"]

MODEL = "local"  # llama-server ignores it, but clients must send one


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request of one session.

    `one_shot` (nothing will continue it) is known to the generator only; no body shows it.
    `form` and `stream` say how its client sends it by itself (see `natural`); a runner may choose another form.
    `abort_after` tells the runner to hang up: in prefill, or after that many tokens of the answer.
    """

    session: str  # who sends it; a session has one request in flight at most
    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()
    max_tokens: int
    kind: str  # for tables: "turn", "side", "subagent", "title", "fim", "question", ...
    one_shot: bool = False
    form: Form = "chat"
    stream: bool = True
    n: int = 1  # answers wanted
    abort_after: Literal["prefill"] | int | None = None


def system(text: str) -> Message:
    return {"role": "system", "content": text}


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def assistant(text: str, calls: Iterable[Message] = ()) -> Message:
    """An answer as it stands in a history; `calls` as `call` makes them."""
    message = {"role": "assistant", "content": text}
    return {**message, "tool_calls": list(calls)} if calls else message


def call(identity: str, name: str, arguments: Mapping[str, Any]) -> Message:
    """A tool call inside an assistant message."""
    return {"id": identity, "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}


def result(identity: str, text: str) -> Message:
    """What a tool answered to the call of that identity."""
    return {"role": "tool", "tool_call_id": identity, "content": text}


def natural(request: Request) -> tuple[str, Body]:
    """(path, body) as the request's own client would send it."""
    if request.form == "raw":
        return "/completion", raw(request, request.stream)
    return "/v1/chat/completions", chat(request, request.stream)


def chat(request: Request, stream: bool = False) -> Body:
    """The body for /v1/chat/completions."""
    body: Body = {"model": MODEL, "messages": list(request.messages), "max_tokens": request.max_tokens}
    if request.tools:
        body["tools"] = list(request.tools)
    if request.n > 1:
        body["n"] = request.n
    return {**body, "temperature": 0, "stream": stream}


def raw(request: Request, stream: bool = False) -> Body:
    """The body for /completion: the conversation as one text prompt."""
    body: Body = {"prompt": render(request), "n_predict": request.max_tokens}
    if request.n > 1:
        body["n_cmpl"] = request.n
    return {**body, "temperature": 0, "stream": stream}


def render(request: Request) -> str:
    """The conversation as text, ChatML-like, the tools first; a fill-in-the-middle prompt is text already."""
    if request.kind == "fim":
        return str(request.messages[-1]["content"])
    parts = []
    if request.tools:
        tools = "\n".join(json.dumps(tool) for tool in request.tools)
        parts.append(f"<|im_start|>system\nTools:\n{tools}<|im_end|>\n")
    for message in request.messages:
        calls = "".join(
            f"\n<tool_call>\n{json.dumps(item['function'])}\n</tool_call>" for item in message.get("tool_calls", ())
        )
        parts.append(f"<|im_start|>{message['role']}\n{message['content']}{calls}<|im_end|>\n")
    return "".join(parts) + "<|im_start|>assistant\n"


def messages_api(request: Request, stream: bool = False) -> Body:
    """The body for /v1/messages (Anthropic): system apart, tool results inside user messages."""
    body: Body = {"model": MODEL, "max_tokens": request.max_tokens}
    if instructions := _instructions(request):
        body["system"] = [{"type": "text", "text": text} for text in instructions]
    if request.tools:
        body["tools"] = [
            {
                "name": tool["function"]["name"],
                "description": tool["function"]["description"],
                "input_schema": tool["function"]["parameters"],
            }
            for tool in request.tools
        ]
    items: list[Body] = []
    for message in request.messages:
        match message["role"]:
            case "system":
                continue
            case "tool":
                role = "user"
                blocks = [
                    {"type": "tool_result", "tool_use_id": message["tool_call_id"], "content": message["content"]}
                ]
            case role:
                blocks = [{"type": "text", "text": message["content"]}] if message["content"] else []
                blocks += [
                    {
                        "type": "tool_use",
                        "id": item["id"],
                        "name": item["function"]["name"],
                        "input": json.loads(item["function"]["arguments"]),
                    }
                    for item in message.get("tool_calls", ())
                ]
        items.append({"role": role, "content": blocks})
    return {**body, "messages": items, "temperature": 0, "stream": stream}


def responses_api(request: Request, stream: bool = False) -> Body:
    """The body for /v1/responses: the system text as instructions, calls and results as items of their own."""
    items: list[Body] = []
    for message in request.messages:
        match message["role"]:
            case "system":
                continue
            case "tool":
                items.append(
                    {
                        "type": "function_call_output",
                        "call_id": message["tool_call_id"],
                        "output": message["content"],
                    }
                )
            case role:
                kind = "output_text" if role == "assistant" else "input_text"
                content = [{"type": kind, "text": message["content"]}]
                items.append({"type": "message", "role": role, "content": content})
                items.extend(
                    {
                        "type": "function_call",
                        "call_id": item["id"],
                        "name": item["function"]["name"],
                        "arguments": item["function"]["arguments"],
                    }
                    for item in message.get("tool_calls", ())
                )
    body: Body = {"model": MODEL}
    if instructions := _instructions(request):
        body["instructions"] = "\n\n".join(instructions)
    body["input"] = items
    if request.tools:
        body["tools"] = [{"type": "function", **tool["function"]} for tool in request.tools]
    return {**body, "max_output_tokens": request.max_tokens, "temperature": 0, "store": False, "stream": stream}


def _instructions(request: Request) -> list[str]:
    return [message["content"] for message in request.messages if message["role"] == "system"]
