"""toki's commands in mitmproxy: what it sees of the servers, what it found, and how to make it forget."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any

from mitmproxy import command
from mitmproxy import flow
from mitmproxy import types

from toki import views
from toki.engine.events import Holding
from toki.inspect.explain import Tally
from toki.inspect.explanation import finding_data
from toki.inspect.finding import duration
from toki.upstream import Upstream

MOST_ENTRIES = 32  # of the RAM cache that are shown one by one


class Commands:
    """An addon inside the addon. `upstreams` gives the servers that toki looks after, those of routers by model."""

    def __init__(self, upstreams: Callable[[], Iterable[Upstream]]) -> None:
        self._upstreams = upstreams

    @command.command("toki.status")  # type: ignore[untyped-decorator]
    def status(self) -> str:
        """What toki knows of each server, and what it found: each cause of prompts read again, the costliest first."""
        return "\n".join(line for upstream in self._upstreams() for line in _status(upstream)) or "no server yet"

    @command.command("toki.slots")  # type: ignore[untyped-decorator]
    def slots(self) -> str:
        """What each slot, and the RAM cache, is believed to hold now."""
        return "\n".join(line for upstream in self._upstreams() for line in _slots(upstream)) or "no server yet"

    @command.command("toki.explain")  # type: ignore[untyped-decorator]
    def explain(self, flows: Sequence[flow.Flow]) -> str:
        """Why the prompts of these flows were read again."""
        return "\n\n".join(views.render(each) for each in flows)

    @command.command("toki.forget")  # type: ignore[untyped-decorator]
    def forget(self) -> None:
        """Forget the prompts in memory and all that was found. What is known of the slots stays."""
        for upstream in self._upstreams():
            upstream.inspector.forget()

    @command.command("toki.export")  # type: ignore[untyped-decorator]
    def export(self, path: types.Path) -> None:
        """Write causes and latest requests to a file as JSON, without a word of any prompt."""
        data = json.dumps([_export(upstream) for upstream in self._upstreams()], indent=1)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
            file.write(data)


def _status(upstream: Upstream) -> Iterator[str]:
    prompts, size = upstream.inspector.remembered
    yield f"{upstream.name}: {upstream.state}; {prompts} prompts in memory ({size / 2**20:.1f} MiB)"
    for tally in sorted(upstream.inspector.causes, key=lambda tally: -tally.tokens):
        cost = f"{tally.tokens:,} tokens read again" + ("" if tally.seconds is None else f", {duration(tally.seconds)}")
        yield f"  {tally.last.times:>4} x {cost}: {tally.last.verdict.partition(': ')[2]}"


def _slots(upstream: Upstream) -> Iterator[str]:
    yield upstream.name
    yield from held_lines(upstream.holdings())


def held_lines(holdings: Sequence[Holding]) -> Iterator[str]:
    """All slots, and the latest entries of the RAM cache, of which there may be thousands."""
    ram = [one for one in holdings if one.slot is None]
    older = ram[:-MOST_ENTRIES]
    for one in holdings:
        if one.slot is not None:
            yield f"  slot {one.slot:<3} {_held(one)}"
    if older:
        yield f"  RAM      {sum(one.length for one in older):>9,} tokens in {len(older):,} older entries"
    for one in ram[-MOST_ENTRIES:]:
        yield f"  RAM      {_held(one)}"


def _held(one: Holding) -> str:
    whose = "" if one.conversation is None else f", conversation {one.conversation}"
    return f"{one.length:>9,} tokens{whose}{', busy' if one.busy else ''}" if one.length else "empty"


def _export(upstream: Upstream) -> dict[str, Any]:
    return {
        "server": upstream.name,
        "causes": [_cause(tally) for tally in upstream.inspector.causes],
        "requests": [
            {
                "at": one.row.at,
                "endpoint": one.row.endpoint,
                "conversation": one.row.conversation,
                "prompt_tokens": one.row.prompt_tokens,
                "reused": one.row.reused,
                "evaluated": one.row.evaluated,
                "outcome": str(one.row.outcome),
                "action": str(one.row.action),
                "verdict": one.verdict,
                "findings": [finding_data(finding, texts=False) for finding in one.findings],
            }
            for one in upstream.inspector.latest
        ],
    }


def _cause(tally: Tally) -> dict[str, Any]:
    return {
        "population": tally.population,
        "tokens": tally.tokens,
        "seconds": tally.seconds,
        "times": tally.last.times,
        "last": finding_data(tally.last, texts=False),
    }
