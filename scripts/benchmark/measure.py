"""One run: a fresh server, one side before it, the traffic of one seed; and what came of it."""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Iterator
from collections.abc import Sequence
from dataclasses import replace
from http.client import HTTPException

import numpy as np
import requests

from benchmark.cells import FLAGS
from benchmark.cells import LIMIT_S
from benchmark.cells import MODELS
from benchmark.cells import TRAFFIC
from benchmark.cells import Cell
from benchmark.results import Absence
from benchmark.results import Run
from benchmark.sides import NotThere
from benchmark.sides import in_time
from benchmark.sides import side
from play import BODIES
from play import PATHS
from play import Played
from play import play
from servers import start
from toki import endpoints
from toki.prompt import PromptReader
from toki.server import Auth
from toki.server import LlamaServerBackend
from traffic import endless

PATIENCE = 60.0  # seconds for one question to the server after a run
AUTH = Auth()


def measured(cell: Cell, name: str, seed: int, session: int) -> Run | Absence:
    """Play `cell` by the side `name`. What can't be measured is an absence, unless it is the server alone."""
    try:
        return _measured(cell, name, seed, session)
    except (NotThere, OSError, HTTPException, RuntimeError) as error:
        if name == "alone":
            raise
        return Absence(cell=cell, side=name, seed=seed, session=session, reason=str(error) or repr(error))


def _measured(cell: Cell, name: str, seed: int, session: int) -> Run:
    load = os.getloadavg()[0]
    model = MODELS[cell.model]()
    with start(model, replace(FLAGS[cell.flags], metrics=True), cell.build) as server:
        with side(name, server, model) as before, in_time(server, LIMIT_S[cell.model]):
            # What a side asks at its own start is not counted; whatever it sends later is.
            already = evaluated_tokens(server.url)
            traffic = TRAFFIC[cell.scenario].start(seed, reply_tokens=cell.reply, scale=cell.scale)
            played = play(traffic, before.url, cell.shape, at_a_time=cell.at_once)
            steered = before.steered(len(played))
            evaluated = evaluated_tokens(server.url) - already
        exchanges = list(exact(played, server.url))
    played.sort(key=lambda one: one.sent_at)
    firsts = [one.first_byte_s for one in played if one.request.stream and one.first_byte_s is not None]
    began = played[0].sent_at
    wave = [one.sent_at + one.first_byte_s - began for one in played[: cell.at_once] if one.first_byte_s is not None]
    return Run(
        cell=cell,
        side=name,
        seed=seed,
        session=session,
        requests=len(played),
        failed=sum(one.status != 200 for one in played),
        prompt_tokens=sum(len(prompt) for prompt, _ in exchanges),
        evaluated=evaluated,
        bound=endless(exchanges),
        wall_s=round(max(one.sent_at + one.total_s for one in played) - began, 4),
        first_p50_s=round(statistics.median(firsts), 4) if firsts else None,
        first_p95_s=round(float(np.percentile(firsts, 95)), 4) if firsts else None,
        wave_s=round(max(wave), 4) if wave else None,
        steered=steered,
        load=round(load, 2),
    )


def evaluated_tokens(url: str) -> int:
    """The server's own count of evaluated prompt tokens (--metrics), once it has nothing left to do."""
    deadline = time.monotonic() + PATIENCE
    while True:
        with requests.Session() as session:
            session.trust_env = False
            text = session.get(f"{url}/metrics", timeout=PATIENCE).text
        told = dict(line.rsplit(" ", 1) for line in text.splitlines() if line and not line.startswith("#"))
        if float(told["llamacpp:requests_processing"]) == float(told["llamacpp:requests_deferred"]) == 0:
            return int(float(told["llamacpp:prompt_tokens_total"]))
        if time.monotonic() > deadline:
            raise RuntimeError("the server is still busy, long after the last answer")
        time.sleep(0.02)


def exact(played: Sequence[Played], url: str) -> Iterator[tuple[list[int], list[int]]]:
    """(prompt, reply) of each request in the order they were sent, as the exact tokens that the server had.

    Clients that hang up are taken to stay, of several answers the first one counts. An answer that ran into its limit
    leaves all but its last token in the cache: that one was never evaluated. Raises RuntimeError where a prompt has
    not the length that the server told: a bound from other tokens would be none.
    """
    backend = LlamaServerBackend(url)
    reader = PromptReader(backend)
    try:
        for one in sorted(played, key=lambda one: one.sent_at):
            if one.status != 200:
                continue
            endpoint = endpoints.match("POST", PATHS[one.form])
            assert endpoint
            body = BODIES[one.form](one.request, one.request.stream)
            question = endpoint.read(body)
            prompt = reader.read(question, json.dumps(body).encode(), AUTH, time.monotonic() + PATIENCE)
            if one.prompt_tokens is not None and one.prompt_tokens != len(prompt):
                raise RuntimeError(f"a prompt of {one.prompt_tokens} tokens was read as {len(prompt)}")
            reply = backend.tokenize(one.reply_text, AUTH, PATIENCE, add_special=False).tolist()
            cut = one.reply_tokens == one.request.max_tokens
            yield prompt.ids.tolist(), reply[:-1] if cut else reply
    finally:
        backend.close()
