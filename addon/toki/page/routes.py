"""What can be asked for, by path and query. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import fields
from dataclasses import replace
from enum import StrEnum
from urllib.parse import parse_qs

from toki.endpoints import ENDPOINTS
from toki.engine.events import Action
from toki.engine.events import Outcome
from toki.inspect.finding import Cause

API = "/api"
LARGEST = 2**63 - 1  # ids of SQLite


class Kind(StrEnum):
    """One thing that can be asked for."""

    OVERVIEW = "overview"
    REQUESTS = "requests"
    REQUEST = "request"
    CONVERSATIONS = "conversations"
    CONVERSATION = "conversation"
    METRICS = "metrics"
    FORGET = "forget"
    FILE = "file"


class Range(StrEnum):
    """A time until now."""

    HOUR = "hour"
    DAY = "day"
    WEEK = "week"
    MONTH = "month"

    @property
    def seconds(self) -> int:
        return {"hour": 3600, "day": 86_400, "week": 7 * 86_400, "month": 30 * 86_400}[self]

    @property
    def step(self) -> int:
        """Seconds that one bar of a chart stands for: whole minutes, some 60 to 96 bars."""
        return {"hour": 60, "day": 900, "week": 7200, "month": 28_800}[self]


@dataclass(frozen=True, slots=True)
class Filters:
    """What all that is listed has in common; None: whatever it may be."""

    outcome: str | None = None
    action: str | None = None
    cause: str | None = None
    endpoint: str | None = None
    model: str | None = None
    conversation: int | None = None

    def given(self) -> dict[str, str]:
        """Those that are set, as they stand in a query."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: str(value) for name, value in values.items() if value is not None}


@dataclass(frozen=True, slots=True)
class Wanted:
    """`number`: of a request or conversation. `range` None: what suits the requests that are there. `before`: only
    requests with a smaller id."""

    kind: Kind
    api: bool = False
    number: int = 0
    range: Range | None = None
    before: int | None = None
    file: str = ""
    filters: Filters = Filters()


class Unknown(Exception):
    """There is no such thing to ask for; `status` is that of the answer."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


FILES = {"style.css": "text/css", "live.js": "text/javascript", "icon.svg": "image/svg+xml"}
_LISTS = {"": Kind.OVERVIEW, "requests": Kind.REQUESTS, "conversations": Kind.CONVERSATIONS}
_ONE = {"requests": Kind.REQUEST, "conversations": Kind.CONVERSATION}
# What a list can be narrowed down by, and what there is to choose from where not anything can be meant.
FILTERS: Mapping[Kind, Sequence[str]] = {
    Kind.REQUESTS: tuple(field.name for field in fields(Filters)),
    Kind.CONVERSATIONS: ("endpoint", "model"),
}
CHOICES: Mapping[str, Collection[str]] = {
    "outcome": tuple(Outcome),
    "action": tuple(Action),
    "cause": tuple(Cause),
    "endpoint": tuple(endpoint.name for endpoint in ENDPOINTS),
}


def wanted(method: str, target: str) -> Wanted:
    """What `target` (path and query, below the page's own root) asks for. Raises Unknown."""
    path, _, query = target.partition("?")
    found = _find(path)
    if found.kind is Kind.FORGET:
        if method != "POST":
            raise Unknown(405, "forget is asked for by POST")
        return found
    if method not in ("GET", "HEAD"):
        raise Unknown(405, "this can only be looked at (GET)")
    values = parse_qs(query.encode(errors="replace").decode(), keep_blank_values=True)  # it may hold bytes of no text
    return replace(
        found,
        range=_range(values.get("range")),
        before=_number("before", values.get("before")),
        filters=_filters(values, FILTERS[found.kind]) if found.kind in FILTERS else Filters(),
    )


def has(target: str) -> bool:
    """Whether there is something of the page at `target`, whichever way it is asked for."""
    try:
        _find(target.partition("?")[0])
    except Unknown:
        return False
    return True


def _find(path: str) -> Wanted:
    if path == "/metrics":
        return Wanted(Kind.METRICS)
    if path == f"{API}/forget":
        return Wanted(Kind.FORGET, api=True)
    if path[1:] in FILES:
        return Wanted(Kind.FILE, file=path[1:])
    api = path == API or path.startswith(f"{API}/")
    match = re.fullmatch(r"/([a-z]*)(?:/([0-9]{1,19}))?/?", path.removeprefix(API) or "/")
    if match is not None:
        name, number = match[1], match[2]
        if number is None and (name in _LISTS or (api and name == Kind.OVERVIEW)):
            return Wanted(_LISTS.get(name, Kind.OVERVIEW), api)
        if number is not None and name in _ONE and int(number) <= LARGEST:
            return Wanted(_ONE[name], api, int(number))
    raise Unknown(404, "there is no such page")


def _range(values: list[str] | None) -> Range | None:
    try:
        return Range(values[-1]) if values else None
    except ValueError:
        raise Unknown(400, f"range must be one of {', '.join(Range)}") from None


def _number(name: str, values: list[str] | None) -> int | None:
    if not values:
        return None
    if re.fullmatch(r"[0-9]{1,19}", values[-1]) and int(values[-1]) <= LARGEST:
        return int(values[-1])
    raise Unknown(400, f"{name} must be the number of a request")


def _filters(values: Mapping[str, list[str]], names: Sequence[str]) -> Filters:
    """A form sends what was left open too, as an empty text."""
    given = {field.name: values[field.name][-1:] for field in fields(Filters) if any(values.get(field.name, [])[-1:])}
    for name, (value,) in given.items():
        if name not in names:
            raise Unknown(400, f"these can't be narrowed down by {name}, but by {', '.join(names)}")
        if name in CHOICES and value not in CHOICES[name]:
            raise Unknown(400, f"{name} must be one of {', '.join(CHOICES[name])}")
    conversation = _number("conversation", given.pop("conversation", None))
    return Filters(conversation=conversation, **{name: value for name, (value,) in given.items()})
