"""The order of what happened: by the server's own times, by what was measured, and never against what is certain."""

from __future__ import annotations

import pytest

from toki.engine.contents import UNKNOWN
from toki.engine.contents import Contents
from toki.engine.contents import Held
from toki.engine.rules import Rules
from toki.engine.shadow import Shadow
from toki.engine.shadow import Wish
from toki.engine.timeline import SELDOM
from toki.engine.timeline import VAIN
from toki.engine.timeline import Cancelled
from toki.engine.timeline import Finished
from toki.engine.timeline import Launched
from toki.engine.timeline import Timeline
from toki.engine.tokens import Tokens

SPLIT = Rules(n_slots=2, unified=False, idle_save=False, ram=0)


class Story:
    """A timeline of a server with two slots that hold nothing."""

    def __init__(self, rules: Rules = SPLIT) -> None:
        self.contents = Contents()
        base = Shadow(rules, self.contents)
        self.timeline = Timeline(base)

    def hold(self, ids: list[int]) -> Held:
        return self.contents.hold(self.contents.add(Tokens.of(ids)), len(ids), len(ids))

    def launch(self, key: int, ids: list[int], since: float, until: float, at: float | None = None) -> None:
        wish = Wish(key, self.hold(ids))
        self.timeline.take(Launched(key, wish, wish), since, until, at)

    def finish(self, key: int, since: float, until: float, at: float | None = None) -> None:
        self.timeline.take(Finished(key, 1), since, until, at)

    @property
    def lengths(self) -> list[int]:
        return [slot.held.length if slot.held else 0 for slot in self.timeline.base.slots]

    def slot(self, key: int) -> int | None:
        return self.timeline.base.running(key)


A, B, C = [*range(100)], [*range(500, 560)], [*range(100), *range(900, 920)]


def test_an_end_comes_before_a_launch_that_most_likely_was_later() -> None:
    """The server worked for 10 ms on a request that was released 50 ms before the next one, but its end was heard only
    after that one's headers."""
    story = Story()
    story.launch(1, A, 1.0, 1.2, 1.0)
    story.launch(2, C, 1.05, 1.2, 1.05)
    assert story.slot(2) == 0  # the other slot seemed busy
    story.finish(1, 1.01, 1.25, 1.01)
    assert story.slot(2) == 1
    assert story.lengths == [0, 120]
    assert story.timeline.measured(2, 100)


def test_what_was_measured_outweighs_what_is_likely() -> None:
    story = Story()
    story.launch(1, A, 1.0, 1.2, 1.0)
    story.launch(2, C, 1.05, 1.2, 1.05)
    assert story.timeline.measured(2, 0)
    story.finish(1, 1.01, 1.25, 1.01)
    assert story.slot(2) == 0


@pytest.mark.parametrize(("released", "explained"), [(1.05, True), (1.3, False)])
def test_a_measured_reuse_moves_only_what_may_have_been_otherwise(released: float, explained: bool) -> None:
    """Request 2 reused nothing of request 1, whose end was heard at 1.25: it may have been launched before that, if it
    was released by then."""
    story = Story()
    story.launch(1, A, 1.0, 1.2)
    story.finish(1, 1.1, 1.25)
    story.launch(2, C, released, 1.4)
    assert story.slot(2) == 1
    assert story.timeline.measured(2, 0) is explained
    assert story.slot(2) == 0  # else the slot that holds nothing is the only one that explains it


def test_a_slot_that_an_answer_names_is_evidence() -> None:
    story = Story()
    story.launch(1, A, 1.0, 1.1)
    story.launch(2, B, 1.0, 1.1)
    assert (story.slot(1), story.slot(2)) == (1, 0)
    assert story.timeline.measured(1, 0, slot=0)
    assert (story.slot(1), story.slot(2)) == (0, 1)


def test_when_a_client_left_is_seen_late() -> None:
    """The server noticed that the client of request 1 had left before request 2 was launched."""
    story = Story()
    story.launch(1, A, 1.0, 1.1)
    story.launch(2, C, 1.3, 1.4)
    story.timeline.take(Cancelled(1, 100, 100), 1.2, 2.5)
    assert story.slot(2) == 0
    assert story.timeline.measured(2, 100)
    assert story.slot(2) == 1


def test_a_slot_that_an_answer_names_is_believed_without_a_search() -> None:
    story = Story()
    for number, length in enumerate((70, 50)):
        story.timeline.base.correct(number, story.contents.hold(UNKNOWN, 0, length))
    story.launch(1, A, 1.0, 1.1)
    assert story.slot(1) == 1
    story.timeline.measured(1, 30, slot=0, reorder=False)
    assert story.slot(1) == 0


def test_of_unknown_contents_any_may_have_been_taken_and_the_others_stay_unknown() -> None:
    story = Story()
    for number, length in enumerate((70, 50)):
        story.timeline.base.correct(number, story.contents.hold(UNKNOWN, 0, length))
    story.launch(1, A, 1.0, 1.1)
    story.timeline.measured(1, 30)
    held = [slot.held for slot in story.timeline.base.slots]
    assert [one is not None and one.place == UNKNOWN for one in held] == [True, False]


def test_a_reply_that_is_told_later_is_known_in_every_order() -> None:
    story = Story()
    story.launch(1, A, 1.0, 1.2, 1.0)
    story.timeline.take(Finished(1, 4), 1.01, 1.25, 1.25)
    prompt = story.hold(A)
    old = story.contents.hold(prompt.place, 100, 103)
    place = story.contents.add(Tokens.of([*A, 7, 8, 9]))
    story.timeline.reveal(1, old, place)
    story.launch(2, B, 1.1, 1.3, 1.1)  # before that end, as it seems
    assert story.slot(2) == 0
    held = story.timeline.base.slots[1].held
    assert held is not None
    assert (held.place, held.length) == (place, 103)


def test_after_a_context_shift_a_slot_holds_nobody_knows_what() -> None:
    story = Story()
    story.launch(1, A, 1.0, 1.1)
    story.timeline.take(Finished(1, 50, shifted=True), 1.2, 1.2)
    held = story.timeline.base.slots[1].held
    assert held is not None
    assert (held.place, held.certain, held.length) == (UNKNOWN, 0, 149)
    story.launch(2, C, 1.3, 1.4)
    launch = story.timeline.base.launches[2]
    assert (launch.sure, launch.reuse.likely) == (False, 0)


@pytest.mark.parametrize(
    ("odd", "explained"), [(VAIN - 1, True), (VAIN, True), (VAIN + 1, False), (VAIN + SELDOM, True)]
)
def test_after_many_searches_in_vain_another_order_is_looked_for_seldom(odd: int, explained: bool) -> None:
    """As many figures of request 1 are odd as no order explains; one explains that request 2 reused nothing."""
    story = Story()
    story.launch(1, A, 1.0, 1.2)
    for _ in range(odd):
        assert not story.timeline.measured(1, 7)
    story.finish(1, 1.1, 1.25)
    story.launch(2, C, 1.05, 1.4)
    assert story.timeline.measured(2, 0) is explained
    assert story.slot(2) == 0  # the only slot that explains it
