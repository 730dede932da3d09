"""Reads an event stream piece by piece, without input or output of its own (like h11).

The answer passes to the client untouched; this reader only looks on, so hostile bytes must cost neither an exception
nor memory.
"""

from __future__ import annotations

import re

MAX_EVENT = 16 * 2**20  # bytes of one event that are kept; llama-server's largest (`verbose`) repeats a whole prompt
BOM = b"\xef\xbb\xbf"
LINE_END = re.compile(rb"\r\n|\r|\n")


class EventReader:
    """The data of each event of a text/event-stream, in the order of the stream, however the stream is cut.

    Follows the HTML standard's event stream interpretation (9.2.6): lines end with CR, LF or CRLF, a leading byte
    order mark is dropped, comments and other fields than `data` are passed over, several data lines are joined by LF,
    an event ends with an empty line, and what the end of the stream cuts off does not count. The payload of an event
    larger than MAX_EVENT is dropped and counted in `dropped`.
    """

    def __init__(self) -> None:
        self.dropped = 0
        self._line = bytearray()  # the line that is not ended yet
        self._data = bytearray()  # the data lines of the event so far, each followed by LF
        self._oversized = False
        self._first_line = True
        self._after_cr = False

    def feed(self, data: bytes) -> list[bytes]:
        """The payloads of the events that `data` completes, such as b'{"index":0}' or b"[DONE]"."""
        if self._after_cr and data:
            data = data.removeprefix(b"\n")  # the second half of a CRLF
            self._after_cr = False
        if not data:
            return []
        self._after_cr = data.endswith(b"\r")
        *ended, rest = LINE_END.split(data)
        events = []
        for piece in ended:
            self._extend(piece)
            line = self._take_line()
            if line:
                self._field(line)
            elif (event := self._take_event()) is not None:
                events.append(event)
        self._extend(rest)
        return events

    def _extend(self, piece: bytes) -> None:
        if len(self._data) + len(self._line) + len(piece) > MAX_EVENT:
            self._oversized = True
            self._data.clear()
        if self._oversized:
            piece = piece[: not self._line]  # enough to tell that the line is not empty
        self._line += piece

    def _take_line(self) -> bytes:
        line = bytes(self._line)
        self._line.clear()
        if self._first_line:
            self._first_line = False
            line = line.removeprefix(BOM)
        return line

    def _field(self, line: bytes) -> None:
        name, _, value = line.partition(b":")
        if name == b"data" and not self._oversized:
            self._data += value.removeprefix(b" ") + b"\n"

    def _take_event(self) -> bytes | None:
        if self._oversized:
            self._oversized = False
            self.dropped += 1
            return None
        if not self._data:
            return None
        event = bytes(self._data[:-1])
        self._data.clear()
        return event
