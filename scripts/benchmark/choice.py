"""What the choice itself costs: no server, no proxy, only the engine and its index."""

from __future__ import annotations

import statistics
import time

import numpy as np

import index_recall
from toki.engine.core import Engine
from toki.engine.embedding import embed_prefix
from toki.engine.events import Answered
from toki.engine.events import Arrived
from toki.engine.events import Ask
from toki.engine.events import Measured
from toki.engine.events import Mode
from toki.engine.events import Replied
from toki.engine.events import Restarted
from toki.engine.events import SlotView
from toki.engine.rules import Known
from toki.engine.tokens import Tokens

SLOTS = 64
CONVERSATIONS = 64
LENGTH = 64_000  # tokens of a conversation when it begins
PREAMBLE = 2_000  # tokens that all of them share
ROUNDS = 3  # the last one counts
REPLY = 99
MESSAGE = 50
N_CTX = 1 << 20


def costs() -> dict[str, float]:
    """Milliseconds of a decision, and of a search at several sizes beside what it finds (shares from 0 to 1)."""
    decisions = decision_ms()
    found = {
        "choice ms, p50": statistics.median(decisions),
        "choice ms, p95": float(np.percentile(decisions, 95)),
    }
    for size in index_recall.SIZES:
        prompts = index_recall.traffic(np.random.default_rng(1))
        entries = [next(prompts) for _ in range(size)]
        report = index_recall.measure(entries, [next(prompts) for _ in range(100)])
        found[f"index of {size}: recall"] = report.recall
        found[f"index of {size}: longest found"] = report.found
        found[f"index of {size}: search ms"] = report.search_ms
    return {name: round(value, 4) for name, value in found.items()}


def decision_ms() -> list[float]:
    """How long Engine.handle(Arrived) takes for each conversation, with every slot full. Milliseconds."""
    rng = np.random.default_rng(1)
    preamble = rng.integers(0, 30_000, PREAMBLE)
    chats = [Tokens.of([*preamble, *rng.integers(0, 30_000, LENGTH - PREAMBLE)]) for _ in range(CONVERSATIONS)]
    engine = Engine(Mode.AUTO, 10)
    slots = tuple(SlotView(id=slot, busy=False, n_tokens=0, task=-1, n_ctx=N_CTX) for slot in range(SLOTS))
    engine.handle(Restarted(0.0, SLOTS, N_CTX, Known(unified=False, idle_save=True, sps=0.1), slots))
    taken: list[float] = []
    for key in range(ROUNDS * CONVERSATIONS):
        at = float(key + 1)
        prompt = chats[key % CONVERSATIONS]
        arrived = Arrived(key, at, Ask("/completion", tokens=prompt, vector=embed_prefix(prompt)))
        began = time.perf_counter()
        engine.handle(arrived)
        taken.append((time.perf_counter() - began) * 1e3)
        engine.handle(Answered(key, at + 0.5, 200, Measured(len(prompt), 0, len(prompt), REPLY + 1)))
        reply = rng.integers(0, 30_000, REPLY)
        engine.handle(Replied(key, at + 0.6, reply.astype(np.int32)))
        chats[key % CONVERSATIONS] = prompt.extended([*reply, *rng.integers(0, 30_000, MESSAGE)])
    return taken[-CONVERSATIONS:]
