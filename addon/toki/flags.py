"""The flags that a llama-server runs with, as far as they can be known: they decide what it reuses, no URL shows them.

They come from a command line that the user gives (`toki_server_flags`), or from the process itself where the server
runs on this machine. Parsing follows llama.cpp's own rules (common/arg.cpp): the environment first, then the command
line from left to right; the last one wins.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field
from dataclasses import fields
from difflib import get_close_matches
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

NEAR = 0.89  # difflib's ratio: one letter of nine, or two that changed places
_TWO_VALUES = frozenset({"--control-vector-layer-range"})
_LISTEN = "0A"  # the state of a listening socket in /proc/net/tcp
_PORTS = {"http": 80, "https": 443}
_TRUE = frozenset({"on", "enabled", "true", "1"})
_FALSE = frozenset({"off", "disabled", "false", "0"})


def _int(word: str) -> int | None:
    """As C's stoi reads it: leading white space and trailing letters do not matter; None where it would refuse."""
    match = re.match(r"\s*([+-]?[0-9]+)", word)
    value = int(match[1]) if match and len(match[1]) < 20 else None
    return value if value is not None and -(2**31) <= value < 2**31 else None


def _float(word: str) -> float | None:
    match = re.match(r"\s*([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)", word)
    return float(match[1]) if match else None


def _bool(word: str) -> bool | None:
    return True if word in _TRUE else False if word in _FALSE else None


def _value(read: Callable[[str], Any], names: str, env: str = "") -> Any:
    """A flag that takes a value, under each of `names`."""
    return field(default=None, metadata={"read": read, "names": names.split(), "off": (), "env": env})


def _switch(names: str, off: str = "", env: str = "") -> Any:
    """A flag without a value, and its opposite where there is one."""
    return field(default=None, metadata={"read": _bool, "names": names.split(), "off": off.split(), "env": env})


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFlags:
    """What decides reuse among llama-server's flags (builds 10434 and 11549). None: not given, the server's default."""

    parallel: int | None = _value(_int, "-np --parallel", "N_PARALLEL")  # slots; -1 is automatic: four, unified
    ctx: int | None = _value(_int, "-c --ctx-size", "CTX_SIZE")  # tokens of all slots together; 0: the model's
    kv_unified: bool | None = _switch("-kvu --kv-unified", "-no-kvu --no-kv-unified", "KV_UNIFIED")
    kv_unified_per_slot: int | None = _value(_int, "--kv-unified-per-slot", "KV_UNIFIED_PER_SLOT")  # at most
    cache_ram_mib: int | None = _value(_int, "-cram --cache-ram", "CACHE_RAM")  # 0: no RAM cache, -1: no limit of bytes
    cache_idle_slots: bool | None = _switch("--cache-idle-slots", "--no-cache-idle-slots", "CACHE_IDLE_SLOTS")
    slot_prompt_similarity: float | None = _value(_float, "-sps --slot-prompt-similarity")
    swa_full: bool | None = _switch("--swa-full", env="SWA_FULL")
    cache_prompt: bool | None = _switch("--cache-prompt", "--no-cache-prompt", "CACHE_PROMPT")
    cache_reuse: int | None = _value(_int, "--cache-reuse", "CACHE_REUSE")
    ctx_checkpoints: int | None = _value(_int, "-ctxcp --ctx-checkpoints --swa-checkpoints", "CTX_CHECKPOINTS")
    checkpoint_min_step: int | None = _value(_int, "-cms --checkpoint-min-step", "CHECKPOINT_MIN_SPACING_NT")
    batch: int | None = _value(_int, "-b --batch-size", "BATCH")
    ubatch: int | None = _value(_int, "-ub --ubatch-size", "UBATCH")
    context_shift: bool | None = _switch("--context-shift", "--no-context-shift", "CONTEXT_SHIFT")
    cache_type_k: str | None = _value(str, "-ctk --cache-type-k", "CACHE_TYPE_K")
    cache_type_v: str | None = _value(str, "-ctv --cache-type-v", "CACHE_TYPE_V")
    draft_model: str | None = _value(str, "-md --model-draft --spec-draft-model", "SPEC_DRAFT_MODEL")
    draft_repo: str | None = _value(str, "-hfd -hfrd --hf-repo-draft --spec-draft-hf", "SPEC_DRAFT_HF_REPO")
    spec_type: str | None = _value(str, "--spec-type", "SPEC_TYPE")
    reasoning_preserve: bool | None = _switch("--reasoning-preserve", "--no-reasoning-preserve", "REASONING_PRESERVE")
    slots: bool | None = _switch("--slots", "--no-slots", "ENDPOINT_SLOTS")  # whether /slots is there


def parse_flags(argv: Sequence[str], env: Mapping[str, str]) -> ServerFlags:
    """Read a command line and LLAMA_ARG_* variables. What is unknown or malformed is passed over; never raises."""
    values: dict[str, Any] = {}
    for flag in fields(ServerFlags):
        read, off, variable = flag.metadata["read"], flag.metadata["off"], flag.metadata["env"]
        if variable and f"LLAMA_ARG_{variable}" in env:
            values[flag.name] = read(env[f"LLAMA_ARG_{variable}"])
        if variable and off and f"LLAMA_ARG_NO_{variable}" in env:
            values[flag.name] = False  # whatever its value
    words = iter(argv)
    for word in words:
        name, kind = _spelled(word)
        if name:
            values[name] = kind if isinstance(kind, bool) else kind(next(words, ""))
    return ServerFlags(**values)


def changed(argv: Sequence[str], flags: Mapping[str, str | bool]) -> list[str]:
    """A command line with these of ServerFlags' fields set: a value, or True and False of a switch. They come last, and
    what said something else before is gone. Nothing else is touched."""
    kept: list[str] = []
    words = iter(argv)
    for word in words:
        name, kind = _spelled(word)
        value = [] if not name or isinstance(kind, bool) else [next(words, "")]
        if name not in flags:
            kept += [word, *value]
    for name, given in flags.items():
        metadata = next(flag.metadata for flag in fields(ServerFlags) if flag.name == name)
        if isinstance(given, str):
            kept += [metadata["names"][0], given]
        elif given or metadata["off"]:  # a switch without an opposite is off where it is not named
            kept.append(metadata["names"][0] if given else metadata["off"][-1])
    return kept


def doubts(argv: Sequence[str]) -> list[str]:
    """What of a command line is most likely a slip, in plain words: a flag that is none of ServerFlags' but looks like
    one, and a word that is neither a flag nor behind one. Other flags pass, llama-server has hundreds; some that look
    similar are real, so closeness counts from NEAR on (none of build 10434 is that near)."""
    found: list[str] = []
    words = iter(_behind_its_name(argv) if _is_llama_server(argv) else argv)
    values = 0  # words that may follow as those of a flag that is not known here
    for word in words:
        name, kind = _spelled(word)
        if name:
            values = 0
            if not isinstance(kind, bool):
                next(words, "")
        elif re.match(r"-+[A-Za-z]", word):
            values = 2 if word in _TWO_VALUES else 1
            if near := _nearest(word):
                found.append(f"{word} (did you mean {near}?)")
        elif values:
            values -= 1
        else:
            found.append(f"{word} is no flag, and no value of one")
    return found


def _nearest(word: str) -> str:
    """The flag of ServerFlags that a word most likely means to be; "" where it is not that near to any."""
    bare = word.replace("_", "-").lstrip("-")
    same = next((name for name in _SPELLED if name.lstrip("-") == bare), "")
    long = [name for name in _SPELLED if name.startswith("--")]
    return same or next(iter(get_close_matches(f"--{bare}", long, 1, NEAR)), "")


def _spelled(word: str) -> tuple[str, Callable[[str], Any] | bool]:
    """The field of ServerFlags that a word of a command line names, and what it means: how to read the word that
    follows, or the value itself where none does. An empty name: another flag, or no flag."""
    return _SPELLED.get(word.replace("_", "-") if word.startswith("--") else word, ("", False))


def _spellings() -> Iterator[tuple[str, tuple[str, Callable[[str], Any] | bool]]]:
    for flag in fields(ServerFlags):
        read = flag.metadata["read"]
        yield from ((name, (flag.name, True if read is _bool else read)) for name in flag.metadata["names"])
        yield from ((name, (flag.name, False)) for name in flag.metadata["off"])


_SPELLED = dict(_spellings())


def local_process(base_url: str, proc: Path = Path("/proc")) -> Path | None:
    """The directory in `proc` of the llama-server that answers `base_url`.

    None where that can't be known: another machine, another system than Linux, a process of another user, a container's
    port, or something that is no llama-server.
    """
    port = _loopback_port(base_url)
    if port is None:
        return None
    sockets = {f"socket:[{inode}]" for inode in _listening(proc, port)}
    for process in proc.glob("[0-9]*"):
        if sockets and not sockets.isdisjoint(_open_files(process)):
            return process if _is_llama_server(_words(process / "cmdline")) else None
    return None


def process_flags(process: Path) -> ServerFlags:
    """The flags of a llama-server whose directory in /proc is given.

    Nothing else of the process is kept: its key may be among its words.
    """
    return parse_flags(command_line(process), environment(process))


def environment(process: Path) -> dict[str, str]:
    """The flags that it has from its environment, by the names of their variables."""
    pairs = (word.partition("=") for word in _words(process / "environ") if word.startswith("LLAMA_ARG_"))
    return {name: value for name, _, value in pairs}


def command_line(process: Path) -> list[str]:
    """The words behind the name of a llama-server whose directory in /proc is given: secrets may be among them."""
    return _behind_its_name(_words(process / "cmdline"))


def is_loopback(base_url: str) -> bool:
    """Whether the server is one of this machine."""
    return _loopback_port(base_url) is not None


def _loopback_port(base_url: str) -> int | None:
    try:
        parts = urlsplit(base_url)
        port = parts.port or _PORTS.get(parts.scheme)
        local = parts.hostname == "localhost" or ip_address(parts.hostname or "").is_loopback
    except ValueError:
        return None
    return port if local else None


def _listening(proc: Path, port: int) -> Iterator[str]:
    """The inodes of the sockets that listen on `port` of the loopback, or of all interfaces."""
    for table in ("tcp", "tcp6"):
        try:
            lines = (proc / "net" / table).read_text("ascii").splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            _, local, _, state, *rest = line.split()
            if state == _LISTEN and int(local.rpartition(":")[2], 16) == port:
                yield rest[5]


def _open_files(process: Path) -> Iterator[str]:
    try:
        for descriptor in (process / "fd").iterdir():
            try:
                yield str(descriptor.readlink())
            except OSError:
                continue  # closed meanwhile
    except OSError:
        return  # ended meanwhile, or another user's


def _words(path: Path) -> list[str]:
    try:
        return path.read_bytes().rstrip(b"\0").decode("utf-8", "replace").split("\0")
    except OSError:
        return []


def _behind_its_name(argv: Sequence[str]) -> list[str]:
    return list(argv[2:] if argv and Path(argv[0]).name == "llama" else argv[1:])  # `llama serve`


def _is_llama_server(argv: Sequence[str]) -> bool:
    """`llama-server`, or `llama serve` of builds that have one program for all."""
    program = Path(argv[0]).name if argv else ""
    return program == "llama-server" or (program == "llama" and argv[1:2] in (["serve"], ["server"]))
