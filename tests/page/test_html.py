"""Nothing gets into markup unescaped or unseen."""

from __future__ import annotations

from html.parser import HTMLParser

from hypothesis import given
from hypothesis import strategies as st

from toki.page.html import Html
from toki.page.html import join
from toki.page.html import tag


class Seen(HTMLParser):
    """The elements, attributes and text that a browser would make of markup."""

    def __init__(self, markup: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(markup)
        self.close()

    def handle_starttag(self, name: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append((name, dict(attributes)))

    def handle_data(self, data: str) -> None:
        self.text += data


def test_elements() -> None:
    assert tag("p", "a < b", tag("b", "&"), None, class_="x", data_live=True, hidden=False, id=None) == (
        '<p class="x" data-live>a &lt; b<b>&amp;</b></p>'
    )
    assert tag("meta", name="viewport", width=0.5) == '<meta name="viewport" width="0.5"/>'
    assert join(("a", Html("<br/>"), None, "b"), " & ") == "a &amp; <br/> &amp; b"


@given(st.text(), st.text())
def test_any_text_stays_text(text: str, value: str) -> None:
    seen = Seen(tag("p", text, title=value))
    assert [name for name, _ in seen.tags] == ["p"]
    assert list(seen.tags[0][1]) == ["title"]
    if text.isprintable():
        assert seen.text == text
    assert seen.text.isprintable()
    assert (seen.tags[0][1]["title"] or "").isprintable()


def test_what_can_not_be_seen_is_spelt_out() -> None:
    assert tag("p", "a\x00b\u202ec\u200bd\x1b[31m\n\ud800") == "<p>a\\x00b\\u202ec\\u200bd\\x1b[31m\\n\\ud800</p>"
