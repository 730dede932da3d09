from __future__ import annotations

import tracemalloc
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.effort import examples

from toki import sse
from toki.sse import EventReader

FIELDS = [b"data: ", b"data:", b"data", b"data :", b"event: x", b"id: 1", b": ping", b"[DONE]", b'{"a":1}', b" "]
BREAKS = [b"\r", b"\n", b"\r\n", b"\n\n", b"\r\n\r\n", b"\r\r"]
NOISE = [b"\xef\xbb\xbf", b"\xef", b"\xff\x00", b"x" * 9]
PIECES = st.lists(st.sampled_from(FIELDS + BREAKS + NOISE)).map(b"".join)
STREAMS = PIECES | st.binary(max_size=60)


def interpret(stream: bytes) -> list[bytes]:
    """The HTML standard's algorithm on a whole stream, written as plainly as it goes."""
    events: list[bytes] = []
    data: list[bytes] = []
    for line in stream.removeprefix(b"\xef\xbb\xbf").splitlines(keepends=True):
        if not line.endswith((b"\r", b"\n")):
            break
        text = line.rstrip(b"\r\n")
        if not text:
            if data:
                events.append(b"\n".join(data))
            data = []
        elif text == b"data":
            data.append(b"")
        elif text.startswith(b"data:"):
            data.append(text[5:].removeprefix(b" "))
    return events


def read(stream: bytes, cuts: Sequence[int]) -> tuple[list[bytes], int]:
    reader = EventReader()
    ends = sorted(cut % (len(stream) + 1) for cut in cuts)
    events: list[bytes] = []
    for start, end in zip([0, *ends], [*ends, len(stream)], strict=True):
        events += reader.feed(stream[start:end])
    return events, reader.dropped


@pytest.mark.parametrize(
    ("stream", "events"),
    [
        (b'data: {"a":1}\n\ndata: [DONE]\n\n', [b'{"a":1}', b"[DONE]"]),
        (b"data: a\r\n\r\ndata: b\r\rdata: c\n\n", [b"a", b"b", b"c"]),
        (b"data:a\ndata: b\ndata\ndata:  c\n\n", [b"a\nb\n\n c"]),
        (b": ping\n\nevent: message_start\ndata: x\n\n", [b"x"]),
        (b"\xef\xbb\xbfdata: x\n\n", [b"x"]),
        (b"data: \xef\xbb\xbfx\n\n", [b"\xef\xbb\xbfx"]),
        (b"data: cut off\n", []),
        (b"error: {}\n\n", []),
    ],
)
def test_events(stream: bytes, events: list[bytes]) -> None:
    assert EventReader().feed(stream) == events
    assert interpret(stream) == events


@examples(500)
@given(stream=STREAMS, cuts=st.lists(st.integers(min_value=0), max_size=8))
def test_any_cut_of_a_stream_gives_the_same_events(stream: bytes, cuts: list[int]) -> None:
    assert read(stream, cuts) == (interpret(stream), 0)


@given(stream=STREAMS)
def test_byte_by_byte(stream: bytes) -> None:
    assert read(stream, range(len(stream))) == (interpret(stream), 0)


def test_an_event_is_out_as_soon_as_its_last_byte_is_in() -> None:
    reader = EventReader()
    assert [reader.feed(bytes([byte])) for byte in b"data: x\r\r\n"] == [[]] * 8 + [[b"x"], []]


@given(stream=PIECES, cuts=st.lists(st.integers(min_value=0), max_size=8))
def test_large_events_are_dropped_alike_however_the_stream_is_cut(stream: bytes, cuts: list[int]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sse, "MAX_EVENT", 12)
        whole = read(stream, [])
        assert read(stream, cuts) == whole
    events, dropped = whole
    rest = iter(interpret(stream))
    assert all(event in rest for event in events)  # those that are left, in order
    assert bool(dropped) >= (len(events) < len(interpret(stream)))


def test_a_dropped_event_is_counted_and_the_next_one_is_read() -> None:
    reader = EventReader()
    large = b"x" * (sse.MAX_EVENT // 2)
    assert reader.feed(b"data: " + large + b"\ndata: " + large + b"\n\ndata: next\n\n") == [b"next"]
    assert reader.dropped == 1


def test_memory_is_bounded() -> None:
    reader = EventReader()
    piece = b"data: " + b"x" * 65_530
    tracemalloc.start()
    try:
        for _ in range(4 * sse.MAX_EVENT // len(piece)):  # one endless line
            reader.feed(piece)
        for _ in range(4 * sse.MAX_EVENT // len(piece)):  # one endless event
            reader.feed(piece + b"\n")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2.5 * sse.MAX_EVENT
    assert reader.feed(b"\n\ndata: next\n\n") == [b"next"]
