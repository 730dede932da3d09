"""Prints what each scenario asks for, and the least that any cache could make of it: `python -m traffic --seed 1`.

One request after another, with made-up answers of full length; clients that would hang up are taken to stay.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from traffic import SCENARIOS
from traffic import WordTokenizer
from traffic import endless
from traffic import fake_reply
from traffic import ids
from traffic.run import Run


def exchanges(run: Run) -> list[tuple[list[int], list[int]]]:
    """(prompt, reply) as token ids of a run, one request after another, with made-up answers."""
    tokenizer = WordTokenizer()
    pairs: list[tuple[list[int], list[int]]] = []
    while (request := run.take()) is not None:
        reply = fake_reply(request, request.max_tokens)
        pairs.append((ids(request, tokenizer), tokenizer.encode(reply)))
        run.answer(request.session, reply)
    return pairs


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m traffic", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--reply-tokens", type=int, default=8, help="length of an answer (default: 8)")
    parser.add_argument("--scale", type=float, default=1.0, help="factor on all sizes of text (default: 1)")
    parser.add_argument("scenarios", nargs="*", metavar="scenario", help=f"of {', '.join(SCENARIOS)} (default: all)")
    options = parser.parse_args(arguments)
    for name in options.scenarios:
        if name not in SCENARIOS:
            parser.error(f"no scenario {name!r}; there are {', '.join(SCENARIOS)}")
    print(f"{'scenario':<22}{'requests':>9}{'prompt tokens':>15}{'longest':>9}{'endless cache':>15}  what it is")
    for name in options.scenarios or SCENARIOS:
        scenario = SCENARIOS[name]
        run = scenario.start(options.seed, reply_tokens=options.reply_tokens, scale=options.scale)
        pairs = exchanges(run)
        lengths = [len(prompt) for prompt, _ in pairs]
        figures = f"{len(pairs):>9,}{sum(lengths):>15,}{max(lengths):>9,}{endless(pairs):>15,}"
        print(f"{name:<22}{figures}  {scenario.summary}")


if __name__ == "__main__":
    main()
