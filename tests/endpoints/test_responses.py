from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given
from tests.endpoints.corpus import bodies
from tests.endpoints.corpus import damaged

from toki.endpoints.conversion import RefusedError
from toki.endpoints.question import Chat
from toki.endpoints.question import Unreadable
from toki.endpoints.responses import Responses
from toki.endpoints.responses import ResponsesMeter
from toki.endpoints.responses import to_chat
from toki.engine.events import Measured

RESPONSES = Responses("/v1/responses")
HI = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]}
USER = {"role": "user", "content": [{"text": "hi", "type": "text"}]}
FUNCTION_CALL = {"type": "function_call", "name": "f", "arguments": '{"a": 1}', "call_id": "c1", "id": "fc_1"}
CALL = {"function": {"arguments": '{"a": 1}', "name": "f"}, "id": "c1", "type": "function"}


def chat_of(*items: object) -> Any:
    return to_chat({"input": list(items)})["messages"]


def answer(*texts: str, **more: object) -> dict[str, Any]:
    content = [{"type": "output_text", "text": shown, "annotations": []} for shown in texts]
    return {"type": "message", "role": "assistant", "content": content, **more}


def output(given: object) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": "c1", "output": given}


def reasoning(*texts: object) -> dict[str, Any]:
    content = [{"type": "reasoning_text", "text": thought} for thought in texts]
    return {"type": "reasoning", "summary": [], "content": content}


def text(shown: str) -> dict[str, str]:
    return {"text": shown, "type": "text"}


# --- input --------------------------------------------------------------------------------------------------------


def test_a_text_is_one_message() -> None:
    assert to_chat({"input": "hi"}) == {"messages": [{"role": "user", "content": "hi"}]}


@pytest.mark.parametrize(("instructions", "content"), [("I", "I"), ("", ""), (None, ""), (5, "")])
def test_instructions_come_first(instructions: object, content: str) -> None:
    found = to_chat({"input": [HI], "instructions": instructions})
    assert found == {"messages": [{"role": "system", "content": content}, USER]}


@pytest.mark.parametrize("role", ["user", "system", "developer"])
def test_a_message_keeps_its_role_and_what_else_it_holds(role: str) -> None:
    item = {"id": "m", "type": "message", "status": "completed", "role": role, "content": "hi", "phase": "x"}
    assert chat_of(item) == [{"id": "m", "role": role, "content": [text("hi")], "phase": "x"}]


def test_an_answer_keeps_only_its_texts() -> None:
    assert chat_of(answer("a", "b", id="m", status="completed")) == [
        {"role": "assistant", "content": [text("a"), text("b")], "id": "m"}
    ]
    assert chat_of({"type": "message", "role": "assistant", "content": "a"}) == [
        {"role": "assistant", "content": [text("a")]}
    ]
    assert chat_of({"type": "message", "role": "assistant"}) == [{"role": "assistant", "content": []}]


def test_a_refusal_is_converted_but_no_template_takes_it() -> None:
    item = {"type": "message", "role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]}
    assert chat_of(item) == [{"role": "assistant", "content": [{"refusal": "No.", "type": "refusal"}]}]
    assert RESPONSES.read({"input": [item]}).prompt == Unreadable("a content part of an odd type")


def test_calls_and_reasoning_merge_into_the_answer_before_them() -> None:
    found = chat_of(HI, answer("a"), reasoning("t"), FUNCTION_CALL, FUNCTION_CALL, answer("b"), output("o"))
    said = {
        "role": "assistant",
        "content": [text("a"), text("b")],
        "reasoning_content": "t",
        "tool_calls": [CALL, CALL],
    }
    assert found == [USER, said, {"content": "o", "role": "tool", "tool_call_id": "c1"}]


def test_calls_and_reasoning_alone_make_an_answer() -> None:
    assert chat_of(FUNCTION_CALL) == [{"role": "assistant", "tool_calls": [CALL]}]
    assert chat_of(FUNCTION_CALL, answer("a")) == [{"role": "assistant", "tool_calls": [CALL], "content": [text("a")]}]
    assert chat_of(reasoning("t")) == [{"role": "assistant", "content": [], "reasoning_content": "t"}]


def test_of_reasoning_the_last_items_first_text_counts() -> None:
    assert chat_of(reasoning("t", "u"), reasoning("v", 5))[0]["reasoning_content"] == "v"
    assert chat_of({"type": "reasoning", "summary": [], "content": "w"})[0]["reasoning_content"] == "w"


def test_calls_of_an_odd_form_in_an_answer_are_replaced_or_added_to() -> None:
    assert chat_of(answer("a", tool_calls="x"), FUNCTION_CALL)[0]["tool_calls"] == [CALL]
    assert chat_of(answer("a", tool_calls=[1]), FUNCTION_CALL)[0]["tool_calls"] == [1, CALL]


@pytest.mark.parametrize(
    ("given", "content"),
    [
        ("o", "o"),
        ("", ""),
        ([], []),
        ([{"type": "input_text", "text": "o", "x": 1}], [{"type": "text", "text": "o", "x": 1}]),
        (
            [{"type": "input_image", "image_url": "u"}],
            [{"type": "image_url", "image_url": {"url": "u"}}],
        ),
    ],
)
def test_an_output_becomes_a_message(given: object, content: object) -> None:
    assert chat_of(output(given)) == [{"content": content, "role": "tool", "tool_call_id": "c1"}]


@pytest.mark.parametrize(
    "item",
    [
        {"role": "user", "content": [{"type": "input_image", "image_url": "u"}]},
        output([{"type": "input_image", "image_url": "u"}]),
    ],
)
def test_images_are_told_apart_from_the_text(item: dict[str, Any]) -> None:
    prompt = RESPONSES.read({"input": [item]}).prompt
    assert isinstance(prompt, Chat)
    assert [each.part["image_url"] for each in prompt.media] == [{"url": "u"}]


@pytest.mark.parametrize(
    "item",
    [
        5,
        None,
        {},
        {"role": "assistant", "content": "without a type"},
        {"role": "tool", "content": "o"},
        {"role": "user", "content": [{"type": "text", "text": "x"}]},
        {"role": "user", "content": [{"type": "output_text", "text": "x"}]},
        {"role": "user", "content": [{"type": "input_text"}]},
        {"role": "user", "content": [{"type": "input_image", "file_id": "f"}]},
        {"role": "user", "content": [{"type": "input_file", "file_id": "f"}]},
        {"role": "user", "content": [5]},
        {"role": "user"},
        {"type": "message", "role": "assistant", "content": [{"type": "text", "text": "x"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "refusal"}]},
        {**FUNCTION_CALL, "arguments": {}},
        {**FUNCTION_CALL, "call_id": None},
        {"type": "function_call", "name": "f"},
        output(5),
        output(None),
        output([5]),
        output([{"type": "output_text", "text": "x"}]),
        output([{"type": "input_image"}]),
        {**output("o"), "call_id": 5},
        reasoning(),
        reasoning(5),
        {"type": "reasoning", "summary": [], "content": None, "encrypted_content": "x"},
        {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "t"}]},
        {"type": "item_reference", "id": "x"},
        {"type": "custom_tool_call", "call_id": "c", "name": "f", "input": "x"},
        {"type": "web_search_call", "status": "completed"},
    ],
)
def test_an_item_that_the_server_does_not_know_is_refused(item: object) -> None:
    with pytest.raises(RefusedError):
        chat_of(HI, item)
    prompt = RESPONSES.read({"input": [HI, item]}).prompt
    assert isinstance(prompt, Unreadable)
    assert prompt.why.startswith("it can't be converted to a chat: ")


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"input": None},
        {"input": {}},
        {"input": "hi", "previous_response_id": "r"},
        {"input": "hi", "tools": None},
        {"input": "hi", "tools": {}},
    ],
)
def test_a_body_that_the_server_refuses(body: dict[str, Any]) -> None:
    with pytest.raises(RefusedError):
        to_chat(body)


# --- the rest of the body -----------------------------------------------------------------------------------------


def test_function_tools_are_wrapped_and_others_skipped() -> None:
    tools = [
        {"type": "function", "name": "a", "strict": False, "parameters": {}},
        {"type": "web_search"},
        {"type": "function", "name": "b"},
        {"name": "no type"},
        5,
    ]
    assert to_chat({"input": "hi", "tools": tools})["tools"] == [
        {"type": "function", "function": {"name": "a", "strict": False, "parameters": {}}},
        {"type": "function", "function": {"name": "b", "strict": True}},
    ]


@pytest.mark.parametrize("tools", [[], [{"type": "web_search"}]])
def test_no_function_tools_are_no_tools(tools: list[object]) -> None:
    assert "tools" not in to_chat({"input": "hi", "tools": tools})


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"reasoning": {"effort": "low", "summary": "auto"}}, {"reasoning_effort": "low"}),
        ({"reasoning": {"effort": None}}, {"reasoning_effort": None}),
        ({"reasoning": {"effort": "low"}, "reasoning_effort": "high"}, {"reasoning_effort": "low"}),
        ({"reasoning": {"summary": "auto"}}, {}),
        ({"reasoning": None}, {}),
        ({"max_output_tokens": 5, "max_tokens": 9}, {"max_tokens": 5}),
        ({"previous_response_id": ""}, {"previous_response_id": ""}),
        ({"id_slot": 1, "tool_choice": "auto", "x": {}}, {"id_slot": 1, "tool_choice": "auto", "x": {}}),
        ({"messages": ["gone"]}, {}),
    ],
)
def test_other_keys(given: dict[str, Any], expected: dict[str, Any]) -> None:
    found = to_chat({"input": [], **given})
    assert found.pop("messages") == []
    assert found == expected


# --- the question -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("route", ["/v1/responses", "/responses"])
def test_a_body_is_one_question(route: str) -> None:
    body = {"model": "m", "input": [HI], "stream": True, "max_output_tokens": 7, "id_slot": 2, "cache_prompt": False}
    found = Responses(route).read(body)
    assert found.prompt == Chat(to_chat(body))
    assert (found.endpoint, found.model, found.stream, found.max_tokens) == (route, "m", True, 7)
    assert (found.honours_slot, found.client_slot, found.fixed) == (True, 2, "the client chose a slot")
    assert found.cache_prompt is False
    assert found.count_path == f"{route}/input_tokens"


def test_several_answers_leave_as_they_came() -> None:
    assert RESPONSES.read({"input": "hi", "n": 2}).fixed == "n > 1"


@pytest.mark.parametrize(("name", "body"), bodies("responses").items())
def test_the_corpus_is_read_or_says_why_not(name: str, body: dict[str, Any]) -> None:
    before = copy.deepcopy(body)
    prompt = RESPONSES.read(body).prompt
    assert body == before
    if name.startswith("refused"):
        assert isinstance(prompt, Unreadable)
    else:
        assert isinstance(prompt, Chat)
        assert bool(prompt.media) is name.startswith("image")
        json.dumps(prompt.body)


def test_the_corpus_is_large_enough() -> None:
    assert len(bodies("responses")) >= 40


@given(damaged("responses"))
def test_no_damaged_body_raises_or_is_changed(body: dict[str, Any]) -> None:
    before = copy.deepcopy(body)
    found = RESPONSES.read(body)
    assert body == before
    assert isinstance(found.prompt, Chat | Unreadable)


# --- the answer ---------------------------------------------------------------------------------------------------

USAGE = {"input_tokens": 31, "output_tokens": 3, "total_tokens": 34, "input_tokens_details": {"cached_tokens": 30}}
TIMINGS = {"cache_n": 30, "prompt_n": 1, "prompt_ms": 29.9, "predicted_n": 3}
EXPECTED = Measured(prompt_tokens=31, reused=30, evaluated=1, reply_tokens=3, reply_text="Hello there!")


def plain(*items: object, usage: object = USAGE) -> dict[str, Any]:
    return {"object": "response", "status": "completed", "output": list(items), "usage": usage}


def measured(*chunks: dict[str, Any], finished: bool = True) -> Measured:
    meter = ResponsesMeter()
    for chunk in chunks:
        meter.feed(chunk)
    return meter.measured(finished)


def event(kind: str, **more: object) -> dict[str, Any]:
    return {"type": f"response.{kind}", **more}


STREAM = [
    event("created", response={"object": "response", "status": "in_progress"}),
    event("in_progress", response={"object": "response", "status": "in_progress"}),
    event("output_item.added", item={"type": "message", "role": "assistant", "content": []}),
    event("content_part.added", part={"type": "output_text", "text": ""}),
    *(event("output_text.delta", delta=shown) for shown in ("Hello", " there", "!")),
    event("output_text.done", text="Hello there!"),
    event("output_item.done", item=answer("Hello there!")),
    event("completed", response=plain(answer("Hello there!")), timings=TIMINGS),
]


def test_a_plain_answer() -> None:
    assert measured(plain(answer("Hello there!"))) == EXPECTED


def test_a_stream() -> None:
    found = measured(*STREAM)
    assert (found.prompt_tokens, found.reused, found.evaluated, found.reply_tokens) == (31, 30, 1, 3)
    assert (found.prompt_ms, found.reply_text) == (29.9, "Hello there!")


def test_the_progress_shows_the_reuse_before_the_end() -> None:
    progress = event("in_progress", prompt_progress={"total": 1810, "cache": 7, "processed": 7, "time_ms": 0})
    found = measured(*STREAM[:2], progress, finished=False)
    assert (found.prompt_tokens, found.reused, found.finished) == (1810, 7, False)


@pytest.mark.parametrize("item", [reasoning("t"), FUNCTION_CALL, 5])
def test_a_reply_that_is_not_all_text_is_not_shown_whole(item: object) -> None:
    assert measured(plain(item, answer("a"))).reply_text is None
    assert measured(event("output_item.added", item=item), *STREAM).reply_text is None


def test_several_answers_have_no_figures() -> None:
    assert measured(STREAM[0], *STREAM) == Measured()


@pytest.mark.parametrize("lie", [-1, 2**31, 1.5, True, "30", None, [], {}, 32])
def test_a_lie_is_unknown(lie: object) -> None:
    found = measured(plain(usage={**USAGE, "input_tokens_details": {"cached_tokens": lie}}))
    assert (found.prompt_tokens, found.reused, found.evaluated, found.reply_tokens) == (31, None, None, 3)


def test_an_error_has_no_figures() -> None:
    assert measured({"error": {"code": 400, "message": "no"}}) == Measured()
