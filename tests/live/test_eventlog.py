"""An event log of real traffic replays to the same decisions, and shows nothing of it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest
from tests.live.conftest import Llama

from play import play
from proxy import Proxy
from proxy import mitmdump
from proxy import rows_of
from replay import replay
from toki.engine.events import Arrived
from toki.engine.events import Gone
from toki.engine.events import Read
from toki.engine.events import Replied
from toki.eventlog import Heard
from toki.eventlog import read
from traffic import MIXED
from traffic import Request
from traffic import Run
from traffic.request import natural
from traffic.scenario import Stage

ENGINE = Path(__file__).resolve().parents[2] / "addon" / "toki" / "engine"
REQUESTS = 70
KEY = "sk-a-key-that-is-nobodys-business"
MODEL = "a-name-that-the-client-chose"


class Some(Run):
    """The first requests of a run; notes what they say."""

    def __init__(self, seed: int) -> None:
        super().__init__(MIXED.scripts(Stage(seed, 8, 0.5)), MIXED.order, seed)
        self.taken: list[Request] = []

    def take(self) -> Request | None:
        request = super().take() if len(self.taken) < REQUESTS else None
        if request is not None:
            self.taken.append(request)
        return request


class Logged:
    """What was sent, and the log of it."""

    def __init__(self, said: str, log: bytes, reasons: list[str]) -> None:
        self.said = said
        self.log = log
        self.reasons = reasons

    def events(self) -> list[Any]:
        return [entry.event for entry in read(self.log.splitlines()) if isinstance(entry, Heard)]


@pytest.fixture(scope="module", params=["auto", "pin"])
def logged(request: pytest.FixtureRequest, llama: Llama, tmp_path_factory: pytest.TempPathFactory) -> Logged:
    path = tmp_path_factory.mktemp("log") / "events"
    run = Some(seed=3)
    server = llama(n_parallel=3, n_ctx=24_576)
    with mitmdump(server.url, options={"toki_log_events": str(path), "toki_mode": request.param}) as proxy:
        # Alone first, so that toki learns the server and steers; then four at once.
        played = [*play(run, proxy.url), *play(Some(seed=4), proxy.url, at_a_time=4)]
        extra = list(odd_requests(proxy))
        rows = rows_of(proxy.db, len(played) + len(extra))
    said = json.dumps([natural(each.request) for each in played]) + "".join(each.reply_text for each in played)
    return Logged(said + "".join(extra), path.read_bytes(), [row["reason"] for row in rows])


def odd_requests(proxy: Proxy) -> Iterator[str]:
    """Send what brings a client's own words into errors, names and headers; the bodies."""
    target = urlsplit(proxy.url)
    assert target.hostname
    for body in (
        '{"prompt": "Obstreperous marmalade", "n_predict": 1, "model": "' + MODEL + '"}',
        '{"prompt": "Obstreperous marmalade", "n_predict": 1, "lora": [{"id": 12345, "scale": 0.5}]}',
        '{"messages": "Obstreperous marmalade"}',
        '{"prompt": Obstreperous marmalade}',
    ):
        with closing(HTTPConnection(target.hostname, target.port, timeout=60)) as connection:
            path = "/v1/chat/completions" if "messages" in body else "/completion"
            connection.request("POST", path, body, {"Authorization": f"Bearer {KEY}"})
            connection.getresponse().read()
        yield body


def test_a_log_replays_to_the_same_decisions(logged: Logged) -> None:
    replayed = replay(logged.log.splitlines())
    assert replayed.difference == ""
    assert replayed.engines == 1
    assert replayed.events > 6 * REQUESTS


def test_the_log_holds_all_kinds_of_life(logged: Logged) -> None:
    events = logged.events()
    asks = [event.ask for event in events if isinstance(event, Arrived)]
    assert len({event.key for event in events if isinstance(event, Arrived)}) == 2 * REQUESTS + 4
    assert len(asks) >= 2 * REQUESTS + 4  # one that waits for others comes again
    assert {ask.stream for ask in asks} == {True, False}
    assert any(isinstance(event, Gone) for event in events)
    assert any(isinstance(event, Replied) for event in events)
    assert any(ask.vector is not None for ask in asks)
    assert any(reason.startswith("slot ") for reason in logged.reasons)  # toki has steered


def test_the_log_has_no_word_of_prompts_or_replies(logged: Logged) -> None:
    own = "".join(path.read_text(encoding="utf-8") for path in ENGINE.glob("*.py"))
    words = {word for word in re.findall(r"[A-Za-z]{4,}", logged.said) if word not in own}
    assert len(words) > 250
    assert {"Obstreperous", "marmalade"} <= words
    # Hashes may spell a short word by chance.
    plain = re.sub(r'"(more|ids|vector)":"[^"]*"|"text-[0-9a-f]{16}"', "", logged.log.decode("ascii"))
    ours = {"completions", "null"}  # of the endpoints' names and of JSON
    assert words & {*re.findall(r"[A-Za-z]{4,}", plain)} - ours == set()
    for secret in (KEY, MODEL, "Bearer", "Obstreperous", "marmalade"):
        assert secret.encode() not in logged.log


def test_the_log_has_no_token_ids(logged: Logged) -> None:
    """The model has 32,000 of them at most: hashes are as small only by chance, once in 65,000."""
    events = logged.events()
    lists = [e.ask.tokens.ids for e in events if isinstance(e, Arrived | Read) and e.ask.tokens is not None]
    lists += [event.ids for event in events if isinstance(event, Replied)]
    values = np.concatenate(lists)
    assert len(values) > 20_000
    assert (values < 32_768).mean() < 0.001


def test_a_request_costs_little(logged: Logged) -> None:
    assert len(logged.log) / (2 * REQUESTS + 4) < 6_000  # bytes
