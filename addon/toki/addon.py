"""mitmproxy's hooks, and nothing that could be tested without mitmproxy: match, hand over, release, tap.

A flow is toki's where it posts to a prompt endpoint of a llama-server that toki looks after. All others stream
through unbuffered in both directions, with a bounded copy for mitmproxy's own views.
"""

from __future__ import annotations

import gc
import itertools
import logging
import re
import shlex
from collections.abc import Iterable
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from mitmproxy import ctx
from mitmproxy.addonmanager import Loader
from mitmproxy.connection import Client
from mitmproxy.connection import Server
from mitmproxy.exceptions import OptionsError
from mitmproxy.http import Headers
from mitmproxy.http import HTTPFlow
from mitmproxy.http import Message
from mitmproxy.http import Request
from mitmproxy.http import Response
from mitmproxy.net.http.url import hostport
from mitmproxy.options import Options
from mitmproxy.proxy.mode_specs import ProxyMode
from mitmproxy.proxy.mode_specs import ReverseMode
from mitmproxy.proxy.server_hooks import ServerConnectionHookData

from toki import endpoints
from toki import views
from toki.commands import Commands
from toki.complaints import Complaints
from toki.defaults import Raised
from toki.defaults import reverse_upstreams
from toki.endpoints.question import Endpoint
from toki.engine.events import Mode
from toki.eventlog import EventLog
from toki.exchange import Exchange
from toki.flags import doubts
from toki.idle import Idle
from toki.listed import Listed
from toki.notes import Notes
from toki.owners import Owners
from toki.page.counters import Counters
from toki.page.door import Visit
from toki.page.door import carries
from toki.page.serve import SAFE
from toki.page.serve import Page
from toki.page.where import ROOT
from toki.page.where import Spot
from toki.page.where import Where
from toki.page.where import places
from toki.printable import printable
from toki.relay import WAITING
from toki.relay import Relay
from toki.schema import Check
from toki.schema import Found
from toki.schema import Row
from toki.server import Auth
from toki.server import LlamaServerBackend
from toki.settings import Isolate
from toki.settings import Settings
from toki.settings import add_options
from toki.settings import check_deferred
from toki.settings import from_options
from toki.store import Store
from toki.tap import Tap
from toki.targets import Target
from toki.targets import Targets
from toki.upstream import Upstream

THREADS = 8  # look-ups at once; never mitmproxy's own executor, which resolves its host names

_TARGET = re.compile(rb"[!-~]+")  # what the relay takes for a path; servers are not so strict

logger = logging.getLogger(__name__)

MOST_PREFIXES = 32  # servers that are told apart, by address and path prefix


class Toki:
    """The addon. All hooks are synchronous but `request`, which holds only its own flow."""

    def __init__(self) -> None:
        self._complaints = Complaints(logger)
        self._executor = ThreadPoolExecutor(THREADS, thread_name_prefix="toki")
        self._keys = itertools.count(1)
        self._settings: Settings | None = None
        self._targets = Targets(())
        self._owners = Owners(apart=False)
        self._store: Store | None = None
        self._log: EventLog | None = None
        self._upstreams: dict[Target, Upstream] = {}
        self._former: list[Upstream] = []  # of earlier settings: their requests end as they began
        self._exchanges: dict[str, Exchange] = {}  # by flow id, from request to response or error
        self._raised: Raised | None = None
        self._relay: Relay | None = None
        self._notes = Notes()
        self._idle = Idle()
        self.addons = [Commands(self._all_upstreams), self._notes, self._idle]  # mitmproxy looks for more addons here
        self._listed: Listed | None = None  # in mitmweb and the console
        self._counters = Counters()
        self._page = Page(self._all_upstreams, self._counters, self._complaints)
        self._where = Where(self._targets)
        self._visits: dict[str, tuple[Visit, Spot]] = {}  # by flow id, from requestheaders to request
        self._ways: set[tuple[str, int]] = set()  # the near ends of this proxy's own connections to servers

    # --- life ---

    def load(self, loader: Loader) -> None:
        given = {name: getattr(value, "val", ()) for name, value in ctx.options.deferred.items()}
        try:
            check_deferred(given)
        except ValueError as error:
            logger.error(f"toki: {error}")  # an error logged at its start ends mitmproxy
        add_options(loader)
        # Else it writes a debug line for each of toki's calls, which all of mitmproxy's handlers have to look at.
        logging.getLogger("urllib3").setLevel(logging.INFO)
        views.register()
        self._raised = Raised(ctx.options)
        view = ctx.master.addons.get("view")  # type: ignore[no-untyped-call]
        self._listed = Listed(view) if view is not None else None

    def configure(self, updated: set[str]) -> None:
        if self._settings is not None and not any(name.startswith("toki_") or name == "mode" for name in updated):
            return
        try:
            settings = from_options(ctx.options)
            targets = Targets(settings.servers or reverse_upstreams(ctx.options.mode))
        except ValueError as error:
            if self._settings is None:  # raised now, it would be shown as a fault of the script, with a traceback
                logger.error(f"toki: {error}")
                return
            raise OptionsError(f"toki: {error}") from error  # type: ignore[no-untyped-call]
        if self._settings is None or self._settings.isolate is not settings.isolate:
            self._owners = Owners(settings.isolate is Isolate.KEY)
        slips = "; ".join(doubts(shlex.split(settings.server_flags)))
        if slips and (self._settings is None or self._settings.server_flags != settings.server_flags):
            logger.warning(f"toki: toki_server_flags: {printable(slips)}; passed over")
        self._former += self._upstreams.values()
        self._upstreams = {}
        old, self._settings, self._targets = self._settings, settings, targets
        self._where = Where(targets)
        if self._store is None or old is None or (old.db, old.keep_days) != (settings.db, settings.keep_days):
            if self._store is not None:
                self._store.close()
            self._store = Store(settings.db, settings.keep_days)
        if old is None or old.log_events != settings.log_events:
            if self._log is not None:
                self._log.close()
            self._log = EventLog(Path(settings.log_events)) if settings.log_events else None
        if old is None or old.ping_s != settings.ping_s:
            if self._relay is not None:
                self._relay.close()
            self._relay = Relay(settings.ping_s, self._serves) if settings.ping_s else None

    def running(self) -> None:
        if self._settings is None:  # the log says why
            return
        if not self._targets:
            logger.warning("toki: no llama-server to look after: use --mode reverse:URL or --set toki_server=URL")
            return
        for name in ctx.options.deferred:
            if name.startswith("toki_"):
                logger.error(f"toki: there is no option {name}")
        names = ", ".join(target.url for target in self._targets)
        logger.info(f"toki: starts afresh before {names}, mode {self._settings.mode}, rows in {self._settings.db}")
        if self._where.shadows:
            logger.warning(f"toki: a server's path begins with {ROOT}, so that toki's page can't be there")
        elif shown := " and ".join(places(*_listeners(ctx.options))):
            logger.info(f"toki: see {shown}")
        # What is loaded stays. Python's collector would look through all of it now and then, and meanwhile no flow
        # moves on (measured: 137 ms of a processor).
        gc.freeze()
        if self._settings.mode is not Mode.OFF:
            for target in self._targets:
                self._upstream(target).watch.introduce()

    def done(self) -> None:
        if self._relay is not None:
            self._relay.close()
        self._page.close()
        for exchange in self._exchanges.values():
            exchange.close()
        for upstream in [*self._former, *self._upstreams.values()]:
            upstream.close()
        self._exchanges.clear()
        self._executor.shutdown(wait=False, cancel_futures=True)
        if self._store is not None:
            self._store.close()
        if self._log is not None:
            self._log.close()
        self._complaints.sum_up()
        if self._raised is not None:
            self._raised.put_back()
        gc.unfreeze()
        logger.info("toki: stopped; what it knew of slots is forgotten")

    # --- flows ---

    def requestheaders(self, flow: HTTPFlow) -> None:
        if flow.is_replay or not flow.live or flow.response or flow.error:
            return
        spec = flow.client_conn.proxy_mode
        spot = self._spot(flow)
        if spot is not None:
            self._visits[flow.id] = self._visit(flow, spot), spot
            # The token must not be seen in a view or a saved file, even if nothing more comes of this request.
            flow.request.headers.pop("authorization", None)
            return
        if self._raised is not None and self._raised.host and isinstance(spec, ReverseMode):
            # What mitmproxy does by itself unless keep_host_header is set.
            flow.request.host_header = hostport(flow.request.scheme, *spec.address)
        if self._match(flow) is None:
            flow.request.stream = Tap()

    async def request(self, flow: HTTPFlow) -> None:
        asked = self._visits.pop(flow.id, None)
        if asked is not None:
            await self._show_page(flow, *asked)
            return
        if isinstance(flow.request.stream, Tap):
            _show(flow.request)
            return
        match = self._match(flow)
        if match is None:
            return
        target, endpoint = match
        auth = Auth(flow.request.headers.get("authorization"), flow.request.headers.get("x-api-key"))
        exchange = Exchange(
            key=next(self._keys),
            endpoint=endpoint,
            content=flow.request.raw_content or b"",  # None: a user's stream_large_bodies has sent it already
            coding=flow.request.headers.get("content-encoding", ""),
            auth=auth,
            owner=self._owners.of(auth),
            upstream=self._upstream(target),
            client=flow.client_conn.id,
        )
        exchange.on_explained = partial(self._notes.explained, flow)
        self._notes.expect(flow)
        self._exchanges[flow.id] = exchange
        body = await exchange.hold()
        self._idle.retire(flow.client_conn)
        if body is not None:
            flow.request.content = body
        if self._relay is not None and await exchange.streams():
            await self._by_relay(flow, self._relay)

    def _spot(self, flow: HTTPFlow) -> Spot | None:
        """What of the page a flow asks for, if it does."""
        request = flow.request
        token = ""
        if request.path.startswith(ROOT) and self._settings is not None:  # of no others the headers are looked through
            token = self._settings.token
        spot = self._where.find(
            request.host,
            request.port,
            request.path,
            reverse=isinstance(flow.client_conn.proxy_mode, ReverseMode),
            listener=flow.client_conn.sockname[:2],
            token=token != "" and carries(_by_name(request.headers).get("authorization", ""), token),
        )
        return None if spot is None or self._match(flow) is not None else spot

    def _visit(self, flow: HTTPFlow, spot: Spot) -> Visit:
        request, peer = flow.request, flow.client_conn.peername
        # Where mitmproxy has put the upstream in its place already, the client's own Host is lost.
        reverse = isinstance(flow.client_conn.proxy_mode, ReverseMode)
        lost = reverse and not ctx.options.keep_host_header
        return Visit(
            method=request.method,
            peer=peer[0],
            own=peer[:2] in self._ways,
            host=None if lost else request.host_header or "",
            name=spot.name,
            headers=_by_name(request.headers),
        )

    async def _show_page(self, flow: HTTPFlow, visit: Visit, spot: Spot) -> None:
        assert self._settings is not None
        assert self._store is not None
        answer = await self._page.answer(visit, spot.rest, spot.base, self._settings, self._store)
        fields = [("content-type", answer.kind), *SAFE, *answer.headers]
        headers = [(name.encode(), value.encode()) for name, value in fields]
        content = b"" if visit.method == "HEAD" else answer.content
        flow.response = Response.make(answer.status, content, Headers(headers))
        if self._listed is not None:
            self._listed.drop(flow)

    def server_connected(self, data: ServerConnectionHookData) -> None:
        if data.server.sockname is not None:
            self._ways.add(data.server.sockname[:2])

    def server_disconnected(self, data: ServerConnectionHookData) -> None:
        if data.server.sockname is not None:
            self._ways.discard(data.server.sockname[:2])

    async def _by_relay(self, flow: HTTPFlow, relay: Relay) -> None:
        """Send a flow through the relay, as through an upstream proxy. TLS would hide the answer from it."""
        if flow.request.scheme != "http" or flow.server_conn.via is not None:
            self._complaints.tell("ping", "no pings (toki_ping_s) before a server by https or behind another proxy")
            return
        if not _TARGET.fullmatch(flow.request.data.path):
            self._complaints.tell("ping: path", "no pings (toki_ping_s) for a path with bytes that HTTP does not know")
            return
        try:
            address = await relay.address()
        except OSError as error:
            self._complaints.tell("ping", f"no pings (toki_ping_s): no port on loopback can be had: {error}")
            return
        flow.server_conn = Server(address=(flow.request.host, flow.request.port))
        flow.server_conn.via = ("http", address)

    def client_disconnected(self, client: Client) -> None:
        for exchange in self._exchanges.values():
            if exchange.client == client.id:
                exchange.leave()

    def responseheaders(self, flow: HTTPFlow) -> None:
        assert flow.response
        if flow.is_replay or flow.response.raw_content is not None:  # made by another addon, not by the server
            return
        exchange = self._exchanges.get(flow.id)
        if exchange is not None and exchange.steered and flow.response.status_code >= 400:
            exchange.refused = True  # it comes whole, so that `response` may still put another answer in its place
            return
        if exchange is None:
            self._notice(flow)
            flow.response.stream = flow.response.stream or Tap()
            return
        headers = flow.response.headers
        waiting = headers.pop(WAITING, None) is not None
        kind, coding = headers.get("content-type", ""), headers.get("content-encoding", "")
        exchange.began(flow.response.status_code, kind, coding, waiting=waiting)
        flow.response.stream = Tap(exchange.heard)

    async def response(self, flow: HTTPFlow) -> None:
        assert flow.response
        _show(flow.response)
        exchange = self._exchanges.get(flow.id)
        if exchange is not None and exchange.refused:
            await self._answer_again(flow.request, flow.response, exchange)
        if self._exchanges.pop(flow.id, None) is not None and exchange is not None:
            exchange.ended()
        self._bound(flow)

    async def _answer_again(self, request: Request, response: Response, exchange: Exchange) -> None:
        """Where a server refused a request as it was steered, the client gets what it would have got directly."""
        headers = _text(request.headers.fields)
        answer = await exchange.send_again(request.url, headers, response.status_code, response.raw_content)
        if answer is not None:
            response.status_code, response.reason = answer.status, answer.reason
            fields = [*answer.headers, ("content-length", str(len(answer.content)))]
            response.headers = Headers([(name.encode("latin-1"), value.encode("latin-1")) for name, value in fields])
            response.raw_content = answer.content
        kind, coding = response.headers.get("content-type", ""), response.headers.get("content-encoding", "")
        exchange.began(response.status_code, kind, coding)
        exchange.heard(response.raw_content or b"")

    def error(self, flow: HTTPFlow) -> None:
        if self._visits.pop(flow.id, None) is not None and self._listed is not None:
            self._listed.drop(flow)
        if flow.response is not None:
            _show(flow.response)
        exchange = self._exchanges.pop(flow.id, None)
        if exchange is not None:
            sent = flow.server_conn.timestamp_tcp_setup is not None
            exchange.broke(sent=sent, client_left=not flow.client_conn.connected)
        self._bound(flow)

    def _bound(self, flow: HTTPFlow) -> None:
        """Count an ended flow of one of our servers among those that mitmproxy lists."""
        request = flow.request
        if self._listed is not None and self._targets.find(request.host, request.port, request.path) is not None:
            self._listed.add(flow)

    def _notice(self, flow: HTTPFlow) -> None:
        """Forget what a server's slots hold where a client changed it by another request than one for an answer."""
        request, response = flow.request, flow.response
        if request.method != "POST" or response is None or response.status_code != 200:
            return
        found = self._targets.find(request.host, request.port, request.path)
        if found is not None and endpoints.changes_slots(request.path):
            for target, upstream in self._upstreams.items():
                if (target.host, target.port) == (found.host, found.port):
                    upstream.forget()

    def _match(self, flow: HTTPFlow) -> tuple[Target, Endpoint] | None:
        """The server and the endpoint of a flow that is toki's."""
        request = flow.request
        if request.method != "POST" or flow.is_replay or not flow.live or flow.response or flow.error:
            return None
        target = self._targets.find(request.host, request.port, request.path)
        if target is None:
            return None
        endpoint = endpoints.match(request.method, request.path)
        if endpoint is None:
            return None
        below = target.below(request.path.partition("?")[0].removesuffix(endpoint.name))
        # Anyone can make up a path; and below /upstream a server of servers has its models, which are its own matter.
        if below in self._upstreams or (len(self._upstreams) < MOST_PREFIXES and "/upstream/" not in below.prefix):
            target = below
        return target, endpoint

    def _all_upstreams(self) -> Iterator[Upstream]:
        for upstream in self._upstreams.values():
            yield upstream
            yield from upstream.models

    def _serves(self, host: str, port: int) -> bool:
        return self._targets.serves(host, port)

    def _upstream(self, target: Target) -> Upstream:
        if target not in self._upstreams:
            assert self._settings is not None
            backend = LlamaServerBackend(target.url, self._settings.embed_url, _verify(ctx.options))
            self._upstreams[target] = Upstream(
                target.url,
                backend,
                self._settings,
                partial(self._put, printable(target.url)),
                self._executor,
                self._complaints,
                log=self._log,
            )
        return self._upstreams[target]

    def _put(self, server: str, row: Row | Found | Check) -> None:
        assert self._store is not None
        self._counters.count(server, row)
        self._store.put(row)  # the one that is there when a request ends: `toki_db` may be another by then


def _listeners(options: Options) -> tuple[list[tuple[str, int]], list[tuple[str, int]]]:
    """Where the proxy listens: in reverse mode to an http server, and in modes whose clients know of a proxy."""
    reverse, other = [], []
    for mode in options.mode:
        spec = ProxyMode.parse(mode)
        where = spec.listen_host(options.listen_host), spec.listen_port(options.listen_port) or 0
        if isinstance(spec, ReverseMode) and spec.scheme in ("http", "https"):
            reverse.append(where)
        elif spec.type_name in ("regular", "upstream", "socks5"):
            other.append(where)
    return reverse, other


def _by_name(headers: Headers) -> dict[str, str]:
    """By names in lower case."""
    return {name.lower(): value for name, value in _text(headers.fields)}


def _text(fields: Iterable[tuple[bytes, bytes]]) -> list[tuple[str, str]]:
    return [(name.decode("latin-1"), value.decode("latin-1")) for name, value in fields]


def _verify(options: Options) -> bool | str:
    """What toki's own look-ups trust of an https server: what mitmproxy was told to trust; as requests takes it."""
    if options.ssl_insecure:
        return False
    return options.ssl_verify_upstream_trusted_ca or options.ssl_verify_upstream_trusted_confdir or True


def _show(message: Message) -> None:
    """Give mitmproxy's views the body that streamed by; it is not sent again."""
    if isinstance(message.stream, Tap) and message.raw_content is None:
        message.data.content = message.stream.content
