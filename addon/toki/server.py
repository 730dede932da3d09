"""All HTTP that toki itself sends: look-ups at llama-server, its own small requests, and embeddings.

Everything here is synchronous and meant for worker threads. The server is not trusted: every answer is bounded in time
and size, its types are checked, and whatever is wrong with it becomes a ServerError.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import shlex
import socket
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field
from functools import lru_cache
from threading import Lock
from time import monotonic
from typing import Any
from urllib.parse import quote
from weakref import WeakSet

import numpy as np
import numpy.typing as npt
import requests
from requests.adapters import HTTPAdapter
from urllib3 import HTTPConnectionPool
from urllib3 import disable_warnings
from urllib3.connection import HTTPConnection
from urllib3.exceptions import ClosedPoolError
from urllib3.exceptions import HTTPError
from urllib3.exceptions import InsecureRequestWarning
from urllib3.exceptions import ProtocolError
from urllib3.exceptions import TimeoutError as ReadTimeout
from urllib3.util.connection import is_connection_dropped

from toki.engine.embedding import average
from toki.engine.embedding import segments
from toki.engine.events import SlotView

MAX_ANSWER = 64 * 2**20  # bytes; the tokens of a prompt of a million tokens are about a tenth of it
CONNECTIONS = 32  # kept alive per server, one per worker thread
CHUNK = 2**16  # bytes read between two looks at the clock
MISSING = frozenset({404, 405, 501})  # how servers answer for a route that they do not have, or that is switched off
EMBED_BATCH = 512  # tokens; llama-server's default --ubatch-size, which a pooled embedding must fit in
EMBED_OVERLAP = 64  # tokens that two neighbouring segments share
MOST_SLOTS = 4096  # llama-server itself takes 256 sequences at most; each slot costs a little of every choice
_LARGEST_ID = 2**31 - 1


class ServerError(Exception):
    """A server did not answer, or not as it should. `status` is its HTTP status where there was one.

    The message names the call and what was wrong, never a body, an address or a header: it may be logged.
    """

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class Auth:
    """The client's own credentials: the only headers of its request that toki's look-ups carry."""

    authorization: str | None = field(default=None, repr=False)
    api_key: str | None = field(default=None, repr=False)

    def headers(self) -> dict[str, bytes]:
        """As bytes, so that they leave exactly as they came (mitmproxy decodes with surrogateescape)."""
        values = {"Authorization": self.authorization, "X-Api-Key": self.api_key}
        return {name: value.encode("utf-8", "surrogateescape") for name, value in values.items() if value is not None}


@dataclass(frozen=True, slots=True)
class Props:
    """GET /props. `n_ctx`: the context of one slot in tokens. A router that was asked for no model has 0 of both."""

    total_slots: int
    n_ctx: int
    build: str
    model: str  # the path of the model file, on the server's machine
    chat_template: str
    bos_token: str
    eos_token: str
    is_sleeping: bool
    modalities: Mapping[str, bool]
    media_marker: str  # stands for an image or sound in a rendered prompt; "" where the server names none
    router: bool


class LlamaServerBackend:
    """One llama-server (or router), and the embedding server where one is configured.

    Every call takes the client's `auth` and a `timeout` in seconds for the whole call, and raises ServerError. Calls on
    a router name their model; they never make it load one (`autoload=false`). `slots`, `tokenize` and `apply_template`
    wake a sleeping server, `props` does not: the caller decides.
    """

    def __init__(self, base_url: str, embed_url: str = "", verify: bool | str = True) -> None:
        """`base_url` and `embed_url` may carry a path prefix (--api-prefix), but no query.

        `verify`: whether certificates of https servers must be good, or the file or directory of the authorities to
        trust.
        """
        self._base = base_url.rstrip("/")
        self._embed = embed_url.rstrip("/")
        self._verify = verify
        if verify is False:
            disable_warnings(InsecureRequestWarning)  # the user asked for it
        self._adapter = _Adapter(pool_maxsize=CONNECTIONS, max_retries=0)
        self._hung_up = False
        self._closed = False

    def close(self) -> None:
        """Close all connections, for good. Calls under way fail: a primer may take minutes, and no process ends before
        its threads."""
        self._closed = True
        self._adapter.hang_up()
        self._adapter.close()

    def hung_up(self) -> bool:
        """Whether a server closed a kept connection since this was asked last, or was not there: it was idle for some
        seconds, or that server is no more. Takes no time."""
        self._notice()
        hung_up, self._hung_up = self._hung_up, False
        return hung_up

    def _notice(self) -> None:
        """See to it that the next call opens a new connection where a kept one was closed: the library would do that
        without a word."""
        pools = self._adapter.poolmanager.pools
        idle = [one for key in set(pools.keys()) for one in _idle(pools.get(key))]
        if any(map(is_connection_dropped, idle)):
            self._hung_up = True
            self._adapter.close()

    def props(self, auth: Auth, timeout: float, model: str = "") -> Props:
        """What the server says of itself."""
        answer = _mapping(self._look("GET", self._base, "/props", auth, timeout, model=model), "/props")
        return _props(answer)

    def slots(self, auth: Auth, timeout: float, model: str = "") -> tuple[SlotView, ...]:
        """The slots as they are now. Status 501 where the server runs with --no-slots."""
        answer = self._look("GET", self._base, "/slots", auth, timeout, model=model)
        if not isinstance(answer, list):
            raise ServerError("/slots: the answer is no list", 200)
        return tuple(_slot(_mapping(slot, "/slots")) for slot in answer)

    def models(self, auth: Auth, timeout: float) -> tuple[Mapping[str, Any], ...]:
        """The entries of GET /v1/models."""
        answer = _mapping(self._look("GET", self._base, "/v1/models", auth, timeout), "/v1/models")
        entries = answer.get("data")
        return tuple(entry for entry in entries if isinstance(entry, dict)) if isinstance(entries, list) else ()

    def names(self, auth: Auth, timeout: float) -> dict[str, str]:
        """The models of a router by each of their names: what they are called, and their aliases."""
        found: dict[str, str] = {}
        for entry in self.models(auth, timeout):
            name, aliases = entry.get("id"), entry.get("aliases")
            for alias in (name, *(aliases if isinstance(aliases, list) else ())):
                if isinstance(name, str) and isinstance(alias, str):
                    found.setdefault(alias, name)
        return found

    def running(self, auth: Auth, timeout: float) -> dict[str, tuple[str, ...]]:
        """The models that a server of servers (llama-swap) has up, with their command lines as far as it tells them.

        A status of MISSING where it is no such server. This loads none.
        """
        answer = _mapping(self._look("GET", self._base, "/running", auth, timeout), "/running")
        entries = answer.get("running")
        if not isinstance(entries, list):
            raise ServerError("/running: no list of what runs", 404)
        up = [entry for entry in entries if isinstance(entry, dict) and entry.get("state") == "ready"]
        return {entry["model"]: _words(entry.get("cmd")) for entry in up if isinstance(entry.get("model"), str)}

    def behind(self, model: str, awaited: Callable[[], Collection[str]]) -> LlamaServerBackend:
        """One model's own llama-server behind a server of servers, which loads a model for any call that names it.

        `awaited`: the models that clients wait for now; called in worker threads.
        """
        return _Behind(self, f"{self._base}/upstream/{quote(model)}", model, awaited)

    def greeting(self, path: str, auth: Auth, timeout: float, model: str = "") -> tuple[int, Mapping[str, str]]:
        """Status and headers (their names in any case) of a GET whose body does not matter."""
        query = {"model": model, "autoload": "false"} if model else {}
        try:
            with self._send("GET", self._base + path, query, auth, None, timeout) as response:
                return response.status_code, response.headers
        except (requests.RequestException, HTTPError, ValueError, OSError) as error:
            raise ServerError(f"GET {path}: {_cause(error)}") from None

    def looked_after(self, auth: Auth, timeout: float) -> tuple[str, ...] | None:
        """Where toki itself answers at this address: the servers that it says it looks after; None where it is none.

        It tells only this machine; elsewhere it names itself at most, and no server.
        """
        path = "/toki/api/overview"
        status, headers = self.greeting(path, auth, timeout)
        if status == 401 and 'realm="toki"' in headers.get("WWW-Authenticate", ""):
            return ()
        if status != 200:
            return None
        answer = self._look("GET", self._base, path, auth, timeout)
        servers = answer.get("servers") if isinstance(answer, dict) else None
        if not isinstance(servers, list):
            return None
        names = (one.get("name") for one in servers if isinstance(one, dict))
        return tuple(dict.fromkeys(name.partition(" ")[0] for name in names if isinstance(name, str)))

    def arguments(self, auth: Auth, timeout: float, model: str) -> tuple[str, ...]:
        """The command line that a router names for one of its models; empty where it names none."""
        for entry in self.models(auth, timeout):
            aliases, status = entry.get("aliases"), entry.get("status")
            words = status.get("args") if isinstance(status, dict) else None
            named = [entry.get("id"), *(aliases if isinstance(aliases, list) else [])]
            if model in named and isinstance(words, list) and all(isinstance(word, str) for word in words):
                return tuple(words)
        return ()

    def tokenize(
        self,
        content: str | Sequence[int | str],
        auth: Auth,
        timeout: float,
        *,
        add_special: bool,
        parse_special: bool = True,
        model: str = "",
    ) -> npt.NDArray[np.int32]:
        """The ids of a text, or of texts and ids mixed; int32, shape (n,).

        A mixed list is tokenised piece by piece, ids stay as they are, and `add_special` counts only where the first
        piece is a text. The server tokenises a prompt with both flags true (llama.cpp, server-common.cpp).
        """
        return self._tokenize(self._base, content, auth, timeout, add_special, parse_special, model)

    def apply_template(self, body: bytes, auth: Auth, timeout: float) -> str:
        """The prompt that the server makes of a chat body (JSON, UTF-8), which names its model itself."""
        answer = _mapping(self._look("POST", self._base, "/apply-template", auth, timeout, body), "/apply-template")
        return _text(answer, "prompt", "/apply-template")

    def ask(self, path: str, body: bytes, auth: Auth, timeout: float) -> Mapping[str, Any]:
        """A whole answer to a request of toki's own to a prompt endpoint. Never sent twice."""
        return _mapping(self._call("POST", self._base, path, auth, monotonic() + timeout, body), path)

    def count(self, path: str, body: bytes, auth: Auth, timeout: float) -> int:
        """The server's own length in tokens of the prompt in a body (JSON, UTF-8); `path`: its endpoint that counts."""
        return _count(_mapping(self._look("POST", self._base, path, auth, timeout, body), path), "input_tokens", path)

    def completion(self, body: Mapping[str, Any], auth: Auth, timeout: float) -> Mapping[str, Any]:
        """Run a request of toki's own on /completion. Never sent twice: it changes what a slot holds."""
        answer = self._call("POST", self._base, "/completion", auth, monotonic() + timeout, _json(body))
        return _mapping(answer, "/completion")

    def messages(self, body: Mapping[str, Any], auth: Auth, timeout: float) -> Mapping[str, Any]:
        """Run a request of toki's own on /v1/messages. Never sent twice."""
        answer = self._call("POST", self._base, "/v1/messages", auth, monotonic() + timeout, _json(body))
        return _mapping(answer, "/v1/messages")

    def embed(self, text: str, auth: Auth, timeout: float) -> npt.NDArray[np.float32]:
        """The embedding server's vector for a text; float32, shape (its dimensions,), unit length.

        Its vocabulary is its own, so it gets the text, not the chat model's ids. A text longer than one of its batches
        is cut into overlapping segments of its ids; their vectors are averaged, weighted by length.
        """
        if not self._embed:
            raise ServerError("no embedding server is configured")
        deadline = monotonic() + timeout
        ids = self._tokenize(self._embed, text, auth, timeout, add_special=True, parse_special=True, model="")
        size = EMBED_BATCH
        if len(ids) > EMBED_OVERLAP:  # no context is smaller
            props = self._look("GET", self._embed, "/props", auth, deadline - monotonic())
            size = min(size, _props(_mapping(props, "/props")).n_ctx)
        try:
            parts = segments(len(ids), size, EMBED_OVERLAP)
        except ValueError as error:
            raise ServerError(f"/v1/embeddings: {error}") from None
        if not parts:
            raise ServerError("/v1/embeddings: the text is empty")
        body = _json({"input": [ids[part].tolist() for part in parts]})
        answer = self._look("POST", self._embed, "/v1/embeddings", auth, deadline - monotonic(), body)
        vectors = _vectors(_mapping(answer, "/v1/embeddings"), len(parts))
        try:
            return average(vectors, [part.stop - part.start for part in parts])
        except ValueError as error:
            raise ServerError(f"/v1/embeddings: {error}", 200) from None

    def cache_save(self, slot: int, filename: str, auth: Auth, timeout: float, model: str = "") -> Mapping[str, Any]:
        """Write a slot's KV cache to a file of the server's --slot-save-path. toki itself never does."""
        return self._slot_action(slot, "save", {"filename": filename}, auth, timeout, model)

    def cache_load(self, slot: int, filename: str, auth: Auth, timeout: float, model: str = "") -> Mapping[str, Any]:
        """Read a slot's KV cache from a file. toki itself never does: it changes answers."""
        return self._slot_action(slot, "restore", {"filename": filename}, auth, timeout, model)

    def cache_erase(self, slot: int, auth: Auth, timeout: float, model: str = "") -> Mapping[str, Any]:
        """Empty a slot; needs --slot-save-path too."""
        return self._slot_action(slot, "erase", {}, auth, timeout, model)

    def _slot_action(
        self, slot: int, action: str, body: Mapping[str, Any], auth: Auth, timeout: float, model: str
    ) -> Mapping[str, Any]:
        path = f"/slots/{slot}"
        content = _json(_for(model, body))
        answer = self._call("POST", self._base, path, auth, monotonic() + timeout, content, {"action": action})
        return _mapping(answer, path)

    def _tokenize(
        self,
        base: str,
        content: str | Sequence[int | str],
        auth: Auth,
        timeout: float,
        add_special: bool,
        parse_special: bool,
        model: str,
    ) -> npt.NDArray[np.int32]:
        body = {
            "content": content if isinstance(content, str) else list(content),
            "add_special": add_special,
            "parse_special": parse_special,
        }
        answer = _mapping(self._look("POST", base, "/tokenize", auth, timeout, _json(_for(model, body))), "/tokenize")
        return _ids(answer.get("tokens"))

    def _look(
        self, method: str, base: str, path: str, auth: Auth, timeout: float, body: bytes | None = None, model: str = ""
    ) -> Any:
        """A call that changes nothing on the server, so that it may be sent again on a broken kept connection.

        Kept connections now and then break at their next use (1 to 10 of 66 behind a streamed answer, build 10434).
        """
        deadline = monotonic() + timeout
        query = {"model": model} if model else {}
        try:
            return self._call(method, base, path, auth, deadline, body, query)
        except _Broken:
            return self._call(method, base, path, auth, deadline, body, query)

    def _admit(self, name: str, base: str, auth: Auth, deadline: float) -> None:
        """Raise ServerError where a call to `base` must not be made now."""

    def _call(
        self,
        method: str,
        base: str,
        path: str,
        auth: Auth,
        deadline: float,
        body: bytes | None = None,
        query: Mapping[str, str] | None = None,
    ) -> Any:
        """Send one request and read its JSON. `deadline`: time.monotonic(). Raises ServerError, never anything else."""
        name = f"{method} {path}"
        left = deadline - monotonic()
        if left <= 0:
            raise ServerError(f"{name}: no time left")
        if self._closed:
            raise ServerError(f"{name}: toki stops")
        self._admit(name, base, auth, deadline)
        try:
            with self._send(method, base + path, {**(query or {}), "autoload": "false"}, auth, body, left) as response:
                if response.status_code != 200:
                    raise ServerError(f"{name}: status {response.status_code}", response.status_code)
                content = _content(response, deadline, name)
        # what the library says may hold the address and the headers: it is not passed on
        except (requests.RequestException, HTTPError, ValueError, OSError) as error:
            kind = _Broken if _is_broken(error) else ServerError
            self._hung_up = self._hung_up or not _is_late(error)
            raise kind(f"{name}: {_cause(error)}") from None
        try:
            return json.loads(content)
        except (ValueError, RecursionError):
            raise ServerError(f"{name}: the answer is no JSON", 200) from None

    def _send(
        self, method: str, url: str, query: Mapping[str, str], auth: Auth, body: bytes | None, timeout: float
    ) -> requests.Response:
        """An answer whose body is still to be read. What a session of the library does beside that (redirects, cookies,
        proxies and .netrc of the environment) is not wanted here, and would take a third of the time of a call."""
        headers: dict[str, Any] = {"User-Agent": "toki", "Accept-Encoding": "identity", **auth.headers()}
        if body is not None:
            headers |= {"Content-Type": "application/json", "Content-Length": str(len(body))}
        request = requests.PreparedRequest()
        request.method, request.url, request.body = method, _address(url, tuple(query.items())), body
        request.prepare_headers(headers)
        self._notice()
        return self._adapter.send(request, stream=True, timeout=timeout, verify=self._verify)


@lru_cache(maxsize=256)
def _address(url: str, query: tuple[tuple[str, str], ...]) -> str:
    """A URL and its query as they are sent."""
    request = requests.PreparedRequest()
    request.prepare_url(url, query)
    assert request.url is not None
    return request.url


class _Behind(LlamaServerBackend):
    """A llama-server behind a server of servers. A call fails, as it does on a router, where its model is not up, or
    where a client waits for another one that is not: that may be taking this one's place, and the call would bring it
    back.

    Between the look at what runs and the call a client that does not go through toki could have the model swapped out:
    then the call loads it.
    """

    def __init__(
        self, servers: LlamaServerBackend, base_url: str, model: str, awaited: Callable[[], Collection[str]]
    ) -> None:
        super().__init__(base_url, servers._embed, servers._verify)
        self._servers = servers
        self._model = model
        self._awaited = awaited

    def arguments(self, auth: Auth, timeout: float, model: str) -> tuple[str, ...]:
        return self._servers.running(auth, timeout).get(self._model, ())

    def _admit(self, name: str, base: str, auth: Auth, deadline: float) -> None:
        if base != self._base:
            return
        running = self._servers.running(auth, deadline - monotonic())
        if self._model not in running:
            raise ServerError(f"{name}: the model is not loaded", 400)
        if not running.keys() >= set(self._awaited()):
            raise ServerError(f"{name}: another model is being loaded")


class _Broken(ServerError):
    """The connection ended before a whole answer was there: a kept connection that the server had given up, or that
    `hung_up` closed meanwhile in another thread."""


class _Adapter(HTTPAdapter):
    """Knows its open connections, those in use too."""

    def __init__(self, **options: Any) -> None:
        self._opened: WeakSet[Any] = WeakSet()
        self._lock = Lock()
        super().__init__(**options)

    def init_poolmanager(self, *args: Any, **options: Any) -> None:
        super().init_poolmanager(*args, **options)
        kinds = self.poolmanager.pool_classes_by_scheme
        self.poolmanager.pool_classes_by_scheme = {scheme: self._noting(kind) for scheme, kind in kinds.items()}

    def _noting(self, kind: type[HTTPConnectionPool]) -> type[HTTPConnectionPool]:
        """Pools whose connections are known here."""

        def new(pool: HTTPConnectionPool) -> Any:
            connection = kind._new_conn(pool)
            with self._lock:
                self._opened.add(connection)
            return connection

        return type(kind.__name__, (kind,), {"_new_conn": new})

    def hang_up(self) -> None:
        """End all calls, from any thread."""
        with self._lock:
            opened = list(self._opened)
        for connection in opened:
            shut(connection)


def shut(connection: http.client.HTTPConnection) -> None:
    """End what is under way on a connection, from any thread."""
    if connection.sock is not None:
        with contextlib.suppress(OSError):
            connection.sock.shutdown(socket.SHUT_RDWR)


def _idle(pool: HTTPConnectionPool | None) -> list[HTTPConnection]:
    """Its connections that are open and not in use."""
    kept = list(getattr(pool and pool.pool, "queue", ()))  # at once: other threads take from it
    return [one for one in kept if one is not None and one.sock is not None]


def _is_broken(error: Exception) -> bool:
    return any(isinstance(each, ProtocolError | ClosedPoolError) for each in (error, *error.args))


def _is_late(error: Exception) -> bool:
    return any(isinstance(each, requests.Timeout | ReadTimeout) for each in (error, *error.args))


def _cause(error: Exception) -> str:
    if _is_late(error):
        return "no answer in time"
    if _is_broken(error):
        return "the connection broke"
    if isinstance(error, requests.ConnectionError):
        return "no connection"
    return f"could not be sent ({type(error).__name__})"


def _content(response: requests.Response, deadline: float, name: str) -> bytes:
    parts = []
    size = 0
    for part in response.iter_content(CHUNK):
        size += len(part)
        if size > MAX_ANSWER:
            raise ServerError(f"{name}: the answer is larger than {MAX_ANSWER} bytes", 200)
        if monotonic() > deadline:
            raise ServerError(f"{name}: the answer did not end in time", 200)
        parts.append(part)
    return b"".join(parts)


def _words(command: object) -> tuple[str, ...]:
    """A command line as words; empty where it can't be parted."""
    try:
        return tuple(shlex.split(command)) if isinstance(command, str) else ()
    except ValueError:
        return ()


def _for(model: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
    """A router finds the model in the body of a POST."""
    return {**body, "model": model} if model else body


def _json(body: Mapping[str, Any]) -> bytes:
    """A lone surrogate is left for the server to refuse."""
    return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")


def _mapping(value: Any, name: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise ServerError(f"{name}: the answer is no object", 200)
    return value


def _count(values: Mapping[str, Any], key: str, name: str, most: int = _LARGEST_ID) -> int:
    value = values.get(key)
    if type(value) is not int or not 0 <= value <= most:
        raise ServerError(f"{name}: {key} is no count", 200)
    return value


def _text(values: Mapping[str, Any], key: str, name: str, default: str | None = None) -> str:
    value = values.get(key, default)
    if not isinstance(value, str):
        raise ServerError(f"{name}: {key} is no text", 200)
    return value


def _flag(values: Mapping[str, Any], key: str, name: str, default: bool | None = None) -> bool:
    value = values.get(key, default)
    if not isinstance(value, bool):
        raise ServerError(f"{name}: {key} is neither true nor false", 200)
    return value


def _props(answer: Mapping[str, Any]) -> Props:
    """A router that was not asked for a model answers with {"role": "router"} and little else."""
    router = answer.get("role") == "router"
    settings = _mapping(answer.get("default_generation_settings", {}), "/props")
    modalities = _mapping(answer.get("modalities", {}), "/props")
    return Props(
        total_slots=0 if router else _count(answer, "total_slots", "/props", MOST_SLOTS),
        n_ctx=0 if router else _count(settings, "n_ctx", "/props"),
        build=_text(answer, "build_info", "/props", ""),
        model=_text(answer, "model_path", "/props", ""),
        chat_template=_text(answer, "chat_template", "/props", ""),
        bos_token=_text(answer, "bos_token", "/props", ""),
        eos_token=_text(answer, "eos_token", "/props", ""),
        is_sleeping=_flag(answer, "is_sleeping", "/props", default=False),
        modalities={key: value for key, value in modalities.items() if isinstance(value, bool)},
        media_marker=_text(answer, "media_marker", "/props", ""),
        router=router,
    )


def _slot(slot: Mapping[str, Any]) -> SlotView:
    """A slot that was never used shows neither a task nor tokens: it is empty."""
    used = slot.get("id_task", -1) != -1
    return SlotView(
        id=_count(slot, "id", "/slots"),
        busy=_flag(slot, "is_processing", "/slots"),
        n_tokens=_count(slot, "n_prompt_tokens", "/slots") if "n_prompt_tokens" in slot else None if used else 0,
        task=_count(slot, "id_task", "/slots") if used else -1,
        n_ctx=_count(slot, "n_ctx", "/slots"),
    )


def _ids(tokens: Any) -> npt.NDArray[np.int32]:
    if not isinstance(tokens, list) or not set(map(type, tokens)) <= {int}:
        raise ServerError("/tokenize: tokens is no list of ids", 200)
    if tokens and not (min(tokens) >= 0 and max(tokens) <= _LARGEST_ID):
        raise ServerError("/tokenize: an id is out of range", 200)
    return np.array(tokens, np.int32)


def _vectors(answer: Mapping[str, Any], expected: int) -> list[npt.NDArray[np.float32]]:
    """The `expected` vectors of an OpenAI-shaped answer in the order of the input."""
    rows: dict[int, npt.NDArray[np.float32]] = {}
    data = answer.get("data")
    for row in data if isinstance(data, list) else []:
        entry = _mapping(row, "/v1/embeddings")
        values = entry.get("embedding")
        if not isinstance(values, list) or not values or not set(map(type, values)) <= {int, float}:
            raise ServerError("/v1/embeddings: a vector is no list of numbers", 200)
        try:
            vector = np.array(values, np.float64)
        except OverflowError:
            raise ServerError("/v1/embeddings: a number is out of range", 200) from None
        with np.errstate(over="ignore"):  # infinite then, which no average accepts
            rows[_count(entry, "index", "/v1/embeddings")] = vector.astype(np.float32)
    if sorted(rows) != list(range(expected)):
        raise ServerError("/v1/embeddings: not one vector for each input", 200)
    return [rows[index] for index in range(expected)]
