"""Replays of recorded traffic: who waits for whom, how long passes take, and that every trace comes to its end."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
from tests.inspect.recorded import chats

from toki.engine.rules import Rules
from toki.inspect.records import Request
from toki.inspect.replay import USUAL_PASS_S
from toki.inspect.replay import USUAL_TOKEN_S
from toki.inspect.replay import Pace
from toki.inspect.replay import pace
from toki.inspect.replay import replay
from toki.inspect.trace import reconstruct

ONE_SLOT = Rules(n_slots=1, ram=0)
TWO_SLOTS = Rules(n_slots=2, ram=0, unified=False)


def request(key: int, at: float, seconds: float, prompt_tokens: int, **changes: object) -> Request:
    values = replace(
        chats(1, 1)[0],
        id=key,
        at=at,
        conversation=key,
        prompt_tokens=prompt_tokens,
        evaluated=prompt_tokens,
        added_ms=0.0,
        total_ms=1000 * seconds,
    )
    return replace(values, **changes)  # type: ignore[arg-type]


def test_a_request_waits_for_the_answer_that_it_goes_on_from() -> None:
    """While the first conversation's second turn waits for a slot, the other one drives it out."""
    rows = [
        request(1, 0.0, 1.0, 1000),
        request(2, 0.5, 10.0, 10_000),
        request(3, 1.1, 1.0, 1100, conversation=1, parent=1, shared=1000, evaluated=100),
    ]
    assert replay(reconstruct(rows), ONE_SLOT).evaluated == 1000 + 10_000 + 1100
    assert replay(reconstruct(rows), TWO_SLOTS).evaluated == 1000 + 10_000 + 100


def test_what_comes_a_moment_before_an_answers_end_followed_it() -> None:
    """What ends is noted once its last byte is on its way."""
    rows = [request(1, 0.0, 1.0, 1000), request(2, 0.999, 1.0, 1100, conversation=1, parent=1, shared=1000)]
    assert replay(reconstruct(rows), TWO_SLOTS).evaluated == 1000 + 100


def test_the_pace_is_the_recorded_one() -> None:
    true = Pace(0.02, 0.0005)
    rows = [
        replace(one, total_ms=1000 * (20 * true.per_pass + (20 + (one.evaluated or 0)) * true.per_token) + one.added_ms)
        for one in chats(3, 30)
    ]
    found = pace(reconstruct(rows).steps)
    assert (found.per_pass, found.per_token) == pytest.approx((true.per_pass, true.per_token))
    flat = pace(reconstruct([replace(one, total_ms=1000.0 + one.added_ms) for one in rows]).steps)
    assert flat.per_pass == pytest.approx(1 / 20, rel=0.02)
    assert flat.per_token >= 0
    untold = pace(reconstruct([replace(one, evaluated=None) for one in rows]).steps)
    assert (untold.per_pass, untold.per_token) == (USUAL_PASS_S, USUAL_TOKEN_S)


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 20), st.integers(0, 30), st.integers(1, 3000)), min_size=1, max_size=20),
    st.integers(1, 4),
    st.booleans(),
)
def test_every_trace_comes_to_its_end(times: list[tuple[int, int, int]], slots: int, unified: bool) -> None:
    rows = [request(key, at / 10, took / 10, length) for key, (at, took, length) in enumerate(times, 1)]
    found = replay(reconstruct(rows), Rules(n_slots=slots, unified=unified, idle_save=True))
    assert found.evaluated == sum(length for _, _, length in times), "each launched once"
    assert found.refused == 0
