"""The newest SDK of Anthropic; the one of the tests' own environment is older (tests/live/test_sdks.py)."""

from __future__ import annotations

from typing import Any

from anthropic import Anthropic
from tests.clients.python.shared import ASKED
from tests.clients.python.shared import INSTRUCTIONS
from tests.clients.python.shared import KEY
from tests.clients.python.shared import MODEL
from tests.clients.python.shared import SCHEMA
from tests.clients.python.shared import main

TOOL: Any = {"name": "weather", "description": "Weather now.", "input_schema": SCHEMA}
# The SDK no longer knows the field; the server does.
COLD: dict[str, Any] = {"extra_body": {"temperature": 0}}
FORCED: dict[str, Any] = {"tools": [TOOL], "tool_choice": {"type": "any"}, "max_tokens": 96}
USED: list[Any] = [
    {"role": "user", "content": ASKED},
    {"role": "assistant", "content": [{"type": "tool_use", "id": "1", "name": "weather", "input": {"city": "Paris"}}]},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": "rain"}]},
]


def fields(**more: Any) -> dict[str, Any]:
    asked = [{"role": "user", "content": ASKED}]
    return {"model": MODEL, "system": INSTRUCTIONS, "messages": asked, "max_tokens": 24, **COLD} | more


def at(url: str) -> Anthropic:
    return Anthropic(base_url=url, api_key=KEY, max_retries=0)


def shown(message: Any) -> Any:
    """A message without its identities and without what depends on the server's cache."""
    blocks = [block.model_dump(exclude={"id"}) for block in message.content]
    return [blocks, message.stop_reason, message.usage.output_tokens]


def whole(url: str, **more: Any) -> Any:
    return shown(at(url).messages.create(**fields(**more)))


def streamed(url: str, **more: Any) -> Any:
    with at(url).messages.stream(**fields(**more)) as stream:
        return [*(event.type for event in stream), shown(stream.get_final_message())]


main(
    {
        "plain": whole,
        "streamed": streamed,
        "tool": lambda url: whole(url, **FORCED),
        "tool, streamed": lambda url: streamed(url, **FORCED),
        "tool's result": lambda url: whole(url, messages=USED),
        "tokens": lambda url: at(url).messages.count_tokens(model=MODEL, messages=USED).input_tokens,
    }
)
