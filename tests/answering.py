"""Servers on loopback that answer as a test says."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from http.server import ThreadingHTTPServer
from typing import Any


class Answering(BaseHTTPRequestHandler):
    """Leaves `do_GET` and `do_POST` to the test; nothing is logged."""

    protocol_version = "HTTP/1.1"
    wbufsize = -1  # head and body in one segment: else each answer waits for the client's delayed ACK

    @property
    def route(self) -> str:
        """The path without a query."""
        return self.path.partition("?")[0]

    def content(self) -> bytes:
        """What was sent."""
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def answer(self, status: int, content: bytes, **headers: str) -> None:
        """Answer with JSON, unless `Content_Type` says otherwise."""
        sent = {"Content-Type": "application/json", "Content-Length": str(len(content))}
        sent |= {name.replace("_", "-"): value for name, value in headers.items()}
        self.send_response(status)
        for name, value in sent.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *args: object) -> None:
        pass


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), ConnectionError):  # that is a client that gave up
            super().handle_error(request, client_address)


@contextmanager
def answering(handler: type[Answering]) -> Iterator[int]:
    """The port of a server whose answers `handler` gives."""
    with _Server(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()
