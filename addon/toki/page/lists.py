"""Lists of requests and conversations, and one conversation. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from toki.page import charts
from toki.page.filters import address
from toki.page.filters import form
from toki.page.history import LOOKED_THROUGH
from toki.page.history import PAGE
from toki.page.history import RECENT
from toki.page.history import TURNS
from toki.page.html import Html
from toki.page.html import tag
from toki.page.model import Conversation
from toki.page.model import Conversations
from toki.page.model import ConversationView
from toki.page.model import Listed
from toki.page.model import Requests
from toki.page.routes import FILTERS
from toki.page.routes import Filters
from toki.page.routes import Kind
from toki.page.routes import Range
from toki.page.shell import card
from toki.page.shell import cards
from toki.page.shell import conversation
from toki.page.shell import document
from toki.page.shell import note
from toki.page.shell import ranges
from toki.page.shell import request
from toki.page.shell import section
from toki.page.shell import sheet
from toki.page.shell import table
from toki.page.words import ago
from toki.page.words import moment
from toki.page.words import ms
from toki.page.words import number
from toki.page.words import share

ALONE = "evaluated, if toki did nothing; what has no prediction counts as measured"


def requests(view: Requests, base: str, filters: Filters, models: Sequence[str]) -> str:
    """The page with all requests, or those that `filters` leave."""
    older, looked = None, None
    if view.older is not None:
        href = address(base, "requests", filters, before=view.older)
        older = tag("p", tag("a", "Older requests", href=href, rel="next"))
        if len(view.requests) < PAGE:
            looked = note(f"All among {LOOKED_THROUGH:,} requests, back to number {view.older}; older ones come next.")
    return document(
        base,
        "Requests",
        "requests",
        form(base, "requests", FILTERS[Kind.REQUESTS], filters, models),
        sheet(requests_table(view.requests, base, "Requests"), looked, older),
    )


def conversations(view: Conversations, base: str, now: float, filters: Filters, models: Sequence[str]) -> str:
    """The page with the conversations of a time, or those that `filters` leave."""
    span = Range(view.range)
    shown = conversations_table(view.conversations, base, now, "No conversation in this time.")
    return document(
        base,
        "Conversations",
        "conversations",
        ranges(span, lambda one: address(base, "conversations", filters, one)),
        form(base, "conversations", FILTERS[Kind.CONVERSATIONS], filters, models, span),
        sheet(shown),
        note(f"Of the latest {RECENT:,} requests of this time."),
    )


def one_conversation(view: ConversationView, base: str) -> str:
    """The page of one conversation."""
    one, sums = view.conversation, view.conversation.sums
    heads = ("request", "prompt", "reused", "evaluated", "reused by the server alone (predicted)")
    figures = [
        [str(turn.id), *map(number, (turn.prompt_tokens, turn.reused, turn.evaluated, turn.alone))]
        for turn in one.turns
    ]
    return document(
        base,
        f"Conversation {one.id}",
        "conversations",
        tag("p", f"{one.endpoint} {one.model}".rstrip(), " · last at ", moment(one.last_at), class_="facts"),
        sheet(
            cards(
                card("Requests", number(sums.requests), f"the latest {TURNS} at most"),
                card("Reused", share(sums.reused, sums.reused + sums.evaluated), f"{sums.reused:,} tokens"),
                card("Evaluated", f"{sums.evaluated:,} tokens", f"of {sums.prompt_tokens:,} in prompts"),
                card("Server alone", f"{sums.alone_evaluated:,} tokens", ALONE, guess=True),
            )
        ),
        section(
            "curve",
            "Reuse, request by request",
            charts.legend(
                ("reused", "reused"), ("evaluated", "evaluated"), ("alone", "reused by the server alone (predicted)")
            ),
            charts.turns(one.turns),
            charts.figures(heads, figures),
        ),
        section(
            "requests",
            "Its requests",
            requests_table(view.requests, base, "Its requests"),
            tag("p", tag("a", "All its requests", href=address(base, "requests", Filters(conversation=one.id)))),
        ),
    )


def requests_table(listed: Sequence[Listed], base: str, name: str) -> Html:
    """The latest first."""
    if not listed:
        return note("No requests.")
    left = ("request", "time", "endpoint")
    figures = ("prompt", "reuse", "reused", "evaluated", "server alone (predicted)")
    heads = (*left, *figures, "action", "held", "total", "processed again")
    return table(heads, [_row(one, base) for one in listed], (0, 1, 2, 4, 8, 11), name)


def _row(listed: Listed, base: str) -> list[str]:
    one, why = listed.request, listed.why
    alone = None if one.prompt_tokens is None or one.alone is None else one.prompt_tokens - one.alone
    parts = (("reused", one.reused or 0), ("evaluated", one.evaluated or 0))
    return [
        request(base, one.id),
        moment(one.at, "%d %b %H:%M:%S"),
        one.endpoint if one.status == 200 else f"{one.endpoint} ({one.status or 'no answer'})",
        number(one.prompt_tokens),
        charts.level(parts, (one.reused or 0) + (one.evaluated or 0)),
        number(one.reused),
        number(one.evaluated),
        number(alone),
        one.action,
        ms(one.added_ms),
        ms(one.total_ms),
        "" if why is None else f"{why.cause}: {why.tokens:,}",
    ]


def conversations_table(shown: Sequence[Conversation], base: str, now: float, none: str) -> Html:
    """The latest first."""
    if not shown:
        return note(none)
    left = ("conversation", "last", "model or endpoint", "requests", "latest prompt")
    heads = (*left, "reuse of each", "reused", "evaluated", "server alone (predicted)")
    return table(heads, [_talk(one, base, now) for one in shown], (0, 1, 2, 5), "Conversations")


def _talk(one: Conversation, base: str, now: float) -> list[str]:
    sums = one.sums
    return [
        conversation(base, one.id),
        ago(max(0.0, now - one.last_at)),
        one.model or one.endpoint,
        number(sums.requests),
        number(one.turns[-1].prompt_tokens),
        charts.spark(one.turns),
        share(sums.reused, sums.reused + sums.evaluated),
        number(sums.evaluated),
        number(sums.alone_evaluated),
    ]
