"""Reading llama-server's flags from words, and from a process. A real server's process: tests/live/test_backend.py."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servers import llama_server_binary
from toki.flags import ServerFlags
from toki.flags import doubts
from toki.flags import is_loopback
from toki.flags import local_process
from toki.flags import parse_flags
from toki.flags import process_flags


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("", {}),
        ("llama-server -m model.gguf --port 8080", {}),
        ("-np 4", {"parallel": 4}),
        ("--parallel -1", {"parallel": -1}),
        ("-c 8192 --ctx-size 0", {"ctx": 0}),
        ("-kvu", {"kv_unified": True}),
        ("--kv-unified -no-kvu", {"kv_unified": False}),
        ("--no-kv-unified --kv-unified", {"kv_unified": True}),
        ("--kv-unified-per-slot 4096", {"kv_unified_per_slot": 4096}),
        ("-cram 0", {"cache_ram_mib": 0}),
        ("--cache-ram -1", {"cache_ram_mib": -1}),
        ("--cache_ram 16", {"cache_ram_mib": 16}),
        ("--cache-idle-slots", {"cache_idle_slots": True}),
        ("--no-cache-idle-slots", {"cache_idle_slots": False}),
        ("-sps 0.5", {"slot_prompt_similarity": 0.5}),
        ("--slot-prompt-similarity .25", {"slot_prompt_similarity": 0.25}),
        ("-sps 1e-1x", {"slot_prompt_similarity": 0.1}),
        ("--swa-full", {"swa_full": True}),
        ("--no-cache-prompt", {"cache_prompt": False}),
        ("--cache-prompt", {"cache_prompt": True}),
        ("--cache-reuse 256", {"cache_reuse": 256}),
        ("-ctxcp 8", {"ctx_checkpoints": 8}),
        ("--swa-checkpoints 9", {"ctx_checkpoints": 9}),
        ("--ctx-checkpoints 9", {"ctx_checkpoints": 9}),
        ("-cms 0", {"checkpoint_min_step": 0}),
        ("--checkpoint-min-step 256", {"checkpoint_min_step": 256}),
        ("-b 64 -ub 32", {"batch": 64, "ubatch": 32}),
        ("--batch-size 64 --ubatch-size 32", {"batch": 64, "ubatch": 32}),
        ("-ctk q8_0 --cache-type-v q4_0", {"cache_type_k": "q8_0", "cache_type_v": "q4_0"}),
        ("-md draft.gguf", {"draft_model": "draft.gguf"}),
        ("-hfd user/draft --spec-type draft-mtp", {"draft_repo": "user/draft", "spec_type": "draft-mtp"}),
        ("--context-shift", {"context_shift": True}),
        ("--no-context-shift", {"context_shift": False}),
        ("-np 8k", {"parallel": 8}),  # as C reads it
        ("-np", {}),
        ("-np many", {}),
        ("-np 99999999999", {}),
        ("-sps lots", {}),
        ("--PARALLEL 4 parallel 4 -parallel 4 --parallel=4", {}),
        ("--api-key 'a b' -np 2 extra", {"parallel": 2}),
    ],
)
def test_the_command_line(line: str, expected: dict[str, Any]) -> None:
    assert parse_flags(shlex.split(line), {}) == ServerFlags(**expected)


FLAG = re.compile(r"(?<![\w-])--?[a-zA-Z][\w-]*")
SLIPS = {
    "--cache-rma 0": ["--cache-rma (did you mean --cache-ram?)"],
    "-np 4 --cache_rma 0": ["--cache_rma (did you mean --cache-ram?)"],
    "--paralel 4 -c 8": ["--paralel (did you mean --parallel?)"],
    "--cache-ram=0": ["--cache-ram=0 (did you mean --cache-ram?)"],
    "--np 4": ["--np (did you mean -np?)"],
    "-kv-unified": ["-kv-unified (did you mean --kv-unified?)"],
    "np 4": ["np is no flag, and no value of one", "4 is no flag, and no value of one"],
    "-np 4 2": ["2 is no flag, and no value of one"],
    "--kv-unified 1": ["1 is no flag, and no value of one"],
    "-m model.gguf 8080": ["8080 is no flag, and no value of one"],
    "": [],
    "/bin/llama-server -m model.gguf --seed -1 -np 4": [],
    "llama serve -m model.gguf": [],
    "--control-vector-layer-range 1 2": [],
    "--flag-of-a-newer-build 3": [],
}


@pytest.mark.parametrize("line", SLIPS)
def test_a_slip_is_named(line: str) -> None:
    assert doubts(shlex.split(line)) == SLIPS[line]


@pytest.mark.live
def test_no_flag_of_a_real_server_looks_like_a_slip() -> None:
    told = subprocess.run([llama_server_binary(), "--help"], capture_output=True, text=True, check=True).stdout
    names = {name for line in told.splitlines() if line.startswith("-") for name in FLAG.findall(line)}
    assert len(names) > 300
    assert [doubt for name in sorted(names) for doubt in doubts([name])] == []


@pytest.mark.parametrize(
    ("env", "line", "expected"),
    [
        ({"LLAMA_ARG_N_PARALLEL": "2"}, "", {"parallel": 2}),
        ({"LLAMA_ARG_N_PARALLEL": "2"}, "-np 3", {"parallel": 3}),
        ({"LLAMA_ARG_KV_UNIFIED": "on"}, "", {"kv_unified": True}),
        ({"LLAMA_ARG_KV_UNIFIED": "disabled"}, "", {"kv_unified": False}),
        ({"LLAMA_ARG_NO_KV_UNIFIED": ""}, "", {"kv_unified": False}),
        ({"LLAMA_ARG_NO_KV_UNIFIED": "1", "LLAMA_ARG_KV_UNIFIED": "1"}, "", {"kv_unified": False}),
        ({"LLAMA_ARG_NO_CACHE_IDLE_SLOTS": "1"}, "--cache-idle-slots", {"cache_idle_slots": True}),
        ({"LLAMA_ARG_SWA_FULL": "true"}, "", {"swa_full": True}),
        ({"LLAMA_ARG_CHECKPOINT_MIN_SPACING_NT": "128"}, "", {"checkpoint_min_step": 128}),
        ({"LLAMA_ARG_KV_UNIFIED": "perhaps", "LLAMA_ARG_CACHE_RAM": "x", "PATH": "y"}, "", {}),
    ],
)
def test_the_environment(env: Mapping[str, str], line: str, expected: dict[str, Any]) -> None:
    assert parse_flags(shlex.split(line), env) == ServerFlags(**expected)


KNOWN = ["-np", "-c", "-kvu", "-no-kvu", "--cache-ram", "-sps", "--swa-full", "--cache-reuse", "--context_shift"]
WORDS = st.lists(st.sampled_from([*KNOWN, "4", "-1", "0.5", "nan", "inf", "1e999", "on", ""]) | st.text(max_size=8))
ENV = st.dictionaries(
    st.sampled_from(["LLAMA_ARG_CTX_SIZE", "LLAMA_ARG_NO_KV_UNIFIED", "LLAMA_ARG_SWA_FULL", "HOME"]),
    st.text(max_size=8),
)


@given(WORDS, ENV)
def test_no_word_makes_it_raise(words: list[str], env: dict[str, str]) -> None:
    assert isinstance(parse_flags(words, env), ServerFlags)
    assert all(isinstance(doubt, str) for doubt in doubts(words))


@given(WORDS, st.sampled_from(KNOWN))
def test_the_last_one_wins(words: list[str], flag: str) -> None:
    """Whatever stands before, even a flag that swallows the next word."""
    found = parse_flags([*words, "x", flag, "7"], {})
    alone = parse_flags([flag, "7"], {})
    changed = [name for name in ServerFlags.__slots__ if getattr(alone, name) is not None]
    assert [getattr(found, name) for name in changed] == [getattr(alone, name) for name in changed]


def process(proc: Path, pid: int, words: list[str], env: str, sockets: list[int]) -> None:
    """What /proc shows of a process, as far as it matters here."""
    (proc / f"{pid}" / "fd").mkdir(parents=True)
    (proc / f"{pid}" / "cmdline").write_bytes("".join(f"{word}\0" for word in words).encode())
    (proc / f"{pid}" / "environ").write_bytes(env.encode())
    (proc / f"{pid}" / "fd" / "0").symlink_to("/dev/null")
    for inode in sockets:
        (proc / f"{pid}" / "fd" / f"{inode}").symlink_to(f"socket:[{inode}]")


def local_flags(url: str, proc: Path) -> ServerFlags | None:
    found = local_process(url, proc)
    return None if found is None else process_flags(found)


HEAD = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
LISTENING = (
    "   0: {address}:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 {inode} 1 0 100\n"
)
CONNECTED = "   1: 0100007F:1F90 0100007F:C350 01 00000000:00000000 00:00000000 00000000     0        0 66 1 0 100\n"


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    (tmp_path / "net").mkdir()
    (tmp_path / "net" / "tcp").write_text(HEAD + CONNECTED + LISTENING.format(address="0100007F", inode=77))
    (tmp_path / "net" / "tcp6").write_text(HEAD)
    process(tmp_path, 5, ["sh"], "", [66])
    (tmp_path / "9").write_text("no directory")
    return tmp_path


def test_the_process_that_listens(proc: Path) -> None:
    env = "LLAMA_ARG_CACHE_RAM\0LLAMA_ARG_CTX_SIZE=512\0LLAMA_ARG_N_PARALLEL=3\0PATH=/bin\0"
    process(proc, 10, ["/usr/bin/llama-server", "-np", "2", "--api-key", "k"], env, [77])
    expected = ServerFlags(parallel=2, ctx=512)
    for url in ("http://127.0.0.1:8080", "http://localhost:8080/prefix", "http://[::1]:8080", "http://127.0.0.9:8080"):
        assert local_flags(url, proc) == expected


def test_a_socket_of_all_interfaces(proc: Path) -> None:
    (proc / "net" / "tcp").unlink()
    (proc / "net" / "tcp6").write_text(HEAD + LISTENING.format(address="0" * 32, inode=78))
    process(proc, 10, ["llama", "serve", "-np", "2"], "", [78])
    assert local_flags("http://127.0.0.1:8080", proc) == ServerFlags(parallel=2)


@pytest.mark.parametrize(
    "url",
    [
        "http://10.0.0.1:8080",
        "http://example.org:8080",
        "http://127.0.0.1:8081",
        "https://127.0.0.1",
        "http://[",
        "",
        "x",
    ],
)
def test_another_machine_or_port(proc: Path, url: str) -> None:
    process(proc, 10, ["llama-server"], "", [77])
    assert local_flags(url, proc) is None


@pytest.mark.parametrize("words", [[], ["python", "llama-server"], ["llama", "chat"], ["/bin/llama-server-proxy"]])
def test_something_that_is_no_llama_server(proc: Path, words: list[str]) -> None:
    process(proc, 10, words, "", [77])
    assert local_flags("http://127.0.0.1:8080", proc) is None


def test_a_process_that_may_not_be_read(proc: Path) -> None:
    process(proc, 10, ["llama-server"], "", [])  # as if its descriptors were another user's
    assert local_flags("http://127.0.0.1:8080", proc) is None


def test_no_proc(tmp_path: Path) -> None:
    assert local_flags("http://127.0.0.1:8080", tmp_path / "none") is None


def test_a_process_that_ended_meanwhile(proc: Path) -> None:
    process(proc, 10, ["llama-server"], "", [77])
    (proc / "10" / "cmdline").unlink()
    assert local_flags("http://127.0.0.1:8080", proc) is None


@pytest.mark.parametrize(
    ("url", "local"),
    [("http://127.0.0.1:8080/v1", True), ("http://localhost", True), ("https://10.0.0.1:8080", False), ("", False)],
)
def test_loopback(url: str, local: bool) -> None:
    assert is_loopback(url) is local
