"""Trust: predicted against measured, and so which Rules hold for a server.

The flags that matter cannot be read over HTTP, so several hypotheses run side by side. Each moves its own shadow on;
each answer and each look at the slots scores them all; the one that was right most leads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from toki.engine.contents import UNKNOWN
from toki.engine.contents import Contents
from toki.engine.contents import Held
from toki.engine.events import SlotView
from toki.engine.rules import UNLIMITED
from toki.engine.rules import Known
from toki.engine.rules import Rules
from toki.engine.rules import deviations
from toki.engine.shadow import Launch
from toki.engine.shadow import Shadow
from toki.engine.shadow import Slot
from toki.engine.timeline import Timeline

ENOUGH = 3  # exact predictions that make a hypothesis, or an action, trusted
CAP = 8  # trust that can be gathered: so that it is lost within two wrong answers
WRONG = 4  # what a wrong prediction costs
MOST_ERRORS = 3.0  # errors that are remembered: so that a change of flags shows within three answers
FITS = 0.75  # of the room that the RAM cache is said to have: what surely finds it
FAMILIAR = 8  # launches that find nothing unknown in RAM, after which it is taken to be known
GUESS = 2  # tokens by which the length of a reply in a slot may be off
AGAINST = 2.0  # errors that each thing counts which is said to be otherwise
CLOSE = 0.5  # errors between hypotheses that did as well
OVERLAPPED = 0.25  # of an error: a wrong prediction while others were under way, whose order may have been another one
EXCUSED = 0.25  # of an error: a wrong prediction that rested on unknown contents, or on the size of the RAM cache
FAR = 512  # tokens: a step back that a sliding window does not allow (the default of --ubatch-size)
DISTRUST = 6  # far steps back that must be right again after as many as one likes were not
FADE = 0.98  # what is left of the errors after each right prediction
NOTHING = Known()


class Belief:
    """One hypothesis about a server, what follows from it, and how well it did."""

    def __init__(
        self, rules: Rules, contents: Contents, slots: Sequence[SlotView] | None, known: Known = NOTHING
    ) -> None:
        """A belief about a server whose slots are as seen (None: not shown); what they hold is unknown. What the rules
        say otherwise than is `known` of it counts against them from the start."""
        self.rules = rules
        base = Shadow(rules, contents)
        # Tasks are numbered as they come, so that the lowest number was most likely released first.
        for view in sorted(slots or (), key=lambda view: view.task):
            if view.id < rules.n_slots and view.task >= 0:
                base.find(view.id, contents.hold(UNKNOWN, 0, view.n_tokens) if view.n_tokens else None)
        # A server that ran before may have anything in its RAM cache.
        base.ram_known = slots is not None and not any(view.n_tokens or view.task >= 0 for view in slots)
        self.timeline = Timeline(base)
        self.score = 0.0  # trust: grows with right predictions, shrinks fast with wrong ones
        self._against = AGAINST * deviations(rules, known)
        self._wrong = 0.0  # how much it was wrong, forgotten slowly
        self.errors = self._against  # what tells hypotheses apart: how much each was wrong, and is otherwise than said
        self._told = known.ram if rules.ram == known.ram else None  # the size of the RAM cache, where it was said
        self.ram_low = 0  # tokens that the RAM cache is known to hold
        self.ram_high = UNLIMITED  # tokens that it is known not to hold
        self._familiar = 0  # launches in a row that found nothing unknown
        # Whether it can go back far, where no file tells that the model has no window: below 0 it most likely can't.
        self._back = None if known.whole or rules.window is not None else 0

    @property
    def tenable(self) -> bool:
        """Whether it can ever lead: what agrees with all that is said never has more errors than are remembered."""
        return self._against <= MOST_ERRORS

    @property
    def base(self) -> Shadow:
        """The server as it is."""
        return self.timeline.base

    @property
    def alone(self) -> Shadow:
        """The server as it would be had it never been steered."""
        return self.timeline.alone

    @property
    def trusted(self) -> bool:
        return self.score >= ENOUGH and not (self._back and self._back < 0)

    def lengths(self) -> list[int]:
        """Tokens that each slot should show."""
        return [slot.held.length if slot.held is not None else 0 for slot in self.base.slots]

    def judge(
        self, key: int, reused: int, overlapped: bool, slot: int | None = None, excuse: bool = True
    ) -> bool | None:
        """Score the prediction for a request by what the server reported (`slot` None: it did not say); None where
        there was nothing to score.

        Another order of the latest steps may explain the figures, which is found out if `excuse`; how likely that is,
        `overlapped` tells: whether others were under way. A slot that was said is believed in any case.
        """
        launch = self.base.launches.get(key)
        if launch is None:
            return None
        right = launch.reuse.low <= reused <= launch.reuse.high
        if not launch.sure:
            if reused >= launch.reuse.low:
                self._get_to_know(reused <= launch.reuse.likely)
            if not launch.reuse.low <= reused <= launch.reuse.likely:
                # What is unknown may explain it; but another hypothesis may need no such excuse.
                self._err(EXCUSED)
        if self._back is not None and launch.sure and launch.back >= FAR and reused <= launch.reuse.high:
            self._back = min(0, self._back + 1) if right else max(-DISTRUST, self._back - 2)
        explained = (excuse or slot is not None) and self.timeline.measured(key, reused, slot, reorder=excuse)
        if right:
            elsewhere = slot not in (None, launch.slot)
            if elsewhere and launch.sure and not explained:  # it reused as much, but on another slot
                self._err(EXCUSED)
            else:
                self._count(right=True)
        if launch.sure and self._learn_ram(launch, reused, right or explained):
            self.score -= 1
            self._err(EXCUSED)  # of the hypotheses that are told apart by it another may need no other size
            return False
        if not launch.sure and not right:
            return None
        if not (right or explained):
            self._count(right=False, weight=OVERLAPPED if overlapped else 1.0)
        return right or explained

    def _get_to_know(self, expected: bool) -> None:
        """Unknown RAM entries, if there ever were any, have become unimportant once several launches found none."""
        self._familiar = self._familiar + 1 if expected else 0
        if self._familiar >= FAMILIAR:
            self.base.ram_known = self.alone.ram_known = True
            self._familiar = 0

    def _count(self, right: bool, weight: float = 1.0) -> None:
        if right:
            self.score = min(CAP, self.score + 1)
            self._be_wrong(self._wrong * FADE)
        else:
            self.score = max(-CAP, self.score - WRONG * weight)
            self._err(weight)

    def _err(self, weight: float) -> None:
        self._be_wrong(min(MOST_ERRORS, self._wrong + weight))

    def _be_wrong(self, wrong: float) -> None:
        self._wrong = wrong
        self.errors = wrong + self._against

    def _learn_ram(self, launch: Launch, reused: int, right: bool) -> bool:
        """Narrow the size of the RAM cache down; whether a wrong prediction is explained by it.

        An entry that comes back proves room for all that was stored behind it, also where it seemed to be evicted; one
        that is missing proves that there was none. Before any has come back it is as likely that there is no RAM cache
        at all.
        """
        if right:
            if launch.loaded is not None:
                self.ram_low = max(self.ram_low, min(launch.peak, self.ram_high))
            return False
        if reused > launch.reuse.high:
            return self._find_more_room(launch, reused)
        if launch.loaded is None or reused >= launch.reuse.low or not 0 < self.ram_low < launch.peak:
            return False
        if self._told is not None and launch.peak < FITS * self._told:
            return False  # that is not for want of room
        prompt = self.base.slots[launch.slot].held
        if prompt is None or (reused and not self._is_elsewhere(launch, prompt, reused)):
            return False  # it was there, but of another length: a client had left before all of it was evaluated
        self.ram_high = min(self.ram_high, launch.peak)
        self._resize((self.ram_low + self.ram_high) // 2)
        return True

    def _find_more_room(self, launch: Launch, reused: int) -> bool:
        """Whether an entry that seemed to be evicted explains what was reused."""
        prompt = self.base.slots[launch.slot].held
        if prompt is None or self._is_elsewhere(launch, prompt, reused):
            return False
        for entry in reversed(self.base.gone):
            span = self.base.reusable(entry, prompt)
            if span.low <= reused <= span.high:
                room = self.base.since(entry)
                self.ram_low = max(self.ram_low, room)
                if self.ram_high <= self.ram_low:
                    self.ram_high = UNLIMITED
                self.base.revive(entry)
                self._resize(min((self.ram_low + self.ram_high) // 2, self.ram_low + self.ram_low // 4))
                return True
        return False

    def _is_elsewhere(self, launch: Launch, prompt: Held, reused: int) -> bool:
        """Whether another slot, or the RAM cache as it is, holds as much of a prompt as was reused: then it need not be
        of an entry that was evicted, or of the one that was to come back."""
        slots = [slot.held for number, slot in enumerate(self.base.slots) if number != launch.slot and slot.held]
        likely = self.base.contents.likely
        return any((likely(held, [prompt]) >= reused).any() for held in (slots, self.base.ram.shelf))

    def _resize(self, ram: int) -> None:
        self.rules = replace(self.rules, ram=ram)
        for shadow in (self.base, self.alone):
            shadow.rules = self.rules
            shadow.evict()
        self.timeline.forget()

    def compare(self, slots: Sequence[SlotView], excuse: bool = True) -> bool:
        """Score and correct the state by a look at the slots while nothing changes; True where all was as believed.

        Another order of the latest steps may explain what is seen, which is found out if `excuse`.
        """
        contents = self.base.contents
        views = [view for view in slots if view.id < self.rules.n_slots]
        if excuse:
            self._locate(views)
        order = self._by_task(views)
        moved = False
        if order is not None and self._misfits(views, order) <= self._misfits(views):
            self._rearrange(order)
            moved = True
        odd = [view for view in views if not _as_believed(self.base.slots[view.id], view)]
        if not odd and not moved:
            return True
        # What lies in a slot of unknown contents can draw any request to it.
        drawn = any(slot.held is not None and slot.held.place == UNKNOWN for slot in self.base.slots)
        shadows = self._alike()
        elsewhere: dict[int, set[Held]] = {}
        for slot in (*self.base.slots, *self.alone.slots):
            if slot.held is not None:
                elsewhere.setdefault(slot.held.length, set()).add(slot.held)
        strange = False
        for view in odd:
            assert view.n_tokens is not None  # else there is nothing to differ
            slot = self.base.slots[view.id]
            if _fits(slot, view):
                for shadow in shadows if slot.held is not None and slot.held.place != UNKNOWN else ():
                    shadow.measure(view.id, view.n_tokens)
                continue
            believed = slot.held if slot.idle else None
            same = elsewhere.get(view.n_tokens, set()) if view.n_tokens else set()
            seen = contents.hold(UNKNOWN, 0, view.n_tokens) if view.n_tokens else None
            if len(same) == 1:  # what was believed to be elsewhere: launches happened in another order
                moved = True
                seen = next(iter(same))
            else:
                strange = strange or believed is None or believed.place != UNKNOWN
            for shadow in shadows:
                shadow.correct(view.id, seen)
        if strange or moved:
            self.timeline.forget()
        if strange:
            for shadow in shadows:
                shadow.number([view.id for view in sorted(views, key=lambda view: view.task) if view.task >= 0])
            if not drawn:
                self._count(right=False)
        return not (strange or moved)

    def rearrange(self, slots: Sequence[SlotView]) -> None:
        """Where a look is wholly explained by requests having taken the slots in another way, believe that."""
        views = [view for view in slots if view.id < self.rules.n_slots]
        order = self._by_task(views)
        if order is not None and not self._misfits(views, order):
            self._rearrange(order)
            self.timeline.forget()

    def _locate(self, views: Sequence[SlotView]) -> None:
        """Find the requests that run on other slots than believed: a slot that is at work holds all of its prompt and
        what was answered so far, so that the shorter prompts are where less is, as far as no other fits there."""
        slots = [slot for slot in self.base.slots if slot.held is not None and slot.held.place != UNKNOWN]
        prompts = sorted((_length(slot), slot.key) for slot in slots if slot.key is not None)
        shown = sorted((view.n_tokens, view.id) for view in views if view.busy and view.n_tokens is not None)
        if len(prompts) != len(shown):
            return
        found: dict[int, int] = {}
        for place, ((prompt, key), (tokens, number)) in enumerate(zip(prompts, shown, strict=True)):
            if tokens < prompt:
                return  # a part of it is not evaluated yet
            fits_before = place > 0 and shown[place - 1][0] >= prompt
            fits_next = place + 1 < len(prompts) and tokens >= prompts[place + 1][0]
            if not fits_before and not fits_next:
                found[key] = number
        if any(self.base.launches[key].slot != number for key, number in found.items()):
            self.timeline.located(found)

    def _by_task(self, views: Sequence[SlotView]) -> list[int] | None:
        """For each slot the one on which, as believed, that request ran last which has the same place in the order in
        which they came: the server numbers its tasks. None: that is itself, or the server has seen other requests."""
        order = list(range(self.rules.n_slots))
        shown = [view.id for view in sorted(views, key=lambda view: view.task) if view.task >= 0]
        slots = self.base.slots
        known = [number for number in sorted(order, key=lambda number: slots[number].turn) if slots[number].turn >= 0]
        if shown == known or len(shown) != len(known) or len(views) != len(order):
            return None
        unused = [number for number in order if number not in known]
        for number in order:
            order[number] = known[shown.index(number)] if number in shown else unused.pop(0)
        return order

    def _misfits(self, views: Sequence[SlotView], order: Sequence[int] | None = None) -> int:
        """How many slots do not show what is believed of them, or of those in their places."""
        places = range(self.rules.n_slots) if order is None else order
        return sum(not _fits(self.base.slots[places[view.id]], view) for view in views)

    def _rearrange(self, order: Sequence[int]) -> None:
        """Believe of slot n what was believed of `order[n]`."""
        for shadow in self._alike():
            shadow.rearrange(order)

    def _alike(self) -> list[Shadow]:
        """The shadows of which a look tells: that of the server as it is, and the other one where it shows the same."""
        return [
            self.base,
            *([self.alone] if self.alone is not self.base and self.alone.slots == self.base.slots else []),
        ]


def _length(slot: Slot) -> int:
    return slot.held.length if slot.held is not None else 0


def _as_believed(slot: Slot, view: SlotView) -> bool:
    """Whether a slot shows nothing else than what is believed of it."""
    return view.busy or view.n_tokens is None or (slot.idle and not slot.cut and _length(slot) == view.n_tokens)


def _fits(slot: Slot, view: SlotView) -> bool:
    """Whether a slot shows what is believed of it, but for the length of what was guessed."""
    if view.busy or not slot.idle:
        return view.busy and not slot.idle and (view.n_tokens is None or _length(slot) <= view.n_tokens)
    if view.n_tokens is None or _length(slot) == view.n_tokens:
        return True
    held = slot.held
    if held is None or held.place == UNKNOWN or not view.n_tokens:
        return False
    return slot.cut or (_guessed(held) and held.certain <= view.n_tokens <= held.length + GUESS)


def _guessed(held: Held) -> bool:
    """Whether a guessed reply is part of some contents."""
    return 0 < held.certain < held.length
