"""The reading of several answers to one request, which toki's own meters rightly refuse to sum up."""

from __future__ import annotations

import pytest

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
