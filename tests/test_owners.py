"""Names of API keys: equal for one key, different for two, and of no use to who reads them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toki.owners import Owners
from toki.server import Auth

KEYS = st.text(st.characters(codec="latin-1", exclude_categories=["Cc"]), min_size=1).filter(str.strip)


@pytest.mark.parametrize(
    ("auth", "same"),
    [
        (Auth("Bearer one"), True),
        (Auth("bearer  one "), True),
        (Auth("one"), True),
        (Auth(None, "one"), True),
        (Auth("Bearer one", "one"), True),
        (Auth("Bearer One"), False),
        (Auth("Bearer two"), False),
        (Auth("Bearer one", "two"), False),  # else who has one of two keys could go by the other
        (Auth("Bearer on", "e"), False),
        (Auth(), False),
        (Auth("Bearer "), False),
    ],
)
def test_a_key_is_one_owner_in_whichever_header(auth: Auth, same: bool) -> None:
    owners = Owners(apart=True)
    assert (owners.of(auth) == owners.of(Auth("Bearer one"))) is same


def test_requests_without_a_key_are_of_one_owner() -> None:
    owners = Owners(apart=True)
    assert owners.of(Auth()) == owners.of(Auth("", "")) != ""


def test_unless_keys_are_kept_apart_there_are_no_owners() -> None:
    assert Owners(apart=False).of(Auth("Bearer one")) == ""


@given(KEYS, KEYS)
def test_names_tell_keys_apart_and_hold_nothing_of_them(one: str, other: str) -> None:
    owners = Owners(apart=True)
    name = owners.of(Auth(f"Bearer {one}"))
    assert len(name) == 32
    assert set(name) <= set("0123456789abcdef")
    same = one.strip() == other.strip()
    assert (owners.of(Auth(None, other)) == name) is same or "bearer " in one.lower()


def test_two_runs_name_a_key_differently() -> None:
    assert Owners(apart=True).of(Auth("Bearer one")) != Owners(apart=True).of(Auth("Bearer one"))


def test_a_key_that_is_not_utf_8_has_a_name() -> None:
    owners = Owners(apart=True)
    assert owners.of(Auth("Bearer \udcff")) != owners.of(Auth("Bearer \udcfe"))
