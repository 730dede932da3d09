"""Tokens: exact common prefixes, whatever the lengths, and ids that are none."""

from __future__ import annotations

import copy
from dataclasses import FrozenInstanceError
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from toki.engine.tokens import BLOCK
from toki.engine.tokens import Tokens

LARGEST = 2**31 - 1
# Lengths around the edges of blocks, where a chain could go wrong, and any others.
lengths = st.one_of(
    st.builds(lambda blocks, off: max(0, blocks * BLOCK + off), st.integers(0, 9), st.integers(-2, 2)),
    st.integers(0, 9 * BLOCK),
)


def naive_common_prefix(a: list[int], b: list[int]) -> int:
    n = 0
    while n < min(len(a), len(b)) and a[n] == b[n]:
        n += 1
    return n


def ids(n: int, seed: int = 0, vocabulary: int = 50_000) -> list[int]:
    return [int(i) for i in np.random.default_rng(seed).integers(0, vocabulary, n)]


@st.composite
def related_lists(draw: st.DrawFn) -> tuple[list[int], list[int]]:
    """Two lists that share a head of a drawn length, then go on differently (or end)."""
    head = ids(draw(lengths), draw(st.integers(0, 3)), draw(st.sampled_from([2, 50_000])))
    tails = [ids(draw(lengths), seed, draw(st.sampled_from([2, 50_000]))) for seed in (10, 11)]
    return head + tails[0], head + tails[1]


@given(related_lists())
def test_common_prefix_equals_a_naive_loop(pair: tuple[list[int], list[int]]) -> None:
    a, b = pair
    expected = naive_common_prefix(a, b)
    assert Tokens.of(a).common_prefix(Tokens.of(b)) == expected
    assert Tokens.of(b).common_prefix(Tokens.of(a)) == expected


@given(st.lists(st.integers(0, 2), max_size=6), st.lists(st.integers(0, 2), max_size=6))
def test_common_prefix_of_short_lists(a: list[int], b: list[int]) -> None:
    assert Tokens.of(a).common_prefix(Tokens.of(b)) == naive_common_prefix(a, b)


@given(lengths, st.data())
def test_one_token_changed(n: int, data: st.DataObject) -> None:
    a = ids(n + 1)
    place = data.draw(st.integers(0, n))
    b = a.copy()
    b[place] += 1
    assert Tokens.of(a).common_prefix(Tokens.of(b)) == place
    assert Tokens.of(a) != Tokens.of(b)


@given(lengths, lengths)
def test_a_head_is_a_prefix(n: int, cut: int) -> None:
    whole = Tokens.of(ids(n))
    head = whole.head(cut)
    assert head == Tokens.of(ids(n)[:cut])
    assert np.array_equal(head.chain, Tokens.of(ids(n)[:cut]).chain)
    assert head.common_prefix(whole) == len(head) == min(n, cut)
    assert n == 0 or cut == 0 or np.shares_memory(head.ids, whole.ids)


def test_a_head_can_not_be_negative() -> None:
    with pytest.raises(ValueError, match="-1 tokens"):
        Tokens.of([1, 2]).head(-1)


@given(lengths, lengths)
def test_extended_equals_tokens_made_at_once(n: int, more: int) -> None:
    everything = ids(n + more)
    extended = Tokens.of(everything[:n]).extended(everything[n:])
    at_once = Tokens.of(everything)
    assert extended == at_once
    assert hash(extended) == hash(at_once)
    assert np.array_equal(extended.chain, at_once.chain)


def test_extended_reuses_the_links_it_has() -> None:
    made_up = Tokens(np.zeros(BLOCK, np.int32), np.array([7], np.uint64))
    extended = made_up.extended([0] * BLOCK)
    assert extended.chain[0] == 7
    assert extended.chain[1] != Tokens.of([0] * (2 * BLOCK)).chain[1]


def test_a_link_covers_all_blocks_before_it() -> None:
    a, b = ids(2 * BLOCK), ids(2 * BLOCK)
    b[0] += 1
    assert Tokens.of(a).chain[1] != Tokens.of(b).chain[1]


def test_the_chain_is_the_same_on_every_machine() -> None:
    assert Tokens.of(range(2 * BLOCK + 5)).chain.tolist() == [7252872545170650407, 16796384332584220110]


@pytest.mark.parametrize(
    "wrong",
    [
        [-1],
        [1, LARGEST + 1],
        [2**70],
        [-(2**31)],
        [1.0],
        [1, 2.5],
        ["7"],
        "77",
        [None],
        [[1, 2], [3, 4]],
        [5, True],
        [False],
        np.array([1.0]),
        np.array([[1, 2]]),
        np.empty((0, 3), np.int32),
        np.array([True]),
        np.array([-1]),
        np.array([2**40]),
        np.array([2**63], np.uint64),
        np.array(5),
    ],
    ids=repr,
)
def test_what_is_no_token_id_is_refused(wrong: Any) -> None:
    with pytest.raises(ValueError, match="flat list of integers from 0 to 2147483647"):
        Tokens.of(wrong)
    with pytest.raises(ValueError, match="flat list of integers from 0 to 2147483647"):
        Tokens.of([1]).extended(wrong)


@pytest.mark.parametrize(
    "right",
    [
        [0, 1, LARGEST],
        (0, 1, LARGEST),
        iter([0, 1, LARGEST]),
        np.array([0, 1, LARGEST]),
        np.array([0, 1, LARGEST], np.uint32),
        np.array([0, 1, LARGEST], ">i8"),
        [np.int64(0), np.int64(1), np.int64(LARGEST)],
    ],
    ids=lambda right: type(right).__name__,
)
def test_all_kinds_of_integers_are_taken(right: Any) -> None:
    tokens = Tokens.of(right)
    assert tokens.ids.tolist() == [0, 1, LARGEST]
    assert tokens.ids.dtype == np.int32


@pytest.mark.parametrize("empty", [[], (), np.array([]), np.empty(0, np.int32)], ids=repr)
def test_empty(empty: Any) -> None:
    tokens = Tokens.of(empty)
    assert len(tokens) == 0
    assert tokens.chain.shape == (0,)
    assert tokens.common_prefix(Tokens.of([1])) == 0
    assert tokens == Tokens.of([])


def test_immutable() -> None:
    source = np.arange(300, dtype=np.int32)
    tokens = Tokens.of(source)
    source[0] = 99
    assert tokens.ids[0] == 0
    with pytest.raises(ValueError, match="read-only"):
        tokens.ids[0] = 1
    with pytest.raises(ValueError, match="read-only"):
        tokens.chain[0] = 1
    with pytest.raises(ValueError, match="read-only"):
        tokens.head(5).ids[0] = 1
    with pytest.raises(FrozenInstanceError):
        tokens.ids = source  # type: ignore[misc]


def test_equality_and_hash() -> None:
    a = Tokens.of(range(BLOCK))
    assert {a, copy.deepcopy(a), Tokens.of(range(BLOCK)), a.head(BLOCK - 1)} == {a, a.head(BLOCK - 1)}
    assert a != a.extended([1])
    assert a != list(range(BLOCK))


def test_repr_hides_the_ids() -> None:
    assert repr(Tokens.of([4711, 4712])) == "<Tokens: 2>"
