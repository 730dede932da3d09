"""Are answers whole? Several at once through toki; then each prompt once more, alone and without a cache.

A task that is put on a slot that still answers another one cuts that answer short or mixes the two.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

import requests

from benchmark.cells import FLAGS
from benchmark.cells import KEPT
from benchmark.cells import LIMIT_S
from benchmark.cells import MODELS
from benchmark.cells import TRAFFIC
from benchmark.cells import Cell
from benchmark.results import Answers
from benchmark.sides import in_time
from benchmark.sides import side
from play import Played
from play import play
from servers import BUILDS
from servers import LlamaServer
from servers import start
from traffic import Request
from traffic import chat

MARKER = re.compile(r"Conversation ([\w/-]+)\.")  # how each conversation opens: see traffic.scenario.opening
# How much of an answer of the tiny model must be as it is alone, place by place. Measured: all of it where each slot
# has a cache of its own, whatever runs beside it or was reused. In one shared cache the order of cells depends on what
# was there before, and sums round otherwise: of the server alone up to 4 of 78 answers differ, by 3 to 32 % of their
# letters, and 2 even one after another. The text of another conversation would agree by chance only: by about 15 %.
OWN_CACHE = 1.0
SHARED_CACHE = 0.5
PATIENCE = 300.0  # seconds for one answer


@dataclass(frozen=True, slots=True)
class Answer:
    """`finish` is why it ended, `tokens` its length."""

    finish: str | None
    tokens: int | None
    text: str


def compared(cell: Cell, name: str, seed: int, session: int) -> Answers:
    """Play a chat cell by the side `name` and compare every answer with an uncached one."""
    model = MODELS[cell.model]()
    with (
        start(model, FLAGS[cell.flags], cell.build) as server,
        side(name, server, model) as before,
        in_time(server, LIMIT_S[cell.model]),
    ):
        run = TRAFFIC[cell.scenario].start(seed, reply_tokens=cell.reply, scale=cell.scale)
        played = play(run, before.url, "chat", at_a_time=cell.at_once)
        steered = before.steered(len(played))
    with start(model, FLAGS[cell.flags], cell.build) as fresh:
        pairs = [(one, uncached(one.request, fresh)) for one in played if one.request.n == 1 and not one.aborted]
    least = agreement_wanted(cell)
    names = {found for one in played for found in markers(one.request)}
    return Answers(
        cell=cell,
        side=name,
        seed=seed,
        session=session,
        compared=len(pairs),
        differ=sum(one.reply_text != reference.text for one, reference in pairs),
        damaged=[line for one, reference in pairs for line in damage(one, reference, names, least)],
        steered=steered,
    )


def agreement_wanted(cell: Cell) -> float:
    """The share of an answer that must be as it is alone. A real model may go on quite differently after a rounding."""
    flags = FLAGS[cell.flags]
    shared = flags.n_parallel is None if flags.kv_unified is None else flags.kv_unified
    return 0.0 if cell.model != "tiny" else SHARED_CACHE if shared else OWN_CACHE


def agreement(one: str, other: str) -> float:
    """The share of equal letters, place by place; 1 where both are empty."""
    return sum(map(str.__eq__, one, other)) / max(len(one), len(other), 1) if one or other else 1.0


def uncached(request: Request, server: LlamaServer) -> Answer:
    """The answer that the server gives where nothing is reused and nothing runs beside it."""
    body = chat(request) | {"cache_prompt": False}
    with requests.Session() as session:
        session.trust_env = False
        answer = session.post(f"{server.url}/v1/chat/completions", json=body, timeout=PATIENCE).json()
    choice = answer["choices"][0]
    return Answer(choice["finish_reason"], answer["usage"]["completion_tokens"], choice["message"]["content"] or "")


def markers(request: Request) -> set[str]:
    """The names of the conversations that a prompt speaks of."""
    return {name for message in request.messages for name in MARKER.findall(str(message["content"]))}


def damage(one: Played, reference: Answer, names: set[str], least: float) -> Iterator[str]:
    """What is wrong with an answer, beside the uncached one.

    At `least` that share of the text must agree. Where texts differ, an end by itself may come elsewhere too: only an
    answer that is the other's, as far as it goes, must end as that does.
    """
    who = f"{one.request.session} ({one.request.kind})"
    if one.status != 200 or one.finish is None:
        yield f"{who}: status {one.status}, no regular end"
        return
    if agreement(one.reply_text, reference.text) < least:
        yield f"{who}: {one.reply_text!r}, alone {reference.text!r}"
    if reference.text.startswith(one.reply_text) and one.finish != reference.finish:
        yield f"{who}: ended by {one.finish!r} after {one.reply_tokens} tokens, alone by {reference.finish!r}"
    if one.finish == "length" and one.reply_tokens != one.request.max_tokens:
        yield f"{who}: {one.reply_tokens} tokens where {one.request.max_tokens} were wanted"
    for name in sorted(names - markers(one.request)):
        mention = re.compile(rf"(?<![\w/-]){re.escape(name)}(?![\w/-])")
        if mention.search(one.reply_text) and not mention.search(reference.text):
            yield f"{who}: speaks of the conversation {name!r}"


def cells() -> Iterator[Cell]:
    """Where a pin or a swap could meet a busy slot: several at once, with answers that take a while."""
    for (model, scale), flags, build in product((("tiny", 0.3), ("SmolLM2", 0.06)), ("default", "-np 4", KEPT), BUILDS):
        for scenario in ("shared-preamble", "claude-code"):
            yield Cell(model=model, build=build, flags=flags, scenario=scenario, at_once=4, reply=40, scale=scale)
