"""Are the predictions of `toki advise` those of real servers? Traffic is recorded once, by toki in front of one server;
what is predicted for servers with other flags is compared with what these evaluate of the same traffic.

    python scripts/check_advice.py [--seed N]

Exit status: 0 every prediction within 5 %, 1 not, 2 could not run.
"""

from __future__ import annotations

import argparse
import sqlite3
import sys
from collections.abc import Iterator
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from play import play
from proxy import mitmdump
from proxy import rows_of
from servers import Build
from servers import Flags
from servers import start
from servers import tiny_model
from toki.engine.rules import Rules
from toki.engine.rules import hypotheses
from toki.facts import known
from toki.flags import parse_flags
from toki.gguf import read_header
from toki.inspect.records import requests
from toki.inspect.trace import reconstruct
from toki.inspect.trace import replay
from toki.server import Auth
from toki.server import LlamaServerBackend
from traffic import SCENARIOS

TOLERANCE = 0.05
TRACES = ("shared-preamble", "five-in-rotation", "opencode")
FLAGS = (
    Flags(n_parallel=1, cache_ram_mib=1),
    Flags(n_parallel=2, cache_ram_mib=2),
    Flags(n_parallel=4, cache_ram_mib=0),
    Flags(n_parallel=4, kv_unified=True, cache_ram_mib=1),
)
RECORDED = Flags()
REPLY = 8  # tokens


@dataclass(frozen=True, slots=True)
class Compared:
    """Evaluated prompt tokens of one trace on one server."""

    trace: str
    flags: str
    predicted: int
    measured: int

    @property
    def error(self) -> float:
        return self.predicted / self.measured - 1

    @property
    def holds(self) -> bool:
        return abs(self.error) <= TOLERANCE


def compare(
    traces: Sequence[str], flags: Sequence[Flags], seed: int, scale: float, build: Build = "skulk"
) -> Iterator[Compared]:
    """Record each trace once, and compare it on each server."""
    with TemporaryDirectory(prefix="toki-advice-") as directory:
        for name in traces:
            db = Path(directory) / f"{name}.db"
            record(name, seed, scale, db)
            trace = reconstruct(requests(db))
            for one in flags:
                with start(tiny_model(), one, build) as server:
                    rules = rules_of(server.url, one)
                    played = play(SCENARIOS[name].start(seed, reply_tokens=REPLY, scale=scale), server.url)
                measured = sum(answer.evaluated or 0 for answer in played)
                yield Compared(name, " ".join(one.argv()), replay(trace, rules).evaluated, measured)


def record(name: str, seed: int, scale: float, db: Path) -> None:
    """Play a scenario through toki, which only watches, and keep its rows."""
    with start(tiny_model(), RECORDED) as server, mitmdump(server.url, options={"toki_mode": "observe"}) as proxy:
        played = play(SCENARIOS[name].start(seed, reply_tokens=REPLY, scale=scale), proxy.url)
        rows_of(proxy.db, len(played))
        with closing(sqlite3.connect(proxy.db)) as source, closing(sqlite3.connect(db)) as copy:
            source.backup(copy)


def rules_of(url: str, flags: Flags) -> Rules:
    """How a server with these flags behaves, as its flags and its model say."""
    backend = LlamaServerBackend(url)
    try:
        props = backend.props(Auth(), 10)
    finally:
        backend.close()
    found = known(props, parse_flags(flags.argv(), {}), read_header(tiny_model()))
    return hypotheses(props.total_slots, props.n_ctx, found)[0]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--scale", type=float, default=0.5, help="a factor on all sizes of text")
    given = parser.parse_args()
    held = True
    print(f"{'trace':22} {'flags':60} {'predicted':>10} {'measured':>10} {'error':>7}")
    try:
        for one in compare(TRACES, FLAGS, given.seed, given.scale):
            print(f"{one.trace:22} {one.flags:60} {one.predicted:10,} {one.measured:10,} {one.error:+7.1%}", flush=True)
            held &= one.holds
    except (OSError, RuntimeError, TimeoutError) as error:
        print(error, file=sys.stderr)
        return 2
    print(f"every prediction within {TOLERANCE:.0%}" if held else f"not every prediction is within {TOLERANCE:.0%}")
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
