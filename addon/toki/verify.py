"""Does the server answer the same without its cache? One request in `toki_verify` is asked again to see.

A bug of a server's cache shows in no figure: an answer is just another one (llama.cpp#27148). The second request must
not cost anyone anything, so it is sent only while nothing runs, and only to a slot where no one loses a token by it.
The engine follows it like any request, so that what is believed of the slots stays true.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING
from typing import Any

from toki import splice
from toki.divergence.judge import Divergence
from toki.engine.events import Answered
from toki.engine.events import Arrived
from toki.engine.events import Ask
from toki.engine.events import Began
from toki.engine.events import Gone
from toki.inspect.texts import common_prefix
from toki.schema import Check
from toki.server import Auth

if TYPE_CHECKING:
    from toki.endpoints.question import Endpoint
    from toki.upstream import Upstream

PACE = 1.0  # seconds between looks for a quiet moment
TRIES = 60  # such looks, then the check is given up
LONGEST = 1024  # tokens of an answer that is worth asking for twice
TIMEOUT = 120.0  # seconds for the second answer
PATIENCE = 5.0  # seconds to tokenise it
JUDGING = 10.0  # seconds to compare the two
CHOICE = "a check of an earlier answer"
RANDOM_SEEDS = (-1, 2**32 - 1)  # the server draws one itself


def comparable(body: Mapping[str, Any]) -> bool:
    """Whether two answers to `body` must be the same, as far as sampling goes: temperature 0, or a seed is given."""
    temperature, seed = body.get("temperature"), body.get("seed")
    greedy = type(temperature) in (int, float) and temperature == 0
    seeded = type(seed) is int and seed not in RANDOM_SEEDS
    return (greedy or seeded) and "cache_prompt" not in body


def judged_aside(one: str, other: str) -> Divergence:
    """How two answers differ, told by a process of its own: a pattern that takes long on an odd text would hold
    Python's lock here, and with it all that is forwarded.

    Raises subprocess.SubprocessError where it fails, or takes longer than JUDGING.
    """
    paths = [str(Path(__file__).parents[1]), *filter(None, sys.path)]  # it finds what was found here
    done = subprocess.run(
        [sys.executable, "-P", "-m", "toki.divergence"],
        input=json.dumps([one, other]),
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        check=True,
        encoding="utf-8",
        timeout=JUDGING,
    )
    return Divergence(done.stdout.strip())


class Verifier:
    """The checks of one server. `every`: one comparable request in so many is checked; 0: none. On the event loop."""

    def __init__(self, every: int) -> None:
        self._every = every
        self._seen = 0
        self._busy = False

    def offer(
        self, upstream: Upstream, key: int, endpoint: Endpoint, content: bytes, coding: str, ask: Ask, auth: Auth,
        answered: Answered,
    ) -> None:  # fmt: skip
        """The request `key` was answered: check it if it is its turn, later and beside everything else."""
        said, length = answered.measured.reply_text, answered.measured.reply_tokens
        if not self._every or self._busy or said is None or answered.status != 200 or length is None:
            return
        if ask.fixed or ask.tokens is None or ask.images or not ask.honours_slot or length > LONGEST:
            return
        self._busy = True
        check = _Check(upstream, key, endpoint, content, coding, ask, auth, said, length)
        upstream.background(self._run(check))

    async def _run(self, check: _Check) -> None:
        try:
            body = await check.body()
            if body is None or not comparable(body):
                return
            self._seen += 1
            if self._seen % self._every == 0:
                await check.run(body)
        except Exception as error:  # nothing depends on a check
            check.upstream.complaints.fault("verify", "an answer can't be checked", error)
        finally:
            self._busy = False


class _Check:
    """One answer that is asked for again."""

    def __init__(
        self, upstream: Upstream, key: int, endpoint: Endpoint, content: bytes, coding: str, ask: Ask, auth: Auth,
        said: str, length: int,
    ) -> None:  # fmt: skip
        self.upstream = upstream
        self._key = -key  # as the engine names toki's own
        self._endpoint, self._content, self._coding = endpoint, content, coding
        self._ask, self._auth, self._said, self._length = ask, auth, said, length

    async def body(self) -> Mapping[str, Any] | None:
        """The client's body, read in a worker thread; None where it is none that could be sent again."""
        try:
            return await self.upstream.submit(splice.parse, self._content, self._coding or None)
        except splice.Unsteerable:
            return None

    async def run(self, body: Mapping[str, Any]) -> None:
        """Wait for a quiet moment, ask again, compare, record. Gives up where no such moment comes."""
        assert self._ask.tokens is not None
        for _ in range(TRIES):
            await asyncio.sleep(PACE)
            async with self.upstream.turn:  # no request is decided meanwhile
                slot = self.upstream.spare(self._ask.tokens, self._length, self._ask.lora)
                if slot is None or not await self._idle():
                    continue
                if self.upstream.spare(self._ask.tokens, self._length, self._ask.lora) != slot:
                    continue  # something came while it was looked
                answer = self._send(body, slot)
            await self._hear(slot, answer)
            return

    async def _idle(self) -> bool:
        """Whether a fresh look shows that nothing runs, other clients' requests included."""
        looked = await self.upstream.watch.look()
        if looked is None:
            return False
        self.upstream.tell(looked)
        return not any(slot.busy for slot in looked.slots)

    def _send(self, body: Mapping[str, Any], slot: int) -> asyncio.Future[Mapping[str, Any]]:
        upstream = self.upstream
        own = replace(self._ask, fixed=CHOICE, client_slot=slot, cache_prompt=False, stream=False, vector=None)
        asked = {**body, "id_slot": slot, "cache_prompt": False, "stream": False}
        asked.pop("stream_options", None)
        content = json.dumps(asked).encode()  # may fail (nested too deeply), so before anyone hears of it
        self._begun = time.monotonic()
        upstream.tell(Arrived(self._key, self._begun, own))
        upstream.watch.arrived(self._auth)
        return upstream.submit(upstream.backend.ask, self._endpoint.name, content, self._auth, TIMEOUT)

    async def _hear(self, slot: int, answer: asyncio.Future[Mapping[str, Any]]) -> None:
        """Follow the second answer to its end."""
        upstream = self.upstream
        try:
            told = await answer
        except BaseException as error:
            upstream.tell(Gone(self._key, time.monotonic(), sent=True))
            accepted = getattr(error, "status", None) not in (401, 403)
            upstream.watch.ended(self._auth, accepted=accepted, gone_in_prefill=False)
            raise
        meter = self._endpoint.meter()
        meter.feed(told)
        measured = meter.measured(finished=True)
        now = time.monotonic()
        upstream.tell(Began(self._key, now, 200))
        upstream.tell(Answered(self._key, now, 200, measured))
        upstream.watch.ended(self._auth, accepted=True, gone_in_prefill=False)
        text = measured.reply_text
        if text is None:
            return
        if text:
            await upstream.tell_reply(self._key, text, self._ask.model, self._auth, PATIENCE)
        divergence = await upstream.submit(judged_aside, self._said, text)
        common = common_prefix(self._said, text)
        ms = 1000 * (now - self._begun)
        upstream.check(Check(-self._key, divergence, common, measured.evaluated, slot, ms))
        if divergence is Divergence.SUBSTANTIVE:
            upstream.complaints.tell(
                "verify: substantive",
                f"an answer of {self._ask.endpoint} says something else without the server's cache, from its character "
                f"{common + 1:,} on; the table checks has each",
            )
