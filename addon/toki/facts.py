"""What can be found out about a server's rules before the first request: from its flags and from its model file.

No URL shows the flags: /props has slots and context only. A user may give them, a process on this machine shows them,
and a router names those of its models. The size of the RAM cache is in bytes; the model file says what a token costs.
All of it is a first belief: where observation speaks against it, another hypothesis takes over (engine/rules.py).
"""

from __future__ import annotations

import logging
import shlex
from collections.abc import Sequence
from pathlib import Path

from toki.engine.rules import Known
from toki.engine.window import Window
from toki.flags import ServerFlags
from toki.flags import is_loopback
from toki.flags import local_process
from toki.flags import parse_flags
from toki.flags import process_flags
from toki.gguf import GgufError
from toki.gguf import Header
from toki.gguf import entry_size
from toki.gguf import read_header
from toki.server import Props

AUTOMATIC_SLOTS = 4  # where no number is given, or -1 (PR #16736)
CACHE_RAM = 8192  # MiB (PR #16391)
SIMILARITY = 0.1  # PR #15913
NEAR_END = 2  # checkpoints that each prefill leaves on a sliding-window model
_PADDING = 256  # the context of each slot is a multiple of it

logger = logging.getLogger(__name__)


def find_out(given: str, args: Sequence[str], url: str, props: Props) -> Known:
    """What is known of the server at `url` that says `props`: looks at this machine's processes and files.

    `given`: its flags as the user says; `args`: its command line as a router says. Where both are empty those of its
    process count. Logs what was found in one line. Takes milliseconds; never raises.
    """
    process = local_process(url)
    flags, source = _flags(given, args, process)
    if flags is not None and _of_another(flags, props):
        logger.warning(f"toki: the server has {props.total_slots} slots, not as {source} say: they are not used")
        flags = None
    header = model_header(url, process, props.model)
    found = known(props, flags, header)
    if flags is not None or header is not None:
        sources = [source] if flags is not None else []
        sources += ["its model file"] if header is not None else []
        logger.info(f"toki: {' and '.join(sources)} say of the server: {_described(found)}")
    return found


def known(props: Props, flags: ServerFlags | None, header: Header | None) -> Known:
    """What the flags and the model say of how a server chooses, saves and loses. Flags that are not given have their
    defaults, as of b10434 and b11549; where no flags are known (None), nothing is said of what they decide."""
    if flags is None:
        usual = ServerFlags()
        return Known(unified=_split(props, header), window=_window(usual, header), whole=_whole(usual, header))
    unified = _unified(flags, props)
    pool = _pool(flags, header, props) if unified else None
    ram, ram_entry = _ram(flags, header, props, unified, pool)
    return Known(
        unified=unified,
        idle_save=flags.cache_idle_slots is not False and ram != 0,
        ram=ram,
        ram_entry=ram_entry,
        sps=SIMILARITY if flags.slot_prompt_similarity is None else flags.slot_prompt_similarity,
        window=_window(flags, header),
        whole=_whole(flags, header),
        pool=pool,
    )


def _flags(given: str, args: Sequence[str], process: Path | None) -> tuple[ServerFlags | None, str]:
    """The flags and where they come from, in the plural."""
    if given:
        return parse_flags(shlex.split(given), {}), "the flags given as toki_server_flags"
    if args:
        return parse_flags(args, {}), "the flags that the router names"
    if process is not None:
        return process_flags(process), "the flags of its process"
    return None, ""


def _of_another(flags: ServerFlags, props: Props) -> bool:
    """Whether another number of slots was asked for than the server has."""
    return flags.parallel is not None and flags.parallel > 0 and flags.parallel != props.total_slots


def model_header(url: str, process: Path | None, model: str) -> Header | None:
    """The head of the model file. Only of a server on this machine: elsewhere the same path may be another file."""
    if not model or not is_loopback(url):
        return None
    path = Path(model) if process is None else process / "cwd" / model  # absolute ones stay as they are
    if not path.is_absolute():
        return None
    try:
        return read_header(path)
    except (OSError, ValueError) as error:
        why = str(error) if isinstance(error, GgufError) else type(error).__name__
        logger.debug(f"toki: the server's model file can't be read: {why}")
        return None


def _split(props: Props, header: Header | None) -> bool | None:
    """False where the slots split the model's whole context, which is what a server does that got no -c and no -kvu.

    So b10434. Where each slot has the whole, nothing follows: b11549 gives it to split slots too. Nor where there are
    as many as a server makes by itself: those are unified, and -c may name that very share.
    """
    if header is None or props.total_slots in (1, AUTOMATIC_SLOTS) or not header.n_ctx_train:
        return None
    share = -(-header.n_ctx_train // props.total_slots)
    return False if props.n_ctx == _padded(share) else None


def _unified(flags: ServerFlags, props: Props) -> bool | None:
    """An explicit number of slots leaves the KV cache split unless told otherwise; the automatic one never does."""
    if flags.parallel is not None and flags.parallel > 0:
        return bool(flags.kv_unified)
    return True if props.total_slots == AUTOMATIC_SLOTS else flags.kv_unified  # older builds had one slot


def _pool(flags: ServerFlags, header: Header | None, props: Props) -> int | None:
    """The cells that unified slots share, where each slot is held to fewer (PR #24124); None: each may have them all.

    With no -c there are as many as all slots together may fill.
    """
    most = flags.kv_unified_per_slot
    if most is None or not 0 < props.n_ctx <= most:  # a build that does not know the flag gives a slot more
        return None
    if flags.ctx is None:
        return _padded(most * props.total_slots)
    whole = flags.ctx or (0 if header is None else header.n_ctx_train)
    return _padded(whole) if whole > props.n_ctx else None


def _padded(cells: int) -> int:
    return -(-cells // _PADDING) * _PADDING


def _whole(flags: ServerFlags, header: Header | None) -> bool:
    """Whether all layers keep all tokens, so that a prompt may branch anywhere."""
    if header is None or header.recurrent or header.layers is None or header.window is None:
        return False
    return not header.window or bool(flags.swa_full)


def _window(flags: ServerFlags, header: Header | None) -> Window | None:
    """The model's sliding window, where old tokens leave it."""
    if header is None or not header.window or flags.swa_full:
        return None
    usual = Window(header.window)
    batch = usual.batch if flags.batch is None else max(flags.batch, 1)
    ubatch = usual.ubatch if flags.ubatch is None else flags.ubatch
    return Window(
        header.window,
        batch=batch,
        ubatch=min(ubatch, batch) if ubatch > 0 else batch,  # llama.cpp, src/llama-context.cpp
        min_step=usual.min_step if flags.checkpoint_min_step is None else max(flags.checkpoint_min_step, 0),
        most=usual.most if flags.ctx_checkpoints is None else max(flags.ctx_checkpoints, 0),
    )


def _ram(
    flags: ServerFlags, header: Header | None, props: Props, unified: bool | None, pool: int | None
) -> tuple[int | None, int]:
    """The size of the RAM cache and the fixed cost of an entry, in tokens; None where the size is not known.

    On a sliding-window model an entry also holds the window and its checkpoints, each a copy of the window: the cost is
    that of one that is longer than the window, with the checkpoints of one prefill.
    -1 is not unlimited: the tokens are then at most the whole context (llama.cpp b11434, server-context.cpp 1492).
    """
    mib = CACHE_RAM if flags.cache_ram_mib is None else flags.cache_ram_mib
    if mib == 0:
        return 0, 0
    if mib < 0:
        return pool or props.n_ctx * (1 if unified else props.total_slots), 0
    if header is None or flags.draft_model or flags.draft_repo or "draft" in (flags.spec_type or ""):
        return None, 0  # an entry holds the draft model's state too
    window = _window(flags, header)
    streams = 1 if unified else props.total_slots
    size = entry_size(header, flags.cache_type_k or "f16", flags.cache_type_v or "f16", streams)
    if size is None or not size.token:
        return None, 0
    checkpoints = min(NEAR_END, window.most) if window else 0
    entry = size.of(size.window, [size.window] * checkpoints) - size.token * size.window
    return mib * 2**20 // size.token, round(entry / size.token)


def _described(found: Known) -> str:
    """In words, for the log; nothing of the command line itself."""
    said = {
        "unified KV cache": _yes_or_no(found.unified),
        "idle slots saved": _yes_or_no(found.idle_save),
        "RAM cache": "" if found.ram is None else f"{found.ram:,} tokens",
        "slot similarity": "" if found.sps is None else f"{found.sps:g}",
        "window": f"{found.window.tokens:,} tokens" if found.window else "none",
    }
    return ", ".join(f"{name}: {value or 'unknown'}" for name, value in said.items())


def _yes_or_no(value: bool | None) -> str:
    return "" if value is None else "yes" if value else "no"
