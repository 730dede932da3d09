from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
from tests.scripted import Scripted
from tests.scripted import scripted
from tests.scripted import until

from toki import watch as module
from toki.complaints import Complaints
from toki.engine.events import Event
from toki.engine.events import Looked
from toki.engine.events import Restarted
from toki.engine.rules import Known
from toki.server import Auth
from toki.server import LlamaServerBackend
from toki.watch import Watch

GOOD = Auth("Bearer good")
BAD = Auth("Bearer bad")


class Bench:
    """A watch on a scripted server, and what it told."""

    def __init__(
        self, script: Scripted, executor: ThreadPoolExecutor, model: str = "", flags: str = "-np 4 -cram 0"
    ) -> None:
        self.script = script
        self.events: list[Event] = []
        self.complaints = Complaints(logging.getLogger("test"))
        self._executor = executor
        self.backend = LlamaServerBackend(script.url)
        self.watch = Watch(script.url, self.backend, model, flags, self._submit, self.events.append, self.complaints)

    async def _submit(self, call: Any, *args: Any, **kwargs: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._executor, partial(call, *args, **kwargs))

    def told(self, kind: type[Event]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]

    def end(self, **changes: Any) -> None:
        self.watch.ended(GOOD, **({"accepted": True, "gone_in_prefill": False} | changes))

    async def idle(self) -> None:
        """Wait until no poller is left running."""
        await until(lambda: len(asyncio.all_tasks()) == 1)


@pytest.fixture
def bench() -> Iterator[Bench]:
    with scripted() as script, ThreadPoolExecutor(4) as executor:
        bench = Bench(script, executor)
        yield bench
        bench.backend.close()


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PACE", 0.05)
    monkeypatch.setattr(module, "SOONEST", 0.02)
    monkeypatch.setattr(module, "QUIET", 0.2)


async def test_the_server_is_learnt_at_first_use_and_left_alone_when_nothing_is_in_flight(bench: Bench) -> None:
    bench.script.tasks = [-1, -1, -1, 5]
    assert not bench.watch.known
    bench.watch.arrived(GOOD)
    await until(lambda: bench.watch.known)
    (restarted,) = bench.told(Restarted)
    assert (restarted.total_slots, restarted.n_ctx) == (4, 4096)
    assert [slot.task for slot in restarted.slots] == [-1, -1, -1, 5]
    assert restarted.known == Known(unified=False, idle_save=False, ram=0, sps=0.1)
    bench.end()
    await bench.idle()
    assert all(headers.get("Authorization") == "Bearer good" for _, headers in bench.script.calls)


async def test_looks_keep_their_distance_while_a_request_is_in_flight(bench: Bench) -> None:
    bench.watch.arrived(GOOD)
    await until(lambda: len(bench.told(Looked)) >= 4)
    asked = [looked.asked_at for looked in bench.told(Looked)]
    assert all(later - earlier >= 0.05 for earlier, later in pairwise(asked))
    bench.end()
    await bench.idle()


async def test_no_look_for_a_while_after_a_client_left_in_prefill(bench: Bench) -> None:
    bench.watch.arrived(GOOD)
    bench.watch.arrived(GOOD)
    await until(lambda: bench.told(Looked))
    left_at = time.monotonic()
    bench.end(accepted=False, gone_in_prefill=True)
    assert await bench.watch.look() is None
    await until(lambda: any(looked.asked_at > left_at for looked in bench.told(Looked)))
    assert bench.told(Looked)[-1].asked_at >= left_at + 0.2
    bench.end()


async def test_the_look_that_is_wanted_after_a_client_left_is_taken_though_nothing_runs(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "AWAKE", 0.1)
    bench.watch.arrived(GOOD)
    await until(lambda: bench.told(Looked))
    left_at = time.monotonic()
    bench.end(accepted=False, gone_in_prefill=True)
    bench.watch.look_soon()
    await bench.idle()
    assert bench.told(Looked)[-1].asked_at >= left_at + 0.2


async def test_a_server_that_is_still_at_work_for_a_client_that_left_is_looked_at_until_it_is_done(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "AWAKE", 0.1)
    bench.script.busy = {0}
    bench.watch.arrived(GOOD)
    await until(lambda: bench.told(Looked))
    bench.end(accepted=False, gone_in_prefill=True)
    bench.events.clear()
    tell = bench.watch._tell

    def wanting(event: Event) -> None:  # as the engine does while such a request is left
        tell(event)
        if isinstance(event, Looked) and event.slots[0].busy:
            bench.watch.look_soon()

    monkeypatch.setattr(bench.watch, "_tell", wanting)
    bench.watch.look_soon()
    await until(lambda: len(bench.told(Looked)) == 3)
    bench.script.busy = set()
    await bench.idle()
    asked = [looked.asked_at for looked in bench.told(Looked)]
    assert len(asked) == 4
    assert all(later - earlier >= 0.2 for earlier, later in pairwise(asked))


async def test_the_engine_gets_the_look_that_it_asks_for_but_no_server_is_woken_for_it(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.watch.arrived(GOOD)
    await until(lambda: bench.watch.known)
    bench.end()
    looks = len(bench.told(Looked))
    bench.watch.look_soon()
    await until(lambda: len(bench.told(Looked)) > looks)
    await bench.idle()
    monkeypatch.setattr(module, "AWAKE", 0.0)
    asked = bench.script.count("/slots")
    bench.watch.look_soon()
    await bench.idle()
    assert bench.script.count("/slots") == asked


async def test_task_ids_that_jump_back_mean_another_server(bench: Bench) -> None:
    bench.script.tasks = [-1, 3, 7, -1]
    bench.watch.arrived(GOOD)
    await until(lambda: bench.watch.known)
    assert await bench.watch.look() is not None
    bench.script.tasks = [-1, -1, -1, 2]
    assert await bench.watch.look() is None
    assert not bench.watch.known
    await until(lambda: len(bench.told(Restarted)) == 2)
    assert (await bench.watch.look()) is not None
    bench.end()
    await bench.idle()


async def test_an_older_look_that_comes_in_late_is_no_restart(bench: Bench) -> None:
    bench.script.tasks = [1, -1, -1, -1]
    bench.watch.arrived(GOOD)
    await until(lambda: bench.watch.known)
    bench.end()
    await bench.idle()
    gate = bench.script.block("/slots")
    old = asyncio.ensure_future(bench.watch.look())
    await until(lambda: bench.script.gates and bench.script.calls[-1][0] == "/slots")
    del bench.script.gates["/slots"]
    answer = bench.script.answers["/slots"]
    bench.script.answers["/slots"] = lambda *_: (200, [slot | {"id_task": 9} for slot in answer(None, {})[1]])
    assert (await bench.watch.look()) is not None
    bench.script.answers["/slots"] = answer
    gate.set()
    assert (await old) is not None
    assert bench.watch.known


@pytest.mark.parametrize("changed", [True, False])
async def test_a_doubt_is_looked_into_and_only_other_facts_are_another_server(bench: Bench, changed: bool) -> None:
    bench.watch.arrived(GOOD)
    await until(lambda: bench.watch.known)
    if changed:
        bench.script.props |= {"total_slots": 2}
        bench.script.tasks = [-1, -1]
    asked = bench.script.count("/props")
    bench.watch.doubt(certain=False)
    assert bench.watch.known
    await until(lambda: bench.script.count("/props") > asked and bench.watch.known)
    looks = len(bench.told(Looked))
    await until(lambda: len(bench.told(Looked)) > looks)
    assert [event.total_slots for event in bench.told(Restarted)] == ([4, 2] if changed else [4])
    bench.end()


async def test_a_certain_doubt_starts_over_even_with_the_same_facts(bench: Bench) -> None:
    bench.watch.arrived(GOOD)
    await until(lambda: bench.watch.known)
    bench.watch.doubt(certain=True)
    await until(lambda: len(bench.told(Restarted)) == 2)
    await until(lambda: bench.watch.known)
    bench.end()


async def test_what_is_learnt_while_a_doubt_comes_up_does_not_count(bench: Bench) -> None:
    gate = bench.script.block("/props")
    bench.watch.arrived(GOOD)
    await until(lambda: bench.script.count("/props") == 1)
    bench.watch.doubt(certain=True)
    gate.set()
    await until(lambda: bench.watch.known)
    assert bench.script.count("/props") == 2
    assert len(bench.told(Restarted)) == 1
    bench.end()


async def test_a_server_without_slots_is_not_asked_again(bench: Bench) -> None:
    bench.script.answers["/slots"] = lambda *_: (501, {"error": "off"})
    bench.watch.arrived(GOOD)
    await until(lambda: bench.watch.known)
    (restarted,) = bench.told(Restarted)
    assert restarted.slots is None
    assert await bench.watch.look() is None
    assert bench.script.count("/slots") == 1
    bench.end()
    await bench.idle()
    assert bench.complaints.total("/slots: GET /slots: status 501") == 1


async def test_a_wrong_key_does_not_spoil_the_looks_of_a_right_one(bench: Bench) -> None:
    def props(_: object, headers: Any) -> tuple[int, Any]:
        return (200, bench.script.props) if headers["Authorization"] == "Bearer good" else (401, {})

    bench.script.answers["/props"] = props
    bench.watch.arrived(BAD)
    await until(lambda: bench.complaints.total("/props: GET /props: status 401") >= 2)
    assert not bench.watch.known
    bench.watch.ended(BAD, accepted=False, gone_in_prefill=False)
    bench.watch.arrived(GOOD)
    await until(lambda: bench.watch.known)
    bench.end()
    bench.watch.arrived(BAD)
    bench.watch.doubt(certain=False)
    asked = bench.script.count("/props")
    await until(lambda: bench.script.count("/props") > asked)
    assert bench.script.calls[-1][1]["Authorization"] == "Bearer good"
    bench.end()


async def test_a_server_that_wanted_a_key_is_known_to_the_first_request_that_has_it(bench: Bench) -> None:
    def props(_: object, headers: Any) -> tuple[int, Any]:
        return (200, bench.script.props) if headers.get("Authorization") == "Bearer good" else (401, {})

    bench.script.answers["/props"] = props
    bench.watch.introduce()
    await bench.watch.introduced(BAD)
    asked = bench.script.count("/props")
    await bench.watch.introduced(BAD)
    assert bench.script.count("/props") == asked, "the same key is not tried again"
    await bench.watch.introduced(GOOD)
    assert bench.watch.known
    await bench.watch.introduced(GOOD)
    assert bench.script.count("/props") == asked + 1


async def test_where_keys_are_kept_apart_an_unknown_server_is_asked_at_once(bench: Bench) -> None:
    bench.watch.arrived(GOOD)
    await until(lambda: bench.watch.known)
    bench.watch.doubt(certain=True)
    await bench.watch.introduced(GOOD)
    seen = bench.watch.known
    assert not seen, "it is asked at the watch's own pace"
    await bench.watch.introduced(GOOD, at_once=True)
    assert bench.watch.known
    bench.end()


async def test_a_server_that_is_gone_is_unknown(bench: Bench) -> None:
    bench.watch.arrived(GOOD)
    await until(lambda: bench.watch.known)
    bench.backend.close()
    bench.script.answers["/slots"] = bench.script.answers["/props"] = lambda *_: (503, {})
    bench.watch.doubt(certain=False)
    await until(lambda: not bench.watch.known)
    bench.end()
    await bench.idle()


async def test_a_router_is_known_but_has_no_slots_of_its_own(bench: Bench) -> None:
    bench.script.props = {"role": "router"}
    bench.watch.arrived(GOOD)
    await until(lambda: bench.watch.known)
    assert bench.watch.router
    assert bench.events == []
    bench.end()
    await bench.idle()
    assert bench.script.count("/slots") == 0


async def test_a_router_names_the_flags_of_its_model(bench: Bench) -> None:
    args = ["llama-server", "-np", "4", "-sps", "0.5"]
    bench.script.answers["/v1/models"] = lambda *_: (200, {"data": [{"id": "one", "status": {"args": args}}]})
    with ThreadPoolExecutor(4) as executor:
        of_model = Bench(bench.script, executor, model="one", flags="")
        of_model.watch.arrived(GOOD)
        await until(lambda: of_model.told(Restarted))
        assert of_model.told(Restarted)[0].known == Known(unified=False, idle_save=True, sps=0.5)
        of_model.end()
        await bench.idle()
        of_model.backend.close()


async def test_a_router_that_names_no_flags(bench: Bench) -> None:
    bench.script.answers["/v1/models"] = lambda *_: (500, {})
    with ThreadPoolExecutor(4) as executor:
        of_model = Bench(bench.script, executor, model="one", flags="")
        of_model.watch.arrived(GOOD)
        await until(lambda: of_model.told(Restarted))
        assert of_model.told(Restarted)[0].known == Known()
        assert of_model.complaints.total("/v1/models: GET /v1/models: status 500") == 1
        of_model.end()
        await bench.idle()
        of_model.backend.close()


@pytest.mark.parametrize(
    ("pause", "status", "sleeping", "known", "asked"),
    [
        (False, 200, True, True, 0),
        (True, 200, False, True, 1),
        (True, 200, True, False, 1),
        (True, 400, False, False, 1),  # how a router answers for a model that is not loaded any more
    ],
)
@pytest.mark.parametrize("sent", [False, True], ids=["held", "on its way"])
async def test_after_a_pause_the_server_may_have_forgotten_all(
    bench: Bench,
    monkeypatch: pytest.MonkeyPatch,
    pause: bool,
    status: int,
    sleeping: bool,
    known: bool,
    asked: int,
    sent: bool,
) -> None:
    monkeypatch.setattr(module, "AWAKE", 0.0 if pause else 60.0)
    bench.watch.arrived(GOOD)
    await until(lambda: bench.watch.known)
    bench.script.answers["/props"] = lambda *_: (status, bench.script.props | {"is_sleeping": sleeping})
    bench.script.calls.clear()
    await bench.watch.roused(sent=False)
    assert bench.script.count("/props") == 0  # while a request runs it is awake
    bench.end()
    await bench.idle()
    if sent:
        bench.watch.arrived(GOOD)
    await bench.watch.roused(sent)
    assert bench.watch.known is known
    assert bench.script.count("/props") == asked


@pytest.mark.parametrize("tasks", [[9, -1, -1, -1], [-1, -1, -1, -1]], ids=["the same server", "another one"])
async def test_a_server_that_closed_a_connection_is_looked_at_without_a_pause(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, tasks: list[int]
) -> None:
    monkeypatch.setattr(bench.backend, "hung_up", lambda: True)
    bench.script.tasks = [8, -1, -1, -1]
    bench.watch.arrived(GOOD)
    await until(lambda: bench.watch.known)
    bench.end()
    await bench.idle()
    bench.script.tasks = tasks
    bench.events.clear()
    await bench.watch.roused(sent=False)
    assert bench.watch.known
    assert len(bench.told(Restarted)) == (tasks[0] < 8)


@pytest.mark.parametrize("hung_up", [True, False])
async def test_while_a_server_drops_a_prefill_only_one_that_hung_up_is_looked_at(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, hung_up: bool
) -> None:
    """It is most likely gone, and was replaced so fast that no other question is answered otherwise."""
    monkeypatch.setattr(module, "QUIET", 60.0)
    monkeypatch.setattr(module, "AWAKE", 0.0)
    monkeypatch.setattr(bench.backend, "hung_up", lambda: hung_up)
    bench.watch.arrived(GOOD)
    await until(lambda: bench.watch.known)
    bench.end(accepted=False, gone_in_prefill=True)
    bench.script.calls.clear()
    await bench.watch.roused(sent=False)
    assert (bench.script.count("/props"), bench.script.count("/slots")) == (1, int(hung_up))


async def test_a_fault_does_not_end_the_watch(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.watch.arrived(GOOD)
    await until(lambda: bench.watch.known)
    with monkeypatch.context() as patch:
        patch.setattr(bench.backend, "slots", None)
        await until(lambda: bench.complaints.total("watch: TypeError"))
    looks = len(bench.told(Looked))
    await until(lambda: len(bench.told(Looked)) > looks)
    bench.watch.close()
    await bench.idle()


async def test_once_closed_it_looks_no_more(bench: Bench) -> None:
    """What is told of requests that end with toki must not start it anew."""
    bench.watch.arrived(GOOD)
    await until(lambda: bench.watch.known)
    bench.watch.close()
    await bench.idle()
    bench.watch.look_soon()
    bench.watch.arrived(GOOD)
    assert len(asyncio.all_tasks()) == 1
