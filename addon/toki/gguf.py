"""The head of a GGUF model file: what one entry of llama-server's RAM prompt cache costs, and the attention window.

llama-server limits its RAM cache in bytes and shows neither sizes nor limit; the model's shape gives the bytes. Only a
few numbers before the tokenizer are needed, so one read of at most a MiB does. The `gguf` package is no dependency: it
maps the whole file and builds every field and tensor (seconds for a large vocabulary), and it trusts the file. Nothing
here does: every length is checked against what is there.

Sizes are those of llama_state_seq_get_size (llama.cpp, src/llama-kv-cache.cpp and llama-kv-cache-iswa.cpp), compared
with two builds, b10434 and b11549: tests/live/test_facts.py.
"""

from __future__ import annotations

import stat
import struct
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

MAX_HEAD = 2**20  # bytes; what comes before the tokenizer takes some KiB
MAX_LAYERS = 4096
_SUPPORTED = (2, 3)  # GGUF versions; the first one had other lengths
_STRING, _ARRAY, _BOOL = 8, 9, 7
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", _BOOL: "?", 10: "Q", 11: "q", 12: "d"}

# Of each so many layers the last has full attention, unless the file says otherwise (src/llama-model.cpp).
_WINDOW_PATTERN = {"gemma2": 2, "gemma3": 6, "cohere2": 4, "gpt-oss": 2, "olmo2": 4, "exaone4": 4}
_FULL = {"llama", "qwen2", "qwen2moe", "qwen3", "qwen3moe"}  # a window that the file names is not used
_UNSUPPORTED = {"llama4"}  # attends in chunks
# Hints at what is kept beside or instead of one row of K and V a layer: recurrent states, compressed or shared rows,
# layers for speculation.
_RECURRENT = ("ssm.", "wkv.", "kda.", "shortconv.")
_OTHER_STATE = (*_RECURRENT, "attention.kv_lora_rank")
_OTHER_LAYERS = ("attention.shared_kv_layers", "nextn_predict_layers")

_BLOCKS = {  # elements and bytes of a block (ggml/src/ggml-common.h)
    "f32": (1, 4),
    "f16": (1, 2),
    "bf16": (1, 2),
    "q8_0": (32, 34),
    "q4_0": (32, 18),
    "q4_1": (32, 20),
    "iq4_nl": (32, 18),
    "q5_0": (32, 22),
    "q5_1": (32, 24),
}
_OF_SEQUENCE = 16  # bytes before the caches; 8 in older builds
_OF_CACHE = 16  # number of streams and cells, layout, number of layers
_OF_STREAM = 4  # a count of cells for each further stream, of which only one has any
_OF_LAYER = 24  # type and row size of K and of V
_OF_CELL = 12  # position, number of sequences, the sequence

Value = int | float | bool | str | tuple[int, ...]


class GgufError(ValueError):
    """The file is no GGUF, damaged, or says too little. The message never holds anything of the file."""


@dataclass(frozen=True, slots=True)
class Layer:
    """What a layer keeps for each token: elements of K and of V, for all tokens or (`windowed`) those of the window."""

    keys: int
    values: int
    windowed: bool


@dataclass(frozen=True, slots=True)
class Header:
    """The shape of a model, as far as its cache depends on it."""

    architecture: str
    n_ctx_train: int  # tokens; 0: not said
    window: int | None  # n_swa in tokens; 0: full attention; None: not known of this architecture
    layers: tuple[Layer, ...] | None  # None: the cache is of a kind that is not modelled here
    recurrent: bool = False  # it has recurrent layers (hybrid models too): their state can't be taken back


@dataclass(frozen=True, slots=True)
class EntrySize:
    """Bytes of one RAM cache entry."""

    fixed: int
    token: int  # for each token, in the layers with full attention
    window: int  # tokens
    window_fixed: int  # of each checkpoint
    window_token: int  # for each token in the window, in the layers that keep no others

    def of(self, length: int, checkpoints: Iterable[int] = ()) -> int:
        """An entry of `length` tokens with checkpoints after so many tokens each, which are copies of the window."""
        size = self.fixed + self.token * length + self.window_token * min(length, self.window)
        return size + sum(self.window_fixed + self.window_token * min(at, self.window) for at in checkpoints)


def read_header(path: Path) -> Header:
    """Read the head of a model file. Raises GgufError, and OSError where the file cannot be read."""
    if not stat.S_ISREG(path.stat().st_mode):  # opening a pipe or a device may wait for ever
        raise GgufError("not a regular file")
    with path.open("rb", buffering=0) as file:
        return parse_header(file.read(MAX_HEAD))


def parse_header(head: bytes) -> Header:
    """The shape of the model whose file begins with `head`. Raises GgufError."""
    return _header(_Cursor(head).metadata())


def entry_size(header: Header, type_k: str = "f16", type_v: str = "f16", streams: int = 1) -> EntrySize | None:
    """What a RAM cache entry costs with these cache types (-ctk, -ctv); None where that is not known.

    `streams`: 1 where the KV cache is unified, else the number of slots. Of the window layers only the window is
    stored, even where they keep all (--swa-full).
    """
    if header.layers is None or header.window is None or type_k not in _BLOCKS or type_v not in _BLOCKS:
        return None
    windowed = [layer for layer in header.layers if layer.windowed]
    full = [layer for layer in header.layers if not layer.windowed]
    window_token = _of_token(windowed, type_k, type_v)
    window_fixed = _of_cache(windowed, streams)
    fixed = _OF_SEQUENCE + _of_cache(full, streams) + window_fixed
    token = _of_token(full, type_k, type_v)
    return EntrySize(fixed, token, header.window, _OF_SEQUENCE + window_fixed, window_token)


def _of_cache(layers: Sequence[Layer], streams: int) -> int:
    return _OF_CACHE + _OF_STREAM * (streams - 1) + _OF_LAYER * len(layers) if layers else 0


def _of_token(layers: Sequence[Layer], type_k: str, type_v: str) -> int:
    rows = sum(_row(type_k, layer.keys) + _row(type_v, layer.values) for layer in layers)
    return rows + _OF_CELL if layers else 0


def _row(cache_type: str, elements: int) -> int:
    of, size = _BLOCKS[cache_type]
    return elements // of * size


def _header(found: Mapping[str, Value]) -> Header:
    architecture = found.get("general.architecture")
    if not isinstance(architecture, str):
        raise GgufError("no general.architecture")
    prefix = f"{architecture}."
    values = {key.removeprefix(prefix): value for key, value in found.items() if key.startswith(prefix)}
    count = _whole(values, "block_count")
    if not 0 < count <= MAX_LAYERS:
        raise GgufError("block_count: not a number of layers")
    window, windowed = _windows(architecture, values, count)
    odd = any(key.startswith(_OTHER_STATE) for key in values) or any(values.get(key) for key in _OTHER_LAYERS)
    layers = None if odd or window is None else _layers(values, windowed)
    recurrent = any(key.startswith(_RECURRENT) for key in values)
    return Header(architecture, _whole(values, "context_length", 0), window, layers, recurrent)


def _layers(values: Mapping[str, Value], windowed: Sequence[bool]) -> tuple[Layer, ...]:
    count = len(windowed)
    heads = _each(values, "attention.head_count", count)
    heads_kv = _each(values, "attention.head_count_kv", count) if "attention.head_count_kv" in values else heads
    width = _whole(values, "embedding_length", 0) // max(heads[0], 1)
    keys = _whole(values, "attention.key_length", width)
    vals = _whole(values, "attention.value_length", width)
    keys_swa = _whole(values, "attention.key_length_swa", keys)
    vals_swa = _whole(values, "attention.value_length_swa", vals)
    return tuple(
        Layer(number * (keys_swa if swa else keys), number * (vals_swa if swa else vals), swa)
        for number, swa in zip(heads_kv, windowed, strict=True)
    )


def _windows(architecture: str, values: Mapping[str, Value], count: int) -> tuple[int | None, list[bool]]:
    """The window in tokens, and which layers have it."""
    full = [False] * count
    pattern = values.get("attention.sliding_window_pattern", _WINDOW_PATTERN.get(architecture))
    window = _whole(values, "attention.sliding_window", 0)
    if architecture in _UNSUPPORTED:
        return None, full
    if not window or architecture in _FULL:
        return 0, full
    if isinstance(pattern, tuple) and len(pattern) >= count:
        return window, [bool(swa) for swa in pattern[:count]]
    if isinstance(pattern, int) and pattern > 0:
        return window, [layer % pattern < pattern - 1 for layer in range(count)]
    return None, full


def _whole(values: Mapping[str, Value], key: str, default: int | None = None) -> int:
    value = values.get(key, default)
    if not isinstance(value, int) or not 0 <= value < 2**31:
        raise GgufError(f"{key}: not a count")
    return value


def _each(values: Mapping[str, Value], key: str, count: int) -> tuple[int, ...]:
    """A count for each layer, where the file gives one or one for all."""
    value = values.get(key)
    if not isinstance(value, tuple):
        return (_whole(values, key),) * count
    if len(value) < count or not all(isinstance(one, int) and 0 <= one < 2**31 for one in value):
        raise GgufError(f"{key}: not a count for each layer")
    return value[:count]


class _Cursor:
    """Reads the key-value pairs of a GGUF head (format: ggml/docs/gguf.md); never beyond its end."""

    def __init__(self, head: bytes) -> None:
        self._head = head
        self._at = 0

    def metadata(self) -> dict[str, Value]:
        """All pairs before the tokenizer's, which are the bulk and come last (convert_hf_to_gguf.py).

        Long arrays and arrays of texts are passed over.
        """
        if self._take(4) != b"GGUF":
            raise GgufError("not a GGUF file")
        if self._number("I") not in _SUPPORTED:
            raise GgufError("not a GGUF version that is known")
        self._number("Q")  # tensors
        found: dict[str, Value] = {}
        for _ in range(self._number("Q")):
            key = self._text()
            if key.startswith("tokenizer."):
                break
            value = self._value(self._number("I"))
            if value is not None:
                found[key] = value
        return found

    def _take(self, size: int) -> bytes:
        start, self._at = self._at, self._at + size
        if self._at > len(self._head):
            raise GgufError("ends too early")
        return self._head[start : self._at]

    def _number(self, form: str) -> int:
        return int(self._scalar(form))

    def _scalar(self, form: str) -> int | float | bool:
        value: int | float | bool = struct.unpack(f"<{form}", self._take(struct.calcsize(f"<{form}")))[0]
        return value

    def _text(self) -> str:
        return self._take(self._number("Q")).decode("utf-8", "replace")

    def _value(self, kind: int) -> Value | None:
        if kind == _STRING:
            return self._text()
        if kind == _ARRAY:
            return self._array(self._number("I"), self._number("Q"))
        if kind not in _SCALARS:
            raise GgufError("a value of an unknown type")
        return self._scalar(_SCALARS[kind])

    def _array(self, kind: int, count: int) -> tuple[int, ...] | None:
        if kind == _STRING:
            for _ in range(count):
                self._take(self._number("Q"))
            return None
        if kind not in _SCALARS:
            raise GgufError("an array of an unknown type")
        form = _SCALARS[kind]
        data = self._take(count * struct.calcsize(f"<{form}"))
        return struct.unpack(f"<{count}{form}", data) if count <= MAX_LAYERS else None
