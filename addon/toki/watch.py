"""The only poller of one llama-server: it learns the server's facts, looks at its slots, and notices another server.

Looking has a price. A dropped prefill is cancelled by the server only after a second without any result sent to
anyone, a look included, so looks are more than a second apart, and none is taken for 1.2 s after a client left in
prefill, unless the server hung up. A look wakes a sleeping server, so none is taken while nothing is in flight.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable
from collections.abc import Callable
from typing import Any

from toki.complaints import Complaints
from toki.engine.events import Event
from toki.engine.events import Looked
from toki.engine.events import Restarted
from toki.engine.events import SlotView
from toki.engine.rules import Known
from toki.facts import find_out
from toki.server import MISSING
from toki.server import Auth
from toki.server import LlamaServerBackend
from toki.server import Props
from toki.server import ServerError

PACE = 1.25  # seconds between looks while requests are in flight; more than the second that a cancel needs
SOONEST = 1.1  # seconds between looks that the engine asks for; likewise
QUIET = 1.2  # seconds without a look after a client left in prefill
AFTERWARDS = 0.2  # seconds behind that in which the look is taken that was wanted
AWAKE = 1.0  # seconds after the last request for which no server has fallen asleep
TIMEOUT = 2.0  # seconds that one look may take
UNSUPPORTED = MISSING | {403}  # how servers answer /slots where it is switched off

Submit = Callable[..., Awaitable[Any]]  # runs a blocking call in a worker thread


class Watch:
    """Facts and looks of one server (`model`: of that model behind a router). Used on the event loop only.

    `backend` talks to `url`. `flags` is the server's command line as far as the user gave it; "" where it is to be
    found out. `known` says whether the facts hold; until they do, requests should pass as they came. `tell` receives
    Restarted when the server is new or other than before, and Looked for each look.
    """

    def __init__(
        self,
        url: str,
        backend: LlamaServerBackend,
        model: str,
        flags: str,
        submit: Submit,
        tell: Callable[[Event], None],
        complaints: Complaints,
    ) -> None:
        self._url = url
        self._backend = backend
        self._model = model
        self._flags = flags
        self._submit = submit
        self._tell = tell
        self._complaints = complaints
        self._auth = Auth()
        self._proven = False  # the server accepted these credentials
        self._refused: Auth | None = None  # those that it refused when it was asked who it is
        self._in_flight = 0
        self._ended_at = 0.0
        self._facts: tuple[int, int, str, str] | None = None  # slots, n_ctx, build, model
        self._router = False
        self.swaps = False  # it is a server of servers, each behind a path of its own (llama-swap)
        self._known = False
        self._mute = False
        self._doubts = 0
        self._settled = 0  # doubts that were looked into
        self._slots_shown = True
        self._wanted = False
        self._looked_at = 0.0
        self._tried_at = 0.0
        self._quiet_until = 0.0
        self._highest = -1  # the highest task id seen: it only grows while a server lives
        self._highest_at = 0.0  # when it was seen
        self._introduced = asyncio.Event()
        self._introduced.set()
        self._stir = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    @property
    def known(self) -> bool:
        """Whether the server is known and nothing speaks for another one in its place."""
        return self._known

    @property
    def mute(self) -> bool:
        """Whether the server has no /props, nor tells which models run: then it is asked nothing more, for any question
        that names a model might load it."""
        return self._mute and not self._known

    @property
    def auth(self) -> Auth:
        """The credentials that looks are made with."""
        return self._auth

    @property
    def router(self) -> bool:
        """Whether the server has slots of their own for each of several models."""
        return self._router

    def introduce(self) -> None:
        """Get to know the server before its first request, if it answers; a sleeping one is not woken for that."""
        if self._task is None:
            self._introduced.clear()
            self._task = asyncio.get_running_loop().create_task(self._introduction())

    async def introduced(self, auth: Auth, *, at_once: bool = False) -> None:
        """Wait for an introduction that is under way. A server that wanted credentials is asked again with those of a
        request (`auth`) that comes; one that is not known for any reason too, if `at_once`."""
        await self._introduced.wait()
        if self._known or self._mute or not (at_once or self._refused not in (None, auth)):
            return
        self._introduced.clear()
        if not self._proven:
            self._auth = auth
        try:
            with contextlib.suppress(ServerError):
                await self._learn()
        finally:
            self._introduced.set()

    def arrived(self, auth: Auth) -> None:
        """A request goes to the server. Its credentials are used for looks until others proved good."""
        self._in_flight += 1
        if not self._proven:
            self._auth = auth
        self._attend()

    def ended(self, auth: Auth, *, accepted: bool, gone_in_prefill: bool) -> None:
        """A request is over. `accepted`: the server answered it, so its credentials are good."""
        self._in_flight -= 1
        self._ended_at = time.monotonic()
        if accepted:
            self._proven = True
            self._auth = auth
        if gone_in_prefill:
            self._quiet_until = self._ended_at + QUIET
        self._stir.set()

    def doubt(self, *, certain: bool) -> None:
        """Something speaks for another server than before; `certain`: nothing that was believed of it holds."""
        self._doubts += 1
        if certain:
            self._known = self._proven = False
            self._facts = None
        self._stir.set()

    def suspect(self) -> None:
        """Another model was in use meanwhile: this one's server may have made room for it."""
        self._ended_at = 0.0

    async def roused(self, sent: bool) -> None:
        """After a pause, or a connection that it closed: find out whether the server fell asleep, was replaced by
        another, or a router unloaded the model, so that nothing is left of what it held. /props wakes none; the
        look-ups that follow would hide it.

        `sent`: the request that ends the pause is on its way already.
        """
        if not self._known or self._in_flight > sent:
            return
        hung_up = self._backend.hung_up()
        if time.monotonic() < self._ended_at + AWAKE and not hung_up:
            return
        try:
            props: Props = await self._submit(self._backend.props, self._auth, TIMEOUT, model=self._model)
        except ServerError as error:
            self.doubt(certain=error.status is not None)
            return
        if props.is_sleeping:
            self.doubt(certain=True)
        elif not props.router and await self._was_replaced(props, hung_up):
            self.doubt(certain=True)
            with contextlib.suppress(ServerError):  # it is asked again while the request runs
                await self._learn()

    async def _was_replaced(self, props: Props, hung_up: bool) -> bool:
        if _facts(props) != self._facts:
            return True
        # One that hung up is most likely gone, and with it the prefill for whose end no look is taken.
        looked = await self._look() if hung_up or time.monotonic() >= self._quiet_until else None
        return looked is not None and self._is_another(looked)

    def look_soon(self) -> None:
        """The engine wants a look as soon as one may be taken."""
        self._wanted = True
        self._attend()
        self._stir.set()

    async def look(self) -> Looked | None:
        """One look now; None where none may be taken, where it failed, and where it shows another server."""
        if not self._known or time.monotonic() < self._quiet_until:
            return None
        looked = await self._look()
        if looked is not None and self._is_another(looked):
            self.doubt(certain=True)
            return None
        return looked

    def close(self) -> None:
        """Stop looking, for good: what ends later may still ask for a look."""
        self._closed = True
        if self._task is not None:
            self._task.cancel()

    @property
    def _unsure(self) -> bool:
        return not self._known or self._settled != self._doubts

    def _attend(self) -> None:
        if not self._closed and (self._task is None or self._task.done()):
            self._task = asyncio.get_running_loop().create_task(self._watch())

    async def _introduction(self) -> None:
        # One that is not up yet, or wants credentials, is met at its first request.
        try:
            with contextlib.suppress(ServerError):
                await self._learn()
        finally:
            self._introduced.set()
        await self._watch()

    async def _watch(self) -> None:
        while self._busy():
            self._stir.clear()
            wait = self._due() - time.monotonic()
            if wait <= 0:
                await self._turn()
                continue
            try:
                async with asyncio.timeout(wait):
                    await self._stir.wait()
            except TimeoutError:
                pass
        self._wanted = False

    def _busy(self) -> bool:
        """Whether there is anything to look for."""
        if self._in_flight:
            return True
        # Where a client left in prefill the server was at work for up to a second more.
        awake = max(self._ended_at + AWAKE, self._quiet_until + AFTERWARDS)
        return self._wanted and self._known and time.monotonic() < awake

    def _due(self) -> float:
        """When the next turn is, of learning or of looking."""
        if self._unsure:
            return self._tried_at + PACE
        if self._router or not self._slots_shown:
            return float("inf")
        return max(self._looked_at + (SOONEST if self._wanted else PACE), self._quiet_until)

    async def _turn(self) -> None:
        try:
            if self._unsure:
                await self._learn()
            else:
                self._wanted = False
                looked = await self.look()
                if looked is not None:
                    if not self._in_flight and any(slot.busy for slot in looked.slots):
                        self._quiet_until = looked.at + QUIET  # it goes on with what a client left, and is awake
                    self._tell(looked)
        except ServerError as error:
            self._failed("/props", error)
        except Exception as error:  # a fault of toki's own must not end the watch
            self._complaints.fault("watch", "can't look at the server", error)

    async def _look(self) -> Looked | None:
        if not self._slots_shown:
            return None
        asked_at = self._looked_at = time.monotonic()
        try:
            slots: tuple[SlotView, ...] = await self._submit(
                self._backend.slots, self._auth, TIMEOUT, model=self._model
            )
        except ServerError as error:
            self._failed("/slots", error)
            if error.status in UNSUPPORTED:
                self._slots_shown = False
            elif error.status is None:
                self.doubt(certain=False)
            return None
        return Looked(at=time.monotonic(), asked_at=asked_at, slots=slots)

    async def _learn(self) -> None:
        self._tried_at = time.monotonic()
        doubts = self._doubts
        try:
            props: Props = await self._submit(self._backend.props, self._auth, TIMEOUT, model=self._model)
        except ServerError as error:
            self._known = False
            self._refused = self._auth if error.status in (401, 403) else None
            self._mute = error.status in MISSING
            if self._mute and not self._model and await self._has_servers():
                self._settled = doubts
                self._known, self._router, self.swaps = True, True, True
                return
            raise
        facts = _facts(props)
        restarted = facts != self._facts and not props.router
        looked, known = None, Known()
        if restarted:
            self._highest = -1
            self._slots_shown = True
            known = await self._submit(find_out, self._flags, await self._arguments(), self._url, props)
            looked = None if props.is_sleeping else await self._look()
        if doubts != self._doubts:
            return  # what was learnt may be of the server before
        self._settled = doubts
        self._known, self._router, self._facts = True, props.router, facts
        if looked is not None:
            self._is_another(looked)
        if restarted:
            slots = None if looked is None else looked.slots
            self._tell(Restarted(time.monotonic(), props.total_slots, props.n_ctx, known, slots))

    async def _has_servers(self) -> bool:
        """Whether it is a server of servers, one for each model (llama-swap)."""
        try:
            await self._submit(self._backend.running, self._auth, TIMEOUT)
        except ServerError as error:
            if error.status not in MISSING:
                raise
            return False
        return True

    async def _arguments(self) -> tuple[str, ...]:
        """The command line of a router's model."""
        if not self._model:
            return ()
        try:
            words: tuple[str, ...] = await self._submit(self._backend.arguments, self._auth, TIMEOUT, self._model)
        except ServerError as error:
            self._complaints.tell(f"/v1/models: {error}", f"can't see the flags of a router's model: {error}")
            return ()
        return words

    def _is_another(self, looked: Looked) -> bool:
        """Whether these slots belong to another server process than those seen before; notes them if not."""
        if self._facts is not None and len(looked.slots) != self._facts[0]:
            return True
        highest = max((slot.task for slot in looked.slots), default=-1)
        if highest >= self._highest:
            self._highest, self._highest_at = highest, looked.at
            return False
        return looked.asked_at >= self._highest_at  # else an older look that came in late

    def _failed(self, route: str, error: ServerError) -> None:
        self._complaints.tell(f"{route}: {error}", f"can't learn about the server, requests pass as they came: {error}")


def _facts(props: Props) -> tuple[int, int, str, str]:
    """What tells one server from another."""
    return props.total_slots, props.n_ctx, props.build, props.model
