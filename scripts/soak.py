"""Many requests through one mitmdump with toki, for long: does anything grow, fail or slow down? `make soak`

1. 64 clients (or as many as asked for) keep streaming from a real llama-server. A stamp between mitmdump and the
   server notes when each event passes, so that the time to the client is what mitmdump with toki adds to a chunk. The
   same for a tenth of the time through mitmdump without toki, to compare.
2. The clients go on with short requests on kept connections, 50,000 of them: does memory grow?
3. mitmweb lists the flows of a fiftieth as many requests with large bodies: does that stay bounded?

Meanwhile the proxy's memory, threads, open files, tasks and flows and the database's WAL are looked at once a second.
Prints the figures and whether each check holds; exit status 0 if all do. `--output` keeps them as JSON, with a plot.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import random
import re
import sqlite3
import statistics
import sys
import time
from collections.abc import AsyncIterator
from collections.abc import Callable
from collections.abc import Coroutine
from collections.abc import Iterator
from collections.abc import Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from dataclasses import field
from operator import attrgetter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from benchmark.machine import session
from proxy import ADDON
from proxy import Proxy
from proxy import mitmdump
from servers import HOST
from servers import Flags
from servers import free_port
from servers import start
from servers import tiny_model
from traffic.words import Writer

NUMBER = re.compile(rb'"request (\d+)\.')
LENGTH = re.compile(rb"(?i)\r\ncontent-length: *(\d+)")
CLOSE = re.compile(rb"(?i)\r\nconnection: *close")
EVENT = b"\n\n"
TURNS = 12  # of a conversation, before its client begins another
REPLY = 16  # tokens
LARGE = 2**17  # bytes of a body in mitmweb
AT_REST = 32  # tasks of a proxy with nothing to do
BATCH = 5_000  # short requests between two rests, in which objects are counted
SETTLES = 30.0  # seconds at most for the last rows, and for connections that are being closed
STREAMS_FOR = 600.0  # seconds
LONG_RUN = 50_000  # requests from which on memory is judged
MOST_BYTES = 512  # that each may add: the C library's arenas and SQLite's pages fill for long; a flow is more
PROBE = Path(__file__).with_name("soak_probe.py")

Spread = dict[str, float]


@dataclass
class Seen:
    """What happened so far. Times are of the monotonic clock."""

    passed: dict[int, list[float]] = field(default_factory=dict)  # by request: when each event left the server
    came: list[float] = field(default_factory=list)  # when each came to the client
    added: list[float] = field(default_factory=list)  # seconds from the one to the other
    done: int = 0
    errors: list[str] = field(default_factory=list)

    def spread(self) -> Spread:
        """Percentiles of what was added, ms."""
        cuts = statistics.quantiles([1000 * each for each in self.added], n=100)
        return {"p50": cuts[49], "p90": cuts[89], "p99": cuts[98]}


@dataclass(frozen=True, slots=True)
class Sample:
    """The proxy at one time, after so many requests."""

    seconds: float
    requests: int
    rss: int  # bytes
    threads: int
    files: int  # open file descriptors, sockets among them
    wal: int  # bytes
    tasks: int  # of the proxy's event loop
    flows: int  # that are alive in the proxy
    objects: int | None  # of Python in the proxy that came after its start; None: it is not at rest


@dataclass
class Result:
    """What one run saw."""

    clients: int
    began: float
    plain: Seen = field(default_factory=Seen)
    seen: Seen = field(default_factory=Seen)
    web: Seen = field(default_factory=Seen)
    streamed: int = 0  # requests of the first part
    samples: list[Sample] = field(default_factory=list)
    listing: list[Sample] = field(default_factory=list)  # of mitmweb
    rows: int = 0


@asynccontextmanager
async def stamp(server: str, result: Result) -> AsyncIterator[tuple[str, Callable[[Seen], None]]]:
    """A URL in front of `server` that notes when the events of its streams pass; and how to say where to note it."""
    target = urlsplit(server)
    seen = result.seen

    def note(to: Seen) -> None:
        nonlocal seen
        seen = to

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        times: list[float] = []

        async def up(near: asyncio.StreamReader, far: asyncio.StreamWriter) -> None:
            nonlocal times
            while data := await near.read(2**16):
                if number := NUMBER.search(data):
                    times = seen.passed[int(number[1])] = []
                far.write(data)
                await far.drain()

        async def down(far: asyncio.StreamReader, near: asyncio.StreamWriter) -> None:
            while data := await far.read(2**16):
                times.extend([time.monotonic()] * data.count(EVENT))
                near.write(data)
                await near.drain()

        there, back = await asyncio.open_connection(target.hostname, target.port)
        tasks = [asyncio.create_task(up(reader, back)), asyncio.create_task(down(there, writer))]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for end in (writer, back):
                end.close()

    listener = await asyncio.start_server(accept, HOST, 0)
    async with listener:
        yield f"http://{HOST}:{listener.sockets[0].getsockname()[1]}", note


class Agents:
    """One agent after another, each a conversation behind one of a few preambles that grows turn by turn."""

    def __init__(self, name: int) -> None:
        self._name = name
        self._rng = random.Random(name)
        self._turns = 0
        self.reply = ""  # to the last prompt

    def prompt(self) -> str:
        """The next one, behind the reply to the last."""
        life, turn = divmod(self._turns, TURNS)
        if turn == 0:
            self._write = Writer(life, f"client {self._name}", 1.0)
            self._said = Writer(self._rng.randrange(4), "preamble", 1.0).prose(150, 150)
            self.reply = ""
        self._turns += 1
        self._said += self.reply + self._write.prose(10, 30)
        return self._said


async def streams(name: int, proxy: Proxy, seen: Seen, numbers: Iterator[int], until: float) -> None:
    """A client that streams, each time on a new connection."""
    agents = Agents(name)
    while time.monotonic() < until:
        number = next(numbers)
        try:
            agents.reply = await stream(proxy, number, agents.prompt(), seen)
        except (OSError, EOFError, ValueError) as error:
            seen.errors.append(f"request {number}: {error!r}")
        seen.done += 1


async def stream(proxy: Proxy, number: int, prompt: str, seen: Seen) -> str:
    """The reply. Raises ValueError where the answer is not what a direct call would give."""
    body = {"user": f"request {number}.", "prompt": prompt, "n_predict": REPLY, "stream": True, "ignore_eos": True}
    reader, writer = await connected(proxy)
    try:
        send(writer, body)
        answer = await reader.readuntil(b"\r\n\r\n")
        if not answer.startswith(b"HTTP/1.1 200"):
            raise ValueError(answer[:80])
        times: list[float] = []
        whole = b""
        while size := int(await reader.readline(), 16):
            piece = await reader.readexactly(size)
            await reader.readexactly(2)
            times += [time.monotonic()] * piece.count(EVENT)
            whole += piece
    finally:
        writer.close()
    events = [json.loads(line[6:]) for line in whole.decode().split("\n\n") if line]
    passed = seen.passed.pop(number)
    if not events[-1]["stop"] or len(passed) != len(times):
        raise ValueError(f"{len(passed)} events left the server and {len(times)} came; the last: {events[-1]}")
    seen.came += times
    seen.added += [came - left for left, came in zip(passed, times, strict=True)]
    return "".join(event["content"] for event in events)


async def short(agents: Agents, proxy: Proxy, seen: Seen, numbers: Iterator[int], note: str = "") -> None:
    """A client with short requests, `note` in each of them, on one connection."""
    reader, writer = await connected(proxy)
    for number in numbers:
        sent = {"prompt": agents.prompt(), "n_predict": 1, "ignore_eos": True, **({"note": note} if note else {})}
        try:
            send(writer, sent)
            head = await reader.readuntil(b"\r\n\r\n")
            length = LENGTH.search(head)
            if not head.startswith(b"HTTP/1.1 200") or length is None:
                raise ValueError(head + await reader.read(2**12))
            agents.reply = json.loads(await reader.readexactly(int(length[1])))["content"]
            if CLOSE.search(head):  # llama-server takes 100 requests on a connection
                writer.close()
                reader, writer = await connected(proxy)
        except (OSError, EOFError, ValueError) as error:
            seen.errors.append(f"short request {number}: {error!r}")
            writer.close()
            reader, writer = await connected(proxy)
        seen.done += 1
    writer.close()


async def connected(proxy: Proxy) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    target = urlsplit(proxy.url)
    return await asyncio.open_connection(target.hostname, target.port)


def send(writer: asyncio.StreamWriter, body: dict[str, Any]) -> None:
    content = json.dumps(body).encode()
    head = f"POST /completion HTTP/1.1\r\nHost: {HOST}\r\nContent-Length: {len(content)}\r\n\r\n"
    writer.write(head.encode() + content)


def sample(proxy: Proxy, seen: Seen, probe: Path, began: float) -> Sample:
    status = Path(f"/proc/{proxy.pid}/status").read_text(encoding="utf-8")
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    wal = proxy.db.with_name(f"{proxy.db.name}-wal")
    inside: dict[str, Any] = json.loads(probe.read_text(encoding="utf-8")) if probe.exists() else {}
    return Sample(
        seconds=time.monotonic() - began,
        requests=seen.done,
        rss=int(fields["VmRSS"].split()[0]) * 1024,
        threads=int(fields["Threads"]),
        files=len(list(Path(f"/proc/{proxy.pid}/fd").iterdir())),
        wal=wal.stat().st_size if wal.exists() else 0,
        tasks=inside.get("tasks", 0),
        flows=inside.get("flows", 0),
        objects=inside.get("objects"),
    )


async def all_of(
    clients: Sequence[Coroutine[Any, Any, None]], look: Callable[[], Sample], samples: list[Sample], title: str
) -> None:
    """Run the clients to their end, with a sample each second."""
    running = [asyncio.create_task(each) for each in clients]
    while not all(task.done() for task in running):
        await asyncio.wait(running, timeout=1.0)
        samples.append(look())
        say(f"\r{title}: {samples[-1].requests:,} requests, {samples[-1].rss / 2**20:.0f} MiB  ")
    await asyncio.gather(*running)
    say("\n")


async def at_rest(look: Callable[[], Sample], samples: list[Sample]) -> None:
    """Wait until the proxy has nothing to do and its objects are counted; that sample is kept."""
    until = time.monotonic() + SETTLES
    samples.append(look())
    while samples[-1].objects is None and time.monotonic() < until:
        await asyncio.sleep(1.0)
        samples.append(look())


async def soak(clients: int, seconds: float, requests: int) -> Result:
    """All three parts."""
    result = Result(clients, time.monotonic())
    with TemporaryDirectory(prefix="toki-soak-") as name, contextlib.ExitStack() as stack:
        # 110,000 tokens in RAM, as much as a real model's 8 GiB hold; the tiny model's would never be full.
        server = stack.enter_context(start(tiny_model(), Flags(n_parallel=16, n_ctx=131072, cache_ram_mib=8)))
        async with stamp(server.url, result) as (url, note):
            note(result.plain)
            with contextlib.ExitStack() as inner:
                proxy = await asyncio.to_thread(inner.enter_context, mitmdump(url, script=None))
                until, numbers = time.monotonic() + max(2.0, seconds / 10), itertools.count()
                callers = [streams(each, proxy, result.plain, numbers, until) for each in range(clients)]
                look = looking(proxy, result.plain, Path(name) / "none", result)
                await all_of(callers, look, [], "without toki")
                await asyncio.to_thread(inner.close)  # while the stamp still passes what is left
            note(result.seen)
            with contextlib.ExitStack() as inner:
                probe = Path(name) / "probe.json"
                there = mitmdump(url, beside=[PROBE], options={"soak_probe": str(probe)})
                proxy = await asyncio.to_thread(inner.enter_context, there)
                look = looking(proxy, result.seen, probe, result)
                until, numbers = time.monotonic() + seconds, itertools.count()
                callers = [streams(each, proxy, result.seen, numbers, until) for each in range(clients)]
                await all_of(callers, look, result.samples, "streams")
                result.streamed = result.seen.done
                await at_rest(look, result.samples)
                agents = [Agents(each) for each in range(clients)]
                for begun in range(0, requests, BATCH):
                    left = iter(range(begun, min(begun + BATCH, requests)))
                    callers = [short(each, proxy, result.seen, left) for each in agents]
                    await all_of(callers, look, result.samples, "short requests")
                    await at_rest(look, result.samples)
                settled = time.monotonic() + SETTLES
                while time.monotonic() < settled and (result.rows < result.seen.done or look().tasks > AT_REST):
                    await asyncio.sleep(0.5)
                    with contextlib.closing(sqlite3.connect(proxy.db)) as database:
                        result.rows = int(database.execute("SELECT count(*) FROM requests").fetchone()[0])
                result.samples.append(look())
                await asyncio.to_thread(inner.close)
            with contextlib.ExitStack() as inner:
                options = {"web_open_browser": "false", "web_port": str(free_port())}
                there = mitmdump(url, script=ADDON, options=options, program="mitmweb")
                proxy = await asyncio.to_thread(inner.enter_context, there)
                look = looking(proxy, result.web, Path(name) / "none", result)
                left = iter(range(requests // 50))
                callers = [short(Agents(each), proxy, result.web, left, "n" * LARGE) for each in range(clients)]
                await all_of(callers, look, result.listing, "mitmweb")
                await asyncio.to_thread(inner.close)
    return result


def looking(proxy: Proxy, seen: Seen, probe: Path, result: Result) -> Callable[[], Sample]:
    return lambda: sample(proxy, seen, probe, result.began)


def say(text: str) -> None:
    if sys.stderr.isatty():
        print(text, end="", file=sys.stderr, flush=True)


def slope(samples: Sequence[Sample], what: Callable[[Sample], int | None]) -> float:
    """By how much something grows for each request, by the samples that know it."""
    known = [(one.requests, value) for one in samples if (value := what(one)) is not None]
    if len(dict(known)) < 2:
        return float("nan")
    requests, values = np.array(known, float).T
    return float(np.polyfit(requests, values, 1)[0])


def report(result: Result) -> dict[str, Any]:
    seen, samples, last = result.seen, result.samples, result.samples[-1]
    short_ones = [one for one in samples if one.requests >= result.streamed]
    web = result.listing
    return {
        "clients": result.clients,
        "requests": seen.done,
        "streams": result.streamed,
        "rows": result.rows,
        "errors": len(result.plain.errors) + len(seen.errors) + len(result.web.errors),
        "first_errors": [*result.plain.errors[:5], *seen.errors[:20], *result.web.errors[:5]],
        "added_ms_per_chunk": seen.spread(),
        "added_ms_per_chunk_without_toki": result.plain.spread(),
        "chunks": len(seen.added),
        "bytes_per_request": slope(short_ones, attrgetter("rss")),
        "objects_per_request": slope(short_ones, attrgetter("objects")),
        "objects_at_rest": {one.requests: one.objects for one in short_ones if one.objects is not None},
        "over_requests": short_ones[-1].requests - short_ones[0].requests,
        "rss_mib": {"after_start": samples[0].rss / 2**20, "at_end": last.rss / 2**20},
        "wal_mib": max(one.wal for one in samples) / 2**20,
        "threads": {"most": max(one.threads for one in samples), "at_end": last.threads},
        "files": {"most": max(one.files for one in samples), "at_end": last.files},
        "tasks": {"most": max(one.tasks for one in samples), "at_end": last.tasks},
        "flows": {"most": max(one.flows for one in samples), "at_end": last.flows},
        "mitmweb": {
            "requests": result.web.done,
            "sent_mib": result.web.done * LARGE / 2**20,
            "grown_mib": (max(one.rss for one in web) - web[0].rss) / 2**20,
        },
    }


def checks(told: dict[str, Any]) -> dict[str, bool]:
    """Each promise, and whether it was kept. A run of some seconds says nothing of memory: its caches still fill."""
    clients = told["clients"]
    long_run = told["over_requests"] >= LONG_RUN - clients
    return {
        "no error": not told["errors"],
        "a row for each request": told["rows"] == told["requests"],
        f"no object is left of a request (of 20 at most one), from {LONG_RUN:,} requests on": not long_run
        or told["objects_per_request"] <= 0.05,
        f"memory is flat (at most {MOST_BYTES} bytes for each request), from {LONG_RUN:,} requests on": not long_run
        or told["bytes_per_request"] <= MOST_BYTES,
        "no more than 40 threads": told["threads"]["most"] <= 40,
        "open files follow the clients, and go with them": told["files"]["most"] <= 6 * clients + 64
        and told["files"]["at_end"] <= 96,
        "tasks and flows go with the clients": told["tasks"]["at_end"] <= AT_REST and told["flows"]["at_end"] <= 8,
        "the WAL stays below 16 MiB": told["wal_mib"] < 16,
        "mitmweb grows by no more than 256 MiB": told["mitmweb"]["grown_mib"] <= 256,
    }


def plot(result: Result, output: Path) -> None:
    import matplotlib.pyplot as plt

    figure, (memory, spread, over_time) = plt.subplots(3, 1, figsize=(8, 9), layout="constrained")
    memory.plot([one.requests for one in result.samples], [one.rss / 2**20 for one in result.samples])
    memory.axvline(result.streamed, color="gray", linestyle=":", label="from here on short requests")
    memory.set(xlabel="requests", ylabel="memory of the proxy, MiB", ylim=(0, None))
    memory.legend()
    for title, seen in (("with toki", result.seen), ("mitmdump alone", result.plain)):
        ordered = np.sort(np.array(seen.added)) * 1000
        spread.plot(ordered, np.linspace(0, 100, len(ordered)), label=title)
    for part in (50, 99):
        spread.axhline(part, color="gray", linestyle=":")
    spread.set(xlabel="added to a chunk, ms", ylabel="% of chunks", xscale="log")
    spread.legend()
    came, added = (
        np.array(result.seen.came) - result.samples[0].seconds - result.began,
        np.array(result.seen.added) * 1000,
    )
    pieces = np.array_split(np.argsort(came), 60)
    for part in (50, 99):
        places = [np.median(came[piece]) for piece in pieces if len(piece)]
        over_time.plot(places, [np.percentile(added[piece], part) for piece in pieces if len(piece)], label=f"p{part}")
    over_time.set(xlabel="seconds", ylabel="added to a chunk, ms", yscale="log")
    over_time.legend()
    figure.suptitle(f"{result.clients} streams at once through one mitmdump with toki")
    figure.savefig(output)
    plt.close(figure)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=STREAMS_FOR, help="how long to stream (default: %(default)g)")
    parser.add_argument(
        "--requests", type=int, help=f"short ones behind that (default: {LONG_RUN}, for fewer seconds as many fewer)"
    )
    parser.add_argument("--clients", type=int, default=64, help="at once (default: 64)")
    parser.add_argument("--output", type=Path, help="a JSON file for the figures; a plot is put beside it")
    options = parser.parse_args(arguments)
    requests = options.requests
    if requests is None:
        requests = round(LONG_RUN * options.seconds / STREAMS_FOR)
    result = asyncio.run(soak(options.clients, options.seconds, requests))
    told = report(result)
    print(json.dumps(told, indent=2))
    kept = checks(told)
    for promise, held in kept.items():
        print(f"{'ok  ' if held else 'FAIL'} {promise}")
    if options.output:
        given = f"--seconds {options.seconds:g} --requests {requests} --clients {options.clients}"
        told = {"session": session(given, 1), **told, "checks": kept}
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text(json.dumps(told, indent=2) + "\n", encoding="utf-8")
        plot(result, options.output.with_suffix(".png"))
    return 0 if all(kept.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
