"""What would be evaluated, without any server: the benchmark's traffic through the engine and a model of the server.

    PYTHONPATH=addon:scripts python scripts/simulate.py [--flags "-np 4 -cram 0"] [--seeds 1,2] [--scenarios codex]

One request after another. Prints evaluated prompt tokens (primers included) for the server alone, toki auto and toki
pin. Beside them: what someone who knew all requests in advance could make of the same slots and RAM cache ("ahead", see
`ahead`), and an endless cache. The server is the shadow (`engine/shadow.py`), which tests compare with the rules and
with real servers; the engine has a shadow of its own and hears only what a real server tells. Figures are predicted,
not measured.
"""

from __future__ import annotations

import argparse
import statistics
from collections import Counter
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.optimize import linear_sum_assignment  # type: ignore[import-untyped]

from benchmark.cells import FLAGS
from benchmark.cells import TRAFFIC
from servers import tiny_model
from tiny_model import CONTEXT
from toki.engine.contents import Contents
from toki.engine.core import Engine
from toki.engine.events import Answered
from toki.engine.events import Arrived
from toki.engine.events import Ask
from toki.engine.events import Command
from toki.engine.events import Gone
from toki.engine.events import Look
from toki.engine.events import Looked
from toki.engine.events import Measured
from toki.engine.events import Mode
from toki.engine.events import Prime
from toki.engine.events import Primed
from toki.engine.events import Replied
from toki.engine.events import Restarted
from toki.engine.events import Send
from toki.engine.events import SlotView
from toki.engine.rules import Known
from toki.engine.rules import Rules
from toki.engine.rules import hypotheses
from toki.engine.shadow import Shadow
from toki.engine.shadow import Wish
from toki.engine.tokens import Tokens
from toki.facts import known
from toki.flags import parse_flags
from toki.gguf import read_header
from toki.server import Props
from traffic import Request
from traffic import WordTokenizer
from traffic import endless
from traffic import fake_reply
from traffic import ids

NEVER = 1 << 40  # tokens: the price of what is impossible


@dataclass(frozen=True, slots=True)
class Exchange:
    """One request, and the reply that it gets: int32, shape (n,)."""

    request: Request
    prompt: Tokens
    reply: npt.NDArray[np.int32]

    @property
    def left(self) -> npt.NDArray[np.int32]:
        """What stands in the slot behind the prompt: the last sampled token does not."""
        return self.reply[:-1]


@lru_cache(maxsize=4)
def exchanges(scenario: str, seed: int, reply: int = 8) -> tuple[Exchange, ...]:
    """A run of a scenario, one request after another."""
    tokenizer = WordTokenizer()
    run = TRAFFIC[scenario].start(seed, reply_tokens=reply)
    found = []
    while (request := run.take()) is not None:
        text = fake_reply(request, request.max_tokens)
        answer = np.array(tokenizer.encode(text), np.int32)
        found.append(Exchange(request, Tokens.of(ids(request, tokenizer)), answer))
        run.answer(request.session, text)
    return tuple(found)


def rules_of(flags: str) -> tuple[Rules, Known]:
    """The rules of a server of the tiny model with these flags, and what toki knows of them beside it. "@N" behind the
    name of a flag set stands for a RAM cache of N tokens."""
    flags, _, ram = flags.partition("@")
    argv = FLAGS[flags].argv()
    parsed = parse_flags(argv, {})
    total = parsed.parallel or 4
    split = parsed.parallel is not None and not parsed.kv_unified
    props = Props(total, CONTEXT // total if split else CONTEXT, "", "", "", "", "", False, {}, "", False)
    told = known(props, parsed, read_header(tiny_model()))
    if ram:
        told = replace(told, ram=int(ram))
    return hypotheses(props.total_slots, props.n_ctx, told)[0], told


class Server:
    """A server as the shadow models it, that counts what it evaluates."""

    def __init__(self, rules: Rules) -> None:
        self.contents = Contents()
        self.shadow = Shadow(rules, self.contents)
        self.evaluated = 0
        self.launched = 0
        self.tasks = [-1] * rules.n_slots

    def serve(self, exchange: Exchange, id_slot: int | None = None) -> Measured:
        """A request from launch to end."""
        return self._serve(exchange.prompt, exchange.left, exchange.request.n - 1, id_slot)

    def prime(self, prompt: Tokens, id_slot: int) -> Measured:
        return self._serve(prompt, np.empty(0, np.int32), 0, id_slot)

    def _serve(self, prompt: Tokens, left: npt.NDArray[np.int32], children: int, id_slot: int | None) -> Measured:
        self.launched += 1
        key, n = self.launched, len(prompt)
        held = self.contents.hold(self.contents.add(prompt), n, n)
        launch = self.shadow.launch(Wish(key, held, id_slot, children=min(children, len(self.tasks) - 1)))
        assert launch is not None
        self.shadow.finish(key, len(left) + 1)
        now = self.contents.hold(held.place, n, n + len(left))
        self.shadow.reveal(now, self.contents.add(prompt.extended(left)))
        self.tasks[launch.slot] = key
        reused = launch.reuse.likely
        self.evaluated += n - reused
        return Measured(n, reused, n - reused, len(left) + 1, launch.slot, float(n - reused))

    def view(self) -> tuple[SlotView, ...]:
        slots = enumerate(self.shadow.slots)
        n_ctx = self.shadow.rules.n_ctx
        return tuple(SlotView(n, False, one.held.length if one.held else 0, self.tasks[n], n_ctx) for n, one in slots)


class Proxy:
    """toki's engine before a server: requests, primers and looks; nothing is ever late."""

    def __init__(self, server: Server, told: Known, mode: Mode, ms_per_token: float) -> None:
        self.server = server
        self.engine = Engine(mode, 10)
        self.ms_per_token = ms_per_token
        self.now = 0.0
        self.actions: Counter[str] = Counter()
        rules = server.shadow.rules
        self.tell(Restarted(0.0, rules.n_slots, rules.n_ctx, told, server.view()))

    def serve(self, key: int, exchange: Exchange) -> None:
        ask = Ask(
            "/completion", tokens=exchange.prompt, children=exchange.request.n - 1, max_tokens=len(exchange.reply)
        )
        if ask.children:
            ask = replace(ask, fixed="it wants several answers")
        send = self.tell(Arrived(key, self.tick(), ask))
        assert send is not None
        self.actions[send.decision.action] += 1
        measured = self.served(self.server.serve(exchange, send.decision.id_slot))
        if exchange.request.abort_after is None:
            self.tell(Answered(key, self.tick(), 200, measured))
        else:
            self.tell(Gone(key, self.tick(), sent=True, shown=1))
            self.tell(Looked(self.tick(), self.now, self.server.view()))
        self.tell(Replied(key, self.tick(), exchange.left))

    def tell(self, event: object) -> Send | None:
        commands: list[Command] = self.engine.handle(event)  # type: ignore[arg-type]
        for command in commands:
            match command:
                case Look():
                    self.tell(Looked(self.tick(), self.now, self.server.view()))
                case Prime():
                    measured = self.served(self.server.prime(command.tokens, command.id_slot))
                    return self.tell(Primed(command.key, self.tick(), measured))
        return next((command for command in commands if isinstance(command, Send)), None)

    def served(self, measured: Measured) -> Measured:
        assert measured.evaluated is not None
        return replace(measured, prompt_ms=measured.evaluated * self.ms_per_token)

    def tick(self) -> float:
        self.now += 0.01
        return self.now


class Figures(NamedTuple):
    """Evaluated tokens of one run, and how often toki auto did what."""

    alone: int
    auto: int
    pin: int
    ahead: int
    endless: int
    actions: dict[str, int]


def simulate(flags: str, scenario: str, seed: int, ms_per_token: float = 1.0) -> Figures:
    """One seed of a scenario before servers with these flags."""
    played = exchanges(scenario, seed)
    rules, told = rules_of(flags)
    alone = Server(rules)
    for one in played:
        alone.serve(one)
    proxies = [Proxy(Server(rules), told, mode, ms_per_token) for mode in (Mode.AUTO, Mode.PIN)]
    for proxy in proxies:
        for key, one in enumerate(played):
            proxy.serve(key, one)
    auto, pin = proxies
    bound = endless((one.prompt.ids.tolist(), one.left.tolist()) for one in played)
    known_ahead = ahead(played, rules)
    return Figures(alone.evaluated, auto.server.evaluated, pin.server.evaluated, known_ahead, bound, dict(auto.actions))


def ahead(played: Sequence[Exchange], rules: Rules) -> int:
    """Evaluated tokens for someone who knows all requests in advance.

    Without a RAM cache this is exact, no policy on these slots does with less: each request goes on from what just one
    earlier one left in a slot, or from an empty slot, so the requests are shared out among at most `n_slots` chains at
    the least cost, an assignment problem. With a RAM cache it is what one gets who keeps, in a slot and a RAM cache of
    that size, each list of tokens to any length, and drops what is wanted last: good, but no proof that none is better.
    """
    contents = Contents()
    prompts = [contents.add(one.prompt) for one in played]
    left = [contents.add(one.prompt.extended(one.left)) for one in played]
    lengths = np.array([len(one.prompt) for one in played])
    # What each request (row) shares with what each one left (column).
    shared = np.stack([contents.row(place)[left] for place in prompts]).astype(np.int64)
    if rules.ram == 0:
        costs = np.maximum(lengths[:, None] - shared, 1)
        costs[np.triu_indices(len(played))] = NEVER  # one goes on from an earlier one only
        costs = np.hstack([costs, np.repeat(lengths[:, None], rules.n_slots, axis=1)])
        return int(costs[linear_sum_assignment(costs)].sum())
    kept: dict[int, int] = {}  # request -> tokens that are kept of what it left
    evaluated = 0
    for now, length in enumerate(lengths.tolist()):
        evaluated += max(1, length - max((min(int(shared[now, one]), n) for one, n in kept.items()), default=0))
        kept[now] = len(contents[left[now]])
        kept = _useful(kept, shared[now + 1 :])
        while (excess := sum(n for one, n in kept.items() if one != now) - rules.ram) > 0:
            last = max((one for one in kept if one != now), key=lambda one: _next_use(one, kept, shared[now + 1 :]))
            kept[last] = max(kept[last] - excess, 0)
            kept = _useful(kept, shared[now + 1 :])
    return evaluated


def _useful(kept: Mapping[int, int], shared: npt.NDArray[np.int64]) -> dict[int, int]:
    """What is left of what is kept without that which no later request shares, or another one contains."""
    found: dict[int, int] = {}
    for one, n in sorted(kept.items(), key=lambda item: -item[1]):
        most = min(n, int(shared[:, one].max(initial=0)))
        others = [np.minimum(shared[:, other], m) for other, m in found.items()]
        better = np.minimum(shared[:, one], most) > np.max(others, axis=0, initial=0)
        if better.any():
            found[one] = most
    return found


def _next_use(one: int, kept: Mapping[int, int], shared: npt.NDArray[np.int64]) -> int:
    """How many requests it takes until one is served best by what `one` left."""
    others = [np.minimum(shared[:, other], n) for other, n in kept.items() if other != one]
    better = np.minimum(shared[:, one], kept[one]) > np.max(others, axis=0, initial=0)
    return int(better.argmax()) if better.any() else len(better)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--flags", default=",".join(FLAGS), help='as bench.py names them; "default@3900": see rules_of')
    parser.add_argument("--scenarios", default=",".join(TRAFFIC), help="default: all")
    parser.add_argument("--seeds", default="1,2,3,4,5", help="default: 1,2,3,4,5")
    parser.add_argument("--ms-per-token", type=float, default=1.0, help="how slow the server is (default: 1)")
    parser.add_argument("--jobs", type=int, default=1, help="processes (default: 1)")
    options = parser.parse_args()
    seeds = [int(seed) for seed in options.seeds.split(",")]
    scenarios = options.scenarios.split(",")
    with ProcessPoolExecutor(options.jobs) as pool:
        for flags in options.flags.split(","):
            cases = [(flags, scenario, seed, options.ms_per_token) for scenario in scenarios for seed in seeds]
            found = list(pool.map(simulate, *zip(*cases, strict=True)))
            by_scenario = {name: found[n * len(seeds) : (n + 1) * len(seeds)] for n, name in enumerate(scenarios)}
            print("\n".join(table(flags, by_scenario)), flush=True)


def table(flags: str, by_scenario: Mapping[str, Sequence[Figures]]) -> Iterator[str]:
    """One line for each scenario, means over seeds, and the sums of all."""
    heads = "".join(f"{name:>9}" for name in Figures._fields[:5])
    yield f"\n== {flags}\n{'':22}{heads}  auto x alone: median, worst; steered"
    for scenario, found in by_scenario.items():
        means = "".join(f"{statistics.fmean(column):9,.0f}" for column in list(zip(*found, strict=True))[:5])
        ratios = [one.auto / one.alone for one in found]
        actions = sum((Counter(one.actions) for one in found), Counter[str]())
        told = " ".join(f"{name} {number / len(found):.0f}" for name, number in sorted(actions.items()))
        yield f"{scenario:22}{means}  {statistics.median(ratios):.3f} {max(ratios):.3f}; {told}"
    everything = [one for found in by_scenario.values() for one in found]
    sums = [sum(column) for column in list(zip(*everything, strict=True))[:5]]
    for name, one in (("x endless", sums[4]), ("x alone", sums[0])):
        yield f"{name:22}" + "".join(f"{value / one:9.3f}" for value in sums)


if __name__ == "__main__":
    main()
