"""The event log: all that engines heard and said, so that their decisions can be replayed and looked into anywhere.

JSON lines:

    {"format": 1, "log": "toki events", "toki": VERSION}          toki starts
    {"engine": 1, "min_reuse": 10, "mode": "auto"}                an engine is made: one per server and model
    {"engine": 1, "event": "Answered", "key": 7, "at": …, …}      it is told something,
    {"commands": [{"command": "Look"}, …], "engine": 1}           and this is its answer; with "raised": a fault

The fields are those of `toki.engine.events`, but nothing in them shows what a client wrote: no text, no names it
chose, no token ids, no credentials. What the engine must tell apart is disguised (`toki.disguise`). Token lists are
written as what lies behind the longest prefix shared with a list before: {"like": number of that list, counted from 1,
"shared": tokens, "more": base64 of int32, little endian}. A request costs 1.5 to 6 KB and 5.3 bytes for each new token.

Lines are made and written by one thread. A log with a hole replays to nothing, so with the first trouble it ends,
and says so; requests never notice.
"""

from __future__ import annotations

import json
import logging
import os
import queue
import threading
from base64 import b64decode
from base64 import b64encode
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import fields
from dataclasses import is_dataclass
from dataclasses import replace
from enum import StrEnum
from functools import cache
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version
from itertools import count
from pathlib import Path
from types import NoneType
from types import UnionType
from typing import IO
from typing import Any
from typing import get_args
from typing import get_origin
from typing import get_type_hints

import numpy as np
import numpy.typing as npt

from toki.disguise import Disguise
from toki.disguise import End
from toki.engine.core import Engine
from toki.engine.embedding import embed_prefix
from toki.engine.events import Arrived
from toki.engine.events import Ask
from toki.engine.events import Command
from toki.engine.events import Event
from toki.engine.events import Mode
from toki.engine.events import Prime
from toki.engine.events import Read
from toki.engine.events import Record
from toki.engine.events import Replied
from toki.engine.events import Send
from toki.engine.tokens import Tokens
from toki.engine.window import Window

EVENTS: dict[str, type] = {kind.__name__: kind for kind in get_args(Event)}
LOG = "toki events"
FORMAT = 1  # to be raised where an older reader would be wrong
LARGEST = 1 << 30  # bytes of a file, beyond which nothing more is logged
# Fields that are not logged as they are, or, where the engine never reads them, not at all: `model`, `reply_text`.
HIDDEN = {"ask", "fixed", "head", "ids", "lora", "model", "owner", "reply_text", "tokens", "unknown", "vector"}
WAITING = 10_000  # events that wait for the disk at most
SHELF_LISTS = 256
SHELF_TOKENS = 4 << 20  # 16 MiB
ENDS = 4096  # requests whose replies are waited for: many more than an engine waits for itself

Answer = Sequence[Command] | Exception
Json = dict[str, Any]

logger = logging.getLogger(__name__)


class LoggedEngine(Engine):
    """An engine whose events and commands are logged. Make one with `EventLog.engine`."""

    def __init__(self, mode: Mode, min_reuse: int, number: int, log: EventLog) -> None:
        super().__init__(mode, min_reuse)
        self._number = number
        self._log = log

    def handle(self, event: Event) -> list[Command]:
        try:
            commands = super().handle(event)
        except Exception as error:
            self._log.put(self._number, event, error)
            raise
        self._log.put(self._number, event, commands)
        return commands


class EventLog:
    """A file that gets a run's engines, events and commands; what is in it already stays.

    Prefix embeddings must be those of `embed`, for they are not logged but made anew from the hashes.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        disguise = Disguise()
        self.embed = disguise.embed
        self._scribe = Scribe(disguise)
        self._numbers = count(1)
        self._queue: queue.SimpleQueue[tuple[int, Mode, int] | tuple[int, Event, Answer] | None] = queue.SimpleQueue()
        self._over = threading.Event()  # nothing more can be written
        self._thread = threading.Thread(target=self._run, name="toki-events", daemon=True)
        self._thread.start()

    def engine(self, mode: Mode, min_reuse: int) -> LoggedEngine:
        """A new engine, logged from its start."""
        number = next(self._numbers)
        self._queue.put((number, mode, min_reuse))
        return LoggedEngine(mode, min_reuse, number, self)

    def put(self, engine: int, event: Event, answer: Answer) -> None:
        """Queue what engine number `engine` was told and what it answered. Never waits for the disk, never raises."""
        if self._over.is_set():
            return
        if self._queue.qsize() >= WAITING:
            self._end(f"the disk is too slow, {WAITING:,} events wait for it")
            return
        self._queue.put((engine, event, answer))

    def close(self, timeout: float = 5.0) -> None:
        """Write what is queued and end the thread, for at most `timeout` seconds."""
        self._queue.put(None)
        self._thread.join(timeout)
        if self._thread.is_alive():
            self._end(f"the disk does not take the last events in {timeout:g} s")

    def _run(self) -> None:
        try:
            with _appended(self._path) as file:
                self._write(file)
        except Exception as error:  # whatever it is, it must not go unsaid with the thread
            self._end(error.strerror or str(error) if isinstance(error, OSError) else repr(error))
        self._over.set()
        while not self._queue.empty():
            self._queue.get()

    def _write(self, file: IO[bytes]) -> None:
        file.write(line({"format": FORMAT, "log": LOG, "toki": _version()}) + b"\n")
        while True:
            if self._queue.empty():
                file.flush()
            item = self._queue.get()
            if item is None or self._over.is_set():
                return
            if file.tell() > LARGEST:
                self._end(f"it has {LARGEST >> 20:,} MiB")
                return
            number, what, more = item
            if isinstance(what, Mode):
                file.write(line({"engine": number, "mode": what, "min_reuse": more}) + b"\n")
            else:
                assert not isinstance(more, int)
                file.write(b"%s\n%s\n" % (self._scribe.event(number, what), self._scribe.answer(number, more)))

    def _end(self, why: str) -> None:
        if not self._over.is_set():
            self._over.set()
            logger.warning(f"toki: no more events are logged to {self._path}: {why}")


class Scribe:
    """Makes the lines of events and answers, in their order."""

    def __init__(self, disguise: Disguise) -> None:
        self._disguise = disguise
        self._shelf = Shelf()
        self._ends: dict[tuple[int, int], End] = {}  # by engine and key: where the prompt ended
        self._texts: dict[tuple[int, int], set[str]] = {}  # by engine and key: texts that may return as a reason

    def event(self, engine: int, event: Event) -> bytes:
        """The line of an event."""
        told = {"engine": engine, "event": type(event).__name__, **_plain(event)}
        match event:
            case Arrived() | Read():
                told["ask"] = self._ask(engine, event.key, event.ask)
            case Replied():
                hashes, _ = self._disguise.tokens(event.ids, self._ends.pop((engine, event.key), None))
                told["ids"] = _packed(hashes, "<i4")
            case _:
                pass
        return line(told)

    def answer(self, engine: int, answer: Answer) -> bytes:
        """The line of what an engine answered."""
        if isinstance(answer, Exception):
            return answer_line(engine, answer)
        commands = []
        for command in answer:
            match command:
                case Send():
                    reason = self._reason(engine, command.key, command.decision.reason)
                    command = replace(command, decision=replace(command.decision, reason=reason))
                case Prime():
                    command = replace(command, tokens=Tokens.of(self._disguise.tokens(command.tokens.ids)[0]))
                case Record():
                    command = replace(command, reason=self._reason(engine, command.key, command.reason))
                    self._texts.pop((engine, command.key), None)
                case _:
                    pass
            commands.append(command)
        return answer_line(engine, commands)

    def _ask(self, engine: int, key: int, ask: Ask) -> Json:
        self._texts.setdefault((engine, key), set()).update((ask.fixed, ask.unknown))
        told: Json = _plain(ask)
        for name in ("unknown", "fixed", "lora", "owner"):
            told[name] = self._disguise.text(getattr(ask, name))
        if ask.head is not None:
            told["head"] = self._shelf.pack(Tokens.of(self._disguise.tokens(ask.head.ids)[0]))
        if ask.tokens is not None:
            hashes, end = self._disguise.tokens(ask.tokens.ids)
            told["tokens"] = self._shelf.pack(Tokens.of(hashes))
            self._ends.setdefault((engine, key), end)
            while len(self._ends) > ENDS:
                del self._ends[next(iter(self._ends))]
        if ask.vector is not None:
            told["vector"] = _packed(self._disguise.vector(ask.vector), "<f4") if ask.semantic else "prefix"
        return told

    def _reason(self, engine: int, key: int, reason: str) -> str:
        return self._disguise.text(reason) if reason in self._texts.get((engine, key), ()) else reason


class Shelf:
    """The latest token lists of a log, the same for who writes it and who reads it."""

    def __init__(self) -> None:
        self._lists: dict[int, Tokens] = {}
        self._added = 0
        self._total = 0

    def pack(self, tokens: Tokens) -> Json:
        """What tells `tokens` to a reader who has the same shelf."""
        like, shared = 0, 0
        for number, other in self._lists.items():
            common = tokens.common_prefix(other)
            if common > shared:
                like, shared = number, common
        self._add(tokens, like, shared)
        return {"like": like, "shared": shared, "more": _packed(tokens.ids[shared:], "<i4")}

    def unpack(self, told: Mapping[str, Any]) -> Tokens:
        """The tokens that `pack` told. Raises LookupError for a list that never was."""
        like, shared = told["like"], told["shared"]
        head = self._lists[like].head(shared) if like else Tokens.of(())
        if len(head) != shared:
            raise LookupError(f"list {like} has no {shared} tokens")
        tokens = head.extended(_unpacked(told["more"], "<i4"))
        self._add(tokens, like, shared)
        return tokens

    def _add(self, tokens: Tokens, like: int, shared: int) -> None:
        """Keep `tokens`, in place of the list that it starts with."""
        if like and shared == len(self._lists[like]):
            self._total -= len(self._lists.pop(like))
        self._added += 1
        self._lists[self._added] = tokens
        self._total += len(tokens)
        while len(self._lists) > 1 and (len(self._lists) > SHELF_LISTS or self._total > SHELF_TOKENS):
            self._total -= len(self._lists.pop(next(iter(self._lists))))


# --- reading ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Made:
    """An engine was made. Engines are named by the run of toki and their number in it, both counted from 1."""

    engine: tuple[int, int]
    mode: Mode
    min_reuse: int


@dataclass(frozen=True, slots=True)
class Heard:
    """An engine was told something, at that line of the log, and answered with the `answer` that stands in the next."""

    engine: tuple[int, int]
    number: int
    event: Event
    answer: bytes


def read(lines: Iterable[bytes]) -> Iterator[Made | Heard]:
    """What stands in a log. A line that a killed toki left unfinished ends its run, as if it were not there.

    Raises ValueError, with the number of the line (from 1), for what is no log of this format.
    """
    run = 0
    made: set[int] = set()
    shelf: Shelf | None = None
    waiting: tuple[int, int, Event] | None = None  # engine, line and event whose answer comes next
    for number, text in enumerate(lines, 1):
        try:
            told = json.loads(text)
        except ValueError:
            shelf = waiting = None
            continue
        try:
            if "log" in told:
                if (told["log"], told["format"]) != (LOG, FORMAT):
                    raise ValueError(f"format {told['format']!r} of {told['log']!r}")
                run, shelf, waiting = run + 1, Shelf(), None
                made.clear()
            elif shelf is None:
                raise ValueError("no run of toki has started")
            elif "mode" in told:
                made.add(told["engine"])
                yield Made((run, told["engine"]), Mode(told["mode"]), told["min_reuse"])
            elif told["engine"] not in made:
                raise ValueError("an engine that was never made")
            elif "event" in told:
                waiting = (told["engine"], number, _event(told, shelf))
            elif waiting is None or waiting[0] != told["engine"]:
                raise ValueError("an answer to nothing")
            else:
                yield Heard((run, waiting[0]), waiting[1], waiting[2], text.rstrip(b"\n"))
                waiting = None
        except (ValueError, LookupError, TypeError) as error:
            raise ValueError(f"line {number} is not of an event log that can be read here: {error!r}") from error


def _event(told: Json, shelf: Shelf) -> Event:
    """The event that a line tells."""
    kind = EVENTS.get(told["event"])
    if kind is None:
        raise ValueError(f"no such event: {told['event']}")
    told = {name: value for name, value in told.items() if name not in ("engine", "event")}
    if "ask" in told:
        told["ask"] = _asked(told["ask"], shelf)
    if kind is Replied:
        told["ids"] = _unpacked(told["ids"], "<i4")
    event: Event = _made(kind, told)
    return event


def _asked(told: Json, shelf: Shelf) -> Ask:
    head, tokens = (None if told.get(name) is None else shelf.unpack(told[name]) for name in ("head", "tokens"))
    vector = told.get("vector")
    if vector == "prefix" and tokens is not None:
        vector = embed_prefix(tokens)
    elif vector is not None:
        vector = _unpacked(vector, "<f4")
    ask: Ask = _made(Ask, told | {"head": head, "tokens": tokens, "vector": vector})
    return ask


def _made(kind: type, told: Json) -> Any:
    """A dataclass whose fields were told. Raises LookupError for a field that it does not have."""
    hints = _hints(kind)
    return kind(**{name: _typed(hints[name], value) for name, value in told.items()})


def _typed(hint: Any, value: Any) -> Any:
    """What JSON can only tell as an object, an array or a string, as the field's type has it."""
    if isinstance(hint, UnionType):  # the only unions are with None
        hint = next(each for each in get_args(hint) if each is not NoneType)
    if is_dataclass(hint) and isinstance(hint, type) and isinstance(value, dict):
        return _made(hint, value)
    if get_origin(hint) is tuple and isinstance(value, list):
        return tuple(_typed(get_args(hint)[0], each) for each in value)
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        return hint(value)
    return value


@cache
def _hints(kind: type) -> Json:
    return get_type_hints(kind)


# --- JSON ---------------------------------------------------------------------------------------


def answer_line(engine: int, answer: Answer) -> bytes:
    """The line of an answer whose tokens are hashed, canonical: equal answers have equal lines. Floats are written by
    repr; of hashed tokens their number and the last one but one say all. The last of a fork's primers is one of the
    others, which is hashed otherwise where it stands now."""
    if isinstance(answer, Exception):
        return line({"engine": engine, "raised": type(answer).__name__})
    commands = []
    for command in answer:
        told = {"command": type(command).__name__, **_plain(command)}
        if isinstance(command, Prime):
            told["tokens"] = [len(command.tokens), *command.tokens.ids[-2:-1].tolist()]
        commands.append(told)
    return line({"commands": commands, "engine": engine})


def line(told: Mapping[str, Any]) -> bytes:
    """`told` as one line of ASCII, without its end."""
    return json.dumps(told, separators=(",", ":"), sort_keys=True).encode()


def _plain(value: Any) -> Any:
    """A dataclass as JSON can hold it, without what must be disguised."""
    if is_dataclass(value):
        hidden = () if isinstance(value, Window) else HIDDEN  # its `tokens` are a number
        return {each.name: _plain(getattr(value, each.name)) for each in fields(value) if each.name not in hidden}
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    return value


def _packed(values: npt.NDArray[Any], kind: str) -> str:
    return b64encode(values.astype(kind).tobytes()).decode()


def _unpacked(text: str, kind: str) -> npt.NDArray[Any]:
    values = np.frombuffer(b64decode(text, validate=True), kind)
    return values.astype(values.dtype.newbyteorder("="))


def _appended(path: Path) -> IO[bytes]:
    """The file at `path`, its owner's alone where it is new, with room for a line of its own at its end."""
    file = open(os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600), "a+b")  # noqa: PTH123, SIM115
    if file.seek(0, os.SEEK_END):
        file.seek(-1, os.SEEK_END)
        if file.read(1) != b"\n":
            file.write(b"\n")
    return file


def _version() -> str:
    try:
        return version("mitmproxy-toki")
    except PackageNotFoundError:  # mitmproxy loads a checkout without installing it
        return "a checkout"
