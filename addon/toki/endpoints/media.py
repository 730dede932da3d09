"""Images and sound in a chat: which there are, and the same chat without their data.

The server puts a marker into the rendered prompt where one stands, so a stand-in of a few bytes renders to the same
text: what may be megabytes is not sent twice, and what the server would have to fetch is not fetched twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

from toki.endpoints.question import Media

# Any data will do: it is decoded only when the prompt is tokenised (b10434 and b11549).
STAND_INS: dict[str, dict[str, str]] = {
    "image_url": {"url": "data:image/png;base64,AAAA"},
    "input_audio": {"data": "AAAA", "format": "wav"},
}

KINDS = tuple(STAND_INS)
MODALITIES = {"image_url": "vision", "input_audio": "audio"}  # as /props names them


def parts(messages: list[Any]) -> Iterator[Any]:
    """All parts of the messages whose content is a list, in order."""
    for message in messages:
        content = message.get("content") if isinstance(message, Mapping) else None
        yield from content if isinstance(content, list) else ()


def media(part: Mapping[str, Any]) -> Media:
    """What a part holds whose type is one of KINDS."""
    kind: str = part["type"]
    held = part.get(kind)
    data = None
    if isinstance(held, Mapping):
        data = held.get("data")
        url = held.get("url")
        if isinstance(url, str) and url.startswith("data:"):
            data = url.partition(",")[2]
    if not isinstance(data, str) or not data:
        return Media(part, MODALITIES[kind])
    name = blake2b(data.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
    return Media(part, MODALITIES[kind], name)


def image(data: str) -> Media:
    """An image (or sound: the server looks into it) that is given as base64 alone."""
    return media({"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}})


def without_data(messages: list[Any]) -> list[Any]:
    """The messages with a stand-in in place of each image and sound."""
    return [
        {**message, "content": [_stand_in(part) for part in message["content"]]}
        if isinstance(message, Mapping) and isinstance(message.get("content"), list)
        else message
        for message in messages
    ]


def _stand_in(part: Any) -> Any:
    kind = part.get("type") if isinstance(part, Mapping) else None
    return {**part, kind: STAND_INS[kind]} if kind in KINDS else part
