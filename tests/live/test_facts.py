"""What is found out about real servers of both builds: flags, model, and how much the RAM cache holds."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any
from typing import Literal

import pytest
from tests.live.conftest import MODELS
from tests.live.conftest import Llama

from servers import Build
from servers import Flags
from servers import LlamaServer
from toki.engine.rules import Known
from toki.engine.rules import hypotheses
from toki.engine.window import Window
from toki.facts import find_out
from toki.facts import known
from toki.flags import local_process
from toki.flags import parse_flags
from toki.gguf import EntrySize
from toki.gguf import entry_size
from toki.gguf import read_header
from toki.server import Auth
from toki.server import LlamaServerBackend

Model = Literal["tiny", "smollm2", "gemma3"]
NOBODY = Auth()
PATIENCE = 120.0
SAVED_HEAD = 20  # bytes of a saved slot's file before its token ids
ID = 4  # bytes


def prompt(length: int, seed: int) -> list[int]:
    draw = random.Random(seed)
    return [draw.randrange(300, 2000) for _ in range(length)]


def reused(backend: LlamaServerBackend, ids: list[int]) -> int:
    """Evaluate a prompt on slot 0 and sample one token, which the slot does not keep."""
    answer = backend.completion({"prompt": ids, "n_predict": 0, "id_slot": 0}, NOBODY, PATIENCE)
    return int(answer["timings"]["cache_n"])


def size_of(model: Model, streams: int = 1) -> EntrySize:
    size = entry_size(read_header(MODELS[model]()), streams=streams)
    assert size is not None
    return size


def found(server: LlamaServer) -> Known:
    backend = LlamaServerBackend(server.url)
    try:
        return find_out("", (), server.url, backend.props(NOBODY, PATIENCE))
    finally:
        backend.close()


@pytest.mark.parametrize(
    ("model", "lengths", "slots"),
    [
        ("tiny", (100, 3000), None),
        ("tiny", (100, 3000), 2),
        ("smollm2", (60, 240), None),
        ("gemma3", (100, 600), 2),
    ],
)
def test_a_saved_slot_is_as_large_as_was_reckoned(
    fresh_llama: Llama, build: Build, model: Model, lengths: tuple[int, ...], slots: int | None, tmp_path: Path
) -> None:
    server = fresh_llama(model, build, n_parallel=slots, n_ctx=8192, slot_save_path=str(tmp_path))
    size = size_of(model, slots or 1)
    backend = LlamaServerBackend(server.url)
    for length in lengths:
        reused(backend, prompt(length, length))
        saved = backend.cache_save(0, f"of-{length}", NOBODY, PATIENCE)
        ends = (length - 516, length - 4) if model == "gemma3" and build == "xllamacpp" else ()  # b10434 saves none
        reckoned = SAVED_HEAD + ID * length + size.of(length, [end for end in ends if end > 0])
        assert saved["n_saved"] == length
        assert saved["n_written"] == pytest.approx(reckoned, rel=0.01)
        if not ends:
            assert saved["n_written"] == pytest.approx(reckoned, abs=16)
    backend.close()


@pytest.mark.parametrize(("mib", "length"), [(1, 137), (1, 1725), (3, 1725)])
def test_the_ram_cache_holds_as_many_prompts_as_was_reckoned(
    fresh_llama: Llama, build: Build, mib: int, length: int
) -> None:
    server = fresh_llama("tiny", build, n_parallel=1, n_ctx=4096, cache_ram_mib=mib)
    size = size_of("tiny")
    room = mib * 2**20 // size.of(length)
    in_whole_tokens = (mib * 2**20 // size.token) // (length + round(size.fixed / size.token))
    assert in_whole_tokens == pytest.approx(room, rel=0.01)
    fill(server, room, length, full_reuse=True)


def test_checkpoints_count_as_part_of_an_entry(fresh_llama: Llama, build: Build) -> None:
    server = fresh_llama("gemma3", build, n_parallel=1, n_ctx=4096, cache_ram_mib=10)
    size = size_of("gemma3")
    room = 10 * 2**20 // size.of(150, [146])
    assert room == 2
    assert 10 * 2**20 // size.of(150) == 3  # without the checkpoint another one would fit
    fill(server, room, 150, full_reuse=False)


def fill(server: LlamaServer, room: int, length: int, *, full_reuse: bool) -> None:
    """Send more prompts than fit, each of which pushes the one before out of the only slot into RAM; then ask for the
    oldest that must still be there, once the last one joined them, and for the one before."""
    backend = LlamaServerBackend(server.url)
    prompts = [prompt(length, seed) for seed in range(room + 3)]
    for ids in prompts:
        assert reused(backend, ids) == 0
    kept = reused(backend, prompts[-room])
    assert kept == length - 1 if full_reuse else kept > length // 2
    assert reused(backend, prompts[-room - 1]) == 0
    backend.close()


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({}, Known(unified=True, idle_save=True, ram=113_025_455, ram_entry=1, sps=0.1, whole=True)),
        ({"n_parallel": 4}, Known(unified=False, idle_save=True, ram=113_025_455, ram_entry=1, sps=0.1, whole=True)),
        ({"n_parallel": 4, "cache_ram_mib": 0}, Known(unified=False, idle_save=False, ram=0, sps=0.1, whole=True)),
        (
            {"n_parallel": 2, "n_ctx": 4096, "cache_ram_mib": -1, "slot_prompt_similarity": 0},
            Known(unified=False, idle_save=True, ram=4096, sps=0.0, whole=True),
        ),
        (
            {"n_parallel": 16, "kv_unified": True, "cache_idle_slots": False, "cache_ram_mib": 3},
            Known(unified=True, idle_save=False, ram=41_391, ram_entry=1, sps=0.1, whole=True),
        ),
    ],
)
def test_a_server_on_this_machine(fresh_llama: Llama, flags: dict[str, Any], expected: Known) -> None:
    server = fresh_llama(**flags)
    began = time.perf_counter()
    assert found(server) == expected
    assert time.perf_counter() - began < 1  # milliseconds, but for other work on this machine


def test_a_sliding_window(llama: Llama, build: Build) -> None:
    """The model file is read of a server inside another program too, whose flags nothing shows."""
    server = llama("gemma3", build, n_parallel=2, n_ctx=1024, n_ubatch=128)
    known = found(server)
    if build == "skulk":
        assert known.window == Window(512, ubatch=128)
        assert (known.unified, known.ram) == (False, 8192 * 2**20 // 3084)
        assert known.ram_entry == pytest.approx(3 * 512 * 15_372 / 3084, abs=1)
    else:
        assert local_process(server.url) is None
        assert known == Known(window=Window(512))


def test_split_slots_show_in_their_context_on_one_build(llama: Llama, build: Build) -> None:
    """b10434 splits the model's context, b11549 gives it to each slot: only a share proves anything."""
    split = llama("tiny", build, n_parallel=4)
    backend = LlamaServerBackend(split.url)
    props = backend.props(NOBODY, PATIENCE)
    backend.close()
    trained = read_header(MODELS["tiny"]()).n_ctx_train
    assert props.n_ctx == (trained // 4 if build == "skulk" else trained)
    if build == "xllamacpp":
        assert found(split).unified is None


def test_unified_slots_hold_more_together_than_one_may_fill(fresh_llama: Llama) -> None:
    shape: dict[str, Any] = {
        "n_parallel": 2,
        "n_ctx": 4096,
        "kv_unified": True,
        "kv_unified_per_slot": 2304,
        "cache_ram_mib": 0,
    }
    server = fresh_llama("tiny", "xllamacpp", **shape)
    backend = LlamaServerBackend(server.url)
    props = backend.props(NOBODY, PATIENCE)
    assert props.n_ctx == 2304
    rules = hypotheses(2, props.n_ctx, known(props, parse_flags(Flags(**shape).argv(), {}), None))[0]
    assert (rules.unified, rules.pool) == (True, 4096)
    for expected in (0, 1499):
        for slot in (0, 1):
            body = {"prompt": prompt(1500, slot), "n_predict": 0, "id_slot": slot}
            answer = backend.completion(body, NOBODY, PATIENCE)
            assert answer["timings"]["cache_n"] == expected, "both stay, which are more than one may fill"
    backend.close()
