"""Prompts that share a long prefix and come at once: evaluated once where that pays, and never worse than apart."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.engine.literal import Flags
from tests.engine.literal import LiteralServer
from tests.engine.stage import Stage
from tests.engine.stage import known

from replay import replay
from toki.engine import fork
from toki.engine.contents import Contents
from toki.engine.events import Action
from toki.engine.events import Ask
from toki.engine.events import Gone
from toki.engine.events import Mode
from toki.engine.events import Primed
from toki.engine.policy import Prices
from toki.engine.tokens import Tokens
from toki.eventlog import EventLog

HEAD = [n % 700 for n in range(2000)]
QUESTIONS = [[*HEAD, 1000 + n, *range(20)] for n in range(4)]
FLAGS = {
    "default": Flags(),
    "-np 4": Flags(unified=False),
    "-np 16 -kvu, no idle clearing": Flags(n_slots=16, idle_save=False),
}
each_server = pytest.mark.parametrize("flags", list(FLAGS.values()), ids=list(FLAGS))


def stage_of(flags: Flags, mode: Mode = Mode.AUTO) -> Stage:
    return Stage(flags, mode, known(flags))


def together(stage: Stage, prompts: list[list[int]]) -> list[int]:
    """Requests come in at the same moment, each while those behind it are still being read."""
    return [stage.arrive(prompt, [7] * 8, company=len(prompts) - n - 1) for n, prompt in enumerate(prompts)]


def prime(stage: Stage, carrier: int) -> None:
    """Let the primers of a fork run to its end."""
    while carrier in stage.held:
        if carrier in stage.waits:
            stage.again(carrier)
            continue
        stage.reach(0)
        stage.end(0)
        stage.answer(0)


def alone(flags: Flags, prompts: list[list[int]]) -> int:
    stage = stage_of(flags, Mode.OFF)
    together(stage, prompts)
    stage.finish()
    return stage.evaluated


@each_server
def test_a_prefix_is_evaluated_once_on_a_server_that_was_never_used(flags: Flags) -> None:
    stage = stage_of(flags)
    keys = together(stage, QUESTIONS)
    assert list(stage.waits) == keys[:-1]
    prime(stage, keys[-1])
    assert not stage.held
    stage.finish()
    assert stage.evaluated <= len(HEAD) + 4 * 30
    assert stage.evaluated <= 0.4 * alone(flags, QUESTIONS)
    for record in stage.records:
        assert record.action is Action.FORKED
        assert record.reason.startswith("shares 2,000 tokens with 3 others that came at once")
        assert record.predicted == record.measured.reused == len(HEAD)
        assert record.alone == 0


@each_server
def test_and_again_on_one_that_is_trusted_and_busy(flags: Flags) -> None:
    stage = stage_of(flags)
    for n in range(6):
        stage.serve([900 + n] * 30, [n] * 3)
    other = stage.arrive([5] * 40, [1, 2])
    stage.reach(0)
    stage.headers(0)
    keys = together(stage, QUESTIONS[:3])
    while keys[-1] in stage.held:
        if keys[-1] in stage.waits:
            stage.again(keys[-1])
            continue
        stage.reach(0)
        stage.server.finish(-stage.primers)
        stage.answers.append(-stage.primers)
        stage.answer(0)
    stage.finish()
    records = {record.key: record for record in stage.records}
    assert records[other].action is Action.PASSED
    for key in keys:
        assert records[key].action is Action.FORKED
        assert records[key].predicted == records[key].measured.reused == len(HEAD)


@pytest.mark.parametrize("flags", [Flags(unified=False, ram=0), Flags(n_slots=1), Flags(sps=0.0)])
def test_where_it_does_not_pay_they_go_as_they_came(flags: Flags) -> None:
    stage = stage_of(flags)
    keys = together(stage, QUESTIONS)
    for key in list(stage.waits):
        stage.again(key)
    assert not stage.held
    stage.finish()
    assert stage.primers == 0
    assert len(stage.records) == len(keys)
    assert stage.evaluated == alone(flags, QUESTIONS)


def test_only_kin_wait_for_each_other() -> None:
    stage = stage_of(FLAGS["-np 4"])
    prompts = [QUESTIONS[0], [3] * 900, QUESTIONS[1]]
    keys = together(stage, prompts)
    assert keys[0] not in stage.resumed  # it is forked
    assert keys[1] in stage.resumed
    stage.again(keys[1])
    assert keys[1] not in stage.held
    prime(stage, keys[2])
    stage.finish()
    assert {record.key: record.action for record in stage.records} == {
        keys[0]: Action.FORKED,
        keys[1]: Action.PASSED,
        keys[2]: Action.FORKED,
    }


def test_one_alone_waits_no_longer_than_for_what_is_read() -> None:
    stage = stage_of(FLAGS["-np 4"])
    first = stage.arrive(QUESTIONS[0], [1], company=1)
    assert stage.waits[first] - stage.now <= fork.GATHER * 2.1
    stage.now = stage.waits[first]
    stage.again(first, company=1)  # the other one takes longer
    assert first not in stage.held
    assert stage.arrive(QUESTIONS[1], [1]) not in stage.held


def test_short_prompts_wait_for_nobody() -> None:
    stage = stage_of(FLAGS["-np 4"])
    assert stage.arrive([1] * (fork.LEAST - 1), [1], company=3) not in stage.held


def test_who_comes_while_the_prefix_is_evaluated_has_part_in_it() -> None:
    stage = stage_of(FLAGS["default"])
    keys = together(stage, QUESTIONS[:3])
    late = stage.arrive(QUESTIONS[3], [7] * 8)
    assert late in stage.waits
    prime(stage, keys[-1])
    stage.finish()
    assert {record.measured.reused for record in stage.records if record.key == late} == {len(HEAD)}
    assert stage.evaluated <= len(HEAD) + 4 * 30


def test_the_copies_need_a_slot_that_is_surely_idle() -> None:
    stage = stage_of(FLAGS["-np 4"])
    keys = together(stage, QUESTIONS)
    stage.reach(0)
    stage.end(0)
    stage.answer(0)
    primers = stage.primers
    other = stage.arrive([5] * 40, [1, 2])  # it may land anywhere
    stage.again(keys[-1])
    assert stage.primers == primers
    assert not stage.held
    stage.finish()
    assert {record.action for record in stage.records if record.key != other} == {Action.FORKED}
    assert stage.evaluated <= alone(FLAGS["-np 4"], QUESTIONS)


def test_a_primer_that_fails_holds_nobody_up() -> None:
    stage = stage_of(FLAGS["-np 4"])
    keys = together(stage, QUESTIONS)
    stage.tell(Primed(keys[-1], stage.tick(), None))
    assert not stage.held
    stage.finish()
    assert {record.action for record in stage.records} == {Action.PASSED}


def test_a_server_that_fails_at_it_twice_is_not_asked_again() -> None:
    stage = stage_of(FLAGS["-np 4"])
    for _ in range(2):
        keys = together(stage, QUESTIONS)
        stage.tell(Primed(keys[-1], stage.tick(), None))
        assert not stage.held
    together(stage, QUESTIONS)
    assert not stage.held


def test_members_and_carriers_may_leave() -> None:
    stage = stage_of(FLAGS["-np 4"])
    keys = together(stage, QUESTIONS)
    stage.again(keys[0], fixed="the client left")
    assert keys[0] not in stage.held
    prime(stage, keys[-1])
    assert not stage.held
    stage = stage_of(FLAGS["-np 4"])
    keys = together(stage, QUESTIONS)
    stage.reach(0)
    stage.end(0)
    stage.answer(0)
    stage.again(keys[-1], fixed="the client left")
    for key in keys[:-1]:
        stage.again(key)
    assert len(stage.held) in (0, 3)
    if stage.held:
        prime(stage, max(set(stage.held) - set(stage.waits)))
    stage.finish()
    assert stage.evaluated <= alone(FLAGS["-np 4"], QUESTIONS)


@each_server
def test_a_head_that_takes_minutes_is_waited_for(flags: Flags) -> None:
    """Of a server that was just met nobody knows how slow it is; who leaves before evaluates the head once more."""
    stage = stage_of(flags)
    keys = together(stage, QUESTIONS)
    for key in keys[:-1]:
        stage.again(key)
    stage.now += 400
    assert stage.now < min(stage.waits.values())
    assert stage.patience > 400
    prime(stage, keys[-1])
    stage.finish()
    assert {record.action for record in stage.records} == {Action.FORKED}
    assert stage.evaluated <= len(HEAD) + 4 * 30


def test_nobody_waits_for_ever() -> None:
    stage = stage_of(FLAGS["-np 4"])
    keys = together(stage, QUESTIONS)
    for key in keys[:-1]:
        stage.again(key)
        assert stage.waits[key] > stage.now
    stage.now = max(stage.waits.values())
    for key in keys[:-1]:
        stage.again(key)
        assert key not in stage.held


def test_another_server_lets_all_go() -> None:
    stage = stage_of(FLAGS["-np 4"])
    keys = together(stage, QUESTIONS)
    stage.restart(LiteralServer(FLAGS["default"]))
    assert set(stage.resumed) == set(keys[:-1])
    for key in keys[:-1]:
        stage.again(key)
        assert key not in stage.held
    prime(stage, keys[-1])
    stage.finish()
    assert {record.action for record in stage.records if record.key != keys[-1]} == {Action.PASSED}


def test_what_is_fixed_or_told_not_to_be_cached_is_not_held() -> None:
    for change in ({"fixed": "as it came"}, {"cache_prompt": False}, {"lora": "a"}):
        stage = stage_of(FLAGS["-np 4"])
        key = stage.arrive(QUESTIONS[0], [1], company=2, change=lambda ask: replace(ask, **change))  # noqa: B023
        assert key not in stage.held


@pytest.mark.parametrize("mode", [Mode.OBSERVE, Mode.OFF, Mode.PIN])
def test_other_modes_do_not_fork(mode: Mode) -> None:
    stage = stage_of(FLAGS["-np 4"], mode)
    together(stage, QUESTIONS)
    assert not stage.held


def test_a_request_that_is_given_up_while_it_waits_is_forgotten() -> None:
    stage = stage_of(FLAGS["-np 4"])
    key = stage.arrive(QUESTIONS[0], [1], company=1)
    stage.tell(Gone(key, stage.tick(), sent=False))
    stage.arrive(QUESTIONS[1], [1])
    assert stage.primers == 0


def test_a_fork_replays_from_its_log(tmp_path: Path) -> None:
    """The log tells tokens by hashes: nothing may depend on a primer's last token being one that occurs elsewhere."""
    log = EventLog(tmp_path / "events")
    stage = Stage(FLAGS["-np 4"], told=known(FLAGS["-np 4"]), proven=False)
    stage.engine = log.engine(Mode.AUTO, 10)
    stage.restart(LiteralServer(FLAGS["-np 4"]))

    def embedded(ask: Ask) -> Ask:
        assert ask.tokens is not None
        return replace(ask, vector=log.embed(ask.tokens))

    for n in range(4):
        prompt = [*HEAD, HEAD[n], *[5000 + n] * 30]
        last = stage.arrive(prompt, [7] * 8, company=3 - n, change=embedded)
    prime(stage, last)
    stage.finish()
    log.close()
    assert stage.primers > 1
    with (tmp_path / "events").open("rb") as file:
        replayed = replay(file)
    assert (replayed.difference, replayed.engines) == ("", 1)


def test_heads_differ_in_their_last_token() -> None:
    tokens = Tokens.of(QUESTIONS[0])
    found = fork.heads(tokens, 2000, 5)
    assert [len(one) for one in found] == [2001] * 5
    assert len({int(one.ids[-1]) for one in found}) == 5
    assert all(one.common_prefix(tokens) == 2000 for one in found)
    assert len(fork.heads(Tokens.of([1, 1, 2, 2]), 4, 5)) == 2
    assert [one.ids.tolist() for one in fork.heads(Tokens.of([1, 1, 2, 2]), 4, 5, {1})] == [[1, 1, 2, 2, 2]]


def test_a_head_that_takes_too_long_is_not_primed() -> None:
    for price, forked in ((10.0, True), (25.0, False)):
        stage = stage_of(FLAGS["-np 4"])
        stage.knowledge.prices = Prices(evaluate=price)
        together(stage, QUESTIONS)
        assert bool(stage.primers) is forked


def test_kin_share_at_least_half_as_much_as_the_nearest() -> None:
    contents = Contents()
    lists = [[*HEAD, 1], [*HEAD[:1500], 2], [*HEAD[:800], 3], [9] * 50]
    places = [contents.add(Tokens.of(one)) for one in lists]
    prompt, *others = [contents.hold(place, len(one), len(one)) for place, one in zip(places, lists, strict=True)]
    assert fork.kin(contents, prompt, dict(enumerate(others))) == (800, [0, 1])
    assert fork.kin(contents, prompt, {5: others[2]}) == (0, [])
    assert fork.kin(contents, prompt, {}) == (0, [])
