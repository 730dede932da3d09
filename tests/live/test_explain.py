"""What a person sees in mitmproxy of requests to a real server: comments, marks, metadata, the view, commands, the log;
live, and in flows that were saved and are read again."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from mitmproxy import contentviews
from mitmproxy import flowfilter
from mitmproxy import io
from mitmproxy.http import HTTPFlow
from mitmproxy.http import Message
from mitmproxy.test import taddons
from tests.explain.cases import words
from tests.live.wire import Mitmdump
from tests.live.wire import ask
from tests.live.wire import mitmdump
from tests.live.wire import request
from tests.live.wire import until

from servers import Flags
from servers import start
from servers import tiny_model
from toki import views

pytestmark = [pytest.mark.live, pytest.mark.proxy]

SCRIPT = Path(__file__).with_name("with_commands.py")
SECRET = "xylophone"  # stands in every prompt


@dataclass
class Seen:
    """What was left of some traffic: flows that were saved and read again, what the commands said, the log."""

    flows: list[HTTPFlow]
    said: dict[str, str]
    export: str
    log: str
    rows: list[dict[str, Any]]


class Talk:
    """A chat that goes on through a proxy."""

    def __init__(self, proxy: Mitmdump, path: str = "/v1/chat/completions") -> None:
        self._proxy = proxy
        self._path = path
        self._messages: list[dict[str, str]] = []

    def turn(self, system: str, user: str, **more: Any) -> None:
        self._messages.append({"role": "user", "content": user})
        body = {"messages": [{"role": "system", "content": system}, *self._messages], "max_tokens": 6, **more}
        if self._path == "/v1/messages":
            body = {"system": system, "messages": self._messages, "max_tokens": 6, **more}
        answer = ask(self._proxy.port, request(self._path, json.dumps(body).encode()))
        assert " 200 " in answer.first
        self._messages.append({"role": "assistant", "content": "SO IT IS"})


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Seen:
    where = tmp_path_factory.mktemp("explain")
    saved = where / "flows"
    with (
        start(tiny_model(), Flags(n_parallel=2, n_ctx=8192)) as server,
        mitmdump(server.port, where / "proxy", SCRIPT, save_stream_file=str(saved)) as proxy,
    ):
        until(lambda: "getting to know" in proxy.log or "afresh" in proxy.log)
        healthy = Talk(proxy)
        for n in range(4):
            healthy.turn(f"{SECRET} {words(40, 'plain')}", words(10, f"p{n}"))
        clock = Talk(proxy)
        for n in range(3):
            system = f"{SECRET} {words(60, 'intro')}\nNow: 2026-03-10T09:15:0{n}Z\n{words(150, 'rules')}"
            clock.turn(system, words(40, f"q{n}"), stream=n == 1)
        claude = Talk(proxy, "/v1/messages")
        for n in range(2):
            tools = [{"name": name, "input_schema": {"type": "object"}} for name in ("Read", "Bash")][:: 1 - 2 * n]
            claude.turn(f"{SECRET} {words(80, 'claude')}", words(90, f"c{n}"), tools=tools)
        until(lambda: len(proxy.rows()) == 9)
        assert " 200 " in ask(proxy.port, request(f"/commands?where={where}", method="GET")).first, proxy.log
        log, rows = proxy.log, proxy.rows()
    with saved.open("rb") as file:
        flows = [flow for flow in io.FlowReader(file).stream() if isinstance(flow, HTTPFlow)]
    said = json.loads((where / "said.json").read_text())
    asked = [flow for flow in flows if flow.request.method == "POST"]
    return Seen(asked, said, (where / "export.json").read_text(), log, rows)


def filtered(seen: Seen, pattern: str) -> list[int]:
    """The places of the flows that one of mitmproxy's filters takes."""
    taken = flowfilter.parse(pattern)
    return [number for number, flow in enumerate(seen.flows) if taken(flow)]


def test_saved_flows_carry_their_explanations(seen: Seen) -> None:
    assert len(seen.flows) == 9
    assert all(flow.comment.startswith("toki: ") for flow in seen.flows)
    assert all(flow.metadata["toki_reused"] == row["reused"] for flow, row in zip(seen.flows, seen.rows, strict=True))
    assert all(flow.metadata["toki_verdict"] in flow.comment for flow in seen.flows)


def test_the_clock_is_named_with_what_it_said(seen: Seen) -> None:
    assert filtered(seen, '~meta "toki_cause: clock"') == [5, 6]
    first, again = seen.flows[5], seen.flows[6]
    assert "a clock in the system text" in first.comment
    assert "'2026-03-10T09:15:00Z' is now '2026-03-10T09:15:01Z'" in first.comment
    assert "2nd time" in again.comment
    assert not first.metadata["toki_recurring"]
    assert again.metadata["toki_recurring"]
    assert again.metadata["toki_again"] >= 0.5 * again.metadata["toki_evaluated"]


def test_the_same_tools_in_another_order_are_named_on_messages(seen: Seen) -> None:
    assert filtered(seen, '~meta "toki_cause: tools-reordered"') == [8]


def test_marks_tell_what_was_read_again_and_what_was_new(seen: Seen) -> None:
    assert filtered(seen, "~marker recycle") == [5, 6, 8]
    assert 0 in filtered(seen, "~marker new")
    assert [number for number in filtered(seen, "~marked") if number in (1, 2, 3)] == []


def test_the_view_shows_figures_decision_slots_and_difference(seen: Seen) -> None:
    shown = views.render(seen.flows[6])
    assert shown.startswith(f"{seen.flows[6].metadata['toki_again']:,} tokens read again")
    for part in ("first differing token", "- 1Z", "+ 2Z", "decision ", "slot 0", "slot 1", "it ran here", "evaluated "):
        assert part in shown
    assert "nothing of this flow" in views.render(None)


def test_mitmproxy_renders_the_view(seen: Seen) -> None:
    views.register()
    views.register()  # as after a reload
    flow = seen.flows[6]
    assert flow.response is not None
    with taddons.context():  # type: ignore[no-untyped-call]
        texts = [rendered(message, flow) for message in (flow.request, flow.response)]
    assert all("a clock in the system text" in text for text in texts)


def rendered(message: Message, flow: HTTPFlow) -> str:
    if hasattr(contentviews, "prettify_message"):  # mitmproxy 12
        return str(contentviews.prettify_message(message, flow, "toki").text)
    _, lines, error = contentviews.get_message_content_view("toki", message, flow)
    assert not error
    return "\n".join(str(part) for line in lines for _, part in line)


def test_the_log_has_a_line_for_each_request_and_no_word_of_a_prompt(seen: Seen) -> None:
    lines = [line for line in seen.log.splitlines() if "toki 200 /v1/" in line]
    assert len(lines) == 9
    assert sum("tokens read again" in line for line in lines) == 3
    assert SECRET not in seen.log
    assert "09:15" not in seen.log.replace("[09:15", "")


def test_commands(seen: Seen) -> None:
    assert "2 slots" in seen.said["status"]
    assert "a clock in the system text" in seen.said["status"]
    assert " 0 prompts in memory" not in seen.said["status"]
    assert "slot" in seen.said["slots"]
    assert "tokens, conversation" in seen.said["slots"]
    assert seen.said["explain"].count("decision   ") == 9
    assert " 0 prompts in memory" in seen.said["afterwards"]
    assert "clock" not in seen.said["afterwards"]


def test_an_export_holds_causes_and_requests_but_no_text(seen: Seen) -> None:
    (server,) = json.loads(seen.export)
    assert {cause["last"]["cause"]: cause["times"] for cause in server["causes"]} == {"clock": 2, "tools-reordered": 1}
    assert len(server["requests"]) == 9
    assert SECRET not in seen.export
    assert "2026-03-10" not in seen.export
