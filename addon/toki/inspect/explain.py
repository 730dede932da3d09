"""Explains each request: what in its prompt changed, and what the server lost; one cause for all requests it shows in.

Pure: no I/O, no mitmproxy, no clock. `compare` (see comparison.py) needs the prompt alone and may take milliseconds, so
it can be done while the server answers; `Explainer.conclude` adds what the answer told and is cheap.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from dataclasses import replace

from toki.engine.events import Believed
from toki.engine.events import Measured
from toki.inspect.changes import Change
from toki.inspect.comparison import LEAST
from toki.inspect.comparison import SLACK
from toki.inspect.comparison import Comparison
from toki.inspect.comparison import Remembered
from toki.inspect.comparison import Stretches
from toki.inspect.comparison import total
from toki.inspect.finding import ONE_SLOT
from toki.inspect.finding import REMEDIES
from toki.inspect.finding import TEMPLATE_DROPS
from toki.inspect.finding import Block
from toki.inspect.finding import Cause
from toki.inspect.finding import Finding
from toki.inspect.finding import Part
from toki.inspect.losses import Past
from toki.inspect.losses import why_lost

LEAST_SHARE = 0.02  # of the prompt: nor is what is below that
SHORTER = 0.8  # share of an answer that comes back, below which something was dropped from it
KEPT_BYTES = 64 * 2**20  # of prompts
KEPT_PROMPTS = 64
KEPT_REQUESTS = 1024
KEPT_CAUSES = 512


class Memory:
    """The latest prompts, bounded in number and bytes; of a growing conversation only the latest one."""

    def __init__(self, most_bytes: int = KEPT_BYTES, most: int = KEPT_PROMPTS) -> None:
        self._most_bytes = most_bytes
        self._most = most
        self._kept: tuple[Remembered, ...] = ()  # a new one each time, so that another thread may read it

    @property
    def prompts(self) -> tuple[Remembered, ...]:
        """Oldest first."""
        return self._kept

    @property
    def size(self) -> int:
        """Bytes, about."""
        return sum(one.prompt.memory for one in self._kept)

    def add(self, comparison: Comparison) -> None:
        """Keep a prompt, in place of the one that it goes on from."""
        gone = comparison.against if comparison.continues else None
        kept = [one for one in self._kept if one.prompt is not gone]
        kept.append(Remembered(comparison.prompt, comparison.conversation, comparison.population))
        left, fitting = self._most_bytes, 0
        for one in reversed(kept):
            left -= one.prompt.memory
            if left < 0 or fitting == self._most:
                break
            fitting += 1
        self._kept = tuple(kept[len(kept) - fitting :])

    def forget(self) -> None:
        self._kept = ()


@dataclass(frozen=True, slots=True)
class Tally:
    """One cause in one population (an edit: in one conversation): all that it cost, and the findings that showed it
    first and last."""

    population: int
    first: Finding
    last: Finding
    tokens: int
    seconds: float | None

    @property
    def cause(self) -> Cause:
        return self.last.cause


class Explainer:
    """All explanations of one server's traffic, and what they rest on."""

    def __init__(self, memory: Memory | None = None) -> None:
        self.memory = memory or Memory()
        self.whole = False  # whether the model is known to be able to go back to any token
        self._past: OrderedDict[int, Past] = OrderedDict()
        self._tallies: OrderedDict[tuple[int, Cause, Part | None], Tally] = OrderedDict()
        self._run = 0

    @property
    def causes(self) -> tuple[Tally, ...]:
        """All causes that were found, the one seen last at the end."""
        return tuple(self._tallies.values())

    def restarted(self) -> None:
        """The server is another one now: nothing is there any more of what it had."""
        self._run += 1

    def forget(self) -> None:
        """Forget prompts and causes."""
        self.memory.forget()
        self._past.clear()
        self._tallies.clear()

    def conclude(
        self,
        comparison: Comparison,
        measured: Measured,
        believed: Believed | None,
        *,
        unread: bool = False,
        cached: bool = True,
        predicted: int | None = None,
        ran: tuple[float, float] | None = None,
    ) -> tuple[Finding, ...]:
        """What was found about a request that has ended, the costliest first. `unread`: it was given up before its
        prompt was read; `cached`: toki did not keep the server from its cache; `predicted`: the reuse that was
        predicted for it; `ran`: from when till when, in seconds."""
        slot = measured.slot if measured.slot is not None else believed.slot if believed is not None else None
        now = Past(comparison.prompt.key, comparison.population, slot, unread, measured.reply_tokens, self._run, ran)
        if unread:
            findings = self._given_up(comparison, believed)
        elif not (cached and comparison.prompt.cached):  # all of it was processed, and was to be
            findings = []
        else:
            findings = self._findings(comparison, measured, believed, now, predicted)
        self._past[now.key] = now
        while len(self._past) > KEPT_REQUESTS:
            self._past.popitem(last=False)
        return tuple(sorted(findings, key=lambda finding: -finding.tokens))

    def _given_up(self, comparison: Comparison, believed: Believed | None) -> Iterable[Finding]:
        """A prompt that nobody waited for is one cause with the one before, if that went the same way."""
        owner = self._past.get(comparison.longest_key) if comparison.longest_key is not None else None
        if owner is None or not owner.unread or not comparison.continues or comparison.longest < LEAST:
            return []
        return [self._note(Change(Cause.ABORTED, None), comparison.longest, owner.key, believed, comparison)]

    def _findings(
        self,
        comparison: Comparison,
        measured: Measured,
        believed: Believed | None,
        now: Past,
        predicted: int | None,
    ) -> Iterable[Finding]:
        reused = measured.reused
        prompt = comparison.prompt
        length = measured.prompt_tokens or (len(prompt.tokens) if prompt.tokens is not None else 0)
        least = max(LEAST, LEAST_SHARE * length)
        if reused is None:
            return []
        against = comparison.against
        changed = self._reply(comparison, reused)
        change, again = comparison.change, comparison.again
        if change is None and changed is not None:
            change, again = changed
        found = []
        if change is not None and against is not None:
            shared = reused if comparison.shared is None else comparison.shared
            tokens = min(total(again, reused - shared), length - max(shared, reused))
            if tokens >= least:
                found.append(self._note(change, tokens, against.key, believed, comparison))
        owner = self._past.get(comparison.longest_key) if comparison.longest_key is not None else None
        lost = min(comparison.longest, length - 1) - reused
        if owner is not None and lost >= least:
            cause, detail = why_lost(
                comparison.longest,
                reused,
                owner,
                now,
                believed,
                self._past,
                branched=changed is not None,
                predicted=predicted,
                whole=self.whole,
            )
            single = believed is not None and believed.rules.n_slots == 1 and cause is Cause.SLOT_TAKEN
            change = Change(cause, None, ONE_SLOT if single else None)
            found.append(self._note(change, lost, owner.key, believed, comparison, detail))
        return found

    def _reply(self, comparison: Comparison, reused: int) -> tuple[Change, Stretches] | None:
        """The answer to the last prompt came back other than it was generated, so that nothing of it was reused."""
        against, prompt = comparison.against, comparison.prompt
        before = self._past.get(against.key) if against is not None else None
        if not comparison.continues or against is None or before is None or comparison.shared is None:
            return None
        messages = prompt.outline.messages[len(against.outline.messages) :]
        generated = before.reply_tokens
        if not messages or messages[0].part is not Part.ASSISTANT or generated is None:
            return None
        if reused > comparison.shared + SLACK:
            return None
        back = round((len(messages[0].content) + len(messages[0].calls)) * prompt.tokens_per_char)
        if back >= SHORTER * generated:
            return Change(Cause.REPLY_CHANGED, Block(Part.REPLY)), ((0, back),)
        remedy = TEMPLATE_DROPS if messages[0].reasoning else None
        return Change(Cause.REASONING_DROPPED, Block(Part.REPLY), remedy), ((0, back),)

    def _note(
        self,
        change: Change,
        tokens: int,
        against: int,
        believed: Believed | None,
        comparison: Comparison,
        detail: str = "",
    ) -> Finding:
        """Count a cause, and name it in the light of how often it came."""
        part = None if change.block is None else change.block.part
        whose = comparison.conversation if change.cause is Cause.EDITED else comparison.population
        key = (whose, change.cause, part)
        before = self._tallies.pop(key, None)
        times = 1 if before is None else before.last.times + 1
        cause = change.cause
        if cause is Cause.EDITED and times > 1:
            cause = Cause.SYSTEM_HOISTED if change.grows else Cause.REWRITTEN
        speed = None if believed is None else believed.ms_per_token
        seconds = None if speed is None else tokens * speed / 1000
        remedy, hint = change.remedy if change.remedy is not None and cause is change.cause else REMEDIES[cause]
        diff = comparison.diff if change is comparison.change else None
        finding = Finding(cause, change.block, tokens, seconds, times, remedy, hint, against, detail, diff)
        self._tallies[key] = Tally(
            comparison.population,
            finding if before is None else replace(before.first, cause=cause, remedy=remedy, hint=hint),
            finding,
            tokens + (0 if before is None else before.tokens),
            seconds if before is None or before.seconds is None else before.seconds + (seconds or 0),
        )
        while len(self._tallies) > KEPT_CAUSES:
            self._tallies.popitem(last=False)
        return finding
