"""With owners that are kept apart no request is led to what another one's left, and as far as the server can be
predicted none finds it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from unittest import mock

from hypothesis import example
from hypothesis import given
from hypothesis import strategies as st
from tests.effort import examples
from tests.engine.literal import Flags
from tests.engine.literal import common_prefix
from tests.engine.shared import SharedStage
from tests.engine.stage import known
from tests.engine.test_core import SCRIPT
from tests.engine.test_core import SERVERS
from tests.engine.test_core import play

from toki.engine import fork
from toki.engine import waiting
from toki.engine.events import Action
from toki.engine.events import Ask
from toki.engine.events import Decision
from toki.engine.events import Mode
from toki.engine.events import Record
from toki.engine.events import Unsteered
from toki.engine.rules import Known

FLAGS = st.sampled_from(list(SERVERS.values()))
MODES = st.sampled_from([Mode.AUTO, Mode.PIN])
# Whose request it is, which earlier text it repeats, how much of that (in tenths), what follows, and the reply.
REQUEST = st.tuples(
    st.integers(0, 2), st.integers(0, 5), st.integers(0, 10), st.lists(st.integers(0, 2), min_size=1, max_size=30)
)
REQUESTS = st.lists(REQUEST, min_size=3, max_size=14)
ME, YOU = "owner 0", "owner 1"
SECRET = [7, *range(200)]
MINE = [7, *range(500, 540)]


def trusting(flags: Flags, mode: Mode = Mode.AUTO) -> SharedStage:
    """The engine knows the flags and trusts itself; slots and RAM hold short conversations of a third owner."""
    stage = SharedStage(flags, mode, known(flags))
    for n in range(6):
        stage.serve([900 + n] * 12, [n, n, n], owner="owner 2")
    assert stage.engine.belief is not None
    assert stage.engine.belief.trusted
    return stage


def serve(stage: SharedStage, requests: Sequence[tuple[int, int, int, list[int]]]) -> dict[str, list[list[int]]]:
    """One request after another; all that each owner's requests left, or could have."""
    texts = [list(range(40))]
    left: dict[str, list[list[int]]] = {name: [] for name in stage.names}
    for owner, which, tenths, tail in requests:
        source = texts[-1 - which % len(texts)]
        prompt = source[: len(source) * tenths // 10] + tail
        name = stage.names[owner]
        found = len(stage.noting.found)
        stage.serve(prompt, [300 + stage.keys, 301], owner=name)
        for one in stage.noting.found[found:]:
            # What it reused its own owner had sent before, whoever had left it.
            assert one.reuse <= max((common_prefix(prompt, text) for text in left[name]), default=0) or one.key < 0
        left[name].append([*prompt, 300 + stage.keys])
        texts.append(left[name][-1])
    return left


@example(Flags(n_slots=1), Mode.PIN, [(0, 0, 0, [0, 0]), (1, 0, 0, [0]), (0, 0, 0, [0, 0])])
@examples(60)
@given(FLAGS, MODES, REQUESTS)
def test_one_after_another_nothing_of_others_is_found(
    flags: Flags, mode: Mode, requests: list[tuple[int, int, int, list[int]]]
) -> None:
    stage = trusting(flags, mode)
    stage.noting.found.clear()
    serve(stage, requests)
    assert [one for one in stage.noting.found if one.left_by != one.owner] == []
    assert stage.astray == []


@examples(60)
@given(FLAGS, MODES, REQUESTS, st.booleans())
def test_while_it_learns_nothing_is_found_that_ones_own_did_not_send(
    flags: Flags, mode: Mode, requests: list[tuple[int, int, int, list[int]]], told: bool
) -> None:
    stage = SharedStage(flags, mode, known(flags) if told else Known())
    serve(stage, requests)
    assert stage.astray == []


@examples(80)
@given(FLAGS, MODES, SCRIPT, st.booleans(), st.booleans())
def test_whatever_happens_no_one_is_led_to_what_another_left(
    flags: Flags, mode: Mode, script: list[tuple[str, int, int]], in_order: bool, much: bool
) -> None:
    """Neither pins nor swaps, primers, copies or forks, whatever overtakes what."""
    least = 5 if much else fork.LEAST
    with mock.patch.object(fork, "LEAST", least), mock.patch.object(waiting, "LEAST", 0.0):
        stage = trusting(replace(flags, n_ctx=None), mode)
        play(stage, script, in_order=in_order)
    assert stage.astray == []


# --- one by one -----------------------------------------------------------------------------------

NP2 = Flags(n_slots=2, unified=False, ram=0)
FEW = Flags(unified=False)


def decided(stage: SharedStage) -> list[Decision]:
    found: list[Decision] = []
    stage.checks.append(lambda _, decision: found.append(decision))
    return found


def test_a_guess_of_what_another_sent_finds_nothing() -> None:
    stage = trusting(Flags(n_slots=8, unified=False, ram=0))
    stage.serve(SECRET, [1, 2], owner=YOU)
    record = stage.serve([*SECRET[:150], 3], [1, 2], owner=ME)
    assert (record.measured.reused, record.predicted, record.alone) == (0, 0, 150)
    assert record.action is Action.PINNED, "an empty slot leaves the other one's alone"
    assert record.reason.endswith("the server itself would take up to 150 tokens that another key's request left")
    again = stage.serve([*SECRET[:150], 3, 1, 4], [1, 2], owner=ME)
    assert again.measured.reused == 152, "its own is there now"


def refuse(stage: SharedStage, key: int) -> None:
    stage.tell(Unsteered(key, stage.tick()))


def end(stage: SharedStage) -> Record:
    """The one request that is under way is answered."""
    stage.reach(0)
    stage.headers(0)
    stage.end(0)
    stage.answer(0)
    return stage.records[-1]


def test_a_refused_pin_is_sent_again_without_the_cache() -> None:
    stage = trusting(Flags(n_slots=8, unified=False, ram=0))
    stage.serve(SECRET, [1, 2], owner=YOU)
    decisions = decided(stage)
    key = stage.arrive([*SECRET[:150], 3], [1, 2], owner=ME)
    assert decisions[-1].action is Action.PINNED
    refuse(stage, key)
    record = end(stage)
    assert (record.action, record.predicted, record.measured.reused) == (Action.ISOLATED, 0, 0)
    assert record.reason.startswith("the server refused it as it was steered, so it went without the cache")
    assert not stage.knowledge.levers.usable(Action.PINNED)
    assert stage.knowledge.levers.usable(Action.ISOLATED)


def test_a_refused_pin_is_sent_as_it_came_where_only_its_own_key_left_something() -> None:
    stage = SharedStage(FEW, Mode.PIN, known(FEW))
    for n in range(6):
        stage.serve([900 + n] * 12, [n, n, n], owner=ME)
    stage.serve(MINE, [1, 2], owner=ME)
    decisions = decided(stage)
    key = stage.arrive([*MINE, 1, 2, 9], [1, 2], owner=ME)
    assert decisions[-1].action is Action.PINNED
    refuse(stage, key)
    record = end(stage)
    assert (record.action, record.measured.reused) == (Action.PASSED, len(MINE) + 1)


def test_what_is_refused_without_the_cache_goes_as_it_came() -> None:
    """The server does not take `cache_prompt: false`, so nothing else is left; where the prompt is not read, too."""

    def unreadable(ask: Ask) -> Ask:
        return replace(ask, tokens=None, unknown="unreadable")

    for change in (lambda ask: ask, unreadable):
        stage = trusting(NP2)
        stage.serve(SECRET, [1, 2], owner=YOU)
        decisions = decided(stage)
        stage.arrive(MINE, [1] * 9, owner=YOU)  # it takes a slot
        key = stage.arrive(SECRET, [1, 2], owner=ME, change=change)
        assert decisions[-1].action is Action.ISOLATED
        refuse(stage, key)
        assert (decisions[-1].action, decisions[-1].steers) == (Action.PASSED, False)
        stage.finish()
        assert not stage.knowledge.levers.usable(Action.ISOLATED)


def test_a_client_that_insists_on_the_cache_is_led_elsewhere() -> None:
    """Its `cache_prompt` stays as it is, so that only another slot keeps it apart."""

    def insists(ask: Ask) -> Ask:
        return replace(ask, chose_cache=True)

    stage = trusting(Flags(n_slots=4, unified=False, ram=0))
    stage.serve(MINE, [1, 2], owner=ME)
    stage.serve(SECRET, [1, 2], owner=YOU)
    record = stage.serve([*SECRET[:150], 3], [1, 2], owner=ME, change=insists)
    found = stage.noting.found[-1]
    assert (found.left_by, found.reuse, record.measured.reused) == (ME, 1, 1)
    assert stage.astray == []


def test_a_client_that_chooses_its_slot_is_not_touched() -> None:
    """What the option can't do, and says so."""
    stage = trusting(NP2)
    stage.serve(SECRET, [1, 2], owner=YOU)
    slot = next(number for number, one in enumerate(stage.server.slots) if one.tokens[:3] == SECRET[:3])
    decisions = decided(stage)
    record = stage.serve(
        SECRET, [1, 2], owner=ME, change=lambda ask: replace(ask, client_slot=slot, fixed="the client chose a slot")
    )
    assert (decisions[0].action, decisions[0].steers) == (Action.PASSED, False)
    assert record.measured.reused == len(SECRET) - 1


def test_where_a_prompt_cannot_be_read_it_goes_without_the_cache() -> None:
    stage = trusting(NP2)
    stage.serve(SECRET, [1, 2], owner=YOU)
    decisions = decided(stage)
    stage.serve(SECRET, [1, 2], owner=ME, change=lambda ask: replace(ask, tokens=None, unknown="unreadable"))
    assert (decisions[0].action, decisions[0].cache_prompt) == (Action.ISOLATED, False)
    assert (stage.server.launched[-1].key, stage.server.launched[-1].reuse) == (stage.keys, 0)


def test_before_the_server_is_known_so_does_what_others_may_have_left() -> None:
    stage = SharedStage(NP2, told=known(NP2))
    first = stage.serve(SECRET, [1, 2], owner=YOU)
    assert first.action is Action.PASSED
    second = stage.serve(SECRET, [1, 2], owner=ME)
    assert (second.action, second.measured.reused) == (Action.ISOLATED, 0)
    assert second.reason == "without the cache: it could find what another key's request left"
    third = stage.serve([*SECRET, 1, 5], [1, 2], owner=ME)
    assert (third.action, third.measured.reused) == (Action.PASSED, len(SECRET) + 1)


def test_one_owner_alone_is_served_as_ever() -> None:
    """Keeping keys apart costs nothing where there is one."""
    for flags in SERVERS.values():
        rows = []
        for owner in ("", ME):
            stage = SharedStage(flags, told=known(flags), owners=1)
            stage.names = [owner]
            rows.append([stage.serve([n % 3] * 40 + [n] * 30, [8, 9]) for n in range(12)])
        for plain, kept in zip(*rows, strict=True):
            assert (plain.action, plain.measured.reused, plain.reason) == (
                kept.action,
                kept.measured.reused,
                kept.reason,
            )


def test_requests_without_the_cache_build_no_trust() -> None:
    stage = SharedStage(NP2, told=Known())
    belief = stage.engine.belief
    assert belief is not None
    before = belief.score
    for n in range(4):
        stage.serve([n] * 50, [1, 2], owner=ME, change=lambda ask: replace(ask, cache_prompt=False))
    assert belief.score == before


def test_owners_are_forked_apart() -> None:
    """Requests that share a long prefix and come at once: each owner's own together."""
    flags = Flags(n_slots=8, unified=False)
    stage = trusting(flags)
    text = [7] * 3 + list(range(1000))
    decisions = decided(stage)
    keys = [stage.arrive([*text, n], [1, 2], owner=(ME, YOU)[n % 2], company=3 - n) for n in range(4)]
    for _ in range(40):
        for key in list(stage.waits):
            stage.again(key)
        stage.reach(0)
        stage.headers(0)
        stage.end(0)
        stage.answer(0)
    assert {one.key for one in stage.records} >= set(keys)
    forked = [one for one in decisions if one.action is Action.FORKED]
    assert len(forked) == 2
    assert all("with another one that came at once" in one.reason for one in forked), "not with three others"
    assert stage.astray == []
