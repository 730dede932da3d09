"""What all pages have: the head, the way between them, headings, tables. Pure."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Sequence

from toki.page.html import Html
from toki.page.html import join
from toki.page.html import tag
from toki.page.routes import Range
from toki.page.words import UNKNOWN

PAGES = (("", "Overview"), ("requests", "Requests"), ("conversations", "Conversations"))


def document(base: str, title: str, here: str, *body: Html | None, live: bool = False) -> str:
    """A whole page. `base`: the page's own root, without a slash at its end; `here`: which of PAGES is shown."""
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("title", f"{title} · toki"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("link", rel="icon", href=f"{base}/icon.svg"),
        tag("link", rel="stylesheet", href=f"{base}/style.css"),
        tag("script", src=f"{base}/live.js", defer=True) if live else None,
    )
    links = [
        tag("a", words, href=f"{base}/{path}", aria_current="page" if path == here else None) for path, words in PAGES
    ]
    pause = tag("button", "Live", id="live", type="button", aria_pressed="true", hidden=True)
    header = tag(
        "header",
        tag("a", "Skip to content", href="#content", class_="skip"),
        tag("a", mark(), "toki", href=f"{base}/", class_="name"),
        tag("nav", *links, aria_label="Pages"),
        pause if live else None,
    )
    footer = tag(
        "footer",
        tag("span", "Figures are the server's own, unless they are called ", tag("em", "predicted"), "."),
        tag("span", "JSON: ", tag("a", "api", href=f"{base}/api/overview")),
        tag("span", "Prometheus: ", tag("a", "metrics", href=f"{base}/metrics")),
    )
    page = tag("body", header, tag("main", tag("h1", title), *body, id="content"), footer)
    return f"<!doctype html>\n{tag('html', head, page, lang='en')}\n"


def mark() -> Html:
    """The mark: slots, one of which holds most."""
    bars = (tag("rect", x=2, y=3 + 5 * n, width=w, height=3, rx=1.5) for n, w in enumerate((16, 9, 12)))
    return tag("svg", *bars, viewBox="0 0 20 20", width=20, height=20, aria_hidden="true", focusable="false")


def section(name: str, title: str, *body: Html | str | None, live: bool = False) -> Html:
    """A part of a page; `live`: its contents are replaced by newer ones."""
    return tag(
        "section", tag("h2", title, id=f"{name}-title"), *body, id=name, aria_labelledby=f"{name}-title", data_live=live
    )


def sheet(*body: Html | None) -> Html:
    """A part of a page that needs no heading."""
    return tag("div", *body, class_="sheet")


def table(heads: Sequence[str], rows: Iterable[Sequence[str | None]], left: Sequence[int], name: str) -> Html:
    """Columns are numbers, but for those in `left`. The first cell of a row names it."""
    classes = [None if column in left else "n" for column in range(len(heads))]
    head = tag("tr", *(tag("th", one, scope="col", class_=kind) for one, kind in zip(heads, classes, strict=True)))
    body = []
    for row in rows:
        cells = [
            tag("td", cell, class_=kind) if column else tag("th", cell, scope="row", class_=kind)
            for column, (cell, kind) in enumerate(zip(row, classes, strict=True))
        ]
        body.append(tag("tr", *cells))
    shown = tag("table", tag("thead", head), tag("tbody", join(body)))
    return tag("div", shown, class_="scroll", tabindex="0", role="group", aria_label=name)


def predicted() -> Html:
    """The badge of what is no measurement."""
    return tag("span", "predicted", class_="predicted")


def note(text: str) -> Html:
    return tag("p", text, class_="note")


def warning(*text: str) -> Html:
    return tag("p", tag("strong", "Warning: "), *text, class_="warning")


def card(name: str, value: str, *more: str | None, guess: bool = False) -> Html:
    """A figure with its name; `guess`: it is predicted."""
    return tag("div", tag("dt", name, predicted() if guess else None), tag("dd", tag("b", value), *more), class_="card")


def cards(*shown: Html | None) -> Html:
    return tag("dl", *shown, class_="cards")


def conversation(base: str, number: int | None) -> Html | str:
    """A link to a conversation, with its colour."""
    if number is None:
        return UNKNOWN
    swatch = tag("i", class_=f"swatch {colour(number)}")
    return tag("a", swatch, f"conversation {number}", href=f"{base}/conversations/{number}")


def colour(number: int | None) -> str:
    return "c" if number is None else f"c{number % 8}"


def request(base: str, number: int | None, words: str = "") -> Html | str:
    return UNKNOWN if number is None else tag("a", words or f"{number}", href=f"{base}/requests/{number}")


def ranges(here: Range, address: Callable[[Range], str]) -> Html:
    """The choice of a time."""
    links = (tag("a", f"{one}", href=address(one), aria_current="true" if one is here else None) for one in Range)
    return tag("nav", "The last ", *links, class_="ranges", aria_label="Time")


def failure(base: str, title: str, text: str) -> str:
    """A page that says why there is none."""
    return document(base, title, "-", note(text))
