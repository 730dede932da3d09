"""The request keys that all shapes share, each read as the server reads it.

Source: llama.cpp b11549, server-schema.cpp (types, names and their order of precedence) and server-common.cpp
(`json_value`); b10434 answered every odd value tried in the same way. A value that the server refuses with a 400 is
read as if it were absent.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from collections.abc import Mapping
from typing import Any

from toki.endpoints.question import Prompt
from toki.endpoints.question import Question
from toki.engine.events import Kind

INT32_MIN = -(2**31)
INT32_MAX = 2**31 - 1
INT64_MIN = -(2**63)
UINT64_MAX = 2**64 - 1


MODEL_NAME = 200  # characters of a model's name that are kept, since a client may send anything


def question(
    endpoint: str,
    body: Mapping[str, Any],
    prompt: Prompt,
    *,
    kind: Kind = Kind.COMPLETION,
    prompts: int = 1,
) -> Question:
    """The question that `body` puts, its `prompt` being read already."""
    children = _children(body)
    fixed = ""
    if "id_slot" in body:
        fixed = "the client chose a slot"
    elif prompts > 1:
        fixed = "a list of prompts"
    elif children:
        fixed = "n > 1"
    model = body.get("model")
    return Question(
        endpoint=endpoint,
        prompt=prompt,
        kind=kind,
        model=model[:MODEL_NAME] if isinstance(model, str) else "",
        stream=body.get("stream") is True,
        fixed=fixed,
        client_slot=_client_slot(body.get("id_slot")),
        cache_prompt=body.get("cache_prompt") is not False,
        chose_cache="cache_prompt" in body,
        children=children,
        prompts=prompts,
        max_tokens=_max_tokens(body),
        lora=_lora(body.get("lora")),
    )


def _integer(value: object) -> int | None:
    """`value` cast to the server's int, where that is defined: floats are cut off, integers wrap, bools are 0 and 1."""
    if isinstance(value, float):
        return math.trunc(value) if INT32_MIN - 1 < value < INT32_MAX + 1 else None
    if isinstance(value, int) and INT64_MIN <= value <= UINT64_MAX:
        return (value - INT32_MIN) % 2**32 + INT32_MIN
    return None


def _first(body: Mapping[str, Any], names: Iterable[str]) -> int | None:
    """The number under the first of `names` that is there and not null."""
    return next((_integer(body[name]) for name in names if body.get(name) is not None), None)


def _client_slot(value: object) -> int | None:
    """The task's id_slot; None where the server chooses. The server takes it modulo its number of slots."""
    slot = _integer(value)
    return None if slot == -1 else slot


def _children(body: Mapping[str, Any]) -> int:
    return max(0, (_first(body, ("n_cmpl", "n")) or 1) - 1)


def _max_tokens(body: Mapping[str, Any]) -> int | None:
    limit = _first(body, ("n_predict", "max_completion_tokens", "max_tokens"))
    return None if limit is None or limit < 0 else limit


def _lora(value: object) -> str:
    """The adapters that a request asks for, such as "0=1.0 2=0.5"; "" leaves the server's own set.

    Adapters that are not listed get the scale 0, the last entry for an id counts, and an empty list asks for nothing.
    """
    if not isinstance(value, list) or not value:
        return ""
    scales: dict[int, float] = {}
    for entry in value:
        found = entry if isinstance(entry, Mapping) else {}
        index, scale = _integer(found.get("id")), found.get("scale")
        scales[-1 if index is None else index] = float(scale) if isinstance(scale, int | float) else 0.0
    return " ".join(f"{index}={scale!r}" for index, scale in sorted(scales.items()) if scale) or "none"
