"""The vocabulary of explanations: causes, places in a prompt, remedies, and the Finding that ties them together.

What is shown in logs or stored must not hold a word of a prompt. So a Finding's `verdict` and `hint` are made of these
words and of numbers alone; the texts are in its `diff`, which is for the views of the person whose traffic it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

WORD = 40  # characters of a word that are shown


class Cause(StrEnum):
    """Why prompt tokens were processed again."""

    # The prompt is not what the server had.
    CLOCK = "clock"
    COUNTER = "counter"
    ID = "id"
    ATTRIBUTION = "attribution"
    KEY_ORDER = "key-order"
    TOOL_ADDED = "tool-added"
    TOOL_REMOVED = "tool-removed"
    TOOL_CHANGED = "tool-changed"
    TOOLS_REORDERED = "tools-reordered"
    REASONING_DROPPED = "reasoning-dropped"
    REMINDER_MOVED = "reminder-moved"
    REMINDER_REMOVED = "reminder-removed"
    OUTPUT_PRUNED = "output-pruned"
    IMAGE_REMOVED = "image-removed"
    WINDOW_SLIDE = "window-slide"
    COMPACTION = "compaction"
    SYSTEM_HOISTED = "system-hoisted"
    TEMPLATE_ARGUMENTS = "template-arguments"
    TOOLS_MOVED = "tools-moved"
    REPLY_CHANGED = "reply-changed"
    EDITED = "edited"
    REWRITTEN = "rewritten"
    # The server had it, and has it no more, or does not use it.
    SLOT_TAKEN = "slot-taken"
    SLOT_BUSY = "slot-busy"
    SLOT_NOT_CHOSEN = "slot-not-chosen"
    RAM_NOT_CONSULTED = "ram-not-consulted"
    IDLE_CLEARED = "idle-cleared"
    CANNOT_ROLL_BACK = "cannot-roll-back"
    RESTARTED = "restarted"
    ABORTED = "aborted"
    UNEXPLAINED = "unexplained"


class Remedy(StrEnum):
    """What kind of thing would help."""

    NOTHING = "nothing"
    SLOT = "slot choice"  # toki's
    SERVER = "server flag"
    CLIENT = "client setting"
    REWRITE = "rewrite"


class Part(StrEnum):
    """What a place in a prompt belongs to."""

    TOOLS = "tools"
    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL_RESULT = "tool result"
    TEMPLATE = "template"  # what the chat template writes between the others
    REPLY = "reply"  # the answer to the last prompt, as it comes back in this one
    PROMPT = "prompt"  # of a prompt without messages


@dataclass(frozen=True, slots=True)
class Block:
    """A place in a prompt. `message` counts the request's messages from 0, the system text included."""

    part: Part
    message: int | None = None

    def __str__(self) -> str:
        match self.part:
            case Part.TOOLS:
                return "the tools"
            case Part.SYSTEM:
                return "the system text" if not self.message else f"message {self.message} (system)"
            case Part.TEMPLATE:
                return "what the template writes"
            case Part.REPLY:
                return "the last answer"
            case Part.PROMPT:
                return "the prompt"
            case Part.TOOL_RESULT:
                return "a tool result" if self.message is None else f"the tool result in message {self.message}"
        return f"a message ({self.part})" if self.message is None else f"message {self.message} ({self.part})"


@dataclass(frozen=True, slots=True)
class Diff:
    """The first difference: `before` is the text that both prompts have there, `was` and `now` how they go on.

    `token` is the place of the first differing token, None where tokens could not be had; `was_id` and `now_id` are
    what stands there.
    """

    before: str
    was: str
    now: str
    token: int | None = None
    was_id: int | None = None
    now_id: int | None = None

    @property
    def words(self) -> tuple[str, str]:
        """The first word that differs, as it was and as it is; "" where there is none."""
        start = _end_of(self.before)
        was, now = (start + _start_of(text) for text in (self.was, self.now))
        return was, now


@dataclass(frozen=True, slots=True)
class Finding:
    """One cause in one request. `tokens` were processed again because of it, which took about `seconds` (None: this
    server's speed is not known yet).

    `against` is the key of the earlier request that this one is compared with. `times` counts the requests in
    which the cause was seen until now. `detail` adds numbers; no text of a prompt.
    """

    cause: Cause
    block: Block | None
    tokens: int
    seconds: float | None
    times: int
    remedy: Remedy
    hint: str
    against: int | None = None
    detail: str = ""
    diff: Diff | None = None

    @property
    def recurring(self) -> bool:
        return self.times > 1

    @property
    def verdict(self) -> str:
        """One line without a word of the prompt: what it cost, what it was and where, how often, what to do."""
        cost = f"{self.tokens:,} tokens read again" + ("" if self.seconds is None else f" ({duration(self.seconds)})")
        often = f", {ordinal(self.times)} time" if self.recurring else ""
        detail = f" ({self.detail})" if self.detail else ""
        return f"{cost}: {what(self.cause, self.block)}{detail}{often}; {self.hint}"


WHAT = {
    Cause.CLOCK: "a clock in {}",
    Cause.COUNTER: "a counter in {}",
    Cause.ID: "an id or hash in {}",
    Cause.ATTRIBUTION: "the attribution line in {}",
    Cause.KEY_ORDER: "the same JSON with its keys in another order in {}",
    Cause.TOOL_ADDED: "a tool was added",
    Cause.TOOL_REMOVED: "a tool was removed",
    Cause.TOOL_CHANGED: "the definition of a tool changed",
    Cause.TOOLS_REORDERED: "the same tools in another order",
    Cause.REASONING_DROPPED: "reasoning was dropped from {}",
    Cause.REMINDER_MOVED: "a passage moved away from {}",
    Cause.REMINDER_REMOVED: "a passage was taken out of {}",
    Cause.OUTPUT_PRUNED: "{} was pruned",
    Cause.IMAGE_REMOVED: "an image was taken out of {}",
    Cause.WINDOW_SLIDE: "the oldest messages were cut off, from {} on",
    Cause.COMPACTION: "a compaction, other from {} on",
    Cause.SYSTEM_HOISTED: "a later system message was moved into {}",
    Cause.TEMPLATE_ARGUMENTS: "other arguments for the chat template, seen in {}",
    Cause.TOOLS_MOVED: "the template writes the tools before the latest question, so that they move at each turn",
    Cause.REPLY_CHANGED: "{} came back other than it was generated",
    Cause.EDITED: "{} differs (edited, or another client's)",
    Cause.REWRITTEN: "{} is rewritten again and again",
    Cause.SLOT_TAKEN: "another conversation took the slot",
    Cause.SLOT_BUSY: "the slot that holds it was busy",
    Cause.SLOT_NOT_CHOSEN: "the server took another slot than the one that holds it",
    Cause.RAM_NOT_CONSULTED: "it lay in the RAM cache, and the server did not take it from there",
    Cause.IDLE_CLEARED: "the server cleared the idle slot, and the RAM cache had no room for it",
    Cause.CANNOT_ROLL_BACK: "the model can't go back to where the prompt branches",
    Cause.RESTARTED: "the server was restarted",
    Cause.ABORTED: "an earlier try was given up while its prompt was read",
    Cause.UNEXPLAINED: "the server had it and processed it again, for a reason that toki can't see",
}

REMEDIES = {
    Cause.CLOCK: (Remedy.REWRITE, "freeze it, make it coarser, or move it to the end of the prompt"),
    Cause.COUNTER: (Remedy.REWRITE, "freeze it or move it to the end of the prompt"),
    Cause.ID: (Remedy.REWRITE, "take it out or move it to the end of the prompt"),
    Cause.ATTRIBUTION: (  # anthropics/claude-code#24168, ollama#14918; llama-server masks it since llama.cpp#21793
        Remedy.CLIENT,
        "set CLAUDE_CODE_ATTRIBUTION_HEADER to 0 in settings.json's env, or use a llama-server that masks the line",
    ),
    Cause.KEY_ORDER: (Remedy.REWRITE, "write the keys in one order"),
    Cause.TOOL_ADDED: (Remedy.CLIENT, "connect all tools before the conversation starts, and append new ones"),
    Cause.TOOL_REMOVED: (Remedy.CLIENT, "keep the set of tools for the whole conversation"),
    Cause.TOOL_CHANGED: (Remedy.CLIENT, "keep the tools' definitions for the whole conversation"),
    Cause.TOOLS_REORDERED: (Remedy.REWRITE, "send the tools in one order"),
    Cause.REASONING_DROPPED: (Remedy.CLIENT, "let the client send back the reasoning as it was generated"),
    Cause.REMINDER_MOVED: (Remedy.REWRITE, "leave it where it was sent first, and append a new one"),
    Cause.REMINDER_REMOVED: (Remedy.REWRITE, "leave it where it was sent"),
    Cause.OUTPUT_PRUNED: (Remedy.CLIENT, "prune rarely and much at once, or not at all"),
    Cause.IMAGE_REMOVED: (Remedy.CLIENT, "raise the client's limit of images"),
    Cause.WINDOW_SLIDE: (Remedy.CLIENT, "give the client more context, or let it cut much at once"),
    Cause.COMPACTION: (Remedy.NOTHING, "nothing to do: the history is another one now"),
    Cause.SYSTEM_HOISTED: (Remedy.REWRITE, "fold it into the user message before it, where it stands"),
    Cause.TEMPLATE_ARGUMENTS: (Remedy.CLIENT, "keep the template's arguments for the whole conversation"),
    Cause.TOOLS_MOVED: (Remedy.SERVER, "give the server a template with the tools at the head (--chat-template-file)"),
    Cause.REPLY_CHANGED: (Remedy.NOTHING, "nothing to do"),
    Cause.EDITED: (Remedy.NOTHING, "nothing to do"),
    Cause.REWRITTEN: (Remedy.REWRITE, "freeze it, or move it to the end of the prompt"),
    Cause.SLOT_TAKEN: (Remedy.SLOT, "toki's part in mode auto; more slots help too"),
    Cause.SLOT_BUSY: (Remedy.SLOT, "send the first one alone, the others when its prompt is read"),
    Cause.SLOT_NOT_CHOSEN: (Remedy.SLOT, "toki's part in mode auto, where the client sends no id_slot"),
    Cause.RAM_NOT_CONSULTED: (Remedy.SLOT, "toki's part in mode auto: it makes the server look there"),
    Cause.IDLE_CLEARED: (Remedy.SERVER, "raise --cache-ram, or set -np N or --no-cache-idle-slots"),
    Cause.CANNOT_ROLL_BACK: (Remedy.SERVER, "use --swa-full on a sliding-window model, or more checkpoints"),
    Cause.RESTARTED: (Remedy.NOTHING, "nothing to do"),
    Cause.ABORTED: (Remedy.CLIENT, "raise the client's time-out above the time that its prompts take"),
    Cause.UNEXPLAINED: (Remedy.NOTHING, "perhaps another client of this server"),
}

# Where the remedy depends on more than the cause.
TEMPLATE_DROPS = (Remedy.SERVER, "let the template keep it: --reasoning-preserve where the server has it")
ONE_SLOT = (Remedy.SERVER, "give the server a second slot (-np 2), or room for it in the RAM cache (--cache-ram)")
RESENT = (Remedy.SLOT, "toki's part in mode auto: the conversation keeps its slot")


def _end_of(text: str) -> str:
    words = text[-WORD:].split()
    return words[-1] if words and not text[-1:].isspace() else ""


def _start_of(text: str) -> str:
    words = text[:WORD].split()
    return words[0] if words and not text[:1].isspace() else ""


def what(cause: Cause, block: Block | None) -> str:
    """A cause and its place in plain words."""
    return WHAT[cause].format("the prompt" if block is None else block)


def duration(seconds: float) -> str:
    """Such as "180 ms", "4.2 s", "3 min"."""
    if seconds < 0.9995:
        return f"{1000 * seconds:.0f} ms"
    if seconds < 99.95:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min"


def ordinal(number: int) -> str:
    """1st, 2nd, 3rd, 4th, …"""
    if number % 100 in (11, 12, 13):
        return f"{number}th"
    return f"{number}{ {1: 'st', 2: 'nd', 3: 'rd'}.get(number % 10, 'th') }"
