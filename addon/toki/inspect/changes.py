"""What became of an earlier prompt in a later one: the class of the first difference, by rules on their parts.

The texts tell where the difference is; the parts on both sides tell what it is. Each rule reads like its name in
`finding.Cause`; where none holds, something was edited.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

from toki.inspect.finding import RESENT
from toki.inspect.finding import TEMPLATE_DROPS
from toki.inspect.finding import Block
from toki.inspect.finding import Cause
from toki.inspect.finding import Part
from toki.inspect.finding import Remedy
from toki.inspect.outline import Message
from toki.inspect.outline import Outline
from toki.inspect.outline import Span
from toki.inspect.outline import Tool
from toki.inspect.texts import common_prefix
from toki.inspect.texts import common_suffix
from toki.inspect.volatile import by_nothing_else
from toki.inspect.volatile import volatile

RESENT_MESSAGES = 3  # shared messages from which a request without the tools is the same talk again
PRUNED = 0.5  # share of a tool result that is left of one that was pruned, at most
MOST = 0.5  # share of a message's lines from which another one is the same, edited
NOTE = 0.2  # size of what stands in place of messages that are gone, of theirs, up to which it is no summary
REACH = 256  # messages within which others are looked for that stand in place of old ones
THINKING = ("think", "thinking", "thought", "reasoning")  # tags
_TAGGED = re.compile(r"\s*<([a-z_-]+)>.*</\1>\s*", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Change:
    """A cause and its place. `remedy` where it is not the usual one of the cause; `grows`: only text was appended."""

    cause: Cause
    block: Block | None  # None: not in the prompt
    remedy: tuple[Remedy, str] | None = None
    grows: bool = False


@dataclass(frozen=True, slots=True)
class Place:
    """What stands where two texts part, in the old and in the new one; None: the template's own. `thought`: the message
    whose reasoning the template wrote there in the old text, and leaves out in the new one. `gone`: the passage of the
    old text behind which it goes on as the new one does there; "" where it does not. `later`: whether that passage
    stands further behind in the new text. `tools`: whether the tools come next in the old text, and later in the new
    one."""

    was: Span | None
    now: Span | None
    thought: int | None = None
    gone: str = ""
    later: bool = False
    tools: bool = False

    @property
    def block(self) -> Block | None:
        span = self.now or self.was
        return None if span is None else span.block


def classify(old: Outline, new: Outline, at: Place | None) -> Change:
    """The first difference between two outlines. `at` None: there are no texts, so the order of the bodies must do."""
    first = _first_message(old, new)
    block = at.block if at is not None else None
    part = block.part if block is not None else None
    if _resent(old, new):
        system = old.head != new.head and part is not Part.TOOLS
        return Change(Cause.COMPACTION, Block(Part.SYSTEM, 0) if system else Block(Part.TOOLS), RESENT)
    if at is not None and part is None and old.arguments != new.arguments:
        return Change(Cause.TEMPLATE_ARGUMENTS, Block(Part.TEMPLATE))
    hoisted = _hoisted(new, at)
    if hoisted is not None:
        return hoisted
    tools = _tools(old.tools, new.tools) if part in (None, Part.TOOLS) else None
    if tools is not None:
        return tools
    if at is not None and at.gone and not new.heads and old.block(0).part is Part.PROMPT:
        return Change(Cause.REMINDER_MOVED if at.later else Cause.WINDOW_SLIDE, Block(Part.PROMPT))
    if at is not None and at.thought is not None:
        return Change(Cause.REASONING_DROPPED, old.block(at.thought), TEMPLATE_DROPS)
    if first is None and at is not None and at.tools:
        return Change(Cause.TOOLS_MOVED, Block(Part.TEMPLATE))
    if first is None:
        return _tools(old.tools, new.tools) or Change(Cause.EDITED, block or Block(Part.TEMPLATE))
    return _message(old, new, first)


def _first_message(old: Outline, new: Outline) -> int | None:
    """The number of the first message that is another one, or gone; None where the old ones all are still there."""
    for number, message in enumerate(old.messages):
        if number >= len(new.messages) or new.messages[number] != message:
            return number
    return None


def _resent(old: Outline, new: Outline) -> bool:
    """The talk is sent again without the tools: for a summary, a title, a check."""
    return bool(old.tools) and not new.tools and len(old.talk & new.talk) >= RESENT_MESSAGES


def _hoisted(new: Outline, at: Place | None) -> Change | None:
    """A system message from within the talk stands in the head of the text."""
    span = at.now if at is not None else None
    if span is None or span.block.part is not Part.SYSTEM or span.block.message is None:
        return None
    if span.block.message >= new.heads:
        return Change(Cause.SYSTEM_HOISTED, Block(Part.SYSTEM, 0))
    return None


def _tools(old: tuple[Tool, ...], new: tuple[Tool, ...]) -> Change | None:
    """What changed in the tools; None where nothing did."""
    block = Block(Part.TOOLS)
    if [tool.written for tool in old] == [tool.written for tool in new]:
        return None
    names, new_names = {tool.name for tool in old}, {tool.name for tool in new}
    was_sorted, now_sorted = [tool.sorted for tool in old], [tool.sorted for tool in new]
    if names == new_names and was_sorted != now_sorted and sorted(was_sorted) == sorted(now_sorted):
        return Change(Cause.TOOLS_REORDERED, block)
    for number in range(max(len(old), len(new))):
        was = old[number] if number < len(old) else None
        now = new[number] if number < len(new) else None
        if was is not None and now is not None and was.sorted == now.sorted:
            if was.written == now.written:
                continue
            return Change(Cause.KEY_ORDER, block)
        if now is not None and now.name not in names:
            return Change(Cause.TOOL_ADDED, block)
        if was is not None and was.name not in new_names:
            return Change(Cause.TOOL_REMOVED, block)
        if was is not None and now is not None and was.name == now.name:
            return Change(volatile(was.sorted, now.sorted) or Cause.TOOL_CHANGED, block)
        return Change(Cause.TOOLS_REORDERED, block)
    return None


def _message(old: Outline, new: Outline, first: int) -> Change:
    """What became of the first message that is not there as it was."""
    was = old.messages[first]
    now = new.messages[first] if first < len(new.messages) else None
    block = old.block(first)
    if now is None:
        return Change(Cause.EDITED, block)
    if was.part is Part.SYSTEM and now.part is Part.SYSTEM:
        kind = volatile(was.content, now.content)
        grows = now.content.startswith(was.content)
        return Change(kind or Cause.EDITED, block, grows=grows)
    dropped = _dropped(old, new, first)
    if dropped is not None:
        return Change(dropped, block)
    replaced = _replaced(old, new, first)
    if replaced is not None:
        return Change(replaced, block)
    if _inserted(old, new, first):
        return Change(Cause.EDITED, new.block(first))
    return Change(_changed(was, now, new, first), block)


def _dropped(old: Outline, new: Outline, first: int) -> Cause | None:
    """Messages of the past are gone, and what followed them goes on in their place."""
    now, rest = new.messages[first], new.messages[first:]
    for start in range(first + 1, len(old.messages)):
        if old.messages[start] != now or not now.content.strip():
            continue
        gone = next((one for one in old.messages[first:start] if one.content.strip()), None)
        if gone is not None and any(_alike(gone, one) for one in rest):
            return Cause.REMINDER_MOVED
        return Cause.WINDOW_SLIDE if _goes_on(old.messages[start:], rest) else Cause.COMPACTION
    return None


def _replaced(old: Outline, new: Outline, first: int) -> Cause | None:
    """Some messages of the past are gone, and fewer new ones stand in their place: a note, or a summary."""
    for start in range(first + 2, min(len(old.messages), first + REACH)):
        for place in range(first + 1, min(len(new.messages), start)):
            if new.messages[place] == old.messages[start] and _goes_on(old.messages[start:], new.messages[place:]):
                gone = sum(one.size for one in old.messages[first:start])
                come = sum(one.size for one in new.messages[first:place])
                return Cause.WINDOW_SLIDE if come < NOTE * gone else Cause.COMPACTION
    return None


def _alike(was: Message, now: Message) -> bool:
    """The same message, or most of its lines."""
    if was.part is not now.part:
        return False
    lines, others = Counter(was.content.splitlines()), Counter(now.content.splitlines())
    return sum(n * len(line) for line, n in (lines & others).items()) > MOST * len(was.content)


def _goes_on(tail: tuple[Message, ...], rest: tuple[Message, ...]) -> bool:
    """`rest` begins with all of `tail`, the last of which may have grown."""
    before = len(tail) - 1
    return rest[:before] == tail[:before] and len(rest) > before and rest[before].content.startswith(tail[-1].content)


def _inserted(old: Outline, new: Outline, first: int) -> bool:
    """New messages stand before the one that stood here."""
    was = old.messages[first]
    return bool(was.content.strip()) and was in new.messages[first + 1 :] and was not in old.messages[:first]


def _changed(was: Message, now: Message, new: Outline, first: int) -> Cause:
    """A message is still there, but another one."""
    if len(now.images) < len(was.images):
        return Cause.IMAGE_REMOVED
    if was.content == now.content and was.calls_sorted == now.calls_sorted and len(was.reasoning) > len(now.reasoning):
        return Cause.REASONING_DROPPED
    if was.content == now.content and was.calls != now.calls and was.calls_sorted == now.calls_sorted:
        return Cause.KEY_ORDER
    if _without_thinking(was.content).strip() == now.content.strip() != was.content.strip():
        return Cause.REASONING_DROPPED
    kind = volatile(was.content, now.content)
    edited = kind in (Cause.COUNTER, Cause.ID) and not by_nothing_else(was.content, now.content)  # a file shown anew
    if kind is not None and not edited:
        return kind
    taken = taken_out(was.content, now.content)
    if taken is not None and (_TAGGED.fullmatch(taken) or not _is_pruned(was, now)):
        later = (message.content for message in new.messages[first + 1 :])
        moved = any(taken.strip() in content for content in later)
        return Cause.REMINDER_MOVED if moved else Cause.REMINDER_REMOVED
    if _is_pruned(was, now):
        return Cause.OUTPUT_PRUNED
    return Cause.EDITED


def _without_thinking(text: str) -> str:
    """A text without what stands between tags of thinking."""
    for tag in THINKING:
        kept, place = [], 0
        while (start := text.find(f"<{tag}>", place)) >= 0 and (end := text.find(f"</{tag}>", start)) >= 0:
            kept.append(text[place:start])
            place = end + len(tag) + 3
        text = "".join((*kept, text[place:].lstrip() if kept else text))
    return text


def _is_pruned(was: Message, now: Message) -> bool:
    return was.part is Part.TOOL_RESULT and len(now.content) < PRUNED * len(was.content)


def taken_out(was: str, now: str) -> str | None:
    """The one passage without which `was` is `now`; None where that does not explain the difference."""
    head = common_prefix(was, now)
    tail = common_suffix(was, now, min(len(was), len(now)) - head)
    passage = was[head : len(was) - tail]
    return passage if passage.strip() and not now[head : len(now) - tail].strip() and head + tail > 0 else None
