"""A server that refuses what toki puts into a body: the client gets what it would have got directly, and once only."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from typing import Any

import pytest
import requests
from tests.answering import Answering
from tests.answering import answering
from tests.live.conftest import Llama

from proxy import mitmdump
from proxy import rows_of
from servers import HOST
from servers import LlamaServer

pytestmark = [pytest.mark.live, pytest.mark.proxy]

CHAT = "/v1/chat/completions"


class Strict:
    """What stands before a llama-server and refuses bodies with certain keys, as one with a schema of its own would."""

    def __init__(self) -> None:
        self.url = ""
        self.unknown = {"id_slot"}
        self.status = 400
        self.message = "unknown field: id_slot"
        self.asked: list[tuple[dict[str, Any], int]] = []  # bodies of chats, and how each was answered

    def statuses(self) -> list[int]:
        """How the chats since the last question were answered."""
        found = [status for _, status in self.asked]
        self.asked.clear()
        return found


@contextmanager
def strict(server: LlamaServer) -> Iterator[Strict]:
    found = Strict()

    class Handler(Answering):
        def do_GET(self) -> None:
            self._pass(b"")

        def do_POST(self) -> None:
            content = self.content()
            if self.path != CHAT:
                self._pass(content)
                return
            body = json.loads(content)
            if found.unknown & body.keys():
                found.asked.append((body, found.status))
                self.answer(found.status, json.dumps({"error": {"message": found.message}}).encode())
            else:
                found.asked.append((body, self._pass(content)))

        def _pass(self, content: bytes) -> int:
            connection = HTTPConnection(server.url.removeprefix("http://"))
            connection.request(self.command, self.path, content, dict(self.headers))
            answer = connection.getresponse()
            kept = {k.title(): v for k, v in answer.getheaders() if k.lower() in ("content-type", "x-accel-buffering")}
            self.answer(answer.status, answer.read(), **kept)
            connection.close()
            return answer.status

    with answering(Handler) as port:
        found.url = f"http://{HOST}:{port}"
        yield found


def body(turns: int, *, stream: bool = False, **more: Any) -> dict[str, Any]:
    """A growing chat."""
    messages = [{"role": "user", "content": f"message {n} " * 20} for n in range(turns)]
    return {"messages": messages, "max_tokens": 4, "temperature": 0, "seed": 1, "stream": stream, **more}


@pytest.mark.parametrize("ping_s", [0, 60], ids=["", "through the relay"])
def test_a_refused_lever_costs_the_client_nothing(fresh_llama: Llama, ping_s: int) -> None:
    given = {"toki_mode": "pin", "toki_server_flags": "-np 4", "toki_deadline_ms": "20000", "toki_ping_s": str(ping_s)}
    with (
        strict(fresh_llama(n_parallel=4)) as front,
        mitmdump(front.url, options=given) as proxy,
        requests.Session() as session,
    ):
        session.trust_env = False
        url = f"{proxy.url}{CHAT}"
        for turns in (1, 2, 3):  # until toki trusts what it knows of the server
            assert session.post(url, json=body(turns)).status_code == 200
        front.asked.clear()

        # An error that has nothing to do with slots: once is enough.
        front.status, front.message = 500, "the model is on fire"
        answer = session.post(url, json=body(4))
        assert (answer.status_code, answer.json()) == (500, {"error": {"message": front.message}})
        assert front.statuses() == [500]

        # An error of the client's own making stays its error, and says nothing of the lever.
        front.status, front.message = 400, "unknown field: id_slot"
        wrong = body(4, temperature="hot")
        answer = session.post(url, json=wrong)
        direct = session.post(f"{front.url}{CHAT}", json=wrong)
        assert (answer.status_code, answer.content) == (direct.status_code, direct.content)
        assert front.statuses() == [400, direct.status_code, direct.status_code]

        # A refused lever: the client's own bytes bring the answer, a stream as a stream.
        wanted = body(4, stream=True)
        answer = session.post(url, json=wanted)
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert answer.text.rstrip().endswith("data: [DONE]")
        (refused, _), (taken, _) = front.asked
        assert refused.pop("id_slot") is not None
        assert taken == wanted
        assert front.statuses() == [400, 200]

        # From then on it is not pulled any more.
        assert session.post(url, json=body(5)).status_code == 200
        assert front.statuses() == [200]
        rows = rows_of(proxy.db, 7)[3:]
    assert [row["status"] for row in rows] == [500, direct.status_code, 200, 200]
    assert [row["action"] for row in rows] == ["pinned", "passed", "passed", "passed"]
    assert "refused" in rows[2]["reason"]
    assert all(row["predicted"] == row["reused"] for row in rows[2:])


def test_what_is_refused_is_not_sent_again_to_find_what_another_key_left(fresh_llama: Llama) -> None:
    given = {"toki_isolate": "key", "toki_server_flags": "-np 4 -cram 0", "toki_deadline_ms": "20000"}
    with (
        strict(fresh_llama(n_parallel=4, cache_ram_mib=0)) as front,
        mitmdump(front.url, options=given) as proxy,
        requests.Session() as session,
    ):
        session.trust_env = False

        def send(key: str, wanted: dict[str, Any]) -> int:
            """How many tokens it found in the cache."""
            headers = {"Authorization": f"Bearer {key}"}
            answer = session.post(f"{proxy.url}{CHAT}", json=wanted, headers=headers)
            assert answer.status_code == 200, answer.text
            return int(answer.json()["timings"]["cache_n"])

        for turns in (1, 2, 3):  # until toki trusts what it knows of the server
            send("one", body(turns))
        front.asked.clear()

        # A pin to an empty slot is refused: without it the server would take the other key's.
        wanted = body(3)
        assert send("two", wanted) == 0
        (refused, _), (taken, _) = front.asked
        assert "id_slot" in refused
        assert taken == {"cache_prompt": False, **wanted}
        assert front.statuses() == [400, 200]

        # Where the server does not know that key either, the client gets what it would get directly.
        send("one", body(5))
        front.unknown = {"id_slot", "cache_prompt"}
        front.asked.clear()
        wanted = body(5)
        send("two", wanted)
        assert front.asked[-1] == (wanted, 200)
        assert "id_slot" not in front.asked[0][0], "that lever is dropped"
        assert front.statuses() == [400, 200]
        assert "the server refuses cache_prompt (400), which toki_isolate needs" in proxy.said()
        rows = rows_of(proxy.db, 6)[3:]
    assert [row["action"] for row in rows if "refused" in row["reason"]] == ["isolated", "passed"]
