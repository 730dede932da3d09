"""A stage whose requests are of several owners, and a literal server that notes whose contents each of them found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from dataclasses import replace

from tests.engine.literal import Flags
from tests.engine.literal import LiteralServer
from tests.engine.literal import LiteralSlot
from tests.engine.literal import Task
from tests.engine.stage import Stage

from toki.engine.contents import UNKNOWN
from toki.engine.events import Ask
from toki.engine.events import Command
from toki.engine.events import Decision
from toki.engine.events import Event
from toki.engine.events import Mode
from toki.engine.events import Prime
from toki.engine.events import Send
from toki.engine.rules import Known


@dataclass(frozen=True, slots=True)
class Finding:
    """A launch that reused something: whose request it was, and who had left that."""

    key: int
    owner: str
    left_by: str
    reuse: int


class NotingServer(LiteralServer):
    """Follows whose tokens lie in each slot and each RAM entry."""

    def __init__(self, flags: Flags, owner_of: Callable[[int], str]) -> None:
        super().__init__(flags)
        self.owner_of = owner_of
        self.found: list[Finding] = []
        self.owners: dict[int, str] = {}  # of what lies in a slot
        self.stored: list[tuple[list[int], str]] = []  # RAM entries, by identity, and whose they are

    def prefill(self, number: int, children: list[int], task: Task) -> None:
        left_by = self.owners.get(number, "")
        super().prefill(number, children, task)
        owner, reuse = self.owner_of(task.key), self.launched[-1].reuse
        if reuse:
            self.found.append(Finding(task.key, owner, left_by, reuse))
        if not self.instant(task):
            self.owners |= dict.fromkeys((number, *children), owner)

    def save(self, slot: LiteralSlot) -> None:
        before = len(self.ram), self.ram[-1:]
        super().save(slot)
        if self.ram and (len(self.ram), self.ram[-1:]) != before and self.ram[-1] == slot.tokens:
            self.stored.append((self.ram[-1], self.owners[self._number(slot)]))

    def load(self, slot: LiteralSlot, prompt: list[int]) -> None:
        super().load(slot, prompt)
        for entry, owner in self.stored:
            if slot.tokens is entry:
                self.owners[self._number(slot)] = owner

    def _number(self, slot: LiteralSlot) -> int:
        return next(number for number, one in enumerate(self.slots) if one is slot)


class SharedStage(Stage):
    """Requests are of the `owners` in turn, or of that which `arrive` is told."""

    def __init__(self, flags: Flags, mode: Mode = Mode.AUTO, told: Known | None = None, *, owners: int = 3) -> None:
        self.names = [f"owner {number}" for number in range(owners)]
        self.owner: dict[int, str] = {}
        self.noting = NotingServer(flags, self.owner_of)
        self.astray: list[str] = []  # steering that leads to what another owner left
        super().__init__(flags, mode, told)

    def restart(self, server: LiteralServer) -> None:
        self.noting = NotingServer(server.flags, self.owner_of)
        super().restart(self.noting)

    def owner_of(self, key: int) -> str:
        primes = self.exchanges[key].primes if key < 0 else None
        return self.owner[key if primes is None else primes]

    def arrive(
        self,
        prompt: list[int],
        reply: list[int],
        *,
        stream: bool = True,
        peek: int | None = None,
        company: int = 0,
        change: Callable[[Ask], Ask] = lambda ask: ask,
        owner: str = "",
    ) -> int:
        name = owner or self.names[(self.keys + 1) % len(self.names)]
        self.owner[self.keys + 1] = name

        def owned(ask: Ask) -> Ask:
            return replace(change(ask), owner=name)

        return super().arrive(prompt, reply, stream=stream, peek=peek, company=company, change=owned)

    def tell(self, event: Event) -> list[Command]:
        commands = super().tell(event)
        for command in commands:
            if isinstance(command, Send):
                self._check(command.key, command.decision)
            elif isinstance(command, Prime) and command.id_slot >= 0:
                self._check_slot(command.key, command.id_slot, f"primer {command.id_slot}")
        return commands

    def _check(self, key: int, decision: Decision) -> None:
        if decision.id_slot is not None:
            self._check_slot(key, decision.id_slot, f"{decision.action} {decision.id_slot}")

    def _check_slot(self, key: int, id_slot: int, what: str) -> None:
        """What a request, or a primer for it, is led to is no one's or its owner's."""
        belief = self.engine.belief
        assert belief is not None
        held = belief.base.slots[id_slot % belief.rules.n_slots].held
        contents = belief.base.contents
        if held is not None and (held.place == UNKNOWN or contents.owner(held.place) != self.owner[key]):
            self.astray.append(f"request {key}: {what}")
