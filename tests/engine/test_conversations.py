"""Conversations are told apart by their prefix, and how likely one returns follows from what its kin did."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.effort import examples

from toki.engine.contents import Contents
from toki.engine.contents import Held
from toki.engine.conversations import Conversations
from toki.engine.tokens import Tokens


class Chat:
    """Notes prompts, with keys counted from 1."""

    def __init__(self, limit: int = 64) -> None:
        self.contents = Contents()
        self.conversations = Conversations(self.contents, limit)
        self.key = 0

    def hold(self, ids: list[int]) -> Held:
        return self.contents.hold(self.contents.add(Tokens.of(ids)), len(ids), len(ids))

    def says(self, ids: list[int]) -> int:
        """The conversation that a prompt belongs to."""
        self.key += 1
        return self.conversations.note(self.key, self.hold(ids)).key


def test_a_prompt_that_extends_another_continues_it() -> None:
    chat = Chat()
    assert chat.says([*range(100)]) == 1
    assert chat.says([*range(100), 7, 7]) == 1
    assert chat.says([*range(50), 8, 8]) == 3
    assert chat.says([*range(100), 7, 7, 9]) == 1


def test_a_small_edit_at_the_end_is_the_same_conversation() -> None:
    """Templates drop the thinking of the last turn and the like."""
    chat = Chat()
    chat.says([*range(100)])
    assert chat.says([*range(95), 7, 7]) == 1
    chat.says([*range(1000, 1100)])
    assert chat.says([*range(1000, 1083), 7, 7]) == 4


def test_the_reply_counts() -> None:
    chat = Chat()
    first = chat.hold([*range(10)])
    chat.says([*range(10)])
    grown = chat.hold([*range(100)])
    chat.conversations.replace_held(first, grown)
    assert chat.conversations.recent[1].held is grown
    assert chat.says([*range(20)]) == 2  # not what was answered
    assert chat.says([*range(100), 5]) == 1


def test_a_short_conversation_does_not_take_the_turns_of_a_long_one() -> None:
    """Both begin alike, and the short one is hardly more than what they share."""
    chat = Chat()
    chat.says([*range(100), *range(500, 600)])
    assert chat.says([*range(98), 7, 7]) == 2
    assert chat.says([*range(100), *range(500, 600), 9]) == 1


def test_one_shots_teach_that_their_kin_do_not_return() -> None:
    chat = Chat()
    head = [*range(50)]
    for n in range(8):
        chat.says([*head, *range(1000 * n, 1000 * n + 50)])
    newest = chat.conversations.recent[8]
    assert newest.family.started == 8
    assert chat.conversations.chance(newest) == pytest.approx(0.02)
    chat.says([*range(5000, 5100)])
    stranger = chat.conversations.recent[9]
    assert stranger.family is not newest.family
    assert chat.conversations.chance(newest) < chat.conversations.chance(stranger) <= 0.5


def test_one_that_went_on_speaks_for_its_kin() -> None:
    chat = Chat()
    head = [*range(50)]
    for n in range(4):
        first = [*head, *range(1000 * n, 1000 * n + 50)]
        chat.says(first)
        chat.says([*first, 1, 2])
        chat.says([*first, 1, 2, 3])  # counts once
    latest = chat.conversations.recent[10]
    assert (latest.family.started, latest.family.returned, latest.turns) == (4, 4, 3)
    assert chat.conversations.chance(latest) == pytest.approx(0.95)


def test_the_longer_it_stays_away_the_less_it_is_expected() -> None:
    chat = Chat()
    chat.says([*range(100)])
    chat.says([*range(100), 1])
    chances = []
    for n in range(5):
        chances.append(chat.conversations.chance(chat.conversations.recent[1]))
        chat.says([*range(1000 * n + 1000, 1000 * n + 1100)])
    assert chances == sorted(chances, reverse=True)
    assert chances[4] < chances[0]


def test_rare_visitors_are_waited_for_longer() -> None:
    chat = Chat()
    keys = []
    for gap in (1, 10):
        first = [*range(gap * 10_000, gap * 10_000 + 100)]
        keys.append(chat.says(first))
        for n in range(gap):
            chat.says([*range(gap * 1_000_000 + 1000 * n, gap * 1_000_000 + 1000 * n + 100)])
        chat.says([*first, 1])
    quick, rare = (chat.conversations.recent[key] for key in keys)
    assert (quick.gap, rare.gap) == (1, 10)
    quick.seen = rare.seen = 0
    assert chat.conversations.chance(rare) > chat.conversations.chance(quick)


def edits(chat: Chat, turns: int) -> list[int]:
    """Two sessions behind a head, each of which shows files anew behind a history that grows; their last keys."""
    head, keys = [*range(100)], [0, 0]
    for turn in range(turns):
        for session in range(2):
            history = [*range(1000 * session + 1000, 1000 * session + 1100 + 50 * turn)]
            files = [*range(100_000 + 10_000 * session + 1000 * turn, 100_200 + 10_000 * session + 1000 * turn)]
            keys[session] = chat.says([*head, *history, *files])
    return keys


def test_one_whose_history_is_edited_at_every_turn_goes_on() -> None:
    """Sessions of aider: files stand behind the history, and none of their prompts contains an earlier one whole."""
    chat = Chat()
    for key in edits(chat, 5):
        conversation = chat.conversations.recent[key]
        assert conversation.kept == 100 + 100 + 50 * 3  # the head, and the history of the turn before
        assert conversation.head == 100
        assert conversation.turns >= 4
        assert chat.conversations.chance(conversation) > 0.8
        assert chat.conversations.siblings(key) == 0
    assert chat.conversations.recent[10].gap == pytest.approx(1)


def test_what_stood_through_an_edit_is_wanted_and_the_rest_as_before() -> None:
    chat = Chat()
    edits(chat, 5)
    latest = chat.conversations.recent[10]
    chance = chat.conversations.chance(latest)
    wanted = {
        held.length: part for held, part in chat.conversations.wanted(but=None) if held.place == latest.held.place
    }
    assert wanted == {350: pytest.approx(chance * 0.75), latest.held.length: pytest.approx(chance * 0.25)}
    assert all(held.place != latest.held.place for held, _ in chat.conversations.wanted(but=10))
    ids = chat.contents[latest.held.place].ids.tolist()
    assert chat.says([*ids, 7]) == 10  # now it only grew
    assert [part for held, part in chat.conversations.wanted(but=None) if held is latest.held] == [0.95]


def test_siblings_are_not_taken_for_edits() -> None:
    """They too share a head, and by chance a few tokens behind it."""
    chat = Chat()
    head = [*range(100)]
    for n in range(6):
        chat.says([*head, *range(500, 500 + n), *range(1000 * n + 1000, 1000 * n + 1100)])
    assert all(one.turns == 1 and not one.kept for one in chat.conversations.recent.values())


def test_what_another_owner_shares_is_no_edit() -> None:
    chat = Chat()
    chat.says([*range(200), *range(1000, 1100)])
    chat.says([*range(200), *range(2000, 2100)])
    first = chat.conversations.recent[1]
    assert (first.head, chat.conversations.recent[2].turns) == (200, 1)  # of the first no head was known
    ids = [*range(200), *range(1000, 1050), *range(3000, 3100)]
    place = chat.contents.add(Tokens.of(ids), owner="another")
    other = chat.conversations.note(99, chat.contents.hold(place, len(ids), len(ids)))
    assert (other.turns, other.kept, first.edited) == (1, 0, False)


def test_who_has_more_than_the_head_is_the_next_version() -> None:
    chat = Chat()
    for n in (1, 2):
        chat.says([*range(200), *range(1000 * n, 1000 * n + 100)])
    chat.says([*range(200), *range(1000, 1050), *range(3000, 3100)])
    old, new = chat.conversations.recent[1], chat.conversations.recent[3]
    assert (old.edited, new.turns, new.kept, new.family.returned, new.family.started) == (True, 2, 250, 1, 2)


@examples(40)
@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=30), max_size=40), st.integers(1, 5))
def test_what_always_holds(prompts: list[list[int]], limit: int) -> None:
    chat = Chat(limit)
    for ids in prompts:
        before = dict(chat.conversations.recent)
        key = chat.says(ids)
        recent = chat.conversations.recent
        assert len(recent) <= limit
        assert list(recent)[-1] == key
        assert key == chat.key or key in before
        assert recent[key].held is chat.hold(ids)
        assert list(recent) == sorted(recent, key=lambda one: recent[one].seen)
        assert all(0 < chat.conversations.chance(one) <= 0.95 + 0.05 for one in recent.values())
        assert all(one.family.returned <= one.family.started for one in recent.values())
        assert all(one.kept <= one.first for one in recent.values())
        assert all(0 < part <= 1 for _, part in chat.conversations.wanted(but=None))
