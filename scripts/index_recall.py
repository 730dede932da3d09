"""How often the index finds what an exhaustive comparison of exact prefixes finds, and how long a search takes.

    PYTHONPATH=addon python scripts/index_recall.py [--seed 1] [--queries 200]

The prompts look like the traffic of agents: a few agents with long preambles of their own, projects below them, chats
that grow turn by turn, branches that leave an older chat in the middle, and short side requests. Earlier requests are
the entries, later ones the queries.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from toki.engine.embedding import embed_prefix
from toki.engine.index import BruteForceIndex
from toki.engine.tokens import Tokens

SIZES = (64, 1_000, 10_000)
LIMIT = 32
VOCABULARY = 50_000


@dataclass(frozen=True, slots=True)
class Report:
    """The figures of one size. Shares are from 0 to 1, times in milliseconds."""

    entries: int
    found: float  # queries whose longest common prefix is also the longest among the candidates
    kept: float  # tokens: the longest common prefix among the candidates over the longest of all
    recall: float  # candidates among the entries with the LIMIT longest common prefixes (ties count)
    search_ms: float
    embed_ms: float


def traffic(rng: np.random.Generator) -> Iterator[Tokens]:
    """Prompts of several agents, endlessly, in the order of their requests."""
    template = _text(rng, 30)
    agents = [template.extended(_text(rng, int(rng.integers(600, 20_000))).ids) for _ in range(8)]
    projects = [agents[int(rng.integers(len(agents)))].extended(_text(rng, _size(rng, 800)).ids) for _ in range(40)]
    side = template.extended(_text(rng, 250).ids)
    live: list[tuple[Tokens, list[int]]] = []  # a whole chat and the turns at which requests are still to come
    ended: list[Tokens] = []
    while True:
        if len(live) < 30 and rng.random() < 0.3:
            if rng.random() < 0.3:
                yield side.extended(_text(rng, _size(rng, 60)).ids)
            start = projects[int(rng.integers(len(projects)))]
            if ended and rng.random() < 0.3:  # a branch: an edited message or a retry in the middle of an older chat
                older = ended[int(rng.integers(len(ended)))]
                start = older.head(int(rng.integers(len(older) // 2, len(older) + 1)))
            turns = len(start) + np.cumsum([_size(rng, 500) for _ in range(int(rng.integers(2, 30)))])
            live.append((start.extended(_text(rng, int(turns[-1]) - len(start)).ids), turns.tolist()))
        if live:
            chat, turns_left = live[int(rng.integers(len(live)))]
            yield chat.head(turns_left.pop(0))
            if not turns_left:
                live = [pair for pair in live if pair[0] is not chat]
                ended.append(chat)


def _text(rng: np.random.Generator, n: int) -> Tokens:
    return Tokens.of(rng.integers(0, VOCABULARY, n))


def _size(rng: np.random.Generator, median: int) -> int:
    return int(np.clip(rng.lognormal(np.log(median), 1.0), 10, 12 * median))


def measure(entries: list[Tokens], queries: list[Tokens]) -> Report:
    """Put `entries` into an index and compare its answer to each of `queries` with the exhaustive one."""
    index = BruteForceIndex()
    for key, tokens in enumerate(entries):
        index.add(key, embed_prefix(tokens), len(tokens))
    answers, embed_ms, search_ms = [], [], []
    for query in queries:  # apart from the comparisons, which would push the index out of the processor's caches
        embed_start = time.perf_counter()
        vector = embed_prefix(query)
        search_start = time.perf_counter()
        answers.append([candidate.key for candidate in index.search(vector, LIMIT)])
        end = time.perf_counter()
        embed_ms.append((search_start - embed_start) * 1e3)
        search_ms.append((end - search_start) * 1e3)
    found, recall = [], []
    kept, possible = 0, 0
    for query, candidates in zip(queries, answers, strict=True):
        shared: npt.NDArray[np.int64] = np.array([query.common_prefix(tokens) for tokens in entries])
        of_candidates = shared[candidates]
        found.append(of_candidates.max() == shared.max())
        recall.append(float((of_candidates >= np.sort(shared)[-LIMIT]).mean()))
        kept += int(of_candidates.max())
        possible += int(shared.max())
    return Report(
        entries=len(entries),
        found=statistics.fmean(found),
        kept=kept / possible,
        recall=statistics.fmean(recall),
        search_ms=statistics.median(search_ms),
        embed_ms=statistics.median(embed_ms),
    )


def main() -> None:
    """Print one line per size."""
    parser = argparse.ArgumentParser(description="Recall of the index against exact prefixes, and its search time.")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--queries", type=int, default=200)
    options = parser.parse_args()
    print(f"best {LIMIT} candidates, {options.queries} queries, seed {options.seed}")
    print(f"{'entries':>8} {'longest found':>14} {'tokens kept':>12} {'recall':>7} {'search ms':>10} {'embed ms':>9}")
    for size in SIZES:
        prompts = traffic(np.random.default_rng(options.seed))
        entries = [next(prompts) for _ in range(size)]
        report = measure(entries, [next(prompts) for _ in range(options.queries)])
        print(
            f"{report.entries:>8} {report.found:>14.3f} {report.kept:>12.4f} {report.recall:>7.3f}"
            f" {report.search_ms:>10.2f} {report.embed_ms:>9.3f}"
        )


if __name__ == "__main__":
    main()
