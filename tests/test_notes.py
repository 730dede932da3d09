"""Notes on flows, and the view of them: what a person wrote stays, late ones come, unknown things are said."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from mitmproxy.hooks import UpdateHook
from mitmproxy.http import HTTPFlow
from mitmproxy.test import taddons
from mitmproxy.test import tflow
from tests.test_exchange import ROW

from toki import notes
from toki import views
from toki.engine.events import Action
from toki.engine.events import Believed
from toki.engine.events import Holding
from toki.engine.events import Option
from toki.engine.events import Outcome
from toki.engine.events import Span
from toki.engine.rules import Rules
from toki.inspect.explanation import Explanation
from toki.inspect.finding import Block
from toki.inspect.finding import Cause
from toki.inspect.finding import Diff
from toki.inspect.finding import Finding
from toki.inspect.finding import Part
from toki.inspect.finding import Remedy
from toki.notes import Notes

pytestmark = pytest.mark.proxy

FINDING = Finding(
    Cause.CLOCK, Block(Part.SYSTEM, 0), 700, 1.5, 2, Remedy.REWRITE, "freeze it", 3, "a detail",
    Diff("It is ", "10:00\x1b[31m", "10:01", 9, 1, 2),
)  # fmt: skip
BELIEVED = Believed(
    Rules(n_slots=2),
    (Holding(0, 900, 40, busy=True), Holding(None, 500, 30, conversation=7)),
    1,
    (Option(Action.PASSED, 1, Span(0, 0, 0), 1200.0, 30.0, ""),),
    2.0,
)


@pytest.fixture
def flow() -> HTTPFlow:
    return tflow.tflow(resp=True)


def context(*addons: object, saving: str = "") -> Any:
    found: Any = taddons.context(*addons)  # type: ignore[no-untyped-call]
    found.options.add_option("save_stream_file", str, saving, "")
    return found


def explanation(*findings: Finding, believed: Believed | None = BELIEVED, **changes: Any) -> Explanation:
    return Explanation(replace(ROW, **changes), believed, None, None, findings)


def test_a_flow_is_annotated(flow: HTTPFlow) -> None:
    made = Notes()
    made.expect(flow)
    made.explained(flow, explanation(FINDING))
    assert flow.marked == ":recycle:"
    assert flow.comment.startswith("toki: 700 tokens read again (1.5 s): a clock in the system text (a detail), 2nd ")
    assert flow.metadata["toki_cause"] == "clock"
    assert flow.metadata["toki_slot"] == 2


def test_what_a_person_wrote_stays(flow: HTTPFlow) -> None:
    flow.comment, flow.marked = "mine", ":grapes:"
    made = Notes()
    made.expect(flow)
    made.explained(flow, explanation(FINDING))
    assert (flow.comment, flow.marked) == ("mine", ":grapes:")


async def test_a_late_explanation_updates_the_views(flow: HTTPFlow) -> None:
    seen: list[HTTPFlow] = []

    class Watcher:
        def update(self, flows: list[HTTPFlow]) -> None:
            seen.extend(flows)

    made = Notes()
    with context(made, Watcher()):
        made.expect(flow)
        await made.response(flow)
        assert seen == []
        made.explained(flow, explanation(outcome=Outcome.MISS, reused=0, evaluated=9))
    assert seen == [flow]
    assert flow.marked == ":new:"
    assert UpdateHook.name == "update"


@pytest.mark.parametrize("saved", [False, True])
async def test_only_where_flows_are_saved_an_end_waits(
    flow: HTTPFlow, saved: bool, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Notes()
    with context(made, saving=str(tmp_path / "flows") if saved else ""):
        made.expect(flow)
        ending = asyncio.ensure_future(made.response(flow))
        await asyncio.sleep(0)
        assert ending.done() != saved
        made.explained(flow, explanation(FINDING))
        await ending
        monkeypatch.setattr(notes, "PATIENCE", 0.01)
        made.expect(flow)
        await made.error(flow)  # never explained: it goes on all the same
        await made.response(flow)  # not ours any more


def test_the_view_shows_it_all(flow: HTTPFlow) -> None:
    flow.metadata.update(explanation(FINDING).as_data())
    shown = views.render(flow)
    for part in (
        "700 tokens read again",
        "cost     700 tokens read again, about 1.5 s",
        "seen     2 times",
        "remedy   rewrite: freeze it",
        "detail   a detail",
        "first differing token: 9 (id 1 was, 2 is)",
        "- 10:00\\x1b[31m",
        "+ 10:01",
        "decision   pinned: it holds the prefix",
        "passed slot 1    reuses         0; 1.2 s now, 30 ms later",
        "slot 0         900 tokens,        40 in common, busy",
        "slot 1   empty",
        "RAM            500 tokens,        30 in common, conversation 7",
    ):
        assert part in shown, shown


def test_what_a_large_ram_cache_holds_beside_is_counted(flow: HTTPFlow) -> None:
    flow.metadata |= explanation(believed=replace(BELIEVED, left_out=84)).as_data()
    assert views.render(flow).count("RAM ") == 2
    assert "RAM      84 more entries" in views.render(flow)


def test_the_view_shows_nothing_as_it_came_that_a_terminal_would_act_on(flow: HTTPFlow) -> None:
    odd = "\x1b[2J\r\x9b"
    flow.metadata.update(explanation(replace(FINDING, detail=odd, hint=odd), reason=odd).as_data())
    assert all(map(str.isprintable, views.render(flow).split("\n")))


def test_the_view_says_what_is_not_known(flow: HTTPFlow) -> None:
    nothing = explanation(believed=None, reused=None, evaluated=None, prompt_tokens=None, predicted=None, alone=None)
    flow.metadata.update(nothing.as_data())
    shown = views.render(flow)
    assert "how much was reused is not known" in shown
    assert "prompt     unknown" in shown
    assert "slots      not known" in shown
