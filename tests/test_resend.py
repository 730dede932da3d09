from __future__ import annotations

import threading
from http.client import HTTPException
from typing import Any

import pytest
from tests.scripted import Scripted
from tests.scripted import scripted

from toki import resend
from toki.resend import Resend
from toki.resend import cache_at_fault
from toki.resend import slots_at_fault


@pytest.fixture
def script() -> Any:
    with scripted() as running:
        yield running


def test_the_clients_bytes_and_headers_go_but_for_those_of_its_connection(script: Scripted) -> None:
    script.answers["/x"] = lambda body, _: (200, {"you sent": body})
    headers = [("Host", "a:1"), ("Authorization", "Bearer k"), ("Connection", "close"), ("Content-Length", "3")]
    answer = Resend().send(f"{script.url}/x?a=b", headers, b'{"a": 1.50}')
    assert (answer.status, answer.content) == (200, b'{"you sent": {"a": 1.5}}')
    assert ("Content-Type", "application/json") in answer.headers
    assert "content-length" not in {name.lower() for name, _ in answer.headers}
    (path, seen) = script.calls[-1]
    assert path == "/x"
    assert seen == {"Host": "a:1", "Authorization": "Bearer k", "Content-Length": "11"}


def test_an_answer_that_is_too_long_is_none(script: Scripted, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resend, "LONGEST", 10)
    script.answers["/x"] = lambda *_: (200, "a" * 20)
    with pytest.raises(OSError, match="larger than 10 bytes"):
        Resend().send(f"{script.url}/x", [("Host", "a")], b"{}")


def test_it_ends_when_the_client_leaves(script: Scripted) -> None:
    script.answers["/x"] = lambda *_: (200, "late")
    script.block("/x")
    call, failed = Resend(), threading.Event()

    def send() -> None:
        with pytest.raises((OSError, HTTPException)):
            call.send(f"{script.url}/x", [("Host", "a")], b"{}")
        failed.set()

    thread = threading.Thread(target=send)
    thread.start()
    while not script.count("/x"):
        threading.Event().wait(0.002)
    call.hang_up()
    assert failed.wait(5)
    thread.join()
    with pytest.raises(OSError, match="nothing to send to"):
        call.send(f"{script.url}/x", [], b"{}")


@pytest.mark.parametrize(
    ("status", "content", "expected"),
    [
        (400, None, True),
        (404, b"", True),
        (422, b"", True),
        (401, b"slot", False),
        (403, b"", False),
        (429, b"", False),
        (500, b"id_slot is out of range", True),
        (500, b"out of memory", False),
        (503, None, False),
    ],
)
def test_which_errors_the_slot_fields_may_have_caused(status: int, content: bytes | None, expected: bool) -> None:
    assert slots_at_fault(status, content) is expected


@pytest.mark.parametrize(
    ("status", "expected"),
    [(400, True), (422, True), (401, False), (404, False), (408, False), (429, False), (500, False)],
)
def test_which_errors_cache_prompt_may_have_caused(status: int, expected: bool) -> None:
    assert cache_at_fault(status) is expected
