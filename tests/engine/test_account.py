"""What toki may venture: a prompt or two at first, then its winnings, and nothing once a bet was lost."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from tests.effort import examples

from toki.engine.account import AT_ONCE
from toki.engine.account import SHARE
from toki.engine.account import STAKE
from toki.engine.account import Account


def test_the_first_stake_is_a_prompt_or_two() -> None:
    assert Account().stake(1000) == STAKE * 1000


def test_winnings_are_staked_on_top() -> None:
    account = Account()
    account.settle(prompt=5000, alone=1000, reused=4000)
    assert account.stake(1000) == STAKE * 1000 + 3000 + SHARE * 4000


def test_what_was_lost_must_come_back_at_once() -> None:
    account = Account()
    account.settle(prompt=2000, alone=1900, reused=0)
    assert account.stake(1000) == -AT_ONCE
    assert account.stake(10_000) > 0  # for a long prompt that was little
    account.settle(prompt=2000, alone=0, reused=1900)
    assert account.stake(1000) > 0


def test_primers_count() -> None:
    account = Account()
    account.spend(600)
    assert account.stake(1000) == -AT_ONCE


@examples(100)
@given(st.lists(st.tuples(st.integers(1, 9999), st.floats(0, 1)), max_size=40))
def test_however_unlucky_the_loss_is_bounded(bets: list[tuple[int, float]]) -> None:
    """Where each prompt costs all that may be staked on it, and nothing ever comes back."""
    account = Account()
    longest = 0
    for prompt, alone in bets:
        longest = max(longest, prompt)
        more = min(account.stake(prompt), alone * prompt)
        account.settle(prompt, int(alone * prompt), int(alone * prompt - max(more, 0)))
    assert account.gained + SHARE * account.alone >= -(STAKE + 1) * longest - len(bets)
