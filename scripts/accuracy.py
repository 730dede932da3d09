"""Are toki's predictions those of the real servers? Random traffic through toki, each prediction judged by the answer.

    make accuracy [SEED=n]

One line per case: how many requests told their reuse; the share whose reuse lies in the predicted range with that range
at most a reply wide ("held"); the share whose likely value is off by at most 2 % and 5 % of the prompt; the mean width
of the range; after how many requests the rules were found for good, where that is later also after how many no others
had been more right ("none better"); and "naive", the share within 2 % for the belief that a request reuses its longest
common prefix with what ran last on any slot. In turn means that the server is done with one request before the next one
is sent, also where a client hung up. With several requests at once, those that may have been launched before or after
the end of another one are judged apart: there no order can be known. Below stands each miss, with what explains it.

Exit status: 0 all thresholds held, 1 not all, 2 could not run.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import urlsplit

from judge import Verdict
from judge import verdicts
from play import PATHS
from play import Wanted
from play import play
from play import until_idle
from proxy import mitmdump
from proxy import rows_of
from servers import BUILDS
from servers import Build
from servers import Flags
from servers import gemma3
from servers import smollm2
from servers import start
from servers import tiny_model
from toki.engine.events import Action
from toki.engine.rules import UNLIMITED
from toki.engine.rules import Rules
from toki.facts import CACHE_RAM
from toki.gguf import entry_size
from toki.gguf import read_header
from traffic import SCENARIOS

REPLY = 8  # tokens of an answer
RECENT = 10  # requests after which what one of them did may still show
ALL = 0.995  # of the requests in turn of all cases of a model with full attention
FEWER = 200  # requests of a quick case
FEW = 20  # requests from which on a share says something
AFTER_RESTART = 3  # wrong predictions that a server with other flags may cost
MODELS: dict[str, Callable[[], Path]] = {"tiny": tiny_model, "SmolLM2": smollm2, "Gemma 3": gemma3}
SCALES = {"tiny": 0.3, "SmolLM2": 0.06, "Gemma 3": 0.06}  # of the sizes of texts: what a CPU can play in minutes
FILLING = {"-cram 3": 0.9, "-cram 6": 0.9}  # what fills these RAM caches with the tiny model
SURPRISES = 10  # after which the size of the RAM cache is to be known
SIZED = 0.15  # of it: how well

FLAGS: dict[str, Flags] = {
    "default": Flags(),
    "-np 4": Flags(n_parallel=4),
    "-np 4 -cram 0": Flags(n_parallel=4, cache_ram_mib=0),
    "-np 16 -kvu --no-cache-idle-slots": Flags(n_parallel=16, kv_unified=True, cache_idle_slots=False),
    "-np 16 -kvu --no-cache-idle-slots -cram 0": Flags(
        n_parallel=16, kv_unified=True, cache_idle_slots=False, cache_ram_mib=0
    ),
    "-np 1": Flags(n_parallel=1),
    "-sps 0": Flags(slot_prompt_similarity=0.0),
    "-cram 1": Flags(cache_ram_mib=1),
    "-cram 3": Flags(cache_ram_mib=3),
    "-cram 6": Flags(cache_ram_mib=6),
}


@dataclass(frozen=True, slots=True)
class Case:
    """One server, fresh, with toki before it, and what is sent."""

    model: str
    flags: str
    build: Build = "skulk"
    mode: str = "observe"
    at_a_time: int = 1
    scenarios: tuple[str, ...] = ("mixed",)
    form: Wanted = "natural"  # the API shape
    then: str = ""  # the flags of a second server that takes the first one's place, and is the one that is judged
    most: int | None = None  # requests to each server; None: all that there are

    def __str__(self) -> str:
        how = "in turn" if self.at_a_time == 1 else f"{self.at_a_time} at once"
        flags = f"{self.flags}, then {self.then}" if self.then else self.flags
        what = " ".join([*self.scenarios, *([] if self.form == "natural" else [f"as {self.form}"])])
        return f"{self.model:8} {self.build:10} {flags:42} {self.mode:8} {how:9} {what}"

    @property
    def scale(self) -> float:
        """Of the sizes of texts."""
        return FILLING.get(self.flags, SCALES[self.model])

    @property
    def file(self) -> str:
        """A name for the file of its events."""
        return "_".join(str(self).split())


@dataclass(frozen=True, slots=True)
class Result:
    case: Case
    verdicts: tuple[Verdict, ...]
    faults: tuple[str, ...]  # of the engine, or rows that are missing
    seconds: float

    @property
    def clear(self) -> list[Verdict]:
        """Those for whose order there is evidence."""
        return [one for one in self.verdicts if self.case.at_a_time == 1 or not one.overlaps]

    @property
    def apart(self) -> list[Verdict]:
        """The others, where several requests are under way at once."""
        return [one for one in self.verdicts if self.case.at_a_time > 1 and one.overlaps]

    def in_turn(self, model: str) -> bool:
        """Whether its requests count among those that were sent to `model` one after another."""
        return self.case.model == model and self.case.at_a_time == 1 and not self.case.then

    @property
    def score(self) -> float:
        """The share that the threshold is about."""
        if self.case.model == "Gemma 3":
            return share(one.within(0.05) for one in self.clear)
        if self.case.at_a_time > 1:
            return share(one.within(0.02) for one in self.clear)
        return share(map(held, self.clear))

    @property
    def threshold(self) -> float:
        if self.case.model == "Gemma 3":
            return 0.85
        return 0.95 if self.case.at_a_time > 1 else 0.985  # of one case; ALL is for all of them

    @property
    def passed(self) -> bool:
        if self.faults or not self.verdicts or not self.sized:
            return False
        if self.case.then:
            return len(self.wrong) <= AFTER_RESTART
        if self.case.at_a_time > 1 and len(self.clear) < FEW:
            return True
        return self.score >= self.threshold

    @property
    def wrong(self) -> list[Verdict]:
        """Each of which something else was said than came true; a wide range says little, but nothing wrong."""
        return [one for one in self.clear if one.predicted is not None and not one.inside and not one.within(0.02)]

    @property
    def misses(self) -> list[Verdict]:
        """Each that does not count as right by the case's own threshold."""
        if self.case.model == "Gemma 3":
            return [one for one in self.clear if not one.within(0.05)]
        if self.case.at_a_time > 1:
            return [one for one in self.clear if not one.within(0.02)]
        if self.case.then:
            return self.wrong
        return [one for one in self.clear if not held(one)]

    @property
    def surprises(self) -> int:
        """How often another size of the RAM cache was concluded from what came back or did not."""
        sizes = [one.rules.ram for one in self.verdicts if one.rules is not None and one.rules.ram]
        return sum(before != after for before, after in pairwise(sizes))

    @property
    def sized(self) -> bool:
        """Whether the size of the RAM cache is known as well as it is to be after so many surprises."""
        rules, whole = self.verdicts[-1].rules, room(self.case)
        return self.surprises < SURPRISES or (rules is not None and abs(rules.ram - whole) <= SIZED * whole)

    @property
    def found_after(self) -> int | None:
        """After how many requests the leading rules were the server's own for good; None: never."""
        return self._right_after([() if one.rules is None else (one.rules,) for one in self.verdicts])

    @property
    def level_after(self) -> int | None:
        """After how many requests, for good, nothing that was measured spoke more for other rules; None: never."""
        return self._right_after([one.rivals for one in self.verdicts])

    def _right_after(self, best: list[tuple[Rules, ...]]) -> int | None:
        """`best`: for each verdict the rules that count as the best."""
        flags = FLAGS[self.case.then or self.case.flags]
        right = [any(same_rules(rules, flags) for rules in some) for some in best]
        if not right or not right[-1]:
            return None
        return max((place + 1 for place, ok in enumerate(right) if not ok), default=0)


def held(one: Verdict) -> bool:
    return one.inside and one.width <= (one.reply or REPLY)


def share(of: Iterable[bool]) -> float:
    """The share of True; 1 where there is nothing."""
    values = list(of)
    return sum(values) / len(values) if values else 1.0


def same_rules(rules: Rules, flags: Flags) -> bool:
    """Whether the rules are what the flags say, as far as that can make a difference."""
    several = flags.n_parallel != 1
    ram = flags.cache_ram_mib != 0
    unified = flags.n_parallel is None if flags.kv_unified is None else flags.kv_unified
    saves = flags.cache_idle_slots is not False
    sps = 0.1 if flags.slot_prompt_similarity is None else flags.slot_prompt_similarity
    return (
        (rules.ram > 0) == ram
        and (not several or not ram or rules.unified == unified)  # where nothing is saved, none is cleared
        and (not several or not ram or rules.idle_save == saves)
        and rules.sps == sps
    )


def run(seed: int, directory: Path, case: Case) -> Result:
    """Play a case on a server of its own and judge it; its event log stays in `directory`."""
    began = time.monotonic()
    events = directory / case.file
    events.unlink(missing_ok=True)
    options = {"toki_mode": case.mode, "toki_deadline_ms": "10000", "toki_log_events": str(events.resolve())}
    model = MODELS[case.model]()
    sent = 0
    with ExitStack() as stack:
        server = stack.enter_context(start(model, FLAGS[case.flags], case.build))
        toki = stack.enter_context(mitmdump(server.url, options=options))
        for number, flags in enumerate(filter(None, (case.flags, case.then))):
            if number:
                first_of_second(directory, case).write_text(str(sent + 1), encoding="ascii")
                server.kill()
                port = urlsplit(server.url).port
                server = stack.enter_context(start(model, FLAGS[flags], case.build, port))
            for scenario in case.scenarios:
                traffic = SCENARIOS[scenario].start(seed + number, reply_tokens=REPLY, scale=case.scale)
                told = (lambda _, url=server.url: until_idle(url)) if case.at_a_time == 1 else None
                sent += len(play(traffic, toki.url, case.form, at_a_time=case.at_a_time, most=case.most, told=told))
        try:
            rows_of(toki.db, sent)
            missing = ""
        except TimeoutError as error:
            missing = str(error)
    result = judged(directory, case, time.monotonic() - began)
    return replace(result, faults=(*result.faults, missing)) if missing else result


def judged(directory: Path, case: Case, seconds: float = 0.0) -> Result:
    """Judge the event log of a case; of two servers the second one."""
    found, faults = verdicts(directory / case.file)
    first = int(first_of_second(directory, case).read_text("ascii")) if case.then else 0
    return Result(case, tuple(one for one in found if one.key >= first), tuple(faults), seconds)


def first_of_second(directory: Path, case: Case) -> Path:
    """The file that says with which request the second server's begin."""
    return directory / f"{case.file}.second"


def cases(quick: bool) -> list[Case]:
    """All, or those that fit into a minute or so."""
    if quick:
        return [
            Case("tiny", "default", "xllamacpp", most=FEWER),
            Case("tiny", "-np 4", most=FEWER),
            Case("tiny", "-np 4 -cram 0", at_a_time=4, most=FEWER),
            Case("tiny", "default", mode="auto", form="messages", most=FEWER),
            Case("tiny", "-cram 1", "xllamacpp", most=FEWER),
            Case("tiny", "default", then="-np 4 -cram 0", most=FEWER // 2),
        ]
    classic = ("shared-preamble", "big-with-sides", "parent-and-subagents", "same-document")
    kept = "-np 16 -kvu --no-cache-idle-slots"
    main = ("default", "-np 4", "-np 4 -cram 0", kept, f"{kept} -cram 0")
    return [
        *(Case("SmolLM2", "default", build) for build in BUILDS),
        Case("SmolLM2", "-np 4", at_a_time=4),
        Case("Gemma 3", "default"),
        *(Case("tiny", flags, build) for flags in FLAGS for build in BUILDS),
        *(Case("tiny", flags, at_a_time=4) for flags in main),
        *(Case("tiny", flags, scenarios=classic) for flags in ("default", "-np 4", kept)),
        *(Case("tiny", flags, mode="auto") for flags in (*main, "-cram 3")),
        *(Case("tiny", "default", build, form=form) for form in PATHS for build in BUILDS),
        *(Case("tiny", "-np 4", mode="auto", form=form) for form in PATHS),
        *(Case("tiny", "default", "xllamacpp", "auto", form=form) for form in PATHS),
        Case("tiny", "default", then="-np 4 -cram 0"),
        Case("tiny", "-np 4", then="default"),
        Case("tiny", "default", "xllamacpp", then="-np 4 -cram 0"),
    ]


def lines(result: Result) -> Iterator[str]:
    """The case's line and its misses."""
    clear = result.clear
    widths = [one.width for one in clear if one.predicted is not None]
    yield (
        f"{'ok  ' if result.passed else 'FAIL'} {result.case!s:85} n={len(clear):4}"
        f" held {share(map(held, clear)):6.1%} inside {share(one.inside for one in clear):6.1%}"
        f" within 2 % {share(one.within(0.02) for one in clear):6.1%}"
        f" 5 % {share(one.within(0.05) for one in clear):6.1%}"
        f" width {sum(widths) / max(1, len(widths)):5.1f} rules {rules_found(result)}"
        f" naive {share(one.naive_within(0.02) for one in clear):6.1%} {result.seconds:4.0f} s"
    )
    if result.apart:
        yield (
            f"       launches that may overlap a finish: n={len(result.apart)},"
            f" within 2 % {share(one.within(0.02) for one in result.apart):.1%}"
            f" naive {share(one.naive_within(0.02) for one in result.apart):.1%}"
        )
    rules = result.verdicts[-1].rules if result.verdicts else None
    if rules is not None and 0 < rules.ram < UNLIMITED:
        yield (
            f"       RAM cache taken for {rules.ram:,} tokens after {result.surprises} surprises;"
            f" by its flags it holds {room(result.case):,}"
        )
    yield from (f"       fault: {fault}" for fault in result.faults)
    yield from (f"       {told(one)}: {why(one, result)}" for one in result.misses)


def rules_found(result: Result) -> str:
    """After how many requests the rules were found, and since when none had been more right than the server's own."""
    found, level = result.found_after, result.level_after
    told = "not found" if found is None else f"after {found}"
    return told if level in (None, found) else f"{told}, none better after {level}"


def room(case: Case) -> int:
    """Tokens of one entry that would fill the server's RAM cache."""
    mib = FLAGS[case.then or case.flags].cache_ram_mib
    size = entry_size(read_header(MODELS[case.model]()), "f16", "f16", 1)
    assert size is not None
    return (CACHE_RAM if mib is None else mib) * 2**20 // size.token


def why(miss: Verdict, result: Result) -> str:
    """What explains a miss; "unexplained" where nothing is known to."""
    flags = FLAGS[result.case.then or result.case.flags]
    keys = [one.key for one in result.misses if one.key < miss.key]
    place = result.verdicts.index(miss)
    led = [one.rules for one in result.verdicts[max(place - 1, 0) : place + 1]]  # before its figures and behind them
    causes = {
        "its prompt was not read, or its client left while it tried a lever": miss.predicted is None,
        "the rules were not found yet": any(rules is not None and not same_rules(rules, flags) for rules in led),
        "the size of its RAM cache was not known yet": (
            miss.rules is not None and 0 < miss.rules.ram < UNLIMITED and miss.rules.ram != room(result.case)
        ),
        "the server was just met": miss.server == 0 or (miss.server > 1 and miss.since_met <= RECENT),
        f"{miss.since_left} after a client left, of which it is not seen when the server noticed": (
            miss.since_left in range(1, RECENT)
        ),
        "of what a client left of much the same prompt it is not seen how much that is": (
            miss.left > 0 and min(abs(miss.low - miss.left), abs(miss.reused - miss.left)) <= REPLY
        ),
        f"{miss.since_copies} after n > 1, whose copies are not told": miss.since_copies in range(1, RECENT),
        "an earlier miss was not seen through yet": bool(keys) and miss.key - keys[-1] < RECENT,
        "the reply's tokens are a guess": miss.inside or abs(miss.likely - miss.reused) <= REPLY,
        "checkpoints are not shown": result.case.model == "Gemma 3",
    }
    return next((cause for cause, holds in causes.items() if holds), "unexplained")


def told(miss: Verdict) -> str:
    """A miss in words."""
    span = miss.predicted
    said = "nothing" if span is None else f"{span.likely} ({span.low} to {span.high})"
    what = f"#{miss.key}: predicted {said}, measured {miss.reused} of {miss.prompt}, slot {miss.slot}"
    return what if miss.action is Action.PASSED else f"{what}, {miss.action}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1, help="of the traffic (default: 1)")
    parser.add_argument("--quick", action="store_true", help="a few cases, for CI")
    parser.add_argument("--only", default="", metavar="TEXT", help="only cases whose line contains this")
    parser.add_argument("--jobs", type=int, default=2, help="cases at a time (default: 2)")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="leave the event logs there")
    parser.add_argument("--again", type=Path, metavar="DIR", help="no servers: judge the logs that --keep left there")
    options = parser.parse_args()
    chosen = [case for case in cases(options.quick) if options.only in str(case)]
    if not chosen:
        parser.error(f"no case contains {options.only!r}")
    began = time.monotonic()
    results: list[Result] = []
    try:
        with ExitStack() as stack:
            directory = options.keep or Path(stack.enter_context(TemporaryDirectory(prefix="toki-accuracy-")))
            directory.mkdir(parents=True, exist_ok=True)
            pool = stack.enter_context(ThreadPoolExecutor(options.jobs))
            work = partial(judged, options.again) if options.again else partial(run, options.seed, directory)
            for result in pool.map(work, chosen):
                results.append(result)
                print("\n".join(lines(result)), flush=True)
    except (OSError, RuntimeError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    bad = [result for result in results if not result.passed]
    short = False
    for model in ("tiny", "SmolLM2"):
        in_turn = [one for result in results if result.in_turn(model) for one in result.clear]
        if in_turn:
            shown = share(map(held, in_turn))
            short = short or shown < ALL
            print(
                f"{'ok  ' if shown >= ALL else 'FAIL'} {model} in turn: n={len(in_turn):,} held {shown:.2%},"
                f" at least {ALL:.1%} wanted; naive within 2 % {share(one.naive_within(0.02) for one in in_turn):.1%}"
            )
    unexplained = [one for result in results for one in result.misses if why(one, result) == "unexplained"]
    print(
        f"{len(results) - len(bad)} of {len(results)} cases hold their threshold;"
        f" {sum(len(result.verdicts) for result in results):,} requests, {len(unexplained)} misses unexplained,"
        f" seed {options.seed},"
        f" {time.monotonic() - began:.0f} s"
    )
    return 1 if bad or short else 0


if __name__ == "__main__":
    sys.exit(main())
