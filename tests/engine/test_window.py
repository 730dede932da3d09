"""What comes back on a sliding-window model: figures from the logs of real servers, and what must always hold."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from toki.engine.contents import Contents
from toki.engine.contents import Held
from toki.engine.events import Kind
from toki.engine.rules import Rules
from toki.engine.shadow import Shadow
from toki.engine.shadow import Wish
from toki.engine.tokens import Tokens
from toki.engine.window import NONE
from toki.engine.window import Checkpoint
from toki.engine.window import Checkpoints
from toki.engine.window import Window
from toki.engine.window import evaluated
from toki.engine.window import planted
from toki.engine.window import reusable
from toki.engine.window import stored
from toki.engine.window import user_starts

SMALL = Window(512, ubatch=128)  # 768 cells


def after(window: Window, *prompts: tuple[int, int], starts: tuple[int, ...] = ()) -> Checkpoints:
    """What is left after prompts that came one after another, each with its length and what it shares with the last."""
    left, length = NONE, 0
    for prompt, shared in prompts:
        left = evaluated(window, left, length, shared, prompt, starts)
        length = prompt
    return left


@pytest.mark.parametrize(
    ("window", "cells"),
    [
        (Window(512, ubatch=128), 768),
        (Window(512, ubatch=128, sharing=4), 2304),
        (Window(512), 1024),
        (Window(512, sharing=4), 2560),
        (Window(1024, ubatch=100), 1280),
    ],
)
def test_the_cells_are_those_that_the_servers_report(window: Window, cells: int) -> None:
    assert window.cells == cells


def test_a_prompt_leaves_checkpoints_before_its_end() -> None:
    assert after(SMALL, (1200, 0)) == Checkpoints(432, (Checkpoint(1068, 300), Checkpoint(1196, 428)))
    assert after(SMALL, (100, 0)) == Checkpoints(0, (Checkpoint(96, 0),))
    assert after(SMALL, (3, 0)) == NONE


def test_a_small_batch_moves_the_checkpoints() -> None:
    left = after(Window(512, batch=512, ubatch=512), (3000, 0))
    assert [one.tokens for one in left.made] == [3000 - 512, 3000 - 4]


def test_a_continuation_adds_its_own_checkpoints_and_the_oldest_stays() -> None:
    left = evaluated(SMALL, after(SMALL, (1200, 0)), 1219, 1219, 1519)
    assert [one.tokens for one in left.made] == [1068, 1387, 1515]
    left = evaluated(SMALL, after(SMALL, (3000, 0)), 3019, 3019, 3059)  # near the end of the prompt from the first
    assert [one.tokens for one in left.made] == [2868, 3019, 3055]


def test_a_later_build_keeps_what_it_has_room_for() -> None:
    window = Window(512, ubatch=128, thins=False)
    left = evaluated(window, after(window, (3000, 0)), 3019, 3019, 3059)
    assert [one.tokens for one in left.made] == [2868, 2996, 3019, 3055]
    again = evaluated(window, after(window, (300, 0)), 300, 300, 300)  # replaces those at the same place
    assert [one.tokens for one in again.made] == [168, 295, 296]


@pytest.mark.parametrize("thins", [False, True])
def test_checkpoints_far_apart_are_kept_up_to_the_limit(thins: bool) -> None:
    window = Window(512, min_step=1000, most=4, thins=thins)
    left, length = NONE, 0
    for prompt in range(5000, 40000, 5000):
        left = evaluated(window, left, length, length, prompt)
        length = prompt
    assert [one.tokens for one in left.made] == [length - 10516, length - 5516, length - 516, length - 4]


def test_without_checkpoints_there_is_only_the_window() -> None:
    window = Window(512, ubatch=128, most=0)
    left = after(window, (1200, 0))
    assert left == Checkpoints(432, ())
    assert reusable(window, left, 1200, 1100, 1300) == 1100
    assert reusable(window, left, 1200, 900, 1300) == 0


@pytest.mark.parametrize(
    ("length", "shared", "prompt", "reuse"),
    [
        (1219, 1200, 1200, 1199),  # a repeat
        (1219, 1219, 1519, 1219),  # a continuation
        (1219, 1210, 1500, 1210),  # another end of the reply: the window before it is still there
        (1219, 1000, 1500, 1000),  # a step back within the cells
        (1500, 1200, 1400, 1195),  # the window is gone: the newest checkpoint, less the token that it ends with
        (1500, 1100, 1400, 1067),
        (1500, 1000, 1400, 0),  # before all checkpoints
        (1219, 300, 400, 0),  # a share shorter than the window needs a checkpoint from the very start
        (1219, 0, 400, 0),
    ],
)
def test_reuse_behind_a_prompt_of_1200_tokens(length: int, shared: int, prompt: int, reuse: int) -> None:
    assert reusable(SMALL, after(SMALL, (1200, 0)), length, shared, prompt) == reuse


def test_prompts_shorter_than_the_window_go_back_to_a_checkpoint_even_when_repeated() -> None:
    left = after(SMALL, (300, 0))
    assert reusable(SMALL, left, 329, 300, 300) == 295
    assert reusable(SMALL, left, 329, 329, 500) == 295
    assert reusable(SMALL, left, 329, 200, 300) == 167


def test_what_comes_back_from_ram_always_goes_back_to_a_checkpoint() -> None:
    left = stored(SMALL, after(SMALL, (3000, 0)), 3019)
    assert left.oldest == 3019 - 512
    assert reusable(SMALL, left, 3019, 3019, 3059) == 2995
    assert evaluated(SMALL, left, 3019, 3019, 3059).oldest == 2484  # the checkpoint holds no more than the window


def test_going_back_drops_the_checkpoints_beyond() -> None:
    left = evaluated(SMALL, after(SMALL, (1200, 0)), 1219, 1000, 1500)
    assert [one.tokens for one in left.made] == [1368, 1496]


def test_a_checkpoint_made_right_after_going_back_serves_only_what_lies_behind_it() -> None:
    left = Checkpoints(2600, (Checkpoint(2868, 2100), Checkpoint(2995, 2484)))
    assert reusable(SMALL, left, 3500, 2996, 3600) == 2867  # its window would have to start one token earlier
    assert reusable(SMALL, left, 3500, 2997, 3600) == 2994


def test_chats_have_checkpoints_where_user_messages_start() -> None:
    left = after(Window(512, ubatch=128, sharing=4), (1088, 0), starts=(306, 720))
    assert [one.tokens for one in left.made] == [306, 720, 956, 1084]
    left = evaluated(Window(512, ubatch=128, sharing=4), left, 1092, 1088, 1141, (306, 720, 1092))
    assert [one.tokens for one in left.made] == [306, 1088, 1092, 1137]
    far = after(Window(512, min_step=1000), (6000, 0), starts=(100, 900, 1500, 1700, 3000, 5300))
    assert [one.tokens for one in far.made] == [100, 1500, 3000, 5300, 5484, 5996]


@given(st.lists(st.integers(0, 3), max_size=30), st.lists(st.integers(0, 3), min_size=1, max_size=3))
def test_user_messages_start_where_their_delimiter_is(tokens: list[int], delimiter: list[int]) -> None:
    found = user_starts(np.array(tokens, np.int32), delimiter)
    assert list(found) == [n for n in range(len(tokens)) if tokens[n : n + len(delimiter)] == delimiter]


def test_without_a_delimiter_no_user_message_is_found() -> None:
    assert user_starts(np.array([1, 2, 3], np.int32), ()) == ()


@pytest.mark.parametrize("thins", [False, True])
def test_a_planted_checkpoint_serves_one_sibling_after_another(thins: bool) -> None:
    window = Window(512, thins=thins)
    head = planted(window, 2500, 3400)
    assert head == 3016
    left, length = after(window, (head, 0)), head
    assert left.made[0].tokens == 2500
    assert reusable(window, left, length, head, 3400) == head
    left, length = evaluated(window, left, length, head, 3400), 3408
    for _ in range(4):
        assert reusable(window, left, length, 2500, 3400) == 2499
        left = evaluated(window, left, length, 2500, 3400)


def test_a_prompt_that_ends_too_soon_has_no_head_to_plant() -> None:
    assert planted(Window(512), 2500, 3016) is None
    assert planted(Window(512, batch=256, ubatch=256), 2500, 3016) == 2756


windows = st.builds(
    Window,
    tokens=st.integers(1, 600),
    sharing=st.integers(1, 4),
    batch=st.integers(8, 700),
    ubatch=st.integers(8, 600),
    min_step=st.integers(0, 2000),
    most=st.integers(0, 6),
    thins=st.booleans(),
)
turns = st.lists(st.tuples(st.integers(1, 3000), st.floats(0, 1), st.integers(0, 200)), min_size=1, max_size=6)


@given(windows, turns, st.lists(st.integers(0, 3000), unique=True, max_size=4).map(sorted))
def test_what_always_holds(window: Window, turns: list[tuple[int, float, int]], starts: list[int]) -> None:
    left, length = NONE, 0
    for prompt, share, reply in turns:
        shared = int(share * min(prompt, length))
        reuse = reusable(window, left, length, shared, prompt)
        assert 0 <= reuse <= min(shared, prompt - 1)
        own = tuple(start for start in starts if start < prompt)
        before, left = left, evaluated(window, left, length, shared, prompt, own)
        assert len(left.made) <= window.most
        assert all(0 < one.tokens < prompt for one in left.made)
        assert all(one.tokens >= reuse for one in left.made if one not in before.made)
        assert max(0, prompt - window.cells) <= left.oldest <= max(0, prompt - window.tokens + 1)
        assert reusable(window, left, prompt, prompt, prompt + 10) >= reuse  # no less for what goes on from here
        length = prompt + reply
        assert stored(window, left, length).made == left.made
        assert left.until(length) == left
        assert left.until(0).made == ()


def held(contents: Contents, ids: range | list[int]) -> Held:
    place = contents.add(Tokens.of(ids))
    return contents.hold(place, len(ids), len(ids))


def launch(shadow: Shadow, key: int, prompt: Held, **wish: object) -> int:
    launched = shadow.launch(Wish(key, prompt, **wish))  # type: ignore[arg-type]
    assert launched is not None
    shadow.finish(key, 1)
    return launched.reuse.likely


def test_the_shadow_follows_the_window_through_slots_and_ram() -> None:
    contents = Contents()
    shadow = Shadow(Rules(n_slots=4, window=Window(512, ubatch=128, sharing=4)), contents)
    long = list(range(3000))
    assert launch(shadow, 1, held(contents, long)) == 0
    assert launch(shadow, 2, held(contents, range(5000, 5800))) == 0  # the first one goes to RAM
    assert launch(shadow, 3, held(contents, [*long, 9001, 9002])) == 2995
    assert launch(shadow, 4, held(contents, [*long, 9001, 9003])) == 3001
    assert launch(shadow, 5, held(contents, [*long[:2994], 9004, 9005])) == 2867  # no more than the window came back


def test_the_shadow_passes_on_what_decides_about_checkpoints() -> None:
    contents = Contents()
    rules = Rules(n_slots=1, window=SMALL)
    prompt, longer = held(contents, range(1200)), held(contents, [*range(700), *range(5000, 5500)])
    wishes: list[tuple[dict[str, object], int]] = [({"user_starts": (650,)}, 649), ({}, 0), ({"kind": Kind.INFILL}, 0)]
    for wish, reuse in wishes:
        shadow = Shadow(rules, contents)
        launch(shadow, 1, prompt, **wish)
        assert launch(shadow, 2, longer) == reuse
        assert launch(shadow, 3, longer, cache_prompt=False) == 0
    shadow = Shadow(rules, contents)
    shadow.launch(Wish(1, prompt))
    shadow.cancel(1, 1000, 1100)
    (slot,) = shadow.slots
    assert slot.held is not None
    assert [one.tokens for one in slot.held.checkpoints.made] == [1068]
