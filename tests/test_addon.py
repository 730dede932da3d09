from __future__ import annotations

import gc
import shutil
import sqlite3
import sys
from collections.abc import AsyncIterator
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from mitmproxy.addons.proxyserver import Proxyserver
from mitmproxy.connection import ConnectionState
from mitmproxy.connection import Server
from mitmproxy.exceptions import OptionsError
from mitmproxy.flow import Error
from mitmproxy.http import HTTPFlow
from mitmproxy.http import Response
from mitmproxy.proxy.mode_specs import ProxyMode
from mitmproxy.proxy.server_hooks import ServerConnectionHookData
from mitmproxy.test import taddons
from mitmproxy.test import tflow
from mitmproxy.test import tutils
from tests.scripted import Scripted
from tests.scripted import scripted
from tests.scripted import until

from toki.addon import MOST_PREFIXES
from toki.addon import Toki
from toki.tap import Tap

pytestmark = pytest.mark.proxy

ROOT = Path(__file__).resolve().parent.parent
BODY = b'{"prompt": "Once upon a time"}'
ANSWER = b'{"content":"A","stop":true,"id_slot":3,"timings":{"cache_n":0,"prompt_n":16,"predicted_n":1}}'


def proxy() -> Any:
    """A mitmproxy without network. Its test helpers are untyped."""
    return taddons.context(Proxyserver())  # type: ignore[no-untyped-call]


class Bench:
    """The addon in a mitmproxy without network, before a scripted server."""

    def __init__(self, script: Scripted, db: Path) -> None:
        self.script = script
        self.db = db
        self.addon = Toki()
        self.context: Any = proxy()
        self.context.master.addons.add(self.addon)
        self.context.configure(self.addon, toki_server=[script.url], toki_db=str(db))
        self.addon.running()

    def flow(self, url: str = "/completion", method: str = "POST", **headers: str) -> HTTPFlow:
        """A live flow of a request to `url` (below the server's URL unless it has a host)."""
        parts = urlsplit(url if "://" in url else self.script.url + url)
        request = tutils.treq(
            method=method.encode(),
            scheme=parts.scheme.encode(),
            host=parts.hostname,
            port=parts.port or 443,
            path=parts.path.encode(),
            content=BODY,
        )
        for name, value in headers.items():
            request.headers[name] = value
        flow = tflow.tflow(req=request)
        flow.live = True
        return flow

    async def begin(self, flow: HTTPFlow) -> HTTPFlow:
        self.addon.requestheaders(flow)
        await self.addon.request(flow)
        return flow

    async def answer(self, flow: HTTPFlow, content: bytes = ANSWER, kind: str = "application/json") -> list[bytes]:
        """Let the server answer; what reaches the client."""
        flow.response = Response.make(200, headers={"content-type": kind})
        flow.response.data.content = None
        self.addon.responseheaders(flow)
        tap = flow.response.stream
        assert isinstance(tap, Tap)
        passed = [*(tap(content[n : n + 9]) for n in range(0, len(content), 9)), *tap(b"")]
        await self.addon.response(flow)
        return passed

    def rows(self) -> list[Any]:
        if not self.db.exists():
            return []
        db = sqlite3.connect(self.db)
        try:
            return db.execute("SELECT endpoint, status, evaluated, outcome FROM requests ORDER BY id").fetchall()
        except sqlite3.OperationalError:  # not migrated yet
            return []
        finally:
            db.close()


@pytest.fixture
def script() -> Iterator[Scripted]:
    with scripted() as script:
        yield script


@pytest.fixture
async def bench(script: Scripted, tmp_path: Path) -> AsyncIterator[Bench]:
    bench = Bench(script, tmp_path / "toki.db")
    yield bench
    bench.addon.done()


async def test_a_prompt_is_released_tapped_and_recorded(bench: Bench) -> None:
    flow = await bench.begin(bench.flow())
    assert flow.request.stream is False
    assert flow.request.raw_content == BODY
    assert b"".join(await bench.answer(flow)) == ANSWER
    assert flow.response is not None
    assert flow.response.raw_content == ANSWER  # for mitmproxy's views
    await until(bench.rows)
    assert bench.rows() == [("/completion", 200, 16, "miss")]


async def test_a_body_that_was_streamed_already_is_recorded(bench: Bench) -> None:
    flow = bench.flow()
    flow.request.data.content = None
    await bench.begin(flow)
    assert flow.request.raw_content is None
    await bench.answer(flow)
    await until(bench.rows)
    assert bench.rows() == [("/completion", 200, 16, "miss")]


@pytest.mark.parametrize(("path", "relayed"), [(b"/completion?q=e", True), ("/completion?q=é".encode(), False)])
async def test_a_path_that_the_relay_does_not_take_goes_without_it(bench: Bench, path: bytes, relayed: bool) -> None:
    bench.context.configure(bench.addon, toki_ping_s=1)
    flow = bench.flow()
    flow.request.data.path = path
    flow.request.content = b'{"prompt": "Once upon a time", "stream": true}'
    await bench.begin(flow)
    assert (flow.server_conn.via is not None) is relayed
    await bench.answer(flow)


async def test_a_steered_body_has_the_right_length(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    async def hold(_: object) -> bytes:
        return b'{"id_slot":2,"cache_prompt":true,"prompt": "Once upon a time"}'

    monkeypatch.setattr("toki.exchange.Exchange.hold", hold)
    flow = await bench.begin(bench.flow())
    assert flow.request.raw_content == await hold(None)
    assert flow.request.headers["content-length"] == str(len(await hold(None)))


@pytest.mark.parametrize(
    ("url", "method"),
    [
        ("/completion", "GET"),
        ("/tokenize", "POST"),
        ("/v1/messages/count_tokens", "POST"),
        ("/v1/embeddings", "POST"),
        ("http://127.0.0.1:1/completion", "POST"),
        ("https://api.example.com/v1/chat/completions", "POST"),
    ],
)
async def test_other_flows_stream_by(bench: Bench, url: str, method: str) -> None:
    flow = bench.flow(url, method)
    bench.addon.requestheaders(flow)
    tap = flow.request.stream
    assert isinstance(tap, Tap)
    flow.request.data.content = None
    assert tap(BODY) == BODY
    await bench.addon.request(flow)
    assert flow.request.raw_content == BODY
    assert await bench.answer(flow, b"other") == [b"other"]
    assert flow.response is not None
    assert flow.response.raw_content == b"other"
    assert {path for path, _ in bench.script.calls} <= {"/props", "/slots"}  # the introduction alone
    assert bench.rows() == []


async def test_what_comes_before_a_route_comes_before_those_of_look_ups_too(bench: Bench) -> None:
    for path in ("/props", "/slots", "/tokenize"):
        bench.script.answers[f"/llm{path}"] = bench.script.answers.pop(path)
    bench.script.answers["/llm/apply-template"] = bench.script.answers.pop("/apply-template")
    flow = await bench.begin(bench.flow("/llm/completion"))
    (watch,) = [up.watch for target, up in bench.addon._upstreams.items() if target.prefix == "/llm"]
    await until(lambda: watch.known)
    await bench.answer(flow)
    await until(bench.rows)
    await bench.begin(bench.flow("/llm/completion"))
    assert bench.script.count("/llm/tokenize")


async def test_paths_do_not_pile_up(bench: Bench) -> None:
    for number in range(2 * MOST_PREFIXES):
        await bench.answer(await bench.begin(bench.flow(f"/{number}/completion")))
    await until(lambda: len(bench.rows()) == 2 * MOST_PREFIXES)
    assert len(bench.addon._upstreams) <= MOST_PREFIXES


@pytest.mark.parametrize(
    ("url", "method", "asked_anew"),
    [("/lora-adapters", "POST", True), ("/lora-adapters", "GET", False), ("/tokenize", "POST", False)],
)
async def test_what_slots_hold_is_forgotten_once_a_client_changed_it(
    bench: Bench, url: str, method: str, asked_anew: bool
) -> None:
    await bench.begin(bench.flow())
    watch = next(iter(bench.addon._upstreams.values())).watch
    await until(lambda: watch.known)
    flow = await bench.begin(bench.flow(url, method))
    await bench.answer(flow, b"{}")
    assert watch.known is not asked_anew


async def test_replayed_flows_and_those_of_other_addons_are_left_alone(bench: Bench) -> None:
    replayed, dead, answered = bench.flow(), bench.flow(), bench.flow()
    replayed.is_replay = "request"
    dead.live = False
    answered.response = Response.make(204)
    for flow in (replayed, dead, answered):
        await bench.begin(flow)
        assert flow.request.stream is False
    replayed.response = Response.make(200, b"x")
    bench.addon.responseheaders(replayed)
    await bench.addon.response(replayed)
    assert replayed.response.stream is False
    assert {path for path, _ in bench.script.calls} <= {"/props", "/slots"}  # the introduction alone


async def test_an_answer_by_another_addon_is_recorded_as_never_sent(bench: Bench) -> None:
    flow = await bench.begin(bench.flow())
    flow.response = Response.make(418, b"teapot")
    bench.addon.responseheaders(flow)
    assert flow.response.stream is False
    await bench.addon.response(flow)
    await until(bench.rows)
    assert bench.rows() == [("/completion", None, None, "unknown")]


async def test_an_error_is_recorded(bench: Bench) -> None:
    flow = await bench.begin(bench.flow())
    flow.client_conn.state = ConnectionState.CLOSED
    bench.addon.error(flow)
    bench.addon.error(flow)
    await until(bench.rows)
    assert bench.rows() == [("/completion", None, None, "unknown")]


async def test_an_error_in_mid_stream_shows_what_had_come(bench: Bench) -> None:
    flow = await bench.begin(bench.flow())
    flow.response = Response.make(200, headers={"content-type": "text/event-stream"})
    flow.response.data.content = None
    bench.addon.responseheaders(flow)
    assert callable(flow.response.stream)
    flow.response.stream(b"data: {}\n\n")
    bench.addon.error(flow)
    assert flow.response.raw_content == b"data: {}\n\n"
    await until(bench.rows)


async def test_the_client_of_a_held_request_leaves(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    left = []
    flow = await bench.begin(bench.flow())
    other = await bench.begin(bench.flow())
    monkeypatch.setattr("toki.exchange.Exchange.leave", lambda exchange: left.append(exchange.client))
    bench.addon.client_disconnected(other.client_conn)
    assert left == [other.client_conn.id]
    assert flow.client_conn.id != other.client_conn.id


async def test_rows_in_flight_are_written_at_the_end(script: Scripted, tmp_path: Path) -> None:
    bench = Bench(script, tmp_path / "toki.db")
    flow = await bench.begin(bench.flow())
    assert bench.context.options.connection_strategy == "lazy"
    bench.addon.done()
    assert bench.context.options.connection_strategy == "eager"
    assert bench.rows() == [("/completion", None, None, "unknown")]
    assert await bench.answer(flow) == [ANSWER[n : n + 9] for n in range(0, len(ANSWER), 9)]


@pytest.mark.parametrize(
    "options",
    [
        {"toki_min_reuse": 0},
        {"toki_server": ["8080"]},
        {"toki_embed_url": "nonsense"},
        {"toki_deadline_ms": -1},
    ],
)
async def test_a_bad_option_is_a_clear_error(bench: Bench, options: dict[str, Any]) -> None:
    with pytest.raises(OptionsError, match=rf"toki: {next(iter(options))}="):
        bench.context.configure(bench.addon, **options)


async def test_options_can_change_while_it_runs(bench: Bench, tmp_path: Path) -> None:
    flow = await bench.begin(bench.flow())
    bench.context.configure(bench.addon, toki_mode="off")
    bench.context.configure(bench.addon, ssl_insecure=True)
    await bench.answer(flow)
    await until(lambda: len(bench.rows()) == 1)
    await bench.answer(await bench.begin(bench.flow()))
    await until(lambda: len(bench.rows()) == 2)
    with closing(sqlite3.connect(bench.db)) as db:
        assert db.execute("SELECT reason FROM requests WHERE id = 2").fetchall() == [("toki_mode is off",)]
    flow = await bench.begin(bench.flow())
    bench.db = tmp_path / "other.db"
    bench.context.configure(bench.addon, toki_db=str(bench.db))
    await bench.answer(flow)
    await until(lambda: len(bench.rows()) == 1)
    await bench.answer(await bench.begin(bench.flow()))
    await until(lambda: len(bench.rows()) == 2)


@pytest.mark.freezes
async def test_what_is_loaded_is_not_looked_through_for_garbage_while_it_runs(script: Scripted, tmp_path: Path) -> None:
    bench = Bench(script, tmp_path / "toki.db")
    assert len(gc.get_objects()) < gc.get_freeze_count()
    bench.addon.done()
    assert gc.get_freeze_count() == 0


async def test_without_a_server_to_look_after_it_says_so(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    bench.context.configure(bench.addon, toki_server=[])
    bench.addon.running()
    assert "no llama-server to look after" in caplog.text


async def test_a_slip_in_the_flags_is_told_once(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    bench.context.configure(bench.addon, toki_server_flags="--cache-rma 0 2")
    bench.context.configure(bench.addon, toki_min_reuse=11)
    told = [record.message for record in caplog.records if "toki_server_flags" in record.message]
    slips = "--cache-rma (did you mean --cache-ram?); 2 is no flag, and no value of one"
    assert told == [f"toki: toki_server_flags: {slips}; passed over"]


@pytest.mark.parametrize("kept_by_user", [False, True])
async def test_in_reverse_mode_the_host_header_is_the_servers(tmp_path: Path, kept_by_user: bool) -> None:
    addon = Toki()
    context = proxy()
    context.options.update(keep_host_header=kept_by_user)
    context.master.addons.add(addon)
    mode = "reverse:http://127.0.0.1:7777@127.0.0.1:0"
    context.configure(addon, mode=[mode], toki_db=str(tmp_path / "toki.db"))
    flow = tflow.tflow(req=tutils.treq(host="127.0.0.1", port=7777, path=b"/completion", method=b"POST"))
    flow.live = True
    flow.client_conn.proxy_mode = ProxyMode.parse(mode)
    flow.request.headers["Host"] = "evil.example"
    addon.requestheaders(flow)
    assert flow.request.headers["Host"] == ("evil.example" if kept_by_user else "127.0.0.1:7777")
    assert flow.request.stream is False
    addon.done()


# --- the script ---


def has_toki(path: str) -> bool:
    return Path(path, "toki").is_dir()


async def test_the_script_loads_from_a_checkout() -> None:
    context = proxy()
    loaded = context.script(str(ROOT / "toki_addon.py"))
    assert [type(addon).__name__ for addon in loaded.addons] == ["Toki"]


async def test_the_script_in_the_package_keeps_its_modules_to_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    script = shutil.copy(ROOT / "toki_addon.py", tmp_path)
    (tmp_path / "py.typed").touch()
    assert [type(addon).__name__ for addon in proxy().script(str(script)).addons] == ["Toki"]
    assert str(tmp_path) not in sys.path


def test_the_script_is_short_and_has_no_dataclass() -> None:
    text = (ROOT / "toki_addon.py").read_text()
    assert len(text.splitlines()) < 30
    assert "dataclass" not in text


@pytest.mark.parametrize(
    ("package", "module", "message"),
    [
        (None, None, "not installed beside this mitmproxy: pip install mitmproxy-toki"),
        ("toki", "", "another project: pip uninstall toki, then pip install mitmproxy-toki"),
        ("toki", "import surely_not_installed", "needs surely_not_installed, which is not installed"),
    ],
)
async def test_the_script_alone_fails_in_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    package: str | None,
    module: str | None,
    message: str,
) -> None:
    script = shutil.copy(ROOT / "toki_addon.py", tmp_path / "toki_addon.py")
    for name in [name for name in sys.modules if name == "toki" or name.startswith("toki.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if not has_toki(path)])
    if package is not None:
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text("")
        if module:
            (tmp_path / package / "addon.py").write_text(module)
    caplog.clear()
    loaded = proxy().script(str(script))
    assert loaded.addons == []
    errors = [record for record in caplog.records if record.levelname == "ERROR"]
    assert len(errors) == 1
    assert message in errors[0].message
    assert "\n" not in errors[0].message
    assert errors[0].exc_info is None


async def test_the_page_is_answered_here_and_leaves_no_row(bench: Bench) -> None:
    answered = bench.flow("/completion")
    odd = bench.flow("/v1/completions")
    odd.request.data.path = b"/\xff/v1/completions"  # no UTF-8, in what the server then goes by
    for each in (answered, odd):
        await bench.answer(await bench.begin(each))
    await until(lambda: len(bench.rows()) == 2)
    for path, status in (
        ("/toki/", 200),
        ("/toki/api/requests/1", 200),
        ("/toki/requests/9", 404),
        ("/toki/metrics", 200),
    ):
        flow = await bench.begin(bench.flow(path, "GET", Host="127.0.0.1:8081", Authorization="Bearer secret"))
        assert flow.response is not None
        assert flow.response.status_code == status
        assert flow.response.headers["content-security-policy"].startswith("default-src 'none'")
        assert "authorization" not in flow.request.headers, "nothing that could be saved"
        bench.addon.responseheaders(flow)
        await bench.addon.response(flow)
    assert not any(path.startswith("/toki") for path, _ in bench.script.calls)
    assert len(bench.rows()) == 2


async def test_the_token_is_gone_before_the_body_of_its_request_has_come(bench: Bench) -> None:
    """A client may leave in the middle of it: then the flow is saved as it is."""
    flow = bench.flow("/toki/api/forget", Authorization="Bearer secret")
    bench.addon.requestheaders(flow)
    assert "authorization" not in flow.request.headers
    flow.error = Error("the client left")
    bench.addon.error(flow)
    assert not bench.addon._visits


async def test_the_page_refuses_what_its_door_refuses(bench: Bench) -> None:
    far = bench.flow("/toki/", "GET", Host="127.0.0.1:8081")
    far.client_conn.peername = ("192.168.1.20", 5)
    rebound = bench.flow("/toki/", "GET", Host="evil.example")
    for flow in (far, rebound):
        await bench.begin(flow)
        assert flow.response is not None
        assert flow.response.status_code == 403


async def test_a_proxy_that_is_asked_to_ask_itself_shows_no_page(bench: Bench) -> None:
    flow = bench.flow("/toki/", "GET", Host="127.0.0.1:8081")
    way = ServerConnectionHookData(Server(address=("evil.example", 8081)), flow.client_conn)
    way.server.sockname = flow.client_conn.peername
    bench.addon.server_connected(way)
    await bench.begin(flow)
    assert flow.response is not None
    assert flow.response.status_code == 403
    bench.addon.server_disconnected(way)
    again = await bench.begin(bench.flow("/toki/", "GET", Host="127.0.0.1:8081"))
    assert again.response is not None
    assert again.response.status_code == 200


async def test_what_is_none_of_the_page_goes_to_the_server_but_the_token_never(bench: Bench) -> None:
    bench.context.configure(bench.addon, toki_token="secret")
    keyed = await bench.begin(bench.flow("/toki/v1/models", "GET", Authorization="Bearer sk-of-the-server"))
    assert keyed.response is None
    assert keyed.request.headers["authorization"] == "Bearer sk-of-the-server"
    mistaken = await bench.begin(bench.flow("/toki/api/overviw", "GET", Authorization="Bearer secret"))
    assert mistaken.response is not None
    assert mistaken.response.status_code == 404
    assert "authorization" not in mistaken.request.headers


async def test_a_prompt_below_toki_is_a_prompt(bench: Bench) -> None:
    flow = await bench.begin(bench.flow("/toki/v1/chat/completions", "POST"))
    assert flow.response is None


async def test_a_head_of_the_page_has_no_body(bench: Bench) -> None:
    flow = await bench.begin(bench.flow("/toki/", "HEAD", Host="localhost"))
    assert flow.response is not None
    assert (flow.response.status_code, flow.response.raw_content) == (200, b"")


async def test_the_page_is_not_shadowed_before_an_https_server_without_its_host(bench: Bench) -> None:
    flow = bench.flow("/toki/", "GET", Host="127.0.0.1:8081")
    flow.client_conn.proxy_mode = ProxyMode.parse(f"reverse:{bench.script.url}")
    bench.context.options.keep_host_header = False
    await bench.begin(flow)
    assert flow.response is not None
    assert flow.response.status_code == 403
    assert "Host" in (flow.response.text or "")
