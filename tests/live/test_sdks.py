"""The SDKs of OpenAI and Anthropic, unmodified, through toki: what they make of an answer equals a direct call's."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from anthropic import Anthropic
from anthropic import BadRequestError as AnthropicBadRequestError
from openai import BadRequestError
from openai import OpenAI
from pydantic import BaseModel
from tests.live.forcing import SCHEMA
from tests.live.forcing import TEMPLATE
from tests.live.forcing import TOOL
from tests.live.wire import HOST
from tests.live.wire import PATIENCE
from tests.live.wire import Mitmdump
from tests.live.wire import mitmdump
from tests.live.wire import until

from servers import BUILDS
from servers import Build
from servers import Flags
from servers import LlamaServer
from servers import start
from servers import tiny_model

pytestmark = [pytest.mark.live, pytest.mark.proxy]

# What differs between two answers to one request, whoever asks.
VOLATILE = {
    "id", "call_id", "item_id", "created", "created_at", "completed_at", "timings", "cached_tokens",
    "prompt_tokens_details", "input_tokens_details", "cache_read_input_tokens", "input_tokens", "obfuscation",
}  # fmt: skip
KEY = "a-key"
ASKED = "What is the weather in Paris?"
SAID: list[Any] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": ASKED},
]
LOOP: list[Any] = [
    *SAID,
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Paris"}'}}
        ],
    },
    {"role": "tool", "tool_call_id": "1", "content": "rain"},
]
USED: list[Any] = [
    {"role": "user", "content": ASKED},
    {"role": "assistant", "content": [{"type": "tool_use", "id": "1", "name": "weather", "input": {"city": "Paris"}}]},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": "rain"}]},
]
CALLED: list[Any] = [
    {"role": "user", "content": ASKED},
    {"type": "function_call", "call_id": "1", "name": "weather", "arguments": '{"city": "Paris"}'},
    {"type": "function_call_output", "call_id": "1", "output": "rain"},
]


@dataclass(frozen=True, slots=True)
class Sdks:
    """Both SDKs on one address."""

    openai: OpenAI
    anthropic: Anthropic


def sdks(port: int, http: httpx.Client | None = None) -> Sdks:
    url = f"http://{HOST}:{port}"
    return Sdks(
        OpenAI(base_url=f"{url}/v1", api_key=KEY, timeout=PATIENCE, max_retries=0, http_client=http),
        Anthropic(base_url=url, api_key=KEY, timeout=PATIENCE, max_retries=0, http_client=http),
    )


def chat(**more: Any) -> Callable[[Sdks], Any]:
    fields = {"model": "tiny", "messages": SAID, "max_tokens": 24, "temperature": 0, "seed": 7, **more}
    return lambda at: at.openai.chat.completions.create(**fields)


def text(**more: Any) -> Callable[[Sdks], Any]:
    fields = {"model": "tiny", "prompt": "Once upon a time", "max_tokens": 12, "temperature": 0, "seed": 7, **more}
    return lambda at: at.openai.completions.create(**fields)


def responses(**more: Any) -> Callable[[Sdks], Any]:
    fields = {"model": "tiny", "input": ASKED, "instructions": "Be brief.", "max_output_tokens": 24, "temperature": 0}
    return lambda at: at.openai.responses.create(**{**fields, **more})


def messages(**more: Any) -> Callable[[Sdks], Any]:
    fields = {"model": "tiny", "system": "Be brief.", "messages": SAID[1:], "max_tokens": 24, "temperature": 0}
    return lambda at: at.anthropic.messages.create(**{**fields, **more})


def through_manager(at: Sdks) -> Any:
    """Anthropic's own reader of a stream puts the message together."""
    fields: Any = {"model": "tiny", "messages": SAID[1:], "max_tokens": 24, "temperature": 0}
    with at.anthropic.messages.stream(**fields) as stream:
        return stream.get_final_message()


FORCED = {"tools": [TOOL], "tool_choice": "required", "max_tokens": 96}
USE = {
    "tools": [{"name": "weather", "description": "Weather now.", "input_schema": SCHEMA}],
    "tool_choice": {"type": "any"},
    "max_tokens": 96,
}
CALL = {
    "tools": [{"type": "function", "name": "weather", "description": "Weather now.", "parameters": SCHEMA}],
    "tool_choice": "required",
    "max_output_tokens": 96,
}
LARGE = {"messages": [{"role": "user", "content": "and on " * 300}]}

CALLS: dict[str, Callable[[Sdks], Any]] = {
    "chat": chat(),
    "chat, streamed": chat(stream=True),
    "chat, streamed with usage": chat(stream=True, stream_options={"include_usage": True}),
    "chat, large": chat(**LARGE),
    "chat, two answers": chat(n=2),
    "chat, a tool": chat(**FORCED),
    "chat, a tool, streamed": chat(**FORCED, stream=True),
    "chat, a tool's result": chat(messages=LOOP, tools=[TOOL], tool_choice="none"),
    "text": text(),
    "text, streamed": text(stream=True),
    "text, ids": text(prompt=[5, 6, 7, 8, 9]),
    "text, a list": text(prompt=["One", "Two"]),
    "responses": responses(),
    "responses, streamed": responses(stream=True),
    "responses, a tool": responses(**CALL),
    "responses, a tool, streamed": responses(**CALL, stream=True),
    "responses, a tool's result": responses(input=CALLED),
    "messages": messages(),
    "messages, streamed": messages(stream=True),
    "messages, put together": through_manager,
    "messages, large": messages(**LARGE),
    "messages, a tool": messages(**USE),
    "messages, a tool, streamed": messages(**USE, stream=True),
    "messages, a tool's result": messages(messages=USED),
}


@pytest.fixture(scope="module", params=BUILDS)
def server(request: pytest.FixtureRequest) -> Iterator[LlamaServer]:
    build: Build = request.param
    with start(tiny_model(), Flags(n_parallel=2, n_ctx=8192, chat_template=TEMPLATE), build) as running:
        yield running


@pytest.fixture(scope="module")
def proxy(server: LlamaServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mitmdump]:
    with mitmdump(server.port, tmp_path_factory.mktemp("proxy")) as running:
        yield running


@pytest.fixture(scope="module")
def direct(server: LlamaServer) -> Iterator[Sdks]:
    """They keep no connection: b11549 closes one behind a stream now and then, and a request that is sent to it at once
    is lost."""
    with httpx.Client(limits=httpx.Limits(max_keepalive_connections=0)) as http:
        yield sdks(server.port, http)


@pytest.fixture(scope="module")
def proxied(proxy: Mitmdump) -> Sdks:
    """Through toki, which knows the server already."""
    at = sdks(proxy.port)

    def known() -> bool:
        before = len(proxy.rows())
        text()(at)
        until(lambda: len(proxy.rows()) > before)
        return bool(proxy.rows()[-1]["reason"] != "the server is not known yet")

    until(known)
    return at


def masked(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: None if key in VOLATILE else masked(each) for key, each in value.items()}
    return [masked(each) for each in value] if isinstance(value, list) else value


def shown(answer: BaseModel | Iterable[BaseModel]) -> list[Any]:
    """What an SDK made of an answer: one object, or the events of a stream."""
    events = [answer] if isinstance(answer, BaseModel) else list(answer)
    return [masked(event.model_dump(mode="json", warnings=False)) for event in events]


@pytest.mark.parametrize("name", CALLS)
def test_an_sdk_sees_what_it_sees_in_a_direct_call(direct: Sdks, proxied: Sdks, proxy: Mitmdump, name: str) -> None:
    call = CALLS[name]
    shown(call(direct))  # so that the next two find the same cache
    before = len(proxy.rows())
    wanted, found = shown(call(direct)), shown(call(proxied))
    assert found == wanted
    assert ("streamed" in name) is (len(wanted) > 1)
    (row,) = until(lambda: proxy.rows()[before:])
    assert row["status"] == 200
    assert row["reason"]
    if "two" not in name and "list" not in name:
        assert row["reused"] + row["evaluated"] == row["prompt_tokens"]


@pytest.mark.parametrize("name", [name for name in CALLS if "a tool" in name and "result" not in name])
def test_a_tool_is_called(proxied: Sdks, name: str) -> None:
    assert "weather" in str(shown(CALLS[name](proxied)))


def test_a_bad_call_raises_the_same(direct: Sdks, proxied: Sdks) -> None:
    odd: Any = [{"role": "user", "content": [{"type": "odd"}]}]
    failures = []
    for at in (direct, proxied):
        with pytest.raises(BadRequestError) as of_openai:
            chat(messages=odd)(at)
        with pytest.raises(AnthropicBadRequestError) as of_anthropic:
            messages(temperature="warm")(at)
        failures.append((of_openai.value.body, of_anthropic.value.body))
    assert failures[0] == failures[1]


def test_tokens_are_counted_beside_and_leave_no_row(direct: Sdks, proxied: Sdks, proxy: Mitmdump) -> None:
    before = len(proxy.rows())
    counts = [at.anthropic.messages.count_tokens(model="tiny", messages=SAID[1:]) for at in (direct, proxied)]
    assert counts[0] == counts[1]
    text()(proxied)
    # The row of the test before may come as late as this.
    until(lambda: "/v1/completions" in [row["endpoint"] for row in proxy.rows()[before:]])
    assert not [row for row in proxy.rows() if "count" in row["endpoint"]]
