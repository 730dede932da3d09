"""The index: the nearest of all, in the promised order, without a fit for each of them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.neighbors import NearestNeighbors
from tests.effort import examples
from threadpoolctl import threadpool_info  # type: ignore[import-untyped]
from threadpoolctl import threadpool_limits

from index_recall import measure
from index_recall import traffic
from toki.engine.index import BruteForceIndex
from toki.engine.index import Candidate

Vector = npt.NDArray[np.float32]


def unit(*numbers: float) -> Vector:
    vector = np.array(numbers, np.float32)
    return vector / np.linalg.norm(vector)


def at_cosine(cosine: float) -> Vector:
    """A unit vector with this cosine to unit(1, 0)."""
    return unit(cosine, math.sqrt(1 - cosine**2))


def random_units(n: int, dimensions: int = 16, seed: int = 0) -> Vector:
    rows = np.random.default_rng(seed).standard_normal((n, dimensions)).astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return rows


def keys(candidates: list[Candidate]) -> list[int]:
    return [candidate.key for candidate in candidates]


def test_fit_of_scikit_learn_keeps_a_view() -> None:
    """The index rests on it: a row written after the fit is found."""
    rows = np.zeros((4, 2), np.float32)
    neighbors = NearestNeighbors(metric="cosine", algorithm="brute").fit(rows[:3])
    rows[2] = unit(3, 4)
    distances, found = neighbors.kneighbors(unit(3, 4)[np.newaxis], 1)
    assert found[0, 0] == 2
    assert distances[0, 0] == pytest.approx(0, abs=1e-6)


def test_the_order_near_ones_by_length_then_the_rest_by_similarity() -> None:
    index = BruteForceIndex(2)
    for key, (cosine, length) in enumerate([(0.90, 10), (0.86, 30), (0.88, 20), (0.80, 99), (0.5, 999), (0.84, 50)]):
        index.add(key, at_cosine(cosine), length)
    found = index.search(unit(1, 0))
    assert keys(found) == [1, 2, 0, 5, 3, 4]  # from 0.855 on they are near
    assert found[0].similarity == pytest.approx(0.86, abs=1e-6)
    assert found[0].length == 30


def test_near_is_relative_to_the_best() -> None:
    index = BruteForceIndex(2)
    index.add(1, at_cosine(0.20), 10)
    index.add(2, at_cosine(0.195), 20)
    index.add(3, at_cosine(0.18), 30)
    assert keys(index.search(unit(1, 0))) == [2, 1, 3]


def test_ties_go_to_the_longer_then_to_the_later_key() -> None:
    index = BruteForceIndex(2)
    for key, length in [(1, 5), (2, 9), (3, 9), (4, 1)]:
        index.add(key, unit(1, 0), length)
    assert keys(index.search(unit(1, 0))) == [3, 2, 1, 4]


def test_the_limit_takes_the_nearest_not_the_longest() -> None:
    index = BruteForceIndex(2)
    index.add(1, at_cosine(0.99), 1)
    index.add(2, at_cosine(0.98), 2)
    index.add(3, at_cosine(0.97), 3)
    assert keys(index.search(unit(1, 0), limit=2)) == [2, 1]
    assert index.search(unit(1, 0), limit=0) == []


def test_few_entries_are_all_candidates_even_at_a_negative_cosine() -> None:
    index = BruteForceIndex(2)
    index.add(1, unit(-1, 0), 5)
    index.add(2, unit(0, 1), 5)
    index.add(3, unit(-1, -1), 5)
    assert keys(index.search(unit(1, 0))) == [2, 3, 1]


def test_empty() -> None:
    index = BruteForceIndex()
    assert index.search(unit(*[1] * 256)) == []
    assert len(index) == 0
    assert index.dimensions == 256


@examples(30)
@given(st.data())
def test_any_adding_and_removing_equals_an_exhaustive_search(data: st.DataObject) -> None:
    pool = random_units(400, seed=data.draw(st.integers(0, 9)))
    index = BruteForceIndex(16, capacity=data.draw(st.sampled_from([1, 64, 100])))
    held: list[int] = []
    fresh = 0
    for _ in range(data.draw(st.integers(1, 6))):
        for _ in range(data.draw(st.integers(0, 70))):
            index.add(fresh, pool[fresh], fresh + 1)
            held.append(fresh)
            fresh += 1
        for _ in range(data.draw(st.integers(0, min(len(held), 70)))):
            index.remove(held.pop(data.draw(st.integers(0, len(held) - 1))))
        query = random_units(1, seed=1000 + fresh)[0]
        similarities = {key: float(pool[key] @ query) for key in held}
        found = index.search(query)
        # by similarity, not by key: two that differ by a rounding error may change places
        nearest = sorted(similarities.values(), reverse=True)[:32]
        assert sorted((c.similarity for c in found), reverse=True) == pytest.approx(nearest, abs=1e-5)
        assert all(c.similarity == pytest.approx(similarities[c.key], abs=1e-5) for c in found)
        assert len(set(keys(found))) == len(found)
        assert all(c.length == c.key + 1 for c in found)
        assert len(index) == len(held)


def test_a_removed_entry_is_gone_and_its_key_is_free() -> None:
    index = BruteForceIndex(2)
    index.add(1, unit(1, 0), 1)
    index.add(2, unit(0, 1), 2)
    index.remove(1)
    assert 1 not in index
    assert 2 in index
    assert keys(index.search(unit(1, 0))) == [2]
    index.add(1, unit(1, 1), 7)
    found = index.search(unit(1, 1))[0]
    assert (found.key, found.length) == (1, 7)
    assert found.similarity == pytest.approx(1.0)
    with pytest.raises(KeyError):
        index.remove(3)


def test_a_key_can_not_be_added_twice() -> None:
    index = BruteForceIndex(2)
    index.add(1, unit(1, 0), 1)
    with pytest.raises(ValueError, match="key 1"):
        index.add(1, unit(0, 1), 1)
    assert index.search(unit(1, 0))[0].similarity == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("vector", "message"),
    [
        (unit(1, 0, 0), "shape"),
        (unit(1, 0)[np.newaxis], "shape"),
        (np.zeros(2, np.float32), "unit length"),
        (np.array([1, 1], np.float32), "unit length"),
        (np.array([math.nan, 1], np.float32), "unit length"),
        (np.array([math.inf, 1], np.float32), "unit length"),
    ],
    ids=["dimensions", "matrix", "zero", "long", "NaN", "infinite"],
)
def test_vectors_that_do_not_belong_are_refused(vector: Vector, message: str) -> None:
    index = BruteForceIndex(2)
    index.add(1, unit(1, 0), 1)
    with pytest.raises(ValueError, match=message):
        index.add(2, vector, 1)
    with pytest.raises(ValueError, match=message):
        index.search(vector)
    assert len(index) == 1


def test_searches_do_not_fit_again(monkeypatch: pytest.MonkeyPatch) -> None:
    fits = []
    fit = NearestNeighbors.fit

    def counted(self: Any, rows: Vector) -> Any:
        fits.append(len(rows))
        return fit(self, rows)

    monkeypatch.setattr(NearestNeighbors, "fit", counted)
    vectors = random_units(300)
    index = BruteForceIndex(16, capacity=100)
    for key, vector in enumerate(vectors):
        index.add(key, vector, 1)
        assert index.search(vector, 1)[0].key == key
    # once per 64 rows, and where the array grew (100, 200)
    assert fits == [64, 100, 128, 192, 200, 256, 320]


def test_blas_has_one_thread_during_a_search_only(monkeypatch: pytest.MonkeyPatch) -> None:
    def blas_threads() -> set[int]:
        return {library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"}

    seen = []
    kneighbors = NearestNeighbors.kneighbors

    def watched(self: Any, *arguments: Any) -> Any:
        seen.append(blas_threads())
        return kneighbors(self, *arguments)

    monkeypatch.setattr(NearestNeighbors, "kneighbors", watched)
    index = BruteForceIndex(2)
    index.add(1, unit(1, 0), 1)
    with threadpool_limits(2, user_api="blas"):
        index.search(unit(1, 0))
        assert seen == [{1}]
        assert blas_threads() == {2}


def test_recall_on_traffic_of_agents() -> None:
    prompts = traffic(np.random.default_rng(5))
    entries = [next(prompts) for _ in range(600)]
    report = measure(entries, [next(prompts) for _ in range(40)])
    assert report.found == 1.0
    assert report.kept == 1.0
    assert report.recall > 0.9


def test_the_best_alone_is_that_of_a_search() -> None:
    rng = np.random.default_rng(3)
    index = BruteForceIndex(8, capacity=4)
    query = rng.normal(size=8).astype(np.float32)
    query /= np.linalg.norm(query)
    assert index.best(query) is None
    for key in range(40):
        vector = rng.normal(size=8).astype(np.float32)
        index.add(key, vector / np.linalg.norm(vector), 10)
        if key % 3 == 0:
            index.remove(key)
            continue
        found = max(candidate.similarity for candidate in index.search(query, limit=40))
        assert index.best(query) == pytest.approx(found, abs=1e-6)
    with pytest.raises(ValueError, match="unit length"):
        index.best(2 * query)
