"""Reads an answer as it passes, for its figures only: events of a stream, or the one JSON object of a plain answer.

The client's bytes are never touched here. Whatever can't be read (another content coding, no JSON, too long) leaves
the figures unknown, and memory stays bounded whatever the server sends.
"""

from __future__ import annotations

import json
import zlib

from toki.endpoints.question import Meter
from toki.engine.events import Measured
from toki.sse import EventReader

LONGEST = 16 * 2**20  # bytes of a plain answer that are read
PIECE = 2**20  # bytes that one piece of a compressed answer may unpack to


class AnswerReader:
    """Feeds `meter` with the JSON objects of one answer. Never raises.

    `pieces` counts the objects of the answer: once there is one, the server has begun to answer, and the whole prompt
    is evaluated. A report of its progress (`return_progress`) is no answer yet.
    """

    def __init__(self, meter: Meter, content_type: str, content_encoding: str) -> None:
        self.pieces = 0
        self._meter = meter
        self._events = EventReader() if is_stream(content_type) else None
        self._plain: bytearray | None = bytearray()
        coding = content_encoding.strip().lower()
        self._unpack = zlib.decompressobj(zlib.MAX_WBITS | 32) if coding in ("gzip", "x-gzip", "deflate") else None
        self._readable = self._unpack is not None or coding in ("", "identity")

    def feed(self, data: bytes) -> None:
        """The next bytes, as they came."""
        if not self._readable:
            return
        if self._unpack is not None:
            try:
                data = self._unpack.decompress(data, PIECE)
            except zlib.error:
                self._readable = False
                return
            if self._unpack.unconsumed_tail:  # unpacks to more than any real answer: a bomb
                self._readable = False
                return
        if self._events is not None:
            for payload in self._events.feed(data):
                self._take(payload)
        elif self._plain is not None:
            self._plain += data
            if len(self._plain) > LONGEST:
                self._plain = None

    def finish(self) -> None:
        """The answer is complete."""
        if self._events is None and self._plain:
            self._take(bytes(self._plain))
            self._plain = None

    def measured(self, finished: bool) -> Measured:
        """The figures seen until now; `finished`: the answer came to its regular end."""
        return self._meter.measured(finished)

    def _take(self, payload: bytes) -> None:
        try:
            chunk = json.loads(payload)
        except (ValueError, RecursionError):
            return  # "[DONE]", a comment of some proxy, a page of HTML: no figures there
        if isinstance(chunk, dict):
            self.pieces += "prompt_progress" not in chunk
            self._meter.feed(chunk)


def is_stream(content_type: str) -> bool:
    """Whether an answer of this type is a stream of events."""
    return content_type.partition(";")[0].strip().lower() == "text/event-stream"
