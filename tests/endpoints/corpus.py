"""The bodies of tests/corpus, and random changes of them."""

from __future__ import annotations

import copy
import json
from functools import cache
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

DIRECTORY = Path(__file__).resolve().parents[1] / "corpus"

SPLINTERS: list[Any] = [
    *(None, True, False, 0, -1, 2.5, 1e20, 2**70, "", "x", "\ud800", [], {}, [{}], [[]], {"type": 1}),
    *({"type": kind} for kind in ("text", "image", "tool_use", "tool_result", "thinking", "input_text", "reasoning")),
    {"type": "image", "source": {"type": "url", "url": "x"}},
    {"type": "input_image", "image_url": "x"},
    "x-anthropic-billing-header: cch=\ud800abcd;",
]
KEYS = [
    "type",
    "text",
    "content",
    "role",
    "name",
    "input",
    "id_slot",
    "output",
    "summary",
    "source",
    "tools",
    "thinking",
]


@cache
def bodies(kind: str) -> dict[str, dict[str, Any]]:
    """The bodies of one directory, by name."""
    return {
        file.stem: json.loads(file.read_text(encoding="utf-8")) for file in sorted((DIRECTORY / kind).glob("*.json"))
    }


@st.composite
def damaged(draw: st.DrawFn, kind: str) -> dict[str, Any]:
    """A body with up to four of its parts replaced, removed, moved or added to."""
    known = bodies(kind)
    body: dict[str, Any] = copy.deepcopy(known[draw(st.sampled_from(sorted(known)))])
    for _ in range(draw(st.integers(1, 4))):
        places = list(_places(body))
        if not places:
            break
        owner, key = draw(st.sampled_from(places))
        splinter = copy.deepcopy(draw(st.sampled_from(SPLINTERS)))
        match draw(st.sampled_from(["replace", "remove", "move", "add"])):
            case "replace":
                owner[key] = splinter
            case "remove":
                del owner[key]
            case "move":
                other, place = draw(st.sampled_from(places))
                owner[key] = copy.deepcopy(other[place])
            case "add" if isinstance(owner, list):
                owner.insert(key, splinter)
            case "add":
                owner[draw(st.sampled_from(KEYS))] = splinter
    return body


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Every part of `value`, as the object or array that holds it and the key or index there."""
    keys = list(value) if isinstance(value, dict) else list(range(len(value))) if isinstance(value, list) else []
    return [place for key in keys for place in ((value, key), *_places(value[key]))]
