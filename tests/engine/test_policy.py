"""The look-ahead prices what it says it prices, and takes the cheapest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.effort import examples
from tests.engine.literal import common_prefix

from toki.engine.contents import UNKNOWN
from toki.engine.contents import Contents
from toki.engine.contents import Held
from toki.engine.events import Action
from toki.engine.events import Option
from toki.engine.events import Span
from toki.engine.policy import RECURS
from toki.engine.policy import Plan
from toki.engine.policy import Priced
from toki.engine.policy import Prices
from toki.engine.policy import Returns
from toki.engine.policy import Want
from toki.engine.policy import cheapest
from toki.engine.policy import options
from toki.engine.rules import UNLIMITED
from toki.engine.rules import Rules
from toki.engine.shadow import Launch
from toki.engine.shadow import Shadow
from toki.engine.shadow import Wish
from toki.engine.tokens import Tokens

RULES = st.builds(
    Rules,
    n_slots=st.integers(1, 7),
    unified=st.booleans(),
    idle_save=st.booleans(),
    ram=st.sampled_from([0, 60, UNLIMITED]),
    sps=st.sampled_from([0.0, 0.1, 0.5]),
)
TAILS = st.lists(st.integers(0, 2), min_size=1, max_size=20)
# A prompt: how much of an earlier one it repeats, and what follows.
PROMPTS = st.tuples(st.integers(0, 5), st.integers(0, 10), TAILS)


class Scene:
    """A server that answered some requests one after another, the last few of which are still running."""

    def __init__(self, rules: Rules, prompts: Sequence[tuple[int, int, list[int]]], running: int) -> None:
        self.contents = Contents()
        self.shadow = Shadow(rules, self.contents)
        self.texts: list[list[int]] = [list(range(30))]
        for key, prompt in enumerate(prompts):
            self.shadow.launch(Wish(key, self.hold(prompt)))
            if key < len(prompts) - running:
                self.shadow.finish(key, 1)

    def hold(self, prompt: tuple[int, int, list[int]]) -> Held:
        source, cut, tail = prompt
        text = self.texts[-1 - source % len(self.texts)]
        ids = text[: cut * len(text) // 10] + tail
        self.texts.append(ids)
        return self.contents.hold(self.contents.add(Tokens.of(ids)), len(ids), len(ids))

    def ids(self, held: Held) -> list[int]:
        ids: list[int] = self.contents[held.place].ids[: held.length].tolist()
        return ids


SCENES = st.builds(Scene, RULES, st.lists(PROMPTS, max_size=12), st.integers(0, 2))
WANTS = st.lists(st.tuples(PROMPTS, st.sampled_from([0.0, 0.25, 1.0])), max_size=5)


def wants_of(scene: Scene, drawn: Sequence[tuple[tuple[int, int, list[int]], float]]) -> list[Want]:
    return [Want(scene.hold(prompt), chance) for prompt, chance in drawn]


def still_to_evaluate(scene: Scene, after: Shadow, wants: Sequence[Want]) -> float:
    """What the conversations would have to evaluate, each served by what suits it best, compared token by token."""
    total = 0.0
    for want in wants:
        prompt = scene.ids(want.held)
        best = 0
        for slot in after.slots:
            if slot.held is not None:
                best = max(best, common_prefix(scene.ids(slot.held), prompt))
        for entry in after.ram:
            shared = common_prefix(scene.ids(entry), prompt)
            if shared >= 0.25 * entry.length:  # else the server does not load it
                best = max(best, shared)
        total += want.chance * (len(prompt) - best)
    return total


@examples(40)
@given(SCENES, WANTS, PROMPTS, st.none() | st.integers(0, 13))
def test_returns_are_those_of_a_loop(
    scene: Scene,
    drawn: list[tuple[tuple[int, int, list[int]], float]],
    prompt: tuple[int, int, list[int]],
    pin: int | None,
) -> None:
    wants = wants_of(scene, drawn)
    returns = Returns(scene.shadow, wants)
    assert returns.evaluated(scene.shadow) == pytest.approx(still_to_evaluate(scene, scene.shadow, wants))
    after = scene.shadow.copy()
    after.launch(Wish(99, scene.hold(prompt), pin))
    assert returns.evaluated(after) == pytest.approx(still_to_evaluate(scene, after, wants))


@examples(40)
@given(SCENES, WANTS)
def test_losses_are_what_is_missed_without_a_slot(
    scene: Scene, drawn: list[tuple[tuple[int, int, list[int]], float]]
) -> None:
    wants = wants_of(scene, drawn)
    losses = Returns(scene.shadow, wants).losses()
    before = still_to_evaluate(scene, scene.shadow, wants)
    for number, slot in enumerate(scene.shadow.slots):
        if slot.held is None:
            assert not losses.get(number)
            continue
        without = scene.shadow.copy()
        without.correct(number, None)
        assert losses[number] == pytest.approx(still_to_evaluate(scene, without, wants) - before)


PRICES = Prices(evaluate=2.0, move=0.1)


@examples(40)
@given(SCENES, WANTS, PROMPTS)
def test_options_are_what_the_shadow_would_do(
    scene: Scene, drawn: list[tuple[tuple[int, int, list[int]], float]], prompt: tuple[int, int, list[int]]
) -> None:
    wants = wants_of(scene, drawn)
    wish = Wish(99, scene.hold(prompt))
    idle = [number for number, slot in enumerate(scene.shadow.slots) if slot.idle]
    before = str((scene.shadow.slots, scene.shadow.ram))
    returns = Returns(scene.shadow, wants)
    priced = options(scene.shadow, wish, returns, PRICES, pins=idle, swaps=idle)
    assert before == str((scene.shadow.slots, scene.shadow.ram))
    if not idle:
        assert priced == []
        return
    assert [one.plan.action for one in priced].count(Action.PASSED) == 1
    assert priced[0].plan.action is Action.PASSED
    for one in priced:
        option, launch = one.option, one.launch
        assert option.action is one.plan.action
        assert one.price == option.now + option.later
        after = scene.shadow.copy()
        expected = after.launch(replace(wish, id_slot=one.plan.id_slot))
        assert expected is not None
        assert (option.slot, option.reuse) == (expected.slot, expected.reuse) == (launch.slot, launch.reuse)
        assert option.slot in idle
        evaluated = wish.prompt.length - expected.reuse.likely
        assert option.now == pytest.approx(2.0 * evaluated + 0.1 * expected.moved)
        again = 1.0 if scene.shadow.rules.ram else RECURS
        assert option.later == pytest.approx(2.0 * again * still_to_evaluate(scene, after, wants))


@examples(40)
@given(SCENES, WANTS, PROMPTS)
def test_the_slots_tried_hold_the_best_choice(
    scene: Scene, drawn: list[tuple[tuple[int, int, list[int]], float]], prompt: tuple[int, int, list[int]]
) -> None:
    """Pricing every slot would find nothing cheaper, but for what is moved to and from RAM."""
    wants = wants_of(scene, drawn)
    wish = Wish(99, scene.hold(prompt))
    idle = [number for number, slot in enumerate(scene.shadow.slots) if slot.idle]
    returns = Returns(scene.shadow, wants)
    priced = options(scene.shadow, wish, returns, PRICES, pins=idle, swaps=idle)
    if not priced:
        return
    best = min(one.price - 0.1 * one.launch.moved for one in priced)
    for number in [*idle, *(number + len(scene.shadow.slots) for number in idle)]:
        after = scene.shadow.copy()
        launch = after.launch(replace(wish, id_slot=number))
        assert launch is not None
        now = 2.0 * (wish.prompt.length - launch.reuse.likely) + 0.1 * launch.moved
        again = 1.0 if scene.shadow.rules.ram else RECURS
        assert best <= now + 2.0 * again * still_to_evaluate(scene, after, wants) + 1e-6


def test_only_what_may_be_steered_to_is_priced() -> None:
    scene = Scene(Rules(n_slots=3, unified=False), [(0, 0, [1, 2, 3]), (0, 0, [4, 5, 6])], running=0)
    wish = Wish(99, scene.hold((0, 5, [7])))
    returns = Returns(scene.shadow, [])
    priced = options(scene.shadow, wish, returns, Prices(), pins=[1], swaps=[2])
    plans = [one.plan for one in priced]
    assert [(plan.action, plan.slot, plan.id_slot) for plan in plans] == [
        (Action.PASSED, None, None),
        (Action.PINNED, 1, 1),
        (Action.SWAPPED, 2, 5),  # k + n_slots makes the server fetch from RAM into k
    ]
    assert len(options(scene.shadow, wish, returns, Prices(), pins=[], swaps=[])) == 1


def test_an_entry_of_which_little_would_stay_is_not_counted_on() -> None:
    """The server loads nothing from RAM of which less than a quarter would stay."""
    for shared, found in ((24, 0), (25, 25)):
        contents = Contents()

        def hold(ids: list[int], contents: Contents = contents) -> Held:
            return contents.hold(contents.add(Tokens.of(ids)), len(ids), len(ids))

        shadow = Shadow(Rules(n_slots=1), contents)
        shadow.launch(Wish(1, hold([*range(100)])))
        shadow.finish(1, 0)
        shadow.launch(Wish(2, hold([*range(500, 600)])))
        shadow.finish(2, 0)
        assert [entry.length for entry in shadow.ram] == [100]
        want = Want(hold([*range(shared), *range(900, 930)]), 1.0)
        assert Returns(shadow, [want]).evaluated(shadow) == shared + 30 - found


def test_unknown_conversations_cost_nothing() -> None:
    contents = Contents()
    shadow = Shadow(Rules(), contents)
    assert Returns(shadow, [Want(contents.hold(UNKNOWN, 0, 50), 1.0)]).evaluated(shadow) == 0.0


@examples(40)
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=6), st.integers(0, 5))
def test_the_cheapest_is_taken_and_passing_where_it_wins_little(costs: list[tuple[int, int]], margin: int) -> None:
    nothing = Span(0, 0, 0)
    plan, launch = Plan(Action.PASSED, None, None), Launch(0, nothing, True)
    shadow = Shadow(Rules(), Contents())
    priced = [Priced(plan, Option(Action.PASSED, 0, nothing, now, later, ""), launch, shadow) for now, later in costs]
    chosen = next(n for n, one in enumerate(priced) if one is cheapest(priced, margin))
    totals = [now + later for now, later in costs]
    if chosen:
        assert totals[chosen] == min(totals) < totals[0] - margin
    else:
        assert totals[0] - margin <= min(totals)


def test_speed_is_learnt() -> None:
    prices = Prices()
    assert prices.after(0.5).evaluate == 0.5
    assert prices.after(0.5).after(1.5).evaluate == pytest.approx(0.7)
    assert prices.after(0.5).move == pytest.approx(0.005)


def test_nothing_is_ventured_beyond_the_stake() -> None:
    def priced(action: Action, now: float, later: float) -> Priced:
        option = Option(action, 0, Span(0, 0, 0), now, later, "")
        scene = Scene(Rules(), [], 0)
        return Priced(Plan(action, 0, None), option, Launch(0, Span(0, 0, 0), True), scene.shadow)

    passed, pinned = priced(Action.PASSED, 100.0, 900.0), priced(Action.PINNED, 300.0, 100.0)
    assert cheapest([passed, pinned], 10.0) is pinned
    assert cheapest([passed, pinned], 10.0, stake=200.0) is pinned
    assert cheapest([passed, pinned], 10.0, stake=199.0) is passed
    saves = priced(Action.SWAPPED, 90.0, 800.0)
    assert cheapest([passed, saves], 10.0, stake=-10.0) is saves
    assert cheapest([passed, saves], 10.0, stake=-16.0) is passed


def test_what_is_larger_than_the_ram_cache_is_cut_to_fit() -> None:
    """A launch would clear the slot, and 1,500 tokens fit into no RAM cache of 1,000."""
    contents = Contents()
    shadow = Shadow(Rules(ram=1000, pool=1 << 20), contents)

    def hold(ids: Sequence[int]) -> Held:
        return contents.hold(contents.add(Tokens.of(ids)), len(ids), len(ids))

    long = hold(range(1500))
    shadow.launch(Wish(1, long))
    shadow.finish(1, 1)
    number = next(n for n, slot in enumerate(shadow.slots) if slot.held is not None)
    wish = Wish(2, hold(range(5000, 5100)))
    priced = options(
        shadow, wish, Returns(shadow, [Want(long, 1.0)]), Prices(), pins=[number], swaps=[number], primers=True
    )
    best = cheapest(priced, 16.0)
    assert best.plan.action is Action.PRIMED
    assert [primer.prompt.length for primer in best.plan.primers] == [1000]
    assert best.plan.primers[0].id_slot == number
    assert [entry.length for entry in best.after.ram] == [1000]


class Shared:
    """A server whose slots, the last one first, hold what several owners left; the one who asks is "me"."""

    def __init__(self, rules: Rules, left: Sequence[tuple[str, list[int]]]) -> None:
        self.contents = Contents()
        self.shadow = Shadow(rules, self.contents)
        for key, (owner, ids) in enumerate(left):
            self.shadow.launch(Wish(key, self.hold(owner, ids), rules.n_slots - 1 - key % rules.n_slots))
            self.shadow.finish(key, 1)

    def hold(self, owner: str, ids: list[int]) -> Held:
        return self.contents.hold(self.contents.add(Tokens.of(ids), owner=owner), len(ids), len(ids))

    def options(
        self, ids: list[int], slots: Sequence[int] = (), *, uncached: bool = True, honours_slot: bool = True
    ) -> list[Priced]:
        wish = Wish(99, self.hold("me", ids))
        returns = Returns(self.shadow, [])
        swaps = slots if self.shadow.rules.ram else ()
        return options(
            self.shadow, wish, returns, Prices(), pins=slots, swaps=swaps, primers=True, honours_slot=honours_slot,
            uncached=uncached,
        )  # fmt: skip


SPLIT = Rules(n_slots=2, ram=0)
SECRET, OWN = list(range(100)), list(range(20))


def test_passing_is_left_out_where_it_would_show_what_another_left() -> None:
    server = Shared(SPLIT, [("you", SECRET)])
    (only,) = server.options([*SECRET, 7])
    assert only.plan == Plan(Action.ISOLATED, None, None, cache_prompt=False)
    assert (only.launch.slot, only.launch.reuse) == (1, Span(0, 0, 0))
    assert only.option.now == 101
    assert only.option.why == "the server itself would take up to 100 tokens that another key's request left"


def test_a_slot_of_ones_own_is_better_than_no_cache() -> None:
    server = Shared(SPLIT, [("you", SECRET), ("me", [*OWN, 500])])
    best = cheapest(server.options([*SECRET, 7], [0]), 0)
    assert (best.plan.action, best.launch.slot, best.launch.reuse) == (Action.PINNED, 0, Span(20, 20, 20))
    assert not best.launch.foreign


def test_no_plan_leads_to_what_another_left() -> None:
    """Not even where the caller allows its slot."""
    server = Shared(SPLIT, [("you", SECRET), ("me", [*OWN, 500])])
    assert [one.plan.action for one in server.options([*SECRET, 7], [0, 1])] == [Action.ISOLATED, Action.PINNED]


def test_what_cannot_be_helped_passes() -> None:
    """The client says itself that the cache is used, or the endpoint does not hear that it should not be."""
    server = Shared(SPLIT, [("you", SECRET)])
    (only,) = server.options([*SECRET, 7], uncached=False)
    assert only.plan.action is Action.PASSED
    assert only.launch.foreign


def test_where_no_key_is_heard_a_primer_leads_elsewhere() -> None:
    server = Shared(SPLIT, [("you", SECRET), ("me", [*OWN, 500])])
    (only,) = server.options([*SECRET, 7], [0], uncached=False, honours_slot=False)
    assert (only.plan.action, only.launch.slot, only.launch.reuse.low) == (Action.PRIMED, 0, 100)


@pytest.mark.parametrize("ram", [0, UNLIMITED])
def test_ones_own_passes_as_ever(ram: int) -> None:
    server = Shared(replace(SPLIT, ram=ram), [("me", SECRET), ("you", list(range(300, 400)))])
    passing = server.options([*SECRET, 7])[0]
    assert passing.plan.action is Action.PASSED
    assert passing.launch.reuse == Span(100, 100, 100)
    assert not passing.launch.foreign


def test_what_another_left_in_the_ram_cache_is_not_fetched() -> None:
    rules = Rules(n_slots=1, ram=UNLIMITED)
    server = Shared(rules, [("you", SECRET), ("me", [500] * 30)])
    found = server.options([*SECRET, 7], [0])
    assert all(one.launch.reuse.high == 0 for one in found)
    assert found[0].plan.action is Action.ISOLATED
