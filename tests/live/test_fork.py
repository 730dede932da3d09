"""Questions on one document that come at once: through toki the server evaluates the document once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
import requests
from tests.live.conftest import Llama

from benchmark.measure import evaluated_tokens
from proxy import mitmdump
from proxy import rows_of
from servers import Build

CHAT = "/v1/chat/completions"
DOCUMENT = " ".join(f"line {n} of the document says {n * n % 997}" for n in range(250))
OPTIONS = {"toki_deadline_ms": "10000"}  # a busy machine must not make it pass them unread


def ask(url: str, number: int, stream: bool, question: str = "Question") -> int:
    """One question; the status of its answer."""
    messages = [{"role": "system", "content": DOCUMENT}, {"role": "user", "content": f"{question} {number}: what?"}]
    body: dict[str, Any] = {"messages": messages, "max_tokens": 8, "temperature": 0, "stream": stream}
    with requests.Session() as session:
        session.trust_env = False
        answer = session.post(f"{url}{CHAT}", json=body)
        assert answer.content
        return answer.status_code


@pytest.mark.parametrize(
    ("build", "flags"),
    [
        ("skulk", {"n_parallel": 4}),
        ("xllamacpp", {}),
        ("skulk", {"n_parallel": 16, "kv_unified": True, "cache_idle_slots": False}),
    ],
    ids=["-np 4", "default", "-np 16 -kvu --no-cache-idle-slots"],
)
def test_a_document_is_evaluated_once(fresh_llama: Llama, build: Build, flags: dict[str, Any]) -> None:
    server = fresh_llama(build=build, metrics=True, **flags)
    with mitmdump(server.url, options=OPTIONS) as proxy, ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda number: ask(proxy.url, number, stream=number % 2 == 0), range(1, 5))) == [200] * 4
        rows = rows_of(proxy.db, 4)
    whole = rows[0]["prompt_tokens"]
    assert whole > 2000
    assert [row["action"] for row in rows] == ["forked"] * 4
    assert sum(row["evaluated"] for row in rows) < 0.1 * whole
    assert all(row["predicted"] == row["reused"] >= 0.9 * whole for row in rows)
    assert evaluated_tokens(server.url) < 1.1 * whole  # primers included: the server alone evaluates it four times


def test_a_sliding_window_can_be_gone_back_to_behind_a_fork(fresh_llama: Llama) -> None:
    """Copies from the RAM cache hold but the window before their end, and this build thins checkpoints out."""
    server = fresh_llama("tiny-window", "skulk", n_parallel=4, metrics=True)
    with mitmdump(server.url, options=OPTIONS) as proxy, ThreadPoolExecutor(4) as pool:
        for question in ("Please tell me what the whole text says of number", "So"):
            asked = pool.map(partial(ask, proxy.url, stream=False, question=question), range(1, 5))
            assert list(asked) == [200] * 4
        rows = rows_of(proxy.db, 8)
    whole = rows[0]["prompt_tokens"]
    assert [row["action"] for row in rows[:4]] == ["forked"] * 4
    assert all(row["reused"] >= 0.9 * whole for row in rows)
    assert evaluated_tokens(server.url) < 1.5 * whole
