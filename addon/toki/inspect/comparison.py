"""A prompt beside the best earlier prompt of its conversation: how much they share, and what is there again behind it.

A prefix alone does not tell a conversation: with a clock in the first line all conversations of a client share just
the words before it. So the earlier prompt is the one with most in common anywhere, the longest exact token prefix
first; and what matters is what both have *behind* their first difference: that is what is processed again. A new
conversation, a branch, another kind of request have nothing there, and so nothing is found.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from toki.engine.tokens import Tokens
from toki.inspect.changes import RESENT_MESSAGES
from toki.inspect.changes import Change
from toki.inspect.changes import Place
from toki.inspect.changes import classify
from toki.inspect.finding import Diff
from toki.inspect.finding import Part
from toki.inspect.outline import Outline
from toki.inspect.outline import Span
from toki.inspect.outline import locate
from toki.inspect.texts import common_prefix
from toki.inspect.texts import common_suffix

LEAST = 64  # tokens: what is processed again below that is not worth a word
SLACK = 16  # tokens at the end of a prompt that its continuation may lack: what templates put before an answer
CHARS_PER_TOKEN = 4.0  # where tokens can't be had
KIN = 0.5  # share of the system text that two requests of one population have in common
THOUGHTS = ("<think", "<|channel|>analysis", "[THINK]", "<seed:think")  # how templates begin reasoning
TAG = 24  # characters around a difference in which such a beginning lies
WORDS = 20  # characters from which a passage is known again
OVERHEAD = 400  # bytes of a message beside its text
PROBE = 80  # characters by which a text that goes on is known again
AROUND = 120  # characters of text on either side of a difference

Stretches = tuple[tuple[int, int], ...]  # from and to, counted from the first difference on


@dataclass(frozen=True)
class Prompt:
    """One request's prompt. `text` is what the template made of it, "" where it can't be had, as with images.

    `owner`: whose it is, where they are kept apart; `cached`: the client did not keep the server from its cache.
    """

    key: int
    outline: Outline
    text: str = ""
    tokens: Tokens | None = None
    owner: str = ""
    cached: bool = True

    @cached_property
    def spans(self) -> tuple[Span, ...]:
        return locate(self.outline, self.text) if self.text else ()

    @cached_property
    def sizes(self) -> dict[int, int]:
        """Characters of each message behind the head and of each tool, by hash: what may be found in another prompt."""
        sizes = {hash(message): message.size for message in self.outline.talk}
        return sizes | {hash(tool.sorted): len(tool.sorted) for tool in self.outline.tools}

    @property
    def tokens_per_char(self) -> float:
        return len(self.tokens) / len(self.text) if self.tokens is not None and self.text else 1 / CHARS_PER_TOKEN

    @cached_property
    def memory(self) -> int:
        """Bytes, about: the text is held twice, by itself and in the messages."""
        tokens = 0 if self.tokens is None else self.tokens.ids.nbytes + self.tokens.chain.nbytes
        characters = sum(message.size for message in self.outline.messages) + len(self.text)
        return (
            tokens
            + 2 * characters
            + OVERHEAD * len(self.outline.messages)
            + 3 * sum(len(tool.written) for tool in self.outline.tools)
        )


@dataclass(frozen=True, slots=True)
class Remembered:
    """An earlier prompt, its conversation, and its population: the conversations that start with one system text, but
    for a part of it. Both go by the key of their first request."""

    prompt: Prompt
    conversation: int
    population: int


@dataclass(frozen=True, slots=True)
class Comparison:
    """A prompt and the earlier ones. Lengths in tokens.

    `against`: the earlier prompt of the same conversation, or the nearest of another; `shared` with that one, None
    where tokens can't be had; `continues`: it goes on from there, nothing was changed. `change`: what became of it,
    None where there is nothing to find; `again`: the stretches of tokens behind the difference that both have.
    `longest`: the longest prefix in common with any earlier prompt, that of request `longest_key`.
    """

    prompt: Prompt
    conversation: int
    population: int
    against: Prompt | None = None
    shared: int | None = None
    continues: bool = False
    change: Change | None = None
    again: Stretches = ()
    diff: Diff | None = None
    longest: int = 0
    longest_key: int | None = None


def compare(prompt: Prompt, earlier: Sequence[Remembered]) -> Comparison:
    """Find the earlier prompt that this one is best compared with, and what became of it. `earlier`: oldest first."""
    if not earlier:
        return Comparison(prompt, prompt.key, prompt.key)
    shares = [_shared(prompt, one.prompt) for one in earlier]
    longest = max(shares)
    longest_key = earlier[max(place for place, shared in enumerate(shares) if shared == longest)].prompt.key
    most, shared, place = max(
        (_common(prompt, one.prompt, shared), shared, place)
        for place, (one, shared) in enumerate(zip(earlier, shares, strict=True))
    )
    if not most:
        return Comparison(prompt, prompt.key, prompt.key, longest=longest, longest_key=longest_key)
    found = earlier[place]
    old = found.prompt
    continues = _continues(prompt, old, shared)
    at = None if continues else _difference(prompt, old)
    kin = _kin(prompt.outline, old.outline)
    again = _again(prompt, old, at) if kin and not continues else ()
    per_char = _density(prompt, at, shared)
    change = classify(old.outline, prompt.outline, None if at is None else _place(prompt, old, at)) if again else None
    characters = total(again)
    block = change.block if change is not None and characters * per_char >= LEAST else None
    within = block is not None and block.part not in (Part.SYSTEM, Part.TOOLS)
    same = continues or within or _same_talk(prompt, old, characters)
    return Comparison(
        prompt,
        found.conversation if same else prompt.key,
        found.population if same or (kin and prompt.outline.head) else prompt.key,
        old,
        shared if prompt.tokens is not None and old.tokens is not None else None,
        continues,
        change,
        tuple((round(start * per_char), round(end * per_char)) for start, end in again),
        _diff(prompt, old, at, shared) if change is not None and at is not None else None,
        longest,
        longest_key if longest else None,
    )


def total(stretches: Stretches, beyond: int = 0) -> int:
    """The length of all stretches together, from place `beyond` on."""
    return sum(max(0, end - max(start, beyond)) for start, end in stretches)


def _density(new: Prompt, at: int | None, shared: int) -> float:
    """Tokens per character behind the first difference."""
    if at is None or new.tokens is None or at >= len(new.text):
        return new.tokens_per_char
    return (len(new.tokens) - shared) / (len(new.text) - at)


def _shared(new: Prompt, old: Prompt) -> int:
    return 0 if new.tokens is None or old.tokens is None else new.tokens.common_prefix(old.tokens)


def _common(new: Prompt, old: Prompt, shared: int) -> int:
    """Characters that two prompts have in common, wherever they stand."""
    parts = sum(new.sizes[key] for key in new.sizes.keys() & old.sizes.keys())
    head, other = new.outline.head, old.outline.head
    begin = common_prefix(head, other)
    parts += begin + common_suffix(head, other, min(len(head), len(other)) - begin)
    return max(parts, round(shared / new.tokens_per_char))


def _continues(new: Prompt, old: Prompt, shared: int) -> bool:
    if new.tokens is not None and old.tokens is not None:
        return shared >= len(old.tokens) - min(SLACK, max(4, len(old.tokens) // 20))
    messages = old.outline.messages
    return new.outline.messages[: len(messages)] == messages and new.outline.tools == old.outline.tools


def _difference(new: Prompt, old: Prompt) -> int | None:
    """The place in both texts where they part; None where one has no text. Images look alike in a text."""
    if not (new.text and old.text):
        return None
    at = common_prefix(new.text, old.text)
    for now, was in zip(new.outline.messages, old.outline.messages, strict=False):
        if now != was:
            starts = [one.start for one in new.spans if one.key == now] if now.images != was.images else []
            return min([at, *starts])
    return at


def _kin(new: Outline, old: Outline) -> bool:
    """Whether two requests are of one population: the same system text, but for a part of it, or the same talk."""
    talk = len(new.talk & old.talk)
    if talk >= RESENT_MESSAGES:
        return True
    if old.tools and not new.tools:
        return False
    longer = max(len(new.head), len(old.head))
    begin = common_prefix(new.head, old.head)
    alike = begin + common_suffix(new.head, old.head, min(len(new.head), len(old.head)) - begin)
    if alike >= KIN * longer:
        return True
    lines, others = Counter(new.head.splitlines()), Counter(old.head.splitlines())
    return sum(n * len(line) for line, n in (lines & others).items()) >= KIN * longer


def _again(new: Prompt, old: Prompt, at: int | None) -> Stretches:
    """What both prompts have behind their first difference: its place in the new one, in characters."""
    if at is None:
        pairs = zip(new.outline.messages, old.outline.messages, strict=False)
        number = next((number for number, (now, was) in enumerate(pairs) if now != was), None)
        if number is None:
            return ()
        kept: Counter[object] = Counter(old.outline.messages[number:])
        same = sum(one.size for one in new.outline.messages[number:] if _take(kept, one))
        return ((0, same),) if same else ()
    left: Counter[object] = Counter(span.key for span in old.spans if span.end > at)
    between = {(one.key, two.key): old.text[one.end : two.start] for one, two in pairwise(old.spans)}
    behind = [span for span in new.spans if span.end > at]
    found = []
    before: tuple[object, int] | None = None  # what both have just before: its key in the old one, its end in the new
    for place, span in enumerate(behind):
        start, key = max(span.start, at), span.key
        if not _take(left, key):
            rest = _rest(new, old, at, span) if not place else None
            before = None if rest is None else (rest[0], span.end)
            if rest is not None:
                found.append((span.end - at - rest[1], span.end - at))
            continue
        if before is not None and between.get((before[0], key)) == new.text[before[1] : span.start]:
            start = before[1]
        found.append((start - at, span.end - at))
        before = key, span.end
    return tuple(found)


def _take(left: Counter[object], key: object) -> bool:
    """Whether `key` is among what is left, which then has one less of it."""
    if left[key] <= 0:
        return False
    left[key] -= 1
    return True


def _rest(new: Prompt, old: Prompt, at: int, span: Span) -> tuple[object, int] | None:
    """The old passage in which the difference lies, and how many characters at its end are those of the new one."""
    other = next((one for one in old.spans if one.end >= at), None)
    if other is None or other.block.part is not span.block.part:
        return None
    if span.block.message == len(new.outline.messages) - 1 or span.key in {one.key for one in old.spans}:
        return None
    rest = common_suffix(new.text[max(at, span.start) : span.end], old.text[at : other.end])
    return (other.key, rest) if rest else None


def _span_at(prompt: Prompt, at: int) -> Span | None:
    """What stands at a place of the text, white space before it included; None: the template's own."""
    span = next((one for one in prompt.spans if at < one.end), None)
    return span if span is not None and not prompt.text[at : span.start].strip() else None


def _place(new: Prompt, old: Prompt, at: int) -> Place:
    probe = new.text[at : at + PROBE]
    start = old.text.find(probe, at + 1) if len(probe) == PROBE else -1
    gone = old.text[at:start] if start > 0 else ""
    return Place(
        _span_at(old, at),
        _span_at(new, at),
        _thought(new, old, at),
        gone,
        len(gone.strip()) >= WORDS and gone in new.text[at:],
        _next_part(old, at) is Part.TOOLS and _next_part(new, at) not in (None, Part.TOOLS),
    )


def _next_part(prompt: Prompt, at: int) -> Part | None:
    return next((one.block.part for one in prompt.spans if at < one.end), None)


def _thought(new: Prompt, old: Prompt, at: int) -> int | None:
    """The message before whose text the template has taken out what it writes for reasoning, be it an empty block."""
    number = next((one.block.message for one in old.spans if at < one.end), None)
    was, now = (prompt.text[max(0, at - TAG) : at + TAG] for prompt in (old, new))
    gone = any(tag in was and tag not in now for tag in THOUGHTS)
    if number is None or not gone or number >= len(new.outline.messages):
        return None
    same = new.outline.messages[number] == old.outline.messages[number]
    return number if same and old.outline.messages[number].part is Part.ASSISTANT else None


def _same_talk(new: Prompt, old: Prompt, again: int) -> bool:
    """Whether most of what was said in the shorter of two prompts is in the other one too."""
    least = min(sum(one.size for one in prompt.outline.talk) for prompt in (new, old))
    shared = sum(one.size for one in new.outline.talk & old.outline.talk)
    return least > 0 and max(shared, again - len(new.outline.head)) >= KIN * least


def _diff(new: Prompt, old: Prompt, at: int, shared: int) -> Diff:
    both = new.tokens is not None and old.tokens is not None
    return Diff(
        before=new.text[max(0, at - AROUND) : at],
        was=old.text[at : at + AROUND],
        now=new.text[at : at + AROUND],
        token=shared if both else None,
        was_id=_id(old, shared) if both else None,
        now_id=_id(new, shared) if both else None,
    )


def _id(prompt: Prompt, place: int) -> int | None:
    return int(prompt.tokens.ids[place]) if prompt.tokens is not None and place < len(prompt.tokens) else None
