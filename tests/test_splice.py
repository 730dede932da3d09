from __future__ import annotations

import gzip
import json
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.effort import examples

from toki.splice import Unsteerable
from toki.splice import parse
from toki.splice import steer

SLOT = 3
PLAIN = b'{"prompt":"x"}'


def leaves(content: bytes, content_encoding: str | None = None) -> bytes:
    """What a request's body leaves as, if its request is to go to SLOT."""
    try:
        return steer(content, parse(content, content_encoding), SLOT)
    except Unsteerable:
        return content


# --- bodies that are read -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (PLAIN, b'{"id_slot":3,"cache_prompt":true,"prompt":"x"}'),
        (b' \r\n\t{ "prompt" : 1.0 }\n', b' \r\n\t{"id_slot":3,"cache_prompt":true, "prompt" : 1.0 }\n'),
        (b'{"a":{"id_slot":1}}', b'{"id_slot":3,"cache_prompt":true,"a":{"id_slot":1}}'),
        (b'{"cache_prompt":null}', b'{"id_slot":3,"cache_prompt":null}'),
        (b'{"cache_prompt":"no","a":1}', b'{"id_slot":3,"cache_prompt":"no","a":1}'),
        (b'{"cache\\u005fprompt":false}', b'{"id_slot":3,"cache\\u005fprompt":false}'),
    ],
)
def test_the_keys_follow_the_first_brace(content: bytes, expected: bytes) -> None:
    assert leaves(content) == expected


@pytest.mark.parametrize(
    ("slot", "cache_prompt", "content", "expected"),
    [
        (None, False, PLAIN, b'{"cache_prompt":false,"prompt":"x"}'),
        (0, False, PLAIN, b'{"id_slot":0,"cache_prompt":false,"prompt":"x"}'),
        (None, False, b'{"cache_prompt":true}', b'{"cache_prompt":true}'),
    ],
)
def test_the_cache_can_be_left_out(slot: int | None, cache_prompt: bool, content: bytes, expected: bytes) -> None:
    assert steer(content, parse(content, None), slot, cache_prompt=cache_prompt) == expected


@pytest.mark.parametrize("value", ["0", "-1", "null", '"1"', "[1]", "{}", "true", "1.5", "1e400"])
def test_the_clients_own_slot_in_any_form_is_its_choice(value: str) -> None:
    content = b'{"prompt":"x","id_slot":%s}' % value.encode()
    assert leaves(content) == content


def test_an_escaped_name_is_the_same_key() -> None:
    content = b'{"id\\u005fslot":1}'
    assert parse(content, None) == {"id_slot": 1}
    assert leaves(content) == content


def test_a_steered_empty_object_would_end_in_a_comma() -> None:
    with pytest.raises(Unsteerable, match="empty object"):
        steer(b" { } ", parse(b" { } ", None), SLOT)


@pytest.mark.parametrize("content_encoding", [None, "identity", " Identity "])
def test_an_identity_encoding_is_none(content_encoding: str | None) -> None:
    assert parse(PLAIN, content_encoding) == {"prompt": "x"}


def test_numbers_stay_exact() -> None:
    big = 123456789012345678901234567890
    assert parse(b'{"a":%d,"b":18446744073709551615}' % big, None) == {"a": big, "b": 2**64 - 1}


@pytest.mark.parametrize(
    "content",
    [
        b'{"a":"\\ud83d\\ude00"}',
        b'{"a":"\\uD83D\\uDE00\\ud83d\\ude00"}',
        b'{"a":"\\\\ud800"}',  # a backslash, then the letters ud800
        b'{"a":"\\ud7ff\\ue000\\u0000"}',
    ],
)
def test_paired_surrogates_and_what_only_looks_like_one_are_read(content: bytes) -> None:
    assert parse(content, None) == json.loads(content)


def test_a_key_may_repeat_below_the_top_level() -> None:
    assert parse(b'{"a":{"b":1,"b":2},"c":[{"d":1,"d":2}],"e":{}}', None) == {"a": {"b": 2}, "c": [{"d": 2}], "e": {}}


# --- bodies that leave as they came -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"\xef\xbb\xbf" + PLAIN, "byte order mark"),
        (PLAIN.decode().encode("utf-16"), "not UTF-8"),
        (PLAIN.decode().encode("utf-16-le"), "not JSON"),
        (b'{"a":"\xff"}', "not UTF-8"),
        (b'{"a":"\xed\xa0\x80"}', "not UTF-8"),
        (b'{"a":"\xc0\x80"}', "not UTF-8"),
        (b"", "not JSON"),
        (b'{"a":1', "not JSON"),
        (b'{"a":1,}', "not JSON"),
        (b"{'a':1}", "not JSON"),
        (b'{"a":01}', "not JSON"),
        (b'{"a":1.}', "not JSON"),
        (b'{"a":"\n"}', "not JSON"),
        (b'{"a":"\\x41"}', "not JSON"),
        (b'{"a":1}\x00', "not JSON"),
        (b'\xc2\xa0{"a":1}', "not JSON"),
        (b'{"a":1} {"a":1}', "not JSON"),
        (b"[1]", "not a JSON object"),
        (b'"{"', "not a JSON object"),
        (b"null", "not a JSON object"),
        (b'{"a":NaN}', "NaN"),
        (b'{"a":[Infinity]}', "Infinity"),
        (b'{"a":-Infinity}', "-Infinity"),
        (b'{"a":1e999}', "range of a double"),
        (b'{"a":-1e999}', "range of a double"),
        (b'{"a":' + b"9" * 400 + b"}", "range of a double"),
        (b'{"a":' + b"9" * 5000 + b"}", "range of a double"),
        (b'{"a":"\\ud800"}', "half a surrogate pair"),
        (b'{"a":"\\uDC00"}', "half a surrogate pair"),
        (b'{"a":"\\ud83d\\u0041"}', "half a surrogate pair"),
        (b'{"a":"\\\\\\ud800"}', "half a surrogate pair"),  # a backslash, then the escape
        (b'{"\\ud800":1}', "half a surrogate pair"),
        (b'{"a":{"b":"\\ud800","b":1}}', "half a surrogate pair"),  # although the value is replaced
        (b'{"id_slot":1,"id_slot":2}', "repeats a key"),
        (b'{"a":{},"b":1,"a":[{}]}', "repeats a key"),
        (b'{"a":1,"\\u0061":2}', "repeats a key"),
        (b'{"a":' + b"[" * 200_000 + b"]" * 200_000 + b"}", "nested too deeply"),
    ],
)
def test_what_could_be_read_in_two_ways_is_unsteerable(content: bytes, why: str) -> None:
    with pytest.raises(Unsteerable, match=why):
        parse(content, None)


@pytest.mark.parametrize("content_encoding", ["gzip", "br", "deflate, gzip", "", "utf-8"])
def test_an_encoded_body_is_unsteerable(content_encoding: str) -> None:
    with pytest.raises(Unsteerable, match="content encoding"):
        parse(PLAIN, content_encoding)


# --- odd bodies at random -----------------------------------------------------------------------------------------

LITERALS = """
    0 -0 7 1.0 1e-05 1E+2 0.1 -1.5e300 1e308 1e-999 2147483648 9223372036854775808 -9223372036854775809
    18446744073709551616 123456789012345678901234567890 true false null [] {}
"""
PLAIN_VALUES = [*LITERALS.split(), "1" * 308, "[" * 500 + "]" * 500]
BROKEN_LITERALS = "1e309 -1e999 NaN -Infinity 01 1. +1 True"
BROKEN_VALUES = [*BROKEN_LITERALS.split(), "9" * 309, "1" * 400 + "." + "0" * 9, "[" * 100_000 + "]" * 100_000]
PIECES = ["a", "id_slot", "é", "😀", "\u2028", "\x7f", "{", "}", '\\"', "\\\\", "\\/", "\\n", "\\u00e9", "\\u0000"]
PAIR = "\\ud83d\\uDE00"
BROKEN_PIECES = ["\\ud83d", "\\uDE00", "\\x", "\n"]
NAMES = ['"prompt"', '"messages"', '"id_slot"', '"cache_prompt"', '"cache\\u005fprompt"', '"a"', '"b"', '"n"', '"c"']


class Writer:
    """Writes JSON as a hostile client might; about a third of it may be steered."""

    def __init__(self, random: Random) -> None:
        self.random = random

    def rarely(self) -> bool:
        return self.random.random() < 0.01

    def white(self) -> str:
        return "\x0c" if self.random.random() < 0.001 else self.random.choice(["", "", "", " ", "\n", "\t\r "])

    def text(self) -> str:
        pieces = BROKEN_PIECES if self.rarely() else [*PIECES, PAIR]
        return '"' + "".join(self.random.choices(pieces, k=self.random.randrange(4))) + '"'

    def value(self, depth: int) -> str:
        kind = self.random.randrange(20)
        if kind < 5 and depth:
            return "[" + ",".join(self.value(depth - 1) for _ in range(self.random.randrange(4))) + "]"
        if kind < 10 and depth:
            return self.body(depth - 1)
        if kind < 14:
            return self.text()
        return self.random.choice(BROKEN_VALUES if self.random.random() < 0.1 else PLAIN_VALUES)

    def body(self, depth: int) -> str:
        names = self.random.sample(NAMES, self.random.randrange(5)) + [self.text()] * self.random.randrange(2)
        names += names[:1] * self.rarely()
        white = self.white
        pairs = [f"{white()}{name}{white()}:{white()}{self.value(depth)}{white()}" for name in names]
        return "{" + ",".join(pairs) + "," * self.rarely() + white() * (not pairs) + "}"

    def request(self) -> tuple[bytes, str | None]:
        """A body and its Content-Encoding."""
        text = self.white() + self.body(3) + self.white()
        match self.random.randrange(16):
            case 0:
                return text.encode("utf-8-sig"), None
            case 1:
                return text.encode(self.random.choice(["utf-16", "utf-16-be", "utf-32-le"])), None
            case 2:
                return text.encode("latin-1", "replace"), None
            case 3:
                return gzip.compress(text.encode(), 1), "gzip"
            case 4:
                return text.encode()[: -self.random.randrange(1, 9)], None
            case _:
                return text.encode(), self.random.choice([None, None, "identity"])


def pairs_of(content: bytes) -> list[tuple[str, object]]:
    """The top level as written: order and repeated keys kept, numbers as their literals."""
    pairs = json.loads(content, object_pairs_hook=list, parse_int=str, parse_float=str)
    assert isinstance(pairs, list)
    return pairs


BODIES_PER_SEED = 50


@examples(2000 // BODIES_PER_SEED)
@given(seed=st.integers(min_value=0, max_value=2**32))
def test_nothing_but_the_two_keys_is_added(seed: int) -> None:
    writer = Writer(Random(seed))
    steered = 0
    for _ in range(BODIES_PER_SEED):
        content, content_encoding = writer.request()
        sent = leaves(content, content_encoding)
        if sent == content:
            continue
        steered += 1
        before = pairs_of(content)
        spliced: list[tuple[str, object]] = [("id_slot", "3")]
        if "cache_prompt" not in dict(before):
            spliced.append(("cache_prompt", True))
        written = b'"id_slot":3,' + b'"cache_prompt":true,' * (len(spliced) - 1)
        white, brace, rest = content.partition(b"{")
        assert sent == white + brace + written + rest
        assert pairs_of(sent) == spliced + before
    assert 0 < steered < BODIES_PER_SEED


@given(text=st.dictionaries(st.text(), st.none() | st.booleans() | st.floats(allow_nan=False, allow_infinity=False)))
def test_what_json_writers_write_is_read_and_steered(text: dict[str, object]) -> None:
    for ascii_only in (True, False):
        content = json.dumps(text, ensure_ascii=ascii_only, indent=1).encode("utf-8", "replace")
        if text and "id_slot" not in text:
            assert parse(leaves(content), None) == {"id_slot": SLOT, "cache_prompt": True} | parse(content, None)


@given(st.binary(max_size=80) | st.binary(max_size=40).map(lambda noise: b'{"a":"' + noise + b'"}'))
def test_noise_raises_nothing_else(content: bytes) -> None:
    assert leaves(content) == content or content.strip().startswith(b"{")
