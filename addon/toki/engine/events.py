"""The engine's vocabulary: what happened (events), what to do (commands), and the facts inside them.

Every type here is a small frozen dataclass. Events carry their own time (`at`, seconds of a monotonic
clock), so that the engine needs no clock and a log of events replays to the same decisions.
"""

from __future__ import annotations

from dataclasses import dataclass
from dataclasses import field
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from toki.engine.rules import Known
from toki.engine.rules import Rules
from toki.engine.tokens import Tokens


class Mode(StrEnum):
    """What toki may do with a request (option `toki_mode`)."""

    AUTO = "auto"  # steer where the shadow predicts a win
    OBSERVE = "observe"  # predict and record, steer nothing
    PIN = "pin"  # always the verified longest prefix, where that is safe
    OFF = "off"  # pass everything; rows only

    @property
    def steers(self) -> bool:
        return self in (Mode.AUTO, Mode.PIN)


class Action(StrEnum):
    """What was done with a request (column `action`; CONTRACT names)."""

    PASSED = "passed"
    PINNED = "pinned"
    SWAPPED = "swapped"
    PRIMED = "primed"
    FORKED = "forked"
    WAITED = "waited"
    ISOLATED = "isolated"  # as it came but without the cache, which would show it what another key's request left


class Outcome(StrEnum):
    """What the server's own reuse figure amounts to (column `outcome`)."""

    HIT = "hit"
    SOFT_HIT = "soft_hit"
    MISS = "miss"
    UNKNOWN = "unknown"


class Kind(StrEnum):
    """The server task that a request becomes; only COMPLETION touches the RAM prompt cache.

    Source: llama.cpp b11434, server-context.cpp get_available_slot (`task.type == COMPLETION`).
    """

    COMPLETION = "completion"
    INFILL = "infill"


@dataclass(frozen=True, slots=True)
class Ask:
    """What one request wants from the server, and whether it may be steered.

    `tokens` is the exact prompt as the server will see it, or None with the reason in `unknown`; `head` is then what is
    known of its beginning. Of an image or sound the tokens are made up: as many as it takes, of no vocabulary.
    `fixed` says in plain words why the request must leave as it came ("" where it may be steered). `owner` stands for
    the API key whose requests are kept apart from those of others ("" where none are).
    """

    endpoint: str
    kind: Kind = Kind.COMPLETION
    model: str = ""
    stream: bool = False
    tokens: Tokens | None = None
    unknown: str = ""
    head: Tokens | None = None
    images: tuple[int, ...] = ()  # the tokens before each image or sound, ascending
    fixed: str = ""
    honours_slot: bool = True  # the endpoint passes `id_slot` on to the task
    client_slot: int | None = None  # the client's own id_slot, as a server that honours it reads it
    cache_prompt: bool = True
    chose_cache: bool = False  # the client itself says whether the cache is used
    children: int = 0  # n > 1: further copies that take slots of their own
    prompts: int = 1  # a list of prompts becomes that many tasks
    max_tokens: int | None = None
    lora: str = ""  # the adapter set, canonical; contents never match across sets
    owner: str = ""  # nor across owners
    user_starts: tuple[int, ...] = ()  # of a chat: the tokens before each user message, ascending
    vector: npt.NDArray[np.float32] | None = field(default=None, compare=False)  # embedding of tokens, unit length
    semantic: bool = False  # `vector` comes from an embedding server; else it is the prefix embedding


@dataclass(frozen=True, slots=True)
class Measured:
    """The server's own figures for one answer; None where the answer does not say."""

    prompt_tokens: int | None = None
    reused: int | None = None
    evaluated: int | None = None
    reply_tokens: int | None = None
    slot: int | None = None
    prompt_ms: float | None = None  # the server's own prefill time
    reply_ms: float | None = None  # and its time for the reply
    reply_text: str | None = None  # the raw sampled text where the answer shows it whole, else None
    truncated: bool = False  # the context was shifted
    finished: bool = True  # the answer came to its regular end

    @property
    def took(self) -> float:
        """Seconds that the server worked on it at least."""
        return ((self.prompt_ms or 0.0) + (self.reply_ms or 0.0)) / 1000


@dataclass(frozen=True, slots=True)
class SlotView:
    """One slot as GET /slots shows it. `n_tokens` is what it holds now; `task` the last task's id (-1: never used)."""

    id: int
    busy: bool
    n_tokens: int | None
    task: int
    n_ctx: int


@dataclass(frozen=True, slots=True)
class Span:
    """A predicted number of tokens: the likely value and the range it may lie in."""

    low: int
    likely: int
    high: int


@dataclass(frozen=True, slots=True)
class Option:
    """One thing that could be done with a request, priced. `now` and `later` are milliseconds."""

    action: Action
    slot: int | None
    reuse: Span
    now: float
    later: float
    why: str


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do with one request, and why."""

    action: Action
    slot: int | None  # the slot it is expected on; None: unknown
    id_slot: int | None  # what to splice in; None: leave as it came
    predicted: Span | None  # reuse if this is done; None: not predictable
    alone: Span | None  # reuse by a server that was never steered; None: not predictable
    similarity: float | None
    reason: str
    options: tuple[Option, ...] = ()
    cache_prompt: bool = True  # False: the server is told not to use its cache

    @property
    def steers(self) -> bool:
        """Whether the body that leaves is not the client's own."""
        return self.id_slot is not None or not self.cache_prompt


@dataclass(frozen=True, slots=True)
class Holding:
    """What a slot, or where `slot` is None an entry of the RAM cache, is believed to hold: `length` tokens, of which a
    prompt most likely starts with `shared`, the latest of the conversation `conversation` (None: of none known)."""

    slot: int | None
    length: int
    shared: int
    busy: bool = False
    conversation: int | None = None


@dataclass(frozen=True, slots=True)
class Believed:
    """What the leading hypothesis said of a server when a request was decided, for those who want to know why.

    `holdings`: all slots that held something, and those RAM entries that share most with the prompt; `left_out`: how
    many other entries there were; `stored`: tokens of all entries, with what each takes beside its own. `slot`: where
    the request ran; `ms_per_token`: what evaluating a prompt token costs there, None until measured.
    """

    rules: Rules
    holdings: tuple[Holding, ...]
    slot: int | None
    options: tuple[Option, ...]
    ms_per_token: float | None
    left_out: int = 0
    stored: int = 0


# --- events -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Arrived:
    """A prompt request is here and held: decide now. Answered by Send, by Prime until Primed comes, or by Wait: then it
    arrives again, or a Send comes for it with what another event brings. Each request is sent exactly once, and again
    only after Unsteered.

    `slots` is a fresh look at the server's slots where one was taken beside the look-ups.
    `ask.tokens` may still be missing where no decision can depend on it; then Read follows.
    `company`: other requests of at least half its size that are being read at this moment.
    """

    key: int
    at: float
    ask: Ask
    slots: tuple[SlotView, ...] | None = None
    looked_at: float | None = None  # when the look was sent
    company: int = 0


@dataclass(frozen=True, slots=True)
class Read:
    """The tokens of a request that was sent before they were known."""

    key: int
    at: float
    ask: Ask


@dataclass(frozen=True, slots=True)
class Primed:
    """The primer that was asked for is done; `measured` None: it failed."""

    key: int
    at: float
    measured: Measured | None


@dataclass(frozen=True, slots=True)
class Began:
    """The first sign of life of the answer: its headers. For a stream that is the launch (llama-server 15.7)."""

    key: int
    at: float
    status: int


@dataclass(frozen=True, slots=True)
class Unsteered:
    """The server refused a request as it was steered. Answered by Send with how it is sent again; by nothing where no
    steered request is known: then it goes as it came."""

    key: int
    at: float


@dataclass(frozen=True, slots=True)
class Answered:
    """The answer is complete (last byte seen)."""

    key: int
    at: float
    status: int
    measured: Measured


@dataclass(frozen=True, slots=True)
class Gone:
    """The request ended without a complete answer: client left, or the connection broke.

    `sent` tells whether it had reached the server, `shown` how many pieces of its answer had come: with the first one
    its whole prompt is in the slot, and each has a token at least; `measured` is what they had told.
    """

    key: int
    at: float
    sent: bool
    shown: int = 0
    measured: Measured = field(default_factory=Measured)


@dataclass(frozen=True, slots=True)
class Replied:
    """The reply's text, tokenised anew: a guess at what follows the prompt in the slot. `ids`: int32, shape (n,)."""

    key: int
    at: float
    ids: npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Looked:
    """An answer of GET /slots. `asked_at`: when the question was sent."""

    at: float
    asked_at: float
    slots: tuple[SlotView, ...]


@dataclass(frozen=True, slots=True)
class Restarted:
    """The server is new or other than before: all beliefs start over.

    `n_ctx`: context of one slot, as /props says; `slots` as /slots shows them, None where it does not.
    """

    at: float
    total_slots: int
    n_ctx: int
    known: Known = field(default_factory=Known)
    slots: tuple[SlotView, ...] | None = None

    def used_by(self, taken: int) -> bool:
        """Whether requests that take so many slots are all that its slots have seen since the server's start."""
        used = sum(1 for view in self.slots or () if view.n_tokens or view.task >= 0)
        return self.slots is not None and used <= taken


Event = Arrived | Read | Primed | Began | Unsteered | Answered | Gone | Replied | Looked | Restarted


# --- commands -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Send:
    """Release the request `key` as `decision` says."""

    key: int
    decision: Decision


@dataclass(frozen=True, slots=True)
class Prime:
    """Before the request `key` goes on, send `tokens` to /completion with this `id_slot` (-1: any) and n_predict 0,
    wait `patience` seconds at most for the answer, and report Primed.

    It evaluates what is not cached, samples one token, and leaves just these tokens in the slot (b10434 and b11549). Of
    no tokens it is a probe: answered at once, the slot keeps what it holds.
    """

    key: int
    tokens: Tokens
    id_slot: int
    patience: float


@dataclass(frozen=True, slots=True)
class Wait:
    """Hold the request `key` until Resume or Send comes for it, or until the time `until`; but for a Send, it then
    arrives again."""

    key: int
    until: float


@dataclass(frozen=True, slots=True)
class Resume:
    """What the request `key` waits for is over."""

    key: int


@dataclass(frozen=True, slots=True)
class Look:
    """Ask the server for its slots and report Looked."""


@dataclass(frozen=True, slots=True)
class Record:
    """What the engine knows of an ended request, for its row. Rows are recorded in the order of these commands.

    `parent` and `conversation` are keys of requests (a conversation is named by its first request).
    `parent` is the recorded request with the longest exact common prefix, `shared` that length in tokens.
    """

    key: int
    conversation: int
    parent: int | None
    shared: int
    similarity: float | None
    predicted: int | None
    alone: int | None
    outcome: Outcome
    slot: int | None
    action: Action
    reason: str
    measured: Measured
    believed: Believed | None = None  # None: the server was not known, or the tokens were not
    span: Span | None = None  # the range in which the reuse was predicted to lie, `predicted` with it


Command = Send | Prime | Wait | Resume | Look | Record
