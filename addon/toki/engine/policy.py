"""Policy: the possible actions for one request, each priced in milliseconds; the choice and its reason.

The price of an action is what the server must do now and what it takes from the conversations that will come back:
a look ahead by one step on a copy of the shadow. Pure: the same state gives the same choice.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from toki.engine.contents import UNKNOWN
from toki.engine.contents import Held
from toki.engine.events import Action
from toki.engine.events import Option
from toki.engine.rules import UNLIMITED
from toki.engine.shadow import Launch
from toki.engine.shadow import Shadow
from toki.engine.shadow import Wish
from toki.engine.window import planted
from toki.engine.window import reusable

MARGIN = 0.01  # of the prompt's full price: a smaller win is not worth a deviation from the server's own choice
LEAST_WIN = 16  # prompt tokens: nor is one smaller than this, whatever the prompt
TRIED = 2  # slots of each kind for which a pin and a swap are priced
UNMEASURED = 1.0  # milliseconds for a token, until one was measured
MOVE = 0.01  # what moving a token to or from RAM costs, as a share of evaluating it (measured: 0.002 to 0.03)
LOADABLE = 0.25  # the server loads no RAM entry of which less would stay (llama.cpp b11434, server-task.cpp 1804)
LONGEST_PRIMER = 10_000.0  # milliseconds: a primer can't be taken back when the client leaves
MOST_CUTS = 2  # primers that may go before one request to shorten what a slot holds
# Two conversations that share a slot take it from each other at every turn, and without a RAM cache nothing else is
# left of them: the step that is looked ahead counts as so many. (Simulated: 2 to 4 are alike, 1 evaluates 15 % more.)
RECURS = 3.0
WORTH_KEEPING = 64  # tokens in common with a RAM entry from which it may pay to copy rather than to use it up


@dataclass(frozen=True, slots=True)
class Prices:
    """What a server's work costs, in milliseconds."""

    evaluate: float = UNMEASURED  # one prompt token
    primer: float = 5.0  # a request of toki's own, beside the tokens that it evaluates
    move: float = MOVE  # one token saved to or loaded from RAM
    bound: float = UNMEASURED  # one prompt token at the most: answers without timings tell no more

    @property
    def likely(self) -> float:
        """One prompt token, as far as can be told."""
        return self.evaluate if self.measured else self.bound

    @property
    def measured(self) -> bool:
        """Whether the server's own speed is known."""
        return self.evaluate != UNMEASURED

    def within(self, total: float) -> Prices:
        """The prices after an answer without timings, which took so much for each token that was evaluated for it."""
        return replace(self, bound=min(self.bound, total))

    def after(self, evaluate: float) -> Prices:
        """The prices after one more measurement of what a token costs."""
        mean = 0.8 * self.evaluate + 0.2 * evaluate if self.measured else evaluate
        return replace(self, evaluate=mean, move=MOVE * mean)


@dataclass(frozen=True, slots=True)
class Want:
    """What a conversation's next prompt will start with, and how likely it comes."""

    held: Held
    chance: float


@dataclass(frozen=True, slots=True)
class Primer:
    """A prompt that toki itself sends first, to the slot that `id_slot` says; None: to whichever the server takes."""

    prompt: Held
    id_slot: int | None


@dataclass(frozen=True, slots=True)
class Plan:
    """One way to send a request: what goes before it, and what is spliced into it."""

    action: Action
    slot: int | None
    id_slot: int | None
    primers: tuple[Primer, ...] = ()  # the first is sent, then all is decided anew
    cache_prompt: bool = True  # False: the server is told not to use its cache


@dataclass(frozen=True, slots=True)
class Priced:
    """A plan with its price, and the launch of the request as it is expected then."""

    plan: Plan
    option: Option
    launch: Launch
    after: Shadow  # what the server then holds

    @property
    def price(self) -> float:
        return self.option.now + self.option.later


class Returns:
    """What the conversations that may return would cost then, given what `shadow` or a copy of it holds."""

    def __init__(self, shadow: Shadow, wants: Sequence[Want]) -> None:
        kept = [want for want in wants if want.held.place != UNKNOWN and want.chance > 0]
        self._shadow = shadow
        self._prompts = [want.held for want in kept]
        self._lengths = np.array([want.held.length for want in kept], np.int64)
        self._chances = np.array([want.chance for want in kept])
        slots = [slot.held for slot in shadow.slots]
        held = [one for one in slots if one is not None]
        self._slot_columns: dict[int, int] = {}
        for number, one in enumerate(slots):
            if one is not None:
                self._slot_columns[number] = len(self._slot_columns)
        self._ram_columns = {entry: len(held) + n for n, entry in enumerate(shadow.ram)}
        self._reuse = self._reusable(held + list(shadow.ram), len(held))
        self._new: dict[tuple[Held, bool], npt.NDArray[np.int64]] = {}

    def evaluated(self, after: Shadow) -> float:
        """Expected prompt tokens to evaluate when the conversations return to what `after`, a copy gone on, holds."""
        if not self._prompts:
            return 0.0
        mask = np.ones(self._reuse.shape[1], np.bool_)
        extra: list[tuple[Held, bool]] = []
        for number, (old, new) in enumerate(zip(self._shadow.slots, after.slots, strict=True)):
            if old.held is not new.held:
                if old.held is not None:
                    mask[self._slot_columns[number]] = False
                if new.held is not None:
                    extra.append((new.held, False))
        if after.ram is not self._shadow.ram:
            entries = set(after.ram)
            for entry in self._ram_columns.keys() - entries:
                mask[self._ram_columns[entry]] = False
            extra += [(entry, True) for entry in entries - self._ram_columns.keys()]
        best = self._reuse.max(axis=1, where=mask, initial=0)
        for held, stored in extra:
            column = self._new.get((held, stored))
            if column is None:
                column = self._new[held, stored] = self._reusable([held], 0 if stored else 1)[:, 0]
            np.maximum(best, column, out=best)
        return float(self._chances @ (self._lengths - best))

    def losses(self) -> dict[int, float]:
        """For each slot, the tokens that the conversations would miss if just its contents were gone."""
        if not self._prompts or not self._slot_columns:
            return dict.fromkeys(self._slot_columns, 0.0)
        rows = np.arange(len(self._prompts))
        first = self._reuse.argmax(axis=1)
        best = self._reuse[rows, first]
        others = self._reuse.copy()
        others[rows, first] = 0
        missed = self._chances * (best - others.max(axis=1))
        by_column = np.bincount(first, missed, self._reuse.shape[1])
        return {number: float(by_column[column]) for number, column in self._slot_columns.items()}

    def _reusable(self, held: Sequence[Held], in_slots: int) -> npt.NDArray[np.int64]:
        """Tokens that each conversation would find in each of `held`, the first `in_slots` of which are in slots and
        the others in RAM: int64, shape (conversations, held)."""
        if not held or not self._prompts:
            return np.zeros((len(self._prompts), len(held)), np.int64)
        window = self._shadow.rules.window
        reuse = self._shadow.contents.likely(held, self._prompts, alike=True)
        if window is not None:  # what is shared can't always be gone back to
            for place, column in zip(*reuse.nonzero(), strict=True):
                one, prompt, shared = held[column], self._prompts[place], int(reuse[place, column])
                reuse[place, column] = reusable(window, one.checkpoints, one.length, shared, prompt.length)
        stored = reuse[:, in_slots:]
        stored[stored < LOADABLE * np.array([one.length for one in held[in_slots:]])] = 0
        return reuse


def options(
    shadow: Shadow,
    wish: Wish,
    returns: Returns,
    prices: Prices,
    *,
    pins: Sequence[int],
    swaps: Sequence[int],
    primers: bool = False,
    honours_slot: bool = True,
    siblings: float = 0.0,
    beds: Sequence[int] = (),
    uncached: bool = False,
) -> list[Priced]:
    """Price passing the request on, and the ways to steer it that are worth a try; passing comes first.

    No way to steer leads to what another owner left. Where passing does, it is left out if there is another way; that
    without the cache, where a request may go so (`uncached`), then comes first.

    `pins` and `swaps`: slots that may be steered to. `primers`: toki may send requests of its own. A request to an
    endpoint that does not honour `id_slot` can be steered by a primer only. `siblings`: the chance that another prompt
    with the same head comes, which never came before; `beds`: slots where a primer may prepare for that. Empty where
    every slot is busy.
    """
    held = shadow.holds()
    wish = replace(wish, shares=dict(zip(held, shadow.contents.likely(held, [wish.prompt])[0].tolist(), strict=True)))
    plans = [Plan(Action.PASSED, None, None)]
    if pins or swaps:
        worth = _worth_trying(shadow, wish, returns)
        steers = [(Action.PINNED, k, k) for k in worth if k in pins]
        steers += [(Action.SWAPPED, k, k + shadow.rules.n_slots) for k in worth if k in swaps]
        if honours_slot:
            plans += [Plan(action, slot, id_slot) for action, slot, id_slot in steers]
        elif primers:
            plans += [Plan(Action.PRIMED, k, None, (Primer(wish.prompt, id_slot),)) for _, k, id_slot in steers]
        if primers:
            plans += _copies(shadow, wish, [k for k in worth if k in swaps], honours_slot)
            plans += _cuts(shadow, wish, [k for k in worth if k in swaps and k in pins], honours_slot)
        plans = [one for one in plans if all(shadow.contents.sendable(primer.prompt) for primer in one.primers)]
    priced = [_price(shadow, wish, returns, prices, plan) for plan in plans]
    if priced[0] is None:
        return []
    if siblings and beds and shadow.rules.window is not None:
        others = [one for one in priced if one is not None]
        priced += _planted(shadow, wish, returns, prices, others, beds, honours_slot, siblings)
    passing, *steered = [one for one in priced if one is not None]
    if not passing.launch.foreign or not shadow.contents.owner(wish.prompt.place):
        return [passing, *steered]
    plan = Plan(Action.ISOLATED, None, None, cache_prompt=False)
    bare = _price(shadow, wish, returns, prices, plan) if uncached else None
    kept_apart = [bare, *steered] if bare is not None else steered
    why = f"the server itself would take up to {passing.launch.reuse.high:,} tokens that another key's request left"
    return [replace(one, option=replace(one.option, why=why)) for one in kept_apart] or [passing]


def evaluated(shadow: Shadow, wish: Wish, plan: Plan, prices: Prices) -> float:
    """Milliseconds that the server works for a request that is sent by `plan`; inf where that can't be carried out."""
    priced = _price(shadow, wish, Returns(shadow, ()), prices, plan)
    return math.inf if priced is None else priced.option.now


def _planted(
    shadow: Shadow,
    wish: Wish,
    returns: Returns,
    prices: Prices,
    others: Sequence[Priced],
    beds: Sequence[int],
    honours_slot: bool,
    siblings: float,
) -> list[Priced]:
    """On a sliding-window model siblings share a head that the server can't go back to. A primer that ends a little
    behind it leaves a checkpoint there, so that the next sibling pays for its own part only.

    An early checkpoint in the slot (chats have one where their user message starts) drops that one on some builds: what
    the last sibling would find tells. A slot that holds nothing has none.
    """
    window, slots = shadow.rules.window, shadow.slots
    sibling = max(wish.shares, key=lambda held: wish.shares[held], default=None)
    if window is None or sibling is None:
        return []
    best = max(one.launch.reuse.likely for one in others if not one.plan.primers)
    if wish.shares[sibling] - best < WORTH_KEEPING:
        return []
    head = planted(window, wish.shares[sibling], wish.prompt.length)
    if head is None:
        return []
    prompt = shadow.contents.hold(wish.prompt.place, head, head)
    if not shadow.contents.sendable(prompt):
        return []
    found = []
    passing, empty = others[0].launch.slot, [number for number in beds if slots[number].held is None][:1]
    for slot in dict.fromkeys([*([passing] if passing in beds else []), *empty]):
        plan = Plan(Action.PRIMED, slot, slot if honours_slot else None, (Primer(prompt, slot),))
        priced = _price(shadow, wish, returns, prices, plan)
        left = priced.after.slots[slot].held if priced is not None else None
        if priced is not None and left is not None:
            won = siblings * (priced.after.reusable(left, sibling).likely - best) * prices.evaluate
            found.append(replace(priced, option=replace(priced.option, later=priced.option.later - won)))
    return found


def _copies(shadow: Shadow, wish: Wish, swaps: Sequence[int], honours_slot: bool) -> list[Plan]:
    """Use a RAM entry without using it up. A load moves the entry out of RAM, and what the new prompt does not share
    is lost; but if a primer brings it back whole, the swap that follows saves it again before the prompt takes over.
    """
    entries = shadow.ram.shelf
    if not entries.held or not swaps:
        return []
    shares = shadow.contents.likely(entries, [wish.prompt], alike=True)[0]
    entry, shared = entries.held[int(shares.argmax())], int(shares.max())
    if shared < WORTH_KEEPING:
        return []
    known = min(entry.length, len(shadow.contents[entry.place]))
    if shared >= known:  # the prompt continues it: nothing would be lost
        return []
    whole = shadow.contents.hold(entry.place, known, known, entry.checkpoints)
    id_slot = swaps[0] + shadow.rules.n_slots
    return [Plan(Action.PRIMED, swaps[0], id_slot if honours_slot else None, (Primer(whole, id_slot),))]


def _cuts(shadow: Shadow, wish: Wish, slots: Sequence[int], honours_slot: bool) -> list[Plan]:
    """Shorten what a slot holds before a launch saves it: what is larger than the RAM cache would be lost as a whole,
    and to make room for what is saved the server may drop the very entry that the prompt wants.

    A primer that ends within the slot's contents does it: where at least half is kept, the rest is dropped unsaved.
    """
    rules = shadow.rules
    if rules.ram >= UNLIMITED or not shadow.ram_known:
        return []
    wanted = max(shadow.ram, key=lambda entry: wish.shares[entry], default=None)
    behind = 0  # from the wanted entry to the back
    for entry in reversed(shadow.ram):
        behind += entry.length + rules.ram_entry
        if entry is wanted:
            break
    plans = []
    for slot in slots:
        held = shadow.slots[slot].held
        if held is None or held.place == UNKNOWN or held.length > len(shadow.contents[held.place]):
            continue
        rooms = [rules.ram]
        if wanted is not None and wish.shares[wanted] > wish.shares[held]:
            rooms.append(rules.ram - behind)
        for room in rooms:
            steps = _halves(held.length, room - rules.ram_entry)
            if not 0 < len(steps) <= MOST_CUTS:
                continue
            primers = tuple(Primer(shadow.contents.hold(held.place, n, n, held.checkpoints), slot) for n in steps)
            plans.append(Plan(Action.PRIMED, slot, slot + rules.n_slots if honours_slot else None, primers))
            plans.append(Plan(Action.PRIMED, slot, None, primers))
    return plans


def _halves(length: int, wanted: int) -> list[int]:
    """Lengths on the way from one down to another, at least 1, none less than half of the one before."""
    steps = []
    while length > max(wanted, 1):
        length = max(wanted, (length + 1) // 2)
        steps.append(length)
    return steps


def _price(shadow: Shadow, wish: Wish, returns: Returns, prices: Prices, plan: Plan) -> Priced | None:
    """What a plan costs now and later; None where it can't be carried out at once."""
    after = shadow.copy()
    now = 0.0
    for primer in plan.primers:
        key = -wish.key
        first = after.launch(Wish(key, primer.prompt, primer.id_slot))
        if first is None or first.foreign:
            return None
        after.finish(key, 1)
        evaluate = (primer.prompt.length - first.reuse.likely) * prices.evaluate
        if evaluate > LONGEST_PRIMER:
            return None
        now += evaluate + first.moved * prices.move + prices.primer
        wish = replace(wish, shares={})
    id_slot = plan.id_slot if plan.id_slot is not None else wish.id_slot
    launch = after.launch(replace(wish, id_slot=id_slot, cache_prompt=wish.cache_prompt and plan.cache_prompt))
    if launch is None or (launch.foreign and plan.action is not Action.PASSED):
        return None
    now += (wish.prompt.length - launch.reuse.likely) * prices.evaluate + launch.moved * prices.move
    later = returns.evaluated(after) * prices.evaluate * (1.0 if shadow.rules.ram else RECURS)
    return Priced(plan, Option(plan.action, launch.slot, launch.reuse, now, later, ""), launch, after)


def _worth_trying(shadow: Shadow, wish: Wish, returns: Returns) -> list[int]:
    """Idle slots of which one is surely as good as any other, but for what is moved to and from RAM: those that share
    most with the prompt, those whose contents would be missed least, the least recently used, and one that is empty."""
    idle = shadow.slots.idle()
    if len(idle) <= 4:
        return idle
    shared = {number: wish.shares[held] for number in idle if (held := shadow.slots[number].held) is not None}
    losses = returns.losses()
    chosen = [number for number in idle if number not in shared][:1]
    chosen += sorted(shared, key=lambda number: -shared[number])[:TRIED]
    chosen += sorted(shared, key=lambda number: (losses[number], shadow.slots[number].used))[:TRIED]
    return list(dict.fromkeys(chosen))


def cheapest(priced: Sequence[Priced], margin: float, stake: float = math.inf) -> Priced:
    """The cheapest option; passing, the first, unless another saves more than `margin` milliseconds in all. None may
    cost more than `stake` milliseconds above passing now (where that is negative: it must save so many)."""
    passing = priced[0]
    affordable = [one for one in priced if one.option.now - passing.option.now <= stake]
    best = min(affordable, key=lambda one: one.price, default=passing)
    return best if passing.price - best.price > margin else passing
