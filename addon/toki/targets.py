"""Which requests go to a llama-server that toki looks after: by host, port and path prefix, never by guessing.

A proxy sees other traffic too, and some of it looks alike (api.openai.com speaks /v1/chat/completions).
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Iterator
from dataclasses import dataclass
from dataclasses import replace
from urllib.parse import urlsplit

_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Target:
    """One llama-server: `url` (no slash at its end) is where toki's own look-ups go."""

    url: str
    host: str
    port: int
    prefix: str  # path that all its routes start with, such as "/llama"; "" mostly

    @classmethod
    def of(cls, url: str) -> Target:
        """Raises ValueError, naming `url`, where it is no http(s) URL of a host."""
        parts = urlsplit(url)
        if parts.scheme not in _PORTS or not parts.hostname:
            raise ValueError(f"{url!r} is no server: it must look like http://127.0.0.1:8080")
        return cls(
            url=url.rstrip("/"),
            host=_fold(parts.hostname),
            port=parts.port or _PORTS[parts.scheme],
            prefix=parts.path.rstrip("/"),
        )

    def below(self, prefix: str) -> Target:
        """The same server, all of whose routes start with `prefix` (--api-prefix)."""
        return replace(self, url=self.url.removesuffix(self.prefix) + prefix, prefix=prefix)


class Targets:
    """The llama-servers behind this proxy."""

    def __init__(self, urls: Iterable[str]) -> None:
        """Raises ValueError on a URL that is none."""
        # The longest prefix first: of two servers behind one port, the more exact name decides.
        self._targets = sorted((Target.of(url) for url in urls), key=lambda target: -len(target.prefix))

    def __iter__(self) -> Iterator[Target]:
        return iter(self._targets)

    def __len__(self) -> int:
        return len(self._targets)

    def find(self, host: str, port: int, path: str) -> Target | None:
        """The server that a request for `path` at `host`:`port` goes to."""
        host = _fold(host)
        for target in self._targets:
            if target.host == host and target.port == port and _below(path, target.prefix):
                return target
        return None

    def serves(self, host: str, port: int) -> bool:
        """Whether one of the servers is at `host`:`port`."""
        return any(target.host == _fold(host) and target.port == port for target in self._targets)


def _fold(host: str) -> str:
    """One name for all names of this machine's loopback."""
    host = host.lower().strip("[]").rstrip(".")
    return "localhost" if host in _LOOPBACK else host


def _below(path: str, prefix: str) -> bool:
    return path.startswith(prefix) and path[len(prefix) :][:1] in ("", "/", "?")
