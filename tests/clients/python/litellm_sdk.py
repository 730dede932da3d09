"""LiteLLM, which many agents call models with: OpenAI's form, streams, tools, and Anthropic's form."""

from __future__ import annotations

from typing import Any

import litellm
from tests.clients.python.shared import ASKED
from tests.clients.python.shared import INSTRUCTIONS
from tests.clients.python.shared import KEY
from tests.clients.python.shared import MODEL
from tests.clients.python.shared import SCHEMA
from tests.clients.python.shared import main

SAID = [{"role": "system", "content": INSTRUCTIONS}, {"role": "user", "content": ASKED}]
TOOL = {"type": "function", "function": {"name": "weather", "description": "Weather now.", "parameters": SCHEMA}}
FORCED: dict[str, Any] = {"tools": [TOOL], "tool_choice": "required", "max_tokens": 96}


def ask(url: str, **more: Any) -> Any:
    fields = {"messages": SAID, "max_tokens": 24, "temperature": 0, "seed": 7, "num_retries": 0} | more
    return litellm.completion(model=f"openai/{MODEL}", api_base=f"{url}/v1", api_key=KEY, **fields)


def shown(message: Any) -> Any:
    calls = [(call.function.name, call.function.arguments) for call in message.tool_calls or []]
    return [message.content, calls]


def streamed(url: str, **more: Any) -> Any:
    return [shown(chunk.choices[0].delta) for chunk in ask(url, stream=True, **more)]


def anthropic(url: str) -> Any:
    answer = litellm.completion(
        model=f"anthropic/{MODEL}", api_base=url, api_key=KEY, messages=SAID, max_tokens=24, temperature=0
    )
    return shown(answer.choices[0].message)


main(
    {
        "plain": lambda url: shown(ask(url).choices[0].message),
        "streamed": streamed,
        "tool": lambda url: shown(ask(url, **FORCED).choices[0].message),
        "tool, streamed": lambda url: streamed(url, **FORCED),
        "anthropic": anthropic,
    }
)
