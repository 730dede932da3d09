"""A server on loopback that answers as a test says: for faults and timing that no real llama-server shows on demand.

Where the real server can stand, tests/live uses it.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from contextlib import contextmanager
from typing import Any

from tests.answering import Answering
from tests.answering import answering

Answer = tuple[int, Any]  # status and JSON


class Scripted:
    """The routes of a small llama-server. Set `answers[path]` to change one; clear `gates[path]` to make it wait."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, dict[str, str]]] = []  # path and headers, in order
        self.tasks = [-1, -1, -1, -1]
        self.busy: set[int] = set()  # slots
        self.gates: dict[str, threading.Event] = {}
        self.answers: dict[str, Callable[[Any, Mapping[str, str]], Answer]] = {
            "/props": lambda *_: (200, self.props),
            "/slots": lambda *_: (200, [self._slot(number, task) for number, task in enumerate(self.tasks)]),
            "/tokenize": lambda body, _: (200, {"tokens": _tokens(body["content"])}),
            "/apply-template": lambda body, _: (200, {"prompt": "".join(m["content"] for m in body["messages"])}),
        }
        self.props: dict[str, Any] = {
            "total_slots": 4,
            "default_generation_settings": {"n_ctx": 4096},
            "build_info": "b1-test",
            "model_path": "/models/test.gguf",
        }
        self.url = ""

    def count(self, path: str) -> int:
        """How often `path` was asked for."""
        return sum(called == path for called, _ in self.calls)

    def block(self, path: str) -> threading.Event:
        """Let `path` wait until the event that is returned is set."""
        return self.gates.setdefault(path, threading.Event())

    def _slot(self, number: int, task: int) -> dict[str, Any]:
        slot: dict[str, Any] = {"id": number, "n_ctx": 4096, "is_processing": number in self.busy}
        if task >= 0:
            slot |= {"id_task": task, "n_prompt_tokens": 7}
        return slot


async def until(condition: Callable[[], object], within: float = 10.0) -> None:
    """Let the event loop run until `condition` holds; fails after `within` seconds."""
    deadline = time.monotonic() + within
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        await asyncio.sleep(0.002)


@contextmanager
def scripted() -> Iterator[Scripted]:
    """A running server; its end opens all gates."""
    script = Scripted()

    class Handler(Answering):
        def do_GET(self) -> None:
            self._answer(None)

        def do_POST(self) -> None:
            self._answer(json.loads(self.content()))

        def _answer(self, body: Any) -> None:
            script.calls.append((self.route, dict(self.headers)))
            if self.route in script.gates:
                script.gates[self.route].wait(30)
            status, answer = 404, {"error": self.route}
            if self.route in script.answers:
                status, answer = script.answers[self.route](body, dict(self.headers))
            self.answer(status, json.dumps(answer).encode())

    with answering(Handler) as port:
        script.url = f"http://127.0.0.1:{port}"
        try:
            yield script
        finally:
            for gate in script.gates.values():
                gate.set()


def _tokens(content: Any) -> list[int]:
    """One token per character, so that a test can tell a text by its tokens."""
    if isinstance(content, str):
        return [ord(character) for character in content]
    return [token for part in content for token in (_tokens(part) if isinstance(part, str) else [part])]
