from __future__ import annotations

import pytest
from mitmproxy.addons.proxyserver import Proxyserver
from mitmproxy.options import Options
from mitmproxy.proxy import server
from mitmproxy.test import taddons

from toki.defaults import SILENCE
from toki.defaults import Raised
from toki.defaults import reverse_upstreams

pytestmark = pytest.mark.proxy

NAMES = ("connection_strategy", "keep_host_header", "tcp_timeout")


@pytest.fixture
async def options() -> Options:
    options: Options = taddons.context(Proxyserver()).options  # type: ignore[no-untyped-call]
    return options


def values(options: Options) -> dict[str, object]:
    found = {name: getattr(options, name) for name in NAMES if name in options}
    return found | {"constant": getattr(server, "TCP_TIMEOUT", None)}


async def test_what_was_left_alone_is_raised_and_put_back(options: Options) -> None:
    before = values(options)
    defaults = Raised(options)
    raised = values(options)
    assert raised["connection_strategy"] == "lazy"
    assert raised["keep_host_header"] is True
    assert defaults.host
    assert SILENCE in (raised.get("tcp_timeout"), raised["constant"])
    defaults.put_back()
    assert values(options) == before


async def test_what_the_user_set_stays(options: Options, monkeypatch: pytest.MonkeyPatch) -> None:
    options.update(keep_host_header=True)  # type: ignore[no-untyped-call]
    if "tcp_timeout" in options:
        options.update(tcp_timeout=77)  # type: ignore[no-untyped-call]
    else:
        monkeypatch.setattr(server, "TCP_TIMEOUT", 77)
    defaults = Raised(options)
    assert values(options)["keep_host_header"] is True
    assert not defaults.host
    assert 77 in (values(options).get("tcp_timeout"), values(options)["constant"])
    options.update(connection_strategy="eager")  # type: ignore[no-untyped-call]
    defaults.put_back()
    assert values(options)["keep_host_header"] is True
    assert values(options)["connection_strategy"] == "eager"
    assert 77 in (values(options).get("tcp_timeout"), values(options)["constant"])


async def test_before_an_https_server_the_host_header_is_left_alone(options: Options) -> None:
    options.update(mode=["reverse:https://box.lan"])  # type: ignore[no-untyped-call]
    defaults = Raised(options)
    assert values(options)["keep_host_header"] is False
    defaults.put_back()


@pytest.mark.parametrize(
    ("modes", "urls"),
    [
        (["regular"], []),
        (["reverse:http://127.0.0.1:8080@127.0.0.1:8081"], ["http://127.0.0.1:8080"]),
        (["reverse:box.lan", "regular@9090"], ["https://box.lan:443"]),
        (["reverse:http://[::1]:8080"], ["http://[::1]:8080"]),
        (["reverse:tcp://127.0.0.1:8080", "reverse:http://b:1"], ["http://b:1"]),
    ],
)
def test_reverse_upstreams(modes: list[str], urls: list[str]) -> None:
    assert reverse_upstreams(modes) == urls
