"""All that belongs to one llama-server: the engine that judges it, its look-ups, and what is open on it.

Lives on the event loop. Blocking calls go to toki's own threads and come back as futures, so the engine is only
ever called from one thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from collections.abc import Coroutine
from collections.abc import Iterator
from concurrent.futures import Executor
from functools import partial
from math import inf
from typing import Any
from typing import ParamSpec
from typing import Protocol
from typing import TypeVar

from toki.complaints import Complaints
from toki.engine.core import Engine
from toki.engine.embedding import embed_prefix
from toki.engine.events import Action
from toki.engine.events import Answered
from toki.engine.events import Arrived
from toki.engine.events import Began
from toki.engine.events import Decision
from toki.engine.events import Event
from toki.engine.events import Gone
from toki.engine.events import Holding
from toki.engine.events import Look
from toki.engine.events import Measured
from toki.engine.events import Mode
from toki.engine.events import Outcome
from toki.engine.events import Prime
from toki.engine.events import Primed
from toki.engine.events import Record
from toki.engine.events import Replied
from toki.engine.events import Restarted
from toki.engine.events import Resume
from toki.engine.events import Send
from toki.engine.events import Unsteered
from toki.engine.events import Wait
from toki.engine.rules import Rules
from toki.engine.tokens import Tokens
from toki.eventlog import EventLog
from toki.inspect.explanation import Explanation
from toki.inspect.inspector import Inspector
from toki.onward import Turn
from toki.onward import Turns
from toki.printable import printable
from toki.prompt import PromptReader
from toki.schema import Check
from toki.schema import Found
from toki.schema import Row
from toki.server import Auth
from toki.server import LlamaServerBackend
from toki.server import ServerError
from toki.settings import Settings
from toki.verify import Verifier
from toki.watch import Watch

MOST_NAMES = 4096
UNNAMED = 10.0  # seconds until a router that did not tell the names of its models is asked again
PATIENCE = 2.0  # seconds for a look-up
PREPARING = 5.0  # seconds for look-ups before the first request
MOST_MODELS = 64  # of a router that are kept apart

P = ParamSpec("P")
T = TypeVar("T")

logger = logging.getLogger(__name__)

FAULT = "a fault inside toki"
UNDECIDED = Decision(Action.PASSED, None, None, None, None, None, f"no decision: {FAULT}")


class Recorded(Protocol):
    """What the upstream needs of an exchange: its row, once the engine says what it knows of it, to let it go on where
    it waits, and to tell it how it is explained."""

    @property
    def unread(self) -> bool:
        """Whether it was given up before its prompt was read."""

    def row(self, record: Record) -> Row: ...

    def resume(self, decision: Decision | None) -> None: ...

    def explained(self, explanation: Explanation) -> None: ...


class Upstream:
    """One server, or one model of a router."""

    def __init__(
        self,
        url: str,
        backend: LlamaServerBackend,
        settings: Settings,
        put: Callable[[Row | Found | Check], None],
        executor: Executor,
        complaints: Complaints,
        model: str = "",
        log: EventLog | None = None,
    ) -> None:
        self._url = url
        self._model = model
        self.backend = backend
        self.settings = settings
        self.prompts = PromptReader(backend)
        self.complaints = complaints
        self.watch = Watch(url, backend, model, settings.server_flags, self.submit, self.tell, complaints)
        self._put = put
        self._executor = executor
        self._log = log
        self.embed = embed_prefix if log is None else log.embed
        self._engine = self._new_engine()
        self.inspector = Inspector(self.submit, partial(complaints.fault, "explain", "a request can't be explained"))
        self.turn = asyncio.Lock()  # held while a request waits for others to be placed and is decided
        self._stirred = asyncio.Event()
        self._sizes: list[int] = []  # bytes of the bodies that are being read, and decided behind that
        self._turns = Turns()
        self._open: dict[int, Recorded] = {}  # by key, from Arrived until Record
        self._over: dict[int, Measured] = {}  # those of them that ended: what was measured
        self._orphans: set[int] = set()  # those of them that no engine knows
        self._models: dict[str, Upstream] = {}
        self._awaited: set[int] = set()  # behind a router, the keys of requests whose answers have not begun
        self._served = ""  # the model that was used last
        self._unnamed_until = -inf  # when it may be asked for them again
        self._names: dict[str, str] = {}  # what a router calls its models, by what clients call them
        self._tasks: set[asyncio.Task[Any]] = set()
        self.verifier = Verifier(settings.verify)
        self.saved = 0  # tokens, since it is looked after: see Row

    @property
    def looks_up(self) -> bool:
        """Whether toki may ask the server anything at all."""
        return self.settings.mode is not Mode.OFF

    def holds(self, *, apart: bool) -> bool:
        """Whether a request is held until it is read: a decision can depend on it. In a crowd none does, unless its
        owner is kept `apart` from others."""
        if not self._engine.wants_tokens or not self.watch.known:
            return False
        return apart or not self._engine.crowded(len(self._sizes))

    async def name_of(self, model: str, auth: Auth) -> str:
        """What a router itself calls the model that clients call `model`: aliases are one model, with one set of slots.

        Asked once for each name, as soon as the router answers.
        """
        if self.watch.router and model and model not in self._names and time.monotonic() >= self._unnamed_until:
            try:
                self._names.update(await self.submit(self.backend.names, auth, PATIENCE))
            except ServerError as error:
                self.complaints.tell(f"/v1/models: {error}", f"can't see the names of a router's models: {error}")
                self._unnamed_until = time.monotonic() + UNNAMED
                return model
            if len(self._names) > MOST_NAMES:
                self._names.clear()
            self._names.setdefault(model, model)
        return self._names.get(model, model)

    def serving(self, model: str) -> Upstream:
        """The upstream for `model` (see `name_of`): its own behind a router, this one for all models otherwise."""
        if not self.watch.router:
            return self
        if model not in self._models:
            if len(self._models) >= MOST_MODELS:  # names that clients made up, most likely
                unused = [name for name, upstream in self._models.items() if not (upstream._open or upstream._awaited)]
                for name in unused[: len(unused) // 2]:
                    del self._models[name]
            backend = self.backend.behind(model, self._awaited_models) if self.watch.swaps else self.backend
            self._models[model] = Upstream(
                self._url, backend, self.settings, self._put, self._executor, self.complaints, model, self._log
            )
        if model != self._served:
            self._served = model
            self._models[model].watch.suspect()
        return self._models[model]

    def wanted(self, key: int) -> None:
        """A request comes for this model: until its answer begins, the model may have to be loaded first."""
        self._awaited.add(key)

    def _awaited_models(self) -> list[str]:
        """A router's models that requests wait for; in any thread."""
        return [name for name, upstream in list(self._models.items()) if upstream._awaited]

    def forget(self) -> None:
        """What slots hold is not what was believed any more; the server itself is the same."""
        for upstream in (self, *self._models.values()):
            upstream.watch.doubt(certain=True)

    @property
    def should_wait(self) -> bool:
        """Whether a moment's patience would let the engine decide what it can't decide now."""
        return self._engine.should_wait

    @property
    def endangered_at(self) -> float:
        """When the latest request left that is on its way still, and to which one that left now could do harm; -inf:
        none is."""
        return self._engine.endangered_at

    @property
    def name(self) -> str:
        """Its URL, and the model where it is one of a router's."""
        return printable(f"{self._url} {self._model}" if self._model else self._url)

    @property
    def state(self) -> str:
        """How far the server is known, in plain words."""
        belief = self._engine.belief
        if belief is None or not self.watch.known:
            return "not known yet"
        return f"{belief.rules.n_slots} slots, {'trusted' if belief.trusted else 'still learning how it chooses'}"

    @property
    def trusted(self) -> bool:
        """Whether its predictions are good enough to steer by."""
        belief = self._engine.belief
        return belief is not None and self.watch.known and belief.trusted

    @property
    def rules(self) -> Rules | None:
        """What it is believed to do; None: not known yet."""
        belief = self._engine.belief
        return belief.rules if belief is not None and self.watch.known else None

    @property
    def open(self) -> int:
        """Requests that are under way, those that toki holds among them."""
        return len(self._open)

    @property
    def models(self) -> tuple[Upstream, ...]:
        """Those of a router's models."""
        return tuple(self._models.values())

    def spare(self, tokens: Tokens, reply: int, lora: str) -> int | None:
        """A slot where a request of toki's own would cost no one anything, while nothing is open; else None."""
        return None if self._open or not self.watch.known else self._engine.spare(tokens, reply, lora)

    def check(self, check: Check) -> None:
        """Record how an answer compares with one that was given without the cache."""
        self._put(check)

    def holdings(self) -> tuple[Holding, ...]:
        """What its slots and its RAM cache are believed to hold now."""
        return self._engine.holdings()

    async def change(self, patience: float) -> None:
        """Wait until the engine hears of something, for `patience` seconds at most."""
        self._stirred.clear()
        try:
            async with asyncio.timeout(patience):
                await self._stirred.wait()
        except TimeoutError:
            pass

    def before(self, turn: Turn) -> int | None:
        """The latest request where a new one goes on."""
        return self._turns.before(turn)

    def lets_go_on(self, earlier: int) -> bool:
        """Whether a request that goes on where an earlier one ended needs no decision for that."""
        return self._engine.lets_go_on(earlier, time.monotonic())

    def answered(self, key: int, turn: Turn, earlier: int | None) -> None:
        """A request, which goes on where an `earlier` one ended if there is one, has got its whole answer."""
        self._turns.add(key, turn, earlier)

    @contextlib.contextmanager
    def reading(self, size: int) -> Iterator[None]:
        """While a body of `size` bytes is read that a decision waits for."""
        self._sizes.append(size)
        try:
            yield
        finally:
            self._sizes.remove(size)

    def company(self, size: int) -> int:
        """Bodies at least half as long that are being read."""
        return sum(2 * other >= size for other in self._sizes)

    def decide(self, exchange: Recorded, event: Arrived) -> Decision | Prime | Wait:
        """The engine's decision for a request that waits for it, or what to do first; never raises."""
        self._open[event.key] = exchange
        self._orphans.discard(event.key)  # one that waited comes to the engine of today
        return self._handle(event) or UNDECIDED

    def primed(self, event: Primed) -> Decision | Prime | Wait:
        """The engine's decision for a request whose primer is done, or what else to do first; never raises."""
        return self._handle(event) or UNDECIDED

    def unsteered(self, event: Unsteered) -> Decision:
        """The engine's decision on how a request goes that the server refused as it was steered; never raises."""
        decision = self._handle(event)
        return decision if isinstance(decision, Decision) else UNDECIDED

    def tell(self, event: Event) -> None:
        """Let the engine know what happened, and do what it says; never raises."""
        if isinstance(event, Restarted):
            self._turns = Turns()
            self.prompts = PromptReader(self.backend)  # the vocabulary may be another one
            if not self._open:
                self.background(self._prepare(self.prompts))
            self.inspector.restarted(event.known.whole)
        self._handle(event)

    async def tell_reply(self, key: int, text: str, model: str, auth: Auth, patience: float) -> None:
        """Let the engine know the tokens of a reply, as the next request is likely to hold them. Raises ServerError."""
        ids = await self.submit(self.backend.tokenize, text, auth, patience, add_special=False, model=model)
        self.tell(Replied(key, time.monotonic(), ids))

    async def _prepare(self, prompts: PromptReader) -> None:
        """Read what the first prompt needs before it comes; what fails now is asked again with that one."""
        with contextlib.suppress(ServerError, TimeoutError):
            await self.submit(prompts.prepare, self.watch.auth, time.monotonic() + PREPARING)

    def submit(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> asyncio.Future[T]:
        """Run a blocking call in one of toki's threads."""
        return asyncio.get_running_loop().run_in_executor(self._executor, partial(call, *args, **kwargs))

    def background(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run `work` beside the hooks; kept alive here, since the loop keeps only weak references."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def close(self) -> None:
        """Stop what runs, and write the rows that the engine still owes. Exchanges must be closed before."""
        for upstream in self._models.values():
            upstream.close()
        self.watch.close()
        for task in self._tasks:
            task.cancel()
        for key in list(self._open):
            self._record(_unjudged(key, "toki stopped before it was judged", self._over.get(key)))
        self.backend.close()

    def _new_engine(self) -> Engine:
        make = Engine if self._log is None else self._log.engine
        return make(self.settings.mode, self.settings.min_reuse)

    def _handle(self, event: Event) -> Decision | Prime | Wait | None:
        """Run the engine's commands; the decision among them."""
        self._stirred.set()
        if isinstance(event, Began | Answered | Gone):
            self._awaited.discard(event.key)
        if isinstance(event, Answered | Gone) and event.key in self._open:
            self._over[event.key] = event.measured
            if event.key in self._orphans:
                self._record(_unjudged(event.key, FAULT, event.measured))
                return None
        try:
            commands = self._engine.handle(event)
        except Exception as error:
            self._broken(error)
            return None
        decision: Decision | Prime | Wait | None = None
        for command in commands:
            match command:
                case Send(key, sent) if isinstance(event, Arrived | Primed | Unsteered) and key == event.key:
                    decision = sent
                case Send(key, sent):
                    self._resume(key, sent)
                case Resume(key):
                    self._resume(key, None)
                case Prime() | Wait():
                    decision = command
                case Look():
                    self.watch.look_soon()
                case Record():
                    self._record(command)
        return decision

    def _resume(self, key: int, decision: Decision | None) -> None:
        if key in self._open:
            self._open[key].resume(decision)

    def _broken(self, error: Exception) -> None:
        """After a fault no belief of the engine can be trusted: it starts over, and the server is asked anew."""
        self.complaints.fault("engine", "the engine failed and starts over", error)
        self._engine = self._new_engine()
        self.watch.doubt(certain=True)
        for key, measured in list(self._over.items()):
            self._record(_unjudged(key, FAULT, measured))
        self._orphans |= self._open.keys()
        for key in self._orphans:  # those that wait come to the new one
            self._resume(key, None)

    def _record(self, record: Record) -> None:
        exchange = self._open.pop(record.key, None)
        self._over.pop(record.key, None)
        self._orphans.discard(record.key)
        if exchange is None:
            return
        row = exchange.row(record)
        self.saved += row.saved
        self._put(row)
        self.inspector.conclude(row, record, exchange.unread, partial(self._explained, exchange))

    def _explained(self, exchange: Recorded, explanation: Explanation) -> None:
        found = f"; {explanation.verdict}" if explanation.findings else ""
        logger.info(printable(describe(explanation.row) + found))
        for one in explanation.findings:
            place = str(one.block) if one.block is not None else ""
            self._put(
                Found(
                    explanation.row.key,
                    one.cause,
                    place,
                    one.tokens,
                    one.seconds,
                    one.times,
                    one.remedy,
                    one.verdict,
                )
            )
        exchange.explained(explanation)


def describe(row: Row) -> str:
    """One readable line about a recorded request."""
    length = "? tokens" if row.prompt_tokens is None else f"{row.prompt_tokens:,} tokens"
    if row.reused is None or row.evaluated is None:
        reuse = "reuse unknown"
    else:
        reuse = f"{row.reused:,} reused ({row.outcome}), {row.evaluated:,} evaluated"
    slot = "" if row.slot is None else f", slot {row.slot}"
    return f"toki {row.status or '---'} {row.endpoint} {length}: {reuse}{slot}, {row.action}: {row.reason}"


def _unjudged(key: int, reason: str, measured: Measured | None = None) -> Record:
    """What is recorded of a request that no engine has judged."""
    return Record(
        key=key,
        conversation=key,
        parent=None,
        shared=0,
        similarity=None,
        predicted=None,
        alone=None,
        outcome=Outcome.UNKNOWN,
        slot=measured.slot if measured else None,
        action=Action.PASSED,
        reason=reason,
        measured=measured or Measured(),
    )
