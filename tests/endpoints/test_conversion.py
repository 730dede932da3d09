from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toki.endpoints.conversion import RefusedError
from toki.endpoints.conversion import converted
from toki.endpoints.conversion import dump
from toki.endpoints.conversion import member
from toki.endpoints.conversion import text
from toki.endpoints.media import STAND_INS
from toki.endpoints.question import Chat
from toki.endpoints.question import Media
from toki.endpoints.question import Unreadable

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.parametrize(
    ("value", "written"),
    [
        # As llama-server wrote them, b10434 and b11549, in the arguments of a converted call.
        (1.0, "1.0"),
        (-0.0, "-0.0"),
        (1e15, "1e+15"),
        (1e16, "1e+16"),
        (123456789012345.6, "123456789012345.6"),
        (1234567890123456.0, "1.234567890123456e+15"),
        (-1234567890123456.5, "-1.2345678901234565e+15"),
        (1e14, "100000000000000.0"),
        (1e-5, "1e-05"),
        (0.0001, "0.0001"),
        (5e-324, "5e-324"),
        (1.7976931348623157e308, "1.7976931348623157e+308"),
        (0.30000000000000004, "0.30000000000000004"),
        (2**64 - 1, "18446744073709551615"),
        (2**64, "1.8446744073709552e+19"),
        (-(2**63), "-9223372036854775808"),
        (-(2**63) - 1, "-9.223372036854776e+18"),
        (True, "true"),
        (None, "null"),
        ("é\x7f\u2028/<>\b\f\x01😀", '"é\x7f\u2028/<>\\b\\f\\u0001😀"'),
        ({"a": [1, {}], "é": []}, '{"a":[1,{}],"é":[]}'),
    ],
)
def test_json_is_written_as_the_server_writes_it(value: object, written: str) -> None:
    assert dump(value) == written


@given(JSON)
def test_what_is_written_reads_as_the_same_value(value: Any) -> None:
    assert json.loads(dump(value)) == value


def test_a_member_is_none_unless_there_is_one() -> None:
    values: list[object] = [{"a": 1}, {"a": None}, {"b": 1}, [1], "a", None]
    assert [member(value, "a") for value in values] == [1, None, None, None, None, None]


def test_a_text_is_the_default_unless_there_is_one() -> None:
    values: list[object] = [{"a": "x"}, {"a": ""}, {"a": 1}, {}, []]
    assert [text(value, "a", "?") for value in values] == ["x", "", "?", "?", "?"]


def test_a_converted_body_is_the_chat_to_render() -> None:
    chat = {"messages": [{"role": "user", "content": "hi"}]}
    assert converted({"a": 1}, lambda body: chat) == (chat, Chat(chat))


def test_images_are_rendered_without_their_data() -> None:
    image = {"type": "image_url", "image_url": {"url": "x"}}
    chat = {"messages": [{"role": "user", "content": [image]}], "a": 1}
    shown = {"messages": [{"role": "user", "content": [image | {"image_url": STAND_INS["image_url"]}]}], "a": 1}
    assert converted({}, lambda body: chat) == (chat, Chat(shown, (Media(image, "vision"),)))


@pytest.mark.parametrize("error", [RefusedError("no"), RecursionError("no"), OverflowError("no")])
def test_what_cannot_be_converted_says_why(error: Exception) -> None:
    def fail(body: object) -> dict[str, Any]:
        raise error

    assert converted({"a": 1}, fail) == ({"a": 1}, Unreadable("it can't be converted to a chat: no"))
