"""What is shown, as plain data: HTML and JSON are made of these alone, and the API's schema is their fields.

Lengths are in tokens, `at` in seconds of unix time. What toki predicts is called `predicted` or `alone`; all other
figures are the server's own. None: not known.
"""

from __future__ import annotations

from dataclasses import dataclass

from toki.inspect.records import Request


@dataclass(frozen=True, slots=True)
class Held:
    """What a slot, or where `slot` is None an entry of the RAM cache, is believed to hold. `idle_s`: seconds since
    the conversation's last request."""

    slot: int | None
    tokens: int
    busy: bool
    conversation: int | None
    idle_s: float | None


@dataclass(frozen=True, slots=True)
class Saving:
    """Against the server left alone, as predicted; `seconds` at the measured prefill speed."""

    tokens: int
    seconds: float | None


@dataclass(frozen=True, slots=True)
class Server:
    """One llama-server (or one model of a router) now. `context`: tokens that fit into one slot; `ram`: tokens that its
    RAM cache is believed to hold at most; `saving`: since toki looks after it with its present options."""

    name: str
    mode: str
    state: str
    trusted: bool
    slots: int | None
    context: int | None
    ram: int | None
    open: int
    ms_per_token: float | None
    saving: Saving
    holdings: tuple[Held, ...]


@dataclass(frozen=True, slots=True)
class Sums:
    """Some requests together. `alone_evaluated` is predicted; it and `evaluated` sum the same requests, and one without
    a prediction counts in both alike. `own_evaluated`: by requests of toki's own."""

    requests: int = 0
    hits: int = 0
    soft_hits: int = 0
    misses: int = 0
    unknown: int = 0
    prompt_tokens: int = 0
    reused: int = 0
    evaluated: int = 0
    alone_evaluated: int = 0
    own_evaluated: int = 0

    @property
    def saved(self) -> int:
        """Tokens, against the server left alone, own requests counted; predicted."""
        return self.alone_evaluated - self.evaluated - self.own_evaluated


@dataclass(frozen=True, slots=True)
class Bar:
    """The requests of one step of the timeline."""

    at: int
    sums: Sums


@dataclass(frozen=True, slots=True)
class Why:
    """One cause of one request's re-processing. `seconds` is worked out from the measured prefill speed; `times`:
    requests until then that showed it."""

    cause: str
    place: str
    what: str
    tokens: int
    seconds: float | None
    times: int
    remedy: str
    verdict: str


@dataclass(frozen=True, slots=True)
class Cause:
    """One cause of re-processing in many requests; `example`: the costliest of these requests, and its verdict."""

    cause: str
    what: str
    remedy: str
    requests: int
    tokens: int
    seconds: float | None
    example: int
    verdict: str


@dataclass(frozen=True, slots=True)
class Listed:
    """A request in a list, with the costliest cause that was found."""

    request: Request
    why: Why | None


@dataclass(frozen=True, slots=True)
class Turn:
    """A request in a conversation's curve."""

    id: int
    at: float
    prompt_tokens: int | None
    reused: int | None
    evaluated: int | None
    alone: int | None


@dataclass(frozen=True, slots=True)
class Conversation:
    """The latest requests of one conversation, the oldest first in `turns`. `model`, `endpoint`: of the last one."""

    id: int
    last_at: float
    endpoint: str
    model: str
    sums: Sums
    turns: tuple[Turn, ...]


@dataclass(frozen=True, slots=True)
class Check:
    """An answer that was asked for again without the server's cache; `common`: characters that both begin with."""

    request: int
    at: float
    divergence: str
    common: int


@dataclass(frozen=True, slots=True)
class Checks:
    """The latest checks (toki_verify), and those that said something else."""

    checked: int
    identical: int
    substantive: int
    latest: tuple[Check, ...]


@dataclass(frozen=True, slots=True)
class Overview:
    """What is there to see at a glance. `step_s`: seconds of each bar. `trouble`: why the recorded part is missing."""

    at: float
    version: str
    range: str
    servers: tuple[Server, ...]
    sums: Sums
    saving: Saving
    step_s: int
    timeline: tuple[Bar, ...]
    causes: tuple[Cause, ...]
    checks: Checks
    conversations: tuple[Conversation, ...]
    latest: tuple[Listed, ...]
    trouble: str = ""


@dataclass(frozen=True, slots=True)
class Requests:
    """Requests, the latest first; `older`: the `before` that shows the next ones, None at the end."""

    requests: tuple[Listed, ...]
    older: int | None


@dataclass(frozen=True, slots=True)
class Conversations:
    """The conversations of the latest requests of a time, the latest first."""

    range: str
    conversations: tuple[Conversation, ...]


@dataclass(frozen=True, slots=True)
class ConversationView:
    """One conversation with its latest requests, the latest first."""

    conversation: Conversation
    requests: tuple[Listed, ...]


@dataclass(frozen=True, slots=True)
class Option:
    """One thing that could have been done with a request, and what it was predicted to cost in milliseconds."""

    action: str
    slot: int | None
    reuse: int
    now_ms: float
    later_ms: float


@dataclass(frozen=True, slots=True)
class Place:
    """What a slot or a RAM entry was believed to hold when a request was decided; `shared`: with its prompt."""

    slot: int | None
    tokens: int
    shared: int
    busy: bool
    conversation: int | None


@dataclass(frozen=True, slots=True)
class Diff:
    """The first difference between a prompt and the earlier one that it is compared with."""

    before: str
    was: str
    now: str


@dataclass(frozen=True, slots=True)
class Found:
    """A cause as it is in memory: `hint` says what would help, `detail` adds numbers, `token` is the place of the first
    differing token. `diff` is there only with toki_text."""

    why: Why
    hint: str
    detail: str
    against: int | None
    token: int | None
    diff: Diff | None


@dataclass(frozen=True, slots=True)
class Memory:
    """What is known of a request only while it is in memory. `places`: slots, and the RAM entries that share most with
    its prompt; `left_out`: how many others there were."""

    shared: int | None
    against: int | None
    options: tuple[Option, ...]
    places: tuple[Place, ...] | None
    left_out: int
    slots: int | None
    found: tuple[Found, ...]


@dataclass(frozen=True, slots=True)
class Own:
    """A request of toki's own on behalf of a client's."""

    purpose: str
    prompt_tokens: int
    reused: int | None
    evaluated: int | None
    ms: float


@dataclass(frozen=True, slots=True)
class RequestView:
    """One request with all that is known of it. `memory` None: it is not in memory any more."""

    request: Request
    why: tuple[Why, ...]
    own: tuple[Own, ...]
    check: Check | None
    memory: Memory | None
    previous: int | None  # in its conversation
    next: int | None
    text: bool  # whether toki_text is set
