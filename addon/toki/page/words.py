"""Numbers and times as the page writes them. Pure."""

from __future__ import annotations

from datetime import datetime

from toki.inspect.finding import duration
from toki.page.html import Html
from toki.page.html import tag

UNKNOWN = "-"


def number(value: int | None) -> str:
    return UNKNOWN if value is None else f"{value:,}"


def short(value: float) -> str:
    """A number for an axis, such as 1.2k, 45k or 3M."""
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"


def share(part: int | None, whole: int | None) -> str:
    """In percent; 0 % only where it is nothing, 100 % only where it is all."""
    if part is None or not whole:
        return UNKNOWN
    percent = 100 * part / whole
    if 0 < percent < 1:
        return "<1 %"
    return ">99 %" if 99 < percent < 100 else f"{percent:.0f} %"


def lasting(seconds: float | None) -> str:
    if seconds is None:
        return UNKNOWN
    if seconds < 5970:
        return duration(seconds)
    return f"{seconds / 3600:.1f} h" if seconds < 48 * 3600 else f"{seconds / 86_400:.0f} days"


def ms(value: float | None) -> str:
    return UNKNOWN if value is None else lasting(value / 1000)


def local(at: float) -> datetime:
    """The time on this machine's clock."""
    return datetime.fromtimestamp(at).astimezone()


def moment(at: float, form: str = "%Y-%m-%d %H:%M:%S") -> Html:
    return tag("time", f"{local(at):{form}}", datetime=local(at).isoformat(timespec="seconds"))


def ago(seconds: float | None) -> str:
    if seconds is None:
        return UNKNOWN
    return "now" if seconds < 1 else f"{seconds:.0f} s ago" if seconds < 99.5 else f"{lasting(seconds)} ago"
