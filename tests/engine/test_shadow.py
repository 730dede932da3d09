"""The shadow agrees with a literal model of the server, whatever the flags and the traffic."""

from __future__ import annotations

from dataclasses import dataclass
from dataclasses import replace

from hypothesis import event
from hypothesis import given
from hypothesis import strategies as st
from tests.effort import examples
from tests.engine.literal import Flags
from tests.engine.literal import LiteralServer
from tests.engine.literal import PoolOverflow
from tests.engine.literal import Task

from toki.engine.contents import UNKNOWN
from toki.engine.contents import Contents
from toki.engine.contents import Held
from toki.engine.events import Kind
from toki.engine.events import Span
from toki.engine.rules import UNLIMITED
from toki.engine.rules import Rules
from toki.engine.shadow import MOST_ENTRIES
from toki.engine.shadow import Launch
from toki.engine.shadow import Shadow
from toki.engine.shadow import Wish
from toki.engine.tokens import Tokens


def rules_of(flags: Flags) -> Rules:
    return Rules(
        n_slots=flags.n_slots,
        unified=flags.unified,
        idle_save=flags.idle_save,
        ram=UNLIMITED if flags.ram is None else flags.ram,
        sps=flags.sps,
        pool=UNLIMITED if flags.pool is None else flags.pool,
        n_ctx=UNLIMITED if flags.n_ctx is None else flags.n_ctx,
    )


@dataclass(frozen=True)
class Ask:
    """A request made of what was there before: the first `cut` tokens of an earlier text, then `tail`."""

    source: int
    cut: int
    tail: tuple[int, ...]
    reply: tuple[int, ...]
    place: int = 0  # 0: not pinned; k: slot k - 1; beyond the slots: a swap
    infill: bool = False
    cache_prompt: bool = True
    children: int = 0


@dataclass(frozen=True)
class End:
    """The end of a request that is under way: the `which`th; `kept` None: a regular end, else cancelled."""

    which: int
    kept: int | None = None


class Pair:
    """Both models of one server, moved on together."""

    def __init__(self, flags: Flags) -> None:
        self.flags = flags
        self.literal = LiteralServer(flags)
        self.contents = Contents(4)
        self.shadow = Shadow(rules_of(flags), self.contents)
        self.texts: list[list[int]] = [list(range(40)), list(range(20)) + [50] * 20]
        self.open: dict[int, Task] = {}
        self.key = 0

    def hold(self, ids: list[int], length: int) -> Held:
        return self.contents.hold(self.contents.add(Tokens.of(ids)), length, length)

    def step(self, move: Ask | End) -> None:
        before = len(self.literal.launched)
        if isinstance(move, Ask):
            self.ask(move)
        else:
            self.end(move)
        while instant := [key for key, task in self.open.items() if self.literal.instant(task) and self.runs(key)]:
            self.finish(instant[0])
        self.compare()
        for launched in self.literal.launched[before:]:
            launch = self.shadow.launches.get(launched.key)
            if launch is None:
                continue  # it ended within the step
            assert (launch.slot, launch.reuse.likely) == (launched.slot, launched.reuse)
            assert launch.reuse.low <= launched.reuse <= launch.reuse.high

    def ask(self, ask: Ask) -> None:
        self.key += 1
        text = self.texts[-1 - ask.source % len(self.texts)]
        prompt = text[: ask.cut * len(text) // 20] + list(ask.tail)
        n_slots = self.flags.n_slots
        id_slot = ask.place % (2 * n_slots + 1) - 1
        children = ask.children % n_slots if prompt and len(prompt) < (self.flags.n_ctx or 999) else 0
        consults = self.flags.ram != 0 and self.flags.sps > 0 and not ask.infill
        if id_slot != -1 and consults and (children or id_slot % n_slots in self.literal.busy()):
            id_slot = -1  # would damage a running answer
        reply = list(ask.reply) if prompt else []
        task = Task(self.key, prompt, reply, id_slot, not ask.infill, ask.cache_prompt, children)
        self.open[self.key] = task
        self.texts.append(prompt + reply)
        self.literal.post(task)
        held = self.hold(prompt + reply, len(prompt))
        kind = Kind.INFILL if ask.infill else Kind.COMPLETION
        pin = None if id_slot == -1 else id_slot
        wish = Wish(self.key, held, pin, kind, ask.cache_prompt, children)
        expected = self.what_if(wish)
        assert self.shadow.launch(wish) == expected

    def what_if(self, wish: Wish) -> Launch | None:
        """What a launch would do, asked of a copy as the choice asks it: with common prefixes worked out before."""
        known = self.shadow.holds()
        shares = dict(zip(known, self.contents.likely(known, [wish.prompt])[0].tolist(), strict=True))
        before = str(self.shadow.slots), str(self.shadow.ram), str(self.shadow.waiting), str(self.shadow.launches)
        twin = self.shadow.copy()
        launch = twin.launch(replace(wish, shares=shares))
        twin.finish(wish.key, 3)
        after = str(self.shadow.slots), str(self.shadow.ram), str(self.shadow.waiting), str(self.shadow.launches)
        assert before == after
        return launch

    def finish(self, key: int) -> None:
        task = self.open.pop(key)
        self.literal.finish(key)
        self.shadow.finish(key, 0 if self.literal.instant(task) else len(task.reply))

    def end(self, end: End) -> None:
        running = [key for key in self.open if self.runs(key)]
        if end.kept is None:
            if running:
                self.finish(running[end.which % len(running)])
        elif self.open:
            key = list(self.open)[end.which % len(self.open)]
            task = self.open.pop(key)
            kept = end.kept * (len(task.prompt) + len(task.reply)) // 20
            reuse = next((one.reuse for one in self.literal.launched if one.key == key), 0)
            kept = max(kept, reuse)
            self.literal.cancel(key, kept)
            self.shadow.cancel(key, kept, kept)

    def runs(self, key: int) -> bool:
        return bool(self.literal.running(key))

    def compare(self) -> None:
        literal, shadow = self.literal, self.shadow
        assert [slot.key for slot in shadow.slots] == [slot.task.key if slot.task else None for slot in literal.slots]
        assert [self.ids(slot.held) for slot in shadow.slots] == [slot.tokens for slot in literal.slots]
        assert [self.ids(entry) for entry in shadow.ram] == literal.ram
        assert [wish.key for wish in shadow.waiting] == [task.key for task in literal.deferred]
        assert not literal.harmed

    def ids(self, held: Held | None) -> list[int]:
        if held is None:
            return []
        ids: list[int] = self.contents[held.place].ids[: held.length].tolist()
        assert len(ids) == held.length
        return ids


TOKENS = st.integers(0, 3)
FLAGS = st.builds(
    Flags,
    n_slots=st.integers(1, 5),
    unified=st.booleans(),
    idle_save=st.booleans(),
    ram=st.sampled_from([0, 30, 60, 120, None]),
    sps=st.sampled_from([0.0, 0.1, 0.5]),
    pool=st.sampled_from([None, 100, 200]),
    n_ctx=st.sampled_from([None, None, 60]),
)
ASKS = st.builds(
    Ask,
    source=st.integers(0, 7),
    cut=st.integers(0, 20),
    tail=st.lists(TOKENS, max_size=24).map(tuple),
    reply=st.lists(TOKENS, max_size=8).map(tuple),
    place=st.integers(0, 10) | st.just(0),
    infill=st.sampled_from([False, False, False, True]),
    cache_prompt=st.sampled_from([True, True, True, False]),
    children=st.sampled_from([0, 0, 0, 0, 1, 2]),
)
ENDS = st.builds(End, which=st.integers(0, 4), kept=st.none() | st.none() | st.integers(0, 20))


@examples(80)
@given(flags=FLAGS, moves=st.lists(ASKS | ENDS, max_size=30))
def test_shadow_and_literal_server_agree(flags: Flags, moves: list[Ask | End]) -> None:
    pair = Pair(flags)
    try:
        for move in moves:
            pair.step(move)
    except PoolOverflow:
        event("overflow")


class Guesser(Pair):
    """The replies become known only after the end of each request, as they do behind an API that hides the ids."""

    def ask(self, ask: Ask) -> None:
        super().ask(replace(ask, children=0))
        (self.ended,) = self.open.values()
        self.end(End(0))
        task = self.ended
        prompt = self.hold(task.prompt, len(task.prompt))
        n = len(task.prompt)
        length = n + max(len(task.reply) - 1, 0)
        place = self.contents.add(Tokens.of(task.prompt + task.reply[:-1]))
        self.shadow.reveal(self.contents.hold(prompt.place, n, length), place)

    def hold(self, ids: list[int], length: int) -> Held:
        return super().hold(ids[:length], length)


@examples(40)
@given(flags=FLAGS.map(lambda flags: replace(flags, n_ctx=None)), asks=st.lists(ASKS, max_size=20))
def test_replies_that_are_revealed_count_as_known(flags: Flags, asks: list[Ask]) -> None:
    pair = Guesser(flags)
    try:
        for ask in asks:
            pair.step(replace(ask, tail=(*ask.tail, 1)))
    except PoolOverflow:
        event("overflow")


def test_half_of_a_slot_is_enough_to_keep_it_out_of_ram() -> None:
    pair = Pair(Flags(n_slots=1, unified=False, idle_save=False))
    pair.step(Ask(source=1, cut=10, tail=(), reply=(0,)))  # 20 tokens
    pair.step(End(0))
    pair.step(Ask(source=0, cut=10, tail=(7, 7), reply=()))  # shares 10 of them
    assert not pair.literal.ram


def test_of_those_that_waited_for_the_copies_of_a_request_the_last_one_runs_first() -> None:
    pair = Pair(Flags(n_slots=2, unified=False, ram=0))
    pair.step(Ask(source=1, cut=20, tail=(), reply=(1,), children=1))
    for tail in ((1,) * 9, (2,) * 9):
        pair.step(Ask(source=0, cut=0, tail=tail, reply=(1,)))
    assert len(pair.literal.deferred) == 2
    pair.step(End(0))
    assert [launched.key for launched in pair.literal.launched] == [1, 3, 2]


# --- what the differential test can't show --------------------------------------------------------


def server(**rules: object) -> tuple[Shadow, Contents]:
    contents = Contents()
    return Shadow(replace(Rules(unified=False, idle_save=False, ram=0), **rules), contents), contents  # type: ignore[arg-type]


def held(contents: Contents, *ids: int, certain: int | None = None, length: int | None = None) -> Held:
    place = contents.add(Tokens.of(ids))
    certain = len(ids) if certain is None else certain
    return contents.hold(place, certain, len(ids) if length is None else length)


def test_a_guessed_reply_gives_a_range() -> None:
    shadow, contents = server(n_slots=1)
    shadow.launch(Wish(1, held(contents, *range(10))))
    shadow.finish(1, 6)
    launch = shadow.launch(Wish(2, held(contents, *range(30))))
    assert launch is not None
    assert launch.reuse == Span(10, 15, 15)  # the last sampled token is in no slot


def test_unknown_contents_make_a_prediction_unsure() -> None:
    shadow, contents = server(n_slots=2)
    shadow.correct(0, contents.hold(UNKNOWN, 0, 20))
    launch = shadow.launch(Wish(1, held(contents, *range(10))))
    assert launch is not None
    assert not launch.sure
    shadow, contents = server(n_slots=2)
    shadow.correct(0, contents.hold(UNKNOWN, 0, 20))
    pinned = shadow.launch(Wish(1, held(contents, *range(10)), id_slot=1))
    assert pinned is not None
    assert pinned.sure


def test_an_unknown_ram_cache_makes_a_prediction_unsure() -> None:
    shadow, contents = server(n_slots=1, ram=UNLIMITED)
    shadow.ram_known = False
    launch = shadow.launch(Wish(1, held(contents, *range(10))))
    assert launch is not None
    assert (launch.sure, launch.reuse) == (False, Span(0, 0, 9))


def test_what_comes_back_from_ram_proves_room() -> None:
    """`peak` is the most that was ever stored behind an entry, itself included."""
    shadow, contents = server(n_slots=1, ram=UNLIMITED)
    for key, first in enumerate([0, 100, 200, 300]):
        shadow.launch(Wish(key, held(contents, *range(first, first + 20))))
        shadow.finish(key, 0)
    assert [entry.length for entry in shadow.ram] == [20, 20, 20]
    launch = shadow.launch(Wish(9, held(contents, *range(100, 130))))
    assert launch is not None
    assert launch.loaded is not None
    assert (launch.reuse, launch.peak, launch.moved) == (Span(20, 20, 20), 60, 40)


def test_a_smaller_ram_cache_drops_the_oldest() -> None:
    shadow, contents = server(n_slots=1, ram=UNLIMITED)
    for key, first in enumerate([0, 100, 200, 300]):
        shadow.launch(Wish(key, held(contents, *range(first, first + 20))))
        shadow.finish(key, 0)
    kept = list(shadow.ram)[1:]
    shadow.rules = replace(shadow.rules, ram=45)
    shadow.evict()
    assert list(shadow.ram) == kept


def test_of_a_ram_cache_that_is_never_full_the_latest_entries_are_followed() -> None:
    shadow, contents = server(n_slots=1, ram=UNLIMITED)
    for key in range(MOST_ENTRIES + 10):
        shadow.launch(Wish(key, held(contents, key)))
        shadow.finish(key, 0)
    assert [contents[entry.place].ids.item(0) for entry in shadow.ram] == [*range(9, MOST_ENTRIES + 9)]
    assert not shadow.gone


def test_an_entry_that_was_stored_again_is_there_once() -> None:
    shadow, contents = server(n_slots=1, ram=30)
    first, again, other = (held(contents, *range(n, n + 20)) for n in (0, 100, 200))
    for key, prompt in enumerate([first, again, other, again, other]):
        shadow.launch(Wish(key, prompt))
        shadow.finish(key, 0)
    assert shadow.gone == (first, other)
    assert list(shadow.ram) == [again]
    assert shadow.since(first) == 60  # if it was there after all, there was no need to store the others twice
    shadow.revive(first)
    assert list(shadow.ram) == [other, again]
    assert shadow.ram.stored == 40


def test_a_refused_prompt_leaves_its_slot_as_it_was() -> None:
    shadow, contents = server(n_slots=2, n_ctx=30, ram=UNLIMITED, idle_save=True, unified=True)
    shadow.launch(Wish(1, held(contents, *range(10))))
    shadow.finish(1, 0)
    before = shadow.slots[1].held
    shadow.refuse(Wish(2, held(contents, *range(50))))
    assert [slot.held for slot in shadow.slots] == [None, before]
    assert not shadow.launches
    shadow.refuse(Wish(3, held(contents, *range(200, 250))))  # lands on slot 0, so slot 1 is stored and cleared
    assert [slot.held for slot in shadow.slots] == [None, None]
    assert list(shadow.ram) == [before]


def test_the_end_of_what_never_ran_changes_nothing() -> None:
    shadow, contents = server(n_slots=1)
    shadow.launch(Wish(1, held(contents, 1, 2, 3)))
    slots = list(shadow.slots)
    shadow.finish(7, 5)
    shadow.cancel(7, 0, 5)
    assert shadow.slots == slots
    assert (shadow.running(1), shadow.running(7)) == (0, None)


def test_a_cancelled_prefill_is_certain_up_to_what_was_seen() -> None:
    shadow, contents = server(n_slots=1)
    shadow.launch(Wish(1, held(contents, *range(10))))
    shadow.cancel(1, 4, 8)
    launch = shadow.launch(Wish(2, held(contents, *range(20))))
    assert launch is not None
    assert launch.reuse == Span(4, 8, 8)


def test_adapters_are_the_slots_own_and_not_part_of_its_tokens() -> None:
    contents = Contents()
    text = list(range(50))
    own, one, two = (contents.add(Tokens.of(text), lora) for lora in ("", "1", "2"))
    assert len({own, one, two}) == 3
    shadow = Shadow(Rules(n_slots=1, ram=0), contents)
    seen = []
    for key, place in enumerate((one, one, two, two, own, own, one)):
        launch = shadow.launch(Wish(key, contents.hold(place, 50, 50)))
        assert launch is not None
        shadow.finish(key, 1)
        seen.append((launch.reuse, launch.foreign))
    none, all_but_one = Span(0, 0, 0), Span(49, 49, 49)
    assert seen == [
        (none, False),
        (all_but_one, False),
        (none, False),  # named, and others than before: cleared
        (all_but_one, False),
        (all_but_one, True),  # none named: what there is counts, though it was made under others
        (all_but_one, False),
        (Span(0, 0, 49), True),  # whether these are the server's own, no request tells
    ]
