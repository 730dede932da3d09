"""What the choice itself costs: no server, no proxy, only the engine and its index."""

from __future__ import annotations

import statistics

import numpy as np

import bench_choice
import index_recall

SLOTS = 64  # and as many conversations
LENGTH = 64_000  # tokens of a conversation when it begins
QUERIES = 100


def costs() -> dict[str, float]:
    """Milliseconds of the choice, and of all that an arrival takes, each for the flags where it takes longest; and of a
    search at several sizes beside what it finds (shares from 0 to 1)."""
    timed = [bench_choice.run(known, SLOTS, LENGTH, 1) for known in bench_choice.FLAGS.values()]
    found: dict[str, float] = {}
    for what, slowest in zip(("choice", "arrival"), zip(*timed, strict=True), strict=True):
        found[f"{what} ms, p50"] = max(statistics.median(times) for times in slowest)
        found[f"{what} ms, p95"] = max(float(np.percentile(times, 95)) for times in slowest)
    for size in index_recall.SIZES:
        prompts = index_recall.traffic(np.random.default_rng(1))
        entries = [next(prompts) for _ in range(size)]
        report = index_recall.measure(entries, [next(prompts) for _ in range(QUERIES)])
        found[f"index of {size}: recall"] = report.recall
        found[f"index of {size}: longest found"] = report.found
        found[f"index of {size}: search ms"] = report.search_ms
    return {name: round(value, 4) for name, value in found.items()}
