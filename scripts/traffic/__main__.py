"""Prints what each scenario asks for, and the least that any cache could make of it: `python -m traffic --seed 1`."""

from __future__ import annotations

import argparse

from traffic import SCENARIOS
from traffic import WordTokenizer
from traffic import endless
from traffic import fake_reply
from traffic import ids
from traffic import sequential
from traffic.run import Run


def exchanges(run: Run) -> list[tuple[list[int], list[int]]]:
    """(prompt, reply) as token ids of a run, one request after another, with made-up answers."""
    tokenizer = WordTokenizer()
    pairs: list[tuple[list[int], list[int]]] = []
    play = sequential(run)
    request = next(play)
    while True:
        reply = fake_reply(request, request.max_tokens)
        pairs.append((ids(request, tokenizer), tokenizer.encode(reply)))
        try:
            request = play.send(reply)
        except StopIteration:
            return pairs


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m traffic", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--reply-tokens", type=int, default=8, help="length of an answer (default: 8)")
    parser.add_argument("--scale", type=float, default=1.0, help="factor on all sizes of text (default: 1)")
    parser.add_argument("scenarios", nargs="*", metavar="scenario", help=f"of {', '.join(SCENARIOS)} (default: all)")
    options = parser.parse_args()
    for name in options.scenarios:
        if name not in SCENARIOS:
            parser.error(f"no scenario {name!r}; there are {', '.join(SCENARIOS)}")
    print(f"{'scenario':<22}{'requests':>9}{'prompt tokens':>15}{'longest':>9}{'endless cache':>15}")
    for name in options.scenarios or SCENARIOS:
        run = SCENARIOS[name].start(options.seed, reply_tokens=options.reply_tokens, scale=options.scale)
        pairs = exchanges(run)
        lengths = [len(prompt) for prompt, _ in pairs]
        print(f"{name:<22}{len(pairs):>9,}{sum(lengths):>15,}{max(lengths):>9,}{endless(pairs):>15,}")


if __name__ == "__main__":
    main()
