"""What is read of an answer beside its figures: the first of several texts, and why it ended."""

from __future__ import annotations

import pytest

from play import finish_reason
from play import first_reply


@pytest.mark.parametrize(
    "payloads",
    [
        [b'[{"index": 1, "content": "no"}, {"index": 0, "content": "yes"}]'],
        [b'{"index": 1, "content": "no"}', b'{"index": 0, "content": "y"}', b'{"index": 0, "content": "es"}'],
        [b'{"choices": [{"index": 1, "message": {"content": "no"}}, {"index": 0, "message": {"content": "yes"}}]}'],
        [
            b'{"choices": [{"index": 0, "delta": {"role": "assistant", "content": null}}]}',
            b'{"choices": [{"index": 0, "delta": {"content": "yes"}}]}',
            b'{"choices": [{"index": 1, "delta": {"content": "no"}}]}',
            b'{"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}',
            b'{"choices": [], "usage": {}}',
            b"[DONE]",
        ],
    ],
)
def test_the_first_of_several_answers(payloads: list[bytes]) -> None:
    assert first_reply(payloads) == "yes"


@pytest.mark.parametrize(
    ("payloads", "reason"),
    [
        ([b'{"choices": [{"finish_reason": "stop"}]}'], "stop"),
        (
            [b'{"choices": [{"finish_reason": null}]}', b'{"choices": [{"finish_reason": "length"}]}', b"[DONE]"],
            "length",
        ),
        ([b'{"choices": [{"finish_reason": "stop"}]}', b'{"choices": [], "usage": {}}'], "stop"),
        ([b'{"stop_type": "none"}', b'{"stop_type": "limit"}'], "limit"),
        ([b'[{"stop_type": "eos"}, {"stop_type": "limit"}]'], "eos"),
        ([b'{"stop_reason": "end_turn"}'], "end_turn"),
        ([b'{"delta": {"stop_reason": "max_tokens"}}', b'{"type": "message_stop"}'], "max_tokens"),
        ([b'{"delta": "a piece of text", "type": "response.output_text.delta"}'], None),
        ([b'{"choices": [{"finish_reason": null}]}'], None),
        ([b'{"choices": [{"fini'], None),
        ([], None),
    ],
)
def test_why_an_answer_ended(payloads: list[bytes], reason: str | None) -> None:
    assert finish_reason(payloads) == reason
