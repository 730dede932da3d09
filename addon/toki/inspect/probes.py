"""Small requests that tell how an idle llama-server treats what its slots hold.

The rules are the engine's: for each hypothesis a shadow says where a probe lands and what it reuses, the server's own
figures are compared with that, and the hypothesis that was wrong least holds. Every probe begins with tokens of its
own, so that nothing that the server held before can be reused by one. What slots hold is displaced as by any other
request: a server with a RAM cache keeps it there.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import fields
from dataclasses import replace
from time import monotonic
from time import sleep
from typing import Any

from toki.endpoints.completion import Completion
from toki.engine.contents import Contents
from toki.engine.events import Measured
from toki.engine.events import SlotView
from toki.engine.rules import Known
from toki.engine.rules import Rules
from toki.engine.rules import hypotheses
from toki.engine.shadow import Shadow
from toki.engine.shadow import Wish
from toki.engine.tokens import Tokens
from toki.server import Auth
from toki.server import LlamaServerBackend
from toki.server import Props
from toki.server import ServerError

ENDPOINT = Completion("/completion")
SMALL = 32  # tokens of a request that only takes a slot
LONGEST = 1024  # tokens of the conversation that is looked after, at most
SHORTEST = 128
SECONDS = 2.0  # that its prefill should take at most
MOST_SLOTS = 16  # a server with more gets no probes that have to fill them
MOMENT = 1.0  # seconds after which a slot that is still busy is used by others
TIMEOUT = 15.0  # seconds that one probe may take
SLACK = 2  # tokens by which a prediction may be off
TEXT = " ".join(f"{number} {word}" for number in range(40) for word in ("tide", "lamp", "field", "seven"))


class Stopped(Exception):
    """Why no further probe may be sent, in words."""


@dataclass(frozen=True, slots=True)
class Came:
    """What came back of a prompt: `reused` of the `shared` tokens that the server had evaluated before."""

    reused: int
    shared: int

    @property
    def whole(self) -> bool:
        """Whether all of it came back, but for what is always evaluated."""
        return self.reused >= self.shared - max(SLACK, self.shared // 20)


@dataclass(frozen=True, slots=True)
class Probed:
    """What probes showed. None: that probe was not sent, or its answer did not tell."""

    rules: Rules | None = None  # the hypothesis that was wrong least
    doubtful: frozenset[str] = frozenset()  # fields of Rules that others, as good, say otherwise
    wrong: int = 0  # predictions of `rules` that failed
    sent: int = 0
    speed: float | None = None  # prompt tokens per second
    cleared: bool | None = None  # whether a request emptied the slot of the one before
    back: Came | None = None  # a conversation whose slot others had taken
    branch: Came | None = None  # a prompt that leaves a conversation within its history
    pinned: Came | None = None  # a conversation of the RAM cache whose prompt was pinned to another slot
    messages_slot: bool | None = None  # whether /v1/messages honours id_slot
    trouble: str = ""  # why it ended before all were sent


def cost(props: Props) -> str:
    """What the probes will do to a server, in words, to be asked before they are sent."""
    small = 2 * props.total_slots if props.total_slots <= MOST_SLOTS else 2
    return f"up to {small + 10} small requests of at most {LONGEST:,} tokens, which take the slots of what is there now"


def probe(
    backend: LlamaServerBackend, props: Props, known: Known, auth: Auth, deadline: float, messages: bool, seed: int
) -> Probed:
    """Send the probes, one after another, until `deadline` (time.monotonic) or until others use the server.

    `known`: what is believed of its flags. `messages`: whether it has /v1/messages. Never raises.
    """
    prober = _Prober(backend, props, known, auth, deadline, seed)
    try:
        prober.run(messages)
    except (Stopped, ServerError) as error:
        prober.found = replace(prober.found, trouble=str(error))
    return prober.result()


class _Prober:
    """One series of probes, and the shadows that follow it."""

    def __init__(
        self, backend: LlamaServerBackend, props: Props, known: Known, auth: Auth, deadline: float, seed: int
    ) -> None:
        self.found = Probed()
        self._backend = backend
        self._props = props
        self._known = known
        self._auth = auth
        self._deadline = deadline
        self._random = random.Random(seed)
        self._contents = Contents()
        self._shadows: list[Shadow] = []
        self._errors: list[float] = []
        self._ids: list[int] = []
        self._slots: tuple[SlotView, ...] = ()

    def run(self, messages: bool) -> None:
        """The series. What each part is for stands in Probed."""
        self._ids = list(set(self._backend.tokenize(TEXT, self._auth, MOMENT, add_special=False).tolist()))
        self._slots = self._look()
        self._believe()
        n_slots = self._props.total_slots
        first = self._send(self._new(SMALL))
        size = min(LONGEST, max(SHORTEST, round(SECONDS * self._speed(first))), self._props.n_ctx // 3)

        chat = self._new(size)
        held = self._send(chat)
        self._speed(held)
        self._send(self._new(SMALL))
        if held.slot is not None and n_slots > 1:
            self.found = replace(self.found, cleared=not self._slots[held.slot].n_tokens)

        # A step back into the history, before anything else has touched the conversation's end.
        chat = [*chat, *self._new(16)]
        self._send(chat)
        back_to = round(0.7 * size)
        branch = self._send([*chat[:back_to], *self._new(SMALL)])
        self.found = replace(self.found, branch=_came(branch, back_to))

        chat = self._new(size)  # another one: of the first the server has two versions now
        self._send(chat)
        if n_slots <= MOST_SLOTS:
            self._displace()
            chat = [*chat, *self._new(16)]
            back = self._send(chat)
            self.found = replace(self.found, back=_came(back, len(chat) - 16))
            if self.found.back is not None and self.found.back.whole:  # else there is nothing to fetch
                last = self._displace()
                if last.slot is not None:
                    pinned = self._send([*chat, *self._new(16)], id_slot=last.slot)
                    self.found = replace(self.found, pinned=_came(pinned, len(chat)))
        # A third of a slot's contents: whether that is enough to choose the slot depends on -sps.
        self._send([*chat[: size // 3], *self._new(size - size // 3)])
        if messages and n_slots > 1:
            self._try_messages()

    def result(self) -> Probed:
        """What was found, with the hypothesis that holds."""
        if not self.found.sent or not self._shadows:
            return self.found
        least = min(self._errors)
        good = [s.rules for s, errors in zip(self._shadows, self._errors, strict=True) if errors <= least]
        names = [field.name for field in fields(Rules)]
        doubtful = {name for name in names for rules in good if getattr(rules, name) != getattr(good[0], name)}
        return replace(self.found, rules=good[0], doubtful=frozenset(doubtful), wrong=round(least))

    def _believe(self) -> None:
        """Shadows of all hypotheses. What slots hold now is a list that shares nothing with any probe; which of them
        was used last shows in the numbers of their tasks."""
        for rules in hypotheses(self._props.total_slots, self._props.n_ctx, self._known):
            shadow = Shadow(rules, self._contents)
            for view in sorted(self._slots, key=lambda view: view.task):
                if view.task >= 0:
                    shadow.launch(Wish(-1 - view.id, self._contents.hold(*self._list([])), id_slot=view.id))
                    shadow.finish(-1 - view.id, 0)
                if view.n_tokens:
                    strange = [2**31 - 1 - view.id] * view.n_tokens  # no vocabulary is as large
                    shadow.correct(view.id, self._contents.hold(*self._list(strange)))
            self._shadows.append(shadow)
            self._errors.append(0.0)

    def _list(self, ids: Sequence[int]) -> tuple[int, int, int]:
        return self._contents.add(Tokens.of(ids)), len(ids), len(ids)

    def _new(self, length: int) -> list[int]:
        """Tokens that no other probe begins with."""
        return self._random.choices(self._ids, k=length)

    def _displace(self) -> Measured:
        """Take every slot with something else; the last of these requests."""
        measured = Measured()
        for _ in range(self._props.total_slots):
            measured = self._send(self._new(SMALL))
        return measured

    def _send(self, ids: Sequence[int], id_slot: int | None = None) -> Measured:
        """One probe: its figures, which score the hypotheses, and a look at the slots behind it."""
        body: dict[str, Any] = {"prompt": list(ids), "n_predict": 0, "cache_prompt": True}
        if id_slot is not None:
            body["id_slot"] = id_slot
        measured = self._ask(lambda left: self._backend.completion(body, self._auth, left), len(ids))
        wish = Wish(self.found.sent, self._contents.hold(*self._list(ids)), id_slot=id_slot)
        for number, shadow in enumerate(self._shadows):
            launch = shadow.launch(wish)
            shadow.finish(wish.key, 1)
            wrong = launch is None
            if launch is not None and measured.reused is not None:
                slack = max(SLACK, len(ids) // 50)  # a window that is not known of costs the last tokens of an entry
                wrong = not launch.reuse.low - slack <= measured.reused <= launch.reuse.high + slack
                wrong |= measured.slot is not None and measured.slot != launch.slot
            lengths = [slot.held.length if slot.held else 0 for slot in shadow.slots]
            seen = [view.n_tokens for view in self._slots]
            wrong |= any(told not in (None, length) for told, length in zip(seen, lengths, strict=False))
            self._errors[number] += wrong
        return measured

    def _ask(self, call: Callable[[float], Mapping[str, Any]], length: int) -> Measured:
        """Send a probe of `length` tokens if there is time for it and nobody else is there."""
        left = self._deadline - monotonic()
        if left < (length / self.found.speed if self.found.speed else 0.0) + 1:
            raise Stopped("the time was up")
        before = max((view.task for view in self._slots), default=-1)
        answer = call(min(left, TIMEOUT))
        self.found = replace(self.found, sent=self.found.sent + 1)
        meter = ENDPOINT.meter()
        meter.feed(answer)
        self._slots = self._look()
        if len([view for view in self._slots if view.task > before]) > 1:
            raise Stopped("others use the server")
        return meter.measured(finished=True)

    def _look(self) -> tuple[SlotView, ...]:
        """The slots, once none is busy: an answer may be here a moment before its slot is free."""
        until = monotonic() + MOMENT
        while True:
            left = max(self._deadline - monotonic(), MOMENT)
            slots = self._backend.slots(self._auth, min(left, TIMEOUT))
            if not any(view.busy for view in slots):
                return slots
            if monotonic() > until:
                raise Stopped("others use the server")
            sleep(0.05)

    def _speed(self, measured: Measured) -> float:
        """Prompt tokens per second, of the largest probe so far."""
        if measured.prompt_ms and measured.evaluated:
            self.found = replace(self.found, speed=1000 * measured.evaluated / measured.prompt_ms)
        return self.found.speed or 0.0

    def _try_messages(self) -> None:
        """Name the slot that was used last, which no unrelated prompt would take by itself."""
        before = {view.id: view.task for view in self._slots}
        wanted = max(before, key=lambda slot: before[slot])
        text = " ".join(map(str, self._new(8)))
        body = {
            "model": "probe",
            "max_tokens": 1,
            "messages": [{"role": "user", "content": text}],
            "id_slot": wanted,
        }
        self._ask(lambda left: self._backend.messages(body, self._auth, left), SMALL)
        taken = [view.id for view in self._slots if view.task > before.get(view.id, -1)]
        if len(taken) == 1:
            self.found = replace(self.found, messages_slot=taken[0] == wanted)


def _came(measured: Measured, shared: int) -> Came | None:
    return None if measured.reused is None else Came(measured.reused, shared)
