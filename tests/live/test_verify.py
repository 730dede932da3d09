"""toki_verify against real servers: an answer is asked for again, and no slot loses anything by it."""

from __future__ import annotations

import json
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import requests
from tests.live.conftest import Llama

from proxy import mitmdump
from proxy import rows
from proxy import rows_of
from servers import Build
from servers import tiny_adapters
from toki.cli import main
from toki.inspect.texts import common_prefix

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
    # The flags of one build can't be read. Until a look has shown that the launch of the check cleared no slot, toki
    # would think that it did, and might fetch the conversation from RAM.
    with mitmdump(server.url, options={"toki_verify": "1", "toki_server_flags": "-np 4"}) as proxy:
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
        assert (last["action"], last["slot"]) == ("passed", before["slot"]), "it is still where it was"
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


def test_a_cache_that_changes_what_is_said_is_warned_of(
    fresh_llama: Llama, build: Build, capsys: pytest.CaptureFixture[str]
) -> None:
    """Adapters that are switched off behind toki's back: what was evaluated under them is reused all the same."""
    adapters = ",".join(map(str, tiny_adapters()))
    server = fresh_llama(build=build, n_parallel=4, kv_unified=False, lora=adapters)
    with mitmdump(server.url, options={"toki_verify": "1"}) as proxy:
        text = "an old song about a ship that never came home " * 20
        for turn in range(4):
            ask(proxy.url, text)
            text += f" and the {turn} sailors who waited for it"
        assert checks(proxy.db, 1)[0]["divergence"] == "identical"
        off = [{"id": 0, "scale": 0.0}, {"id": 1, "scale": 0.0}]
        requests.post(f"{server.url}/lora-adapters", json=off, timeout=10).raise_for_status()
        stale = ask(proxy.url, text)["content"]
        last = checks(proxy.db, 2)[-1]
        anew = ask(server.url, text, cache_prompt=False)["content"]
        assert stale != anew, "the server is at fault, which this test rests on"
        assert (last["request"], last["divergence"]) == (5, "substantive")
        assert last["common"] == common_prefix(stale, anew)
        assert "an answer of /completion says something else without the server's cache" in proxy.said()
        assert main(["report", "--db", str(proxy.db)]) == 1
        assert "- 1 of 2 checked answers say something else" in capsys.readouterr().out
        main(["doctor", server.url, "--yes", "--db", str(proxy.db)])
        assert "note: answers say something else without its cache: 1 of 2 " in capsys.readouterr().out
