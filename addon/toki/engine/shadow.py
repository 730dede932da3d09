"""Shadow: what a llama-server's slots and RAM cache hold, moved on by the server's own rules.

Answers "if this request were sent, on which slot would it land, how much would be reused, what would be lost?", and is
cheap to copy, since the choice asks it dozens of times for each request. Line numbers are of llama.cpp b11434,
tools/server/server-context.cpp ("ctx") and server-task.cpp ("task").
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field
from dataclasses import replace
from functools import lru_cache

import numpy as np

from toki.engine.contents import UNKNOWN
from toki.engine.contents import Contents
from toki.engine.contents import Held
from toki.engine.contents import Shelf
from toki.engine.events import Kind
from toki.engine.events import Span
from toki.engine.ram import EMPTY
from toki.engine.ram import Memory
from toki.engine.rules import Rules
from toki.engine.window import NONE
from toki.engine.window import evaluated
from toki.engine.window import reusable
from toki.engine.window import stored

NEVER_USED = -1
GONE = 32  # evicted entries that are remembered
MOST_ENTRIES = 1024  # of the RAM cache that are followed; 8 GiB may hold as many thousands of short prompts


@dataclass(frozen=True, slots=True)
class Wish:
    """A request as the server's queue sees it."""

    key: int
    prompt: Held
    id_slot: int | None = None
    kind: Kind = Kind.COMPLETION
    cache_prompt: bool = True
    children: int = 0
    user_starts: tuple[int, ...] = ()  # tokens before each user message of a chat
    turn: int = NEVER_USED  # its place in the order in which requests came, where it had to wait since
    # The likely common prefix of the prompt with some contents, where it was worked out for many of them at once.
    shares: Mapping[Held, int] = field(default_factory=dict, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Slot:
    """One slot: what it holds (None: empty), the request that runs on it, and when it was last released.

    `turn`: the place of the last request on it in the order in which they came, as the server numbers its tasks. `cut`:
    that one was cut off, so that the length of what it left is a guess.
    """

    held: Held | None = None
    key: int | None = None
    children: tuple[int, ...] = ()  # slots that copies of the running request took
    used: int = NEVER_USED
    turn: int = NEVER_USED
    cut: bool = False
    lora: str = ""  # the adapters of the request that ran on it last; "": the server's own

    @property
    def idle(self) -> bool:
        return self.key is None

    def holding(self, held: Held | None) -> Slot:
        """The same slot with other contents; several times faster than `replace`."""
        return Slot(held, self.key, self.children, self.used, self.turn, self.cut, self.lora)


class SlotPool(list[Slot]):
    """A server's slots by number, as many as it has (`total_slots`). What a request leaves in a slot stays there until
    another takes the slot: one that shares most of it, else the least recently used one is given away first."""

    def idle(self) -> list[int]:
        """The slots on which nothing runs."""
        return [number for number, slot in enumerate(self) if slot.key is None]

    def least_recently_used(self) -> int | None:
        """The idle slot that was released first; of never used ones the highest (ctx:1756 compares with `<=`)."""
        oldest = None
        for number, slot in enumerate(self):
            if slot.key is None and (oldest is None or slot.used <= self[oldest].used):
                oldest = number
        return oldest


@dataclass(frozen=True, slots=True)
class Launch:
    """What a launch would do, or did."""

    slot: int
    reuse: Span
    sure: bool  # nothing unknown could change slot or reuse
    moved: int = 0  # tokens saved to and loaded from RAM on the way
    loaded: Held | None = None  # the RAM entry that came back
    peak: int = 0  # the most that was ever stored behind it, itself included: the cache holds so much
    back: int = 0  # tokens of the contents that it drops to go on from before them
    foreign: bool = False  # what is reused was made under other adapters, or is another owner's


@lru_cache(maxsize=4096)
def ratio(part: int, whole: int) -> float:
    """A ratio as the server computes it: in single precision, where close ratios of long prompts tie. Remembered, for
    each hypothesis asks for the same ones."""
    return float(np.float32(part) / np.float32(whole))


class Shadow:
    """The slot pool and the RAM entries of one server under one hypothesis about its rules."""

    __slots__ = ("_clock", "_kept", "contents", "gone", "launches", "ram", "ram_known", "rules", "slots", "waiting")

    def __init__(self, rules: Rules, contents: Contents) -> None:
        self.rules = rules
        self.contents = contents
        self.slots = SlotPool(Slot() for _ in range(rules.n_slots))
        self.ram = EMPTY
        self.ram_known = True  # whether all entries are known
        self.gone: tuple[Held, ...] = ()  # entries that were evicted, as it seems: the latest last
        self.waiting: list[Wish] = []  # deferred until a slot is free
        self.launches: dict[int, Launch] = {}  # of the running requests
        self._clock = 0
        self._kept: dict[int, Held] = {}  # idle slot -> a RAM entry that contains all it holds, as far as looked for

    def copy(self) -> Shadow:
        """A shadow that goes its own way; what it holds is shared, since nothing of it ever changes."""
        twin = Shadow.__new__(Shadow)
        twin.rules = self.rules
        twin.contents = self.contents
        twin.slots = SlotPool(self.slots)
        twin.ram = self.ram
        twin.ram_known = self.ram_known
        twin.gone = self.gone
        twin.waiting = self.waiting.copy()
        twin.launches = self.launches.copy()
        twin._clock = self._clock
        twin._kept = self._kept.copy()
        return twin

    @property
    def memory(self) -> Memory:
        """What slots and RAM hold now."""
        slots = [(number, slot.held, slot.key is not None) for number, slot in enumerate(self.slots)]
        return Memory([(number, held, busy) for number, held, busy in slots if held is not None], self.ram)

    @property
    def known(self) -> bool:
        """Whether all that slots and RAM hold is known."""
        return self.ram_known and not any(slot.held is not None and slot.held.place == UNKNOWN for slot in self.slots)

    @property
    def roomy(self) -> bool:
        """Whether the RAM cache, if there is one, has room for all that the slots hold beside its entries."""
        slots = (slot.held for slot in self.slots if slot.held is not None)
        return not self.rules.ram or self.ram.stored + sum(map(self._size, slots)) <= self.rules.ram

    # --- questions --------------------------------------------------------------------------------

    def running(self, key: int) -> int | None:
        """The slot on which the request runs; its copies (n > 1) run on others."""
        launch = self.launches.get(key)
        return None if launch is None else launch.slot

    def choose(self, wish: Wish) -> tuple[int | None, bool]:
        """The slot that the server would take, and whether it would then turn to the RAM cache (ctx:1680-1792).

        None: every slot is busy. The comparison that keeps a pinned request to its slot uses the raw `id_slot`, so an
        id beyond the slots ("swap": k + n_slots) lands on k with a similarity of 0. A busy slot can be the answer to
        a pin; the server then defers the request.
        """
        rules, prompt, id_slot = self.rules, wish.prompt, wish.id_slot
        chosen = None if id_slot is None else id_slot % rules.n_slots
        best = 0
        if rules.sps:
            least = float(np.float32(rules.sps))
            for number, slot in enumerate(self.slots):
                if (id_slot is not None and number != id_slot) or slot.key is not None or slot.held is None:
                    continue
                # Prompts are far shorter than 2**23, so that ratios to one length tie only where the shares do.
                shared = self._shared(slot.held, wish)
                if shared > best and ratio(shared, prompt.length) > least:
                    best, chosen = shared, number
            if chosen is not None:
                held = self.slots[chosen].held
                # An empty slot gives 0/0: NaN is not below 0.5, so a pin to it never looks in RAM.
                share = ratio(best, prompt.length) if best else 0.0
                keep = np.float32(share) * np.float32(prompt.length) / np.float32(held.length) if held else 1
                return chosen, bool(keep < 0.5)
        if chosen is not None:
            return chosen, False
        oldest = self.slots.least_recently_used()
        return oldest, oldest is not None

    def _shared(self, held: Held, wish: Wish) -> int:
        shared = wish.shares.get(held)
        return self.contents.span(held, wish.prompt).likely if shared is None else shared

    def holds(self) -> list[Held]:
        """Everything that slots and RAM hold."""
        return [*(slot.held for slot in self.slots if slot.held is not None), *self.ram]

    def reusable(self, held: Held, prompt: Held) -> Span:
        """Prompt tokens that the server would take from `held` (ctx:3524-3632): the common prefix, but on a
        sliding-window model only up to a checkpoint if the window was left behind."""
        span = self.contents.span(held, prompt)
        window = self.rules.window
        if window is not None:
            left, length = held.checkpoints, held.length
            back = {  # mostly one: what is shared is certain
                shared: reusable(window, left, length, shared, prompt.length)
                for shared in {span.low, span.likely, span.high}
            }
            likely = back[span.likely]
            span = Span(min(back[span.low], likely), likely, max(likely, back[span.high]))
        last = prompt.length - 1  # one token is always evaluated
        if span.high <= last:
            return span
        return Span(min(span.low, last), min(span.likely, last), min(span.high, last))

    # --- what happens -----------------------------------------------------------------------------

    def launch(self, wish: Wish) -> Launch | None:
        """Start a request; None where it is deferred until a slot is free (ctx:2603-2622)."""
        launched = self._launch(wish)
        if launched is None:
            self._clock += 1
            self.waiting.append(wish if wish.turn != NEVER_USED else replace(wish, turn=self._clock))
        return launched

    def _launch(self, wish: Wish) -> Launch | None:
        prompt, rules = wish.prompt, self.rules
        number, update = self.choose(wish)
        if number is None or not self.slots[number].idle:
            return None
        consults = update and rules.ram > 0 and wish.kind is Kind.COMPLETION
        sure = self._sure(wish.id_slot) and not (consults and not self.ram_known)
        held = self.slots[number].held
        moved = 0
        entry = None
        peak = 0
        if consults:
            moved = self._save(number, held) if held else 0
            entry = self._load(held, wish)
            if entry is not None and rules.unified and entry.length > rules.pool - self._cells(but=number):
                held = entry = None  # no room to restore it: the slot is cleared, the entry stays
            if entry is not None:
                peak = self.ram.peak(entry)
                self._drop([entry])
                held = entry
                moved += entry.length
        # A request with n > 1 waits until all its copies find a slot; the RAM cache was turned to before (ctx:2454).
        others = [one for one in self.slots.idle() if one != number][: wish.children] if wish.children else []
        if len(others) < wish.children:
            if held is not self.slots[number].held:
                self.correct(number, held)
            return None
        # A request that names other adapters than the last one on its slot starts anew; one that names none takes what
        # there is, though it be made under others (ctx:1838-1856; b10434 and b11549, observed).
        lora = self.contents.lora(prompt.place) if prompt.place != UNKNOWN else ""
        cleared = lora not in ("", self.slots[number].lora)
        reuse = Span(0, 0, 0)
        if wish.cache_prompt and held is not None and prompt.length:
            reuse = self.reusable(held, prompt)
            if cleared:  # unless they are what the server has by itself, which no request tells
                reuse = Span(0, 0, 0 if self.slots[number].lora else reuse.high)
        if consults and not self.ram_known and wish.cache_prompt:
            reuse = Span(reuse.low, reuse.likely, max(prompt.length - 1, 0))
        if rules.window is not None and prompt.length:
            prompt = self._evaluated(held if wish.cache_prompt and not cleared else None, wish)
        # An empty prompt, or one too long for the context, is answered at once: the slot keeps what it holds.
        now = prompt if 0 < prompt.length < rules.n_ctx else None if cleared else held
        foreign = reuse.high > 0 and held is not None and not self.contents.alike(held, prompt)
        for taken in (number, *others):
            self._clock += 1
            turn = self._clock if wish.turn == NEVER_USED else wish.turn
            self._kept.pop(taken, None)
            self.slots[taken] = Slot(now, wish.key, used=self.slots[taken].used, turn=turn, lora=lora)
        if others:
            self.slots[number] = replace(self.slots[number], children=tuple(others))
        if rules.idle_save and rules.ram:
            moved += self._save_idle()
        back = held.length - reuse.high if held is not None and reuse.high else 0
        launched = Launch(number, reuse, sure, moved, entry, peak, back, foreign)
        self.launches[wish.key] = launched
        self._purge()
        return launched

    def finish(self, key: int, reply: int) -> None:
        """A request ended regularly after `reply` sampled tokens: all but the last are in the slot (ctx:578).

        Its copies (n > 1) are taken to end with it, in one pass over the slots.
        """
        number = self.running(key)
        if number is None:  # that it was deferred was wrong then
            self.waiting = [wish for wish in self.waiting if wish.key != key]
            return
        slot = self.slots[number]
        held = slot.held
        if held is not None:
            length = min(held.length + max(reply - 1, 0), self.rules.n_ctx)
            grown = length - held.length
            held = self.contents.hold(held.place, held.certain, length, held.checkpoints)
            self.slots[number] = slot.holding(held)
            self._purge(len(slot.children) * grown)
        freed = sorted((number, *slot.children))
        for one in freed:
            self._release(one, held if one == number else None)
        self.launches.pop(key)
        self._unqueue(freed)

    def cancel(self, key: int, least: int, most: int) -> None:
        """A request was cut off; its slot holds between `least` and `most` tokens of prompt and reply.

        A deferred one leaves the queue.
        """
        self.waiting = [wish for wish in self.waiting if wish.key != key]
        number = self.running(key)
        if number is None:
            return
        slot = self.slots[number]
        held = slot.held
        if held is not None:
            certain = min(held.certain, least)
            held = self.contents.hold(held.place, certain, most, held.checkpoints.until(most)) if most else None
        self.launches.pop(key)
        for one in (number, *slot.children):  # each copy is cancelled by a task of its own
            self._release(one, held if one == number else None, cut=True)
            self._unqueue([one])

    def refuse(self, wish: Wish) -> None:
        """A prompt too long for the context is refused only after its launch: slot choice, RAM cache and idle clearing
        have happened, and the slot keeps what it held (b10434 and b11549, observed)."""
        if self._launch(wish) is not None:
            self.finish(wish.key, 0)

    def find(self, number: int, held: Held | None) -> None:
        """A slot was used before anything was known of it, after all of which this was said earlier."""
        self._release(number, held)
        self.slots[number] = replace(self.slots[number], turn=self._clock)

    def correct(self, number: int, held: Held | None) -> None:
        """Believe what was seen of an idle slot rather than what was concluded."""
        self._kept.pop(number, None)
        slot = self.slots[number]
        self.slots[number] = Slot(held, slot.key, slot.children, slot.used, slot.turn, lora=slot.lora)

    def measure(self, number: int, length: int) -> None:
        """What an idle slot holds is seen to be so long; so is the copy of it in RAM. Where a request was cut off
        that is as much of its prompt."""
        slot = self.slots[number]
        held = slot.held
        assert held is not None
        certain = len(self.contents[held.place]) if slot.cut else held.certain
        seen = self.contents.hold(held.place, min(certain, length), length, held.checkpoints.until(length))
        self.correct(number, seen)
        if held in self.ram:
            self.ram = self.ram.renamed(held, seen)
            self._kept = {one: seen if entry is held else entry for one, entry in self._kept.items()}

    def number(self, order: Sequence[int]) -> None:
        """Slots that were used, in the order in which the last request on each came: the idle ones were released in it
        too, as far as can be known."""
        for number in order:
            self._clock += 1
            slot = self.slots[number]
            used = self._clock if slot.idle else slot.used
            self.slots[number] = Slot(slot.held, slot.key, slot.children, used, self._clock, slot.cut, slot.lora)

    def rearrange(self, order: Sequence[int]) -> None:
        """What was believed of slot `order[n]` holds for slot n: requests had taken the slots in another way."""
        places = {old: new for new, old in enumerate(order)}
        slots = [self.slots[old] for old in order]
        self.slots = SlotPool(replace(one, children=tuple(places[child] for child in one.children)) for one in slots)
        self.launches = {key: replace(one, slot=places[one.slot]) for key, one in self.launches.items()}
        self._kept = {places[number]: entry for number, entry in self._kept.items()}

    def forget(self, number: int) -> None:
        """An idle slot holds other tokens than those that were sent, as many as before at the most: context shift drops
        some behind the first `n_keep`, so that no prompt starts with what is left."""
        slot = self.slots[number]
        if slot.idle and slot.held is not None:
            self.correct(number, self.contents.hold(UNKNOWN, 0, slot.held.length))

    def reveal(self, old: Held, place: int) -> None:
        """What was guessed of some contents is now said by the list at `place`."""

        def renewed(held: Held) -> Held:
            if (held.place, held.certain, held.length) != (old.place, old.certain, old.length):
                return held
            return self.contents.hold(place, held.certain, held.length, held.checkpoints)

        for number, slot in enumerate(self.slots):
            if slot.held is not None and slot.held.place == old.place:
                self.slots[number] = slot.holding(renewed(slot.held))
        entries = [entry for entry in self.ram.of(old.place) if renewed(entry) is not entry]
        for entry in entries:
            self.ram = self.ram.renamed(entry, renewed(entry))
        if entries:
            self._kept = {number: renewed(entry) for number, entry in self._kept.items()}
        if old.place in [entry.place for entry in self.gone]:
            self.gone = tuple(map(renewed, self.gone))

    # --- the rules, each once ---------------------------------------------------------------------

    def _release(self, number: int, held: Held | None, cut: bool = False) -> None:
        """A slot is free from now on; copies leave theirs empty (ctx:592)."""
        self._clock += 1
        self._kept.pop(number, None)
        slot = self.slots[number]
        self.slots[number] = Slot(held, used=self._clock, turn=slot.turn, cut=cut, lora=slot.lora)

    def _unqueue(self, freed: Sequence[int]) -> None:
        """One deferred request for each slot that was freed: the first pinned to just that slot, else the oldest. Each
        goes to the front, so that the last one is first to run; one that can't run yet goes to the back
        (llama.cpp b11434, server-queue.cpp 90-113)."""
        front: list[Wish] = []
        for number in freed:
            if self.waiting:
                wish = next((wish for wish in self.waiting if wish.id_slot == number), self.waiting[0])
                self.waiting.remove(wish)
                front.insert(0, wish)
        for wish in front:
            self.launch(wish)

    def _sure(self, id_slot: int | None) -> bool:
        """Whether every slot that takes part in the choice holds what is known."""
        part = self.slots if id_slot is None else [self.slots[id_slot % self.rules.n_slots]]
        return not [one for one in part if one.key is None and one.held is not None and one.held.place == UNKNOWN]

    def _save(self, number: int, held: Held) -> int:
        """Store a slot's contents in the RAM cache (task: server_prompt_cache alloc); return the tokens written.

        Contained in an entry: skipped, its place not refreshed. Larger than the limit: skipped. Entries that it
        contains are dropped, then the oldest go until it fits.
        """
        if number in self._kept:
            return 0
        keeper, parts = (held, []) if held in self.ram else self.contents.related(held, self.ram.shelf)
        if keeper is not None:
            self._kept[number] = keeper
            return 0
        if self._size(held) > self.rules.ram:
            return 0
        self._drop(parts)
        if self.gone:
            longer, parts = self.contents.related(held, Shelf.of(self.gone))
            if longer is not None and longer.length == held.length:  # just this was evicted, and is stored again
                parts.append(longer)
            self.gone = tuple(entry for entry in self.gone if entry not in parts)
        entry = self._entry(held)
        self.ram = self.ram.stored_with(entry, self._size(entry))
        self._kept[number] = entry
        self.evict()
        return held.length

    def _drop(self, entries: Sequence[Held]) -> None:
        if entries:
            self.ram = self.ram.without(entries)
            self._kept = {number: keeper for number, keeper in self._kept.items() if keeper not in entries}

    def evict(self) -> None:
        """Drop the oldest entries until the rest fits, and forget those that are too many to be followed. What comes
        back after so many others reuses more than is predicted."""
        oldest = self.ram.excess(self.rules.ram)
        self._drop(oldest)
        self.gone = (*self.gone, *oldest)[-GONE:]
        self._drop(self.ram.shelf.held[:-MOST_ENTRIES])

    def since(self, entry: Held) -> int:
        """Tokens of an entry that seemed to be evicted and of all that was stored later: if it was there after all, the
        cache holds so much."""
        return sum(map(self._size, [entry, *self._evicted_after(entry)])) + self.ram.stored

    def revive(self, entry: Held) -> None:
        """An entry that seemed to be evicted came back: those that were stored later are there still."""
        later = self._evicted_after(entry)
        self.ram = self.ram.behind_older(later, [self._size(one) for one in later])
        self.gone = self.gone[: self.gone.index(entry)]

    def _evicted_after(self, entry: Held) -> list[Held]:
        """What seemed to be evicted after an entry, each once: two may have been found to be the same."""
        later = dict.fromkeys(self.gone[self.gone.index(entry) + 1 :])
        return [one for one in later if one is not entry and one not in self.ram]

    def _size(self, held: Held) -> int:
        return held.length + self.rules.ram_entry

    def _load(self, before: Held | None, wish: Wish) -> Held | None:
        """The RAM entry that replaces a slot's contents (task:1804-1879), or None.

        Entries are tried in the order of insertion; each must beat the best so far in both ratios, and be kept to a
        quarter at least. Against an empty slot any entry wins.
        """
        best = None
        if not len(self.ram):
            return best
        shared = self._shared(before, wish) if before is not None else 0
        keep = ratio(shared, before.length) if before is not None else -1.0
        shelf = self.ram.shelf
        shares = self.contents.likely(shelf, [wish.prompt])[0]
        keeps = shares.astype(np.float32) / shelf.lengths.astype(np.float32)
        for number in np.flatnonzero((shares > shared) & (keeps >= 0.25) & (keeps > keep)).tolist():
            if shares[number] > shared and keeps[number] > keep:
                shared, keep, best = shares.item(number), keeps.item(number), shelf.held[number]
        return best

    def _save_idle(self) -> int:
        """--cache-idle-slots: each launch stores every idle slot; unified, it also empties it (ctx:2641-2656)."""
        moved = 0
        for number, slot in enumerate(self.slots):
            if slot.idle and slot.held is not None:
                moved += self._save(number, slot.held)
                if self.rules.unified:
                    self._kept.pop(number, None)
                    self.slots[number] = Slot(None, used=slot.used, turn=slot.turn, lora=slot.lora)
        return moved

    def _cells(self, but: int | None = None) -> int:
        """Cells that the slots use, `but` one of them; copies of a request share those of its prompt."""
        return sum(
            slot.held.length
            for number, slot in enumerate(self.slots)
            if slot.held is not None and number != but and (slot.key is None or self.running(slot.key) == number)
        )

    def _purge(self, more: int = 0) -> None:
        """A unified cache out of cells drops idle slots, lowest id first, without saving (ctx:1800-1822).

        `more`: cells in use beside those of the slots' contents.
        """
        if not self.rules.unified:
            return
        if more + sum([slot.held.length for slot in self.slots if slot.held is not None]) <= self.rules.pool:
            return  # whoever shares cells with whom
        cells = self._cells() + more
        for number, slot in enumerate(self.slots):
            if cells <= self.rules.pool:
                return
            if slot.idle and slot.held is not None:
                cells -= slot.held.length
                self.correct(number, None)

    def _evaluated(self, held: Held | None, wish: Wish) -> Held:
        """A prompt that was evaluated behind `held`, with what there is to go back to on a sliding-window model."""
        prompt, window = wish.prompt, self.rules.window
        assert window is not None
        left, length, shared = NONE, 0, 0
        if held is not None:
            left, length, shared = held.checkpoints, held.length, self._shared(held, wish)
        if wish.kind is not Kind.COMPLETION:
            window = replace(window, most=0)  # infill makes none
        checkpoints = evaluated(window, left, length, shared, prompt.length, wish.user_starts)
        return self.contents.hold(prompt.place, prompt.certain, prompt.length, checkpoints)

    def _entry(self, held: Held) -> Held:
        """What the RAM cache keeps of a slot's contents."""
        if self.rules.window is None:
            return held
        checkpoints = stored(self.rules.window, held.checkpoints, held.length)
        return self.contents.hold(held.place, held.certain, held.length, checkpoints)
