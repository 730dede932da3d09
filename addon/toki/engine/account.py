"""Account: what steering has brought so far, beside the server left alone, and what may be ventured on more.

To keep something for later costs now, and whether it pays nobody knows: each such choice is a bet on what conversations
will do. So only winnings are staked, and one or two prompts at the start; where bets were lost, the next ones must pay
at once. That bounds what toki can lose, whatever the traffic.
"""

from __future__ import annotations

from dataclasses import dataclass

STAKE = 2.0  # prompts that may be evaluated in advance of any winnings
LOST = 0.5  # prompts lost from which on nothing is ventured any more
SHARE = 0.01  # of what the server alone evaluates: a loss of this size is none
AT_ONCE = 16.0  # tokens that must be saved at once where nothing is ventured


@dataclass(slots=True)
class Account:
    """`gained`: tokens less than the server alone would have evaluated, as measured against its prediction; below 0
    they were more. `alone`: tokens that it would have evaluated."""

    gained: float = 0.0
    alone: float = 0.0

    def settle(self, prompt: int, alone: int, reused: int) -> None:
        """A prompt reused so many of its tokens, and `alone` of them on a server that was never steered."""
        self.gained += reused - alone
        self.alone += prompt - alone

    def spend(self, evaluated: int) -> None:
        """A request of toki's own evaluated so many tokens."""
        self.gained -= evaluated

    def stake(self, prompt: int) -> float:
        """Tokens by which evaluating a prompt of `prompt` tokens may exceed what passing it on costs; where that is
        negative it must save so many."""
        balance = self.gained + SHARE * self.alone
        if balance < -LOST * prompt:
            return -AT_ONCE
        return max(0.0, balance + STAKE * prompt)
