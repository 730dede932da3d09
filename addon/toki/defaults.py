"""Defaults of mitmproxy that hurt in front of a llama-server, set right where the user left them alone.

- connection_strategy=eager opens the upstream before the request is known: with the server down the client gets an
  empty reply instead of a 502, and each held request parks a worker of the server.
- keep_host_header=false overwrites Host before any hook sees it. toki needs to see it, and then does by itself what
  mitmproxy would have done (addon.py). Left alone before an https server, whose SNI depends on the same option.
- 600 s of silence close the client's connection: a long prefill or a long answer without stream is that silent. An
  option (`tcp_timeout`) since mitmproxy 12.2.1, a constant of its proxy before.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mitmproxy.optmanager import OptManager
from mitmproxy.proxy import server
from mitmproxy.proxy.mode_specs import ProxyMode
from mitmproxy.proxy.mode_specs import ReverseMode

SILENCE = 24 * 3600  # seconds without a byte after which a connection is given up
_CONSTANT = "TCP_TIMEOUT"
_SILENCE_OF_MITMPROXY = 600


def raise_defaults(options: OptManager) -> Callable[[], None]:
    """Set right what the user left alone; the result puts back what was changed and is still as set here."""
    wanted: dict[str, Any] = {"connection_strategy": "lazy", "tcp_timeout": SILENCE}
    if not _reverses_to_https(options):
        wanted["keep_host_header"] = True
    before = {name: getattr(options, name) for name in wanted if name in options and not _set_by_user(options, name)}
    for name in before:
        setattr(options, name, wanted[name])
    constant = getattr(server, _CONSTANT, None)
    if constant == _SILENCE_OF_MITMPROXY:
        setattr(server, _CONSTANT, SILENCE)

    def put_back() -> None:
        for name, value in before.items():
            if getattr(options, name) == wanted[name]:
                setattr(options, name, value)
        if constant == _SILENCE_OF_MITMPROXY:
            setattr(server, _CONSTANT, constant)

    return put_back


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
