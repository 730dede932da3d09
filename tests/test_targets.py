from __future__ import annotations

import pytest

from toki.targets import Targets


@pytest.mark.parametrize(
    ("url", "host", "port", "path", "found"),
    [
        ("http://127.0.0.1:8080", "127.0.0.1", 8080, "/completion", True),
        ("http://127.0.0.1:8080", "localhost", 8080, "/completion", True),
        ("http://localhost:8080", "::1", 8080, "/completion", True),
        ("http://[::1]:8080", "127.0.0.1", 8080, "/completion", True),
        ("http://127.0.0.1:8080", "127.0.0.1", 8081, "/completion", False),
        ("http://127.0.0.1:8080", "127.0.0.2", 8080, "/completion", False),
        ("http://Box.LAN", "box.lan", 80, "/completion", True),
        ("https://box.lan", "box.lan.", 443, "/completion", True),
        ("http://box:1/llama/", "box", 1, "/llama/v1/completions?x=1", True),
        ("http://box:1/llama", "box", 1, "/llama", True),
        ("http://box:1/llama", "box", 1, "/llama2/v1/completions", False),
        ("http://box:1/llama", "box", 1, "/v1/completions", False),
    ],
)
def test_find(url: str, host: str, port: int, path: str, found: bool) -> None:
    assert (Targets([url]).find(host, port, path) is not None) is found


def test_the_longest_prefix_decides() -> None:
    targets = Targets(["http://box:1", "http://box:1/a/b", "http://box:1/a"])
    assert [target.prefix for target in targets] == ["/a/b", "/a", ""]
    found = targets.find("box", 1, "/a/b/completion")
    assert found is not None
    assert found.url == "http://box:1/a/b"


def test_without_servers_nothing_is_found() -> None:
    assert not Targets(())
    assert Targets(()).find("127.0.0.1", 8080, "/completion") is None


@pytest.mark.parametrize("url", ["127.0.0.1:8080", "ftp://box", "http://", "", "http://box:99999"])
def test_what_is_no_server_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match=r"server|[Pp]ort"):
        Targets([url])


@pytest.mark.parametrize("url", ["http://Box:1", "http://box:1/old"])
def test_a_prefix_of_all_routes(url: str) -> None:
    (target,) = Targets([url])
    below = target.below("/llm")
    assert below.url.lower() == "http://box:1/llm"
    assert (below.host, below.port, below.prefix) == ("box", 1, "/llm")
    assert below.below("/llm") == below
    assert target.below(target.prefix) == target
