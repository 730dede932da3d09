"""The overview: what the servers hold now, what was saved, what was processed again and why. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from toki.page import charts
from toki.page.filters import address
from toki.page.html import Html
from toki.page.html import join
from toki.page.html import tag
from toki.page.lists import ALONE
from toki.page.lists import conversations_table
from toki.page.lists import requests_table
from toki.page.model import Bar
from toki.page.model import Cause
from toki.page.model import Checks
from toki.page.model import Held
from toki.page.model import Overview
from toki.page.model import Saving
from toki.page.model import Server
from toki.page.routes import CHOICES
from toki.page.routes import Filters
from toki.page.routes import Range
from toki.page.shell import card
from toki.page.shell import cards
from toki.page.shell import colour
from toki.page.shell import conversation
from toki.page.shell import document
from toki.page.shell import note
from toki.page.shell import ranges
from toki.page.shell import request
from toki.page.shell import section
from toki.page.shell import table
from toki.page.shell import warning
from toki.page.words import ago
from toki.page.words import lasting
from toki.page.words import local
from toki.page.words import number
from toki.page.words import share

ENTRIES = 8  # of a RAM cache that are listed; the others are summed up


def overview(view: Overview, base: str) -> str:
    """The page."""
    span = Range(view.range)
    return document(
        base,
        "Overview",
        "",
        ranges(span, lambda one: f"{base}/?range={one}"),
        tag("div", *_warnings(view, base), id="warnings", data_live=True),
        section("figures", f"The last {view.range}", _figures(view), live=True),
        section("timeline", "Reuse over time", *_timeline(view), live=True),
        *(_server(base, place, one, alone=len(view.servers) == 1) for place, one in enumerate(view.servers)),
        section("causes", "Processed again, and why", _causes(view, base), live=True),
        section(
            "conversations",
            "Conversations",
            conversations_table(view.conversations, base, view.at, "no conversation in this time"),
            tag("p", tag("a", "All of this time", href=f"{base}/conversations?range={span}")),
            live=True,
        ),
        section(
            "latest",
            "Latest requests",
            requests_table(view.latest, base, "Latest requests"),
            tag("p", tag("a", "All requests", href=f"{base}/requests")),
            live=True,
        ),
        live=True,
    )


def _warnings(view: Overview, base: str) -> Iterator[Html]:
    if view.checks.substantive:
        yield warning(*_divergence(view.checks, base))
    if view.trouble:
        yield warning(f"what was recorded can't be shown: {view.trouble}. Requests are not affected.")
    if not view.servers:
        yield note("No llama-server yet: point a client here, and it appears.")


def _divergence(checks: Checks, base: str) -> Iterator[str]:
    yield f"{number(checks.substantive)} of {number(checks.checked)} answers that were asked for again without the "
    yield "server's cache said something else (toki_verify): a bug of the server's cache, or a computation that is not "
    yield "repeatable. Requests "
    yield join((request(base, one.request) for one in checks.latest), ", ")
    yield "."


def _figures(view: Overview) -> Html:
    sums, saving = view.sums, view.saving
    seconds = None if saving.seconds is None else lasting(abs(saving.seconds))
    about = "" if seconds is None else f"about {seconds} of prefill, at the speed measured last; "
    rest = f"{share(abs(saving.tokens), sums.alone_evaluated)} of what the server alone evaluates"
    own = f", and {number(sums.own_evaluated)} more for toki's own requests" if sums.own_evaluated else ""
    return cards(
        card("Saved" if saving.tokens >= 0 else "Lost", f"{abs(saving.tokens):,} tokens", about, rest, guess=True),
        card("Evaluated", f"{sums.evaluated:,} tokens", f"of {sums.prompt_tokens:,} in prompts{own}"),
        card("Server alone", f"{sums.alone_evaluated:,} tokens", ALONE, guess=True),
        card("Reused", share(sums.reused, sums.reused + sums.evaluated), f"{sums.reused:,} tokens from the cache"),
        card(
            "Requests",
            number(sums.requests),
            f"{sums.hits:,} hits, {sums.soft_hits:,} soft hits, {sums.misses:,} misses, {sums.unknown:,} unknown",
        ),
    )


def _timeline(view: Overview) -> Iterator[Html]:
    if not view.timeline:
        yield note("No requests in this time.")
        return
    span = Range(view.range)
    yield charts.legend(
        ("evaluated", "evaluated"), ("reused", "reused"), ("alone", "evaluated by the server alone (predicted)")
    )
    yield charts.timeline(view.timeline, view.step_s, view.at - span.seconds, view.at)
    heads = ("time", "requests", "evaluated", "reused", "server alone (predicted)")
    yield charts.figures(heads, [_bar(bar) for bar in view.timeline])


def _bar(bar: Bar) -> list[str]:
    sums = bar.sums
    figures = (sums.requests, sums.evaluated, sums.reused, sums.alone_evaluated)
    return [f"{local(bar.at):%Y-%m-%d %H:%M}", *map(number, figures)]


def _server(base: str, place: int, server: Server, *, alone: bool) -> Html:
    """`alone`: there is no other, so that what it saved is what was saved."""
    facts = [server.state, f"mode {server.mode}", f"{number(server.open)} under way"]
    if server.ms_per_token is not None:
        facts.append(f"{server.ms_per_token:.3g} ms per prompt token (measured)")
    if not alone:
        facts.append(_saved(server.saving))
    slots = [one for one in server.holdings if one.slot is not None]
    ram = sorted((one for one in server.holdings if one.slot is None), key=lambda one: -one.tokens)
    whole = max([server.context or 0, *(one.tokens for one in server.holdings)])
    held = {one.slot: one for one in slots}
    rows = [_place(base, f"slot {n}", held.get(n), whole) for n in range(server.slots or 0)]
    rows += [_place(base, "RAM", one, whole) for one in ram[:ENTRIES]]
    left = ram[ENTRIES:]
    more = f" {len(left):,} more RAM entries hold {sum(one.tokens for one in left):,} tokens." if left else ""
    ram_holds = "no RAM cache" if server.ram == 0 else f"the RAM cache is taken to hold {number(server.ram)}"
    most = "" if server.ram is None else f"; {ram_holds}"
    shown = table(
        ("place", "how full", "tokens", "whose", "last used"), rows, (0, 1, 3, 4), f"What {server.name} holds"
    )
    size = f"{server.context:,} tokens fit into a slot{most}." if server.context else ""
    return section(
        f"server-{place}",
        server.name,
        tag("p", " · ".join(facts), class_="facts"),
        shown if rows else note("What its slots hold is not known yet: the first request tells."),
        note(f"As toki believes it.{' ' if size else ''}{size}{more}") if rows else None,
        live=True,
    )


def _saved(saving: Saving) -> str:
    seconds = "" if saving.seconds is None else f", about {lasting(abs(saving.seconds))} of prefill"
    word = "saved" if saving.tokens >= 0 else "lost"
    return f"{word} {abs(saving.tokens):,} tokens{seconds}, since toki looks after it (predicted)"


def _place(base: str, name: str, one: Held | None, whole: int) -> list[str]:
    if one is None or not one.tokens:
        return [name, charts.level((), whole), "empty", "", ""]
    used = "busy now" if one.busy else ago(one.idle_s)
    bar = charts.level(((colour(one.conversation), one.tokens),), whole)
    return [name, bar, number(one.tokens), conversation(base, one.conversation), used]


def _causes(view: Overview, base: str) -> Html:
    if not view.causes:
        return note("Nothing was processed again without need, as far as toki can see.")
    most = max(cause.tokens for cause in view.causes)
    return tag("ol", *(_cause(cause, most, base) for cause in view.causes), class_="causes")


def _cause(cause: Cause, most: int, base: str) -> Html:
    seconds = "" if cause.seconds is None else f", about {lasting(cause.seconds)} (estimated)"
    times = f"{number(cause.requests)} request{'' if cause.requests == 1 else 's'}"
    example = request(base, cause.example, f"request {cause.example}")
    return tag(
        "li",
        tag("h3", cause.what),
        charts.level((("evaluated", cause.tokens),), most),
        tag(
            "p",
            tag("b", f"{cause.tokens:,} tokens"),
            f"{seconds} in {times}. What would help: ",
            tag("b", cause.remedy),
        ),
        tag("p", "For example ", example, f": {cause.verdict}", class_="facts"),
        tag("p", tag("a", "All such requests", href=address(base, "requests", Filters(cause=cause.cause))))
        if cause.cause in CHOICES["cause"]
        else None,
    )
