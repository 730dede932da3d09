"""What the shapes that the server converts to the chat shape (/v1/messages, /v1/responses) share.

JSON is read and written as the server does meanwhile. Source: llama.cpp b11549, server-common.h (`json_value`) and the
number format of nlohmann::json.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from toki.endpoints.chat import read_chat
from toki.endpoints.question import Prompt
from toki.endpoints.question import Unreadable

Json = dict[str, Any]

INT64_MIN = -(2**63)
UINT64_MAX = 2**64 - 1


class RefusedError(ValueError):
    """The server answers such a body with an error; str(e) says why in plain words."""


def converted(body: Mapping[str, Any], to_chat: Callable[[Mapping[str, Any]], Json]) -> tuple[Json, Prompt]:
    """The chat body that `to_chat` makes of `body`, and what can be read of its prompt; never raises.

    Where it cannot be converted the body comes back as it is.
    """
    try:
        chat = to_chat(body)
    except (RefusedError, RecursionError, OverflowError) as error:
        return dict(body), Unreadable(f"it can't be converted to a chat: {error}")
    return chat, read_chat(chat, converted=True)


def member(value: object, key: str) -> Any:
    """What `value` holds at `key`; None where it is no object, has no such key, or holds null there."""
    return value.get(key) if isinstance(value, Mapping) else None


def text(value: object, key: str, default: str = "") -> str:
    """The string at `key`, or `default` where there is anything else."""
    found = member(value, key)
    return found if isinstance(found, str) else default


def dump(value: Any) -> str:
    """`value` as one line of JSON, character for character as the server writes it.

    Differs from json.dumps in large and small numbers: integers beyond 64 bits are floats, and floats turn to the
    exponent form one digit earlier. A rare float, such as 1e23, the server writes longer than need be; that is not
    reproduced.
    """
    match value:
        case bool() | None:
            return json.dumps(value)
        case str():
            return json.dumps(value, ensure_ascii=False)
        case int():
            return str(value) if INT64_MIN <= value <= UINT64_MAX else _float(float(value))
        case float():
            return _float(value)
        case Mapping():
            return "{" + ",".join(f"{json.dumps(k, ensure_ascii=False)}:{dump(v)}" for k, v in value.items()) + "}"
        case _:
            return "[" + ",".join(dump(item) for item in value) + "]"


def _float(value: float) -> str:
    shown = repr(value)
    if 1e15 <= abs(value) < 1e16:  # repr still writes these out
        return f"{Decimal(shown).normalize():e}"
    return shown
