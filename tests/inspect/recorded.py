"""Rows as toki records them, for the tests of what reads them."""

from __future__ import annotations

import random
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

from toki.engine.events import Action
from toki.engine.events import Outcome
from toki.inspect.records import Request
from toki.schema import Row
from toki.store import Database


def row(key: int, **changes: Any) -> Row:
    """A request of a minute-long conversation of its own; what is not said is as of a passed one."""
    values: dict[str, Any] = {
        "key": key,
        "at": 1000.0 + 60 * key,
        "conversation": key,
        "endpoint": "/v1/chat/completions",
        "model": "m",
        "status": 200,
        "stream": True,
        "prompt_tokens": 1000,
        "reply_tokens": 20,
        "parent": None,
        "shared": 0,
        "similarity": None,
        "predicted": 0,
        "alone": 0,
        "reused": 0,
        "evaluated": 1000,
        "outcome": Outcome.MISS,
        "slot": None,
        "action": Action.PASSED,
        "reason": "the server's own choice is as good",
        "first_byte_ms": 500.0,
        "added_ms": 2.0,
        "total_ms": 900.0,
    }
    return Row(**values | changes)


def write(path: Path, rows: Iterable[Row]) -> Path:
    """A database with these rows; those of an empty one have ids from 1 on."""
    with closing(Database(path)) as database:
        assert database.write(list(rows)) == []
    return path


def chats(seed: int, count: int, conversations: int = 5) -> list[Request]:
    """Conversations behind one preamble, in random turn, one request after another."""
    draw = random.Random(seed)
    latest: dict[int, Request] = {}
    found: list[Request] = []
    for key in range(1, count + 1):
        speaker = draw.randrange(conversations)
        before = latest.get(speaker)
        if before is not None and before.prompt_tokens and draw.random() < 0.9:
            parent: int | None = before.id
            shared, conversation = before.prompt_tokens + 19, before.conversation
        else:
            parent, shared, conversation = (1, 300, key) if found else (None, 0, key)
        length = max(shared, 300) + draw.randrange(50, 400)
        latest[speaker] = Request(
            *(key, 60.0 * key, conversation, "/v1/chat/completions", "m", 200, True, length, 20, parent, shared, None),
            *(0, 0, 0, length, "miss", None, "passed", "", 5.0, 1.0, 900.0),
        )
        found.append(latest[speaker])
    return found
