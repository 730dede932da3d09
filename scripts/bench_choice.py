"""How long a decision takes with 64 slots of 64k tokens and 64 conversations.

Prints, for four sets of server flags, the time of the choice alone (options, cheapest and what the conversations that
may return would cost) and of the whole handling of an arrival, in time of this thread on the processor, so that a busy
machine does not blur it. Needs no server.
"""

from __future__ import annotations

import argparse
import contextlib
import time
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any
from unittest import mock

import numpy as np

import toki.engine.decider as decider
from toki.engine.core import Engine
from toki.engine.embedding import embed_prefix
from toki.engine.events import Answered
from toki.engine.events import Arrived
from toki.engine.events import Ask
from toki.engine.events import Command
from toki.engine.events import Decision
from toki.engine.events import Measured
from toki.engine.events import Mode
from toki.engine.events import Prime
from toki.engine.events import Primed
from toki.engine.events import Replied
from toki.engine.events import Restarted
from toki.engine.events import Send
from toki.engine.events import SlotView
from toki.engine.rules import Known
from toki.engine.tokens import Tokens

FLAGS = {
    "default": Known(unified=True, idle_save=True, sps=0.1),
    "-np 64": Known(unified=False, idle_save=True, sps=0.1),
    "-np 64 -kvu --no-cache-idle-slots": Known(unified=True, idle_save=False, sps=0.1),
    "-np 64 -kvu --no-cache-idle-slots -cram 0": Known(unified=True, idle_save=False, ram=0, sps=0.1),
}
PREAMBLE = 2000  # tokens that all conversations share
REPLY = 100
TURN = 50  # tokens that a user adds
WARM_TURNS = 2  # of each conversation, before the clock counts


class Stopwatch:
    """Adds up the time that some functions take."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            start = time.thread_time()
            try:
                return function(*args, **kwargs)
            finally:
                self.seconds += time.thread_time() - start

        return timed


def release(engine: Engine, event: Arrived, commands: Sequence[Command]) -> Decision:
    """The decision for a request; primers that it asks for are answered at once."""
    while True:
        for command in commands:
            if isinstance(command, Send):
                return command.decision
        prime = next(command for command in commands if isinstance(command, Prime))
        n = len(prime.tokens)
        commands = engine.handle(Primed(event.key, event.at, Measured(n, n - 1, 1, 1)))


def run(known: Known, n_slots: int, length: int, turns: int, owners: int = 0) -> tuple[list[float], list[float]]:
    """Milliseconds of the choice and of the whole decision, for each request after the warm ones."""
    rng = np.random.default_rng(1)
    n_ctx = 1 << 23
    engine = Engine(Mode.AUTO, 10)
    engine.handle(
        Restarted(0.0, n_slots, n_ctx, known, tuple(SlotView(n, False, 0, -1, n_ctx) for n in range(n_slots)))
    )
    preamble = rng.integers(0, 30000, PREAMBLE)
    chats = [Tokens.of(np.concatenate([preamble, rng.integers(0, 30000, length - PREAMBLE)])) for _ in range(n_slots)]
    choices: list[float] = []
    wholes: list[float] = []
    key = 0
    for turn in range(WARM_TURNS + turns):
        for n, prompt in enumerate(chats):
            key += 1
            owner = str(n % owners) if owners else ""
            event = Arrived(key, key, Ask("/completion", tokens=prompt, vector=embed_prefix(prompt), owner=owner))
            choice, whole = Stopwatch(), Stopwatch()
            with contextlib.ExitStack() as patches:
                for name in ("options", "cheapest", "Returns"):
                    timed = choice.around(getattr(decider, name))
                    patches.enter_context(mock.patch.object(decider, name, timed))
                commands = whole.around(engine.handle)(event)
            if turn >= WARM_TURNS:
                choices.append(1000 * choice.seconds)
                wholes.append(1000 * whole.seconds)
            decision = release(engine, event, commands)
            reused = decision.predicted.likely if decision.predicted else 0
            measured = Measured(len(prompt), reused, len(prompt) - reused, REPLY, None, 100.0)
            engine.handle(Answered(key, key + 0.5, 200, measured))
            reply = rng.integers(0, 30000, REPLY - 1)
            engine.handle(Replied(key, key + 0.6, reply.astype(np.int32)))
            chats[n] = prompt.extended(np.concatenate([reply, rng.integers(0, 30000, TURN)]))
    return choices, wholes


def summary(values: Sequence[float]) -> str:
    p50, p95 = np.percentile(values, [50, 95])
    return f"{p50:7.2f} {p95:7.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--slots", type=int, default=64, help="slots, and conversations (default 64)")
    parser.add_argument("--tokens", type=int, default=64000, help="tokens of each conversation (default 64000)")
    parser.add_argument("--turns", type=int, default=2, help="timed turns of each conversation (default 2)")
    parser.add_argument("--owners", type=int, default=0, help="owners that are kept apart (default 0: none are)")
    args = parser.parse_args()
    print(f"{args.slots} slots, {args.slots} conversations of {args.tokens:,} tokens; milliseconds")
    print(f"{'flags':44}{'choice p50     p95':>20}{'whole p50     p95':>22}")
    for name, known in FLAGS.items():
        choices, wholes = run(known, args.slots, args.tokens, args.turns, args.owners)
        print(f"{name:44}{summary(choices):>20}{summary(wholes):>22}", flush=True)


if __name__ == "__main__":
    main()
