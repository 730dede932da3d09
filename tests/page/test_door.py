"""Who is let in: this machine, or who has the token; no other site, whatever name it goes by."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toki.page.door import FORWARDED
from toki.page.door import Visit
from toki.page.door import refusal

TOKEN = "open-sesame"
FAR = "192.168.1.20"


def visit(
    peer: str = "127.0.0.1",
    host: str | None = "127.0.0.1:8081",
    method: str = "GET",
    own: bool = False,
    name: str = "",
    **headers: str,
) -> Visit:
    return Visit(method, peer, own, host, name, {key.replace("_", "-"): value for key, value in headers.items()})


def status(seen: Visit, token: str = "") -> int:
    """What a refusal says; 200: none."""
    refused = refusal(seen, token)
    return 200 if refused is None else refused.status


def basic(password: str) -> str:
    return "Basic " + base64.b64encode(f"me:{password}".encode()).decode()


@pytest.mark.parametrize("peer", ["127.0.0.1", "127.8.9.10", "::1", "::ffff:127.0.0.1", "::1%lo"])
@pytest.mark.parametrize(
    "host", ["127.0.0.1:8081", "localhost", "LOCALHOST:80", "localhost.:1", "[::1]:8081", "127.1.1.1"]
)
def test_this_machine_is_let_in(peer: str, host: str) -> None:
    assert status(visit(peer, host)) == 200
    assert status(visit(peer, host), TOKEN) == 200


@pytest.mark.parametrize("peer", [FAR, "8.8.8.8", "fe80::1%eth0", "::ffff:10.0.0.1", "", "localhost", "0.0.0.0"])
def test_other_machines_are_not(peer: str) -> None:
    assert status(visit(peer)) == 403
    assert status(visit(peer), TOKEN) == 401


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8081", "localhost.evil.example", "127.0.0.1.nip.io", "", "0.0.0.0:8081",
             "192.168.1.20", "[::1", "2130706433", "toki.local", "me@evil.example", "localhost@evil.example"],
)  # fmt: skip
def test_a_name_that_was_pointed_here_is_refused(host: str) -> None:
    assert status(visit(host=host)) == 403
    assert status(visit(host=host), TOKEN) == 403


def test_the_page_has_a_name_of_its_own_through_a_proxy() -> None:
    assert status(visit(host="toki.local", name="toki.local")) == 200
    assert status(visit(host="toki.local:80", name="toki.local")) == 200
    assert status(visit(host="evil.example", name="toki.local")) == 403


@pytest.mark.parametrize("header", [*FORWARDED, "x-forwarded-for", "x-forwarded-proto", "x-forwarded-prefix"])
def test_who_stands_behind_a_proxy_may_be_anyone(header: str) -> None:
    added: dict[str, Any] = {header.replace("-", "_"): "127.0.0.1"}
    assert status(visit(**added)) == 403


def test_the_proxy_that_was_asked_to_ask_itself_is_not_this_machine() -> None:
    assert status(visit(own=True)) == 403


def test_where_the_host_is_not_known_only_the_token_helps() -> None:
    assert status(visit(host=None)) == 403
    assert status(visit(host=None), TOKEN) == 401
    assert status(visit(host=None, authorization=f"Bearer {TOKEN}"), TOKEN) == 200


@pytest.mark.parametrize("authorization", [f"Bearer {TOKEN}", f"bearer  {TOKEN} ", basic(TOKEN)])
def test_the_token_lets_in_from_anywhere_and_changes_things(authorization: str) -> None:
    assert status(visit(FAR, "box.lan", authorization=authorization), TOKEN) == 200
    assert status(visit(FAR, "box.lan", "POST", authorization=authorization), TOKEN) == 200
    assert status(visit(FAR, authorization=authorization), "another") == 401


@pytest.mark.parametrize(
    "authorization", ["", "Bearer", "Bearer ", "Bearer open-sesam", "Bearer open-sesamee", f"Token {TOKEN}", TOKEN,
                      "Basic !!!", "Basic é", "Basic /w==", basic("x"), f"Bearer {TOKEN}é"],
)  # fmt: skip
def test_anything_else_is_not_the_token(authorization: str) -> None:
    assert status(visit(FAR, authorization=authorization), TOKEN) == 401
    assert status(visit(method="POST", authorization=authorization), TOKEN) == 401


@given(st.text(), st.sampled_from(["", TOKEN]))
def test_no_authorization_but_the_token_opens(value: str, token: str) -> None:
    if value.strip().partition(" ")[2].strip() != TOKEN:
        assert status(visit(FAR, authorization=value), token) in (401, 403)


def test_without_a_token_nothing_can_be_changed() -> None:
    assert status(visit(method="POST")) == 403
    assert status(visit(method="POST", authorization="Bearer ")) == 403


@pytest.mark.parametrize(
    "headers",
    [
        {"sec_fetch_site": "cross-site", "sec_fetch_mode": "no-cors", "sec_fetch_dest": "script"},
        {"sec_fetch_site": "same-site", "sec_fetch_mode": "cors", "sec_fetch_dest": "empty"},
        {"sec_fetch_site": "cross-site", "sec_fetch_mode": "navigate", "sec_fetch_dest": "iframe"},
        {"origin": "http://evil.example"},
        {"origin": "http://127.0.0.1:3000"},
        {"origin": "null"},
        {"origin": "http://[::1"},
    ],
)
def test_other_sites_get_nothing_by_way_of_a_browser(headers: dict[str, Any]) -> None:
    assert status(visit(**headers)) == 403
    assert status(visit(method="POST", authorization=f"Bearer {TOKEN}", **headers), TOKEN) == 403


def test_a_form_of_another_site_changes_nothing_though_the_browser_knows_the_password() -> None:
    form: dict[str, Any] = {"sec_fetch_site": "cross-site", "sec_fetch_mode": "navigate", "sec_fetch_dest": "document"}
    assert status(visit(method="POST", authorization=basic(TOKEN), **form), TOKEN) == 403


@pytest.mark.parametrize(
    "headers",
    [
        {"sec_fetch_site": "none", "sec_fetch_mode": "navigate"},
        {"sec_fetch_site": "same-origin", "sec_fetch_mode": "cors", "origin": "http://127.0.0.1:8081"},
        {"sec_fetch_site": "cross-site", "sec_fetch_mode": "navigate", "sec_fetch_dest": "document"},  # a link
        {"origin": "http://127.0.0.1:8081"},
    ],
)
def test_the_page_itself_and_links_to_it_are_let_in(headers: dict[str, Any]) -> None:
    assert status(visit(**headers)) == 200


def test_a_refusal_never_holds_the_token() -> None:
    for seen in (visit(FAR), visit(host="evil.example"), visit(FAR, authorization="Bearer wrong")):
        refused = refusal(seen, TOKEN)
        assert refused is not None
        assert TOKEN not in repr(refused)
