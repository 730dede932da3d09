"""Paths and queries."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toki.page.routes import Filters
from toki.page.routes import Kind
from toki.page.routes import Range
from toki.page.routes import Unknown
from toki.page.routes import Wanted
from toki.page.routes import has
from toki.page.routes import wanted


@pytest.mark.parametrize(
    ("target", "asked"),
    [
        ("", Wanted(Kind.OVERVIEW)),
        ("/", Wanted(Kind.OVERVIEW)),
        ("/?range=week", Wanted(Kind.OVERVIEW, range=Range.WEEK)),
        ("/api", Wanted(Kind.OVERVIEW, api=True)),
        ("/api/", Wanted(Kind.OVERVIEW, api=True)),
        ("/api/overview?range=hour", Wanted(Kind.OVERVIEW, api=True, range=Range.HOUR)),
        ("/requests", Wanted(Kind.REQUESTS)),
        ("/requests?before=7", Wanted(Kind.REQUESTS, before=7)),
        (
            "/requests?outcome=miss&action=&cause=clock&endpoint=%2Fv1%2Fmessages&model=a+b%26&conversation=7",
            Wanted(
                Kind.REQUESTS,
                filters=Filters("miss", None, "clock", endpoint="/v1/messages", model="a b&", conversation=7),
            ),
        ),
        ("/requests?outcome=hit&outcome=&conversation=", Wanted(Kind.REQUESTS)),
        ("/api/requests?action=swapped", Wanted(Kind.REQUESTS, api=True, filters=Filters(action="swapped"))),
        ("/requests?model=a\udcff", Wanted(Kind.REQUESTS, filters=Filters(model="a?"))),
        ("/conversations?model=m", Wanted(Kind.CONVERSATIONS, filters=Filters(model="m"))),
        ("/metrics?model=m", Wanted(Kind.METRICS)),
        ("/api/requests/7", Wanted(Kind.REQUEST, api=True, number=7)),
        ("/conversations/7/", Wanted(Kind.CONVERSATION, number=7)),
        ("/api/conversations", Wanted(Kind.CONVERSATIONS, api=True)),
        ("/metrics", Wanted(Kind.METRICS)),
        ("/style.css?v=1", Wanted(Kind.FILE, file="style.css")),
    ],
)
def test_what_can_be_asked_for(target: str, asked: Wanted) -> None:
    assert wanted("GET", target) == asked
    assert wanted("HEAD", target) == asked
    assert has(target)
    with pytest.raises(Unknown) as refused:
        wanted("POST", target)
    assert refused.value.status == 405


def test_forget_is_a_post() -> None:
    assert wanted("POST", "/api/forget") == Wanted(Kind.FORGET, api=True)
    assert has("/api/forget")
    with pytest.raises(Unknown, match="POST"):
        wanted("GET", "/api/forget")


@pytest.mark.parametrize(
    ("target", "status"),
    [
        *[(path, 404) for path in ("/x", "/requests/x", "/requests/-1", "/requests/9999999999999999999", "/apix")],
        *[
            (path, 404)
            for path in ("/../serve.py", "/serve.py", "/style.css/", "/overview", "/api/metrics", "/metrics/1")
        ],
        *[(f"/{query}", 400) for query in ("?range=", "?range=year", "?before=", "?before=-1", "?before=1e9")],
        *[
            (f"/requests?{query}", 400)
            for query in ("outcome=good", "action=pin", "cause=weather", "endpoint=/health", "conversation=x")
        ],
        ("/conversations?model=m&outcome=miss", 400),
    ],
)
def test_what_is_not_there(target: str, status: int) -> None:
    with pytest.raises(Unknown) as refused:
        wanted("GET", target)
    assert refused.value.status == status
    assert has(target) is (status == 400)


@given(st.text(), st.sampled_from(["GET", "POST", "HEAD", "PUT", "OPTIONS"]))
def test_any_path_is_understood_or_refused(target: str, method: str) -> None:
    try:
        asked = wanted(method, target)
    except Unknown as refused:
        assert refused.status in (400, 404, 405)  # noqa: PT017 - both ends are fine
    else:
        assert asked.kind in Kind
        assert has(target)


def test_bars_are_whole_minutes() -> None:
    assert all(one.step % 60 == 0 and one.seconds % one.step == 0 for one in Range)
    assert all(48 <= one.seconds / one.step <= 100 for one in Range)
