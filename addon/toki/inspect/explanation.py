"""All that is known of one request once it has ended: its row, what was decided, and what was found.

`as_data` is plain data for mitmproxy's flow metadata, from which `views.py` renders; a saved flow keeps it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from toki.engine.events import Action
from toki.engine.events import Believed
from toki.engine.events import Outcome
from toki.inspect.finding import Finding
from toki.inspect.finding import what
from toki.schema import Row

READ_AGAIN, ALL_NEW = MARKS = (":recycle:", ":new:")  # what toki marks flows with


@dataclass(frozen=True, slots=True)
class Explanation:
    """One request explained. `against`: the earlier request that its prompt was compared with, and `shared` their
    common prefix in tokens; None where there is none, or it was not read. `findings`: the costliest first.

    Hundreds of these are kept: they hold no prompts.
    """

    row: Row
    believed: Believed | None
    against: int | None
    shared: int | None
    findings: tuple[Finding, ...]

    @property
    def verdict(self) -> str:
        """One line without a word of the prompt: what was read again and why, or how much was reused."""
        if self.findings:
            return self.findings[0].verdict
        row = self.row
        if row.reused is None or row.evaluated is None:
            return "how much was reused is not known: the answer tells no figures"
        total = row.reused + row.evaluated
        if row.action is Action.ISOLATED:
            return f"all {total:,} tokens processed, without the cache, where another key's prompts are"
        if not row.reused:
            return f"all {total:,} tokens are new: nothing that the server has begins so"
        return f"{row.reused:,} of {total:,} tokens reused, {row.evaluated:,} new"

    @property
    def comment(self) -> str:
        """The verdict, and the word that differs: not for logs, it is the prompt's."""
        diff = self.findings[0].diff if self.findings else None
        was, now = diff.words if diff is not None else ("", "")
        return f"{self.verdict} [{was!r} is now {now!r}]" if was and now else self.verdict

    @property
    def mark(self) -> str:
        """How mitmproxy marks the flow: tokens were read again, none were reused, or "" where all is well."""
        if self.findings:
            return READ_AGAIN
        return ALL_NEW if self.row.outcome is Outcome.MISS else ""

    def as_data(self) -> dict[str, Any]:
        """Flat values for filters, and under "toki" what a view shows."""
        row, first = self.row, self.findings[0] if self.findings else None
        flat = {
            "toki_verdict": self.verdict,
            "toki_outcome": str(row.outcome),
            "toki_action": str(row.action),
            "toki_prompt_tokens": row.prompt_tokens,
            "toki_reused": row.reused,
            "toki_evaluated": row.evaluated,
            "toki_slot": row.slot if row.slot is not None else self.believed.slot if self.believed else None,
            "toki_cause": str(first.cause) if first else "",
            "toki_block": str(first.block) if first and first.block else "",
            "toki_again": first.tokens if first else 0,
            "toki_recurring": bool(first and first.recurring),
            "toki_remedy": str(first.remedy) if first else "",
        }
        return {**flat, "toki": self._details()}

    def _details(self) -> dict[str, Any]:
        row, believed = self.row, self.believed
        return {
            "reason": row.reason,
            "conversation": row.conversation,
            "predicted": row.predicted,
            "alone": row.alone,
            "reply_tokens": row.reply_tokens,
            "first_byte_ms": row.first_byte_ms,
            "added_ms": row.added_ms,
            "total_ms": row.total_ms,
            "slots": believed.rules.n_slots if believed else None,
            "ms_per_token": believed.ms_per_token if believed else None,
            "holdings": [
                {
                    "slot": one.slot,
                    "length": one.length,
                    "shared": one.shared,
                    "busy": one.busy,
                    "conversation": one.conversation,
                }
                for one in (believed.holdings if believed else ())
            ],
            "left_out": believed.left_out if believed else 0,
            "options": [
                {
                    "action": str(one.action),
                    "slot": one.slot,
                    "reuse": one.reuse.likely,
                    "now_ms": one.now,
                    "later_ms": one.later,
                }
                for one in (believed.options if believed else ())
            ],
            "against": self.against,
            "shared": self.shared,
            "findings": [finding_data(one) for one in self.findings],
        }


def finding_data(finding: Finding, *, texts: bool = True) -> dict[str, Any]:
    """A finding as plain data; `texts`: with the text around the difference."""
    diff = finding.diff
    found = {
        "cause": str(finding.cause),
        "what": what(finding.cause, finding.block),
        "block": str(finding.block) if finding.block else "",
        "tokens": finding.tokens,
        "seconds": finding.seconds,
        "times": finding.times,
        "remedy": str(finding.remedy),
        "hint": finding.hint,
        "detail": finding.detail,
        "against": finding.against,
        "verdict": finding.verdict,
    }
    if diff is not None:
        found |= {"token": diff.token, "was_id": diff.was_id, "now_id": diff.now_id}
        if texts:
            found |= {"before": diff.before, "was": diff.was, "now": diff.now}
    return found
