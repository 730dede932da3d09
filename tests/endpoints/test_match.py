from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toki.endpoints import ENDPOINTS
from toki.endpoints import changes_slots
from toki.endpoints import match

ROUTES = [endpoint.name for endpoint in ENDPOINTS]


@pytest.mark.parametrize("prefix", ["", "/llm", "/v1", "/upstream/some-model", "/chat", "/a.b/c%20d"])
@pytest.mark.parametrize("query", ["", "?", "?beta=true", "?next=/tokenize", "?a=1&b=/v1/completions"])
def test_a_route_is_found_behind_any_prefix_and_before_any_query(prefix: str, query: str) -> None:
    for route in ROUTES:
        check_found(prefix, route, query)


def check_found(prefix: str, route: str, query: str) -> None:
    endpoint = match("POST", prefix + route + query)
    assert endpoint is not None
    if prefix + route in ROUTES:
        assert endpoint.name == prefix + route  # such as /v1 + /chat/completions
    else:
        assert endpoint.name == route


@given(route=st.sampled_from(ROUTES), prefix=st.from_regex(r"(/[a-z0-9._-]+){0,3}", fullmatch=True))
def test_the_name_is_the_longest_route_that_ends_the_path(route: str, prefix: str) -> None:
    path = prefix + route
    endpoint = match("POST", path)
    assert endpoint is not None
    assert endpoint.name == max((name for name in ROUTES if path.endswith(name)), key=len)


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "",
        "/health",
        "/v1/models",
        "/props",
        "/slots",
        "/slots/0?action=save",
        "/tokenize",
        "/detokenize",
        "/apply-template",
        "/metrics",
        "/embedding",
        "/embeddings",
        "/v1/embeddings",
        "/rerank",
        "/v1/reranking",
        "/lora-adapters",
        "/v1/messages/count_tokens?beta=true",
        "/v1/responses/input_tokens",
        "/v1/chat/completions/input_tokens",
        "/v1/chat/completions/control",
        "/v1/audio/transcriptions",
        "/completion/",
        "/Completion",
        "/xcompletion",
        "/v1/xcompletions",
        "/health?then=/completion",
        "completion",
    ],
)
def test_other_paths_are_none_of_ours(path: str) -> None:
    assert match("POST", path) is None


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "OPTIONS", "DELETE", "post", ""])
def test_only_post_carries_a_prompt(method: str) -> None:
    assert [match(method, route) for route in ROUTES] == [None] * len(ROUTES)


def test_the_table_lists_each_route_once() -> None:
    assert len(set(ROUTES)) == len(ROUTES)


@pytest.mark.parametrize(
    ("path", "changes"),
    [
        ("/lora-adapters", True),
        ("/llm/lora-adapters?x=y", True),
        ("/slots/0?action=restore", True),
        ("/slots/1?action=erase", True),
        ("/slots/1?action=save", False),
        ("/slots", False),
        ("/completion", False),
        ("/lora-adapters/x", False),
        ("/tokenize?then=/lora-adapters", False),
    ],
)
def test_what_changes_slots_without_a_prompt(path: str, changes: bool) -> None:
    assert changes_slots(path) is changes
