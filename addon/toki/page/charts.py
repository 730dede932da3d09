"""Charts as inline SVG. Colours come from the style sheet by class, so that light and dark need no second picture.

Each has a name for those who do not see it; the figures stand beside it as a table. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence
from math import ceil
from math import floor
from math import log10

from toki.page.html import Html
from toki.page.html import join
from toki.page.html import tag
from toki.page.model import Bar
from toki.page.model import Turn
from toki.page.words import local
from toki.page.words import number
from toki.page.words import share
from toki.page.words import short

WIDTH, HEIGHT = 960, 220
LEFT, RIGHT, TOP, BOTTOM = 52, 6, 10, 24  # room around the drawing
GAP = 0.18  # of a bar's width
LABELS = 6  # along the bottom, about
DAY_S = 86_400


def timeline(bars: Sequence[Bar], step: int, start: float, end: float) -> Html:
    """What was evaluated and reused in each step, and what the server alone would have evaluated."""
    first, steps = int(start // step), max(1, int(end // step) - int(start // step) + 1)
    top = _nice(max((max(_height(bar), bar.sums.alone_evaluated) for bar in bars), default=0))
    width = (WIDTH - LEFT - RIGHT) / steps
    drawn = []
    for bar in bars:
        x = LEFT + (bar.at // step - first) * width
        drawn.append(_timeline_bar(bar, x, width, top, step))
    evaluated, alone = (sum(getattr(bar.sums, name) for bar in bars) for name in ("evaluated", "alone_evaluated"))
    name = f"{number(evaluated)} tokens evaluated; by the server alone {number(alone)}, predicted. Figures below."
    labels = _times(first, steps, step, width)
    return _chart(name, top, [*drawn, *labels])


def _timeline_bar(bar: Bar, x: float, width: float, top: int, step: int) -> Html:
    sums = bar.sums
    form = "%d %b %H:%M" if step >= 900 else "%H:%M"
    said = (
        f"{local(bar.at):{form}}: {number(sums.evaluated)} evaluated, {number(sums.reused)} reused; server alone "
        f"{number(sums.alone_evaluated)} evaluated (predicted); {number(sums.requests)} requests"
    )
    inner, left = width * (1 - GAP), x + width * GAP / 2
    y = _y(sums.alone_evaluated, top)
    return tag(
        "g",
        tag("title", said),
        tag("rect", class_="touch", x=_r(x), y=TOP, width=_r(width), height=HEIGHT - TOP - BOTTOM),
        *_stack(left, inner, top, (("evaluated", sums.evaluated), ("reused", sums.reused))),
        tag("line", class_="alone", x1=_r(x), x2=_r(x + width), y1=_r(y), y2=_r(y)),
        class_="step",
    )


def turns(shown: Sequence[Turn]) -> Html:
    """How much of each prompt of a conversation was reused, and how much the server alone would have."""
    known = [turn for turn in shown if turn.prompt_tokens]
    top = _nice(max((turn.prompt_tokens or 0 for turn in known), default=0))
    width = min(48.0, (WIDTH - LEFT - RIGHT) / max(1, len(shown)))
    drawn = []
    for place, turn in enumerate(shown):
        x = LEFT + place * width
        inner, left = width * (1 - GAP), x + width * GAP / 2
        said = f"request {turn.id}: {number(turn.reused)} of {number(turn.prompt_tokens)} tokens reused"
        alone: list[Html] = []
        if turn.alone is not None:
            y = _y(turn.alone, top)
            alone = [tag("line", class_="alone", x1=_r(x), x2=_r(x + width), y1=_r(y), y2=_r(y))]
            said += f"; server alone {number(turn.alone)} (predicted)"
        parts = (("reused", turn.reused or 0), ("evaluated", turn.evaluated or 0))
        drawn.append(tag("g", tag("title", said), *_stack(left, inner, top, parts), *alone, class_="step"))
    last = shown[-1] if shown else None
    name = f"{len(shown)} requests"
    if last is not None:
        name += f"; of the last one's prompt {share(last.reused, last.prompt_tokens)} reused. Figures below."
    return _chart(name, top, drawn)


def spark(shown: Sequence[Turn]) -> Html:
    """The share reused of each prompt, small."""
    width, height = 132, 24
    each = min(10.0, width / max(1, len(shown)))
    bars: list[Html] = []
    for place, turn in enumerate(shown):
        if turn.reused is None or not turn.prompt_tokens:
            continue
        reused = height * min(1.0, turn.reused / turn.prompt_tokens)
        x, inner = _r(place * each), _r(each * (1 - GAP))
        bars.append(tag("rect", class_="evaluated faint", x=x, y=0, width=inner, height=_r(height - reused)))
        bars.append(tag("rect", class_="reused", x=x, y=_r(height - reused), width=inner, height=_r(reused)))
    last = next((turn for turn in reversed(shown) if turn.reused is not None), None)
    name = "no figures" if last is None else f"last {share(last.reused, last.prompt_tokens)} reused"
    return tag(
        "svg", *bars, class_="spark", viewBox=f"0 0 {width} {height}", width=width, height=height, role="img",
        aria_label=name,
    )  # fmt: skip


def level(parts: Sequence[tuple[str, int]], whole: int, *, predicted: bool = False) -> Html:
    """A bar along a line: `parts` (class and tokens) of `whole`. For eyes alone: the figures stand beside it."""
    whole, x = max(1, whole), 0.0
    drawn = []
    for kind, tokens in parts:
        width = min(100 - x, 100 * tokens / whole)
        if width > 0:
            drawn.append(tag("rect", class_=kind, x=_r(x), y=0, width=_r(width), height=10))
        x += max(0.0, width)
    return tag(
        "svg", *drawn, class_="level predicted" if predicted else "level", viewBox="0 0 100 10",
        preserveAspectRatio="none", aria_hidden="true", focusable="false",
    )  # fmt: skip


def _chart(name: str, top: int, drawn: Sequence[Html]) -> Html:
    drawing = tag(
        "svg", *_scale(top), *drawn, class_="chart", viewBox=f"0 0 {WIDTH} {HEIGHT}", role="img", aria_label=name
    )
    return tag("div", drawing, class_="scroll", tabindex="0", role="group", aria_label="chart")


def _stack(x: float, width: float, top: int, parts: Sequence[tuple[str, int]]) -> Iterator[Html]:
    floor_ = float(HEIGHT - BOTTOM)
    for kind, tokens in parts:
        height = (HEIGHT - BOTTOM) - _y(tokens, top)
        if height > 0:
            floor_ -= height
            yield tag("rect", class_=kind, x=_r(x), y=_r(floor_), width=_r(width), height=_r(height))


def _scale(top: int) -> Iterator[Html]:
    for part in (0, 0.5, 1):
        y = _r(_y(part * top, top))
        yield tag("line", class_="grid", x1=LEFT, x2=WIDTH - RIGHT, y1=y, y2=y)
        yield tag("text", short(part * top), x=LEFT - 8, y=y, class_="value")


def _times(first: int, steps: int, step: int, width: float) -> Iterator[Html]:
    every = max(1, round(steps / LABELS))
    form = "%H:%M" if steps * step <= 2 * DAY_S else "%d %b"
    for place in range(every // 2, steps, every):
        x = _r(LEFT + (place + 0.5) * width)
        yield tag("text", f"{local((first + place) * step):{form}}", x=x, y=HEIGHT - 6, class_="time")


def _height(bar: Bar) -> int:
    return bar.sums.evaluated + bar.sums.reused


def _y(tokens: float, top: int) -> float:
    room = HEIGHT - TOP - BOTTOM
    return TOP + room * (1 - min(1.0, max(0.0, tokens / top)))


def _nice(value: float) -> int:
    """The next round number."""
    if value <= 10:
        return 10
    power = 10 ** floor(log10(value))
    return int(next(step * power for step in (1, 1.5, 2, 3, 4, 5, 6, 8, 10) if ceil(value) <= step * power))


def _r(value: float) -> float:
    return round(value, 2)


def legend(*entries: tuple[str, str]) -> Html:
    """What the colours mean: class and words."""
    return tag("ul", *(tag("li", tag("i", class_=kind), words) for kind, words in entries), class_="legend")


def figures(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> Html:
    """The figures of a chart as a table that can be opened."""
    head = tag("tr", *(tag("th", one, scope="col") for one in heads))
    body = (tag("tr", *(tag("td", cell) for cell in row)) for row in rows)
    table = tag("table", tag("thead", head), tag("tbody", join(body)), class_="figures")
    return tag(
        "details",
        tag("summary", "Figures"),
        tag("div", table, class_="scroll", tabindex="0", role="group", aria_label="figures"),
    )
