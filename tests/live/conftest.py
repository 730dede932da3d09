"""Real llama-servers for the tests in this directory; all of them are `live`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from typing import Literal
from typing import Protocol

import pytest

from servers import BUILDS
from servers import Build
from servers import Flags
from servers import LlamaServer
from servers import gemma3
from servers import smollm2
from servers import start
from servers import tiny_hybrid_model
from servers import tiny_model
from servers import tiny_window_model

HERE = Path(__file__).parent
MODELS: dict[str, Callable[[], Path]] = {
    "tiny": tiny_model,
    "tiny-window": tiny_window_model,
    "tiny-hybrid": tiny_hybrid_model,
    "smollm2": smollm2,
    "gemma3": gemma3,
}


class Llama(Protocol):
    """Gives a running server with these flags (fields of servers.Flags)."""

    def __call__(
        self,
        model: Literal["tiny", "tiny-window", "tiny-hybrid", "smollm2", "gemma3"] = "tiny",
        build: Build = "skulk",
        **flags: Any,
    ) -> LlamaServer: ...


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.live)


@pytest.fixture(params=BUILDS)
def build(request: pytest.FixtureRequest) -> Build:
    """Each server build in turn."""
    found: Build = request.param
    return found


@pytest.fixture(scope="session")
def llama() -> Iterator[Llama]:
    """Running servers, shared by all tests that ask for equal ones: they may hold what other tests sent.

    For a server with nothing in it, or one to end: `fresh_llama`.
    """
    with contextlib.ExitStack() as stack:
        running: dict[tuple[str, Build, Flags], LlamaServer] = {}

        def get(model: str = "tiny", build: Build = "skulk", **flags: Any) -> LlamaServer:
            wanted = (model, build, Flags(**flags))
            if wanted not in running or not running[wanted].running:
                running[wanted] = stack.enter_context(start(MODELS[model](), wanted[2], build))
            return running[wanted]

        yield get


@pytest.fixture
def fresh_llama() -> Iterator[Llama]:
    """New servers with empty slots, ended with the test."""
    with contextlib.ExitStack() as stack:

        def get(model: str = "tiny", build: Build = "skulk", **flags: Any) -> LlamaServer:
            return stack.enter_context(start(MODELS[model](), Flags(**flags), build))

        yield get
