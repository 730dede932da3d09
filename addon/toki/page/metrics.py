"""Prometheus' text format (version 0.0.4), written out: a dozen lines of format, and what each metric means. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import replace
from itertools import accumulate
from itertools import count

from toki.page.counters import Counts
from toki.page.counters import Histogram
from toki.page.model import Server

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
Labels = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric with its samples: name's suffix, labels, value."""

    name: str
    kind: str
    help: str
    samples: tuple[tuple[str, Labels, float], ...]


def text(version: str, servers: Iterable[Server], counts: Mapping[str, Counts], lost_rows: int) -> str:
    """All metrics. `servers` as they are now, `counts` by server since toki started."""
    return "".join(f"{line}\n" for metric in _metrics(version, servers, counts, lost_rows) for line in _lines(metric))


def _metrics(version: str, servers: Iterable[Server], counts: Mapping[str, Counts], lost_rows: int) -> Iterator[Metric]:
    yield Metric("toki_info", "gauge", "The version of toki.", (("", {"version": version}, 1),))
    yield Metric(
        "toki_requests_total",
        "counter",
        "Requests to prompt endpoints, by what toki did and what the server measured.",
        tuple(
            ("", {"server": server, "action": action, "outcome": outcome}, number)
            for server, one in counts.items()
            for (action, outcome), number in sorted(one.requests.items())
        ),
    )
    for kind, meaning in (
        ("prompt", "Tokens of the prompts."),
        ("reused", "Prompt tokens that the server took from its cache, by its own word."),
        ("evaluated", "Prompt tokens that the server processed, by its own word."),
        ("alone_evaluated", "Prompt tokens that the server left alone would have processed. Predicted."),
        ("reply", "Tokens of the answers."),
    ):
        samples = tuple(("", {"server": server}, one.tokens[kind]) for server, one in counts.items())
        yield Metric(f"toki_{kind}_tokens_total", "counter", meaning, samples)
    yield _by_label("toki_own_requests_total", "Requests of toki's own.", "purpose", counts, "own_requests")
    yield _by_label(
        "toki_own_evaluated_tokens_total", "Tokens that these made the server process.", "purpose", counts,
        "own_evaluated",
    )  # fmt: skip
    yield _by_label("toki_reread_tokens_total", "Tokens processed again, by cause.", "cause", counts, "reread")
    yield _by_label("toki_checks_total", "Answers compared with one without the cache.", "divergence", counts, "checks")
    yield _histogram("toki_held_seconds", "How long toki held requests.", ((s, c.held) for s, c in counts.items()))
    yield _histogram(
        "toki_first_byte_seconds",
        "From a request's arrival to the first byte of its answer.",
        ((server, one.first_byte) for server, one in counts.items()),
    )
    yield from _now(tuple(_apart(servers)))
    yield Metric("toki_lost_rows_total", "counter", "Rows that the database did not take.", (("", {}, lost_rows),))


def _apart(servers: Iterable[Server]) -> Iterator[Server]:
    """Each with a name of its own: those of models are what clients wrote, made printable, so that two may look the
    same, and Prometheus refuses all metrics where two samples have the same labels."""
    taken: set[str] = set()
    for one in servers:
        names = (one.name if n == 1 else f"{one.name} ({n})" for n in count(1))
        name = next(name for name in names if name not in taken)
        taken.add(name)
        yield replace(one, name=name)


def _now(servers: tuple[Server, ...]) -> Iterator[Metric]:
    def gauge(name: str, meaning: str, values: Iterable[tuple[Labels, float]]) -> Metric:
        return Metric(name, "gauge", meaning, tuple(("", labels, value) for labels, value in values))

    yield gauge(
        "toki_open_requests", "Requests that are under way.", (({"server": one.name}, one.open) for one in servers)
    )
    yield gauge(
        "toki_trusted",
        "Whether the predictions are good enough to steer by.",
        (({"server": one.name}, one.trusted) for one in servers),
    )
    yield gauge(
        "toki_prefill_seconds_per_token",
        "What evaluating a prompt token takes, as measured last.",
        (({"server": one.name}, one.ms_per_token / 1000) for one in servers if one.ms_per_token is not None),
    )
    held = [(one, slot) for one in servers for slot in one.holdings]
    slots = [({"server": one.name, "slot": str(slot.slot)}, slot) for one, slot in held if slot.slot is not None]
    yield gauge(
        "toki_slot_tokens", "Tokens that a slot is believed to hold.", ((where, s.tokens) for where, s in slots)
    )
    yield gauge(
        "toki_slot_busy", "Whether a request runs on a slot, as believed.", ((where, s.busy) for where, s in slots)
    )
    ram = {one.name: [slot.tokens for slot in one.holdings if slot.slot is None] for one in servers}
    yield gauge(
        "toki_ram_entries",
        "Entries that the RAM cache is believed to hold.",
        (({"server": name}, len(entries)) for name, entries in ram.items()),
    )
    yield gauge(
        "toki_ram_tokens",
        "Tokens that the RAM cache is believed to hold.",
        (({"server": name}, sum(entries)) for name, entries in ram.items()),
    )


def _by_label(name: str, meaning: str, label: str, counts: Mapping[str, Counts], field: str) -> Metric:
    samples = tuple(
        ("", {"server": server, label: value}, number)
        for server, one in counts.items()
        for value, number in sorted(getattr(one, field).items())
    )
    return Metric(name, "counter", meaning, samples)


def _histogram(name: str, meaning: str, histograms: Iterable[tuple[str, Histogram]]) -> Metric:
    samples: list[tuple[str, Labels, float]] = []
    for server, one in histograms:
        bounds = [*(f"{bound:g}" for bound in one.bounds), "+Inf"]
        for bound, number in zip(bounds, accumulate(one.counts), strict=True):
            samples.append(("_bucket", {"server": server, "le": bound}, number))
        samples.append(("_sum", {"server": server}, one.sum))
        samples.append(("_count", {"server": server}, sum(one.counts)))
    return Metric(name, "histogram", meaning, tuple(samples))


def _lines(metric: Metric) -> Iterator[str]:
    yield f"# HELP {metric.name} {metric.help}"
    yield f"# TYPE {metric.name} {metric.kind}"
    for suffix, labels, value in metric.samples:
        inside = ",".join(f'{name}="{_escaped(text)}"' for name, text in labels.items())
        yield f"{metric.name}{suffix}{f'{{{inside}}}' if inside else ''} {float(value):.17g}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
