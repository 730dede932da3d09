"""Spare: a slot on which toki may ask something of its own without anyone losing a token."""

from __future__ import annotations

from collections.abc import Sequence

from toki.engine.contents import UNKNOWN
from toki.engine.contents import Contents
from toki.engine.contents import Held
from toki.engine.shadow import Shadow
from toki.engine.shadow import Wish
from toki.engine.tokens import Tokens

CHECK = 0  # names a request that is only thought of: keys of real ones start at 1, or at -1


def spare(shadows: Sequence[Shadow], tokens: Tokens, reply: int, lora: str) -> int | None:
    """A slot of an idle server on which `tokens` could be answered from scratch, with `reply` tokens, and all that was
    held would be held still, by each of the `shadows` that it may be like; None where there is none."""
    contents = shadows[0].contents
    place, shared = contents.nearest(tokens, lora)  # nothing is added: what is asked here stands in no log
    if place is None or shared < len(tokens):
        return None
    prompt = contents.hold(place, len(tokens), len(tokens))
    for number in reversed(range(shadows[0].rules.n_slots)):
        wish = Wish(CHECK, prompt, number, cache_prompt=False)
        if all(_harmless(shadow, wish, reply) for shadow in shadows):
            return number
    return None


def _harmless(shadow: Shadow, wish: Wish, reply: int) -> bool:
    trial = shadow.copy()
    launch = trial.launch(wish)
    if launch is None:
        return False
    trial.finish(wish.key, reply)
    trial.correct(launch.slot, None)  # what it leaves behind is no one's
    return _covered(shadow.contents, shadow.holds(), trial.holds())


def _covered(contents: Contents, before: Sequence[Held], after: Sequence[Held]) -> bool:
    """Whether all that was held is still the beginning of something that is."""
    if not before or not after:
        return not before
    shared = contents.likely(after, before)
    return all(one.place != UNKNOWN and row.max() >= one.length for one, row in zip(before, shared, strict=True))
