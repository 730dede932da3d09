"""The tiny model's promises that need no server: the same bytes each time, and no merge with a capital."""

from __future__ import annotations

from pathlib import Path

import servers
import tiny_model


def test_equal_bytes_each_time(tmp_path: Path) -> None:
    again = tmp_path / "again.gguf"
    tiny_model.write(again)
    assert again.read_bytes() == servers.tiny_model().read_bytes()
    assert again.stat().st_size < 2_500_000


def test_no_token_but_a_byte_has_a_capital() -> None:
    tokens, merges = tiny_model.vocabulary()
    capitals = [token for token in tokens if any(letter in tiny_model.CAPITALS for letter in token)]
    assert sorted(capitals) == list(tiny_model.CAPITALS)
    assert len(set(tokens)) == len(tokens)
    assert {"".join(pair) for pair in merges} <= set(tokens)


def test_learned_merges_make_each_word_one_token() -> None:
    assert tiny_model.learn_merges(["aab", "aac"]) == [("a", "a"), ("aa", "b"), ("aa", "c")]
    assert tiny_model.learn_merges(["a", ""]) == []
