"""What holds for every test: no proxy from the environment, and no process left behind."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from tests.effort import PROFILES

for name, number in PROFILES.items():  # --hypothesis-profile=NAME; a loaded machine is no failure
    settings.register_profile(name, deadline=None, max_examples=number, print_blob=True)
settings.load_profile("usual")

PROC = Path("/proc")


@pytest.fixture(scope="session", autouse=True)
def _no_process_left() -> Iterator[None]:
    """Fail the session if a process that the tests started outlives them. Set up first, so torn down last."""
    before = _children(os.getpid())
    yield
    left = {pid: command for pid, command in _children(os.getpid()).items() if pid not in before}
    assert not left, f"left behind: {left}"


@pytest.fixture(scope="session", autouse=True)
def _no_proxy(_no_process_left: None) -> Iterator[None]:
    """Remove HTTP_PROXY and its like: tests talk to this machine only."""
    with pytest.MonkeyPatch.context() as patch:
        for name in os.environ:
            if name.upper().endswith("_PROXY"):
                patch.delenv(name)
        yield


@pytest.fixture(autouse=True)
def _unfrozen(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """toki keeps what is loaded from the garbage collector; here that would be what all tests so far have left, whose
    connections would then end in the middle of another test."""
    if request.node.get_closest_marker("freezes") is None:
        monkeypatch.setattr(gc, "freeze", lambda: None)


def _children(parent: int) -> dict[int, str]:
    """Process ids and command lines of the direct children of `parent`; empty where there is no /proc."""
    found = {}
    for status in PROC.glob("[0-9]*/status"):
        try:
            fields = dict(line.split(":\t", 1) for line in status.read_text().splitlines() if ":\t" in line)
            if int(fields["PPid"]) == parent:
                command = (status.parent / "cmdline").read_bytes().replace(b"\0", b" ")
                found[int(fields["Pid"])] = command.decode(errors="replace") or fields["Name"]
        except OSError:
            continue  # it ended while we looked
    return found
