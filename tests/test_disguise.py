from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from toki.disguise import Disguise
from toki.disguise import End
from toki.engine.tokens import Tokens

# Few different ids, so that lists often share prefixes, and also the same tokens behind different prefixes.
IDS = st.lists(st.sampled_from([0, 1, 2, 149_999, 2**31 - 1]), max_size=40)


def array(ids: list[int]) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    return np.array(ids, np.int32)


def hashed(disguise: Disguise, ids: list[int]) -> Tokens:
    return Tokens.of(disguise.tokens(array(ids))[0])


@given(IDS, IDS, IDS)
def test_common_prefixes_stay_the_same(head: list[int], one: list[int], other: list[int]) -> None:
    disguise = Disguise()
    a, b = head + one, head + other
    assert hashed(disguise, a).common_prefix(hashed(disguise, b)) == Tokens.of(a).common_prefix(Tokens.of(b))


@given(IDS, st.lists(IDS, max_size=3))
def test_a_list_hashed_in_parts_is_the_list_hashed_at_once(head: list[int], parts: list[list[int]]) -> None:
    disguise = Disguise()
    hashes, end = disguise.tokens(array(head))
    for part in parts:
        more, end = disguise.tokens(array(part), end)
        hashes = np.concatenate((hashes, more))
    whole, its_end = disguise.tokens(array([*head, *(each for part in parts for each in part)]))
    assert hashes.tolist() == whole.tolist()
    assert end.length == its_end.length
    assert end.total.tolist() == its_end.total.tolist()


def test_hashes_are_ids_that_tokens_take() -> None:
    hashes, end = Disguise().tokens(np.arange(10_000, dtype=np.int32))
    assert hashes.dtype == np.int32
    assert hashes.min() >= 0
    assert hashes.max() > 2**30  # all 31 bits are used
    assert end.length == 10_000


@pytest.mark.slow
def test_no_two_of_a_million_different_prefixes_are_taken_for_one_more_often_than_by_chance() -> None:
    """A million one-token lists: their 31-bit hashes collide as random numbers do (233 pairs, give or take 15)."""
    disguise = Disguise()
    by_last = disguise.tokens(np.full(1_000_000, 7, np.int32))[0]  # a million lengths of one list
    assert abs(len(by_last) - len(np.unique(by_last)) - 233) < 110  # 7 standard deviations
    behind = disguise.tokens(array([1, 2, 3]))[1]
    by_token = np.concatenate([disguise.tokens(array([token]), behind)[0] for token in range(3_000)])
    assert len(by_token) - len(np.unique(by_token)) < 4  # 0.002 are expected


def test_a_hash_tells_neither_its_token_nor_its_place() -> None:
    """One token at many places, and many tokens at one place: bits as even as those of random numbers."""
    disguise = Disguise()
    hashes = disguise.tokens(np.full(32_768, 42, np.int32))[0]
    ones = [(hashes >> bit & 1).mean() for bit in range(31)]
    assert all(abs(share - 0.5) < 7 * 0.5 / 32_768**0.5 for share in ones)


def test_keys_differ_from_log_to_log() -> None:
    ids = np.arange(1000, dtype=np.int32)
    one, other = Disguise(), Disguise()
    assert (one.tokens(ids)[0] == other.tokens(ids)[0]).sum() <= 1
    assert one.text("secret") != other.text("secret")
    assert one.embed(Tokens.of(ids)).tolist() != other.embed(Tokens.of(ids)).tolist()


def test_texts() -> None:
    disguise = Disguise()
    assert disguise.text("") == ""
    assert disguise.text("one") == disguise.text("one") != disguise.text("other")
    assert "one" not in disguise.text("one")
    assert disguise.text("half of a pair: \ud800")


@pytest.mark.parametrize("dimensions", [1, 3, 256, 1023])
def test_dot_products_of_vectors_stay_the_same_to_the_last_bit(dimensions: int) -> None:
    random = np.random.default_rng(dimensions)
    vectors = random.standard_normal((20, dimensions)).astype(np.float32)
    disguise = Disguise()
    hidden = np.array([disguise.vector(vector) for vector in vectors])
    assert hidden.dtype == np.float32
    for a, hidden_a in zip(vectors, hidden, strict=True):
        assert [float(a @ b) for b in vectors] == [float(hidden_a @ b) for b in hidden]
    if dimensions > 100:
        assert 0.3 < (hidden != vectors).mean() < 0.7


def test_the_prefix_embedding_of_hashes_is_as_good() -> None:
    disguise = Disguise()
    long = list(range(2000))
    near, far = Tokens.of([*long[:1900], 5, 6]), Tokens.of(range(5000, 7000))
    vector = disguise.embed(Tokens.of(long))
    assert float(vector @ disguise.embed(near)) > 0.8
    assert abs(float(vector @ disguise.embed(far))) < 0.3


def test_long_lists_are_hashed_in_no_time() -> None:
    ids = np.random.default_rng(1).integers(0, 150_000, 65_536).astype(np.int32)
    disguise = Disguise()
    taken = []
    for _ in range(15):
        start = time.thread_time()
        disguise.tokens(ids)
        taken.append(time.thread_time() - start)
    assert min(taken) < 0.006  # 2 ms on an idle core


def test_an_end_is_that_of_nothing_unless_told() -> None:
    disguise = Disguise()
    ids = array([4, 5])
    assert disguise.tokens(ids, End())[0].tolist() == disguise.tokens(ids)[0].tolist()
    assert disguise.tokens(array([]), disguise.tokens(ids)[1])[1].length == 2
