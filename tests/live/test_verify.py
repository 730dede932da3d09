"""toki_verify against real servers: an answer is asked for again, and no slot loses anything by it."""

from __future__ import annotations

import json
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import requests
from tests.live.conftest import Llama

from proxy import mitmdump
from proxy import rows
from proxy import rows_of
from servers import Build

PATIENCE = 30.0


def ask(url: str, prompt: str, **more: Any) -> dict[str, Any]:
    body = {"prompt": prompt, "n_predict": 8, "temperature": 0, **more}
    answer = requests.post(f"{url}/completion", data=json.dumps(body), timeout=60)
    answer.raise_for_status()
    found: dict[str, Any] = answer.json()
    return found


def checks(db: Path, number: int) -> list[dict[str, Any]]:
    """The table of checks, once it has `number` rows."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        with closing(sqlite3.connect(db)) as connection:
            connection.row_factory = sqlite3.Row
            found = [dict(row) for row in connection.execute("SELECT * FROM checks ORDER BY id")]
        if len(found) >= number:
            return found
        time.sleep(0.05)
    raise TimeoutError(f"{len(found)} checks, {number} expected")


def test_an_answer_is_checked_and_its_conversation_stays_where_it_is(fresh_llama: Llama, build: Build) -> None:
    server = fresh_llama(build=build, n_parallel=4, kv_unified=False)
    with mitmdump(server.url, options={"toki_verify": "1"}) as proxy:
        text = "the quick brown fox jumps over the lazy dog " * 20
        for turn in range(4):  # toki trusts its model after three
            ask(proxy.url, text)
            text += f" and then it sleeps for {turn} hours under a tree"
        found = checks(proxy.db, 1)
        assert found[0]["divergence"] == "identical"
        checked = rows_of(proxy.db, 4)[found[0]["request"] - 1]
        assert found[0]["evaluated"] == checked["prompt_tokens"]
        ask(proxy.url, text)
        before, last = rows_of(proxy.db, 5)[-2:]
        assert last["reused"] >= before["prompt_tokens"], "the slot of the conversation lost nothing"
        assert last["parent"] == 4, "a check is no request of anyone's"
        assert last["conversation"] == rows(proxy.db)[0]["conversation"]


def test_what_need_not_be_equal_is_not_checked(fresh_llama: Llama) -> None:
    server = fresh_llama(n_parallel=4, kv_unified=False)
    with mitmdump(server.url, options={"toki_verify": "1"}) as proxy:
        text = "a long walk along the river in the rain " * 20
        for turn in range(4):
            ask(proxy.url, text, temperature=0.8)
            text += f" and home again at {turn} in the evening"
        ask(proxy.url, text, temperature=0.8, seed=7)  # the first that can be compared
        found = checks(proxy.db, 1)
        assert [one["request"] for one in found] == [5]
