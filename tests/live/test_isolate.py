"""Two API keys on real servers: what one sends the other does not find (`toki_isolate`), by the servers' own words."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from dataclasses import field
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.engine.literal import common_prefix
from tests.live.wire import Mitmdump
from tests.live.wire import ask
from tests.live.wire import mitmdump
from tests.live.wire import request
from tests.live.wire import until

from servers import Flags
from servers import start
from servers import tiny_model

KEYS = ("one", "two")
SETS = {
    "default": Flags(n_ctx=16384, api_key=",".join(KEYS)),
    "np 4, cram 0": Flags(n_parallel=4, n_ctx=16384, kv_unified=False, cache_ram_mib=0, api_key=",".join(KEYS)),
}


@dataclass
class Shop:
    """A proxy before a server of its own, and what each key has left there."""

    proxy: Mitmdump
    left: dict[str, list[list[int]]] = field(default_factory=lambda: {key: [] for key in KEYS})

    def send(self, key: str, prompt: list[int], **more: Any) -> dict[str, Any]:
        """A request that is its key's; its row."""
        body = {"prompt": prompt, "n_predict": 3, "temperature": 0, "return_tokens": True, **more}
        answer = self._post("/completion", body, key)
        row = self.row()
        assert row["reused"] == answer["timings"]["cache_n"]
        self.left[key].append(prompt + answer["tokens"])
        return row

    def message(self, key: str, text: str) -> dict[str, Any]:
        """The same on an endpoint that passes neither id_slot nor cache_prompt on."""
        self._post("/v1/messages", {"messages": [{"role": "user", "content": text}], "max_tokens": 2}, key)
        return self.row()

    def own(self, key: str, prompt: list[int]) -> int:
        """How much of a prompt its own key's requests have left."""
        return max((common_prefix(one, prompt) for one in self.left[key]), default=0)

    def row(self) -> dict[str, Any]:
        self.sent += 1
        until(lambda: len(self.proxy.rows()) == self.sent)
        return self.proxy.rows()[-1]

    sent: int = 0

    def _post(self, path: str, body: dict[str, Any], key: str) -> Any:
        headers = f"Authorization: Bearer {key}\r\n"
        answer = ask(self.proxy.port, request(path, json.dumps(body).encode(), headers=headers))
        assert answer.first.endswith("200 OK"), answer
        return json.loads(answer.body)


@pytest.fixture
def shop(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Shop]:
    flags, isolate = request.param
    with start(tiny_model(), flags) as server:
        port = server.port
        with mitmdump(port, tmp_path / "proxy", toki_isolate=isolate, toki_deadline_ms="10000") as proxy:
            yield Shop(proxy)


def some(random: Random, n: int) -> list[int]:
    return [random.randrange(100, 300) for _ in range(n)]


@pytest.mark.parametrize("shop", [(flags, "key") for flags in SETS.values()], ids=list(SETS), indirect=True)
def test_no_request_finds_what_another_key_left(shop: Shop) -> None:
    random = Random(1)
    texts = [some(random, 300)]
    actions = set()
    for n in range(60):
        key = random.choice(KEYS)
        source = random.choice(texts[-6:])  # whoever sent it
        prompt = source[: random.choice([len(source), len(source) // 2, 40])] + some(random, random.randrange(1, 60))
        own = shop.own(key, prompt)
        row = shop.send(key, prompt)
        assert row["reused"] <= own, (n, row)
        actions.add(row["action"])
        texts.append(prompt)
    rows = shop.proxy.rows()
    assert "isolated" in actions or "pinned" in actions
    assert sum(row["reused"] for row in rows) > 1000, "each finds its own"
    # What it has learnt is right: with the keys apart the server does as predicted.
    late = [row for row in rows[-30:] if row["predicted"] is not None]
    assert len([row for row in late if abs(row["predicted"] - row["reused"]) <= 3]) >= 0.9 * len(late)

    guess = some(random, 400)
    shop.send("one", guess)
    assert shop.send("two", guess)["reused"] == 0
    assert shop.send("two", [*guess, 5])["reused"] >= len(guess), "by then it is its own"


@pytest.mark.parametrize("shop", [(SETS["default"], "key")], ids=["default"], indirect=True)
def test_where_no_key_is_passed_on_a_primer_keeps_messages_apart(shop: Shop) -> None:
    random = Random(2)
    for n in range(6):  # until it trusts what it predicts
        shop.send(KEYS[n % 2], some(random, 60))
        shop.send(KEYS[n % 2], [*shop.left[KEYS[n % 2]][-1], 7])
    text = " ".join(str(random.randrange(1000)) for _ in range(150))
    first = shop.message("one", text)
    assert first["evaluated"] > 150
    second = shop.message("two", text)
    assert second["action"] == "primed", second
    (primer,) = shop.proxy.rows(table="own_requests WHERE purpose = 'primer'")[-1:]
    assert primer["reused"] < 40, "a primer of its own has evaluated what the other key had sent, too"


@pytest.mark.parametrize("shop", [(SETS["default"], "off")], ids=["off"], indirect=True)
def test_else_the_server_shows_what_another_key_sent(shop: Shop) -> None:
    guess = some(Random(3), 400)
    shop.send("one", guess)
    assert shop.send("two", guess)["reused"] == len(guess) - 1
