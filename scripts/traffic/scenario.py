"""What a scenario is, and the parts that scripts of sessions are made of."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterable
from dataclasses import dataclass
from dataclasses import field

from traffic.request import Form
from traffic.request import Message
from traffic.request import Request
from traffic.request import Tool
from traffic.request import assistant
from traffic.request import system
from traffic.request import user
from traffic.run import Order
from traffic.run import Run
from traffic.run import Script
from traffic.run import once
from traffic.words import Writer


@dataclass(frozen=True, slots=True)
class Stage:
    """What one play of a scenario is told: its seed, the length of answers in tokens, a factor on all sizes of text."""

    seed: int
    reply_tokens: int
    scale: float

    def writer(self, name: str) -> Writer:
        return Writer(self.seed, name, self.scale)


@dataclass(frozen=True, slots=True)
class Scenario:
    """A kind of traffic; `scripts` sets up its sessions."""

    name: str
    summary: str
    scripts: Callable[[Stage], Iterable[Script]]
    order: Order = "random"

    def start(self, seed: int, *, reply_tokens: int = 8, scale: float = 1.0) -> Run:
        """A play of it. `scale` multiplies all sizes of text but not the number of requests."""
        return Run(self.scripts(Stage(seed, reply_tokens, scale)), self.order, seed)


@dataclass(slots=True)
class Conversation:
    """The history that an agent keeps and sends whole each time, with its tools."""

    session: str
    reply_tokens: int
    tools: tuple[Tool, ...] = ()
    messages: list[Message] = field(default_factory=list)
    form: Form = "chat"
    stream: bool = True

    def request(self, kind: str = "turn") -> Request:
        """The next request, should the history be sent as it stands."""
        return Request(
            session=self.session,
            messages=tuple(self.messages),
            tools=self.tools,
            max_tokens=self.reply_tokens,
            kind=kind,
            form=self.form,
            stream=self.stream,
        )

    def say(self, text: str, kind: str = "turn") -> Script:
        """Append a user message, ask, append the answer."""
        self.messages.append(user(text))
        answer = yield from once(self.request(kind))
        self.messages.append(assistant(answer))
        return answer


def single(session: str, instructions: str, text: str, max_tokens: int, kind: str) -> Request:
    """A side call: instructions of its own, one user message, never continued."""
    messages = (system(instructions), user(text)) if instructions else (user(text),)
    return Request(session=session, messages=messages, max_tokens=max_tokens, kind=kind, one_shot=True, stream=False)


def opening(session: str, text: str) -> str:
    """A first user message. It names its session, so that text of a stranger shows in an answer or a prompt."""
    return f"Conversation {session}. {text}"
