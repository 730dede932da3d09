"""What mitmproxy calls with each piece of a body on its way: it passes the piece on untouched and lets others see it.

mitmproxy holds a body back until its end unless a flow's `stream` is set, and then keeps nothing of it. A Tap
streams, and keeps a bounded copy, so that mitmproxy's own views still have the body to show.

Rules measured on mitmproxy 11 and 12: a stream callable that raises loses the piece, None hangs the client, and an
empty piece ends a chunked body early, so an empty one is answered with no pieces at all.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence

KEPT = 4 * 2**20  # bytes of a body that are kept; a longer one is shown as missing


class Tap:
    """A value for `flow.request.stream` or `flow.response.stream`. `listener` must not raise."""

    def __init__(self, listener: Callable[[bytes], None] | None = None, limit: int = KEPT) -> None:
        self._listener = listener
        self._room = limit
        self._pieces: list[bytes] | None = []

    def __call__(self, data: bytes) -> bytes | Sequence[bytes]:
        """Pass `data` on; b"" is mitmproxy's sign for the end."""
        if not data:
            return ()
        self._keep(data)
        if self._listener is not None:
            self._listener(data)
        return data

    @property
    def content(self) -> bytes | None:
        """What has passed so far, or None where that is more than the limit."""
        return None if self._pieces is None else b"".join(self._pieces)

    def _keep(self, data: bytes) -> None:
        self._room -= len(data)
        if self._room < 0:
            self._pieces = None
        elif self._pieces is not None:
            self._pieces.append(data)
