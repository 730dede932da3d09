"""No answer through toki is damaged: four at once, each compared with the same prompt alone and without a cache."""

from __future__ import annotations

import contextlib

import pytest

import play
from benchmark import damage
from benchmark.cells import KEPT
from benchmark.cells import LIMIT_S
from benchmark.cells import Cell
from benchmark.sides import NotThere
from servers import Build
from traffic import Request
from traffic import chat


@pytest.mark.parametrize("flags", ["default", "-np 4", KEPT])
def test_four_at_once_answer_as_each_alone(build: Build, flags: str) -> None:
    cell = Cell(build=build, flags=flags, scenario="shared-preamble", at_once=4, reply=16, scale=0.1)
    for seed in (1, 2, 3):
        answers = damage.compared(cell, "auto", seed=seed, session=0)
        assert answers.compared == 72
        assert answers.damaged == []
        if flags != "-np 4":
            # Slots that are cleared at each launch, or that are enough for all, may leave nothing to steer to.
            return
        assert answers.differ == 0  # where each slot has a cache of its own, not one letter differs
        if answers.steered:
            return
    pytest.fail("nothing was steered, so nothing could be damaged")


def test_damage_is_seen(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    """What toki must never do: with a RAM cache, a pin to a busy slot damages the answer that is under way there."""

    def pinned(request: Request, stream: bool) -> dict[str, object]:
        return chat(request, stream) | {"id_slot": 0}

    monkeypatch.setitem(play.BODIES, "chat", pinned)
    cell = Cell(build=build, flags="-np 4", scenario="shared-preamble", at_once=4, reply=16, scale=0.1)
    monkeypatch.setitem(LIMIT_S, "tiny", 10.0)
    with contextlib.suppress(NotThere):  # it can also leave the server evaluating for ever
        assert damage.compared(cell, "alone", seed=1, session=0).damaged
