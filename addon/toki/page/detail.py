"""One request: what was decided, what came of it, and where its prompt differs from the one before. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from toki.inspect.records import Request
from toki.page import charts
from toki.page.html import Html
from toki.page.html import join
from toki.page.html import tag
from toki.page.model import Diff
from toki.page.model import Found
from toki.page.model import Memory
from toki.page.model import Place
from toki.page.model import RequestView
from toki.page.model import Why
from toki.page.shell import colour
from toki.page.shell import conversation
from toki.page.shell import document
from toki.page.shell import note
from toki.page.shell import predicted
from toki.page.shell import request
from toki.page.shell import section
from toki.page.shell import table
from toki.page.shell import warning
from toki.page.words import UNKNOWN
from toki.page.words import lasting
from toki.page.words import moment
from toki.page.words import ms
from toki.page.words import number
from toki.page.words import share

ENTRIES = 8  # of the RAM cache that are listed, those with most in common
GONE = "The priced options, the slot map and the texts were in memory only, and are not there any more."


def detail(view: RequestView, base: str) -> str:
    """The page of one request."""
    one = view.request
    facts = [f"{one.endpoint} {one.model}".rstrip(), " · ", moment(one.at), " · ", conversation(base, one.conversation)]
    steps = [("previous in the conversation", view.previous), ("next in the conversation", view.next)]
    links = [request(base, to, words) for words, to in steps if to is not None]
    return document(
        base,
        f"Request {one.id}",
        "requests",
        tag("p", *facts, class_="facts"),
        tag("p", join(links, " · "), class_="facts") if links else None,
        _divergence(view),
        section("reuse", "Reuse", *_reuse(one)),
        section("why", "Processed again", *_why(view, base)),
        section("decision", "Decision", *_decision(one, view.memory)),
        _places(view, base),
        section("all", "All that is recorded", _recorded(one, base)),
        _own(view),
    )


def _divergence(view: RequestView) -> Html | None:
    check = view.check
    if check is None:
        return None
    if check.divergence == "substantive":
        return warning(
            f"asked again without the server's cache, the answer said something else, from its character "
            f"{check.common + 1:,} on."
        )
    return note(f"Asked again without the server's cache: {check.divergence}.")


def _reuse(one: Request) -> Iterator[Html]:
    """Bars one below the other: what was measured, and what was predicted for two ways."""
    if one.prompt_tokens is None:
        yield note("How long the prompt was is not known.")
        return
    whole = one.prompt_tokens
    rows = []
    for name, reused, evaluated, guess in (
        ("measured", one.reused, one.evaluated, False),
        (f"predicted for what toki did ({one.action})", one.predicted, _less(whole, one.predicted), True),
        ("predicted for the server alone", one.alone, _less(whole, one.alone), True),
    ):
        known = reused is not None and evaluated is not None
        parts = (("reused", reused or 0), ("evaluated", evaluated or 0)) if known else ()
        bar = charts.level(parts, whole, predicted=guess)
        rows.append([name, bar, number(reused), number(evaluated), share(reused, whole)])
    yield charts.legend(("reused", "reused"), ("evaluated", "evaluated"))
    yield table(
        ("figures", "reuse", "reused", "evaluated", "share reused"), rows, (0, 1), "Reuse, measured and predicted"
    )


def _less(whole: int, reused: int | None) -> int | None:
    return None if reused is None else max(0, whole - reused)


def _why(view: RequestView, base: str) -> Iterator[Html]:
    found = view.memory.found if view.memory is not None else ()
    if found:
        for one in found:
            yield _finding(one, base, view.text)
    elif view.why:
        for why in view.why:
            yield tag("article", *_cause(why, why.verdict.partition("; ")[2]), class_="finding")
        yield note(GONE)
    else:
        yield note("Nothing that the server had was processed again, as far as toki can see.")


def _cause(why: Why, hint: str) -> Iterator[Html]:
    yield tag("h3", why.what)
    seconds = "" if why.seconds is None else f", about {lasting(why.seconds)} (estimated)"
    often = f"seen in {why.times:,} requests until then" if why.times > 1 else "seen for the first time"
    yield tag("p", f"{why.tokens:,} tokens read again{seconds}; {often}.")
    yield tag("p", tag("strong", "What would help: "), f"{why.remedy}: {hint}.")


def _finding(one: Found, base: str, text: bool) -> Html:
    where = None
    if one.token is not None:
        where = tag("p", f"The first differing token: {one.token:,}", *_against(one, base), ".")
    return tag(
        "article",
        *_cause(one.why, one.hint),
        tag("p", f"In numbers: {one.detail}.") if one.detail else None,
        where,
        _diff(one.diff) if one.diff is not None else None,
        note("With toki_text the text around the difference would stand here.")
        if not text and one.token is not None
        else None,
        class_="finding",
    )


def _against(one: Found, base: str) -> Iterator[str]:
    if one.against is not None:
        yield ", compared with "
        yield request(base, one.against, f"request {one.against}")


def _diff(diff: Diff) -> Html:
    """The text before the difference, as it went on then, and as it goes on now."""
    return tag(
        "figure",
        tag("figcaption", "The text around the first difference"),
        tag(
            "pre",
            tag("span", "… ", _lines(diff.before), class_="before"),
            tag("del", tag("span", "was ", class_="word"), _lines(diff.was), " …"),
            tag("ins", tag("span", "now ", class_="word"), _lines(diff.now), " …"),
            tabindex="0",
        ),
        class_="diff",
    )


def _lines(text: str) -> Html:
    """Text of a prompt: line breaks are shown and kept."""
    lines = (tag("span", line) for line in text.split("\n"))
    return join(lines, Html("<i>↵</i>\n"))


def _decision(one: Request, memory: Memory | None) -> Iterator[Html]:
    yield tag("p", tag("b", one.action), f": {one.reason}")
    options = memory.options if memory is not None else ()
    if options:
        rows = [
            [
                option.action if option.slot is None else f"{option.action}, slot {option.slot}",
                number(option.reuse),
                ms(option.now_ms),
                ms(option.later_ms),
            ]
            for option in options
        ]
        yield tag("p", "What could have been done, as priced then ", predicted())
        yield table(("way", "reuses", "costs now", "costs later"), rows, (0,), "Options, predicted")
    elif memory is None:
        yield note(GONE)


def _places(view: RequestView, base: str) -> Html | None:
    memory = view.memory
    if memory is None or memory.places is None:
        return None
    whole = max([1, *(place.tokens for place in memory.places)])
    slots = [place for place in memory.places if place.slot is not None]
    ram = sorted((place for place in memory.places if place.slot is None), key=lambda place: -place.shared)
    rows = [_place(place, whole, view.request.slot, base) for place in (*slots, *ram[:ENTRIES])]
    heads = ("place", "size", "tokens", "in common", "whose", "state")
    shown = table(heads, rows, (0, 1, 4, 5), "Slot map before this request") if rows else note("They held nothing.")
    left = max(0, len(ram) - ENTRIES) + memory.left_out
    more = note(f"{left:,} more RAM entries have no more in common with this prompt.") if left else None
    return section("places", "What slots and RAM cache were believed to hold", shown, more)


def _place(place: Place, whole: int, ran: int | None, base: str) -> list[str]:
    shared = min(place.shared, place.tokens)
    name = "RAM" if place.slot is None else f"slot {place.slot}{' (it ran here)' if place.slot == ran else ''}"
    bar = charts.level((("reused", shared), (colour(place.conversation), place.tokens - shared)), whole)
    whose, state = conversation(base, place.conversation), "busy" if place.busy else "idle"
    return [name, bar, number(place.tokens), number(shared), whose, state]


def _recorded(one: Request, base: str) -> Html:
    fields: list[tuple[str, str | None]] = [
        ("status", number(one.status) if one.status is not None else "no answer came"),
        ("stream", "yes" if one.stream else "no"),
        ("prompt", f"{number(one.prompt_tokens)} tokens"),
        ("answer", f"{number(one.reply_tokens)} tokens"),
        ("outcome", one.outcome),
        ("slot", number(one.slot)),
        ("earlier request with the longest common prefix", request(base, one.parent)),
        ("common with that", f"{one.shared:,} tokens"),
        ("similarity of the embeddings", UNKNOWN if one.similarity is None else f"{one.similarity:.3f}"),
        ("held by toki", ms(one.added_ms)),
        ("first byte after", ms(one.first_byte_ms)),
        ("all", ms(one.total_ms)),
    ]
    return tag("dl", *(tag("div", tag("dt", name), tag("dd", value)) for name, value in fields), class_="fields")


def _own(view: RequestView) -> Html | None:
    if not view.own:
        return None
    rows = [[one.purpose, *map(number, (one.prompt_tokens, one.reused, one.evaluated)), ms(one.ms)] for one in view.own]
    heads = ("request of toki's own", "prompt", "reused", "evaluated", "took")
    return section("own", "Sent by toki for it", table(heads, rows, (0,), "Requests of toki's own"))
