"""What toki does, to watch: the same agents talk to a llama-server straight, and through toki. `make demo`

Four agent-like sessions behind one long system prompt take turns in a random order, one request after another, with
small side calls in between. Each side starts with a fresh embedded llama-server that has the same flags.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from play import Played
from play import play
from proxy import mitmdump
from proxy import rows_of
from servers import Flags
from servers import smollm2
from servers import start
from servers import tiny_model
from toki.engine.events import Outcome
from toki.engine.record import outcome
from traffic import Run
from traffic import Scenario
from traffic.request import system
from traffic.run import Script
from traffic.run import once
from traffic.scenario import Conversation
from traffic.scenario import Stage
from traffic.scenario import opening
from traffic.scenario import single

MODELS: dict[str, tuple[str, Callable[[], Path]]] = {
    "smollm2": ("SmolLM2-135M-Instruct", smollm2),
    "tiny": ("a random model for tests", tiny_model),
}
SESSIONS = 4
TURNS = 6
MIN_REUSE = 10  # tokens of reuse that count as a hit, as toki_min_reuse has it
BAR = 40  # characters
LINES = 6  # of progress where it can't be redrawn


def agents(stage: Stage) -> Iterable[Script]:
    shared = stage.writer("preamble")
    preamble = system(shared.prose(900, 900))
    housekeeping = shared.prose(40, 40)

    def session(name: str) -> Script:
        write = stage.writer(name)
        chat = Conversation(name, stage.reply_tokens, messages=[preamble])
        answer = yield from chat.say(opening(name, write.prose(40, 100)))
        for turn in range(1, TURNS):
            if turn % 2:
                text = write.prose(60, 120)
                yield from once(single(f"{name}/side-{turn}", housekeeping, text, stage.reply_tokens, "side"))
            answer = yield from chat.say(write.prose(30, 90))
        return answer

    return [session(f"agent-{number}") for number in range(1, SESSIONS + 1)]


AGENTS = Scenario("demo", "four agents behind one system prompt, with side calls", agents)


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two columns."""

    played: Sequence[Played]
    seconds: float
    actions: Counter[str]  # what toki did with the requests


def traffic(seed: int) -> Run:
    return AGENTS.start(seed, reply_tokens=12)


def run_side(name: str, model: Path, flags: Flags, seed: int, through_toki: bool) -> Side:
    """Play the traffic on a fresh server."""
    bar = progress(name, requests_of(traffic(seed)))
    with start(model, flags) as server:
        if not through_toki:
            return side(server.url, seed, bar)
        with mitmdump(server.url) as toki:
            found = side(toki.url, seed, bar)
            rows = rows_of(toki.db, len(found.played))
            return Side(found.played, found.seconds, Counter(str(row["action"]) for row in rows))


def side(url: str, seed: int, bar: Callable[[Played], None]) -> Side:
    began = time.monotonic()
    played = play(traffic(seed), url, stream=True, told=bar)
    return Side(played, time.monotonic() - began, Counter())


def requests_of(run: Run) -> int:
    """How many requests a run has; its length must not depend on what is answered."""
    count = 0
    while (request := run.take()) is not None:
        count += 1
        run.answer(request.session, "")
    return count


def progress(name: str, total: int) -> Callable[[Played], None]:
    """Draws a bar on stderr, one step further at each call; where that is no terminal, a line now and then."""
    done = 0
    redrawn = sys.stderr.isatty()
    every = 1 if redrawn else max(1, total // LINES)

    def step(_: Played) -> None:
        nonlocal done
        done += 1
        if done % every == 0 or done == total:
            filled = BAR * done // total
            begin, end = ("\r", "" if done < total else "\n") if redrawn else ("", "\n")
            bar = f"{begin}{name:14} [{'#' * filled}{'.' * (BAR - filled)}] {done}/{total}"
            print(bar, end=end, file=sys.stderr, flush=True)

    return step


def table(straight: Side, toki: Side) -> str:
    rows = [
        ("requests", len),
        ("prompt tokens", lambda played: sum(one.prompt_tokens or 0 for one in played)),
        ("  evaluated", lambda played: sum(one.evaluated or 0 for one in played)),
        ("  reused", lambda played: sum(one.reused or 0 for one in played)),
        ("hits", lambda played: outcomes(played)[Outcome.HIT]),
        ("soft hits", lambda played: outcomes(played)[Outcome.SOFT_HIT]),
        ("misses", lambda played: outcomes(played)[Outcome.MISS]),
    ]
    lines = [f"{'':34}{'straight':>12}{'through toki':>14}"]
    lines += [f"{title:34}{of(straight.played):>12,}{of(toki.played):>14,}" for title, of in rows]
    for title, of_times in (("median", statistics.median), ("95th percentile", percentile_95)):
        figures = [of_times([1000 * (one.first_byte_s or one.total_s) for one in s.played]) for s in (straight, toki)]
        lines.append(f"{f'ms to the first token, {title}':34}{figures[0]:>12,.0f}{figures[1]:>14,.0f}")
    lines.append(f"{'seconds in all':34}{straight.seconds:>12.1f}{toki.seconds:>14.1f}")
    return "\n".join(lines)


def outcomes(played: Sequence[Played]) -> Counter[Outcome]:
    return Counter(outcome(one.reused, MIN_REUSE) for one in played)


def percentile_95(values: Sequence[float]) -> float:
    return statistics.quantiles(values, n=20, method="inclusive")[-1]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=MODELS, default="smollm2", help="tiny answers nonsense at once")
    parser.add_argument("--seed", type=int, default=1, help="of the traffic (default: 1)")
    options = parser.parse_args()
    name, model = MODELS[options.model]
    flags = Flags(threads=os.cpu_count())
    try:
        path = model()
        straight = run_side("straight", path, flags, options.seed, through_toki=False)
        toki = run_side("through toki", path, flags, options.seed, through_toki=True)
    except KeyboardInterrupt:
        print("\nstopped before there was anything to compare", file=sys.stderr)
        return 130
    except (OSError, RuntimeError) as error:
        print(error, file=sys.stderr)
        return 2
    print(table(straight, toki))
    print(f"\ntoki's choices: {', '.join(f'{count} {action}' for action, count in toki.actions.most_common())}")
    print(f"{name}; llama-server {' '.join(flags.argv())}, else its own defaults; {os.cpu_count()} cores")
    print(f"{SESSIONS} sessions of {TURNS} turns with side calls, one request after another; seed {options.seed}")
    print("Both sides got the same traffic, but for the answers in it. A single run: times vary, tokens hardly.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
