"""Which requests are meant for the page."""

from __future__ import annotations

from functools import partial

import pytest

from toki.page.where import Spot
from toki.page.where import Where
from toki.page.where import places
from toki.targets import Targets

HERE = ("127.0.0.1", 8081)
WHERE = Where(Targets(["http://127.0.0.1:8080", "http://box.lan:9000/llama"]))


@pytest.mark.parametrize(
    ("host", "port", "path", "rest"),
    [
        ("127.0.0.1", 8080, "/toki/", "/"),
        ("localhost", 8080, "/toki", ""),
        ("::1", 8080, "/toki?range=day", "?range=day"),
        ("box.lan", 9000, "/toki/api/requests/1", "/api/requests/1"),
    ],
)
def test_below_toki_of_each_server(host: str, port: int, path: str, rest: str) -> None:
    for reverse in (True, False):
        assert WHERE.find(host, port, path, reverse=reverse, listener=HERE, token=False) == Spot("/toki", rest)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "LocalHost.", "127.1.2.3", "[::1]"])
def test_at_the_proxy_itself(host: str) -> None:
    assert WHERE.find(host, 8081, "/toki/", reverse=False, listener=HERE, token=False) == Spot("/toki", "/")
    assert WHERE.find(host, 8081, "/toki/", reverse=True, listener=HERE, token=False) is None


def test_by_a_name_through_a_proxy() -> None:
    assert WHERE.find("toki.local", 80, "/metrics", reverse=False, listener=HERE, token=False) == Spot(
        "", "/metrics", "toki.local"
    )
    assert WHERE.find("Toki.Local.", 80, "/", reverse=False, listener=HERE, token=False) == Spot("", "/", "toki.local")


@pytest.mark.parametrize(
    ("host", "port", "path"),
    [
        ("127.0.0.1", 8080, "/"),
        ("127.0.0.1", 8080, "/tokix"),
        ("127.0.0.1", 8080, "/v1/toki/"),
        ("127.0.0.1", 8080, "/tokenize"),
        ("127.0.0.1", 9999, "/toki/"),
        ("other.lan", 8080, "/toki/"),
        ("toki.local", 8080, "/"),
        ("toki.local.evil.example", 80, "/"),
    ],
)
def test_everything_else_passes(host: str, port: int, path: str) -> None:
    assert WHERE.find(host, port, path, reverse=False, listener=HERE, token=False) is None


def test_in_reverse_mode_no_name_leads_to_the_page() -> None:
    assert WHERE.find("toki.local", 80, "/", reverse=True, listener=HERE, token=False) is None


@pytest.mark.parametrize("prefix", ["/toki", "/toki/v2"])
def test_a_server_with_such_a_prefix_keeps_it(prefix: str) -> None:
    where = Where(Targets([f"http://127.0.0.1:8080{prefix}"]))
    assert where.shadows
    assert where.find("127.0.0.1", 8080, "/toki/", reverse=True, listener=HERE, token=False) is None


@pytest.mark.parametrize("rest", ["/x", "/v1/models", "/health", "/props", "/api/tags", "/requests/x", "/index.html"])
def test_what_is_none_of_the_page_is_the_servers_unless_it_carries_the_token(rest: str) -> None:
    """It may have been started with such a prefix, which its URL here does not name."""
    for reverse in (True, False):
        asked = partial(WHERE.find, "127.0.0.1", 8080, f"/toki{rest}", reverse=reverse, listener=HERE)
        assert asked(token=False) is None
        assert asked(token=True) == Spot("/toki", rest)
    at_itself = WHERE.find("127.0.0.1", 8081, f"/toki{rest}", reverse=False, listener=HERE, token=False)
    assert at_itself == Spot("/toki", rest), "there is no server"


def test_addresses_for_people() -> None:
    found = places([("", 8081), ("::1", 8082), ("box.lan", 8083)], [("", 8084)])
    assert list(found) == [
        "http://127.0.0.1:8081/toki/",
        "http://[::1]:8082/toki/",
        "http://box.lan:8083/toki/",
        "http://toki.local/ (through this proxy)",
    ]
    assert list(places([], [])) == []
