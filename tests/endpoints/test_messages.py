from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given
from tests.endpoints.corpus import bodies
from tests.endpoints.corpus import damaged

from toki.endpoints.conversion import RefusedError
from toki.endpoints.messages import Messages
from toki.endpoints.messages import MessagesMeter
from toki.endpoints.messages import mask_attribution
from toki.endpoints.messages import to_chat
from toki.endpoints.question import Chat
from toki.endpoints.question import Unreadable
from toki.engine.events import Measured

MESSAGES = Messages("/v1/messages")
USER = {"role": "user", "content": "hi"}


def chat_of(*messages: object) -> Any:
    return to_chat({"messages": list(messages)})["messages"]


def said(*blocks: object, role: str = "assistant") -> Any:
    return chat_of({"role": role, "content": list(blocks)})


def text(shown: str) -> dict[str, Any]:
    return {"type": "text", "text": shown}


# --- the attribution line -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("system", "masked"),
    [
        ("x-anthropic-billing-header: v=2.1; cch=a5145;You", "x-anthropic-billing-header: v=2.1; cch=fffff;You"),
        ("x-anthropic-billing-header: cch=abcde; cch=12345;", "x-anthropic-billing-header: cch=fffff; cch=12345;"),
        ("x-anthropic-billing-header: cch=éab1; x", "x-anthropic-billing-header: cch=fffff; x"),  # five bytes
        ("x-anthropic-billing-header: cch=abc; cch=12345;", None),
        ("x-anthropic-billing-header: cch=123456;", None),
        ("x-anthropic-billing-header: cch=12345", None),
        ("x-anthropic-billing-header: v=2.1;", None),
        (" x-anthropic-billing-header: cch=12345;", None),
        ("cch=12345;", None),
        ("", None),
    ],
)
def test_the_stamp_of_the_attribution_line_is_masked(system: str, masked: str | None) -> None:
    assert mask_attribution(system) == (system if masked is None else masked)


def test_each_system_block_is_masked_by_itself() -> None:
    line = "x-anthropic-billing-header: cch=12345;"
    (system,) = to_chat({"messages": [], "system": [text(line), text("A"), text(line)]})["messages"]
    assert system == {"role": "system", "content": f"{line.replace('12345', 'fffff')}A{line.replace('12345', 'fffff')}"}


# --- messages -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("system", "content"),
    [
        ("S", "S"),
        ("", ""),
        ([], ""),
        (5, ""),
        ({}, ""),
        ([text("A"), 5, {"type": "image"}, {"type": "text"}, {"type": "text", "text": 5}, text("B")], "AB"),
    ],
)
def test_a_system_text_comes_first(system: object, content: str) -> None:
    expected = [{"role": "system", "content": content}, USER]
    assert to_chat({"messages": [USER], "system": system})["messages"] == expected


@pytest.mark.parametrize("body", [{"messages": [USER]}, {"messages": [USER], "system": None}])
def test_no_system_text_is_no_message(body: dict[str, Any]) -> None:
    assert to_chat(body)["messages"] == [USER]


@pytest.mark.parametrize(
    "message",
    [USER, {"role": "system", "content": "late"}, {"role": "user"}, {"role": "user", "content": 5}, 5, None, [], "x"],
)
def test_what_holds_no_blocks_stays_as_it_is(message: object) -> None:
    assert chat_of(message) == [message]


def test_an_assistant_without_content_is_left_out() -> None:
    assert chat_of(USER, {"role": "assistant"}, USER) == [USER, USER]


def test_a_message_without_any_known_block_is_left_out() -> None:
    assert said() == said({"type": "document"}, {"type": "redacted_thinking", "data": "x"}, 5) == []


def test_text_blocks_stay_whole() -> None:
    block = {"type": "text", "text": "t", "cache_control": {"type": "ephemeral"}}
    assert said(block, {"type": "document"}, text("u")) == [{"role": "assistant", "content": [block, text("u")]}]


def test_thinking_becomes_one_reasoning_text() -> None:
    blocks = ({"type": "thinking", "thinking": "A", "signature": "s"}, text("t"), {"type": "thinking", "thinking": "B"})
    assert said(*blocks) == [{"role": "assistant", "content": [text("t")], "reasoning_content": "AB"}]
    assert said(blocks[0]) == [{"role": "assistant", "content": "", "reasoning_content": "A"}]


def test_a_tool_use_becomes_a_call() -> None:
    block = {"type": "tool_use", "id": "t1", "name": "f", "input": {"b": 1.0, "a": "é"}}
    call = {"id": "t1", "type": "function", "function": {"name": "f", "arguments": '{"b":1.0,"a":"é"}'}}
    assert said(block) == [{"role": "assistant", "content": "", "tool_calls": [call]}]
    assert said(text("t"), block) == [{"role": "assistant", "content": [text("t")], "tool_calls": [call]}]


@pytest.mark.parametrize("given", [{}, {"input": None}])
def test_a_call_without_input_has_an_empty_object(given: dict[str, Any]) -> None:
    (message,) = said({"type": "tool_use", "id": "t1", "name": "f", **given})
    assert message["tool_calls"][0]["function"]["arguments"] == "{}"


@pytest.mark.parametrize(
    ("given", "content"),
    [
        ({"content": "out"}, "out"),
        ({"content": [text("a"), {"type": "document"}, text("b"), {"type": "text"}, 5]}, "ab"),
        ({"content": []}, ""),
        ({"content": None}, ""),
        ({"content": 5}, ""),
        ({"is_error": True}, ""),
        ({"content": [text("a"), {"type": "image", "source": {"type": "file"}}]}, [text("a")]),
        (
            {"content": [text("a"), {"type": "image", "source": {"type": "url", "url": "u"}}]},
            [text("a"), {"type": "image_url", "image_url": {"url": "u"}}],
        ),
    ],
)
def test_a_tool_result_becomes_a_message(given: dict[str, Any], content: object) -> None:
    block = {"type": "tool_result", "tool_use_id": "t1", **given}
    assert said(block, role="user") == [{"role": "tool", "tool_call_id": "t1", "content": content}]


def test_tool_results_follow_the_texts_beside_them_in_their_order() -> None:
    results = [{"type": "tool_result", "tool_use_id": name, "content": name} for name in "ab"]
    user, *tools = said(results[0], text("t"), results[1], text("u"), role="user")
    assert user == {"role": "user", "content": [text("t"), text("u")]}
    assert [tool["content"] for tool in tools] == ["a", "b"]


@pytest.mark.parametrize(
    ("source", "url"),
    [
        ({"type": "base64", "media_type": "image/png", "data": "AA"}, "data:image/png;base64,AA"),
        ({"type": "base64", "data": "AA"}, "data:image/jpeg;base64,AA"),
        ({"type": "url", "url": "http://x/a.png"}, "http://x/a.png"),
    ],
)
def test_an_image_becomes_a_part(source: dict[str, str], url: str) -> None:
    image = {"type": "image", "source": source}
    assert said(image, role="user") == [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}]
    prompt = MESSAGES.read({"messages": [{"role": "user", "content": [image]}]}).prompt
    assert isinstance(prompt, Chat)
    assert [(each.part["image_url"], bool(each.name)) for each in prompt.media] == [
        ({"url": url}, source["type"] == "base64")
    ]


# --- the rest of the body -----------------------------------------------------------------------------------------


def test_tools_become_functions() -> None:
    schema = {"type": "object", "properties": {"x": {"type": "string"}}}
    tools = [{"name": "a", "description": "d", "input_schema": schema, "cache_control": {}}, {"type": "web_search"}, 5]
    empty = {"type": "function", "function": {"name": "", "description": "", "parameters": {}}}
    function = {"name": "a", "description": "d", "parameters": schema}
    assert to_chat({"messages": [], "tools": tools})["tools"] == [
        {"type": "function", "function": function},
        empty,
        empty,
    ]


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ({"type": "auto"}, "auto"),
        ({"type": "any"}, "required"),
        ({"type": "tool", "name": "a"}, "required"),
        ({"type": "none"}, None),
        ("auto", None),
    ],
)
def test_a_tool_choice_is_translated(choice: object, expected: str | None) -> None:
    assert to_chat({"messages": [], "tool_choice": choice}).get("tool_choice") == expected


@pytest.mark.parametrize(
    ("thinking", "budget"),
    [
        ({"type": "enabled", "budget_tokens": 1234}, 1234),
        ({"type": "enabled"}, 10_000),
        ({"type": "enabled", "budget_tokens": "7"}, 10_000),
        ({"type": "enabled", "budget_tokens": 1.9}, 1),
        ({"type": "enabled", "budget_tokens": True}, 1),
        ({"type": "enabled", "budget_tokens": 5_000_000_000}, 705_032_704),
        ({"type": "enabled", "budget_tokens": float("inf")}, 10_000),
        ({"type": "disabled", "budget_tokens": 5}, None),
        ({"type": "adaptive"}, None),
        ("enabled", None),
    ],
)
def test_a_thinking_budget_is_translated(thinking: object, budget: int | None) -> None:
    assert to_chat({"messages": [], "thinking": thinking}).get("thinking_budget_tokens") == budget


def test_of_the_options_only_those_that_the_server_carries_over_go_along() -> None:
    kept = {"temperature": 1, "top_p": 0.5, "top_k": 3, "stream": True, "chat_template_kwargs": {"a": 1}, "model": "m"}
    dropped = {
        "id_slot": 1,
        "cache_prompt": False,
        "n": 2,
        "seed": 1,
        "lora": [],
        "reasoning_effort": "low",
        "tools": 5,
    }
    found = to_chat({"messages": [], "max_tokens": 9, "stop_sequences": ["x"], **kept, **dropped})
    assert found == {"messages": [], "max_tokens": 9, "stop": ["x"], **kept}


def test_a_reply_has_a_limit_of_its_own() -> None:
    assert MESSAGES.read({"messages": [USER]}).max_tokens == 4096
    assert MESSAGES.read({"messages": [USER], "max_tokens": 5}).max_tokens == 5


def test_the_user_id_goes_along() -> None:
    assert to_chat({"messages": [], "metadata": {"user_id": "u"}})["__metadata_user_id"] == "u"
    assert "__metadata_user_id" not in to_chat({"messages": [], "metadata": {"user_id": 5}})


@pytest.mark.parametrize("messages", [None, {}, "x"])
def test_messages_that_are_no_array_are_none(messages: object) -> None:
    assert to_chat({"messages": messages})["messages"] == []


def test_without_messages_the_server_refuses() -> None:
    with pytest.raises(RefusedError, match="'messages' is required"):
        to_chat({"system": "S"})
    prompt = MESSAGES.read({"system": "S", "stream": True}).prompt
    assert prompt == Unreadable("it can't be converted to a chat: 'messages' is required")


# --- the question -------------------------------------------------------------------------------------------------


def test_a_body_is_one_question() -> None:
    body = {"model": "m", "messages": [USER], "stream": True, "max_tokens": 7, "n": 3, "cache_prompt": False}
    found = MESSAGES.read(body)
    assert found.prompt == Chat({"messages": [USER], "max_tokens": 7, "stream": True, "model": "m"})
    assert (found.endpoint, found.model, found.stream, found.max_tokens) == ("/v1/messages", "m", True, 7)
    assert (found.children, found.cache_prompt, found.fixed) == (0, True, "")
    assert found.count_path == "/v1/messages/count_tokens"


def test_a_slot_of_the_clients_own_is_its_choice_even_where_the_server_drops_it() -> None:
    found = MESSAGES.read({"messages": [USER], "id_slot": 2})
    assert (found.fixed, found.honours_slot, found.client_slot) == ("the client chose a slot", False, 2)
    found = Messages("/v1/messages", honours_slot=True).read({"messages": [USER], "id_slot": 2})
    assert (found.fixed, found.honours_slot, found.client_slot) == ("the client chose a slot", True, 2)


@pytest.mark.parametrize(("name", "body"), bodies("messages").items())
def test_the_corpus_is_read_or_says_why_not(name: str, body: dict[str, Any]) -> None:
    before = copy.deepcopy(body)
    prompt = MESSAGES.read(body).prompt
    assert body == before
    if name == "refused_no_messages":
        assert isinstance(prompt, Unreadable)
    else:
        assert isinstance(prompt, Chat)
        assert bool(prompt.media) is ("image" in name and name != "image_by_file_id")
        json.dumps(prompt.body)


def test_the_corpus_is_large_enough() -> None:
    assert len(bodies("messages")) >= 45


@given(damaged("messages"))
def test_no_damaged_body_raises_or_is_changed(body: dict[str, Any]) -> None:
    before = copy.deepcopy(body)
    found = MESSAGES.read(body)
    assert body == before
    assert isinstance(found.prompt, Chat | Unreadable)


def test_a_body_nested_too_deeply_is_unreadable() -> None:
    nested: list[Any] = []
    for _ in range(100_000):
        nested = [nested]
    block = {"type": "tool_use", "id": "t", "name": "f", "input": nested}
    prompt = MESSAGES.read({"messages": [{"role": "assistant", "content": [block]}]}).prompt
    assert isinstance(prompt, Unreadable)
    assert "recursion" in prompt.why


# --- the answer ---------------------------------------------------------------------------------------------------

USAGE = {"cache_read_input_tokens": 30, "input_tokens": 1, "output_tokens": 3}
EXPECTED = Measured(prompt_tokens=31, reused=30, evaluated=1, reply_tokens=3, reply_text="Hello there!")


def plain(*content: object, usage: object = USAGE, **more: object) -> dict[str, Any]:
    return {
        "type": "message",
        "role": "assistant",
        "content": list(content),
        "stop_sequence": None,
        "usage": usage,
        **more,
    }


def measured(*chunks: dict[str, Any], finished: bool = True) -> Measured:
    meter = MessagesMeter()
    for chunk in chunks:
        meter.feed(chunk)
    return meter.measured(finished)


def event(kind: str, **more: object) -> dict[str, Any]:
    return {"type": kind, **more}


START = event("message_start", message=plain(usage={**USAGE, "output_tokens": 0}))
STREAM = [
    START,
    event("content_block_start", index=0, content_block=text("")),
    *(event("content_block_delta", index=0, delta={"type": "text_delta", "text": t}) for t in ("Hello", " there", "!")),
    event("content_block_stop", index=0),
    event("message_delta", delta={"stop_reason": "max_tokens", "stop_sequence": None}, usage={"output_tokens": 3}),
    event("message_stop"),
]


def test_a_plain_answer() -> None:
    assert measured(plain(text("Hello there!"))) == EXPECTED


def test_a_stream() -> None:
    assert measured(*STREAM) == EXPECTED


def test_a_stream_that_broke_off_shows_the_reuse_but_no_length_of_the_reply() -> None:
    found = measured(*STREAM[:4], finished=False)
    assert (found.prompt_tokens, found.reused, found.evaluated) == (31, 30, 1)
    assert (found.reply_tokens, found.finished) == (None, False)


@pytest.mark.parametrize(
    "block", [{"type": "thinking", "thinking": "x"}, {"type": "tool_use", "name": "f", "input": {}}, {"type": "new"}]
)
def test_a_reply_that_is_not_all_text_is_not_shown_whole(block: dict[str, Any]) -> None:
    assert measured(plain(text("a"), block)).reply_text is None
    assert measured(*STREAM[:5], event("content_block_start", index=1, content_block=block)).reply_text is None


def test_a_stop_word_is_sampled_but_not_shown() -> None:
    assert measured(plain(text("a"), stop_sequence="\n")).reply_text is None
    assert measured(*STREAM[:5], event("message_delta", delta={"stop_sequence": "\n"})).reply_text is None


def test_without_a_figure_of_reuse_the_input_is_the_whole_prompt() -> None:
    found = measured(plain(text("a"), usage={"input_tokens": 31, "output_tokens": 3}))
    assert (found.prompt_tokens, found.reused, found.evaluated) == (31, None, None)


@pytest.mark.parametrize("lie", [-1, 2**31, 1.5, True, "30", None, [], {}])
def test_a_lie_is_unknown(lie: object) -> None:
    found = measured(plain(text("a"), usage={**USAGE, "cache_read_input_tokens": lie}))
    assert (found.prompt_tokens, found.reused, found.evaluated, found.reply_tokens) == (None, None, 1, 3)


def test_an_error_has_no_figures() -> None:
    assert measured({"error": {"code": 400, "message": "no"}}) == Measured()
