"""A request that a server refused as it was steered is sent once more, as it came or steered less.

mitmproxy sends a flow's request once, so this call is toki's own. Nothing of an answer has reached the client when a
server refuses, so nothing is answered twice. Blocking, for a worker thread. The answer comes whole, a stream too: that
happens once for each lever and server, since the lever is then dropped there.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from dataclasses import dataclass
from dataclasses import field
from http.client import HTTPConnection
from http.client import HTTPSConnection
from urllib.parse import urlsplit

from toki.server import shut

LONGEST = 64 * 2**20  # bytes of an answer
PATIENCE = 24 * 3600.0  # seconds without a byte: as long as mitmproxy waits under toki
HOP_BY_HOP = {
    "connection",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
}


@dataclass(frozen=True, slots=True)
class Answer:
    """Header names and values as they came, without those that speak of the connection or the length."""

    status: int
    reason: str
    headers: tuple[tuple[str, str], ...]
    content: bytes


@dataclass(slots=True)
class Resend:
    """One such call. `hang_up`, from any thread, ends it early."""

    _connection: HTTPConnection | None = None
    _over: bool = field(default=False)

    def send(self, url: str, headers: Iterable[tuple[str, str]], content: bytes) -> Answer:
        """POST `content`. Raises OSError or http.client.HTTPException where there is no whole answer."""
        target = urlsplit(url)
        if target.hostname is None or self._over:
            raise OSError("nothing to send to")
        kind = HTTPSConnection if target.scheme == "https" else HTTPConnection
        self._connection = connection = kind(target.hostname, target.port, timeout=PATIENCE)
        with contextlib.closing(connection):
            path = target.path + (f"?{target.query}" if target.query else "")
            connection.putrequest("POST", path, skip_host=True, skip_accept_encoding=True)
            for name, value in _of_the_message(headers):
                connection.putheader(name, value)
            connection.putheader("Content-Length", str(len(content)))
            connection.endheaders(content)
            with contextlib.closing(connection.getresponse()) as answer:
                found = answer.read(LONGEST + 1)
                if len(found) > LONGEST:
                    raise OSError(f"the answer is larger than {LONGEST} bytes")
                return Answer(answer.status, answer.reason, tuple(_of_the_message(answer.getheaders())), found)

    def hang_up(self) -> None:
        self._over = True
        if self._connection is not None:
            shut(self._connection)


def slots_at_fault(status: int, content: bytes | None) -> bool:
    """Whether an answer may be an error that only the slot fields caused: a request that is refused, but for want of
    credentials or of patience, or an error of the server's own that speaks of slots."""
    if status < 500:
        return status >= 400 and status not in (401, 403, 429)
    return b"slot" in (content or b"")


def cache_at_fault(status: int) -> bool:
    """Whether an answer may be an error that only `cache_prompt` caused: what a schema says that does not know it."""
    return status in (400, 422)


def _of_the_message(headers: Iterable[tuple[str, str]]) -> Iterable[tuple[str, str]]:
    return ((name, value) for name, value in headers if name.lower() not in HOP_BY_HOP | {"content-length"})
