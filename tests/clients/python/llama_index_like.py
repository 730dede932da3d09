"""LlamaIndex with its class for servers that speak as OpenAI does.

It reads the annotations of a tool's function, so these are no strings here.
"""

from typing import Any
from typing import Literal

from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike
from tests.clients.python.shared import ASKED
from tests.clients.python.shared import INSTRUCTIONS
from tests.clients.python.shared import KEY
from tests.clients.python.shared import MODEL
from tests.clients.python.shared import main

SAID = [ChatMessage(role="system", content=INSTRUCTIONS), ChatMessage(role="user", content=ASKED)]


def weather(city: Literal["Paris", "Oslo"]) -> str:
    """Weather now."""
    return f"rain in {city}"


TOOL = FunctionTool.from_defaults(weather)


def at(url: str, *, chat: bool = True, tokens: int = 24) -> OpenAILike:
    return OpenAILike(
        model=MODEL,
        api_base=f"{url}/v1",
        api_key=KEY,
        is_chat_model=chat,
        is_function_calling_model=True,
        temperature=0,
        max_tokens=tokens,
        max_retries=0,
        additional_kwargs={"seed": 7},
    )


def calls_of(model: OpenAILike, answer: Any) -> Any:
    return [(call.tool_name, call.tool_kwargs) for call in model.get_tool_calls_from_response(answer)]


def tool(url: str) -> Any:
    model = at(url, tokens=96)
    return calls_of(model, model.chat_with_tools([TOOL], chat_history=SAID, tool_required=True))


def tool_streamed(url: str) -> Any:
    model = at(url, tokens=96)
    *_, last = model.stream_chat_with_tools([TOOL], chat_history=SAID, tool_required=True)
    return calls_of(model, last)


main(
    {
        "plain": lambda url: at(url).chat(SAID).message.content,
        "streamed": lambda url: [part.delta for part in at(url).stream_chat(SAID)],
        "text": lambda url: at(url, chat=False).complete(ASKED).text,
        "text, streamed": lambda url: [part.delta for part in at(url, chat=False).stream_complete(ASKED)],
        "tool": tool,
        "tool, streamed": tool_streamed,
    }
)
