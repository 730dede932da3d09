"""llama-server's rules for slots and RAM cache, literally: plain lists of token ids, every rule written out.

What the shadow must agree with, and the server that the engine is tested in front of. Written from what was measured
on real servers and from the public source (llama.cpp b11434, tools/server: server-context.cpp, server-task.cpp,
server-queue.cpp); slow and obvious on purpose, and it shares nothing with the shadow.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field


class PoolOverflow(Exception):
    """The running requests alone need more cells than the unified cache has: the server fails all of them."""


@dataclass(frozen=True)
class Flags:
    """How the server was started. Sizes are in tokens; None: without limit."""

    n_slots: int = 4
    unified: bool = True
    idle_save: bool = True
    ram: int | None = None  # 0: no RAM cache
    sps: float = 0.1
    pool: int | None = None  # cells of a unified cache
    n_ctx: int | None = None  # context of one slot


@dataclass
class Task:
    """One request. `reply` is what will be sampled."""

    key: int
    prompt: list[int]
    reply: list[int] = field(default_factory=list)
    id_slot: int = -1
    completion: bool = True  # else /infill
    cache_prompt: bool = True
    children: int = 0


@dataclass
class LiteralSlot:
    tokens: list[int] = field(default_factory=list)
    task: Task | None = None
    is_child: bool = False
    last_used: int = -1
    id_task: int = -1


@dataclass(frozen=True)
class Launched:
    key: int
    slot: int
    reuse: int


def single(x: float) -> float:
    """x in single precision, as the server computes."""
    return float(struct.unpack("f", struct.pack("f", x))[0])


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    n = 0
    while n < len(a) and n < len(b) and a[n] == b[n]:
        n += 1
    return n


class LiteralServer:
    """A full-attention server; a prefill is over as soon as it is launched."""

    def __init__(self, flags: Flags) -> None:
        self.flags = flags
        self.slots = [LiteralSlot() for _ in range(flags.n_slots)]
        self.ram: list[list[int]] = []
        self.queue: list[Task] = []
        self.deferred: list[Task] = []
        self.launched: list[Launched] = []
        self.harmed: list[int] = []  # keys of requests that touched a busy slot
        self.clock = 0
        self.tasks = 0

    # --- what a client can do ---------------------------------------------------------------------

    def post(self, task: Task) -> None:
        self.queue.append(task)
        self.process_queue()

    def finish(self, key: int) -> None:
        """The last token is sampled. All copies of a request end in the same pass over the slots, by id."""
        for slot in self.running(key):
            assert slot.task is not None
            if self.instant(slot.task):
                continue
            for token in slot.task.reply[:-1]:  # the last sampled token is never decoded
                if self.flags.n_ctx is None or len(slot.tokens) < self.flags.n_ctx:
                    slot.tokens.append(token)
                    self.make_room()
        for number, slot in enumerate(self.slots):
            if slot.task is not None and slot.task.key == key:
                self.release(number)
        self.process_queue()

    def prefill_to(self, key: int, tokens: int) -> None:
        """So much of a prompt is evaluated so far."""
        for slot in self.running(key):
            assert slot.task is not None
            slot.tokens = slot.task.prompt[:tokens]

    def cancel(self, key: int, kept: int) -> None:
        """The client left; `kept` tokens of prompt and reply were decoded. Each copy is cancelled on its own."""
        self.deferred = [task for task in self.deferred if task.key != key]
        numbers = [n for n, slot in enumerate(self.slots) if slot.task is not None and slot.task.key == key]
        for number in sorted(numbers, key=lambda n: self.slots[n].is_child):
            slot = self.slots[number]
            assert slot.task is not None
            slot.tokens = (slot.task.prompt + slot.task.reply)[:kept]
            self.release(number)
            self.process_queue()

    def instant(self, task: Task) -> bool:
        """Whether a request is answered at its launch, while its slot keeps what it holds: an empty prompt, or one too
        long for the context (an error, but the launch has happened)."""
        return not task.prompt or (self.flags.n_ctx is not None and len(task.prompt) >= self.flags.n_ctx)

    # --- questions --------------------------------------------------------------------------------

    def running(self, key: int) -> list[LiteralSlot]:
        return [slot for slot in self.slots if slot.task is not None and slot.task.key == key]

    def busy(self) -> list[int]:
        return [number for number, slot in enumerate(self.slots) if slot.task is not None]

    # --- server-queue.cpp -------------------------------------------------------------------------

    def process_queue(self) -> None:
        while self.queue:
            task = self.queue.pop(0)
            if not self.try_task(task):
                self.deferred.append(task)

    def pop_deferred(self, released: int) -> None:
        if not self.deferred:
            return
        found = self.deferred[0]
        for task in self.deferred:
            if task.id_slot == released:
                found = task
                break
        self.deferred.remove(found)
        self.queue.insert(0, found)

    # --- server-context.cpp -----------------------------------------------------------------------

    def try_task(self, task: Task) -> bool:
        number = self.get_available_slot(task)
        if number is None:
            return False
        slot = self.slots[number]
        if slot.task is not None:
            return False
        free = [n for n in range(len(self.slots)) if self.slots[n].task is None and n != number][: task.children]
        if len(free) < task.children:
            return False
        self.tasks += 1 + task.children
        slot.task, slot.is_child, slot.id_task = task, False, self.tasks
        for n in free:
            self.slots[n].task, self.slots[n].is_child, self.slots[n].id_task = task, True, self.tasks
        if self.flags.idle_save and self.flags.ram != 0:
            for other in self.slots:
                if other.task is None:
                    self.save(other)
                    if self.flags.unified:
                        other.tokens = []
        self.prefill(number, free, task)
        return True

    def prefill(self, number: int, children: list[int], task: Task) -> None:
        slot = self.slots[number]
        reuse = common_prefix(slot.tokens, task.prompt) if task.cache_prompt else 0
        if reuse == len(task.prompt) and reuse > 0:
            reuse -= 1
        if not self.instant(task):
            slot.tokens = list(task.prompt)
        for n in children:
            self.slots[n].tokens = list(slot.tokens)
        self.launched.append(Launched(task.key, number, reuse))
        self.make_room()

    def get_available_slot(self, task: Task) -> int | None:
        n_slots = len(self.slots)
        chosen = None
        update_cache = False
        if task.id_slot != -1:
            chosen = task.id_slot % n_slots
        sps = single(self.flags.sps)
        if sps != 0:
            best = 0.0
            for number, slot in enumerate(self.slots):
                if task.id_slot not in (-1, number):  # the id as it was sent: k + n_slots is no slot's number
                    continue
                if slot.task is not None or not slot.tokens or not task.prompt:
                    continue
                similarity = single(common_prefix(slot.tokens, task.prompt) / len(task.prompt))
                if similarity > best and similarity > sps:
                    best = similarity
                    chosen = number
            if chosen is not None:
                held = len(self.slots[chosen].tokens)
                if held:  # else 0/0, which is not below 0.5
                    update_cache = single(single(best * len(task.prompt)) / held) < 0.5
        if chosen is None:
            for number, slot in enumerate(self.slots):
                if slot.task is None and (chosen is None or slot.last_used <= self.slots[chosen].last_used):
                    chosen = number
            if chosen is not None:
                update_cache = True
        if chosen is not None and update_cache and self.flags.ram != 0 and task.completion:
            if self.slots[chosen].task is not None:
                self.harmed.append(task.key)  # the running answer goes on with another conversation's cache
            self.save(self.slots[chosen])
            self.load(self.slots[chosen], task.prompt)
        return chosen

    def release(self, number: int) -> None:
        slot = self.slots[number]
        if slot.is_child:
            slot.tokens = []
        self.clock += 1
        slot.last_used = self.clock
        slot.task = None
        slot.is_child = False
        self.pop_deferred(number)

    def cells(self) -> int:
        """Cells in use; copies of one request share those of its prompt."""
        return sum(
            len(slot.tokens) - (len(slot.task.prompt) if slot.is_child and slot.task is not None else 0)
            for slot in self.slots
        )

    def make_room(self) -> None:
        """A unified cache without room drops one idle slot after another, lowest id first, unsaved."""
        if not self.flags.unified or self.flags.pool is None:
            return
        while self.cells() > self.flags.pool:
            for slot in self.slots:
                if slot.task is None and slot.tokens:
                    slot.tokens = []
                    break
            else:
                raise PoolOverflow

    # --- server-task.cpp: the RAM cache -----------------------------------------------------------

    def save(self, slot: LiteralSlot) -> None:
        tokens = slot.tokens
        if not tokens:
            return
        for entry in self.ram:
            if common_prefix(entry, tokens) == len(tokens):
                return
        limit = self.flags.ram
        if limit is not None and len(tokens) > limit:
            return
        self.ram = [entry for entry in self.ram if common_prefix(entry, tokens) < len(entry)]
        while limit is not None and sum(len(entry) for entry in self.ram) + len(tokens) > limit:
            self.ram.pop(0)
        self.ram.append(list(tokens))

    def load(self, slot: LiteralSlot, prompt: list[int]) -> None:
        if not prompt:
            return
        shared = common_prefix(slot.tokens, prompt)
        best_keep = single(shared / len(slot.tokens)) if slot.tokens else -1.0
        best_similarity = single(shared / len(prompt))
        best = None
        for number, entry in enumerate(self.ram):
            shared = common_prefix(entry, prompt)
            keep = single(shared / len(entry))
            similarity = single(shared / len(prompt))
            if keep < 0.25:
                continue
            if keep > best_keep and similarity > best_similarity:
                best_keep, best_similarity, best = keep, similarity, number
        if best is None:
            return
        if self.flags.unified and self.flags.pool is not None:
            own = len(slot.tokens)
            if len(self.ram[best]) > self.flags.pool - (self.cells() - own):
                slot.tokens = []  # no room to restore it: the slot is cleared, the entry stays
                return
        slot.tokens = self.ram.pop(best)
