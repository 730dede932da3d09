"""What LlamaServerBackend sends, and what it makes of answers that no real server gives. Real ones: tests/live."""

from __future__ import annotations

import gzip
import json
import resource
import socket
import threading
import time
from collections.abc import Callable
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextlib import suppress
from dataclasses import dataclass
from dataclasses import field
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from toki import server as module
from toki.engine.events import SlotView
from toki.server import MISSING
from toki.server import Auth
from toki.server import LlamaServerBackend
from toki.server import ServerError
from toki.server import _props
from toki.server import _slot

AUTH = Auth("Bearer secret-one", "secret-two")
TIMEOUT = 10.0
PROPS = {
    "total_slots": 4,
    "default_generation_settings": {"n_ctx": 2048},
    "build_info": "b1-x",
    "model_path": "/m.gguf",
    "chat_template": "{{ x }}",
    "bos_token": "<s>",
    "eos_token": "</s>",
    "is_sleeping": False,
    "modalities": {"vision": True, "odd": 3},
    "media_marker": "<__media__>",
}


@dataclass
class Wire:
    """A server on loopback that answers with the bytes which `answer` gives; None hangs up without an answer."""

    answer: Callable[[str, bytes], bytes | None]
    url: str = ""
    requests: list[tuple[str, dict[str, str], bytes]] = field(default_factory=list)  # line, headers, body
    connections: int = 0

    def serve(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            self.connections += 1
            threading.Thread(target=self._connection, args=(connection,), daemon=True).start()

    def _connection(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as stream:
            while line := stream.readline().decode().strip():
                headers = {}
                while header := stream.readline().decode("latin-1").strip():
                    name, _, value = header.partition(":")
                    headers[name.lower()] = value.strip()
                body = stream.read(int(headers.get("content-length", 0)))
                self.requests.append((line, headers, body))
                answer = self.answer(line, body)
                if answer is None:
                    return
                try:
                    connection.sendall(answer)
                except OSError:
                    return  # a client that gave up
                if b"Connection: close" in answer:
                    return


@contextmanager
def wire(answer: Callable[[str, bytes], bytes | None]) -> Iterator[Wire]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        served = Wire(answer, address(listener))
        thread = threading.Thread(target=served.serve, args=(listener,))
        thread.start()
        try:
            yield served
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


def address(listener: socket.socket) -> str:
    return f"http://127.0.0.1:{listener.getsockname()[1]}"


def http(body: Any, status: int = 200, headers: str = "") -> bytes:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return f"HTTP/1.1 {status} X\r\nContent-Length: {len(content)}\r\n{headers}\r\n".encode() + content


@contextmanager
def backend(url: str, embed_url: str = "") -> Iterator[LlamaServerBackend]:
    made = LlamaServerBackend(url, embed_url)
    try:
        yield made
    finally:
        made.close()


def test_sends_only_the_clients_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    cookie = "Set-Cookie: a=b\r\n"
    with wire(lambda *_: http(PROPS, headers=cookie)) as served, backend(served.url + "/pre/fix/") as server:
        server.props(AUTH, TIMEOUT)
        server.props(Auth(), TIMEOUT, model="a b&c")
    (first, headers, _), (second, bare, _) = served.requests
    assert first == "GET /pre/fix/props?autoload=false HTTP/1.1"
    assert second == "GET /pre/fix/props?model=a+b%26c&autoload=false HTTP/1.1"
    assert headers["authorization"] == "Bearer secret-one"
    assert headers["x-api-key"] == "secret-two"
    assert set(headers) - set(bare) == {"authorization", "x-api-key"}
    assert set(bare) == {"host", "user-agent", "accept-encoding"}
    assert served.connections == 1  # kept alive


def test_credentials_leave_as_they_came() -> None:
    odd = b"Bearer \xc3\xa9\xff".decode("utf-8", "surrogateescape")
    assert Auth(odd).headers() == {"Authorization": b"Bearer \xc3\xa9\xff"}
    assert "secret" not in repr(AUTH)


def test_posts_name_the_model_in_the_body() -> None:
    with wire(lambda *_: http({"tokens": [1]})) as served, backend(served.url) as server:
        server.tokenize("né", AUTH, TIMEOUT, add_special=True, model="m")
        server.tokenize(["a", 5], AUTH, TIMEOUT, add_special=False, parse_special=False)
    (line, headers, body), (_, _, mixed) = served.requests
    assert line == "POST /tokenize?autoload=false HTTP/1.1"
    assert headers["content-type"] == "application/json"
    assert json.loads(body) == {"content": "né", "add_special": True, "parse_special": True, "model": "m"}
    assert json.loads(mixed) == {"content": ["a", 5], "add_special": False, "parse_special": False}


def test_a_body_is_counted_as_it_is() -> None:
    with wire(lambda *_: http({"input_tokens": 11, "object": "x"})) as served, backend(served.url) as server:
        assert server.count("/v1/messages/count_tokens", b'{"a": "\xc3\xa9"}', AUTH, TIMEOUT) == 11
    ((line, _, body),) = served.requests
    assert line == "POST /v1/messages/count_tokens?autoload=false HTTP/1.1"
    assert body == b'{"a": "\xc3\xa9"}'


@pytest.mark.parametrize("counted", [None, -1, 1.5, True, "11", 2**31])
def test_odd_counts_are_refused(counted: Any) -> None:
    with (
        wire(lambda *_: http({"input_tokens": counted})) as served,
        backend(served.url) as server,
        pytest.raises(ServerError, match="input_tokens is no count"),
    ):
        server.count("/v1/messages/count_tokens", b"{}", AUTH, TIMEOUT)


def test_slot_actions_name_the_slot_and_the_file() -> None:
    with wire(lambda *_: http({"id_slot": 2})) as served, backend(served.url) as server:
        assert server.cache_save(2, "f", AUTH, TIMEOUT) == {"id_slot": 2}
        server.cache_load(2, "f", AUTH, TIMEOUT)
        server.cache_erase(2, AUTH, TIMEOUT, model="m")
    assert [(line.split()[1], body) for line, _, body in served.requests] == [
        ("/slots/2?action=save&autoload=false", b'{"filename":"f"}'),
        ("/slots/2?action=restore&autoload=false", b'{"filename":"f"}'),
        ("/slots/2?action=erase&autoload=false", b'{"model":"m"}'),
    ]


def breaks_second(requests: list[bytes]) -> Callable[[str, bytes], bytes | None]:
    """Answers, then hangs up on the second request: what a given-up kept connection looks like."""

    def answer(line: str, body: bytes) -> bytes | None:
        requests.append(body)
        return None if len(requests) == 2 else http({"prompt": "p", "tokens": [7]})

    return answer


def test_a_look_up_is_sent_again_on_a_broken_kept_connection() -> None:
    seen: list[bytes] = []
    with wire(breaks_second(seen)) as served, backend(served.url) as server:
        assert server.apply_template(b"{}", AUTH, TIMEOUT) == "p"
        assert server.apply_template(b"[]", AUTH, TIMEOUT) == "p"
    assert seen == [b"{}", b"[]", b"[]"]
    assert served.connections == 2


def test_a_kept_connection_that_the_server_closed_is_told_once() -> None:
    closes = "X-Says: Connection: close\r\n"  # to the server of these tests, not to the client
    answers = [http([]), http([], headers=closes), http([])]
    with wire(lambda *_: answers[len(served.requests) - 1]) as served, backend(served.url) as server:
        assert not server.hung_up()  # none is kept
        server.slots(AUTH, TIMEOUT)
        assert not server.hung_up()
        server.slots(AUTH, TIMEOUT)
        deadline = time.monotonic() + TIMEOUT
        while not server.hung_up():
            assert time.monotonic() < deadline
            time.sleep(0.002)
        assert not server.hung_up()
        server.slots(AUTH, TIMEOUT)
        assert not server.hung_up()
    assert served.connections == 2


def test_a_look_up_outlives_it_that_another_thread_closes_the_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    with wire(lambda *_: http([])) as served, backend(served.url) as server:
        choose = server._adapter.get_connection_with_tls_context
        chosen: list[object] = []

        def closed_at_first(*args: Any, **kwargs: Any) -> Any:
            pool = choose(*args, **kwargs)
            if not chosen:  # as urllib3 1.26 does when its manager is cleared
                pool.close()
                server._adapter.close()
            chosen.append(pool)
            return pool

        monkeypatch.setattr(server._adapter, "get_connection_with_tls_context", closed_at_first)
        assert server.slots(AUTH, TIMEOUT) == ()
    assert len(chosen) == 2


def test_a_kept_connection_that_a_call_found_closed_is_told_too() -> None:
    answers = [http([], headers="X-Says: Connection: close\r\n"), http([])]
    with wire(lambda *_: answers[len(served.requests) - 1]) as served, backend(served.url) as server:
        server.slots(AUTH, TIMEOUT)
        time.sleep(0.05)  # it is closed by then
        server.slots(AUTH, TIMEOUT)
        assert server.hung_up()
        assert not server.hung_up()
    assert served.connections == 2


def test_a_server_that_was_not_there_has_hung_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = address(listener)
    with backend(url) as server:
        with pytest.raises(ServerError, match="no connection"):
            server.slots(AUTH, TIMEOUT)
        assert server.hung_up()
        assert not server.hung_up()


def test_a_connection_that_the_server_closed_as_it_said_tells_nothing() -> None:
    with wire(lambda *_: http([], headers="Connection: close\r\n")) as served, backend(served.url) as server:
        server.slots(AUTH, TIMEOUT)
        time.sleep(0.05)  # it is closed by then
        assert not server.hung_up()


def test_a_completion_is_never_sent_again() -> None:
    seen: list[bytes] = []
    with wire(breaks_second(seen)) as served, backend(served.url) as server:
        server.completion({"prompt": [1]}, AUTH, TIMEOUT)
        with pytest.raises(ServerError, match=r"^POST /completion: the connection broke$"):
            server.completion({"prompt": [2]}, AUTH, TIMEOUT)
    assert seen == [b'{"prompt":[1]}', b'{"prompt":[2]}']


def test_a_look_up_is_sent_twice_at_most() -> None:
    with (
        wire(lambda *_: None) as served,
        backend(served.url) as server,
        pytest.raises(ServerError, match="the connection broke"),
    ):
        server.slots(AUTH, TIMEOUT)
    assert len(served.requests) == 2


def test_a_look_up_is_sent_again_where_its_answer_was_cut_short() -> None:
    answers = [b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 100\r\n\r\n[]", http([])]
    with wire(lambda *_: answers[len(served.requests) - 1]) as served, backend(served.url) as server:
        assert server.slots(AUTH, TIMEOUT) == ()
    assert len(served.requests) == 2


@pytest.mark.parametrize(
    ("answer", "message", "status"),
    [
        (http({}, 401), "GET /slots: status 401", 401),
        (http({}, 302, "Location: /props\r\n"), "GET /slots: status 302", 302),
        (http(b"[1,"), "GET /slots: the answer is no JSON", 200),
        (http(b"[" * 100_000), "GET /slots: the answer is no JSON", 200),
        (http(b"\xff\xfe[]x"), "GET /slots: the answer is no JSON", 200),
        (http({}), "/slots: the answer is no list", 200),
        (http([3]), "/slots: the answer is no object", 200),
        (b"nonsense\r\n\r\n", "GET /slots: the connection broke", None),
    ],
)
def test_wrong_answers_become_server_errors(answer: bytes, message: str, status: int | None) -> None:
    with wire(lambda *_: answer) as served, backend(served.url) as server, pytest.raises(ServerError) as caught:
        server.slots(AUTH, TIMEOUT)
    assert str(caught.value) == message
    assert caught.value.status == status


def test_nobody_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = address(listener)
    with backend(url) as server, pytest.raises(ServerError, match=r"no connection$") as caught:
        server.slots(AUTH, TIMEOUT)
    assert caught.value.status is None


@pytest.mark.parametrize("url", ["http://127.0.0.1:99999", "nonsense://x", "http://[", "http://"])
def test_a_bad_address_is_a_server_error(url: str) -> None:
    with backend(url) as server, pytest.raises(ServerError, match=r"^GET /props: "):
        server.props(AUTH, TIMEOUT)


def test_errors_tell_no_secrets() -> None:
    with backend("http://user:hidden@127.0.0.1:1") as server, pytest.raises(ServerError) as caught:
        server.props(Auth("Bearer secret\nX: y"), TIMEOUT)
    assert str(caught.value) == "GET /props: could not be sent (InvalidHeader)"
    assert caught.value.__suppress_context__


def test_a_silent_server_times_out() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent, backend(address(silent)) as server:
        began = time.monotonic()
        with pytest.raises(ServerError, match=r"^GET /slots: no answer in time$"):
            server.slots(AUTH, 0.1)
        assert time.monotonic() - began < 5
        with pytest.raises(ServerError, match="no time left"):
            server.slots(AUTH, 0)


def test_closing_ends_what_is_under_way() -> None:
    """A primer may take minutes, and no process ends before its threads."""
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        backend(address(silent)) as server,
        ThreadPoolExecutor(1) as pool,
    ):
        call = pool.submit(server.slots, AUTH, 60.0)
        connection, _ = silent.accept()
        with connection:
            connection.recv(2**16)
            began = time.monotonic()
            server.close()
            with pytest.raises(ServerError):
                call.result(20)
        assert time.monotonic() - began < 10


def test_an_endless_answer_ends_in_time() -> None:
    def endless(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection:
            try:
                connection.recv(65536)
                connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
                while True:
                    connection.sendall(b"1\r\n \r\n")
            except OSError:
                return

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=endless, args=(listener,))
        thread.start()
        with (
            backend(address(listener)) as server,
            pytest.raises(ServerError, match="the answer did not end in time"),
        ):
            server.slots(AUTH, 0.2)
        thread.join()


def test_a_huge_answer_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_ANSWER", 1000)
    with (
        wire(lambda *_: http([1] * 400)) as served,
        backend(served.url) as server,
        pytest.raises(ServerError, match="larger than 1000 bytes"),
    ):
        server.slots(AUTH, TIMEOUT)


def test_a_bomb_is_refused_before_it_is_unpacked_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_ANSWER", 2**20)
    bomb = gzip.compress(b'{"tokens":[' + b" " * (40 * 2**20))
    head = f"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: {len(bomb)}\r\n\r\n".encode()
    with wire(lambda *_: head + bomb) as served, backend(served.url) as server:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        with pytest.raises(ServerError, match="larger than"):
            server.tokenize("a", AUTH, TIMEOUT, add_special=True)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 16 * 1024  # KiB


def test_props_are_read() -> None:
    props = _props(PROPS)
    assert (props.total_slots, props.n_ctx, props.router, props.is_sleeping) == (4, 2048, False, False)
    assert (props.bos_token, props.eos_token, props.media_marker) == ("<s>", "</s>", "<__media__>")
    assert (props.build, props.model, props.chat_template) == ("b1-x", "/m.gguf", "{{ x }}")
    assert props.modalities == {"vision": True}


def test_a_router_without_a_model_has_no_slots() -> None:
    props = _props({"role": "router"})
    assert (props.router, props.total_slots, props.n_ctx) == (True, 0, 0)


@pytest.mark.parametrize(
    "change",
    [
        {"total_slots": None},
        {"total_slots": True},
        {"total_slots": -1},
        {"total_slots": 2**31},
        {"default_generation_settings": []},
        {"default_generation_settings": {}},
        {"chat_template": 5},
        {"is_sleeping": 1},
        {"modalities": "vision"},
    ],
)
def test_odd_props_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ServerError, match=r"^/props: "):
        _props({**PROPS, **change})


ARGS = ["llama-server", "-np", "2"]


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        ([{"id": "other"}, {"id": "one", "status": {"args": ARGS}}], tuple(ARGS)),
        ([{"id": "x", "aliases": ["one"], "status": {"args": ARGS}}], tuple(ARGS)),
        ([{"id": "x", "aliases": "one", "status": {"args": ARGS}}], ()),
        ([{"id": "one", "status": {"args": ["a", 3]}}], ()),
        ([{"id": "one", "status": "loaded"}, 3], ()),
        (None, ()),
    ],
)
def test_the_command_line_that_a_router_names(entries: Any, expected: tuple[str, ...]) -> None:
    with wire(lambda *_: http({"data": entries})) as server, backend(server.url) as made:
        assert made.arguments(AUTH, TIMEOUT, "one") == expected


def test_a_model_of_a_router_by_each_of_its_names() -> None:
    entries = [{"id": "x", "aliases": ["one", 3, "x"]}, {"id": "y", "aliases": "z"}, {"id": 5, "aliases": ["a"]}, 3]
    with wire(lambda *_: http({"data": entries})) as server, backend(server.url) as made:
        assert made.names(AUTH, TIMEOUT) == {"x": "x", "one": "x", "y": "y"}


def test_the_models_that_a_server_of_servers_has_up() -> None:
    up = [{"model": "a b", "state": "ready", "cmd": "llama-server -np 2"}, {"model": "c", "state": "ready", "cmd": "'"}]
    entries = [*up, {"model": "d", "state": "starting"}, {"model": 3, "state": "ready"}, 3]
    asked: list[str] = []

    def answer(head: str, _: bytes) -> bytes:
        asked.append(head.split(" ")[1].partition("?")[0])
        return http({"running": entries} if asked[-1] == "/running" else [])

    with wire(answer) as server, backend(server.url) as made:
        assert made.running(AUTH, TIMEOUT) == {"a b": ("llama-server", "-np", "2"), "c": ()}
        awaited: list[str] = []
        ready, starting = made.behind("a b", lambda: awaited), made.behind("d", lambda: awaited)
        assert ready.arguments(AUTH, TIMEOUT, "any") == ("llama-server", "-np", "2")
        assert ready.slots(AUTH, TIMEOUT) == ()
        with pytest.raises(ServerError, match="the model is not loaded") as caught:
            starting.slots(AUTH, TIMEOUT)
        awaited += ["a b", "c"]  # both up: neither takes the place of the other
        assert ready.slots(AUTH, TIMEOUT) == ()
        awaited += ["d"]
        with pytest.raises(ServerError, match="another model is being loaded"):
            ready.slots(AUTH, TIMEOUT)
        for each in (ready, starting):
            each.close()
    assert caught.value.status == 400
    assert [path for path in asked if path != "/running"] == 2 * ["/upstream/a%20b/slots"]


@pytest.mark.parametrize("verify", [True, False, "/authorities.pem"])
def test_certificates_count_for_what_stands_behind_a_server_of_servers_too(
    verify: bool | str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[bool | str] = []

    def send(*_: Any, verify: bool | str, **__: Any) -> None:
        seen.append(verify)
        raise OSError

    monkeypatch.setattr("requests.adapters.HTTPAdapter.send", send)
    made = LlamaServerBackend("https://server", verify=verify)
    monkeypatch.setattr(made, "running", lambda *_: {"a": ()})
    for one in (made, made.behind("a", list)):
        with pytest.raises(ServerError):
            one.slots(AUTH, TIMEOUT)
        one.close()
    assert seen == [verify, verify]


@pytest.mark.parametrize("body", [{"running": 3}, {}])
def test_no_server_of_servers(body: dict[str, Any]) -> None:
    with wire(lambda *_: http(body)) as server, backend(server.url) as made, pytest.raises(ServerError) as caught:
        made.running(AUTH, TIMEOUT)
    assert caught.value.status in MISSING


def test_slots_are_read() -> None:
    never = {"id": 3, "n_ctx": 2048, "is_processing": False}
    used = {**never, "id": 0, "id_task": 17, "n_prompt_tokens": 0, "is_processing": True}
    older = {**never, "id_task": 17}
    assert _slot(never) == SlotView(3, busy=False, n_tokens=0, task=-1, n_ctx=2048)
    assert _slot(used) == SlotView(0, busy=True, n_tokens=0, task=17, n_ctx=2048)
    assert _slot(older).n_tokens is None


@pytest.mark.parametrize(
    "change",
    [{"id": "0"}, {"id": -1}, {"is_processing": 0}, {"n_ctx": None}, {"id_task": 1.5}, {"n_prompt_tokens": -2}],
)
def test_odd_slots_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ServerError, match=r"^/slots: "):
        _slot({"id": 0, "n_ctx": 8, "is_processing": False, **change})


@pytest.mark.parametrize("tokens", [None, 5, "12", [1.0], [True], ["1"], [[1]], [-1], [2**31], [10**400]])
def test_odd_tokens_are_refused(tokens: Any) -> None:
    with (
        wire(lambda *_: http({"tokens": tokens})) as served,
        backend(served.url) as server,
        pytest.raises(ServerError, match=r"^/tokenize: "),
    ):
        server.tokenize("a", AUTH, TIMEOUT, add_special=True)


def test_tokens_are_int32() -> None:
    with wire(lambda *_: http({"tokens": [0, 2**31 - 1]})) as served, backend(served.url) as server:
        ids = server.tokenize("a", AUTH, TIMEOUT, add_special=True)
    assert ids.dtype == np.int32
    assert ids.tolist() == [0, 2**31 - 1]


ODD = st.sampled_from([None, True, -1, 2**31, 10**30, 0.5, float("nan"), "x", "router", [], [1], {}, {"n_ctx": "y"}])


@given(value=ODD, other=ODD, key=st.sampled_from([*PROPS, "role", "id", "n_ctx", "id_task", "is_processing"]))
def test_whatever_a_lying_server_says_is_read_or_refused(value: Any, other: Any, key: str) -> None:
    for read, known in ((_props, PROPS), (_slot, {"id": 0, "n_ctx": 8, "is_processing": False})):
        with suppress(ServerError):
            read({**known, "n_prompt_tokens": other, key: value})


def embedding_server(vectors: Any, n_tokens: int = 1000, n_ctx: int = 256) -> Callable[[str, bytes], bytes]:
    def answer(line: str, body: bytes) -> bytes:
        if "/tokenize" in line:
            return http({"tokens": list(range(n_tokens))})
        if "/props" in line:
            return http({**PROPS, "default_generation_settings": {"n_ctx": n_ctx}})
        return http({"data": vectors(json.loads(body)["input"]) if callable(vectors) else vectors})

    return answer


def first_ids(inputs: list[list[int]]) -> list[dict[str, Any]]:
    """A direction for each segment, out of order."""
    return [{"index": n, "embedding": [1.0, float(ids[0])]} for n, ids in reversed(list(enumerate(inputs)))]


def test_a_long_text_is_embedded_in_overlapping_segments() -> None:
    with wire(embedding_server(first_ids)) as served, backend("http://127.0.0.1:1", served.url + "/e") as server:
        vector = server.embed("text", AUTH, TIMEOUT)
    assert [line.split()[1] for line, _, _ in served.requests] == [
        "/e/tokenize?autoload=false",
        "/e/props?autoload=false",
        "/e/v1/embeddings?autoload=false",
    ]
    parts = json.loads(served.requests[-1][2])["input"]
    assert [part[0] for part in parts] == [0, 192, 384, 576, 768]
    assert parts[-1][-1] == 999
    assert max(map(len, parts)) == 256
    assert vector.dtype == np.float32
    assert np.linalg.norm(vector) == pytest.approx(1, abs=1e-6)


def test_a_short_text_is_embedded_at_once() -> None:
    with wire(embedding_server(first_ids, n_tokens=20)) as served, backend("http://127.0.0.1:1", served.url) as server:
        assert server.embed("text", AUTH, TIMEOUT).tolist() == [1.0, 0.0]
    assert [json.loads(body) for line, _, body in served.requests if "embeddings" in line] == [
        {"input": [list(range(20))]}
    ]


@pytest.mark.parametrize(
    ("vectors", "n_tokens", "n_ctx"),
    [
        (None, 20, 256),
        ([], 20, 256),
        ([{"index": 0}], 20, 256),
        ([{"index": 0, "embedding": []}], 20, 256),
        ([{"index": 0, "embedding": ["a"]}], 20, 256),
        ([{"index": 0, "embedding": [0.0]}], 20, 256),
        ([{"index": 0, "embedding": [1e300, 1.0]}], 20, 256),
        ([{"index": 0, "embedding": [10**400]}], 20, 256),
        ([{"index": 0, "embedding": [float("nan")]}], 20, 256),
        ([{"index": 1, "embedding": [1.0]}], 20, 256),
        ([{"index": -1, "embedding": [1.0]}], 20, 256),
        ([{"index": 0, "embedding": [1.0]}, {"index": 1, "embedding": [1.0, 2.0]}], 300, 256),
        ([{"index": 0, "embedding": [1.0]}], 0, 256),
        ([{"index": 0, "embedding": [1.0]}], 300, 64),
        ([5], 20, 256),
    ],
)
def test_odd_embeddings_are_server_errors(vectors: Any, n_tokens: int, n_ctx: int) -> None:
    answer = embedding_server(vectors, n_tokens, n_ctx)
    with wire(answer) as served, backend("http://127.0.0.1:1", served.url) as server, pytest.raises(ServerError):
        server.embed("text", AUTH, TIMEOUT)


def test_no_embedding_server() -> None:
    with backend("http://127.0.0.1:1") as server, pytest.raises(ServerError, match="no embedding server"):
        server.embed("text", AUTH, TIMEOUT)
