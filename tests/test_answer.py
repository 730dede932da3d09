from __future__ import annotations

import gzip
import itertools
import json
import zlib
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toki import answer
from toki.answer import AnswerReader
from toki.answer import is_stream
from toki.engine.events import Measured

STREAM = "text/event-stream; charset=utf-8"
EVENTS = b'data: {"n":1}\n\n: ping\n\nevent: x\ndata: {"n":2}\n\ndata: [DONE]\n\n'
SEEN = [{"n": 1}, {"n": 2}]


class Noted:
    """A meter that keeps what it was fed."""

    def __init__(self) -> None:
        self.chunks: list[Mapping[str, Any]] = []

    def feed(self, chunk: Mapping[str, Any]) -> None:
        self.chunks.append(chunk)

    def measured(self, finished: bool) -> Measured:
        return Measured(reused=len(self.chunks), finished=finished)


def read(content_type: str, coding: str, pieces: list[bytes]) -> list[Mapping[str, Any]]:
    meter = Noted()
    reader = AnswerReader(meter, content_type, coding)
    for piece in pieces:
        reader.feed(piece)
    reader.finish()
    assert reader.measured(finished=True) == Measured(reused=len(meter.chunks), finished=True)
    return meter.chunks


@given(st.lists(st.integers(0, len(EVENTS))), st.sampled_from(["", "identity", "gzip", "deflate"]))
def test_a_stream_is_read_however_it_is_cut_and_packed(cuts: list[int], coding: str) -> None:
    packed = gzip.compress(EVENTS) if coding == "gzip" else zlib.compress(EVENTS) if coding == "deflate" else EVENTS
    places = [0, *sorted(cut % len(packed) for cut in cuts), len(packed)]
    assert read(STREAM, coding, [packed[a:b] for a, b in itertools.pairwise(places)]) == SEEN


@pytest.mark.parametrize("coding", ["", "gzip"])
def test_a_plain_answer_is_read_at_its_end(coding: str) -> None:
    content = json.dumps({"timings": {}}).encode()
    packed = gzip.compress(content) if coding else content
    assert read("application/json", coding, [packed[:9], packed[9:]]) == [{"timings": {}}]


@pytest.mark.parametrize(
    ("content_type", "coding", "content"),
    [
        ("application/json", "br", b"anything"),
        ("application/json", "gzip", b"not gzip"),
        ("application/json", "", b"[1,2]"),
        ("application/json", "", b"{"),
        ("application/json", "", b"[" * 200_000),
        ("application/json", "", b"\xff\xfe"),
        ("text/html", "", b""),
        (STREAM, "", b"data: {\n\ndata: 7\n\ndata: \xff\n\n"),
        (STREAM, "gzip", gzip.compress(b'data: {"n":1}\n\n' + bytes(3 * answer.PIECE))),
    ],
)
def test_what_cannot_be_read_leaves_the_figures_unknown(content_type: str, coding: str, content: bytes) -> None:
    assert read(content_type, coding, [content]) == []


def test_a_plain_answer_that_is_too_long_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answer, "LONGEST", 8)
    assert read("application/json", "", [b'{"a":', b'"bcdef"}', b" "]) == []


def test_a_report_of_progress_is_no_answer_yet() -> None:
    reader = AnswerReader(Noted(), STREAM, "")
    seen = []
    for data in (b'{"prompt_progress":{"total":9}}', b'{"n":1}', b"[DONE]"):
        reader.feed(b"data: " + data + b"\n\n")
        seen.append(reader.pieces > 0)
    assert seen == [False, True, True]


@pytest.mark.parametrize(
    ("content_type", "expected"),
    [("text/event-stream", True), ("Text/Event-Stream;charset=utf-8", True), ("application/json", False), ("", False)],
)
def test_is_stream(content_type: str, expected: bool) -> None:
    assert is_stream(content_type) is expected
