"""The content view "toki": why a request's prompt was processed again, and what was decided about it.

It renders what a flow's metadata holds, so it also works for flows that were saved and are loaded again, in a
mitmproxy that has seen no traffic. mitmproxy 12 has another interface for content views than 11; a few lines for each.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Mapping
from typing import Any

from mitmproxy import contentviews
from mitmproxy.flow import Flow

from toki.inspect.finding import Diff
from toki.inspect.finding import duration
from toki.printable import printable

NAME = "toki"
NEVER = -1.0  # never chosen unless asked for
NOTHING = "toki knows nothing of this flow (it goes to no llama-server of toki's, or is not answered yet)"


def render(flow: Flow | None) -> str:
    """The explanation that a flow carries, as text."""
    data = flow.metadata if flow is not None else {}
    details = data.get("toki")
    if not isinstance(details, Mapping):
        return NOTHING
    return "\n".join(
        printable(line)
        for line in [
            str(data.get("toki_verdict", "")),
            "",
            *_findings(details),
            *_figures(data, details),
            "",
            *_decision(data, details),
            "",
            *_slots(data, details),
        ]
    )


def _findings(details: Mapping[str, Any]) -> Iterator[str]:
    for found in details.get("findings", ()):
        yield f"{found['what']} [{found['cause']}]"
        cost = f"{found['tokens']:,} tokens read again"
        yield f"  cost     {cost}" + ("" if found["seconds"] is None else f", about {duration(found['seconds'])}")
        yield f"  seen     {found['times']} times" if found["times"] > 1 else "  seen     once"
        yield f"  remedy   {found['remedy']}: {found['hint']}"
        if found["detail"]:
            yield f"  detail   {found['detail']}"
        if "before" in found:
            if found.get("token") is not None:
                yield f"  first differing token: {found['token']:,} (id {found['was_id']} was, {found['now_id']} is)"
            was, now = Diff(found["before"], found["was"], found["now"]).words
            if was and now:
                yield f"    {was!r} is now {now!r}"
            yield f"    …{found['before'][-80:]}"
            yield f"  - {found['was']}…"
            yield f"  + {found['now']}…"
        yield ""


def _figures(data: Mapping[str, Any], details: Mapping[str, Any]) -> Iterator[str]:
    yield f"prompt     {_tokens(data['toki_prompt_tokens'])}"
    yield f"reused     {_tokens(data['toki_reused'])} ({data['toki_outcome']})"
    yield f"evaluated  {_tokens(data['toki_evaluated'])}"
    yield f"predicted  {_tokens(details['predicted'])} reused; by the server alone {_tokens(details['alone'])}"
    if details["shared"] is not None:
        yield f"compared   with request {details['against']}: {_tokens(details['shared'])} in common"
    times = [f"{name} {duration(ms / 1000)}" for name, ms in _times(details) if ms is not None]
    yield f"time       {', '.join(times)}"


def _times(details: Mapping[str, Any]) -> Iterator[tuple[str, float | None]]:
    yield "held", details["added_ms"]
    yield "first byte", details["first_byte_ms"]
    yield "all", details["total_ms"]


def _decision(data: Mapping[str, Any], details: Mapping[str, Any]) -> Iterator[str]:
    yield f"decision   {data['toki_action']}: {details['reason']}"
    for option in details["options"]:
        slot = "" if option["slot"] is None else f" slot {option['slot']}"
        price = f"{duration(option['now_ms'] / 1000)} now, {duration(option['later_ms'] / 1000)} later"
        yield f"  {option['action'] + slot:16} reuses {option['reuse']:>9,}; {price}"


def _slots(data: Mapping[str, Any], details: Mapping[str, Any]) -> Iterator[str]:
    """The slot map: what the server was believed to hold when the request was decided."""
    if details["slots"] is None:
        yield "slots      not known"
        return
    yield "slots      as believed before this request"
    held = {one["slot"]: one for one in details["holdings"] if one["slot"] is not None}
    for number in range(details["slots"]):
        one = held.get(number)
        ran = "  <- it ran here" if number == data["toki_slot"] else ""
        yield f"  slot {number:<3} {_holding(one) if one else 'empty'}{ran}"
    for one in details["holdings"]:
        if one["slot"] is None:
            yield f"  RAM      {_holding(one)}"
    if details.get("left_out"):
        yield f"  RAM      {details['left_out']:,} more entries, none of which has more in common"


def _holding(one: Mapping[str, Any]) -> str:
    whose = "" if one["conversation"] is None else f", conversation {one['conversation']}"
    return f"{one['length']:>9,} tokens, {one['shared']:>9,} in common{whose}{', busy' if one['busy'] else ''}"


def _tokens(number: int | None) -> str:
    return "unknown" if number is None else f"{number:,}"


class Contentview:
    """For mitmproxy 12: it fulfils the protocol of that name."""

    name = NAME
    syntax_highlight = "none"

    def prettify(self, data: bytes, metadata: Any) -> str:
        return render(metadata.flow)

    def render_priority(self, data: bytes, metadata: Any) -> float:
        return NEVER

    def __lt__(self, other: Any) -> bool:
        return bool(self.name < other.name)


def register() -> None:
    """Make the view known to mitmproxy, in place of one of an earlier load of this script."""
    if hasattr(contentviews, "Contentview"):
        contentviews.add(Contentview())  # type: ignore[arg-type]
        return

    class View(contentviews.View):  # made here, since mitmproxy 12 warns of it
        name = NAME

        def __call__(self, data: bytes, *, flow: Flow | None = None, **_: Any) -> tuple[str, Iterator[Any]]:
            return NAME, ([("text", line)] for line in render(flow).splitlines())

        def render_priority(self, data: bytes, **_: Any) -> float:
            return NEVER

    known = contentviews.get(NAME)
    if known is not None:
        contentviews.remove(known)
    contentviews.add(View())
