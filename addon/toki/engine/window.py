"""Window: what a llama-server reuses on a sliding-window model, where old tokens leave the cache of the window layers.

Such a model can go back to an earlier position only while the window before it is still there, else to a checkpoint: a
copy of the window that the server made while it evaluated a prompt. This module says what is left and what comes back;
slots and RAM entries are the shadow's. Confirmed by the logs of b10434 and b11549; line numbers are of llama.cpp
b11434, tools/server/server-context.cpp ("ctx") and src/llama-kv-cache-iswa.cpp ("iswa").

One thing is simplified: tokens that come after a step back may take cells of older ones though there are free cells,
so that the window is sometimes lost a little sooner than said here (1 to 4 in 100 reuses differ, measured).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class Window:
    """The window layers of a model, and how the server keeps them. Sizes are in tokens.

    The defaults are those of `llama-server` without flags. `thins`: whether each new checkpoint drops those of earlier
    requests that lie within `min_step` behind another one (b10434), or only once there is no more room (b11549).
    """

    tokens: int  # n_swa
    sharing: int = 1  # slots that share one cache: all of them where the KV cache is unified
    batch: int = 2048  # --batch-size
    ubatch: int = 512  # --ubatch-size
    min_step: int = 8192  # --checkpoint-min-step
    most: int = 32  # --ctx-checkpoints; 0: none are made
    thins: bool = True

    @property
    def cells(self) -> int:
        """Positions that the window layers have room for (iswa:73)."""
        return -(-(self.tokens * self.sharing + self.ubatch) // 256) * 256


class Checkpoint(NamedTuple):
    """A copy of the window after `tokens` tokens; `oldest` is the first position that the cache held at that time."""

    tokens: int
    oldest: int


START = Checkpoint(0, 0)


@dataclass(frozen=True, slots=True)
class Checkpoints:
    """What there is to go back to: the copies that were `made`, the latest last, and the window layers themselves from
    position `oldest` on, or from where tokens that came since have left them."""

    oldest: int = 0
    made: tuple[Checkpoint, ...] = ()

    def until(self, length: int) -> Checkpoints:
        """What is left where evaluation ended after `length` tokens."""
        return Checkpoints(self.oldest, tuple(one for one in self.made if one.tokens <= length))


NONE = Checkpoints()


def stored(window: Window, left: Checkpoints, length: int) -> Checkpoints:
    """What comes back with an entry of the RAM cache: all checkpoints, but of the cells only those of the window, so
    that even a mere continuation has to go back to a checkpoint."""
    return Checkpoints(max(left.oldest, length - window.tokens), left.made)


def reusable(window: Window, left: Checkpoints, length: int, shared: int, prompt: int) -> int:
    """Tokens that a prompt of `prompt` tokens reuses of contents of `length` tokens, of which it shares `shared`."""
    return min(_back(window, left, length, shared, prompt)[0], prompt - 1)  # one token is always evaluated


@lru_cache(maxsize=256)  # most hypotheses ask for the same
def evaluated(
    window: Window, left: Checkpoints, length: int, shared: int, prompt: int, user_starts: tuple[int, ...] = ()
) -> Checkpoints:
    """What there is to go back to once a prompt was evaluated behind the contents of which `reusable` speaks.

    The prompt is evaluated in batches that end before its last tokens, and, in chats, where a user message starts
    (`user_starts`: the tokens before each, ascending). What is there when the last of these batches set out, or one at
    a user message, is kept as a checkpoint (ctx:3818-3903).
    """
    start, oldest = _back(window, left, length, shared, prompt)
    old, new = list(left.until(start + 1).made), list[Checkpoint]()
    start = min(start, prompt - 1)
    stops = [prompt - min(window.batch, before_end) for before_end in (4 + window.ubatch, 4)]
    while start < prompt and window.most:
        end = min(start + window.batch, prompt, *(stop for stop in stops if stop > start))
        earlier = new or old
        far = earlier[-1].tokens + window.min_step if earlier else 0
        for place in user_starts[bisect_right(user_starts, start) : bisect_right(user_starts, end)]:
            if place > far or place == user_starts[-1]:
                end = place
                break
        at_user = start in user_starts and (start > far or start == user_starts[-1])
        if start and (at_user or end + window.ubatch > prompt):
            _add(window, old, new, Checkpoint(start, max(oldest, start - window.cells)))
        start = end
    return Checkpoints(max(oldest, prompt - window.cells), (*old, *new))


def planted(window: Window, shared: int, prompt: int) -> int | None:
    """The head of a prompt of `prompt` tokens that leaves a checkpoint after just `shared` of them if it is sent first.

    None: the prompt ends too soon for that. Sent as a request of its own, the head costs no evaluation, since the
    prompt then goes on from its end. Later prompts that share those tokens reuse all but one of them: on the builds
    that thin out because, of what the head leaves, this is the first checkpoint. So it pays where at least one such
    prompt is to come and `reusable` says less for it.
    """
    head = shared + min(window.batch, 4 + window.ubatch)
    return head if head < prompt else None


def user_starts(tokens: npt.NDArray[np.int32], delimiter: Sequence[int]) -> tuple[int, ...]:
    """How many tokens lie before each user message of a chat, which starts with the tokens `delimiter`.

    The server, too, finds the delimiters of its template in the tokens, not in the text (b10434 and b11549).
    """
    places = max(0, len(tokens) - len(delimiter) + 1) if delimiter else 0
    found = np.ones(places, np.bool_)
    for offset, token in enumerate(delimiter):
        found &= tokens[offset : offset + places] == token
    return tuple(np.flatnonzero(found).tolist())


def _back(window: Window, left: Checkpoints, length: int, shared: int, prompt: int) -> tuple[int, int]:
    """Where evaluation sets out, and the first position that the window layers then hold (ctx:3524-3628)."""
    oldest = max(left.oldest, length - window.cells)
    needed = max(0, shared - window.tokens - (0 if shared < prompt else 1))
    if oldest >= needed:
        # Even where no token has left the window (`needed` 0), the server goes back to a checkpoint.
        usable = (c for c in reversed(left.made) if c.tokens <= shared + 1 and (c.oldest < needed or c.oldest == 0))
        best = next(usable, START)
        shared = min(shared, max(best.oldest + 1, best.tokens - 1)) if best.tokens else 0
        oldest = max(best.oldest, best.tokens - window.tokens)
    return shared, oldest


def _add(window: Window, old: list[Checkpoint], new: list[Checkpoint], made: Checkpoint) -> None:
    """Add a checkpoint to those of this request (`new`); some of those of earlier ones (`old`) make room for it."""
    last = None
    for one in tuple(old):
        if not window.thins and len(old) + len(new) + 1 < window.most:
            break
        if last is not None and one.tokens <= last + window.min_step:
            old.remove(one)
        else:
            last = one.tokens
    while len(old) + len(new) >= window.most:
        (old or new).pop(0)
    if not window.thins:  # b11549 keeps no two at one place
        old[:] = [one for one in old if one.tokens != made.tokens]
    new.append(made)
