from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from toki.tap import Tap


@given(st.lists(st.binary(min_size=1)))
def test_every_piece_passes_as_it_is_and_is_kept(pieces: list[bytes]) -> None:
    heard: list[bytes] = []
    tap = Tap(heard.append)
    assert [tap(piece) for piece in pieces] == pieces
    assert heard == pieces
    assert tap.content == b"".join(pieces)


def test_the_end_adds_no_piece_since_an_empty_one_would_end_a_chunked_body() -> None:
    assert list(Tap()(b"")) == []


def test_a_body_beyond_the_limit_passes_but_is_not_kept() -> None:
    tap = Tap(limit=4)
    kept = []
    for piece in (b"123", b"4", b"5", b"6"):
        assert tap(piece) == piece
        kept.append(tap.content)
    assert kept == [b"123", b"1234", None, None]
