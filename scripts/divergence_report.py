"""What the answers kept by scripts/divergence.py say: per way the share of each class, and what explains them."""

from __future__ import annotations

import base64
import html
import io
import json
import statistics
from collections import Counter
from collections import defaultdict
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from divergence_ways import WAYS
from toki.divergence import Divergence
from toki.divergence import Verdict
from toki.divergence.judge import judge
from toki.divergence.meaning import Meaning

Side = tuple[str, int]  # a way, and which of its two passes
ALONE = {way: way.replace("toki", "alone") for way in WAYS if way.startswith("toki")}
SIDES: Sequence[tuple[Side, Side]] = (
    *((("fresh", 1), (way, 1)) for way in WAYS if way != "fresh"),
    *((("fresh", 1), (way, 2)) for way in WAYS if way.endswith("-4")),  # no two passes at once are alike
    *(((alone, 1), (toki, 1)) for toki, alone in ALONE.items()),
    *(((way, 1), (way, 2)) for way in WAYS),
)
CONSTRAINED = ("json", "tools")  # kinds of prompts whose answers follow a grammar
NEAR_TIE = 0.1  # of log-probability between the best two tokens: 10 % in probability
Kept = dict[str, Any]  # a file of answers
LEGEND = f"""\
*: only the requests that toki steered. (again): a second pass; beside the first it is the noise floor.
first: the first token that differs; margin: by how much the best token led there in log-probability (near ties: by less
than {NEAR_TIE}); shift: by how much the log-probability of the very first token differs where it is the same. Medians.
reused: share of prompt tokens."""


@dataclass(frozen=True, slots=True)
class Pair:
    """Two answers to one prompt. `first`: the first token that differs, None where the texts alone do, or nothing.

    `shift`: by how much the log-probability of the very first token differs, where it is the same; None: not known.
    """

    prompt: str
    kind: str
    divergence: Divergence
    reason: str
    first: int | None
    margin: float | None  # by how much the best token led there, in the answer compared with; None: not known
    shift: float | None
    reused: int
    evaluated: int


@dataclass(frozen=True, slots=True)
class Comparison:
    """The answers of one way beside those of another: the same prompts, model, build and temperature."""

    model: str
    build: str
    temperature: float
    one: str
    other: str
    steered: bool  # only those prompts whose requests toki steered
    pairs: Sequence[Pair]

    @property
    def counts(self) -> Counter[Divergence]:
        return Counter(pair.divergence for pair in self.pairs)

    @property
    def divergent(self) -> int:
        return len(self.pairs) - self.counts[Divergence.IDENTICAL]

    @property
    def substantive_share(self) -> float | None:
        """The share of divergent pairs that are substantive; None where none diverge."""
        return self.counts[Divergence.SUBSTANTIVE] / self.divergent if self.divergent else None

    def figures(self) -> dict[str, Any]:
        """As JSON."""
        firsts = [pair.first for pair in self.pairs if pair.first is not None]
        margins = [pair.margin for pair in self.pairs if pair.margin is not None]
        shifts = [pair.shift for pair in self.pairs if pair.shift is not None]
        reused, evaluated = (sum(getattr(pair, name) for pair in self.pairs) for name in ("reused", "evaluated"))
        return {
            "model": self.model,
            "build": self.build,
            "temperature": self.temperature,
            "way": self.other,
            "against": self.one,
            "steered": self.steered,
            "prompts": len(self.pairs),
            "classes": {str(kind): self.counts[kind] for kind in Divergence},
            "divergent": self.divergent,
            "substantive_of_divergent": self.substantive_share,
            "first_diverging_token_median": statistics.median(firsts) if firsts else None,
            "margin_median": statistics.median(margins) if margins else None,
            "near_ties": sum(margin < NEAR_TIE for margin in margins),
            "margins": len(margins),
            "shift_median": statistics.median(shifts) if shifts else None,
            "shift_most": max(shifts, default=None),
            "shifts": len(shifts),
            "reused_tokens": reused,
            "evaluated_tokens": evaluated,
            "kinds": {
                kind: {str(each): count for each, count in Counter(p.divergence for p in some).items()}
                for kind, some in _by_kind(self.pairs).items()
            },
            "differences": [
                {
                    "prompt": pair.prompt,
                    "class": pair.divergence,
                    "reason": pair.reason,
                    "first": pair.first,
                    "margin": pair.margin,
                    "reused": pair.reused,
                }
                for pair in self.pairs
                if pair.divergence is not Divergence.IDENTICAL
            ],
        }


def read(folder: Path) -> list[Kept]:
    """All files of answers. Raises ValueError for one that is none."""
    return [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))]


def actions(file: Kept) -> dict[str, int]:
    """How often toki did what in a pass; nothing where no request went by toki."""
    return dict(Counter(answer["action"] for answer in file["answers"] if answer["action"] is not None))


def comparisons(kept: Sequence[Kept], meaning: Meaning | None = None) -> list[Comparison]:
    """Each way beside the pass without cache, toki beside the server alone, each way's second pass beside its first.

    Requests that toki steered come apart too: beside no cache, as do the same requests alone, and beside these.
    """
    answers: dict[tuple[str, str, float], dict[Side, dict[str, Any]]] = defaultdict(lambda: defaultdict(dict))
    for file in kept:
        one = file["pass"]
        setting = one["model"], one["build"], one["temperature"]
        answers[setting][one["way"], one["number"]] |= {answer["prompt"]: answer for answer in file["answers"]}
    found = []
    for setting, ways in sorted(answers.items()):
        for base, way in SIDES:
            found.append(_comparison(setting, ways, base, way, meaning))
        for toki, alone in ALONE.items():
            steered = {name for name, answer in ways[toki, 1].items() if answer["action"] != "passed"}
            for one, other in (("fresh", toki), ("fresh", alone), (alone, toki)):
                found.append(_comparison(setting, ways, (one, 1), (other, 1), meaning, steered))
    return [comparison for comparison in found if comparison.pairs]


def _comparison(
    setting: tuple[str, str, float],
    ways: Mapping[Side, Mapping[str, dict[str, Any]]],
    base: Side,
    way: Side,
    meaning: Meaning | None,
    steered: Collection[str] | None = None,
) -> Comparison:
    """All prompts that both sides have, or those of `steered`."""
    one, other = ways[base], ways[way]
    names = [name for name in one if name in other and (steered is None or name in steered)]
    pairs = [_pair(one[name], other[name], meaning) for name in names]
    return Comparison(*setting, _name(base), _name(way), steered is not None, pairs)


def _name(side: Side) -> str:
    way, number = side
    return way if number == 1 else f"{way} (again)"


@cache  # ways give the same texts more often than not
def _judged(one: str, other: str, meaning: Meaning | None) -> Verdict:
    return judge(one, other, meaning)


def _pair(one: dict[str, Any], other: dict[str, Any], meaning: Meaning | None) -> Pair:
    verdict = _judged(one["text"], other["text"], meaning)
    first = next(
        (n for n, (a, b) in enumerate(zip(one["tokens"], other["tokens"], strict=False)) if a[0] != b[0]), None
    )
    margin = _margin(one, other, first) if first is not None else None
    return Pair(
        one["prompt"],
        one["kind"],
        verdict.divergence,
        verdict.reason,
        first,
        margin,
        _shift(one, other),
        other["reused"],
        other["evaluated"],
    )


def _margin(one: dict[str, Any], other: dict[str, Any], first: int) -> float | None:
    """By how much the best token led where two answers part; None where the server's figures do not tell: those of an
    answer that follows a grammar are from before it, and parts of a character that takes several tokens are left out.
    """
    token, instead = one["tokens"][first], other["tokens"][first]
    if one["kind"] in CONSTRAINED or not (token[0] + instead[0]).isascii():
        return None
    margin: float = token[2]
    return margin


def _shift(one: dict[str, Any], other: dict[str, Any]) -> float | None:
    """See Pair: a measure of how differently the same prompt was computed."""
    if one["kind"] in CONSTRAINED or not one["tokens"] or not other["tokens"]:
        return None
    (token, logprob, _), (instead, elsewhere, _) = one["tokens"][0], other["tokens"][0]
    return abs(logprob - elsewhere) if token == instead else None


def _by_kind(pairs: Iterable[Pair]) -> dict[str, list[Pair]]:
    found: dict[str, list[Pair]] = defaultdict(list)
    for pair in pairs:
        found[pair.kind].append(pair)
    return found


def text(figures: Sequence[dict[str, Any]]) -> str:
    """One table per model, build and temperature."""
    lines = [LEGEND]
    for title, some in _groups(figures):
        head = f"{'way':<20}{'against':<14}{'prompts':>8}" + "".join(f"{kind:>17}" for kind in Divergence)
        lines += [
            "",
            title,
            head + f"{'substantive/div.':>18}{'first':>7}{'margin':>8}{'near ties':>11}{'shift':>8}{'reused':>8}",
        ]
        for each in some:
            cells = "".join(f"{each['classes'][kind]:>17}" for kind in Divergence)
            ties = f"{each['near_ties']}/{each['margins']}"
            shift = _number(each["shift_median"], 4)
            lines.append(
                f"{_way(each):<20}{each['against']:<14}{each['prompts']:>8}{cells}"
                f"{_percent(each['substantive_of_divergent']):>18}{_number(each['first_diverging_token_median']):>7}"
                f"{_number(each['margin_median'], 2):>8}{ties:>11}{shift:>8}{_reuse(each):>8}"
            )
    return "\n".join(lines).lstrip("\n")


def page(figures: Sequence[dict[str, Any]], about: str) -> str:
    """The same as one HTML file with its pictures inside."""
    style = "body{font:15px sans-serif;max-width:75em;margin:2em auto}pre{overflow-x:auto;font-size:11px}"
    style += "img{max-width:100%}"
    parts = [
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>Divergence</title><style>{style}</style>',
        "<h1>Do answers diverge?</h1>",
        f"<p>{html.escape(about)}</p>",
    ]
    for title, some in _groups(figures):
        picture = base64.b64encode(_picture(title, some)).decode()
        parts.append(
            f'<h2>{html.escape(title)}</h2><img alt="shares of each class" src="data:image/png;base64,{picture}">'
        )
        parts.append(f"<pre>{html.escape(text(some))}</pre>")
    return "\n".join([*parts, "</html>", ""])


def _picture(title: str, figures: Sequence[dict[str, Any]]) -> bytes:
    """Bars: the share of each class of divergent pairs; and the log-probability margins where tokens first differ."""
    import matplotlib

    matplotlib.use("Agg")  # no display needed
    from matplotlib import pyplot

    size = 13, 1.6 + 0.3 * len(figures)
    picture, (left, right) = pyplot.subplots(1, 2, figsize=size, layout="constrained", sharey=True)
    names = [f"{_way(each)} / {each['against']}" for each in figures]
    starts = [0.0] * len(figures)
    colours = {"whitespace-only": "#c7c7c7", "restore-noise": "#ffbb78", "substantive": "#d62728"}
    for kind, colour in colours.items():
        shares = [100 * each["classes"][kind] / each["prompts"] for each in figures]
        left.barh(names, shares, left=starts, color=colour, label=kind)
        starts = [start + share for start, share in zip(starts, shares, strict=True)]
    left.set_xlabel("% of all prompts")
    left.set_xlim(0, 100)
    left.invert_yaxis()
    left.legend(loc="lower right")
    widest = NEAR_TIE
    for row, each in enumerate(figures):
        margins = [one["margin"] for one in each["differences"] if one["margin"] is not None]
        right.plot(margins, [row] * len(margins), "|", color="#1f77b4", markersize=14)
        widest = max([widest, *margins])
    right.set_xlim(0, 1.05 * widest)
    right.set_xlabel("lead of the best token where answers part (log-probability)")
    picture.suptitle(title)
    written = io.BytesIO()
    picture.savefig(written, dpi=80, metadata={"Software": None})
    pyplot.close(picture)
    return written.getvalue()


def _groups(figures: Sequence[dict[str, Any]]) -> list[tuple[str, list[dict[str, Any]]]]:
    found: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for each in figures:
        found[f"{each['model']}, {each['build']}, temperature {each['temperature']}"].append(each)
    return list(found.items())


def _way(each: dict[str, Any]) -> str:
    return f"{each['way']}*" if each["steered"] else str(each["way"])


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.0f} %"


def _number(value: float | None, places: int = 0) -> str:
    return "-" if value is None else f"{value:.{places}f}"


def _reuse(each: dict[str, Any]) -> str:
    return _percent(each["reused_tokens"] / max(1, each["reused_tokens"] + each["evaluated_tokens"]))
