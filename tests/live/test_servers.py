"""The servers that all other live tests stand on: both builds obey the same flags, and none outlives its test."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import requests
from tests.live.conftest import Llama

from servers import CACHE
from servers import Build
from servers import Flags
from servers import LlamaServer
from servers import free_port
from servers import start
from servers import tiny_model

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"


def get(server: LlamaServer, path: str, **headers: str) -> Any:
    answer = requests.get(server.url + path, headers=headers, timeout=10)
    answer.raise_for_status()
    return answer.json()


def complete(server: LlamaServer, prompt: str, **fields: Any) -> Any:
    body = {"prompt": prompt, "n_predict": 2, "temperature": 0, **fields}
    answer = requests.post(server.url + "/completion", json=body, timeout=30)
    answer.raise_for_status()
    return answer.json()


def held(server: LlamaServer) -> list[int]:
    """How many tokens each slot holds."""
    return [slot.get("n_prompt_tokens", 0) for slot in get(server, "/slots")]


def unlike(number: int) -> str:
    return f"{number} topic " * 40


def test_default_flags_are_the_command_line_s(fresh_llama: Llama, build: Build) -> None:
    server = fresh_llama(build=build)
    props = get(server, "/props")
    assert props["total_slots"] == 4
    assert props["default_generation_settings"]["n_ctx"] == 262_144  # unified: each slot may use all

    first = complete(server, unlike(1))
    second = complete(server, unlike(2))
    assert [first["id_slot"], second["id_slot"]] == [3, 2]
    assert held(server)[3] == 0, "an idle slot is cleared at the next launch"
    assert held(server)[2] > 0

    again = complete(server, unlike(1))
    assert again["timings"]["cache_n"] > 100, "and comes back from the RAM cache"


def test_explicit_slots_split_the_context_and_keep_it(fresh_llama: Llama, build: Build) -> None:
    server = fresh_llama(build=build, n_parallel=2, n_ctx=4096)
    props = get(server, "/props")
    assert (props["total_slots"], props["default_generation_settings"]["n_ctx"]) == (2, 2048)
    complete(server, unlike(1))
    complete(server, unlike(2))
    assert min(held(server)) > 0


def test_unified_slots_that_keep_their_contents(fresh_llama: Llama, build: Build) -> None:
    server = fresh_llama(build=build, n_parallel=3, n_ctx=4096, kv_unified=True, cache_idle_slots=False)
    assert get(server, "/props")["default_generation_settings"]["n_ctx"] == 4096
    for number in range(3):
        complete(server, unlike(number))
    assert min(held(server)) > 0


@pytest.mark.parametrize(("size", "back"), [(None, True), (0, False)])
def test_ram_cache(fresh_llama: Llama, build: Build, size: int | None, back: bool) -> None:
    server = fresh_llama(build=build, n_parallel=1, n_ctx=4096, cache_ram_mib=size)
    complete(server, unlike(1))
    complete(server, unlike(2))
    reused = complete(server, unlike(1))["timings"]["cache_n"]
    assert reused > 100 if back else reused < 10


def test_similarity(fresh_llama: Llama, build: Build) -> None:
    """With -sps 0 no slot is chosen for what it holds."""
    server = fresh_llama(build=build, n_parallel=2, n_ctx=4096, slot_prompt_similarity=0.0, cache_ram_mib=0)
    slots = [complete(server, unlike(1))["id_slot"] for _ in range(3)]
    assert slots == [1, 0, 1]


def test_keys_prefix_and_endpoints(fresh_llama: Llama, build: Build, tmp_path: Path) -> None:
    server = fresh_llama(
        build=build,
        n_parallel=2,
        n_ctx=2048,
        api_key="one,two",
        api_prefix="/llama",
        metrics=True,
        slot_save_path=str(tmp_path),
    )
    assert server.url.endswith("/llama")
    with pytest.raises(requests.HTTPError, match="401"):
        get(server, "/slots")
    for key in ("one", "two"):
        assert len(get(server, "/slots", Authorization=f"Bearer {key}")) == 2
    headers = {"X-Api-Key": "two"}
    assert requests.get(server.url + "/metrics", headers=headers, timeout=10).status_code == 200
    requests.post(server.url + "/completion", json={"prompt": "a", "n_predict": 1}, headers=headers, timeout=10)
    saved = requests.post(server.url + "/slots/1?action=save", json={"filename": "s"}, headers=headers, timeout=10)
    assert saved.status_code == 200, saved.text
    assert (tmp_path / "s").stat().st_size == saved.json()["n_written"]


def test_no_slots_endpoint(fresh_llama: Llama, build: Build) -> None:
    with pytest.raises(requests.HTTPError, match="501"):
        get(fresh_llama(build=build, slots=False), "/slots")


def test_embeddings(fresh_llama: Llama, build: Build) -> None:
    server = fresh_llama(build=build, embeddings=True, pooling="mean", n_ctx=512, n_parallel=1)
    answer = requests.post(server.url + "/v1/embeddings", json={"input": "some words"}, timeout=10).json()
    assert len(answer["data"][0]["embedding"]) == 64


def test_equal_flags_share_a_server(llama: Llama) -> None:
    one = llama(n_parallel=1, n_ctx=512)
    assert llama(n_ctx=512, n_parallel=1) is one
    assert llama(n_parallel=1, n_ctx=1024) is not one


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_ended_means_gone(build: Build, end: str) -> None:
    port = free_port()
    for _ in range(2):  # the port is free again at once
        server = start(tiny_model(), Flags(n_ctx=512), build, port)
        getattr(server, end)()
        getattr(server, end)()  # harmless
        assert not server.running
        with pytest.raises(ProcessLookupError):
            os.kill(server.pid, 0)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_in_the_middle_of_a_start_leaves_no_process(number: signal.Signals) -> None:
    program = f"""
import os, subprocess, sys, servers, signal
signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))
made = subprocess.Popen
def interrupted(*given, **options):
    process = made(*given, **options)
    if options.get("stdout"):
        print(process.pid, flush=True)
        signal.raise_signal({int(number)})
    return process
servers.subprocess.Popen = interrupted
servers.start(servers.tiny_model())
"""
    scripts = str(Path(__file__).resolve().parents[2] / "scripts")
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": scripts},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode != 0
    with pytest.raises(ProcessLookupError):
        os.kill(int(done.stdout), 0)


def test_a_failed_start_shows_the_log() -> None:
    with pytest.raises(RuntimeError, match=r"(?s)ended at its start.*no-such-model"):
        start(Path("no-such-model.gguf"))


def test_a_start_in_vain_leaves_nothing() -> None:
    with pytest.raises(RuntimeError, match="not ready in time"):
        start(tiny_model(), timeout=0.0)


def test_servers_die_with_a_parent_that_was_killed(build: Build) -> None:
    program = (
        "import servers, sys\n"
        f"server = servers.start(servers.tiny_model(), servers.Flags(n_ctx=512), {build!r})\n"
        "print(server.pid, flush=True)\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(SCRIPTS)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as parent:
        assert parent.stdout
        pid = int(parent.stdout.readline())
        parent.kill()
        parent.wait()
    try:
        assert ended(pid, timeout=10)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def ended(pid: int, timeout: float) -> bool:
    """Whether a process that is not our child ends within `timeout` seconds."""
    try:
        watched = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([watched], [], [], timeout)[0])
    finally:
        os.close(watched)


def test_command_line() -> None:
    flags = Flags(n_parallel=2, kv_unified=True, cache_idle_slots=False, slot_prompt_similarity=0.5, threads=None)
    assert flags.argv() == [
        *("--parallel", "2", "--kv-unified", "--no-cache-idle-slots"),
        *("--slot-prompt-similarity", "0.5", "--no-warmup"),
    ]
    with pytest.raises(ValueError, match="metrics=False"):
        Flags(metrics=False).argv()


def test_made_files_are_cached() -> None:
    assert tiny_model() == tiny_model()
    assert tiny_model().is_relative_to(CACHE)
