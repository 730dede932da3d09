"""What the live tests of /v1/messages and /v1/responses share: loud servers and three comparisons.

Both shapes are converted in toki as the server converts them, so each holds the two against each other: the
length that the server counts, the chat body that it logs, and the tokens that it finds in its slot.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import requests
from tests.endpoints.corpus import DIRECTORY

from servers import BUILDS
from servers import Build
from servers import Flags
from servers import LlamaServer
from servers import gemma3
from servers import smollm2
from servers import start
from servers import tiny_model
from servers import tiny_projector
from toki.answer import AnswerReader
from toki.endpoints import match
from toki.endpoints.conversion import dump
from toki.endpoints.question import Endpoint
from toki.engine.events import Measured
from toki.prompt import PromptReader
from toki.prompt import UnreadablePrompt
from toki.server import Auth
from toki.server import LlamaServerBackend
from toki.server import ServerError

LOGGED_WITHIN = 5.0  # seconds
TOOLS_FIRST = (DIRECTORY / "templates" / "tools_first.jinja").read_text(encoding="utf-8")
PATIENCE = 60.0  # seconds for one call
NOBODY = Auth(None, None)

Body = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoudFlags(Flags):
    """At this verbosity the server logs what it converted each body to."""

    verbosity: int | None = field(default=5, metadata={"param": "verbosity", "on": "--verbosity", "off": ""})


# One slot and no RAM cache: what a request reuses is what the one before it left.
ALONE = LoudFlags(n_parallel=1, n_ctx=8192, cache_ram_mib=0)
TINY = replace(ALONE, chat_template=TOOLS_FIRST, mmproj=str(tiny_projector()))
# With a whole cache the sliding window reuses a prompt up to its last token, as any other model does.
SERVERS: list[tuple[Build, Callable[[], Path], Flags]] = [
    (build, model, flags)
    for build in BUILDS
    for model, flags in ((tiny_model, TINY), (smollm2, ALONE), (gemma3, replace(ALONE, swa_full=True)))
]


@pytest.fixture(scope="module", params=SERVERS, ids=lambda given: f"{given[0]}-{given[1].__name__}")
def server(request: pytest.FixtureRequest) -> Iterator[LlamaServer]:
    """Each build with each model; the tiny one with a template that shows all of a request, tools first."""
    build, model, flags = request.param
    with start(model(), flags, build) as running:
        yield running


@pytest.fixture(scope="module", params=BUILDS)
def tiny(request: pytest.FixtureRequest) -> Iterator[LlamaServer]:
    """Each build with the tiny model and the template that shows all of a request."""
    with start(tiny_model(), TINY, request.param) as running:
        yield running


@pytest.fixture(scope="module", params=BUILDS)
def two_slots(request: pytest.FixtureRequest) -> Iterator[LlamaServer]:
    flags = Flags(n_parallel=2, kv_unified=False, n_ctx=4096, cache_ram_mib=0)
    with start(tiny_model(), flags, request.param) as running:
        yield running


def endpoint(path: str) -> Endpoint:
    found = match("POST", path)
    assert found is not None
    return found


def post(server: LlamaServer, path: str, body: Mapping[str, Any]) -> requests.Response:
    # A kept connection may break between two answers (a stream was answered on it): each request takes a new one.
    return requests.post(server.url + path, json=body, headers={"Connection": "close"}, timeout=PATIENCE)


def counted(server: LlamaServer, path: str, body: Body) -> int | None:
    """The server's own count of the prompt; None where it refuses the body."""
    answer = post(server, endpoint(path).read(body).count_path, body)
    if answer.status_code != 200:
        return None
    tokens: int = answer.json()["input_tokens"]
    return tokens


def read(server: LlamaServer, path: str, body: Body) -> npt.NDArray[np.int32] | None:
    """The tokens of the prompt as toki reads them; None where it can't, or the server refuses the converted body."""
    reader = _reader(server.url)
    try:
        return reader.read(endpoint(path).read(body), b"", NOBODY, time.monotonic() + PATIENCE).ids
    except UnreadablePrompt:
        return None
    except ServerError as error:
        if error.status is None:
            raise
        return None


@cache
def _reader(url: str) -> PromptReader:
    """One for each server: what was proved of its tokenizer holds for all prompts."""
    return PromptReader(LlamaServerBackend(url))


def asked(server: LlamaServer, path: str, body: Body) -> Measured | None:
    """What the answer to `body` shows, read as toki reads it; None where it is an error."""
    answer = post(server, path, body)
    if answer.status_code != 200:
        return None
    reader = AnswerReader(endpoint(path).meter(), answer.headers["Content-Type"], "")
    reader.feed(answer.content)
    reader.finish()
    return reader.measured(finished=True)


def logged(server: LlamaServer, wanted: str) -> str | None:
    """The last body that the server logged as converted, as one line of JSON: `wanted`, or what it is after a while,
    since llama-server logs in a thread of its own."""
    deadline = time.monotonic() + LOGGED_WITHIN
    while True:
        lines = re.findall(r"converted request: (.*)", server.log.read_text(encoding="utf-8", errors="replace"))
        last = lines[-1] if lines else None
        if last == wanted or time.monotonic() > deadline:
            return last
        time.sleep(0.01)


def lengths(server: LlamaServer, path: str, bodies: Mapping[str, Body]) -> dict[str, tuple[int | None, int | None]]:
    """The length of each body's prompt, first as read, then as the server counts it; None where it can't be had."""
    found = {}
    for name, body in bodies.items():
        tokens = read(server, path, body)
        found[name] = (None if tokens is None else len(tokens), counted(server, path, body))
    return found


def misread(
    server: LlamaServer,
    path: str,
    bodies: Mapping[str, Body],
    to_chat: Callable[[Body], Body],
    dropped: tuple[str, ...],
) -> dict[str, object]:
    """The bodies whose answer counts other prompt tokens than were read, or that the server converted to another chat.

    `dropped`: keys of the converted body that the server's own has not.
    """
    found: dict[str, object] = {}
    for name, body in bodies.items():
        tokens, measured = read(server, path, body), asked(server, path, body)
        length = None if tokens is None else len(tokens)
        if (measured and measured.prompt_tokens) != length:
            found[name] = (length, measured)
        elif tokens is not None:
            mine = dump({key: value for key, value in to_chat(body).items() if key not in dropped})
            theirs = logged(server, mine)
            if mine != theirs:
                found[name] = (mine, theirs)
    return found


def not_found(server: LlamaServer, path: str, bodies: Mapping[str, Body]) -> dict[str, object]:
    """The bodies that need more than their last token after the tokens that were read were put into the only slot.

    The last one is evaluated again, always: its logits are needed.
    """
    found: dict[str, object] = {}
    for name, body in bodies.items():
        tokens = read(server, path, body)
        ids = [] if tokens is None else tokens.tolist()
        primer = post(server, "/completion", {"prompt": ids, "n_predict": 0}).json()
        measured = asked(server, path, body)
        if measured is None or (measured.reused, measured.evaluated) != (len(ids) - 1, 1):
            found[name] = (len(ids), primer, measured)
    return found


def check_figures_and_text(server: LlamaServer, path: str, body: Body) -> None:
    """`body` asks for eight tokens; asked twice, its second answer shows that all of the prompt was there."""
    first, second = asked(server, path, body), asked(server, path, body)
    assert first is not None
    assert second is not None
    assert first.evaluated != 1  # the slot held another prompt
    assert first.prompt_tokens == second.prompt_tokens
    assert (second.evaluated, second.reply_tokens) == (1, 8)
    assert second.reply_text is not None
    assert len(second.reply_text) == 8  # the tiny model answers in capitals, one a token


def check_whether_a_slot_is_honoured(server: LlamaServer, path: str, body: Body) -> None:
    """Of two slots the one that was not taken is asked for."""
    alone = taken(server, path, body)
    other = taken(server, path, {**body, "id_slot": 1 - alone})
    assert (other != alone) is endpoint(path).read(body).honours_slot


def taken(server: LlamaServer, path: str, body: Body) -> int:
    """The slot that `body` was put on."""

    def tasks() -> dict[int, int | None]:
        slots = requests.get(f"{server.url}/slots", timeout=PATIENCE).json()
        return {slot["id"]: slot.get("id_task") for slot in slots}

    before = tasks()
    assert asked(server, path, body) is not None
    (slot,) = (slot for slot, task in tasks().items() if task != before[slot])
    return slot
