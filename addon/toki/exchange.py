"""One request's life: read it, wait for its release, watch its answer, settle.

A request is held only where a decision can depend on what is read. The look-ups run in toki's own threads, beside
one look at the slots, and have a deadline; past it, or on any error, the request leaves as it came and whatever is
learnt later still reaches the engine.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from dataclasses import replace
from http.client import HTTPException
from math import inf
from typing import Any

from toki import splice
from toki.answer import AnswerReader
from toki.endpoints.completion import Completion
from toki.endpoints.question import Chat
from toki.endpoints.question import Endpoint
from toki.endpoints.question import Ids
from toki.endpoints.question import Question
from toki.endpoints.question import Unreadable
from toki.engine.events import Answered
from toki.engine.events import Arrived
from toki.engine.events import Ask
from toki.engine.events import Began
from toki.engine.events import Decision
from toki.engine.events import Gone
from toki.engine.events import Looked
from toki.engine.events import Measured
from toki.engine.events import Prime
from toki.engine.events import Primed
from toki.engine.events import Read
from toki.engine.events import Record
from toki.engine.events import Unsteered
from toki.engine.events import Wait
from toki.inspect.explanation import Explanation
from toki.inspect.inspector import Asked
from toki.onward import Turn
from toki.prompt import PromptReader
from toki.prompt import UnreadablePrompt
from toki.prompt import image_starts
from toki.relay import late_status
from toki.relay import without_pings
from toki.resend import Answer
from toki.resend import Resend
from toki.resend import cache_at_fault
from toki.resend import slots_at_fault
from toki.schema import Own
from toki.schema import Row
from toki.server import MISSING
from toki.server import Auth
from toki.server import LlamaServerBackend
from toki.server import ServerError
from toki.upstream import Upstream

BYTES_PER_MS = 256  # the deadline grows by a millisecond for so many bytes of body: the prefill takes longer
ONWARD = "it goes on where an earlier request ended, which the server finds by itself"
MUTE = "the server tells nothing of its slots (no /props)"
PATIENCE = 5.0  # seconds for look-ups that nobody waits for
MOMENT = 0.05  # seconds that a request waits for others to be placed
SAFETY = 2.0  # seconds that it waits for a steered one, whose slot it could take
GRACE = 0.02  # seconds after its release at which a request is explained: it has left by then
GLANCE = 0.01  # seconds after which a look tells what no headers told
PRIMERS = Completion("/completion")  # where primers are sent
AFTERMATH = 0.5  # seconds that an ended request waits for its own late look-ups, so that its row is there in time


def budget(deadline_ms: int, size: int) -> float:
    """Seconds that a request with a body of `size` bytes may be held: 1 MiB adds about four."""
    return (deadline_ms + size / BYTES_PER_MS) / 1000


class Exchange:
    """A request to a prompt endpoint and its answer. Lives on the event loop.

    `content` is the body as it came, with its Content-Encoding in `coding`; `client` names the connection, and `owner`
    the API key where keys are kept apart.
    """

    def __init__(
        self,
        key: int,
        endpoint: Endpoint,
        content: bytes,
        coding: str,
        auth: Auth,
        upstream: Upstream,
        client: str = "",
        owner: str = "",
    ) -> None:
        self.key = key
        self.client = client
        self.content = content
        self._endpoint = endpoint
        self._coding = coding
        self._auth = auth
        self._upstream = upstream
        self._at = time.time()
        self._arrived = time.monotonic()
        self._released: float | None = None
        self._first_byte: float | None = None
        self._over: float | None = None
        self._status: int | None = None  # that the client sees
        self._waiting = False  # whether only pings have come
        self._answered = 200  # what the server answered after pings
        self._reader: AnswerReader | None = None
        self._body: Mapping[str, Any] | None = None
        self._owner = owner
        self._ask = Ask(endpoint.name, unknown="not read yet", owner=owner)
        self._prompts = upstream.prompts  # what reads this request
        self._turn: Turn | None = None  # what it asks, once that is read
        self._earlier: int | None = None  # the request that it goes on from
        self._looked: Looked | None = None
        self._go = asyncio.Event()  # nothing that is still being read can change the decision
        self._parsed = asyncio.Event()  # what the body asks for is known, as far as it can be
        self._left = False
        self._sent: Decision | None = None  # how the body that left differs from the client's own; None: it does not
        self.refused = False  # the server answered it with an error, which is kept back
        self._resend: Resend | None = None
        self._counted = False  # the watch knows of it
        self._sent_for: Decision | None = None  # the decision that came while it waited
        self._resumed = asyncio.Event()  # what it waits for is over
        self._study: asyncio.Task[None] | None = None
        self._told = self._ask  # what the engine knew at its decision
        self.unread = False  # it was given up before its prompt was read
        self.on_explained: Callable[[Explanation], None] | None = None
        self._asked: Asked | None = None  # what it is explained by, until that has begun or is too late
        self._read_out = False  # nothing more will be known of its prompt
        self._foreseen = True  # False: what the engine predicts of it is for a server that may be gone
        self._own: list[Own] = []  # what toki sent for it
        self._loop = asyncio.get_running_loop()

    # --- until it is released ---

    async def hold(self) -> bytes | None:
        """Wait until the request may go; the body to send in place of the client's, or None: as it came.

        Raises nothing but what ends the task that waits here.
        """
        upstream = self._upstream
        held = False
        try:
            async with asyncio.timeout(budget(upstream.settings.deadline_ms, len(self.content))):
                if upstream.looks_up:
                    await upstream.watch.introduced(self._auth, at_once=bool(self._owner))
                held = upstream.holds(apart=bool(self._owner))
                self._study = upstream.background(self._read())
                if held:
                    with upstream.reading(len(self.content)):
                        await self._go.wait()
                elif upstream.watch.router:  # it is for the slots of the model that its body names
                    await self._parsed.wait()
        except TimeoutError:
            self._complain("deadline", "look-ups took longer than toki_deadline_ms allows, a request passes as it came")
        if self._study is None:
            self._study = upstream.background(self._read())
        if held and self._owner:  # into a body that is not read nothing can be put that keeps it apart
            await self._parsed.wait()
        try:
            while isinstance(decision := await self._decided(held, upstream), Wait):
                await self._wait(decision)
            return None if decision is None else self._steered(decision)
        except asyncio.CancelledError:
            if self._over is None:
                raise
            return None  # toki was stopped, and with it a call that this waited for
        except Exception as error:
            self._fault("releasing a request", error)
            return None

    async def _decided(self, held: bool, entrance: Upstream) -> Decision | Wait | None:
        """The engine's decision; None where toki was stopped meanwhile. `entrance` has what else is being read."""
        decision: Decision | Prime | Wait | None = self._sent_for
        if decision is None:
            async with self._in_turn(held):
                if self._released is not None:
                    return None
                decision = self._sent_for or self._release(entrance.company(len(self.content)))
                while isinstance(decision, Prime) and decision.id_slot >= 0:
                    decision = self._upstream.primed(await self._prime(decision))
        while isinstance(decision, Prime):  # one for any slot: nobody has to wait until it is done
            decision = self._upstream.primed(await self._prime(decision))
        if isinstance(decision, Decision):
            self._let_go()
        return decision

    async def _wait(self, wait: Wait) -> None:
        """Wait as long as the engine wants it, and look at the slots for what is decided then."""
        self._looked = None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait.until - time.monotonic()):
                await self._resumed.wait()
        self._resumed.clear()
        if self._sent_for is None and not self._left:
            self._looked = await self._upstream.watch.look()

    def resume(self, decision: Decision | None) -> None:
        """What this request waits for is over; `decision`: it has been decided on."""
        if decision is not None:
            self._sent_for = decision
        self._resumed.set()

    @contextlib.asynccontextmanager
    async def _in_turn(self, held: bool) -> AsyncIterator[None]:
        """Decide one request at a time, and give those on their way to the server a moment to arrive there."""
        upstream = self._upstream
        if not upstream.looks_up or self._left:
            yield
            return
        decidable = held and not self._ask.fixed and self._ask.tokens is not None
        async with contextlib.AsyncExitStack() as turn:
            try:
                async with asyncio.timeout(SAFETY):
                    await turn.enter_async_context(upstream.turn)
            except TimeoutError:  # behind a long primer: it goes beside that
                decidable = False
            await self._give_way(upstream, decidable)
            yield

    async def _give_way(self, upstream: Upstream, decidable: bool) -> None:
        """Wait for what is on its way to the server, as long as this one could do it harm, or a moment if that tells
        more for its decision."""
        begun = time.monotonic()
        waited = False
        while not self._left:
            moment = begun + MOMENT if decidable and upstream.should_wait else -inf
            left = max(min(upstream.endangered_at, begun) + SAFETY, moment) - time.monotonic()
            if left <= 0:
                break
            waited = True
            await upstream.change(min(left, GLANCE))
            unseen = upstream.endangered_at > -inf or upstream.should_wait
            if unseen and (looked := await upstream.watch.look()) is not None:
                upstream.tell(looked)
        if waited and decidable and not self._left:
            self._looked = await upstream.watch.look()

    async def _prime(self, prime: Prime) -> Primed:
        """Send the engine's primer with the client's credentials; what the server told of it."""
        measured = await self._primer(prime)
        return Primed(self.key, time.monotonic(), measured)

    async def _primer(self, prime: Prime) -> Measured | None:
        upstream = self._upstream
        begun = time.monotonic()
        measured = None
        try:
            answer = await upstream.submit(self._send_primer, prime, upstream.backend)
        except ServerError as error:
            self._complain(f"primer: {error}", f"a primer failed, so a request goes on without it: {error}")
        else:
            meter = PRIMERS.meter()
            meter.feed(answer)
            measured = meter.measured(finished=True)
        told = measured or Measured()
        taken = 1000 * (time.monotonic() - begun)
        purpose = "primer" if len(prime.tokens) else "probe"
        self._own.append(Own(purpose, len(prime.tokens), told.reused, told.evaluated, taken))
        return measured

    def _send_primer(self, prime: Prime, backend: LlamaServerBackend) -> Mapping[str, Any]:
        """In a worker thread, since the list of ids is long."""
        body: dict[str, Any] = {
            "prompt": prime.tokens.ids.tolist() or [[]],  # of no tokens: only as one of a list of prompts
            "id_slot": prime.id_slot,
            "n_predict": 0,
            "cache_prompt": True,
        }
        if self._ask.model:  # behind a router it is needed
            body["model"] = self._ask.model
        return backend.completion(body, self._auth, prime.patience)

    def leave(self) -> None:
        """The client went away; where its request is still held, give up, for nothing will be sent."""
        if self._resend is not None:
            self._resend.hang_up()
        if self._released is None:
            self._left = True
            self._go.set()
            self._resumed.set()

    def _release(self, company: int = 0) -> Decision | Prime | Wait:
        upstream = self._upstream
        ask = self._ask
        if self._left:
            ask = replace(ask, fixed="the client left while its request was held")
        elif upstream.looks_up and not upstream.watch.known:
            why = MUTE if upstream.watch.mute else "the server is not known yet"
            ask = replace(ask, fixed=ask.fixed or why)
            self._foreseen = False
        if self._body is None and not ask.fixed:
            ask = replace(ask, fixed=ask.unknown)  # nothing can be put into a body that is not read
        self._told = self._ask
        now = time.monotonic()
        if upstream.looks_up and not self._counted:
            upstream.watch.arrived(self._auth)
            self._counted = True
        arrived = Arrived(self.key, now, ask, company=company)
        if self._looked is not None:
            arrived = replace(arrived, slots=self._looked.slots, looked_at=self._looked.asked_at)
        return upstream.decide(self, arrived)

    def _let_go(self) -> None:
        """The request leaves."""
        now = self._released = time.monotonic()
        if self._told.tokens is None and self._study is not None and self._study.done():
            self._upstream.tell(Read(self.key, now, self._told))  # nothing more will be known
        self._loop.call_later(GRACE, self._inspect)
        if self._left and self._study is not None:
            self._study.cancel()

    def _steered(self, decision: Decision) -> bytes | None:
        """The body that the decision asks for; None: the client's own."""
        body, self._body = self._body, None
        if not decision.steers or body is None or self._left:
            return None
        steered = splice.steer(self.content, body, decision.id_slot, cache_prompt=decision.cache_prompt)
        self._sent = decision
        return steered

    async def _read(self) -> None:
        """Each look-up of this request in its order; what one brings stands in `_ask` at once."""
        try:
            await self._look_up()
        except (splice.Unsteerable, UnreadablePrompt) as error:
            fixed = str(error) if isinstance(error, splice.Unsteerable) else self._ask.fixed
            head = error.head if isinstance(error, UnreadablePrompt) else None
            self._ask = replace(self._ask, fixed=fixed, head=head, unknown=str(error))
        except (ServerError, TimeoutError) as error:
            self._complain(f"look-up: {error}", f"a look-up failed, so a request passes as it came: {error}")
            self._ask = replace(self._ask, unknown=f"a look-up failed: {error}")
        except Exception as error:
            self._fault("reading a request", error)
            self._ask = replace(self._ask, unknown="a fault inside toki")
        except asyncio.CancelledError:
            self._ask = replace(self._ask, unknown="not read in time")
            raise
        finally:
            self._go.set()
            self._parsed.set()
            self._read_out = True
            if self._released is not None:
                if self._over is not None:
                    self._inspect()
                else:
                    self._loop.call_later(GRACE, self._inspect)
                if self._ask is not self._told:
                    self._upstream.tell(Read(self.key, time.monotonic(), self._ask))

    async def _look_up(self) -> None:
        upstream = self._upstream
        body, question = await upstream.submit(_question, self.content, self._coding, self._endpoint)
        name = await upstream.name_of(question.model, self._auth) if upstream.looks_up else question.model
        if self._released is None:
            self._body = body
            self._upstream = upstream = upstream.serving(name)
            upstream.wanted(self.key)
        self._ask = _ask(question, self._owner)
        self._parsed.set()
        if not upstream.looks_up:
            return
        await upstream.watch.roused(self._counted)
        if self._owner:
            await upstream.watch.introduced(self._auth, at_once=True)
        if upstream.watch.mute:
            raise UnreadablePrompt(MUTE)
        if question.fixed or not upstream.holds(apart=bool(self._owner)):
            self._go.set()
        elif not self._owner:
            self._turn = Turn(body, question, len(self.content), self._auth)
            self._earlier = upstream.before(self._turn)
            if self._earlier is not None and upstream.lets_go_on(self._earlier):
                self._ask = replace(self._ask, unknown=ONWARD)
                self._go.set()
        self._asked = asked = replace(_asked(body, question), owner=self._owner, cached=question.cache_prompt)
        if isinstance(question.prompt, Unreadable):
            raise UnreadablePrompt(question.prompt.why)
        if self._released is None and not self._go.is_set():
            upstream.background(self._look())
        self._prompts = upstream.prompts
        reading = upstream.submit(self._with_tokens, self._ask, question, self._prompts)
        (ask, text), counted = await asyncio.gather(reading, self._count(question))
        read = len(ask.tokens) if ask.tokens is not None else 0
        if counted is not None and not self._prompts.counts.compare(question, read, counted):
            raise UnreadablePrompt(f"{read:,} tokens were read where the server counts {counted:,}")
        self._ask = ask
        self._asked = replace(asked, text=text, tokens=ask.tokens)

    async def _count(self, question: Question) -> int | None:
        """The server's own count of the prompt's tokens, where what was read needs that proof."""
        upstream, counts = self._upstream, self._prompts.counts
        if not counts.wanted(question):
            return None
        try:
            return await upstream.submit(
                upstream.backend.count, question.count_path, self.content, self._auth, PATIENCE
            )
        except ServerError as error:
            if error.status not in MISSING:
                raise
            counts.uncountable(question)
            return None

    def _with_tokens(self, ask: Ask, question: Question, prompts: PromptReader) -> tuple[Ask, str]:
        """In a worker thread: the prompt's tokens and its embedding; and its text, "" where it is given in tokens."""
        deadline = time.monotonic() + PATIENCE
        if isinstance(question.prompt, Ids):
            text = ""
            tokens = prompts.read(question, self.content, self._auth, deadline)
        else:
            text = prompts.text(question, self.content, self._auth, deadline)
            tokens = prompts.tokens(question, text, self._auth, deadline)
        starts = prompts.user_starts(question, tokens, self._auth, deadline)
        ask = replace(ask, tokens=tokens, images=image_starts(tokens), user_starts=starts, unknown="")
        if not self._upstream.settings.embed_url or not text:
            return replace(ask, vector=self._upstream.embed(tokens)), text
        if self._released is None:  # half of the time that is left: where it is not enough, steering is still possible
            allowed = budget(self._upstream.settings.deadline_ms, len(self.content))
            deadline = (time.monotonic() + self._arrived + allowed) / 2
        try:
            # The embedding server is not the one that the client's credentials are for.
            vector = self._upstream.backend.embed(text, Auth(), deadline - time.monotonic())
        except ServerError as error:
            trouble = f"the embedding server failed, prefixes are embedded instead: {error}"
            self._loop.call_soon_threadsafe(self._complain, f"embedding: {error}", trouble)
            return replace(ask, vector=self._upstream.embed(tokens)), text
        return replace(ask, vector=vector, semantic=True), text

    async def _look(self) -> None:
        """One look at the slots beside the look-ups; it counts for the decision if it is there in time."""
        looked = await self._upstream.watch.look()
        if looked is None:
            return
        if self._released is None:
            self._looked = looked
        else:
            self._upstream.tell(looked)

    # --- the answer ---

    @property
    def steered(self) -> bool:
        """Whether the body that left is not the client's own."""
        return self._sent is not None

    async def send_again(
        self, url: str, headers: Iterable[tuple[str, str]], status: int, content: bytes | None
    ) -> Answer | None:
        """What the server answers to the client's own bytes, where it refused the steered ones; None: the error stands.

        Where keys are kept apart, these go without the cache first if the request could find another key's there.
        Never raises.
        """
        answer = None
        while (refused := self._sent) is not None and self._over is None:
            if not (slots_at_fault(status, content) if refused.cache_prompt else cache_at_fault(status)):
                break
            again = await self._again(url, headers, status)
            if again is None:
                break
            if not refused.cache_prompt and again.status < 400:
                self._complain("isolation", f"the server refuses cache_prompt ({status}), which toki_isolate needs")
            answer, status, content = again, again.status, again.content
        return answer

    async def _again(self, url: str, headers: Iterable[tuple[str, str]], status: int) -> Answer | None:
        """Send it again as the engine wants that now."""
        upstream, content = self._upstream, self.content
        decision = upstream.unsteered(Unsteered(self.key, time.monotonic()))
        self._sent = None
        self._resend = Resend()
        try:
            if decision.steers:
                body = await upstream.submit(splice.parse, content, self._coding or None)
                content = splice.steer(content, body, decision.id_slot, cache_prompt=decision.cache_prompt)
                self._sent = decision
            return await upstream.submit(self._resend.send, url, list(headers), content)
        except (OSError, HTTPException) as error:
            self._complain(
                f"resend: {status}",
                f"a steered request was refused ({status}) and can't be sent again ({type(error).__name__})",
            )
            return None
        except Exception as error:
            self._fault("sending a request again", error)
            return None
        finally:
            self._resend = None

    async def streams(self) -> bool:
        """Whether the client asked for a stream. One that was not held is read first, which takes some milliseconds;
        where it takes longer than a request may be held, it counts as none."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(budget(self._upstream.settings.deadline_ms, len(self.content))):
                await self._parsed.wait()
        return self._ask.stream

    def began(self, status: int, content_type: str, content_encoding: str, *, waiting: bool = False) -> None:
        """The answer's headers are here. `waiting`: they are the relay's, and the server has not answered yet."""
        self._status = status
        if status == 200:
            self._reader = AnswerReader(self._endpoint.meter(), content_type, content_encoding)
        self._waiting = waiting
        if not waiting:
            self._upstream.tell(Began(self.key, time.monotonic(), status))

    def heard(self, data: bytes) -> None:
        """The answer's next bytes pass by. Never raises."""
        if self._waiting:
            if not (data := without_pings(data)):
                return
            self._waiting = False
            self._answered = late_status(data)
            self._upstream.tell(Began(self.key, time.monotonic(), self._answered))
        if self._first_byte is None:
            self._first_byte = time.monotonic()
        if self._reader is not None:
            try:
                self._reader.feed(data)
            except Exception as error:
                self._reader = None
                self._fault("reading an answer", error)

    def ended(self) -> None:
        """The answer is complete."""
        if self._over is not None:
            return
        if self._status is None:  # another addon answered in the server's place
            self.broke(sent=False, client_left=True)
            return
        if self._reader is not None:
            self._reader.finish()
        now = time.monotonic()
        status = self._status if self._status != 200 else self._answered
        if self._turn is not None and status == 200:
            self._upstream.answered(self.key, self._turn, self._earlier)
        self._turn = None
        self._end(Answered(self.key, now, status, self._measured(finished=True)), now)
        if status >= 500:
            # llama-server says 503 while it loads its model, so it has just been started
            self._upstream.watch.doubt(certain=status == 503)

    def broke(self, *, sent: bool, client_left: bool) -> None:
        """There will be no complete answer. `sent`: the request had reached the server."""
        if self._over is not None:
            return
        self._turn = None
        sent = sent and self._released is not None and not self._left
        now = time.monotonic()
        shown = self._reader.pieces if self._reader is not None else 0
        gone = Gone(self.key, now, sent=sent, shown=shown, measured=self._measured(finished=False))
        self._end(gone, now, gone_in_prefill=sent and client_left and not shown)
        if not client_left:
            self._upstream.watch.doubt(certain=not sent)

    def close(self) -> None:
        """toki stops: the row is written with what is known now, and nothing is waited for any longer."""
        if self._resend is not None:
            self._resend.hang_up()
        if self._released is None:
            self.leave()
            self._release()
            self._let_go()
        self.broke(sent=True, client_left=True)

    def row(self, record: Record) -> Row:
        """The row of this request; call it once, when it is over."""
        self._asked = None
        ask, measured = self._ask, record.measured
        released = self._released or time.monotonic()
        over = self._over or time.monotonic()
        prompt_tokens = measured.prompt_tokens
        if prompt_tokens is None and ask.tokens is not None:
            prompt_tokens = len(ask.tokens)
        return Row(
            key=self.key,
            at=self._at,
            conversation=record.conversation,
            endpoint=self._endpoint.name,
            model=ask.model,
            status=self._status,
            stream=ask.stream,
            prompt_tokens=prompt_tokens,
            reply_tokens=measured.reply_tokens,
            parent=record.parent,
            shared=record.shared,
            similarity=record.similarity,
            predicted=record.predicted if self._foreseen else None,
            alone=record.alone if self._foreseen else None,
            reused=measured.reused,
            evaluated=measured.evaluated,
            outcome=record.outcome,
            slot=record.slot,
            action=record.action,
            reason=record.reason,
            first_byte_ms=None if self._first_byte is None else 1000 * (self._first_byte - self._arrived),
            added_ms=1000 * (released - self._arrived),
            total_ms=1000 * (over - self._arrived),
            own=tuple(self._own),
        )

    def _measured(self, *, finished: bool) -> Measured:
        if self._reader is None:
            return Measured(finished=finished)
        return self._reader.measured(finished)

    def explained(self, explanation: Explanation) -> None:
        """What was found out about this request."""
        if self.on_explained is not None:
            self.on_explained(explanation)

    def _inspect(self) -> None:
        """Compare its prompt with earlier ones, once."""
        if self._asked is not None and self._read_out:
            self._upstream.inspector.begin(self.key, self._asked)
            self._asked = None

    def _end(self, event: Answered | Gone, now: float, *, gone_in_prefill: bool = False) -> None:
        self._over = now
        self.unread = gone_in_prefill
        self._inspect()
        if self._counted:
            accepted = self._status is not None and self._status not in (401, 403)
            self._upstream.watch.ended(self._auth, accepted=accepted, gone_in_prefill=gone_in_prefill)
        self._upstream.tell(event)
        if self._study is None or self._study.done():
            self._conclude(event)
        else:
            # The engine judges a request once it knows its prompt, but a row is not kept waiting for long.
            self._loop.call_later(AFTERMATH, self._study.cancel)
            self._study.add_done_callback(lambda _: self._conclude(event))

    def _conclude(self, event: Answered | Gone) -> None:
        """What is left to do once a request is over and read."""
        self._compare(event.measured)
        if isinstance(event, Answered):
            self._upstream.verifier.offer(
                self._upstream, self.key, self._endpoint, self.content, self._coding, self._ask, self._auth, event
            )
        text = event.measured.reply_text
        if text and isinstance(event, Answered) and self._upstream.looks_up and self._upstream.watch.known:
            self._upstream.background(self._tell_reply(text))

    def _compare(self, measured: Measured) -> None:
        """Whether the answer tells the length that was read; the engine has seen to this request itself."""
        tokens, told = self._ask.tokens, measured.prompt_tokens
        if tokens is not None and told not in (None, len(tokens)):
            self._prompts.counts.doubt(self._ask.endpoint)
            trouble = f"a prompt of {self._ask.endpoint} has {told:,} tokens where {len(tokens):,} were read"
            self._complain(f"length: {self._ask.endpoint}", f"{trouble}: nothing is built on it")

    async def _tell_reply(self, text: str) -> None:
        """The reply's tokens, as the next request of this conversation is likely to hold them."""
        try:
            await self._upstream.tell_reply(self.key, text, self._ask.model, self._auth, PATIENCE)
        except ServerError as error:
            self._complain(f"reply: {error}", f"a reply can't be tokenised: {error}")

    # --- troubles ---

    def _complain(self, kind: str, text: str) -> None:
        self._upstream.complaints.tell(kind, text)

    def _fault(self, where: str, error: Exception) -> None:
        self._upstream.complaints.fault(where, f"a fault in {where}, which passes untouched", error)


def _question(content: bytes, coding: str, endpoint: Endpoint) -> tuple[Mapping[str, Any], Question]:
    body = splice.parse(content, coding or None)
    return body, endpoint.read(body)


def _asked(body: Mapping[str, Any], question: Question) -> Asked:
    """What can be said of a prompt before it is rendered."""
    prompt = question.prompt
    if "messages" in body and question.endpoint.endswith("/chat/completions"):
        return Asked(body)  # with its images
    return Asked(prompt.body if isinstance(prompt, Chat) else None)


def _ask(question: Question, owner: str) -> Ask:
    return Ask(
        endpoint=question.endpoint,
        kind=question.kind,
        model=question.model,
        stream=question.stream,
        unknown="not read yet",
        fixed=question.fixed,
        honours_slot=question.honours_slot,
        client_slot=question.client_slot,
        cache_prompt=question.cache_prompt,
        chose_cache=question.chose_cache,
        children=question.children,
        prompts=question.prompts,
        max_tokens=question.max_tokens,
        lora=question.lora,
        owner=owner,
    )
