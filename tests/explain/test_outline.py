from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tests.explain.cases import render
from tests.explain.cases import tool
from tests.explain.cases import words

from toki.endpoints.messages import to_chat as of_messages
from toki.inspect.finding import Block
from toki.inspect.finding import Part
from toki.inspect.outline import IMAGE
from toki.inspect.outline import locate
from toki.inspect.outline import of_chat
from toki.inspect.outline import of_text

CORPUS = Path(__file__).parents[1] / "corpus" / "messages"
BODY: dict[str, Any] = {
    "messages": [
        {"role": "system", "content": words(30, "system")},
        {"role": "user", "content": words(20, "question")},
        {
            "role": "assistant",
            "content": words(5, "said"),
            "reasoning_content": words(9, "thought"),
            "tool_calls": [{"function": {"name": "read", "arguments": '{"path": "a.py"}'}}],
        },
        {"role": "tool", "content": words(20, "output")},
    ],
    "tools": [tool("read"), tool("edit")],
}


@pytest.mark.parametrize("template", ["chatml", "tools first"])
def test_parts_are_found_in_the_rendered_text(template: str) -> None:
    text = render(BODY, template)
    spans = locate(of_chat(BODY), text)
    assert {span.block for span in spans} == {
        Block(Part.SYSTEM, 0),
        Block(Part.TOOLS),
        Block(Part.USER, 1),
        Block(Part.ASSISTANT, 2),
        Block(Part.TOOL_RESULT, 3),
    }
    found = {span.block.message: text[span.start : span.end] for span in spans if span.block.message is not None}
    assert found[0] == words(30, "system")
    assert found[3] == words(20, "output")
    assert found[2].startswith(words(9, "thought"))
    assert found[2].endswith('{"path": "a.py"}}')
    assert all(a.end <= b.start for a, b in pairwise(spans))


def test_what_a_template_leaves_out_is_left_out() -> None:
    spans = locate(of_chat(BODY), words(20, "question") + words(20, "output"))
    assert [span.block.message for span in spans] == [1, 3]


def test_equal_tools_have_equal_keys_whatever_their_order() -> None:
    turned = {"tools": [{"function": dict(reversed(tool("read")["function"].items())), "type": "function"}]}
    ours, theirs = of_chat(BODY).tools[0], of_chat(turned).tools[0]
    assert ours.sorted == theirs.sorted
    assert ours.written != theirs.written


def test_images_are_told_apart() -> None:
    def outline(data: str) -> Any:
        image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}
        return of_chat({"messages": [{"role": "user", "content": [{"type": "text", "text": "see"}, image]}]})

    assert outline("AAAA").messages[0].content == f"see{IMAGE}"
    assert outline("AAAA").messages == outline("AAAA").messages
    assert outline("AAAA").messages != outline("BBBB").messages


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"messages": None, "tools": 3},
        {"messages": [1, {"role": 2, "content": {}}, {"role": "user", "content": [None, {"type": "text", "text": 5}]}]},
        {"messages": [{"role": "assistant", "tool_calls": [None, {"function": {"name": 1, "arguments": "{"}}, {}]}]},
        {"tools": [{"function": None}, {}, "x"], "response_format": object()},
    ],
)
def test_odd_bodies_do_no_harm(body: dict[str, Any]) -> None:
    outline = of_chat(body)
    assert locate(outline, "some text") == ()


def test_bodies_as_clients_send_them_do_no_harm() -> None:
    for path in sorted(CORPUS.glob("*.json")):
        if not path.name.startswith("refused"):
            chat = of_messages(json.loads(path.read_text(encoding="utf-8")))
            assert len(of_chat(chat).messages) == len(chat["messages"]), path.name


def test_a_text_is_its_lines() -> None:
    outline = of_text("one\ntwo\n")
    assert [message.content for message in outline.messages] == ["one\n", "two\n"]
    assert outline.block(1) == Block(Part.PROMPT)
    assert outline.head == ""
