"""Two keys into the client's bytes: how a request is sent to a slot without being re-serialised.

`parse` takes only what the server's parser (nlohmann::json) takes exactly as Python reads it, so that nothing is
decided on a body that the two could read differently, and the server's own error for a broken body stays the answer to
the bytes that the client sent. `steer` changes nothing but what follows the first brace.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any
from typing import NoReturn

BOM = b"\xef\xbb\xbf"
HUGE_INTEGER = 309  # digits: from here on an integer can exceed the largest double, which the server refuses
DIGITS_AS_ZERO = bytes(ord("0") if chr(byte) in "0123456789" else ord(" ") for byte in range(256))
ESCAPE = re.compile(
    rb"\\u[dD][89abAB]..\\u[dD][c-fC-F].."  # a surrogate pair
    rb"|(\\u[dD][89a-fA-F])"  # half of one
    rb"|\\.",  # any other escape; an escaped backslash hides the u behind it
    re.DOTALL,
)


class Unsteerable(ValueError):
    """The body must leave as it came; str(e) says why in plain words."""


def parse(content: bytes, content_encoding: str | None) -> dict[str, Any]:
    """The JSON object in `content`, as the server will read it.

    Raises Unsteerable for: any Content-Encoding but identity (the server answers 415 or reads the bytes raw), what is
    not UTF-8 or starts with a byte order mark, what is not one JSON object, NaN and Infinity, numbers beyond a double
    (1e999; the server refuses them), surrogates without a partner (likewise), nesting deeper than Python's recursion
    limit, and a key that occurs twice at the top level: the server takes the last one, a steered body would put its
    own in front, and no honest client sends that.
    """
    if content_encoding is not None and content_encoding.strip().lower() != "identity":
        raise Unsteerable("the body has a content encoding")
    if content.startswith(BOM):
        raise Unsteerable("the body starts with a byte order mark")
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError:
        raise Unsteerable("the body is not UTF-8") from None
    if b"0" * HUGE_INTEGER in content.translate(DIGITS_AS_ZERO):
        raise Unsteerable("the body holds a number beyond the range of a double")

    repeated: list[bool] = []  # whether the object closed last, in the end the outermost, repeats a key

    def closed(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        repeated[:] = [len(found) != len(pairs)]
        return found

    try:
        body = json.loads(text, object_pairs_hook=closed, parse_float=_float, parse_constant=_constant)
    except RecursionError:
        raise Unsteerable("the body is nested too deeply") from None
    except json.JSONDecodeError:
        raise Unsteerable("the body is not JSON") from None
    if not isinstance(body, dict):
        raise Unsteerable("the body is not a JSON object")
    if repeated == [True]:
        raise Unsteerable("the body repeats a key")
    if (b"\\ud" in content or b"\\uD" in content) and any(escape[1] for escape in ESCAPE.finditer(content)):
        raise Unsteerable("the body holds half a surrogate pair")
    return body


def steer(content: bytes, body: Mapping[str, Any], id_slot: int | None, *, cache_prompt: bool = True) -> bytes:
    """`content` with `"id_slot":id_slot,` (unless None) right after its first brace, and `"cache_prompt":true,` or
    `false,` unless it has one.

    `body` is what `parse` made of `content`. Raises Unsteerable for an empty object, and where the client chose a slot
    itself (a later key of the same name would win).
    """
    if not body:
        raise Unsteerable("the body is an empty object")
    if "id_slot" in body:
        raise Unsteerable("the client chose a slot")
    keys = b"" if id_slot is None else b'"id_slot":%d,' % id_slot
    if "cache_prompt" not in body:
        keys += b'"cache_prompt":true,' if cache_prompt else b'"cache_prompt":false,'
    after_brace = content.index(b"{") + 1  # only white space can stand before it
    return content[:after_brace] + keys + content[after_brace:]


def _float(literal: str) -> float:
    value = float(literal)
    if math.isinf(value):
        raise Unsteerable("the body holds a number beyond the range of a double")
    return value


def _constant(literal: str) -> NoReturn:
    raise Unsteerable(f"the body holds {literal}, which JSON does not know")
