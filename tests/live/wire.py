"""Sockets for the live tests: mitmdump as a process, a relay that records, and clients that see raw bytes."""

from __future__ import annotations

import contextlib
import select
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from dataclasses import field
from pathlib import Path
from typing import Any
from typing import Self

import proxy
from servers import free_port

ROOT = Path(__file__).resolve().parent.parent.parent
HOST = "127.0.0.1"
PATIENCE = 90.0  # seconds that anything may take on a busy machine


def until(condition: Callable[[], Any], within: float = PATIENCE) -> Any:
    """The first true value of `condition`; fails after `within` seconds."""
    deadline = time.monotonic() + within
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < deadline, f"it did not happen within {within} s"
        time.sleep(0.005)


# --- messages ---


@dataclass(frozen=True, slots=True)
class Message:
    """An HTTP/1.1 message: its head as it was sent, and its body with chunks joined."""

    head: bytes
    body: bytes

    @property
    def first(self) -> str:
        return self.head.split(b"\r\n", 1)[0].decode("latin-1")

    def header(self, name: str) -> str | None:
        for line in self.head.decode("latin-1").split("\r\n")[1:]:
            key, _, value = line.partition(":")
            if key.lower() == name:
                return value.strip()
        return None


class Unchunk:
    """Joins the chunks of a body that comes in pieces. `rest` is what follows it once it is `complete`."""

    def __init__(self) -> None:
        self.complete = False
        self.rest = b""

    def feed(self, data: bytes) -> bytes:
        """What `data` adds to the body."""
        self.rest += data
        body = b""
        while not self.complete:
            size, separator, after = self.rest.partition(b"\r\n")
            if not separator:
                break
            length = int(size, 16)
            if len(after) < length + 2:
                break
            body += after[:length]
            self.rest = after[length + 2 :]
            self.complete = length == 0
        return body


def parse(data: bytes, *, bodiless: bool = False) -> tuple[Message | None, bytes]:
    """The first message of `data` and what follows it; None where it is not complete."""
    head, separator, rest = data.partition(b"\r\n\r\n")
    if not separator:
        return None, data
    message = Message(head, b"")
    if bodiless or message.first.split(" ")[1] in ("204", "304", "101"):
        return message, rest
    if (message.header("transfer-encoding") or "").lower() == "chunked":
        chunks = Unchunk()
        body = chunks.feed(rest)
        return (Message(head, body), chunks.rest) if chunks.complete else (None, data)
    length = int(message.header("content-length") or 0)
    if len(rest) < length:
        return None, data
    return Message(head, rest[:length]), rest[length:]


def messages(data: bytes) -> list[Message]:
    """The complete messages of `data`."""
    found: list[Message] = []
    while True:
        message, data = parse(data)
        if message is None:
            return found
        found.append(message)


class Client:
    """One connection that sends and receives raw bytes. `seen` holds what came, in pieces with their times."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection((HOST, port), timeout=PATIENCE)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.seen: list[tuple[float, bytes]] = []
        self.data = b""  # all of it, until `forget`

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def receive(self) -> bytes:
        """The next piece; b"" at the end."""
        piece = self._socket.recv(65536)
        if piece:
            self.seen.append((time.monotonic(), piece))
            self.data += piece
        return piece

    def forget(self) -> None:
        """What came until now was dealt with."""
        self.seen.clear()
        self.data = b""

    def receive_until(self, text: bytes) -> None:
        while text not in self.data:
            assert self.receive(), f"the connection ended before {text!r}: {self.data!r}"

    def answer(self, *, bodiless: bool = False) -> Message:
        """The answer to the last request."""
        while True:
            message, _ = parse(self.data, bodiless=bodiless)
            if message is not None:
                return message
            assert self.receive(), f"the connection ended early: {self.data!r}"

    def close(self) -> None:
        self._socket.close()


def request(path: str, body: bytes = b"", *, method: str = "POST", host: str = "", headers: str = "") -> bytes:
    """A request as bytes; `headers` are whole lines with CRLF."""
    head = f"{method} {path} HTTP/1.1\r\nHost: {host or HOST}\r\n{headers}"
    if method == "POST":
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    return head.encode() + b"\r\n" + body


def ask(port: int, data: bytes) -> Message:
    """Send a request on a connection of its own."""
    with Client(port) as client:
        client.send(data)
        return client.answer()


# --- the relay ---


@dataclass
class Passed:
    """What passed on one connection: `up` to the server, `down` from it in pieces with their times."""

    up: bytearray = field(default_factory=bytearray)
    down: list[tuple[float, bytes]] = field(default_factory=list)
    left: threading.Event = field(default_factory=threading.Event)  # the side of the client closed it

    @property
    def answers(self) -> bytes:
        return b"".join(piece for _, piece in self.down)


class Relay:
    """Stands between the proxy and a server, and records."""

    def __init__(self, target: int) -> None:
        self.passed: list[Passed] = []
        self._target = target
        self._listener = socket.create_server((HOST, 0))
        self.port: int = self._listener.getsockname()[1]
        self._sockets: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def requests(self, path: str) -> list[Message]:
        """The requests for `path` that were sent to the server, in order of their connections."""
        return [
            message
            for passed in list(self.passed)
            for message in messages(bytes(passed.up))
            if message.first.split(" ")[1].partition("?")[0] == path
        ]

    def connection(self, path: str, needle: bytes) -> Passed:
        """The connection that carries a request for `path` with `needle` in it, once there is one."""
        start = f"POST {path} ".encode()
        found: Passed = until(
            lambda: next((each for each in list(self.passed) if start in each.up and needle in each.up), None)
        )
        return found

    def close(self) -> None:
        self._listener.close()
        for each in self._sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(near,), daemon=True).start()

    def _serve(self, near: socket.socket) -> None:
        passed = Passed()
        self.passed.append(passed)
        try:
            far = socket.create_connection((HOST, self._target), timeout=PATIENCE)
        except OSError:
            near.close()
            return
        self._sockets += [near, far]
        with near, far, contextlib.suppress(OSError):
            for each in (near, far):
                each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while True:
                for ready in select.select([near, far], [], [])[0]:
                    data = ready.recv(65536)
                    if ready is near:
                        if not data:
                            passed.left.set()
                            return
                        passed.up += data
                        far.sendall(data)
                    else:
                        if not data:
                            return
                        passed.down.append((time.monotonic(), data))
                        near.sendall(data)
        passed.left.set()  # reset instead of closed


@contextmanager
def relay(target: int) -> Iterator[Relay]:
    running = Relay(target)
    try:
        yield running
    finally:
        running.close()


# --- mitmdump ---


class Mitmdump:
    """A running mitmdump with toki before a server. It stands in another directory than the script."""

    def __init__(
        self,
        modes: Sequence[str],
        where: Path,
        script: Path | None,
        beside: Sequence[Path],
        program: str,
        options: dict[str, str],
    ) -> None:
        self.port = free_port()
        self.db = where / "toki.db"
        self._log = where / "mitmdump.log"
        self._with_toki = script is not None
        self._transparent = any(mode.startswith("transparent") for mode in modes)
        settings = {"confdir": str(where), "flow_detail": "0"}
        if script is not None:
            settings |= {"toki_db": str(self.db)}
        settings |= options
        modes = [mode.format(port=self.port) for mode in modes]
        with self._log.open("wb") as output:
            self._process = subprocess.Popen(
                proxy.command(modes, [*([script] if script is not None else []), *beside], settings, program),
                cwd=where,
                env=proxy.environment(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        try:
            until(self._listening)
        except BaseException:
            self._process.kill()
            self._process.wait()
            raise

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def rows(self, columns: str = "*", table: str = "requests") -> list[dict[str, Any]]:
        """The rows in the database, oldest first, as this other process sees them."""
        return proxy.rows(self.db, columns, table)

    def row_of(self, model: str, within: float = PATIENCE) -> dict[str, Any]:
        """The one row of a request that named `model`, once it is there. One model server ignores the name."""

        def found() -> list[dict[str, Any]]:
            return [row for row in self.rows() if row["model"] == model]

        (row,) = until(found, within)
        assert isinstance(row, dict)
        return row

    def stop(self) -> int:
        """End it as a user's Ctrl-C or a service manager would; its exit status."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        try:
            return self._process.wait(PATIENCE)
        finally:
            self._process.kill()

    def _listening(self) -> bool:
        assert self._process.poll() is None, f"mitmdump ended: {self.log}"
        if self._transparent:  # a connection that no rule led here is an error, which ends mitmproxy while it starts
            return "listening at" in self.log and proxy.READY in self.log
        with contextlib.suppress(OSError), socket.create_connection((HOST, self.port), timeout=1):
            # The script is loaded in a task of its own, before or after the port is open.
            return not self._with_toki or proxy.READY in self.log
        return False


@contextmanager
def mitmdump(
    upstream: int,
    where: Path,
    script: Path | None = ROOT / "toki_addon.py",
    *,
    modes: Sequence[str] = (),
    beside: Sequence[Path] = (),
    program: str = "mitmdump",
    **options: str,
) -> Iterator[Mitmdump]:
    """In reverse mode before the port `upstream`, or in `modes`, where {port} stands for the one of `Mitmdump`.

    `beside`: more scripts.
    """
    where.mkdir(exist_ok=True)
    modes = modes or [f"reverse:http://{HOST}:{upstream}@{HOST}:{{port}}"]
    running = Mitmdump(modes, where, script, beside, program, options)
    try:
        yield running
    finally:
        assert running.stop() == 0, running.log
