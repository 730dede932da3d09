"""The form by which a list is narrowed down: plain HTML that asks for the list anew, with what was chosen in its
address. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import urlencode

from toki.page.html import Html
from toki.page.html import tag
from toki.page.routes import CHOICES
from toki.page.routes import Filters
from toki.page.routes import Range
from toki.printable import printable


def form(
    base: str, path: str, names: Sequence[str], chosen: Filters, models: Sequence[str], range_: Range | None = None
) -> Html:
    """For the list at `path`, with a field for each of `names`. `models` are proposed, and any other may be typed."""
    given = chosen.given()
    return tag(
        "form",
        tag("input", type="hidden", name="range", value=range_) if range_ is not None else None,
        *(tag("label", name, _field(name, given.get(name, ""))) for name in names),
        # What can't be shown can't be typed either.
        tag("datalist", *(tag("option", value=one) for one in models if one == printable(one)), id="models"),
        tag("button", "Show"),
        tag("a", "Show all", href=address(base, path, Filters(), range_)) if given else None,
        action=f"{base}/{path}",
        class_="filters",
        aria_label="Filters",
    )


def address(base: str, path: str, chosen: Filters, range_: Range | None = None, before: int | None = None) -> str:
    """Where a list is that was narrowed down so."""
    query = chosen.given()
    if range_ is not None:
        query["range"] = range_
    if before is not None:
        query["before"] = str(before)
    return f"{base}/{path}?{urlencode(query)}" if query else f"{base}/{path}"


def _field(name: str, value: str) -> Html:
    if name in CHOICES:
        options = [tag("option", one, value=one, selected=one == value) for one in CHOICES[name]]
        return tag("select", tag("option", "any", value=""), *options, name=name)
    if name == "conversation":
        return tag("input", name=name, value=value, inputmode="numeric", pattern="[0-9]*", size=8, autocomplete="off")
    return tag("input", name=name, value=value, list="models", size=20, autocomplete="off", spellcheck="false")
