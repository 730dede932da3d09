"""LangChain with its OpenAI package: a model alone, a model with a tool, and the agent's loop over a tool's result."""

from __future__ import annotations

from typing import Any
from typing import Literal

from langchain_core.messages import HumanMessage
from langchain_core.messages import SystemMessage
from langchain_core.messages import ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from tests.clients.python.shared import ASKED
from tests.clients.python.shared import INSTRUCTIONS
from tests.clients.python.shared import KEY
from tests.clients.python.shared import MODEL
from tests.clients.python.shared import main

SAID = [SystemMessage(INSTRUCTIONS), HumanMessage(ASKED)]


@tool
def weather(city: Literal["Paris", "Oslo"]) -> str:
    """Weather now."""
    return f"rain in {city}"


def at(url: str, tokens: int = 24, **more: Any) -> ChatOpenAI:
    fields: dict[str, Any] = {"temperature": 0, "seed": 7, "max_tokens": tokens, "max_retries": 0} | more
    return ChatOpenAI(base_url=f"{url}/v1", api_key=KEY, model=MODEL, **fields)


def shown(message: Any) -> Any:
    calls = [(call["name"], call["args"]) for call in message.tool_calls]
    return [message.content, calls, message.response_metadata.get("finish_reason")]


def streamed(url: str) -> Any:
    return [chunk.content for chunk in at(url).stream(SAID)]


def tool_streamed(url: str) -> Any:
    pieces = [chunk.tool_call_chunks for chunk in at(url, 96).bind_tools([weather], tool_choice="any").stream(SAID)]
    return [(piece["name"], piece["args"]) for chunk in pieces for piece in chunk]


def loop(url: str) -> Any:
    """Call the tool that the model asks for, and give its result back."""
    asked = at(url, 96).bind_tools([weather], tool_choice="any").invoke(SAID)
    results = [ToolMessage(weather.invoke(call["args"]), tool_call_id=call["id"]) for call in asked.tool_calls]
    return [shown(asked), shown(at(url).bind_tools([weather], tool_choice="none").invoke([*SAID, asked, *results]))]


main(
    {
        "plain": lambda url: shown(at(url).invoke(SAID)),
        "streamed": streamed,
        "responses": lambda url: at(url, use_responses_api=True, seed=None).invoke(SAID).content[0]["text"],
        "tool, streamed": tool_streamed,
        "tool loop": loop,
    }
)
