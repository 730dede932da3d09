"""Many streams at once through one mitmdump with toki, for long: does anything grow, fail or slow down? `make soak`

64 clients (or as many as asked for) keep streaming from a real llama-server. A stamp between mitmdump and the server
notes when each event passes, so that the time to the client is what mitmdump with toki adds to a chunk. Meanwhile the
proxy's memory, threads, open files, tasks and flows and the database's WAL are looked at once a second.

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
from collections.abc import Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from dataclasses import field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from benchmark.machine import session
from proxy import Proxy
from proxy import mitmdump
from servers import HOST
from servers import Flags
from servers import start
from servers import tiny_model
from traffic.words import Writer

NUMBER = re.compile(rb'"request (\d+)\.')
EVENT = b"\n\n"
TURNS = 12  # of a conversation, before its client begins another
REPLY = 16  # tokens
PROBE = Path(__file__).with_name("soak_probe.py")


@dataclass
class Seen:
    """What happened so far. Times are of the monotonic clock."""

    passed: dict[int, list[float]] = field(default_factory=dict)  # by request: when each event left the server
    added: list[float] = field(default_factory=list)  # seconds from there to the client
    done: int = 0
    errors: list[str] = field(default_factory=list)


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


@asynccontextmanager
async def stamp(server: str, seen: Seen) -> AsyncIterator[str]:
    """A URL in front of `server` that notes when the events of its streams pass."""
    target = urlsplit(server)

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
        yield f"http://{HOST}:{listener.sockets[0].getsockname()[1]}"


async def client(name: int, proxy: Proxy, seen: Seen, numbers: itertools.count[int], until: float) -> None:
    """One agent after another: conversations behind one of a few preambles, that grow turn by turn."""
    target = urlsplit(proxy.url)
    rng = random.Random(name)
    for life in itertools.count():
        write = Writer(life, f"client {name}", 1.0)
        prompt = Writer(rng.randrange(4), "preamble", 1.0).prose(150, 150)
        for _ in range(TURNS):
            if time.monotonic() > until:
                return
            number = next(numbers)
            prompt += write.prose(10, 30)
            try:
                prompt += await stream(target.hostname or HOST, target.port or 80, number, prompt, seen)
            except (OSError, EOFError, ValueError) as error:
                seen.errors.append(f"request {number}: {error!r}")
            seen.done += 1


async def stream(host: str, port: int, number: int, prompt: str, seen: Seen) -> str:
    """The reply. Raises ValueError where the answer is not what a direct call would give."""
    body = json.dumps(
        {"user": f"request {number}.", "prompt": prompt, "n_predict": REPLY, "stream": True, "ignore_eos": True}
    ).encode()
    reader, writer = await asyncio.open_connection(host, port)
    try:
        head = f"POST /completion HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
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
    seen.added += [came - left for left, came in zip(passed, times, strict=True)]
    return "".join(event["content"] for event in events)


def sample(proxy: Proxy, seen: Seen, probe: Path, began: float) -> Sample:
    status = Path(f"/proc/{proxy.pid}/status").read_text(encoding="utf-8")
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    wal = proxy.db.with_name(f"{proxy.db.name}-wal")
    inside = json.loads(probe.read_text(encoding="utf-8")) if probe.exists() else {"tasks": 0, "flows": 0}
    return Sample(
        seconds=time.monotonic() - began,
        requests=seen.done,
        rss=int(fields["VmRSS"].split()[0]) * 1024,
        threads=int(fields["Threads"]),
        files=len(list(Path(f"/proc/{proxy.pid}/fd").iterdir())),
        wal=wal.stat().st_size if wal.exists() else 0,
        tasks=inside["tasks"],
        flows=inside["flows"],
    )


async def soak(clients: int, seconds: float) -> tuple[Seen, list[Sample], int]:
    """What was seen, the samples, and how many rows the database has."""
    seen, samples = Seen(), list[Sample]()
    with TemporaryDirectory(prefix="toki-soak-") as name, contextlib.ExitStack() as stack:
        probe = Path(name) / "probe.json"
        server = stack.enter_context(start(tiny_model(), Flags(n_parallel=16, n_ctx=131072)))
        async with stamp(server.url, seen) as url:
            mitmdump_there = mitmdump(url, beside=[PROBE], options={"soak_probe": str(probe)})
            proxy = await asyncio.to_thread(stack.enter_context, mitmdump_there)
            began = time.monotonic()
            numbers = itertools.count()
            running = [
                asyncio.create_task(client(each, proxy, seen, numbers, began + seconds)) for each in range(clients)
            ]
            while not all(task.done() for task in running):
                await asyncio.wait(running, timeout=1.0)
                samples.append(sample(proxy, seen, probe, began))
                say(f"\r{seen.done:,} requests, {len(seen.errors)} errors, {samples[-1].rss / 2**20:.0f} MiB  ")
            await asyncio.gather(*running)
            say("\n")
            await asyncio.sleep(2.0)  # for the last rows, and for connections that are being closed
            samples.append(sample(proxy, seen, probe, began))
            with contextlib.closing(sqlite3.connect(proxy.db)) as database:
                rows = int(database.execute("SELECT count(*) FROM requests").fetchone()[0])
            await asyncio.to_thread(stack.close)  # while the stamp still passes what is left
    return seen, samples, rows


def say(text: str) -> None:
    if sys.stderr.isatty():
        print(text, end="", file=sys.stderr, flush=True)


def slope(samples: Sequence[Sample]) -> float:
    """Bytes of memory per request over the second half, where all caches are as full as they get."""
    half = samples[len(samples) // 2 :]
    requests = np.array([one.requests for one in half], float)
    if np.ptp(requests) == 0:
        return 0.0
    return float(np.polyfit(requests, [one.rss for one in half], 1)[0])


def report(seen: Seen, samples: Sequence[Sample], rows: int, clients: int) -> dict[str, Any]:
    added = statistics.quantiles([1000 * each for each in seen.added], n=100)
    last = samples[-1]
    return {
        "clients": clients,
        "requests": seen.done,
        "rows": rows,
        "errors": seen.errors[:20],
        "added_ms_per_chunk": {"p50": added[49], "p90": added[89], "p99": added[98]},
        "bytes_per_request": slope(samples),
        "rss_mib": {"after_start": samples[0].rss / 2**20, "at_end": last.rss / 2**20},
        "wal_mib": max(one.wal for one in samples) / 2**20,
        "threads": {"most": max(one.threads for one in samples), "at_end": last.threads},
        "files": {"most": max(one.files for one in samples), "at_end": last.files},
        "tasks": {"most": max(one.tasks for one in samples), "at_end": last.tasks},
        "flows": {"most": max(one.flows for one in samples), "at_end": last.flows},
    }


def checks(told: dict[str, Any]) -> dict[str, bool]:
    """Each promise, and whether it was kept. A run of some seconds says nothing of memory: its caches still fill."""
    clients = told["clients"]
    return {
        "no error": not told["errors"],
        "a row for each request": told["rows"] == told["requests"],
        "memory is flat (at most 200 bytes for each request), from 50,000 requests on": told["requests"] < 50_000
        or told["bytes_per_request"] <= 200,
        "no more than 40 threads": told["threads"]["most"] <= 40,
        "open files follow the clients, and go with them": told["files"]["most"] <= 6 * clients + 64
        and told["files"]["at_end"] <= 96,
        "tasks and flows go with the clients": told["tasks"]["at_end"] <= 32 and told["flows"]["at_end"] <= 8,
        "the WAL stays below 16 MiB": told["wal_mib"] < 16,
    }


def plot(seen: Seen, samples: Sequence[Sample], output: Path) -> None:
    import matplotlib.pyplot as plt

    figure, (above, below) = plt.subplots(2, 1, figsize=(8, 6), layout="constrained")
    above.plot([one.requests for one in samples], [one.rss / 2**20 for one in samples])
    above.set(xlabel="requests", ylabel="memory of the proxy, MiB", ylim=(0, None))
    ordered = np.sort(np.array(seen.added)) * 1000
    below.plot(ordered, np.linspace(0, 100, len(ordered)))
    below.set(xlabel="added to a chunk, ms", ylabel="% of chunks", xscale="log")
    figure.suptitle("Many streams at once through one mitmdump with toki")
    figure.savefig(output)
    plt.close(figure)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=1200, help="how long (default: 1200)")
    parser.add_argument("--clients", type=int, default=64, help="streams at once (default: 64)")
    parser.add_argument("--output", type=Path, help="a JSON file for the figures; a plot is put beside it")
    options = parser.parse_args(arguments)
    seen, samples, rows = asyncio.run(soak(options.clients, options.seconds))
    told = report(seen, samples, rows, options.clients)
    print(json.dumps(told, indent=2))
    kept = checks(told)
    for promise, held in kept.items():
        print(f"{'ok  ' if held else 'FAIL'} {promise}")
    if options.output:
        told = {"session": session(f"--seconds {options.seconds:g} --clients {options.clients}", 1), **told}
        options.output.write_text(json.dumps(told, indent=2) + "\n", encoding="utf-8")
        plot(seen, samples, options.output.with_suffix(".png"))
    return 0 if all(kept.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
