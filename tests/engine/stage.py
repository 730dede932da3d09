"""An engine in front of the literal server, with everything between them that can reorder, delay or lose.

Each method is one thing that may happen next. Requests reach the server in any order, headers and answers come back in
any order, and a look may be old when it arrives.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from dataclasses import replace

import numpy as np
from tests.engine.literal import Flags
from tests.engine.literal import LiteralServer
from tests.engine.literal import Task

from toki.engine.core import Engine
from toki.engine.embedding import embed_prefix
from toki.engine.events import Action
from toki.engine.events import Answered
from toki.engine.events import Arrived
from toki.engine.events import Ask
from toki.engine.events import Began
from toki.engine.events import Command
from toki.engine.events import Decision
from toki.engine.events import Event
from toki.engine.events import Gone
from toki.engine.events import Kind
from toki.engine.events import Look
from toki.engine.events import Looked
from toki.engine.events import Measured
from toki.engine.events import Mode
from toki.engine.events import Prime
from toki.engine.events import Primed
from toki.engine.events import Record
from toki.engine.events import Replied
from toki.engine.events import Restarted
from toki.engine.events import Resume
from toki.engine.events import Send
from toki.engine.events import SlotView
from toki.engine.events import Unsteered
from toki.engine.events import Wait
from toki.engine.knowledge import Knowledge
from toki.engine.rules import UNLIMITED
from toki.engine.rules import Known
from toki.engine.tokens import Tokens


def known(flags: Flags) -> Known:
    """What a person could say of a server's flags."""
    ram = UNLIMITED if flags.ram is None else flags.ram
    return Known(unified=flags.unified, idle_save=flags.idle_save and ram > 0, ram=ram, sps=flags.sps)


@dataclass
class Exchange:
    """One request on its way; `primes`: the request that waits for it, where it is one of toki's own."""

    ask: Ask
    task: Task
    decision: Decision | None = None
    primes: int | None = None
    began: bool = False
    left: bool = False


@dataclass
class Peek:
    """A question for the slots; the server's answer is as old as `slots`."""

    asked_at: float
    slots: tuple[SlotView, ...] | None = None


class Stage:
    def __init__(
        self,
        flags: Flags,
        mode: Mode = Mode.AUTO,
        told: Known | None = None,
        min_reuse: int = 10,
        *,
        proven: bool = True,
    ) -> None:
        """`proven`: the levers were tried out before."""
        self.flags = flags
        self.proven = proven
        self.server = LiteralServer(flags)
        self.engine = Engine(mode, min_reuse)
        self.now = 0.0
        self.keys = 0
        self.held: dict[int, Exchange] = {}  # not released yet
        self.primers = 0
        self.patience = 0.0  # seconds for which the latest of them is waited for
        self.exchanges: dict[int, Exchange] = {}  # released, and not over
        self.wire: list[int] = []  # released, not yet at the server
        self.answers: list[int] = []  # ended at the server, not yet seen to
        self.peeks: list[Peek] = []
        self.waits: dict[int, float] = {}  # held requests that the engine told to wait, and until when
        self.resumed: list[int] = []
        self.evaluated = 0  # prompt tokens of all answers that were seen, of primers too
        self.records: list[Record] = []
        self.wanted_looks = 0
        self.told = Known() if told is None else told
        self.checks: list[Callable[[int, Decision], None]] = []  # called with each request as it is released
        self.restart(LiteralServer(flags))

    @property
    def knowledge(self) -> Knowledge:
        """What the engine knows of the server."""
        return self.engine._knowledge

    # --- what may happen --------------------------------------------------------------------------

    def restart(self, server: LiteralServer) -> None:
        """Another server answers from now on; what ran on the old one is lost."""
        self.server = server
        self.flags = server.flags
        for key in list(self.exchanges):
            if key not in self.wire:
                self.lose(key)
        self.answers = []
        self.peeks = []
        n_ctx = self.flags.n_ctx or self.flags.pool or 1 << 20
        self.tell(Restarted(self.tick(), self.flags.n_slots, n_ctx, self.told, self.view()))
        if self.proven:
            self.knowledge.levers.proven |= {Action.PINNED, Action.SWAPPED}

    def lose(self, key: int) -> None:
        """The connection of a released request breaks."""
        primes = self.exchanges.pop(key).primes
        if primes is None:
            self.tell(Gone(key, self.tick(), sent=True))
        else:
            self.tell(Primed(primes, self.tick(), None))

    def arrive(
        self,
        prompt: list[int],
        reply: list[int],
        *,
        stream: bool = True,
        peek: int | None = None,
        company: int = 0,
        change: Callable[[Ask], Ask] = lambda ask: ask,
    ) -> int:
        """A client's request comes in and is released; returns its key. `peek`: which answered look comes with it."""
        self.keys += 1
        key = self.keys
        tokens = Tokens.of(prompt)
        ask = change(Ask("/completion", stream=stream, tokens=tokens, vector=embed_prefix(tokens)))
        slots, looked_at = None, None
        seen = [one for one in self.peeks if one.slots is not None]
        if peek is not None and seen:
            chosen = seen[peek % len(seen)]
            self.peeks.remove(chosen)
            slots, looked_at = chosen.slots, chosen.asked_at
        id_slot = -1 if ask.client_slot is None else ask.client_slot
        completion = ask.kind is Kind.COMPLETION
        task = Task(key, list(prompt), list(reply), id_slot, completion, ask.cache_prompt, ask.children)
        self.held[key] = Exchange(ask, task)
        self.tell(Arrived(key, self.tick(), ask, slots, looked_at, company))
        return key

    def again(self, key: int, *, company: int = 0, fixed: str = "", look: bool = True) -> None:
        """A request that waits comes again, with a fresh look at the slots."""
        asked_at = self.tick()
        ask = replace(self.held[key].ask, fixed=fixed)
        slots = self.view() if look else None
        self.waits.pop(key)
        self.tell(Arrived(key, self.tick(), ask, slots, None if slots is None else asked_at, company))

    def reach(self, which: int) -> None:
        """A released request reaches the server."""
        if self.wire:
            self.server.post(self.exchanges[self.wire.pop(which % len(self.wire))].task)

    def headers(self, which: int) -> None:
        """The headers of a stream that was launched are seen."""
        launched = {launch.key for launch in self.server.launched}
        due = [key for key, one in self.exchanges.items() if one.ask.stream and not one.began and key in launched]
        due = [key for key in due if self.exchanges[key].primes is None]
        if due:
            self.began(due[which % len(due)])

    def began(self, key: int) -> None:
        self.exchanges[key].began = True
        if not self.exchanges[key].left:
            self.tell(Began(key, self.tick(), 200))

    def end(self, which: int) -> None:
        """The server is done with a request, or notices that its client left."""
        running = sorted({slot.task.key for slot in self.server.slots if slot.task is not None})
        if running:
            key = running[which % len(running)]
            one = self.exchanges[key]
            if one.left:
                total = len(one.task.prompt) + len(one.task.reply)
                self.server.cancel(key, total - total // 3)
                del self.exchanges[key]
            else:
                self.server.finish(key)
                self.answers.append(key)

    def answer(self, which: int) -> int | None:
        """The last byte of an answer is seen; returns its key."""
        if not self.answers:
            return None
        key = self.answers.pop(which % len(self.answers))
        one = self.exchanges[key]
        measured = self.measured(key)
        self.evaluated += measured.evaluated or 0
        if one.primes is not None:
            del self.exchanges[key]
            self.tell(Primed(one.primes, self.tick(), measured))
            return key
        if one.ask.stream and not one.began:
            self.began(key)
        if not one.left:
            self.tell(Answered(key, self.tick(), 200, measured))
        del self.exchanges[key]
        self.replied = (key, one.task.reply[:-1])
        return key

    def reveal(self) -> None:
        """The latest reply was tokenised anew."""
        key, reply = self.replied
        self.tell(Replied(key, self.tick(), np.array(reply, np.int32)))

    replied: tuple[int, list[int]] = (0, [])

    def leave(self, which: int) -> None:
        """A client goes away; the server notices later."""
        here = [key for key, one in self.exchanges.items() if not one.left and key not in self.answers]
        here = [key for key in here if self.exchanges[key].primes is None]
        if not here:
            return
        key = here[which % len(here)]
        self.exchanges[key].left = True
        sent = key not in self.wire
        self.tell(Gone(key, self.tick(), sent=sent))
        waiting = [task for task in self.server.deferred if task.key == key]
        if not sent or waiting:
            if waiting:
                self.server.cancel(key, 0)
            else:
                self.wire.remove(key)
            del self.exchanges[key]

    def ask_slots(self) -> None:
        self.peeks.append(Peek(self.tick()))

    def answer_slots(self) -> None:
        """The server answers the oldest open question with what it shows now."""
        for peek in self.peeks:
            if peek.slots is None:
                peek.slots = self.view()
                return

    def see_slots(self) -> None:
        """The oldest answered look arrives."""
        for peek in self.peeks:
            if peek.slots is not None:
                self.peeks.remove(peek)
                self.tell(Looked(self.tick(), peek.asked_at, peek.slots))
                return

    # --- shorthands -------------------------------------------------------------------------------

    def serve(self, prompt: list[int], reply: list[int], **options: object) -> Record:
        """One request from arrival to reply, alone; looks where the engine wants one."""
        before = self.wanted_looks
        key = self.arrive(prompt, reply, **options)  # type: ignore[arg-type]
        self.prime(key)
        self.reach(0)
        self.headers(0)
        self.end(0)
        assert self.answer(0) == key
        self.reveal()
        if self.wanted_looks > before:
            self.look()
        return self.records[-1]

    def prime(self, key: int) -> None:
        """Let the primers of a request run, until it is released."""
        while key in self.held:
            self.reach(0)
            self.end(0)
            self.answer(0)

    def finish(self) -> None:
        """All that was released is launched; then one ends after another."""
        while self.wire:
            self.reach(0)
            self.headers(0)
        while self.exchanges:
            self.end(0)
            self.answer(0)

    def look(self) -> None:
        self.ask_slots()
        self.answer_slots()
        self.see_slots()

    # --- parts ------------------------------------------------------------------------------------

    def tick(self) -> float:
        self.now += 0.01
        return self.now

    def tell(self, event: Event) -> list[Command]:
        commands = self.engine.handle(event)
        self.records += [command for command in commands if isinstance(command, Record)]
        self.wanted_looks += sum(isinstance(command, Look) for command in commands)
        for command in commands:
            if isinstance(command, Send) and isinstance(event, Unsteered):
                self.send_again(command)
            elif isinstance(command, Send):
                self.send(command)
            elif isinstance(command, Wait):
                assert command.key in self.held
                self.waits[command.key] = command.until
            elif isinstance(command, Resume):
                self.resumed.append(command.key)
            elif isinstance(command, Prime):
                self.primers += 1
                self.patience = command.patience
                assert command.key in self.held
                ids = command.tokens.ids.tolist()
                task = Task(-self.primers, ids, [1] if ids else [], command.id_slot)
                self.exchanges[task.key] = Exchange(Ask("/completion"), task, primes=command.key)
                self.wire.append(task.key)
        return commands

    def send(self, send: Send) -> None:
        one = self.held.pop(send.key)  # what was sent already is not sent again
        self.waits.pop(send.key, None)
        one.decision = send.decision
        if one.ask.client_slot is None and send.decision.id_slot is not None:
            one.task.id_slot = send.decision.id_slot
        one.task.cache_prompt = one.task.cache_prompt and send.decision.cache_prompt
        self.exchanges[send.key] = one
        self.wire.append(send.key)
        for check in self.checks:
            check(send.key, send.decision)

    def send_again(self, send: Send) -> None:
        """The server has refused it as it was steered, and gets this in its place."""
        task = self.exchanges[send.key].task
        task.id_slot = -1 if send.decision.id_slot is None else send.decision.id_slot
        task.cache_prompt = send.decision.cache_prompt
        for check in self.checks:
            check(send.key, send.decision)

    def measured(self, key: int) -> Measured:
        launch = next(launch for launch in reversed(self.server.launched) if launch.key == key)
        task = self.exchanges[key].task
        n = len(task.prompt)
        return Measured(n, launch.reuse, n - launch.reuse, len(task.reply), launch.slot, float(n - launch.reuse))

    def view(self) -> tuple[SlotView, ...]:
        n_ctx = self.flags.n_ctx or self.flags.pool or 1 << 20
        return tuple(
            SlotView(number, slot.task is not None, len(slot.tokens), slot.id_task, n_ctx)
            for number, slot in enumerate(self.server.slots)
        )
