"""What stands before a user message is found whatever the template writes around it."""

from __future__ import annotations

import json

import pytest

from toki.turns import user_delimiter


@pytest.mark.parametrize(
    ("start", "user", "assistant", "end_user", "end_assistant", "delimiter"),
    [
        ("", "<|im_start|>user\n", "<|im_start|>assistant\n", "<|im_end|>\n", "<|im_end|>\n", "<|im_start|>user"),
        (
            "<|im_start|>system\nBe kind.<|im_end|>\n",
            "<|im_start|>user\n",
            "<|im_start|>assistant\n",
            "<|im_end|>\n",
            "<|im_end|>\n",
            "<|im_start|>user",
        ),
        (
            "<bos>",
            "<start_of_turn>user\n",
            "<start_of_turn>model\n",
            "<end_of_turn>\n",
            "<end_of_turn>\n",
            "<start_of_turn>user",
        ),
        ("", "[INST] ", " ", " [/INST]", "</s>", "[INST]"),
        (
            "<|start_header_id|>system<|end_header_id|>\n\nToday<|eot_id|>",
            "<|start_header_id|>user<|end_header_id|>\n\n",
            "<|start_header_id|>assistant<|end_header_id|>\n\n",
            "<|eot_id|>",
            "<|eot_id|>",
            "<|start_header_id|>user<|end_header_id|>",
        ),
        ("", "", "", "\n", "\n", ""),
    ],
)
def test_the_delimiter_is_what_stands_before_each_user_message(
    start: str, user: str, assistant: str, end_user: str, end_assistant: str, delimiter: str
) -> None:
    def render(body: bytes) -> str:
        parts = {"user": (user, end_user), "assistant": (assistant, end_assistant)}
        turns = ((parts[message["role"]], message["content"]) for message in json.loads(body)["messages"])
        return start + "".join(f"{before}{content}{after}" for (before, after), content in turns)

    assert user_delimiter(render) == delimiter


@pytest.mark.parametrize("text", ["", "Xfirst1X only", "Xfirst1X Xanswer2X", "Xanswer2X Xsecond3X"])
def test_a_template_that_drops_messages_tells_nothing(text: str) -> None:
    assert user_delimiter(lambda body: text) == ""
