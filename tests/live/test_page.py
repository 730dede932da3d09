"""The page of a real mitmdump before a real server: what it shows, where it is, who may see it, and that no server ever
hears of it."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.explain.cases import words
from tests.live.test_explain import Talk
from tests.live.wire import HOST
from tests.live.wire import Message
from tests.live.wire import Mitmdump
from tests.live.wire import Relay
from tests.live.wire import ask
from tests.live.wire import mitmdump
from tests.live.wire import relay
from tests.live.wire import request
from tests.live.wire import until

from servers import BUILDS
from servers import Flags
from servers import free_port
from servers import start
from servers import tiny_model
from toki.cli import main
from toki.page.where import ROOT

pytestmark = [pytest.mark.live, pytest.mark.proxy]

TOKEN = "a-token-that-nobody-guesses"
SECRET = "xylophone"  # stands in every prompt
BEARER = f"Authorization: Bearer {TOKEN}\r\n"
BASIC = f"Authorization: Basic {base64.b64encode(f'any:{TOKEN}'.encode()).decode()}\r\n"
REQUESTS = 7


@dataclass
class Shown:
    """A proxy with some traffic behind it, in three modes: reverse, regular, and reverse to where no server is."""

    proxy: Mitmdump
    relay: Relay
    regular: int
    dead: int
    saved: Path

    def get(self, path: str, port: int = 0, headers: str = "", **more: Any) -> Message:
        host = more.pop("host", f"{HOST}:{port or self.proxy.port}")
        return ask(port or self.proxy.port, request(path, method="GET", host=host, headers=headers, **more))

    def json(self, path: str) -> Any:
        answer = self.get(f"/toki/api/{path}")
        assert answer.first.endswith("200 OK")
        return json.loads(answer.body)


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shown]:
    where = tmp_path_factory.mktemp("page")
    regular, dead, nowhere = free_port(), free_port(), free_port()
    with (
        start(tiny_model(), Flags(n_parallel=2, n_ctx=8192)) as server,
        relay(server.port) as between,
    ):
        modes = [
            f"reverse:http://{HOST}:{between.port}@{HOST}:{{port}}",
            f"regular@{HOST}:{regular}",
            f"reverse:http://{HOST}:{nowhere}@{HOST}:{dead}",
        ]
        saved = where / "flows"
        with mitmdump(
            between.port, where / "proxy", modes=modes, toki_token=TOKEN, save_stream_file=str(saved)
        ) as proxy:
            until(lambda: "getting to know" in proxy.log or "afresh" in proxy.log)
            healthy, clock = Talk(proxy), Talk(proxy)
            for n in range(4):
                healthy.turn(f"{SECRET} {words(60, 'plain')}", words(30, f"p{n}"))
            for n in range(REQUESTS - 4):
                system = f"{SECRET} {words(60, 'intro')}\nNow: 2026-03-10T09:15:0{n}Z\n{words(150, 'rules')}"
                clock.turn(system, words(40, f"q{n}"))
            until(lambda: len(proxy.rows(table="findings")) >= REQUESTS - 5)
            yield Shown(proxy, between, regular, dead, saved)


@pytest.mark.parametrize("build", BUILDS)
def test_the_server_has_nothing_there_that_could_be_hidden(build: Any) -> None:
    with start(tiny_model(), Flags(), build) as server:
        port = server.port
        for path in (ROOT, f"{ROOT}/", f"{ROOT}/metrics"):
            assert " 404 " in ask(port, request(path, method="GET")).first


def test_the_log_says_where_it_is(shown: Shown) -> None:
    (line,) = [line for line in shown.proxy.log.splitlines() if "toki: see " in line]
    for where in (f"http://{HOST}:{shown.proxy.port}/toki/", f"http://{HOST}:{shown.dead}/toki/", "http://toki.local/"):
        assert where in line


def test_it_shows_what_was_recorded_and_what_is_believed(shown: Shown) -> None:
    found = shown.json("overview?range=day")
    rows = shown.proxy.rows()
    assert found["sums"]["requests"] == len(rows) == REQUESTS
    for name in ("prompt_tokens", "reused", "evaluated"):
        assert found["sums"][name] == sum(row[name] for row in rows)
    assert found["causes"][0]["cause"] == "clock"
    server = next(one for one in found["servers"] if one["slots"] is not None)
    assert server["slots"] == 2
    last = rows[-1]
    held = [one for one in server["holdings"] if one["conversation"] == last["conversation"]]
    assert any(one["tokens"] >= last["prompt_tokens"] and 0 <= one["idle_s"] < 600 for one in held)
    assert server["ms_per_token"] > 0
    assert server["saving"]["tokens"] == found["saving"]["tokens"]
    assert server["saving"]["seconds"] == pytest.approx(server["saving"]["tokens"] * server["ms_per_token"] / 1000)
    assert [one["saving"]["tokens"] for one in found["servers"] if one["slots"] is None] == [0]
    page = shown.get("/toki/?range=day").body.decode()
    assert "a clock in the system text" in page
    assert f"{found['sums']['evaluated']:,}" in page


def test_a_request_shows_decision_slots_and_cause_but_no_text(shown: Shown) -> None:
    number = shown.proxy.rows()[-1]["id"]
    found = shown.json(f"requests/{number}")
    (cause, *_) = found["memory"]["found"]
    assert cause["why"]["cause"] == "clock"
    assert cause["against"] == number - 1
    assert cause["token"] > 0
    assert cause["diff"] is None
    assert found["memory"]["slots"] == 2
    page = shown.get(f"/toki/requests/{number}").body.decode()
    assert "With toki_text" in page
    for each in ("", "requests", f"requests/{number}", "conversations", "api/overview", f"api/requests/{number}"):
        assert SECRET.encode() not in shown.get(f"/toki/{each}").body


def test_lists_are_narrowed_down(shown: Shown) -> None:
    rows = shown.proxy.rows()
    for name, value in (("outcome", rows[0]["outcome"]), ("action", rows[-1]["action"])):
        listed = [one["request"]["id"] for one in shown.json(f"requests?{name}={value}")["requests"]]
        assert listed == [row["id"] for row in reversed(rows) if row[name] == value]
    clocks = shown.json("requests?cause=clock&endpoint=/v1/chat/completions")["requests"]
    assert clocks
    assert all(one["why"]["cause"] == "clock" for one in clocks)
    assert shown.json("requests?cause=clock&endpoint=/completion")["requests"] == []
    talk = rows[-1]["conversation"]
    listed = [one["request"]["conversation"] for one in shown.json(f"requests?conversation={talk}")["requests"]]
    assert set(listed) == {talk}
    assert shown.json("conversations?model=none")["conversations"] == []
    assert shown.get("/toki/requests?outcome=good").first.split(" ")[1] == "400"


def test_metrics_are_those_of_the_rows(shown: Shown) -> None:
    text = shown.get("/toki/metrics").body.decode()
    samples = {
        sample.name: sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.labels.get("server", "").endswith(f":{shown.relay.port}")
    }
    for name in ("prompt_tokens", "reused", "evaluated"):
        wanted = sum(row[name] for row in shown.proxy.rows())
        assert samples[f"toki_{name.removesuffix('_tokens')}_tokens_total"] == wanted
    assert samples["toki_held_seconds_count"] == REQUESTS


def test_no_server_hears_of_it_and_no_row_is_left(shown: Shown) -> None:
    before = len(shown.proxy.rows())
    for path in ("", "/", "/api/overview", "/metrics", "/style.css", "/live.js", "/requests?before=3"):
        shown.get(f"/toki{path}")
    assert shown.get("/toki/x", headers=BEARER).first.split(" ")[1] == "404"
    assert ask(shown.proxy.port, request("/toki/requests", b"{}")).first.split(" ")[1] == "401"
    shown.get("/health")  # one that does get there
    until(lambda: any(b"/health" in passed.up for passed in shown.relay.passed))
    assert not any(b"/toki" in passed.up for passed in shown.relay.passed)
    assert len(shown.proxy.rows()) == before


def test_prompts_below_its_path_go_to_the_server(shown: Shown) -> None:
    # Without a body: one that comes after the server has answered and closed would have it reset the connection.
    answer = ask(shown.proxy.port, request("/toki/v1/chat/completions"))
    assert answer.first.split(" ")[1] == "404", "the server's own answer: it has no such prefix"
    assert any(b"POST /toki/v1/chat/completions" in passed.up for passed in shown.relay.passed)


def test_a_server_with_its_prefix_is_hidden_only_where_the_page_is(tmp_path: Path) -> None:
    """Nothing tells toki of the prefix."""
    with (
        start(tiny_model(), Flags(n_parallel=2, n_ctx=2048, api_prefix=ROOT)) as server,
        mitmdump(server.port, tmp_path) as proxy,
    ):
        for path, said in (("/health", b'"ok"'), ("/v1/models", b'"data"'), ("/", b"Overview"), ("/metrics", b"toki_")):
            answer = ask(proxy.port, request(f"{ROOT}{path}", method="GET", host=f"{HOST}:{proxy.port}"))
            assert answer.first.endswith("200 OK")
            assert said in answer.body
        for _ in range(2):
            asked = request(f"{ROOT}/v1/completions", b'{"prompt": "Once upon a time", "max_tokens": 2}')
            assert ask(proxy.port, asked).first.endswith("200 OK")
        rows = until(lambda: [row for row in proxy.rows() if row["reused"]])
        assert rows[-1]["endpoint"] == "/v1/completions"


def test_it_is_there_though_the_server_is_not(shown: Shown) -> None:
    assert shown.get("/toki/", shown.dead).first.endswith("200 OK")
    assert shown.get("/health", shown.dead).first.split(" ")[1] == "502"


def test_through_a_proxy_it_has_a_name(shown: Shown) -> None:
    page = shown.get("http://toki.local/", shown.regular, host="toki.local")
    assert page.first.endswith("200 OK")
    assert b'href="/style.css"' in page.body
    assert shown.get("http://toki.local/style.css", shown.regular, host="toki.local").first.endswith("200 OK")
    assert shown.get("/toki/", shown.regular).first.endswith("200 OK"), "and the proxy's own address"
    server = f"http://{HOST}:{shown.relay.port}/toki/"
    assert shown.get(server, shown.regular, host=f"{HOST}:{shown.relay.port}").first.endswith("200 OK")


def test_a_proxy_that_asks_itself_gets_nothing(shown: Shown) -> None:
    """A client elsewhere would ask so: the second connection comes from this machine, whatever the first did."""
    target = f"http://0.0.0.0:{shown.regular}/toki/"
    answer = shown.get(target, shown.regular, host=f"{HOST}:{shown.regular}")
    assert answer.first.split(" ")[1] == "401"


@pytest.mark.parametrize("headers", ["Host: evil.example\r\n", "X-Forwarded-For: 127.0.0.1\r\n"])
def test_others_need_the_token(shown: Shown, headers: str) -> None:
    host = "evil.example" if "evil" in headers else f"{HOST}:{shown.proxy.port}"
    more = "" if "evil" in headers else headers
    status = "403" if "evil" in headers else "401"
    assert shown.get("/toki/", host=host, headers=more).first.split(" ")[1] == status
    for wrong in ("Authorization: Bearer nonsense\r\n", "Authorization: Basic bm9uc2Vuc2U=\r\n"):
        assert shown.get("/toki/", host=host, headers=more + wrong).first.split(" ")[1] == status
    for right in (BEARER, BASIC):
        assert shown.get("/toki/", host=host, headers=more + right).first.endswith("200 OK")


@pytest.mark.parametrize("headers", ["Origin: http://evil.example\r\n", "Sec-Fetch-Site: cross-site\r\n"])
def test_other_sites_get_nothing(shown: Shown, headers: str) -> None:
    assert shown.get("/toki/api/overview", headers=headers).first.split(" ")[1] == "403"
    assert shown.get("/toki/api/overview", headers=headers + BEARER).first.split(" ")[1] == "403"


def test_every_answer_is_closed_to_what_is_not_its_own(shown: Shown) -> None:
    for path in ("/toki/", "/toki/api/overview", "/toki/metrics", "/toki/requests/999"):
        answer = shown.get(path)
        assert (answer.header("content-security-policy") or "").startswith("default-src 'none';")
        assert "unsafe" not in (answer.header("content-security-policy") or "")
        assert answer.header("x-content-type-options") == "nosniff"
        assert answer.header("cache-control") == "no-store"
        assert answer.header("access-control-allow-origin") is None


def test_the_token_is_kept_nowhere(shown: Shown) -> None:
    shown.get("/toki/", headers=BEARER)
    shown.get("/toki/", headers=BASIC)
    until(lambda: shown.saved.read_bytes().count(b"/toki/") > 2)
    secret = (TOKEN.encode(), BASIC.split()[-1].encode())
    kept = [shown.proxy.log.encode(), shown.saved.read_bytes(), shown.proxy.db.read_bytes()]
    kept.append(shown.proxy.db.with_name("toki.db-wal").read_bytes())
    assert not any(one in where for one in secret for where in kept)


def test_forgetting_needs_the_token_even_here(shown: Shown) -> None:
    """The last test: nothing is in memory behind it."""
    number = shown.proxy.rows()[-2]["id"]
    assert shown.json(f"requests/{number}")["memory"] is not None
    assert ask(shown.proxy.port, request("/toki/api/forget")).first.split(" ")[1] == "401"
    assert shown.json(f"requests/{number}")["memory"] is not None
    answer = ask(shown.proxy.port, request("/toki/api/forget", headers=BEARER, host=f"{HOST}:{shown.proxy.port}"))
    assert json.loads(answer.body) == {"forgotten": True}
    assert shown.json(f"requests/{number}")["memory"] is None


def test_the_doctor_knows_it_and_names_the_servers_behind_it(shown: Shown, capsys: pytest.CaptureFixture[str]) -> None:
    behind = f"http://{HOST}:{shown.relay.port}"
    for url in (f"http://{HOST}:{port}" for port in (shown.proxy.port, shown.regular, shown.dead)):
        assert main(["doctor", url, "--yes"]) == 2
        (line,) = capsys.readouterr().out.splitlines()
        assert line.startswith(f"verdict: unknown — what answers at {url} is toki itself, which looks after {behind}, ")
        assert line.endswith(f": ask toki doctor {behind}")
