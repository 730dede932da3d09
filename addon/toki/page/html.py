"""Builds HTML and SVG so that nothing can get in unescaped: texts are escaped unless a function here made them.

Characters that can't be seen (controls, marks that turn the direction of writing) are spelt out, since names and
models in what is shown were chosen by clients.
"""

from __future__ import annotations

import html
from collections.abc import Iterable

from toki.printable import printable

VOID = frozenset({"link", "meta", "br", "input", "rect", "line", "path", "polyline"})


class Html(str):
    """Markup that needs no escaping any more."""

    __slots__ = ()


Child = str | None
Attribute = str | int | float | bool | None


def tag(name: str, /, *children: Child, **attributes: Attribute) -> Html:
    """An element. Of attribute names the last underscore is dropped (`class_`), others become hyphens; True is an
    attribute without a value, None and False none at all."""
    shown = "".join(_attribute(key, value) for key, value in attributes.items())
    if name in VOID:
        return Html(f"<{name}{shown}/>")
    return Html(f"<{name}{shown}>{join(children)}</{name}>")


def join(children: Iterable[Child], between: str = "") -> Html:
    """Children one behind the other."""
    return Html(visible(between, quote=False).join(visible(one) for one in children if one is not None))


def visible(text: str, *, quote: bool = True) -> str:
    """A text as markup shows it."""
    return text if isinstance(text, Html) else html.escape(printable(text), quote)


def _attribute(name: str, value: Attribute) -> str:
    if value is None or value is False:
        return ""
    key = name.removesuffix("_").replace("_", "-")
    if value is True:
        return f" {key}"
    return f' {key}="{visible(f"{value:g}" if isinstance(value, float) else str(value))}"'
