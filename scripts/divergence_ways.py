"""The ways of asking that scripts/divergence.py compares: each sends the same requests and keeps the answers.

A pass is some of the prompts, one way, at one temperature, on a server started for it. All ways get the same bytes,
but that `fresh` adds `"cache_prompt": false` and `restore` names its slot.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import astuple
from dataclasses import dataclass
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import requests

from divergence_prompts import Prompt
from proxy import mitmdump
from proxy import rows_of
from servers import Build
from servers import Flags
from servers import gemma3
from servers import plain
from servers import smollm2
from servers import start
from toki.server import Auth
from toki.server import LlamaServerBackend

MODELS: dict[str, Callable[[], Path]] = {
    "smollm2": smollm2,
    "gemma3": gemma3,
    "smollm2-f16": lambda: plain(smollm2()),
}
WAYS = {  # what tells most comes first
    "fresh": "no cache: cache_prompt false, one at a time",
    "alone": "the server alone, one at a time",
    "toki": "toki, one at a time",
    "restore": "slot saved after each request and restored before the next of its group, one at a time",
    "toki-4": "toki, 4 at once",
    "alone-4": "the server alone, 4 at once",
    "alone-cram0": "the server alone without its RAM cache (--cache-ram 0), one at a time",
    "toki-cram0": "toki before such a server, one at a time: there it has something to steer",
}
LENGTHS = {"json": 32, "tools": 32}  # tokens of an answer; an object must have the room to end
LENGTH = 16
N_CTX = 8192
ERROR = "error"  # the finish of an answer that is the server's error
TIMEOUT = 600.0  # seconds for one answer
UNHURRIED = "10000"  # ms for toki's look-ups: a busy machine must not make it pass a request unread


@dataclass(frozen=True, slots=True)
class Pass:
    """What was asked how. `number` (1 or 2) tells two passes of a kind apart, `part` says which prompts."""

    model: str
    build: Build
    way: str
    temperature: float
    number: int
    part: int

    @property
    def name(self) -> str:
        return "-".join(map(str, astuple(self)))


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer. `tokens`: text and log-probability of each sampled token, and by how much the best one led.

    `action`: what toki did with the request; None where it went by no toki.
    """

    prompt: str
    kind: str
    text: str
    finish: str
    reused: int
    evaluated: int
    tokens: Sequence[tuple[str, float, float]]
    action: str | None = None


def run(one: Pass, prompts: Sequence[Prompt]) -> list[Answer]:
    """Send `prompts` in their order; answers in the same order.

    Raises RuntimeError where a server does not start and requests' own exceptions where an answer does not come.
    """
    at_once = 4 if one.way.endswith("-4") else 1
    with _entrance(one) as (url, saved, db):
        backend = LlamaServerBackend(url)
        with ThreadPoolExecutor(at_once) as pool, requests.Session() as session:
            session.trust_env = False

            def ask(prompt: Prompt) -> Answer:
                if saved is None:
                    return _ask(session, url, one, prompt)
                return _restored(session, url, one, prompt, backend, saved)

            answers = list(pool.map(ask, prompts))
        return answers if db is None else with_actions(answers, rows_of(db, len(prompts)))


def with_actions(answers: Sequence[Answer], rows: Sequence[dict[str, Any]]) -> list[Answer]:
    """Each answer with the action of its row: the first one left with its figures, for rows name no prompt.

    Raises ValueError where an answer has none.
    """
    left = list(rows)
    found = []
    for answer in answers:
        figures = (None, None) if answer.finish == ERROR else (answer.reused, answer.evaluated)
        place = next((n for n, row in enumerate(left) if (row["reused"], row["evaluated"]) == figures), None)
        if place is None:
            raise ValueError(f"{answer.prompt}: no row with {figures[0]} reused and {figures[1]} evaluated tokens")
        found.append(replace(answer, action=left.pop(place)["action"]))
    return found


@contextmanager
def _entrance(one: Pass) -> Iterator[tuple[str, Path | None, Path | None]]:
    """Where requests go; for `restore` the folder that slots are saved in, for toki its database."""
    model = MODELS[one.model]()
    if one.way == "restore":
        with TemporaryDirectory(prefix="slots-") as name:
            flags = Flags(n_ctx=N_CTX, n_parallel=1, cache_ram_mib=0, slot_save_path=name)
            with start(model, flags, one.build) as server:
                yield server.url, Path(name), None
        return
    flags = Flags(n_ctx=N_CTX, cache_ram_mib=0 if one.way.endswith("-cram0") else None)
    with start(model, flags, one.build) as server:
        if one.way.startswith("toki"):
            with mitmdump(server.url, options={"toki_deadline_ms": UNHURRIED}) as proxy:
                yield proxy.url, None, proxy.db
        else:
            yield server.url, None, None


def _restored(
    session: requests.Session, url: str, one: Pass, prompt: Prompt, backend: LlamaServerBackend, saved: Path
) -> Answer:
    file = f"{prompt.group}.bin"
    backend.cache_erase(0, Auth(), TIMEOUT)
    if (saved / file).exists():
        backend.cache_load(0, file, Auth(), TIMEOUT)
    answer = _ask(session, url, one, prompt)
    backend.cache_save(0, file, Auth(), TIMEOUT)
    return answer


def _ask(session: requests.Session, url: str, one: Pass, prompt: Prompt) -> Answer:
    reply = session.post(f"{url}/v1/chat/completions", data=body(one, prompt), timeout=TIMEOUT)
    if reply.status_code == 500:  # a tool call that the server could not read: what was sampled is an answer too
        return failed(prompt, reply.json())
    reply.raise_for_status()
    return answer_of(prompt, reply.json())


def body(one: Pass, prompt: Prompt) -> bytes:
    """The request. The seed depends on the prompt alone, so that each way draws the same numbers."""
    seed = int.from_bytes(hashlib.sha256(prompt.name.encode()).digest()[:4], "big")
    asked: dict[str, Any] = {
        "messages": list(prompt.messages),
        "max_tokens": LENGTHS.get(prompt.kind, LENGTH),
        "temperature": one.temperature,
        "seed": seed,
        "logprobs": True,
        "top_logprobs": 2,
        **prompt.extra,
    }
    if one.way == "fresh":
        asked["cache_prompt"] = False
    if one.way == "restore":
        asked["id_slot"] = 0
    return json.dumps(asked, ensure_ascii=False).encode()


def failed(prompt: Prompt, reply: dict[str, Any]) -> Answer:
    """The answer of a server that generated what it then could not parse: its message, and no figures."""
    return Answer(prompt.name, prompt.kind, str(reply["error"]["message"]), ERROR, reused=0, evaluated=0, tokens=())


def answer_of(prompt: Prompt, reply: dict[str, Any]) -> Answer:
    """What a reply of /v1/chat/completions says: the text that a client sees, tool calls included, and the figures."""
    choice, timings = reply["choices"][0], reply["timings"]
    message = choice["message"]
    parts = [message.get("reasoning_content") or "", message.get("content") or ""]
    for call in message.get("tool_calls") or ():
        parts.append(json.dumps({"name": call["function"]["name"], "arguments": call["function"]["arguments"]}))
    tokens = []
    for token in (choice.get("logprobs") or {}).get("content") or ():
        best = sorted((entry["logprob"] for entry in token["top_logprobs"]), reverse=True)
        tokens.append((token["token"], token["logprob"], best[0] - best[1] if len(best) > 1 else float("inf")))
    return Answer(
        prompt=prompt.name,
        kind=prompt.kind,
        text="\n".join(filter(None, parts)),
        finish=str(choice["finish_reason"]),
        reused=timings["cache_n"],
        evaluated=timings["prompt_n"],
        tokens=tokens,
    )
