"""Which bodies go on from earlier ones."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from toki import endpoints
from toki.onward import Turn
from toki.onward import Turns
from toki.server import Auth

LONG = "You are a helpful assistant who answers in one sentence. " * 8
CHAT: dict[str, Any] = {
    "model": "m",
    "messages": [{"role": "system", "content": LONG}, {"role": "user", "content": "one"}],
    "max_tokens": 8,
}
ANSWER = {"role": "assistant", "content": "uno"}
NEXT = {"role": "user", "content": "two"}
LATER = {**CHAT, "messages": [*CHAT["messages"], ANSWER, NEXT]}


def turn(body: dict[str, Any], path: str = "/v1/chat/completions", key: str = "") -> Turn:
    endpoint = endpoints.match("POST", path)
    assert endpoint is not None
    return Turn(body, endpoint.read(body), len(json.dumps(body)), Auth(key))


def test_a_chat_with_an_answer_and_a_message_more_goes_on() -> None:
    assert turn(LATER).goes_on(turn(CHAT))
    assert turn({**LATER, "max_tokens": 200, "stream": True}).goes_on(turn(CHAT))


@pytest.mark.parametrize(
    "other",
    [
        CHAT,  # the same again
        {**LATER, "tools": [{"type": "function", "function": {"name": "f"}}]},  # stands before the messages
        {**LATER, "model": "n"},
        {**LATER, "chat_template_kwargs": {"enable_thinking": False}},
        {**CHAT, "messages": [*CHAT["messages"], NEXT]},  # no answer between: the template may join the two
        {**CHAT, "messages": [*CHAT["messages"], NEXT, NEXT]},
        {**CHAT, "messages": [{"role": "system", "content": LONG + "!"}, *LATER["messages"][1:]]},
        {**CHAT, "messages": [*CHAT["messages"], ANSWER, {"role": "user", "content": LONG * 2}]},  # mostly new
        {**CHAT, "messages": {"role": "user"}},
        {**CHAT, "messages": [*CHAT["messages"], "odd", NEXT]},
    ],
)
def test_other_chats_do_not(other: dict[str, Any]) -> None:
    assert not turn(other).goes_on(turn(CHAT))


def test_only_the_same_client_goes_on_at_the_same_endpoint() -> None:
    assert not turn(LATER, key="another").goes_on(turn(CHAT))
    assert not turn(LATER, "/v1/messages").goes_on(turn(CHAT))


def test_a_prompt_of_text_or_ids_goes_on_where_it_begins_as_the_earlier_one() -> None:
    text = turn({"prompt": LONG}, "/completion")
    assert turn({"prompt": LONG + "and more", "n_predict": 5}, "/completion").goes_on(text)
    assert not turn({"prompt": "Not " + LONG}, "/completion").goes_on(text)
    assert not turn({"prompt": LONG + "and more", "lora": [{"id": 0, "scale": 1.0}]}, "/completion").goes_on(text)
    numbers = turn({"prompt": [*range(100)]}, "/completion")
    assert turn({"prompt": [*range(110)]}, "/completion").goes_on(numbers)
    assert not turn({"prompt": [7, *range(110)]}, "/completion").goes_on(numbers)


def test_other_shapes_go_on_as_the_chats_that_they_are_converted_to() -> None:
    """Claude Code marks its last messages for a cache that llama-server has not: its marks move on with each turn."""
    mark = {"cache_control": {"type": "ephemeral"}}
    first = {**CHAT, "messages": [{"role": "user", "content": [{"type": "text", "text": LONG, **mark}]}]}
    then = [
        {"role": "user", "content": [{"type": "text", "text": LONG}]},
        {"role": "assistant", "content": [{"type": "text", "text": "uno"}]},
        {"role": "user", "content": [{"type": "text", "text": "two", **mark}]},
    ]
    assert turn({**CHAT, "messages": then}, "/v1/messages").goes_on(turn(first, "/v1/messages"))
    answer = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "uno"}]}
    answered = [{"role": "user", "content": LONG}, answer, NEXT]
    typed = turn({"model": "m", "input": answered[:1]}, "/v1/responses")
    assert turn({"model": "m", "input": answered}, "/v1/responses").goes_on(typed)


def test_pictures_are_read_before_anything_is_said() -> None:
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    first = {**CHAT, "messages": [{"role": "user", "content": [{"type": "text", "text": LONG}, picture]}]}
    assert not turn({**first, "messages": [*first["messages"], ANSWER, NEXT]}).goes_on(turn(first))


def test_what_is_nested_too_deeply_to_be_compared_does_not() -> None:
    """It can be read: that takes less of the stack, and is done where less of it is used."""

    def nested(leaf: int) -> dict[str, Any]:
        part: Any = leaf
        for _ in range(sys.getrecursionlimit()):
            part = [part]
        return {"role": "user", "content": LONG, "extra": part}

    def asked(messages: list[dict[str, Any]], size: int) -> Turn:
        body = {"messages": messages}
        return Turn(body, endpoints.ENDPOINTS[0].read(body), size, Auth())

    turns = Turns()
    turns.add(1, asked([nested(1)], 1000), None)
    turns.add(2, asked([nested(2), ANSWER, NEXT], 1001), None)
    assert turns.before(asked([nested(3), ANSWER, NEXT, ANSWER, NEXT], 1002)) is None


def test_of_many_chats_the_latest_turn_that_goes_on_is_found() -> None:
    turns = Turns(count=3)
    chats = [{**CHAT, "messages": [CHAT["messages"][0], {"role": "user", "content": f"{n}"}]} for n in range(4)]
    for key, chat in enumerate(chats):
        turns.add(key, turn(chat), None)
    later = [turn({**chat, "messages": [*chat["messages"], ANSWER, NEXT]}) for chat in chats]
    assert [turns.before(one) for one in later] == [None, 1, 2, 3]  # the oldest is forgotten
    turns.add(9, later[2], 2)
    assert turns.before(later[2]) is None  # nothing goes on from itself, and what it went on from is gone
    assert turns.before(later[1]) == 1
    after = turn({**CHAT, "messages": [*later[2].body["messages"], ANSWER, NEXT]})
    assert turns.before(after) == 9
    turns.add(10, later[0], 0)  # the one that it went on from was forgotten while it ran
    assert [turns.before(one) for one in (later[1], later[3], after)] == [None, 3, 9]


def test_large_bodies_push_out_earlier_ones() -> None:
    turns = Turns(limit=3 * turn(CHAT).size)
    for key in range(5):
        turns.add(key, turn({**CHAT, "model": f"{key}"}), None)
    assert [turns.before(turn({**LATER, "model": f"{key}"})) for key in range(5)] == [None, None, 2, 3, 4]
