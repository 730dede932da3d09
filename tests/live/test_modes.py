"""Every way to put toki in the path, each with real traffic and a stream that is not held back."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import shutil
import socket
import ssl
import subprocess
import sys
import termios
import threading
import urllib.request
from collections.abc import Callable
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
import requests
from tests.live.wire import HOST
from tests.live.wire import PATIENCE
from tests.live.wire import ROOT
from tests.live.wire import Client
from tests.live.wire import Mitmdump
from tests.live.wire import ask
from tests.live.wire import mitmdump
from tests.live.wire import request
from tests.live.wire import until

from servers import Flags
from servers import LlamaServer
from servers import start
from servers import tiny_model

pytestmark = pytest.mark.live

TOKENS = 40
UNKNOWN = "the server is not known yet"
CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Say something about modes."}]


@pytest.fixture(scope="module")
def server() -> Iterator[LlamaServer]:
    with start(tiny_model(), Flags(n_parallel=4, n_ctx=16384)) as running:
        yield running


@pytest.fixture(autouse=True)
def _no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)


def body(model: str, **more: Any) -> bytes:
    fields = {"model": model, "messages": CHAT, "max_tokens": TOKENS, "temperature": 0, "seed": 7, "stream": True}
    return json.dumps(fields | more).encode()


def said(events: str) -> tuple[str, int]:
    """The text of a streamed answer, and in how many pieces it came."""
    chunks = [json.loads(line[6:]) for line in events.splitlines() if line.startswith("data: {")]
    pieces = [chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks if chunk["choices"]]
    assert events.rstrip().endswith("data: [DONE]")
    return "".join(pieces), len([piece for piece in pieces if piece])


def stream(url: str, model: str, client: httpx.Client) -> tuple[tuple[str, int], int]:
    """What `said` tells of a streamed answer, and how many times something arrived: more than once is not held back."""
    with client.stream("POST", f"{url}/v1/chat/completions", content=body(model)) as answer:
        pieces = list(answer.iter_raw())
    assert answer.status_code == 200
    return said(b"".join(pieces).decode()), len(pieces)


def direct(server: LlamaServer) -> tuple[str, int]:
    with httpx.Client(trust_env=False, timeout=PATIENCE) as client:
        found, _ = stream(server.url, "direct", client)
    assert found[1] == TOKENS
    return found


def streams(server: LlamaServer, through: Mitmdump, url: str, model: str, **options: Any) -> None:
    """A streamed answer from `url` by way of `through` is the server's own, comes in pieces and leaves a row."""
    with httpx.Client(timeout=PATIENCE, **options) as client:
        found, arrivals = stream(url, model, client)
    assert found == direct(server)
    assert arrivals > 5
    row = through.row_of(model)
    assert (row["status"], row["stream"], row["reply_tokens"]) == (200, 1, TOKENS)
    assert row["reused"] + row["evaluated"] == row["prompt_tokens"]


# --- regular ---


@pytest.fixture(scope="module")
def regular(server: LlamaServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mitmdump]:
    where = tmp_path_factory.mktemp("regular")
    with mitmdump(0, where, modes=[f"regular@{HOST}:{{port}}"], toki_server=server.url) as running:
        yield running


def by_httpx(url: str, data: bytes, _: Path) -> str:
    return httpx.post(url, content=data, timeout=PATIENCE).text


def by_requests(url: str, data: bytes, _: Path) -> str:
    return requests.post(url, data=data, timeout=PATIENCE).text


def by_urllib(url: str, data: bytes, _: Path) -> str:
    with urllib.request.urlopen(urllib.request.Request(url, data), timeout=PATIENCE) as answer:
        return str(answer.read().decode())


def by_curl(url: str, data: bytes, where: Path) -> str:
    (where / "body").write_bytes(data)
    return printed(["curl", "-sS", "--data-binary", f"@{where / 'body'}", url])


def by_node(url: str, data: bytes, _: Path) -> str:
    program = "fetch(process.argv[1], {method: 'POST', body: process.argv[2]}).then(a => a.text()).then(console.log)"
    return printed(["node", "-e", program, url, data.decode()])


def printed(command: list[str]) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=PATIENCE).stdout


# The client, the variable that names the proxy, and whether the client obeys it for 127.0.0.1.
OBEY: list[tuple[Callable[[str, bytes, Path], str], str, bool]] = [
    (by_httpx, "HTTP_PROXY", True),  # and so the Python SDKs of OpenAI and Anthropic
    (by_httpx, "ALL_PROXY", True),
    (by_requests, "HTTP_PROXY", True),
    (by_urllib, "HTTP_PROXY", True),
    (by_curl, "http_proxy", True),
    (by_curl, "HTTP_PROXY", False),
    (by_node, "HTTP_PROXY", False),
    (by_node, "http_proxy", False),
]


@pytest.mark.parametrize(("ask_by", "variable", "obeys"), OBEY)
def test_who_obeys_proxy_variables_for_loopback(
    server: LlamaServer,
    regular: Mitmdump,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    ask_by: Callable[[str, bytes, Path], str],
    variable: str,
    obeys: bool,
) -> None:
    monkeypatch.setenv(variable, f"http://{HOST}:{regular.port}")
    model = f"{ask_by.__name__} {variable}"
    assert said(ask_by(f"{server.url}/v1/chat/completions", body(model), tmp_path)) == direct(server)
    if obeys:
        assert regular.row_of(model)["status"] == 200
    else:
        # A later row of a request that went through: the one in question would be there by now.
        later = f"after {model}"
        by_httpx_through(regular, server, later)
        assert model not in [row["model"] for row in regular.rows()]


def by_httpx_through(proxy: Mitmdump, server: LlamaServer, model: str) -> None:
    with httpx.Client(proxy=f"http://{HOST}:{proxy.port}", timeout=PATIENCE) as client:
        stream(server.url, model, client)
    proxy.row_of(model)


@pytest.mark.proxy
def test_regular_mode_streams(server: LlamaServer, regular: Mitmdump) -> None:
    streams(server, regular, server.url, "regular", proxy=f"http://{HOST}:{regular.port}")


@pytest.mark.proxy
def test_traffic_for_others_passes_unseen_and_unbuffered(regular: Mitmdump) -> None:
    """A path that looks like a llama-server's, at a server that is none of ours; both bodies stream."""
    with socket.create_server((HOST, 0)) as origin, Client(regular.port) as client:
        origin.settimeout(PATIENCE)
        before = len(regular.rows())
        url = f"http://{HOST}:{origin.getsockname()[1]}/v1/chat/completions"
        client.send(f"POST {url} HTTP/1.1\r\nHost: {url[7:].split('/')[0]}\r\nContent-Length: 10\r\n\r\nfirst".encode())
        with origin.accept()[0] as upstream:
            upstream.settimeout(PATIENCE)
            seen = b""
            while not seen.endswith(b"first"):
                seen += upstream.recv(65536)
            client.send(b"next!")
            while not seen.endswith(b"next!"):
                seen += upstream.recv(65536)
            upstream.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nab")
            client.receive_until(b"ab")
            upstream.sendall(b"cd")
            assert client.answer().body == b"abcd"
        assert seen.startswith(b"POST /v1/chat/completions HTTP/1.1\r\n")
        assert len(regular.rows()) == before


# --- upstream, several at once ---


@pytest.mark.proxy
def test_upstream_mode(server: LlamaServer, tmp_path: Path) -> None:
    """toki, then the proxy that one has to go through anyway, then the server."""
    with (
        mitmdump(0, tmp_path / "company", None, modes=[f"regular@{HOST}:{{port}}"], stream_large_bodies="1") as company,
        mitmdump(
            0,
            tmp_path / "toki",
            modes=[f"upstream:http://{HOST}:{company.port}@{HOST}:{{port}}"],
            toki_server=server.url,
        ) as proxy,
    ):
        streams(server, proxy, server.url, "upstream", proxy=f"http://{HOST}:{proxy.port}")
        until(lambda: "client connect" in company.log)


@pytest.mark.proxy
def test_several_modes_and_servers_at_once(server: LlamaServer, tmp_path: Path) -> None:
    """Two servers, one of them by two ways. What toki knows of the one it does not believe of the other."""
    with start(tiny_model(), Flags(n_parallel=4, n_ctx=16384)) as other, contextlib.ExitStack() as stack:
        ports = [free(stack) for _ in range(2)]
        stack.close()
        modes = [
            f"reverse:{server.url}@{HOST}:{{port}}",
            f"reverse:{other.url}@{HOST}:{ports[0]}",
            f"regular@{HOST}:{ports[1]}",
        ]
        with mitmdump(0, tmp_path / "proxy", modes=modes) as proxy:
            urls = {"first": f"http://{HOST}:{proxy.port}", "second": f"http://{HOST}:{ports[0]}"}
            for name, url in urls.items():
                streams(server, proxy, url, name, trust_env=False)
            streams(server, proxy, server.url, "third", proxy=f"http://{HOST}:{ports[1]}")
            for name, url in urls.items():
                learn(proxy, name, url)
            prompt = "both get this " * 40
            for name, url in urls.items():
                for turn in (1, 2):
                    model = f"{name} sees it {turn}"
                    data = json.dumps({"model": model, "prompt": prompt, "n_predict": 4, "temperature": 0}).encode()
                    assert requests.post(f"{url}/completion", data=data, timeout=PATIENCE).ok
                    row = proxy.row_of(model)
                    assert (row["predicted"] > 50) == (row["reused"] > 50) == (turn == 2)
                    assert (row["parent"] is not None and row["shared"] > 50) == (turn == 2)


def free(stack: contextlib.ExitStack) -> int:
    """A port that stays taken until `stack` closes, so that the next one is another."""
    probe = stack.enter_context(socket.create_server((HOST, 0)))
    port: int = probe.getsockname()[1]
    return port


def learn(proxy: Mitmdump, name: str, url: str) -> None:
    """Ask until toki knows the server at `url`."""

    def known() -> bool:
        model = f"{name} learns {len(proxy.rows())}"
        data = json.dumps({"model": model, "prompt": model, "n_predict": 1}).encode()
        assert requests.post(f"{url}/completion", data=data, timeout=PATIENCE).ok
        return bool(proxy.row_of(model)["reason"] != UNKNOWN)

    until(known)


# --- TLS ---


@pytest.mark.proxy
def test_http2_over_tls_from_the_client(server: LlamaServer, tmp_path: Path) -> None:
    """By curl, which offers it first: mitmproxy takes a client's first offer, and httpx's is HTTP/1.1."""
    with mitmdump(server.port, tmp_path / "proxy") as proxy:
        url = f"https://{HOST}:{proxy.port}/v1/chat/completions"
        command = ["curl", "-sS", "--http2", "--cacert", str(tmp_path / "proxy" / "mitmproxy-ca-cert.pem")]
        wanted = direct(server)
        command += ["-N", "-w", "\n%{http_version}"]
        events, _, version = printed([*command, "-d", body("http2").decode(), url]).rpartition("\n")
        assert (said(events), version) == (wanted, "2")
        connections = proxy.log.count("client connect")
        # Several at once, on fewer connections.
        several: list[str] = []
        for number in range(8):
            file = str(tmp_path / str(number))
            several += [*command[1:], "-o", file, "-d", body(f"http2 {number}").decode(), url, "--next"]
        printed(["curl", "--parallel", *several[:-1]])
        for number in range(8):
            assert said((tmp_path / str(number)).read_text()) == wanted
            assert proxy.row_of(f"http2 {number}")["status"] == 200
        assert proxy.log.count("client connect") - connections < 8


@pytest.mark.parametrize("trust", ["everything", "its authority"])
def test_tls_on_both_sides(server: LlamaServer, tmp_path: Path, trust: str) -> None:
    """The server stands behind TLS, here another mitmdump's; toki's own look-ups pass it too."""
    modes = [f"reverse:{server.url}@{HOST}:{{port}}"]
    with mitmdump(0, tmp_path / "server", None, modes=modes, stream_large_bodies="1") as secure:
        options: dict[str, Any] = {"ssl_insecure": "true"}
        if trust == "its authority":
            options = {"ssl_verify_upstream_trusted_ca": str(tmp_path / "server" / "mitmproxy-ca-cert.pem")}
        modes = [f"reverse:https://{HOST}:{secure.port}@{HOST}:{{port}}"]
        with mitmdump(0, tmp_path / "toki", modes=modes, **options) as proxy:
            context = ssl.create_default_context(cafile=str(tmp_path / "toki" / "mitmproxy-ca-cert.pem"))
            url = f"https://{HOST}:{proxy.port}"
            streams(server, proxy, url, "secure", trust_env=False, verify=context)
            learn(proxy, "secure", f"http://{HOST}:{proxy.port}")
            assert "InsecureRequestWarning" not in proxy.log


# --- mitmweb, the console ---


@pytest.mark.proxy
def test_mitmweb_keeps_no_more_than_it_may(server: LlamaServer, tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        web_port = free(stack)
    options: dict[str, Any] = {"web_open_browser": "false", "web_port": str(web_port), "web_password": "secret"}
    if "web_password" not in printed([str(Path(sys.executable).with_name("mitmweb")), "--options"]):
        del options["web_password"]  # mitmproxy 11
    with mitmdump(server.port, tmp_path / "web", program="mitmweb", **options) as proxy:
        url = f"http://{HOST}:{proxy.port}"
        streams(server, proxy, url, "web", trust_env=False)
        with requests.Session() as session:
            session.trust_env = False
            assert session.get(f"{url}/toki/", timeout=PATIENCE).ok
            headers = {"Authorization": "Bearer secret"}
            note = "n" * 2**21
            for number in range(40):  # 80 MiB
                data = json.dumps({"prompt": str(number), "n_predict": 0, "note": note}).encode()
                assert session.post(f"{url}/completion", data=data, timeout=PATIENCE).ok
            listed = session.get(f"http://{HOST}:{web_port}/flows", headers=headers, timeout=PATIENCE).json()
        sizes = [flow["request"]["contentLength"] for flow in listed]
        assert not any("/toki" in flow["request"]["path"] for flow in listed), "the page is no traffic"
        assert 48 * 2**20 < sum(sizes) <= 64 * 2**20


@pytest.mark.proxy
def test_the_console(server: LlamaServer, tmp_path: Path) -> None:
    """mitmproxy itself, in a terminal."""
    near, far = pty.openpty()
    termios.tcsetwinsize(far, (40, 120))
    with contextlib.ExitStack() as stack:
        port = free(stack)
    db = tmp_path / "toki.db"
    command = [str(Path(sys.executable).with_name("mitmproxy")), "--mode", f"reverse:{server.url}@{HOST}:{port}"]
    command += ["-s", str(ROOT / "toki_addon.py"), "--set", f"confdir={tmp_path}", "--set", f"toki_db={db}"]
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "TERM": "xterm"}
    process = subprocess.Popen(command, cwd=tmp_path, env=environment, stdin=far, stdout=far, stderr=far)
    os.close(far)
    drawn = bytearray()
    reader = threading.Thread(target=read_all, args=(near, drawn), daemon=True)
    reader.start()
    try:
        until(lambda: process.poll() is None and db.exists() and listening(port))
        console = Mitmdump.__new__(Mitmdump)
        console.db = db
        streams(server, console, f"http://{HOST}:{port}", "console", trust_env=False)
        until(lambda: b"POST" in drawn)
        os.write(near, b"q")
        until(lambda: b"Quit" in drawn or process.poll() is not None)
        os.write(near, b"y")
        assert process.wait(PATIENCE) == 0
    finally:
        process.kill()
        process.wait()
        reader.join()
        os.close(near)


def listening(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection((HOST, port), timeout=1):
        return True
    return False


def read_all(descriptor: int, into: bytearray) -> None:
    with contextlib.suppress(OSError):  # the other side has closed
        while data := os.read(descriptor, 65536):
            into += data


# --- transparent ---


@pytest.mark.proxy
@pytest.mark.skipif(os.geteuid() != 0 and os.environ.get("CI") != "true", reason="a network namespace needs root")
def test_transparent_mode(tmp_path: Path) -> None:
    """In a network namespace of its own a client that knows nothing of a proxy asks the server's own port."""
    assert shutil.which("nft"), "nft is missing: apt-get install nftables"
    inside = Path(__file__).with_name("transparent.py")
    ended = subprocess.run(
        ["unshare", "--net", sys.executable, str(inside), str(tmp_path)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (ROOT, ROOT / "scripts", ROOT / "addon")))},
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr


# --- several clients, several tokis ---


def test_64_clients_at_once(server: LlamaServer, tmp_path: Path) -> None:
    with mitmdump(server.port, tmp_path / "proxy") as proxy:
        learn(proxy, "64", f"http://{HOST}:{proxy.port}")

        def talk(number: int) -> None:
            prompt = f"client {number} " + f"{number} " * 20
            data = json.dumps({"prompt": prompt, "n_predict": 4, "model": f"client {number}"}).encode()
            answer = json.loads(ask(proxy.port, request("/completion", data)).body)
            assert answer["prompt"].endswith(prompt)
            assert answer["tokens_predicted"] == 4

        with ThreadPoolExecutor(64) as pool:
            list(pool.map(talk, range(64)))
        rows = [proxy.row_of(f"client {number}") for number in range(64)]
        assert all(row["reused"] + row["evaluated"] == row["prompt_tokens"] for row in rows if row["prompt_tokens"])
        assert max(row["added_ms"] for row in rows) < 3000
        assert "Traceback" not in proxy.log


@pytest.mark.parametrize("stage", ["before its answer", "stream"])
def test_the_same_body_again_after_its_client_left(server: LlamaServer, tmp_path: Path, stage: str) -> None:
    """Four times: what toki believes of a request that was left must not spoil the next."""
    with mitmdump(server.port, tmp_path / "proxy") as proxy:
        learn(proxy, stage, f"http://{HOST}:{proxy.port}")
        for number in range(4):
            fields = {
                "prompt": f"{stage} {number} " + "and on " * 600,
                "n_predict": 64,
                "temperature": 0,
                "stream": True,
            }
            data, model = json.dumps(fields), f"{stage} {number}"
            with Client(proxy.port) as client:
                client.send(request("/completion", data.encode()))
                if stage == "stream":
                    client.receive_until(b"data:")
            again = ask(proxy.port, request("/completion", json.dumps(fields | {"model": model}).encode()))
            assert b'"stop":true' in again.body
            row = proxy.row_of(model)
            assert row["reply_tokens"] == 64
            assert row["reused"] + row["evaluated"] == row["prompt_tokens"]
        assert "Traceback" not in proxy.log


def test_two_tokis_notice_each_other(tmp_path: Path) -> None:
    """Each meets requests that it did not send. Both notice, steer nothing for a while, and answers stay whole."""
    with (
        start(tiny_model(), Flags(n_parallel=4, n_ctx=16384)) as server,
        mitmdump(server.port, tmp_path / "one") as one,
        mitmdump(server.port, tmp_path / "two") as two,
    ):
        both = (one, two)
        for proxy in both:
            learn(proxy, "two", f"http://{HOST}:{proxy.port}")
        texts = ["A conversation " + "of some length " * 20, "Another one " + "of about that length " * 20]
        for turn in range(12):
            for number, proxy in enumerate(both):
                model = f"{number}/{turn}"
                texts[number] += f" and then {turn}"
                fields = {"prompt": texts[number], "n_predict": 4, "temperature": 0, "model": model}
                answer = json.loads(ask(proxy.port, request("/completion", json.dumps(fields).encode())).body)
                assert answer["prompt"].endswith(texts[number])
                row = proxy.row_of(model)
                assert row["action"] == "passed" or row["evaluated"] < row["prompt_tokens"]
        for proxy in both:
            reasons = [row["reason"] for row in proxy.rows()]
            assert "others use this server too" in reasons, reasons
            assert "Traceback" not in proxy.log
