"""/v1/responses: the shape that Codex speaks. No endpoint renders it, so it is converted to the chat shape here.

The conversion follows the server's own, step by step (llama.cpp b11549, server-chat.cpp,
server_chat_convert_responses_to_chatcmpl; b10434 differs only in refusing images in the output of a tool), so that
/apply-template of the converted body gives the prompt that the server will use. Builds may differ: `count_path` names
the endpoint that counts the untouched body.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import replace
from typing import Any

from toki.endpoints.conversion import Json
from toki.endpoints.conversion import RefusedError
from toki.endpoints.conversion import converted
from toki.endpoints.conversion import member
from toki.endpoints.conversion import text
from toki.endpoints.figures import Figures
from toki.endpoints.figures import Reply
from toki.endpoints.figures import part
from toki.endpoints.options import question
from toki.endpoints.question import Question
from toki.engine.events import Measured


def to_chat(body: Mapping[str, Any]) -> Json:
    """The chat body that the server makes of a responses body. Raises RefusedError where it refuses.

    Keys that are not named here go along as they are, so the server reads `id_slot`, `cache_prompt` and the like.
    """
    if text(body, "previous_response_id"):
        raise RefusedError("'previous_response_id' is not supported")
    chat = dict(body)
    messages: list[Json] = []
    if "instructions" in chat:
        messages.append({"role": "system", "content": text(chat, "instructions")})
        del chat["instructions"]
    match chat.pop("input", None):
        case str() as typed:
            messages.append({"role": "user", "content": typed})
        case list() as items:
            for item in items:
                _add(messages, item)
        case _:
            raise RefusedError("'input' must be a string or an array")
    chat["messages"] = messages

    if "tools" in chat:
        tools = _tools(chat.pop("tools"))
        if tools:
            chat["tools"] = tools
    if "max_output_tokens" in chat:
        chat["max_tokens"] = chat.pop("max_output_tokens")
    reasoning = chat.pop("reasoning", None)
    if isinstance(reasoning, Mapping) and "effort" in reasoning:
        chat["reasoning_effort"] = reasoning["effort"]
    return chat


def _add(messages: list[Json], item: Any) -> None:
    """Append one input item as a message, or merge it into the assistant's message just before it."""
    content = member(item, "content")
    if isinstance(content, str):
        content = [{"text": content, "type": "input_text"}]
    parts = content if isinstance(content, list) else None
    match text(item, "type"), text(item, "role"):
        case _, "user" | "system" | "developer" if parts is not None:
            messages.append(_message(item, [_input_part(piece) for piece in parts]))
        case "message", "assistant":
            said = [_output_part(piece) for piece in parts or ()]
            if _assistant_is_last(messages):
                messages[-1]["content"] = _list_at(messages[-1], "content") + said
            else:
                messages.append(_message(item, said))
        case "function_call", _ if _has_texts(item, "arguments", "call_id", "name"):
            if not _assistant_is_last(messages):
                messages.append({"role": "assistant"})
            messages[-1]["tool_calls"] = [*_list_at(messages[-1], "tool_calls"), _call(item)]
        case "function_call_output", _ if _has_texts(item, "call_id") and isinstance(item.get("output"), str | list):
            output = item["output"]
            shown = output if isinstance(output, str) else [_tool_output_part(piece) for piece in output]
            messages.append({"content": shown, "role": "tool", "tool_call_id": item["call_id"]})
        case "reasoning", _ if isinstance(item.get("summary"), list):
            thought = _reasoning(parts)
            if not _assistant_is_last(messages):
                messages.append({"role": "assistant", "content": []})
            messages[-1]["reasoning_content"] = thought
        case _:
            raise RefusedError("an item of 'input' is of a type or form that the server does not know")


def _assistant_is_last(messages: list[Json]) -> bool:
    return bool(messages) and messages[-1]["role"] == "assistant"


def _list_at(message: Json, key: str) -> list[Any]:
    found = message.get(key)
    return found if isinstance(found, list) else []


def _has_texts(item: Mapping[str, Any], *keys: str) -> bool:
    return all(isinstance(item.get(key), str) for key in keys)


def _message(item: Mapping[str, Any], content: list[Json]) -> Json:
    """A message item as a message: whatever else it holds goes along, but for its type and status."""
    return {key: value for key, value in item.items() if key not in ("type", "status")} | {"content": content}


def _call(item: Mapping[str, Any]) -> Json:
    function = {"arguments": item["arguments"], "name": item["name"]}
    return {"function": function, "id": item["call_id"], "type": "function"}


def _input_part(piece: Any) -> Json:
    match text(piece, "type"):
        case "input_text" if "text" in piece:
            return {"text": piece["text"], "type": "text"}
        case "input_image" if "image_url" in piece:
            return {"image_url": {"url": piece["image_url"]}, "type": "image_url"}
        case _:
            raise RefusedError("a part of a message is of a type or form that the server does not know")


def _output_part(piece: Any) -> Json:
    match text(piece, "type"):
        case "output_text" | "input_text" if _has_texts(piece, "text"):
            return {"text": piece["text"], "type": "text"}
        case "refusal" if _has_texts(piece, "refusal"):
            return {"refusal": piece["refusal"], "type": "refusal"}
        case _:
            raise RefusedError("a part of an answer is of a type or form that the server does not know")


def _tool_output_part(piece: Any) -> Json:
    match text(piece, "type"):
        case "input_text":
            return {**piece, "type": "text"}
        case "input_image" if "image_url" in piece:
            return {**piece, "type": "image_url", "image_url": {"url": piece["image_url"]}}
        case _:
            raise RefusedError("a part of a tool's output is of a type that the server does not know")


def _reasoning(parts: list[Any] | None) -> str:
    """Only the first part counts. Without any, as with encrypted reasoning alone, the server refuses the body."""
    if not parts or not isinstance(member(parts[0], "text"), str):
        raise RefusedError("a reasoning item has no text in its 'content'")
    return text(parts[0], "text")


def _tools(tools: object) -> list[Json]:
    """Function tools; the server skips all others."""
    if not isinstance(tools, list):
        raise RefusedError("'tools' must be an array")
    functions = [tool for tool in tools if text(tool, "type") == "function"]
    return [{"type": "function", "function": _function(tool)} for tool in functions]


def _function(tool: Mapping[str, Any]) -> Json:
    function = {key: value for key, value in tool.items() if key != "type"}
    function.setdefault("strict", True)
    return function


@dataclass(frozen=True, slots=True)
class Responses:
    """/v1/responses and /responses. The server copies the body's other keys, `id_slot` among them."""

    name: str

    def read(self, body: Mapping[str, Any]) -> Question:
        chat, prompt = converted(body, to_chat)
        return replace(question(self.name, chat, prompt), count_path=f"{self.name}/input_tokens")

    def meter(self) -> ResponsesMeter:
        return ResponsesMeter()


class ResponsesMeter:
    """The figures come with the last event of a stream, response.completed, timings beside it; a plain answer has none.

    `input_tokens` is the whole prompt here.
    """

    def __init__(self) -> None:
        self._figures = Figures()
        self._reply = Reply()
        self._begun = False

    def feed(self, chunk: Mapping[str, Any]) -> None:
        usage = part(part(chunk, "response") or chunk, "usage")
        self._figures.note(
            prompt_tokens=usage.get("input_tokens"),
            reused=part(usage, "input_tokens_details").get("cached_tokens"),
            reply_tokens=usage.get("output_tokens"),
        )
        self._figures.progress(chunk)
        self._figures.timings(chunk)
        match chunk.get("type"):
            case "response.created":
                self._figures.several |= self._begun  # n > 1: as many answers, mixed
                self._begun = True
            case "response.output_text.delta":
                self._reply.add(chunk.get("delta"))
            case "response.output_item.added":
                self._show(chunk.get("item"))
            case None:
                output = chunk.get("output")
                for item in output if isinstance(output, list) else ():
                    self._show(item)

    def _show(self, item: object) -> None:
        """An item of a plain answer, or the start of one in a stream, which is still empty."""
        if text(item, "type") != "message":  # reasoning, a call of a tool
            self._reply.spoil()
        content = member(item, "content")
        for piece in content if isinstance(content, list) else ():
            self._reply.add(member(piece, "text"))

    def measured(self, finished: bool) -> Measured:
        return self._figures.measured(finished, self._reply.text)
