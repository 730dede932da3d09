"""Servers that load models on demand, or sleep: toki keeps each model apart and never loads or wakes one itself."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from dataclasses import field
from pathlib import Path
from typing import Any

import pytest
import requests
from tests.live.routers import routing
from tests.live.wire import Mitmdump
from tests.live.wire import Relay
from tests.live.wire import ask
from tests.live.wire import messages
from tests.live.wire import mitmdump
from tests.live.wire import relay
from tests.live.wire import request
from tests.live.wire import until

from servers import Flags
from servers import start
from servers import tiny_model

pytestmark = pytest.mark.live

UNKNOWN = "the server is not known yet"
PROMPT = "One two three four five six seven eight nine ten."
SLEEP = 2  # seconds without a request after which the server sleeps


def serve(proxy: Mitmdump, path: str = "/completion", **body: Any) -> dict[str, Any]:
    """Send a request through toki; its row."""
    before = len(proxy.rows("id"))
    ask(proxy.port, request(path, json.dumps({"prompt": PROMPT, "n_predict": 2, "temperature": 0, **body}).encode()))
    until(lambda: len(proxy.rows("id")) > before)
    return proxy.rows()[before]


def look_ups(wire: Relay) -> list[str]:
    """The requests that toki itself sent: the client's are those on /completion."""
    sent = [message.first.split(" ")[1] for passed in list(wire.passed) for message in messages(bytes(passed.up))]
    return [target for target in sent if not target.startswith("/completion")]


# --- a router ---


@pytest.fixture
def router(tmp_path: Path) -> Iterator[str]:
    """A router that knows two models, neither of which is loaded; the first has another name too."""
    model = f"model = {tiny_model()}\nparallel = 2\nctx-size = 2048\n"
    with routing(f"[alpha]\nalias = first\n{model}\n[beta]\n{model}", tmp_path) as url:
        yield url


def states(url: str) -> dict[str, str]:
    models = requests.get(f"{url}/v1/models", timeout=5).json()["data"]
    return {model["id"]: model["status"]["value"] for model in models}


def test_a_router_keeps_its_models_apart_and_loads_only_what_clients_ask_for(router: str, tmp_path: Path) -> None:
    with (
        relay(int(router.rpartition(":")[2])) as wire,
        mitmdump(wire.port, tmp_path / "proxy", toki_server_flags="--parallel 2") as proxy,
    ):

        def known(model: str) -> dict[str, Any]:
            row: dict[str, Any] = until(lambda: (one := serve(proxy, model=model))["reason"] != UNKNOWN and one)
            return row

        assert serve(proxy, model="nope")["status"] == 400
        assert set(states(router).values()) == {"unloaded"}
        known("alpha")
        assert states(router) == {"alpha": "loaded", "beta": "unloaded"}
        row = serve(proxy, model="alpha")
        assert row["predicted"] == row["reused"] > 10
        row = serve(proxy, model="first")  # the same model, and the same slots
        assert row["predicted"] == row["reused"] > 10
        assert serve(proxy, model="nope")["status"] == 400
        row = serve(proxy, model="beta")  # the same prompt, but nothing of it is in this model's slots
        assert (row["status"], row["reused"], row["parent"]) == (200, 0, None)
        assert states(router) == {"alpha": "loaded", "beta": "loaded"}
        known("beta")
        for model in ("beta", "alpha"):
            row = serve(proxy, model=model)
            assert row["predicted"] == row["reused"] > 10
        assert all("autoload=false" in target for target in look_ups(wire))
        assert any("model=beta" in target for target in look_ups(wire))
        assert "Traceback" not in proxy.log


# --- a server that sleeps ---


@dataclass(frozen=True, slots=True, kw_only=True)
class SleepyFlags(Flags):
    sleep: int = field(default=SLEEP, metadata={"param": "sleep_idle_seconds", "on": "--sleep-idle-seconds", "off": ""})


def test_a_server_sleeps_undisturbed_and_what_it_forgot_is_forgotten(tmp_path: Path) -> None:
    flags = SleepyFlags(n_parallel=2, n_ctx=2048)
    with (
        start(tiny_model(), flags) as server,
        relay(server.port) as wire,
        mitmdump(wire.port, tmp_path / "proxy", toki_server_flags="--parallel 2") as proxy,
    ):

        def sleeping() -> bool:
            return bool(requests.get(f"{server.url}/props", timeout=5).json()["is_sleeping"])

        until(lambda: serve(proxy)["reason"] != UNKNOWN)
        row = serve(proxy)
        assert row["predicted"] == row["reused"] > 10
        until(sleeping)
        before = look_ups(wire)
        time.sleep(2 * SLEEP)  # nothing may happen: there is no sign to wait for
        assert sleeping()
        assert look_ups(wire) == before
        row = serve(proxy)
        assert (row["status"], row["reused"], row["predicted"]) == (200, 0, None)
        assert row["reason"] == UNKNOWN
        until(lambda: serve(proxy)["reason"] != UNKNOWN)
        row = serve(proxy)
        assert row["predicted"] == row["reused"] > 10
        assert "Traceback" not in proxy.log
