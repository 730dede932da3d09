"""What a request could find out of what other owners left, where the server can't be predicted."""

from __future__ import annotations

import pytest

from toki.engine.contents import UNKNOWN
from toki.engine.contents import Contents
from toki.engine.contents import Held
from toki.engine.isolation import exposed
from toki.engine.tokens import Tokens


class Room:
    def __init__(self) -> None:
        self.contents = Contents()

    def hold(self, owner: str, *ids: int) -> Held:
        return self.contents.hold(self.contents.add(Tokens.of(ids), owner=owner), len(ids), len(ids))

    def unknown(self, length: int) -> Held:
        return self.contents.hold(UNKNOWN, 0, length)


@pytest.mark.parametrize(
    ("sure", "possible", "found"),
    [
        ([], [], 0),
        ([("me", (1, 2, 3, 4))], [], 0),
        ([("you", (1, 2, 3, 9))], [], 3),
        ([("you", (8, 9))], [], 0),
        ([("me", (1, 2)), ("you", (1, 2, 3))], [], 3),
        ([("me", (1, 2, 3)), ("you", (1, 2, 3))], [], 0),  # it has sent all of that itself
        ([("me", (1, 2, 3)), ("you", (1, 2))], [], 0),
        ([("me", (1, 2))], [("you", (1, 2, 3))], 3),
        ([("you", (1, 2))], [("me", (1, 2, 3))], 2),  # its own may not be there
    ],
)
def test_ones_own_hides_as_much_of_what_others_left(
    sure: list[tuple[str, tuple[int, ...]]], possible: list[tuple[str, tuple[int, ...]]], found: int
) -> None:
    room = Room()
    prompt = room.hold("me", 1, 2, 3, 4, 5)
    held, others = ([room.hold(owner, *ids) for owner, ids in some] for some in (sure, possible))
    assert exposed(room.contents, prompt, held, others) == found


def test_what_is_not_known_may_be_anything() -> None:
    room = Room()
    prompt = room.hold("me", 1, 2, 3, 4, 5)
    assert exposed(room.contents, prompt, [room.unknown(3)], []) == 3
    assert exposed(room.contents, prompt, [room.unknown(99)], []) == 5
    assert exposed(room.contents, prompt, [room.hold("me", 1, 2, 3), room.unknown(3)], []) == 0
    assert exposed(room.contents, prompt, [room.hold("me", 1, 2, 3), room.unknown(4)], []) == 4
