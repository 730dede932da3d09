"""The table of common prefixes gives what a loop over the tokens gives, while lists come and go."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.effort import examples
from tests.engine.literal import common_prefix

from toki.engine.contents import FRAME
from toki.engine.contents import UNKNOWN
from toki.engine.contents import Contents
from toki.engine.contents import Held
from toki.engine.contents import Shelf
from toki.engine.events import Span
from toki.engine.tokens import BLOCK
from toki.engine.tokens import Tokens
from toki.engine.window import Checkpoints

# Lists over a small alphabet that share long heads; some are longer than a block of the chained hashes.
IDS = st.builds(
    lambda head, tail: [1] * head + tail,
    st.sampled_from([0, 0, 0, 3, BLOCK - 1, BLOCK, BLOCK + 2, 2 * BLOCK]),
    st.lists(st.integers(0, 2), max_size=6),
)
LORA = st.sampled_from(["", "", "", "a", "b"])
OWNERS = st.sampled_from(["", "", "", "me", "you"])


class Plain:
    """Contents without a matrix: what every question must answer."""

    def __init__(self, capacity: int) -> None:
        self.contents = Contents(capacity)
        self.lists: dict[int, tuple[list[int], str, str]] = {}

    def add(self, ids: list[int], lora: str = "", owner: str = "") -> int:
        place = self.contents.add(Tokens.of(ids), lora, owner=owner)
        assert self.lists.get(place, (ids, lora, owner)) == (ids, lora, owner)
        self.lists[place] = (ids, lora, owner)
        return place

    def keep(self, places: Sequence[int]) -> None:
        self.contents.keep([*places, UNKNOWN])
        self.lists = {place: self.lists[place] for place in places}

    def shared(self, a: int, b: int) -> int:
        return common_prefix(self.lists[a][0], self.lists[b][0])

    def alike(self, a: int, b: int) -> bool:
        return self.lists[a][1:] == self.lists[b][1:]

    def check(self) -> None:
        contents = self.contents
        assert len(contents) == len(self.lists)
        for a, (ids, lora, owner) in self.lists.items():
            assert contents[a].ids.tolist() == ids
            assert (contents.lora(a), contents.owner(a)) == (lora, owner)
            for b in self.lists:
                assert contents.lcp(a, b) == self.shared(a, b)
            row = contents.row(a)
            assert {int(place) for place in np.flatnonzero(row)} <= set(self.lists)
            assert [int(row[b]) for b in self.lists] == [self.shared(a, b) * self.alike(a, b) for b in self.lists]


Step = tuple[list[int], str, str] | list[int]  # a list to add, or the places to keep
STEPS = st.lists(st.tuples(IDS, LORA, OWNERS) | st.lists(st.integers(0, 30), max_size=8), max_size=20)


def build(steps: Sequence[Step]) -> Plain:
    plain = Plain(2)
    for step in steps:
        if isinstance(step, tuple):
            plain.add(*step)
        else:
            places = list(plain.lists)
            plain.keep(sorted({places[n % len(places)] for n in step}) if places else [])
    return plain


@examples(60)
@given(STEPS)
def test_common_prefixes_are_those_of_a_loop(steps: list[Step]) -> None:
    build(steps).check()


@examples(60)
@given(STEPS, IDS, LORA, OWNERS)
def test_nearest_shares_most(steps: list[Step], ids: list[int], lora: str, owner: str) -> None:
    plain = build(steps)
    lists = {place: theirs for place, (theirs, _, _) in plain.lists.items()}
    place, shared = plain.contents.nearest(Tokens.of(ids), lora, owner)
    if place is None:
        assert (lists, shared) == ({}, 0)
        return
    assert shared == common_prefix(lists[place], ids) == max(common_prefix(theirs, ids) for theirs in lists.values())
    if ids in lists.values():
        assert lists[place] == ids
    if (ids, lora, owner) in plain.lists.values():
        assert plain.lists[place] == (ids, lora, owner)


def test_a_known_list_keeps_its_place() -> None:
    contents = Contents()
    place = contents.add(Tokens.of([1, 2, 3]))
    assert contents.add(Tokens.of([1, 2, 3])) == place
    assert contents.add(Tokens.of([1, 2])) != place
    assert contents.add(Tokens.of([1, 2, 3]), lora="a") != place
    assert contents.add(Tokens.of([1, 2, 3]), owner="me") != place
    assert len(contents) == 4


def test_what_continues_a_list_is_of_its_adapters_and_its_owner() -> None:
    contents = Contents()
    place = contents.add(Tokens.of([1, 2]), "a", owner="me")
    assert contents.add_like(place, Tokens.of([1, 2, 3])) == contents.add(Tokens.of([1, 2, 3]), "a", owner="me")


def test_where_owners_are_kept_apart_what_is_not_known_is_no_ones() -> None:
    contents = Contents()
    unknown = contents.hold(UNKNOWN, 0, 9)
    anyones, mine, yours = (
        contents.hold(contents.add(Tokens.of([1, 2]), owner=owner), 2, 2) for owner in ("", "me", "you")
    )
    assert contents.alike(unknown, anyones)
    assert contents.alike(unknown, unknown)
    assert not contents.alike(unknown, mine)
    assert not contents.alike(mine, unknown)
    assert not contents.alike(mine, yours)
    assert contents.alike(mine, mine)


def test_where_an_image_stands_other_ones_may_share_its_frame() -> None:
    contents = Contents()
    text, cat, dog = list(range(10)), [2**30] * 4, [2**30 + 1] * 4
    one = contents.add(Tokens.of(text + cat + text), images=(10,))
    other = contents.add(Tokens.of(text + dog + text), images=(10,))
    held, prompt = contents.hold(one, 24, 24), contents.hold(other, 24, 24)
    assert contents.span(held, prompt) == Span(10, 10, 10 + FRAME)
    assert contents.span(contents.hold(one, 10, 10), prompt) == Span(10, 10, 10)
    assert contents.span(held, held) == Span(24, 24, 24)
    plain = contents.hold(contents.add(Tokens.of([*text, 77])), 11, 11)
    assert contents.span(held, plain) == Span(10, 10, 10)
    assert contents.images(contents.add(Tokens.of(text))) == ()


def test_what_holds_an_image_cannot_be_sent_as_ids() -> None:
    contents = Contents()
    place = contents.add(Tokens.of([1, 2, 2**30, 3]), images=(2,))
    assert [contents.sendable(contents.hold(place, n, n)) for n in (1, 2, 3, 4)] == [True, True, False, False]
    text = contents.add(Tokens.of([1, 2]))
    assert contents.sendable(contents.hold(text, 2, 9))


def test_growing_chats_share_their_memory() -> None:
    contents = Contents()
    chat = Tokens.of(range(1000))
    places = [contents.add(chat.head(n)) for n in (300, 1000, 700)]
    assert [len(contents[place]) for place in places] == [300, 1000, 700]
    assert all(np.shares_memory(contents[place].ids, contents[places[1]].ids) for place in places)


def test_what_was_forgotten_is_gone() -> None:
    contents = Contents(1)
    first, second = contents.add(Tokens.of([1])), contents.add(Tokens.of([1, 2]))
    held = contents.hold(first, 1, 1)
    contents.keep([second])
    with pytest.raises(KeyError):
        contents[first]
    assert contents.lcp(second, first) == 0
    assert contents.nearest(Tokens.of([1])) == (second, 1)
    assert contents.hold(first, 1, 1) is not held


def test_the_same_contents_are_one_object() -> None:
    contents = Contents()
    place = contents.add(Tokens.of([1, 2, 3]))
    assert contents.hold(place, 3, 3) is contents.hold(place, 3, 3)
    assert contents.hold(place, 3, 3) is not contents.hold(place, 3, 4)
    assert contents.hold(place, 3, 3) is not contents.hold(place, 3, 3, Checkpoints(oldest=2))
    unknown = contents.hold(UNKNOWN, 0, 7)
    contents.keep([])
    assert contents.hold(UNKNOWN, 0, 7).length == unknown.length


# --- what slots hold: known, guessed and unknown tokens -------------------------------------------

HOLDS = st.tuples(st.integers(0, 30), st.integers(0, 20), st.integers(0, 20))


def hold(plain: Plain, drawn: tuple[int, int, int]) -> Held:
    """Contents of a drawn list, certain up to some place, with more or fewer tokens than the list has."""
    place, certain, more = drawn
    places = list(plain.lists)
    if not places or place % 7 == 6:
        return plain.contents.hold(UNKNOWN, 0, more)
    chosen = places[place % len(places)]
    known = len(plain.lists[chosen][0])
    certain = certain % (known + 1)
    return plain.contents.hold(chosen, certain, max(certain, (known + 4) * more // 20))


def ask(plain: Plain, place: int) -> Held:
    known = len(plain.lists[place][0])
    return plain.contents.hold(place, known, known)


def may_follow(plain: Plain, held: Held, prompt: Held) -> tuple[int, int, int]:
    """Least, likely and most common prefix, guesses are likely right, and the unknown fits."""
    most = min(held.length, prompt.length)
    if held.place == UNKNOWN:
        return 0, 0, most
    known = plain.lists[held.place][0]
    wanted = plain.lists[prompt.place][0]
    low = likely = high = 0
    certain = True
    for n in range(most):
        agrees = n >= len(known) or known[n] == wanted[n]
        if n < held.certain:
            if not agrees:
                return low, likely, high
            low = likely = high = n + 1
        else:
            certain = certain and agrees
            likely = n + 1 if certain else likely
            high = n + 1
    return low, likely, high


@examples(60)
@given(STEPS, st.lists(HOLDS, min_size=1, max_size=5), st.integers(0, 30))
def test_spans_and_likely_prefixes(steps: list[Step], drawn: list[tuple[int, int, int]], which: int) -> None:
    plain = build([*steps, ([1, 1], "", "")])
    places = list(plain.lists)
    holds = [hold(plain, one) for one in drawn]
    prompts = [ask(plain, places[(which + n) % len(places)]) for n in range(3)]
    table, alike = (plain.contents.likely(holds, prompts, alike=only) for only in (False, True))
    assert table.shape == (len(prompts), len(holds))
    for row, prompt in enumerate(prompts):
        for column, held in enumerate(holds):
            expected = Span(*may_follow(plain, held, prompt))
            assert plain.contents.span(held, prompt) == expected
            assert table[row, column] == expected.likely
            unknown = held.place == UNKNOWN
            kin = not plain.lists[prompt.place][2] if unknown else plain.alike(held.place, prompt.place)
            assert plain.contents.alike(held, prompt) is kin
            assert alike[row, column] == (expected.likely if kin else 0)


def starts_with(plain: Plain, longer: Held, shorter: Held) -> bool:
    """Whether nothing contradicts that `longer` starts with all of `shorter`."""
    if longer.length < shorter.length:
        return False
    a, b = plain.lists[longer.place][0], plain.lists[shorter.place][0]
    return all(a[n] == b[n] for n in range(min(len(a), len(b), shorter.length)))


@examples(60)
@given(STEPS, HOLDS, st.lists(HOLDS, max_size=5))
def test_related_contents(steps: list[Step], one: tuple[int, int, int], drawn: list[tuple[int, int, int]]) -> None:
    plain = build([*steps, ([1, 1], "", "")])
    held = hold(plain, one)
    others = [other for other in (hold(plain, each) for each in drawn) if other.length]
    keeper, parts = plain.contents.related(held, Shelf.of(others))
    if held.place == UNKNOWN:
        assert (keeper, parts) == (None, [])
        return
    known = [other for other in others if other.place != UNKNOWN]
    containing = [other for other in known if starts_with(plain, other, held)]
    if containing:
        assert keeper is containing[0]
    else:
        assert keeper is None
        assert parts == [other for other in known if starts_with(plain, held, other)]
