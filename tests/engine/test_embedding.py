"""Embeddings: unit vectors whose cosine follows the common prefix; averages of segments."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from toki.engine.embedding import DIMENSIONS
from toki.engine.embedding import average
from toki.engine.embedding import embed_prefix
from toki.engine.embedding import segments
from toki.engine.tokens import BLOCK
from toki.engine.tokens import Tokens

NOISE = 4 / math.sqrt(DIMENSIONS)  # four standard deviations of the cosine of two random directions


def text(n: int, seed: int = 0) -> Tokens:
    return Tokens.of(np.random.default_rng(seed).integers(0, 50_000, n))


def cosine(a: Tokens, b: Tokens) -> float:
    return float(embed_prefix(a) @ embed_prefix(b))


@given(st.integers(0, 4 * BLOCK), st.integers(0, 5))
def test_shape_length_and_determinism(n: int, seed: int) -> None:
    vector = embed_prefix(text(n, seed))
    assert vector.shape == (DIMENSIONS,)
    assert vector.dtype == np.float32
    assert float(np.linalg.norm(vector)) == pytest.approx(1.0, abs=1e-6)
    assert np.array_equal(vector, embed_prefix(text(n, seed)))


def test_the_vector_is_the_same_on_every_machine() -> None:
    vector = embed_prefix(Tokens.of(range(3 * BLOCK)))
    assert np.count_nonzero(vector) == 61
    assert vector[[232, 76, 163, 164]] == pytest.approx([-0.2595, -0.2385, 0.2385, -0.2385], abs=1e-4)


@given(st.integers(0, 15), st.integers(0, 15))
def test_prompts_below_16_tokens_are_all_the_empty_prefix(n: int, m: int) -> None:
    assert np.array_equal(embed_prefix(text(n, 1)), embed_prefix(text(m, 2)))


@given(st.integers(0, 2), st.integers(0, 5), st.integers(0, 15), st.data())
def test_what_follows_the_last_whole_step_does_not_count(
    blocks: int, steps: int, rest: int, data: st.DataObject
) -> None:
    """The first block is told apart in steps of 16, what follows it in whole blocks."""
    n, step = (blocks * BLOCK, BLOCK) if blocks else (steps * 16, 16)
    head = text(n + rest)
    longer = head.extended(text(data.draw(st.integers(0, step - 1 - rest)), 1).ids)
    assert np.array_equal(embed_prefix(head), embed_prefix(longer))
    assert not np.array_equal(embed_prefix(head), embed_prefix(head.extended(text(step, 1).ids)))


@pytest.mark.parametrize("unit", [1, 16, BLOCK], ids=["short", "middle", "long"])
def test_cosine_follows_the_common_prefix(unit: int) -> None:
    """Over many prompts the mean cosine is (c + 1) / sqrt((n + 1)(m + 1)), and each is within the noise."""
    n, m = 128 * unit, 64 * unit
    for common in (0, 16 * unit, 32 * unit, 48 * unit, 64 * unit):
        expected = (common + 1) / math.sqrt((n + 1) * (m + 1))
        cosines = []
        for seed in range(0, 90, 3):
            head = text(common, seed)
            pair = [head.extended(text(size - common, seed + 1 + i).ids) for i, size in enumerate((n, m))]
            cosines.append(cosine(*pair))
        assert np.mean(cosines) == pytest.approx(expected, abs=NOISE / math.sqrt(30) + 0.02)
        assert cosines == pytest.approx([expected] * 30, abs=NOISE + 0.02)


def test_a_growing_chat_moves_away_from_its_start_step_by_step() -> None:
    whole = text(64 * BLOCK)
    cosines = [cosine(whole.head(8 * BLOCK), whole.head(blocks * BLOCK)) for blocks in (8, 12, 16, 24, 32, 64)]
    assert cosines[0] == pytest.approx(1.0)
    assert cosines == sorted(cosines, reverse=True)


def test_short_prompts_have_features_of_their_own() -> None:
    head = text(64)
    nearer = cosine(head.extended(text(30, 1).ids), head.extended(text(30, 2).ids))
    farther = cosine(head.extended(text(30, 1).ids), text(94, 3))
    assert nearer > 0.5 > farther


def test_a_changed_first_token_leaves_only_the_empty_prefix_in_common() -> None:
    ids = text(8 * BLOCK).ids
    changed = ids.copy()
    changed[0] += 1
    assert abs(cosine(Tokens.of(ids), Tokens.of(changed))) < NOISE


@given(st.integers(0, 500), st.integers(1, 60), st.data())
def test_segments_cover_everything_and_overlap(n: int, size: int, data: st.DataObject) -> None:
    overlap = data.draw(st.integers(0, size - 1))
    parts = segments(n, size, overlap)
    covered = [i for part in parts for i in range(n)[part]]
    assert sorted(set(covered)) == list(range(n))
    assert all(0 < part.stop - part.start <= size for part in parts)
    for before, after in pairwise(parts):
        assert before.stop - after.start == overlap
        assert after.stop > before.stop


def test_segments_of_a_short_and_an_empty_prompt() -> None:
    assert segments(10, 512, 64) == [slice(0, 10)]
    assert segments(5, 512, 64) == [slice(0, 5)]
    assert segments(0, 512, 64) == []


@pytest.mark.parametrize(("size", "overlap"), [(0, 0), (8, 8), (8, 9), (8, -1), (-1, 0)])
def test_segments_that_can_not_be(size: int, overlap: int) -> None:
    with pytest.raises(ValueError, match="overlap"):
        segments(10, size, overlap)


def vector(*numbers: float) -> npt.NDArray[np.float32]:
    return np.array(numbers, np.float32)


def test_average_is_weighted_and_of_unit_length() -> None:
    assert average([vector(1, 0), vector(0, 1)], [3, 1]) == pytest.approx(vector(3, 1) / math.sqrt(10))
    assert average([vector(0, 7)], [12]) == pytest.approx(vector(0, 1))


def test_average_gives_each_segment_the_say_of_its_weight_alone() -> None:
    assert average([vector(1000, 0), vector(0, 0.001)], [1, 1]) == pytest.approx(vector(1, 1) / math.sqrt(2))


@pytest.mark.parametrize(
    "vectors",
    [
        [vector(0, 0)],
        [vector(1, 0), vector(0, 0)],
        [vector(1, math.nan)],
        [vector(1, math.inf)],
        [vector(1, 0), vector(-1, 0)],
    ],
    ids=["zero", "one zero", "NaN", "infinite", "cancel out"],
)
def test_vectors_without_direction_are_refused(vectors: list[npt.NDArray[np.float32]]) -> None:
    with pytest.raises(ValueError, match="without direction"):
        average(vectors, [1.0] * len(vectors))


@pytest.mark.parametrize(
    ("vectors", "weights"),
    [([], []), ([vector(1)], []), ([vector(1)], [0]), ([vector(1), vector(1)], [1, -1])],
    ids=["none", "no weight", "weight 0", "negative weight"],
)
def test_weights_that_do_not_fit_are_refused(vectors: list[npt.NDArray[np.float32]], weights: list[float]) -> None:
    with pytest.raises(ValueError, match="weight"):
        average(vectors, weights)


@pytest.mark.parametrize("vectors", [[vector(1), vector(1, 0)], [np.ones((2, 2), np.float32)] * 2])
def test_vectors_of_different_shapes_are_refused(vectors: list[npt.NDArray[np.float32]]) -> None:
    with pytest.raises(ValueError, match="shapes"):
        average(vectors, [1.0] * len(vectors))
