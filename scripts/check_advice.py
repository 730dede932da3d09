"""Are the predictions of `toki advise` those of real servers? Traffic is recorded once, by toki in front of one server;
what is predicted for servers with other flags is compared with what these evaluate of the same traffic.

    python scripts/check_advice.py [--seed N] [--at-once N] [--times N]

With several requests at once it is also a matter of chance what a server evaluates: each is asked `--times` times, and
the mean counts, with the least and the most beside it. Exit status: 0 every prediction within 5 %, 1 not, 2 could not
run.
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
from statistics import fmean
from tempfile import TemporaryDirectory

from play import play
from proxy import mitmdump
from proxy import rows_of
from servers import Flags
from servers import start
from servers import tiny_model
from tiny_model import CONTEXT
from toki.engine.rules import Rules
from toki.engine.rules import hypotheses
from toki.facts import known
from toki.flags import parse_flags
from toki.gguf import read_header
from toki.inspect.records import requests
from toki.inspect.replay import replay
from toki.inspect.trace import reconstruct
from toki.server import Props
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
    """Evaluated prompt tokens of one trace on one server, as often as it was asked."""

    trace: str
    flags: str
    predicted: int
    measured: Sequence[int]

    @property
    def error(self) -> float:
        return self.predicted / fmean(self.measured) - 1

    @property
    def holds(self) -> bool:
        return abs(self.error) <= TOLERANCE


def compare(
    traces: Sequence[str], flags: Sequence[Flags], seed: int, scale: float, at_once: int = 1, times: int = 1
) -> Iterator[Compared]:
    """Record each trace once, and compare it on each server."""
    with TemporaryDirectory(prefix="toki-advice-") as directory:
        for name in traces:
            db = Path(directory) / f"{name}.db"
            through_toki(name, RECORDED, seed, scale, at_once, db)
            trace = reconstruct(requests(db))
            for one in flags:
                predicted = replay(trace, rules_of(one)).evaluated
                ask = straight if at_once == 1 else through_toki
                measured = [ask(name, one, seed, scale, at_once) for _ in range(times)]
                yield Compared(name, " ".join(one.argv()), predicted, measured)


def straight(name: str, flags: Flags, seed: int, scale: float, at_once: int) -> int:
    """Play a scenario to a server; the evaluated tokens."""
    with start(tiny_model(), flags) as server:
        run = SCENARIOS[name].start(seed, reply_tokens=REPLY, scale=scale)
        return sum(answer.evaluated or 0 for answer in play(run, server.url, at_a_time=at_once))


def through_toki(name: str, flags: Flags, seed: int, scale: float, at_once: int, db: Path | None = None) -> int:
    """Play a scenario through toki, which only watches, and keep its rows in `db`; the evaluated tokens. With several
    requests at once a proxy's own time changes their order, and so what is evaluated."""
    with start(tiny_model(), flags) as server, mitmdump(server.url, options={"toki_mode": "observe"}) as proxy:
        run = SCENARIOS[name].start(seed, reply_tokens=REPLY, scale=scale)
        played = play(run, proxy.url, at_a_time=at_once)
        if db is not None:
            rows_of(proxy.db, len(played))
            with closing(sqlite3.connect(proxy.db)) as source, closing(sqlite3.connect(db)) as copy:
                source.backup(copy)
    return sum(answer.evaluated or 0 for answer in played)


def rules_of(flags: Flags) -> Rules:
    """How a server with these flags behaves, as its flags and its model say."""
    own = flags.n_parallel is not None and not flags.kv_unified
    slots = flags.n_parallel or 4
    n_ctx = CONTEXT // slots if own else CONTEXT
    props = Props(slots, n_ctx, "", "", "", "", "", False, {}, "", False)
    found = known(props, parse_flags(flags.argv(), {}), read_header(tiny_model()))
    return hypotheses(slots, n_ctx, found)[0]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--scale", type=float, default=0.5, help="a factor on all sizes of text")
    parser.add_argument("--at-once", type=int, default=1, metavar="N", help="requests in flight (default: %(default)s)")
    parser.add_argument("--times", type=int, default=1, metavar="N", help="how often each server is asked")
    given = parser.parse_args()
    held = True
    print(f"{'trace':17} {'flags':61} {'predicted':>9} {'measured':>8} {'least':>7} {'most':>7} {'error':>7}")
    try:
        for one in compare(TRACES, FLAGS, given.seed, given.scale, given.at_once, given.times):
            least, most = min(one.measured), max(one.measured)
            figures = f"{one.predicted:9,} {fmean(one.measured):8,.0f} {least:7,} {most:7,} {one.error:+7.1%}"
            print(f"{one.trace:17} {one.flags:61} {figures}", flush=True)
            held &= one.holds
    except (OSError, RuntimeError, TimeoutError) as error:
        print(error, file=sys.stderr)
        return 2
    print(f"every prediction within {TOLERANCE:.0%}" if held else f"not every prediction is within {TOLERANCE:.0%}")
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
