"""Levers: which ways to steer are used, by what became of those that were."""

from __future__ import annotations

import pytest

from toki.engine.events import Action
from toki.engine.levers import AGAIN
from toki.engine.levers import ENOUGH
from toki.engine.levers import Levers


def test_an_action_that_does_not_keep_its_promise_is_dropped() -> None:
    levers = Levers()
    for _ in range(10):
        levers.judge(Action.SWAPPED, right=True)
    wrong = 0
    while levers.usable(Action.SWAPPED):
        levers.judge(Action.SWAPPED, right=False)
        wrong += 1
    assert wrong == ENOUGH
    assert levers.usable(Action.PINNED)
    levers.judge(Action.SWAPPED, right=True)
    assert levers.usable(Action.SWAPPED)


def test_what_was_dropped_is_tried_again_after_a_hundred_calm_requests_unless_the_server_has_it_not() -> None:
    levers = Levers()
    for _ in range(2):
        levers.judge(Action.SWAPPED, right=False)
    levers.prove(Action.PINNED, None)
    levers.drop(Action.FORKED)
    levers.prove(Action.PRIMED, works=False)
    dropped = {action for action in Action if not levers.usable(action)}
    assert dropped == {Action.SWAPPED, Action.PINNED, Action.FORKED, Action.PRIMED}
    for _ in range(AGAIN):
        assert not levers.usable(Action.SWAPPED)
        levers.judge(Action.PASSED, right=False)
        levers.judge(Action.PASSED, right=True)
    assert {action for action in Action if not levers.usable(action)} == {Action.FORKED, Action.PRIMED}
    assert levers.untried(0, 4) is Action.PINNED
    levers.judge(Action.SWAPPED, right=False)
    assert not levers.usable(Action.SWAPPED), "one more wrong one is enough"


def test_passing_is_always_possible() -> None:
    levers = Levers()
    for _ in range(10):
        levers.judge(Action.PASSED, right=False)
    assert levers.usable(Action.PASSED)


@pytest.mark.parametrize("right", [True, False])
def test_every_action_starts_usable(right: bool) -> None:
    levers = Levers()
    assert all(levers.usable(action) for action in Action)
    levers.judge(Action.PINNED, right)
    assert levers.usable(Action.PINNED)
