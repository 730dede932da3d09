"""Plays generated traffic against a server (llama-server, toki, any proxy between) and notes what each answer says.

Clients behave as real ones do: a session has one request in flight at most, what was answered goes into its next
request, and some hang up early.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from collections.abc import Iterable
from concurrent.futures import FIRST_COMPLETED
from concurrent.futures import Future
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import wait
from contextlib import closing
from dataclasses import dataclass
from http.client import HTTPConnection
from http.client import HTTPResponse
from typing import Any
from typing import Literal
from typing import TypeAlias
from urllib.parse import urlsplit

import requests

from toki import endpoints
from toki.answer import AnswerReader
from toki.sse import EventReader
from traffic import Request
from traffic import Run
from traffic import at_once
from traffic import chat
from traffic import messages_api
from traffic import raw
from traffic import responses_api

Form: TypeAlias = Literal["chat", "completion", "messages", "responses"]
Wanted: TypeAlias = Form | Literal["natural"]  # natural: as the request's own client sends it

PATHS: dict[Form, str] = {
    "chat": "/v1/chat/completions",
    "completion": "/completion",
    "messages": "/v1/messages",
    "responses": "/v1/responses",
}
BODIES: dict[Form, Callable[[Request, bool], dict[str, Any]]] = {
    "chat": chat,
    "completion": raw,
    "messages": messages_api,
    "responses": responses_api,
}
PATIENCE = 600.0  # seconds without a byte


@dataclass(frozen=True, slots=True)
class Played:
    """One request and what its answer said. The counts are tokens, the server's own; None: it did not say.

    `sent_at` is a time of the monotonic clock; `first_byte_s` and `total_s` count from there.
    """

    request: Request
    form: Form
    status: int
    sent_at: float
    first_byte_s: float | None  # of the body, not of the headers, which a stream sends long before; None: no byte came
    total_s: float
    reply_text: str
    prompt_tokens: int | None
    reused: int | None
    evaluated: int | None
    reply_tokens: int | None
    slot: int | None
    aborted: bool
    finish: str | None  # why the answer ended, in the words of its endpoint; None: it does not say


def play(
    run: Run,
    url: str,
    form: Wanted = "natural",
    *,
    at_a_time: int = 1,
    most: int | None = None,
    stream: bool | None = None,
    told: Callable[[Played], object] | None = None,
) -> list[Played]:
    """Play `run` to its end, or until `most` requests or a few more were sent, with up to `at_a_time` in flight; what
    came of each, as they ended.

    `url` may have a path, which goes before that of each endpoint; `told` hears of each request as it ends.
    Raises OSError or http.client.HTTPException where a connection fails: an answer that never came is no measurement.
    """
    played: list[Played] = []
    steps = at_once(run, at_a_time)
    running: set[Future[Played]] = set()
    with ThreadPoolExecutor(at_a_time) as pool:
        now = next(steps, None)
        while now is not None and (most is None or len(played) + len(running) < most):
            running |= {pool.submit(send, request, url, form, stream=stream) for request in now}
            ended, running = wait(running, return_when=FIRST_COMPLETED)
            one = ended.pop()
            running |= ended  # they come next
            result = one.result()
            played.append(result)
            if told is not None:
                told(result)
            try:
                now = steps.send((result.request.session, result.reply_text))
            except StopIteration:
                now = None
        played += [one.result() for one in running]
    return played


def send(request: Request, url: str, form: Wanted = "natural", *, stream: bool | None = None) -> Played:
    """Send one request on a connection of its own and read its answer, or hang up where the request says so.

    `stream` None: as the request says. A client that hangs up always streams: the headers of a stream are the only
    sign that the server has begun, and its events the only count of tokens.
    """
    chosen: Form = ("completion" if request.form == "raw" else "chat") if form == "natural" else form
    streams = request.abort_after is not None or (request.stream if stream is None else stream)
    target = urlsplit(url)
    path = target.path.rstrip("/") + PATHS[chosen]
    body = json.dumps(BODIES[chosen](request, streams)).encode()
    assert target.hostname
    with closing(HTTPConnection(target.hostname, target.port, timeout=PATIENCE)) as connection:
        connection.connect()
        sent_at = time.monotonic()
        connection.request("POST", path, body, {"Content-Type": "application/json"})
        with closing(connection.getresponse()) as answer:
            return _read(answer, request, chosen, path, sent_at)


def until_idle(url: str) -> None:
    """Wait until the server at `url` works on nothing: where a client hung up it goes on for a while.

    Raises OSError where it can't be asked, KeyError where it shows no slots.
    """
    pause = 0.01
    while any(slot["is_processing"] for slot in requests.get(f"{url}/slots", timeout=PATIENCE).json()):
        time.sleep(pause)
        pause = min(2 * pause, 1.1)  # a dropped prefill is cancelled only after a second without any answer


def _read(answer: HTTPResponse, request: Request, form: Form, path: str, sent_at: float) -> Played:
    endpoint = endpoints.match("POST", path)
    assert endpoint
    kind = answer.getheader("content-type", "")
    reader = AnswerReader(endpoint.meter(), kind, answer.getheader("content-encoding", ""))
    events = EventReader()
    payloads: list[bytes] = []
    whole = bytearray()
    first_byte_s = None
    aborted = request.abort_after == "prefill" and answer.status == 200
    while not aborted and (data := answer.read1(65536)):
        if first_byte_s is None:
            first_byte_s = time.monotonic() - sent_at
        if answer.status != 200:
            continue
        reader.feed(data)
        payloads += events.feed(data)
        whole += data
        aborted = isinstance(request.abort_after, int) and len(payloads) >= request.abort_after
    reader.finish()
    measured = reader.measured(finished=not aborted)
    reply = measured.reply_text or ""
    if request.n > 1 and answer.status == 200:
        reply = first_reply(payloads or [bytes(whole)])
    return Played(
        request=request,
        form=form,
        status=answer.status,
        sent_at=sent_at,
        first_byte_s=first_byte_s,
        total_s=time.monotonic() - sent_at,
        reply_text=reply,
        prompt_tokens=measured.prompt_tokens,
        reused=measured.reused,
        evaluated=measured.evaluated,
        reply_tokens=measured.reply_tokens,
        slot=measured.slot,
        aborted=aborted,
        finish=finish_reason(payloads or [bytes(whole)]) if answer.status == 200 else None,
    )


def finish_reason(payloads: Iterable[bytes]) -> str | None:
    """Why the (first) answer ended, in the words of its endpoint; None where it was cut short.

    /v1/responses does not say it: always None.
    """
    found = None
    for payload in payloads:
        try:
            chunk = json.loads(payload)
        except ValueError:  # "[DONE]", or the part of a plain answer that came before its client left
            continue
        item = chunk[0] if isinstance(chunk, list) else chunk
        choices, delta = item.get("choices") or [{}], item.get("delta")
        told = (
            choices[0].get("finish_reason"),
            item.get("stop_reason"),
            delta.get("stop_reason") if isinstance(delta, dict) else None,
            item.get("stop_type"),  # "none" until the end
        )
        found = next((reason for reason in told if reason and reason != "none"), found)
    return found


def first_reply(payloads: Iterable[bytes]) -> str:
    """The text of the first of several answers (n > 1), which is the one that a client goes on with."""
    parts: list[str] = []
    for payload in payloads:
        if payload == b"[DONE]":
            continue
        chunk = json.loads(payload)
        for item in chunk if isinstance(chunk, list) else chunk.get("choices", [chunk]):
            if item.get("index") == 0:
                message = item.get("delta") or item.get("message") or item
                parts.append(message.get("content") or "")
    return "".join(parts)
