"""The reader of model heads: shapes, sizes that real servers reported, and files that lie."""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servers import tiny_model
from toki.gguf import MAX_HEAD
from toki.gguf import EntrySize
from toki.gguf import GgufError
from toki.gguf import Layer
from toki.gguf import entry_size
from toki.gguf import parse_header
from toki.gguf import read_header

SMOLLM2 = {"block_count": 30, "context_length": 8192, "embedding_length": 576, "attention.head_count": 9}
SMOLLM2 |= {"attention.head_count_kv": 3}
GEMMA3 = {"block_count": 18, "context_length": 32768, "embedding_length": 640, "attention.head_count": 4}
GEMMA3 |= {"attention.head_count_kv": 1, "attention.key_length": 256, "attention.value_length": 256}
GEMMA3 |= {"attention.sliding_window": 512}


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def typed(value: Any) -> bytes:
    """A value as GGUF stores it, without its type in front of it, and with it."""
    if isinstance(value, bool):
        return struct.pack("<I?", 7, value)
    if isinstance(value, int):
        return struct.pack("<II", 4, value)
    if isinstance(value, float):
        return struct.pack("<If", 6, value)
    if isinstance(value, str):
        return struct.pack("<I", 8) + text(value)
    items = [typed(item) for item in value]
    return struct.pack("<I", 9) + items[0][:4] + struct.pack("<Q", len(items)) + b"".join(item[4:] for item in items)


def head(architecture: str, values: dict[str, Any], version: int = 3, more: dict[str, Any] | None = None) -> bytes:
    pairs = {"general.architecture": architecture, "general.tags": ["a", "b"], "general.quality": 0.5}
    pairs |= {f"{architecture}.{name}": value for name, value in values.items()} | (more or {})
    start = b"GGUF" + struct.pack("<IQQ", version, 12, len(pairs))
    return start + b"".join(text(key) + typed(value) for key, value in pairs.items())


def sizes(
    architecture: str, values: dict[str, Any], type_k: str = "f16", type_v: str = "f16", streams: int = 1
) -> EntrySize:
    size = entry_size(parse_header(head(architecture, values)), type_k, type_v, streams)
    assert size is not None
    return size


def test_the_tiny_model() -> None:
    header = read_header(tiny_model())
    assert (header.architecture, header.n_ctx_train, header.window) == ("llama", 262_144, 0)
    assert header.layers == (Layer(16, 16, windowed=False),)
    assert entry_size(header) == EntrySize(fixed=56, token=76, window=0, window_fixed=16, window_token=0)


@pytest.mark.parametrize(
    ("type_k", "type_v", "token"),
    [("f16", "f16", 23_052), ("q8_0", "q4_0", 9_372), ("f32", "iq4_nl", 26_292)],
)
def test_bytes_of_a_token_with_each_cache_type(type_k: str, type_v: str, token: int) -> None:
    """What SmolLM2 takes, from the sizes of saved slots (b10434), which hold each token's id beside."""
    assert sizes("llama", SMOLLM2, type_k, type_v).token == token


@pytest.mark.parametrize(("tokens", "written"), [(100, 1_846_492), (300, 5_538_492), (700, 10_032_556)])
def test_a_sliding_window(tokens: int, written: int) -> None:
    """What a slot of Gemma 3 took when saved without checkpoints (b10434)."""
    ids = 20 + 4 * tokens
    size = sizes("gemma3", GEMMA3)
    assert size.of(tokens) + ids == pytest.approx(written, abs=16)
    # the RAM cache's log told 26.930 MiB of 1,500 tokens and two checkpoints
    assert size.of(1500, (984, 1496)) / 2**20 == pytest.approx(26.930, abs=0.0006)


def test_slots_with_caches_of_their_own_name_each_of_them() -> None:
    shared, split = sizes("gemma3", GEMMA3), sizes("gemma3", GEMMA3, streams=4)
    assert (split.fixed - shared.fixed, split.window_fixed - shared.window_fixed) == (24, 12)
    assert (split.token, split.window_token) == (shared.token, shared.window_token)


def layers(architecture: str, **changes: Any) -> tuple[Layer, ...] | None:
    values = {"block_count": 4, "embedding_length": 64, "attention.head_count": 4}
    values |= {name.replace("__", "."): value for name, value in changes.items()}
    return parse_header(head(architecture, values)).layers


def test_heads_of_each_layer() -> None:
    found = layers("deci", attention__head_count_kv=[4, 0, 2, 1])
    assert found == tuple(Layer(16 * heads, 16 * heads, windowed=False) for heads in (4, 0, 2, 1))
    assert layers("some") == (Layer(64, 64, windowed=False),) * 4


def test_which_layers_have_the_window() -> None:
    window = {"attention__sliding_window": 128}

    def windowed(architecture: str, **changes: Any) -> list[bool]:
        found = layers(architecture, **window, **changes)
        assert found is not None
        return [layer.windowed for layer in found]

    assert windowed("gpt-oss") == [True, False, True, False]
    assert windowed("olmo2") == [True, True, True, False]
    assert windowed("new", attention__sliding_window_pattern=3) == [True, True, False, True]
    assert windowed("gemma3", attention__sliding_window_pattern=[True, False, True, True]) == [True, False, True, True]
    assert windowed("qwen2") == [False] * 4  # llama.cpp uses no window there
    found = layers("gemma4", **window, attention__sliding_window_pattern=2, attention__key_length_swa=8)
    assert found is not None
    assert [layer.keys for layer in found] == [32, 64, 32, 64]


@pytest.mark.parametrize(
    ("architecture", "changes"),
    [
        ("mamba2", {"ssm__conv_kernel": 4}),
        ("deepseek2", {"attention__kv_lora_rank": 512}),
        ("gemma3n", {"attention__shared_kv_layers": 2}),
        ("glm4moe", {"nextn_predict_layers": 1}),
        ("llama4", {}),
        ("unheard-of", {"attention__sliding_window": 512}),
    ],
)
def test_caches_that_are_not_modelled(architecture: str, changes: dict[str, Any]) -> None:
    assert layers(architecture, **changes) is None


def test_no_size_where_something_is_not_known() -> None:
    header = parse_header(head("llama", SMOLLM2))
    assert entry_size(header, "q2_0") is None
    assert entry_size(header, "f16", "turbo") is None
    assert entry_size(parse_header(head("llama4", SMOLLM2))) is None


def test_the_tokenizer_is_not_read() -> None:
    data = head("llama", SMOLLM2, more={"tokenizer.ggml.model": "gpt2"})
    assert parse_header(data[: data.index(b"gpt2")]).n_ctx_train == 8192


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "ends too early"),
        (b"PK\3\4 and more", "not a GGUF file"),
        (head("llama", SMOLLM2, version=1), "not a GGUF version"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "not a GGUF version"),
        (head("llama", SMOLLM2)[:-1], "ends too early"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 2**63), "ends too early"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + text("a") + struct.pack("<I", 99), "unknown type"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + text("a") + struct.pack("<IIQ", 9, 9, 1), "array of an unknown type"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + text("a") + struct.pack("<IIQ", 9, 10, 2**62), "ends too early"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 0), "no general.architecture"),
        (head("llama", {}), "block_count: not a count"),
        (head("llama", {"block_count": 0}), "block_count: not a number"),
        (head("llama", {"block_count": 2**31 - 1}), "block_count: not a number"),
        (head("llama", SMOLLM2 | {"attention.head_count_kv": "3"}), "attention.head_count_kv: not a count"),
        (head("llama", SMOLLM2 | {"attention.head_count_kv": [3, 3]}), "not a count for each layer"),
        (head("llama", SMOLLM2 | {"attention.head_count_kv": [0.5] * 30}), "not a count for each layer"),
        (head("llama", SMOLLM2 | {"attention.key_length": 2**31}), "attention.key_length: not a count"),
    ],
)
def test_files_that_are_refused(data: bytes, why: str) -> None:
    with pytest.raises(GgufError, match=why):
        parse_header(data)


def test_a_long_array_is_passed_over() -> None:
    assert layers("llama", rope_freqs=[1] * 5000) == (Layer(64, 64, windowed=False),) * 4


def test_only_the_head_of_a_regular_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(head("llama", SMOLLM2) + bytes(2 * MAX_HEAD))
    assert read_header(path).n_ctx_train == 8192
    os.mkfifo(tmp_path / "pipe")
    for other in (tmp_path, tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(GgufError, match="not a regular file"):
            read_header(other)
    with pytest.raises(FileNotFoundError):
        read_header(tmp_path / "none")


VALID = head("gemma3", GEMMA3 | {"attention.sliding_window_pattern": [True] * 18})


@given(st.integers(0, len(VALID)), st.binary(max_size=40), st.integers(0, 40))
def test_whatever_the_file_holds_it_is_read_or_refused(at: int, written: bytes, removed: int) -> None:
    try:
        header = parse_header(VALID[:at] + written + VALID[at + removed :])
    except GgufError:
        return
    size = entry_size(header)
    assert size is None or size.of(1000, (500,)) >= 0
