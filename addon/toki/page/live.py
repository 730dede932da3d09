"""What is in memory, as the page shows it. Runs on the event loop, since the engine does; it takes microseconds."""

from __future__ import annotations

import time
from collections.abc import Callable
from collections.abc import Iterable

from toki.engine.rules import UNLIMITED
from toki.inspect.explanation import Explanation
from toki.inspect.finding import Finding
from toki.inspect.finding import what
from toki.page.model import Diff
from toki.page.model import Found
from toki.page.model import Held
from toki.page.model import Memory
from toki.page.model import Option
from toki.page.model import Place
from toki.page.model import Saving
from toki.page.model import Server
from toki.page.model import Why
from toki.upstream import Upstream

Ids = Callable[[int], int | None]  # the id in the rows of what the engine knows by a key


def server(upstream: Upstream, conversation_of: Ids) -> Server:
    """A server now."""
    rules = upstream.rules
    seen, now = _last_seen(upstream.inspector.latest), time.time()
    pace = speed(upstream)
    return Server(
        name=upstream.name,
        mode=upstream.settings.mode,
        state=upstream.state,
        trusted=upstream.trusted,
        slots=None if rules is None else rules.n_slots,
        context=None if rules is None else _bounded(rules.n_ctx),
        ram=None if rules is None else _bounded(rules.ram),
        open=upstream.open,
        ms_per_token=pace,
        saving=Saving(upstream.saved, None if pace is None else upstream.saved * pace / 1000),
        holdings=tuple(
            Held(
                slot=one.slot,
                tokens=int(one.length),
                busy=one.busy,
                conversation=None if one.conversation is None else conversation_of(one.conversation),
                idle_s=None if one.conversation not in seen else max(0.0, now - seen[one.conversation]),
            )
            for one in upstream.holdings()
        ),
    )


def speed(upstream: Upstream) -> float | None:
    """Milliseconds that evaluating a prompt token takes there, as last measured."""
    believed = (one.believed for one in reversed(upstream.inspector.latest))
    return next((one.ms_per_token for one in believed if one is not None and one.ms_per_token is not None), None)


def find(upstreams: Iterable[Upstream], number: int, row_of: Ids) -> Explanation | None:
    """The explanation of the request that has the row `number`; None where it is not in memory (any more)."""
    for upstream in upstreams:
        for one in reversed(upstream.inspector.latest):
            if row_of(one.row.key) == number:
                return one
    return None


def memory(explanation: Explanation, row_of: Ids, conversation_of: Ids, *, text: bool) -> Memory:
    """What is known of a request while it is in memory; `text`: with the text around differences."""
    believed, against = explanation.believed, explanation.against
    options = believed.options if believed is not None else ()
    return Memory(
        shared=explanation.shared,
        against=None if against is None else row_of(against),
        options=tuple(
            Option(str(one.action), one.slot, int(one.reuse.likely), float(one.now), float(one.later))
            for one in options
        ),
        places=None
        if believed is None
        else tuple(
            Place(
                one.slot,
                int(one.length),
                int(one.shared),
                one.busy,
                None if one.conversation is None else conversation_of(one.conversation),
            )
            for one in believed.holdings
        ),
        left_out=0 if believed is None else believed.left_out,
        slots=None if believed is None else believed.rules.n_slots,
        found=tuple(_found(one, row_of, text=text) for one in explanation.findings),
    )


def _found(finding: Finding, row_of: Ids, *, text: bool) -> Found:
    diff = finding.diff
    return Found(
        why=Why(
            cause=str(finding.cause),
            place=str(finding.block) if finding.block else "",
            what=what(finding.cause, finding.block),
            tokens=int(finding.tokens),
            seconds=finding.seconds,
            times=finding.times,
            remedy=str(finding.remedy),
            verdict=finding.verdict,
        ),
        hint=finding.hint,
        detail=finding.detail,
        against=None if finding.against is None else row_of(finding.against),
        token=None if diff is None else diff.token,
        diff=Diff(diff.before, diff.was, diff.now) if diff is not None and text else None,
    )


def _last_seen(latest: Iterable[Explanation]) -> dict[int | None, float]:
    """When each conversation's last request ended, unix time."""
    return {one.row.conversation: one.row.at + one.row.total_ms / 1000 for one in latest}


def _bounded(tokens: int) -> int | None:
    return None if tokens >= UNLIMITED else int(tokens)
