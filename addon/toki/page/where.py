"""Where the page is: below /toki of each llama-server, at a name of its own through a proxy, and at the proxy itself.

llama-server has no route below /toki (tests/live/test_page.py asks it), unless it was started with such a prefix, which
toki need not know. So of what is asked of a server the page takes its own paths alone, and what carries its token: that
is for no server to see.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Iterator
from dataclasses import dataclass

from toki.page.door import is_loopback
from toki.page.routes import has
from toki.targets import Targets

ROOT = "/toki"
NAME = "toki.local"  # the page's host for those who use a proxy


@dataclass(frozen=True, slots=True)
class Spot:
    """A request for the page: its root there, what is asked for below it, and the page's name where it is asked by
    one."""

    base: str
    rest: str
    name: str = ""


class Where:
    """Tells requests for the page from others."""

    def __init__(self, targets: Targets) -> None:
        self._targets = targets
        self.shadows = any(target.prefix == ROOT or target.prefix.startswith(f"{ROOT}/") for target in targets)

    def find(
        self, host: str, port: int, path: str, *, reverse: bool, listener: tuple[str, int], token: bool
    ) -> Spot | None:
        """The page that a request for `path` at `host`:`port` means; None: it is not for the page.

        `reverse`: it came in reverse mode, where the client can't choose the host; `listener`: where it came in;
        `token`: it carries toki_token.
        """
        if not reverse and port == 80 and host.lower().rstrip(".") == NAME:
            return Spot("", path, NAME)
        below = path.startswith(ROOT) and path[len(ROOT) :][:1] in ("", "/", "?")
        if not below or self.shadows:
            return None
        rest = path[len(ROOT) :]
        if self._targets.serves(host, port):
            return Spot(ROOT, rest) if token or has(rest) else None
        return Spot(ROOT, rest) if not reverse and _is(host, port, listener) else None


def places(reverse: Iterable[tuple[str, int]], other: Iterable[tuple[str, int]]) -> Iterator[str]:
    """The page's addresses for people, where the proxy listens in reverse mode, and in other modes."""
    for host, port in reverse:
        shown = "127.0.0.1" if host in ("", "0.0.0.0", "::") else f"[{host}]" if ":" in host else host
        yield f"http://{shown}:{port}{ROOT}/"
    if list(other):
        yield f"http://{NAME}/ (through this proxy)"


def _is(host: str, port: int, listener: tuple[str, int]) -> bool:
    """Whether a client asks the proxy for the proxy itself."""
    host = host.lower().strip("[]").rstrip(".")
    return port == listener[1] and (host == "localhost" or is_loopback(host) or host == listener[0])
