from __future__ import annotations

import asyncio
import gc
import weakref
from dataclasses import replace
from typing import Any

import pytest
from tests.explain.cases import tokenize
from tests.explain.cases import words
from tests.test_exchange import ROW

from toki.engine.events import Action
from toki.engine.events import Measured
from toki.engine.events import Outcome
from toki.engine.events import Record
from toki.inspect import inspector as module
from toki.inspect.comparison import Prompt
from toki.inspect.explain import Memory
from toki.inspect.explanation import Explanation
from toki.inspect.inspector import Asked
from toki.inspect.inspector import Inspector


class Bench:
    """An inspector whose comparisons run when they are told to."""

    def __init__(self) -> None:
        self.waiting: list[tuple[Any, asyncio.Future[Any]]] = []
        self.complaints: list[BaseException] = []
        self.told: list[Explanation] = []
        self.prompts: list[weakref.ref[Prompt]] = []
        self.inspector = Inspector(self._submit, self.complaints.append)

    def _submit(self, call: Any) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.waiting.append((call, future))
        return future

    async def run(self) -> None:
        for call, future in self.waiting:
            try:
                compared = call()
                self.prompts.append(weakref.ref(compared.prompt))
                future.set_result(compared)
                del compared
            except Exception as error:
                future.set_exception(error)
        self.waiting.clear()
        await asyncio.sleep(0)

    def begin(self, key: int, text: str) -> None:
        self.inspector.begin(key, Asked(None, text, tokenize(text)))

    def end(
        self, key: int, reused: int = 0, evaluated: int = 300, unread: bool = False, action: Action = Action.PASSED
    ) -> None:
        measured = Measured(prompt_tokens=reused + evaluated, reused=reused, evaluated=evaluated)
        row = replace(ROW, key=key, at=ROW.at + 60 * key, reused=reused, evaluated=evaluated, action=action)
        record = Record(key, 1, None, 0, None, None, None, Outcome.HIT, None, action, "", measured)
        self.inspector.conclude(row, record, unread, self.told.append)


async def test_an_explanation_waits_for_its_comparison() -> None:
    bench = Bench()
    bench.begin(1, f"It is 10:00:01.\n{words(300, 'text')}")
    bench.end(1)
    assert bench.told == []
    await bench.run()
    assert [one.findings for one in bench.told] == [()]
    bench.begin(2, f"It is 10:00:02.\n{words(300, 'text')}")
    await bench.run()
    bench.end(2)
    assert [finding.cause for finding in bench.told[1].findings] == ["clock"]
    assert list(bench.inspector.latest) == bench.told
    assert bench.inspector.remembered[0] == 2
    bench.inspector.forget()
    assert bench.inspector.remembered == (0, 0)
    assert bench.inspector.causes == ()


async def test_the_explanations_that_are_kept_hold_no_prompts() -> None:
    """The prompts of a day would fill the memory; there is a bounded one for them."""
    bench = Bench()
    bench.inspector._explainer.memory = Memory(most=2)
    for key in range(1, 9):
        bench.begin(key, f"It is 10:00:0{key}.\n{words(300, 'text')}")
        await bench.run()
        bench.end(key)
    assert len(bench.inspector.latest) == 8
    gc.collect()
    assert len(bench.prompts) == 8
    assert sum(prompt() is not None for prompt in bench.prompts) == bench.inspector.remembered[0] == 2


async def test_what_went_without_the_cache_was_not_lost() -> None:
    text = f"It is 10:00:01.\n{words(300, 'text')}"
    for cached, action, expected in (
        (True, Action.PASSED, ["unexplained"]),
        (False, Action.PASSED, []),
        (True, Action.ISOLATED, []),
    ):
        bench = Bench()
        bench.begin(1, text)
        await bench.run()
        bench.end(1)
        bench.inspector.begin(2, Asked(None, text, tokenize(text), cached=cached))
        await bench.run()
        bench.end(2, action=action)
        assert [finding.cause for finding in bench.told[1].findings] == expected


async def test_prompts_of_other_owners_are_not_compared_with() -> None:
    bench = Bench()
    text = f"It is 10:00:01.\n{words(300, 'text')}"
    for key, owner in enumerate(("one", "other", "one"), 1):
        bench.inspector.begin(key, Asked(None, text, tokenize(text), owner=owner))
        await bench.run()
        bench.end(key)
    assert [one.against for one in bench.told] == [None, None, 1]


async def test_a_request_that_was_never_read_is_explained_by_its_figures() -> None:
    bench = Bench()
    bench.end(1, 40, 60)
    bench.end(2, 0, 60)
    assert [one.verdict for one in bench.told] == [
        "40 of 100 tokens reused, 60 new",
        "all 60 tokens are new: nothing that the server has begins so",
    ]
    unknown = replace(bench.told[0], row=replace(ROW, reused=None, evaluated=None))
    assert "not known" in unknown.verdict


async def test_a_fault_costs_the_explanation_only(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    monkeypatch.setattr(module, "compare", lambda *_: 1 / 0)
    bench.begin(1, "text")
    await bench.run()
    bench.end(1)
    assert len(bench.complaints) == 1
    assert len(bench.told) == 1
    monkeypatch.undo()
    monkeypatch.setattr("toki.inspect.explain.Explainer.conclude", lambda *_, **__: 1 / 0)
    bench.begin(2, "text")
    await bench.run()
    bench.end(2)
    assert len(bench.complaints) == 2
    assert len(bench.told) == 2


async def test_a_server_that_is_merely_met_has_not_restarted() -> None:
    bench = Bench()
    bench.begin(1, words(300, "text"))
    await bench.run()
    bench.end(1)
    bench.inspector.restarted(whole=False)
    for key, restarts in ((2, 0), (3, 1)):
        for _ in range(restarts):
            bench.inspector.restarted(whole=False)
        bench.begin(key, words(300, "text"))
        await bench.run()
        bench.end(key)
    assert [finding.cause for finding in bench.told[1].findings] == ["unexplained"]
    assert [finding.cause for finding in bench.told[2].findings] == ["restarted"]


async def test_data_for_a_flow_can_be_saved_by_mitmproxy() -> None:
    from mitmproxy.io import tnetstring

    bench = Bench()
    for key in (1, 2):
        bench.begin(key, f"It is 10:00:0{key}.\n{words(300, 'text')}")
        await bench.run()
        bench.end(key)
    data = bench.told[1].as_data()
    assert tnetstring.loads(tnetstring.dumps(data)) == data
    assert data["toki_cause"] == "clock"
