"""Defaults of mitmproxy that hurt in front of a llama-server, set right where the user left them alone.

- connection_strategy=eager opens the upstream before the request is known: with the server down the client gets an
  empty reply instead of a 502, and each held request parks a worker of the server.
- keep_host_header=false overwrites Host before any hook sees it. toki needs to see it, and then does by itself what
  mitmproxy would have done (addon.py). Left alone before an https server, whose SNI depends on the same option.
- 600 s of silence close the client's connection: a long prefill or a long answer without stream is that silent. An
  option (`tcp_timeout`) since mitmproxy 12.2.1, a constant of its proxy before.
"""

from __future__ import annotations

from typing import Any

from mitmproxy.optmanager import OptManager
from mitmproxy.proxy import server
from mitmproxy.proxy.mode_specs import ProxyMode
from mitmproxy.proxy.mode_specs import ReverseMode

SILENCE = 24 * 3600  # seconds without a byte after which a connection is given up
_CONSTANT = "TCP_TIMEOUT"
_SILENCE_OF_MITMPROXY = 600


class Raised:
    """What the user left alone, set right; `put_back` restores what is still as set here."""

    def __init__(self, options: OptManager) -> None:
        wanted: dict[str, Any] = {"connection_strategy": "lazy", "tcp_timeout": SILENCE}
        if not _reverses_to_https(options):
            wanted["keep_host_header"] = True
        self._options = options
        self._wanted = {
            name: value for name, value in wanted.items() if name in options and not _set_by_user(options, name)
        }
        self._before = {name: getattr(options, name) for name in self._wanted}
        for name, value in self._wanted.items():
            setattr(options, name, value)
        self._constant = getattr(server, _CONSTANT, None)
        if self._constant == _SILENCE_OF_MITMPROXY:
            setattr(server, _CONSTANT, SILENCE)

    @property
    def host(self) -> bool:
        """Whether mitmproxy would have overwritten the Host header in reverse mode."""
        return "keep_host_header" in self._wanted

    def put_back(self) -> None:
        for name, value in self._before.items():
            if getattr(self._options, name) == self._wanted[name]:
                setattr(self._options, name, value)
        if self._constant == _SILENCE_OF_MITMPROXY:
            setattr(server, _CONSTANT, self._constant)


def reverse_upstreams(modes: list[str]) -> list[str]:
    """The URLs of the http servers that `modes` (mitmproxy's option) reverse to, in order."""
    urls = []
    for mode in modes:
        spec = ProxyMode.parse(mode)
        if isinstance(spec, ReverseMode) and spec.scheme in ("http", "https"):
            host, port = spec.address
            urls.append(f"{spec.scheme}://[{host}]:{port}" if ":" in host else f"{spec.scheme}://{host}:{port}")
    return urls


def _set_by_user(options: OptManager, name: str) -> bool:
    return bool(options.has_changed(name))  # type: ignore[no-untyped-call]


def _reverses_to_https(options: OptManager) -> bool:
    return any(url.startswith("https:") for url in reverse_upstreams(options.mode))
