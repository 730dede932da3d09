"""Two chats in turn before a real server: their later turns are not held, and what is predicted of them is right."""

from __future__ import annotations

from typing import Any

import requests
from tests.live.conftest import Llama

from proxy import mitmdump
from proxy import rows_of
from toki.exchange import ONWARD

CHAT = "/v1/chat/completions"
TURNS = 5
OPTIONS = {"toki_deadline_ms": "10000"}  # a busy machine must not make it pass them unread


def test_later_turns_are_not_held(fresh_llama: Llama) -> None:
    server = fresh_llama(n_parallel=4)
    rules = "Answer in one sentence. " * 30
    chats = [[{"role": "system", "content": f"You are {name}. {rules}"}] for name in ("Ada", "Bob")]
    with mitmdump(server.url, options=OPTIONS) as proxy, requests.Session() as session:
        session.trust_env = False
        for turn in range(TURNS):
            for chat in chats:
                chat.append({"role": "user", "content": f"Question {turn}?"})
                body: dict[str, Any] = {"messages": chat, "max_tokens": 8, "temperature": 0}
                answer = session.post(f"{proxy.url}{CHAT}", json=body).json()
                rows_of(proxy.db, sum(one["role"] == "user" for each in chats for one in each))  # it is read, too
                chat.append(answer["choices"][0]["message"])
        rows = rows_of(proxy.db, TURNS * len(chats))
    later = rows[len(chats) :]
    assert [row["reason"] for row in later] == [ONWARD] * len(later)
    assert [row["predicted"] for row in rows] == [row["reused"] for row in rows]
    assert all(row["reused"] >= row["shared"] - 1 > 100 for row in later)
