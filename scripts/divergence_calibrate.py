"""How often is `toki.divergence.classify` right? On labelled pairs of answers: one half to tune on, one to report."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from servers import ROOT
from toki.divergence import Divergence
from toki.divergence.judge import judge
from toki.divergence.meaning import Meaning

PAIRS = ROOT / "tests" / "divergence" / "pairs.json"


@dataclass(frozen=True, slots=True)
class Pair:
    """Two answers and how they differ, as a person says who has not seen what the code says."""

    half: str  # "tune" or "report"
    kind: str
    label: Divergence
    a: str
    b: str


@dataclass(frozen=True, slots=True)
class Score:
    """How labels and verdicts agree: how many pairs of which label got which verdict."""

    confusion: Counter[tuple[Divergence, Divergence]]

    @property
    def precision(self) -> float:
        """Of the pairs called substantive the share that is."""
        return self._share({pair for pair in self.confusion if pair[1] is Divergence.SUBSTANTIVE})

    @property
    def recall(self) -> float:
        """Of the substantive pairs the share that is called so."""
        return self._share({pair for pair in self.confusion if pair[0] is Divergence.SUBSTANTIVE})

    def _share(self, of: set[tuple[Divergence, Divergence]]) -> float:
        both = (Divergence.SUBSTANTIVE, Divergence.SUBSTANTIVE)
        return self.confusion[both] / max(1, sum(self.confusion[pair] for pair in of))

    def table(self) -> str:
        """The confusion matrix: a row for each label, a column for each verdict."""
        rows = [f"{'label / verdict':<18}" + "".join(f"{kind:>17}" for kind in Divergence)]
        for label in Divergence:
            rows.append(f"{label:<18}" + "".join(f"{self.confusion[label, verdict]:>17}" for verdict in Divergence))
        return "\n".join(rows)


def pairs(path: Path = PAIRS) -> list[Pair]:
    """The labelled pairs. Raises ValueError where the file is none."""
    entries = json.loads(path.read_text(encoding="utf-8"))
    return [Pair(entry["half"], entry["kind"], Divergence(entry["label"]), entry["a"], entry["b"]) for entry in entries]


def halves(labelled: Sequence[Pair]) -> tuple[list[Pair], list[Pair]]:
    """The half to tune on and the half to report, as the file says.

    The second was written and labelled when the first had been tuned on, kind by kind.
    """
    return [pair for pair in labelled if pair.half == "tune"], [pair for pair in labelled if pair.half == "report"]


def score(labelled: Sequence[Pair], meaning: Meaning | None = None) -> Score:
    """Judge all pairs. `meaning` None: with the best embeddings that are installed."""
    return Score(Counter((pair.label, judge(pair.a, pair.b, meaning).divergence) for pair in labelled))


def mistakes(labelled: Sequence[Pair], meaning: Meaning | None = None) -> list[str]:
    """One line for each pair whose verdict is not its label."""
    found = []
    for pair in labelled:
        verdict = judge(pair.a, pair.b, meaning)
        if verdict.divergence is not pair.label:
            why = f" ({verdict.reason})" if verdict.reason else ""
            found.append(f"{pair.kind}: {pair.label}, judged {verdict.divergence}{why}: {pair.a!r} / {pair.b!r}")
    return found


def report(meaning: Meaning | None, name: str) -> str:
    """Both halves with one embedding: matrices, precision and recall of "substantive", the half not tuned on last."""
    lines = [f"embedding: {name}"]
    for title, half in zip(("tuned on", "not tuned on"), halves(pairs()), strict=True):
        found = score(half, meaning)
        figures = f"substantive: precision {found.precision:.3f}, recall {found.recall:.3f}"
        lines += ["", f"{title}: {len(half)} pairs", found.table(), figures]
    return "\n".join(lines)
