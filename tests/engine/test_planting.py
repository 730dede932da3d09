"""Siblings behind one head on a sliding-window model: a primer leaves a checkpoint for them."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from toki.engine.contents import Contents
from toki.engine.core import Engine
from toki.engine.events import Action
from toki.engine.events import Answered
from toki.engine.events import Arrived
from toki.engine.events import Ask
from toki.engine.events import Measured
from toki.engine.events import Mode
from toki.engine.events import Prime
from toki.engine.events import Primed
from toki.engine.events import Record
from toki.engine.events import Restarted
from toki.engine.events import Send
from toki.engine.events import SlotView
from toki.engine.rules import UNLIMITED
from toki.engine.rules import Known
from toki.engine.rules import Rules
from toki.engine.shadow import Shadow
from toki.engine.shadow import Wish
from toki.engine.tokens import Tokens
from toki.engine.window import Window

N_CTX = 8192
SPLIT = Rules(n_ctx=N_CTX, unified=False)
TOLD = Known(unified=False, idle_save=True, ram=UNLIMITED, sps=0.1, window=Window(512))
each_kind = pytest.mark.parametrize("thins", [True, False])


class Play:
    """Chats, one after another, through the engine to a server that the shadow stands for. Each has a user message that
    begins behind its first token, where the server leaves a checkpoint."""

    def __init__(self, rules: Rules, told: Known) -> None:
        self.contents = Contents()
        self.server = Shadow(rules, self.contents)
        self.engine = Engine(Mode.AUTO, 10)
        self.keys = 0
        self.now = 0.0
        self.evaluated = 0
        self.actions: list[Action] = []
        slots = tuple(SlotView(number, False, 0, -1, rules.n_ctx) for number in range(rules.n_slots))
        self.engine.handle(Restarted(0.0, rules.n_slots, rules.n_ctx, told, slots))

    def ask(self, prompt: list[int]) -> None:
        self.keys += 1
        key = self.keys
        starts = (1,)
        commands = self.engine.handle(Arrived(key, self.tick(), Ask("", tokens=Tokens.of(prompt), user_starts=starts)))
        while primes := [one for one in commands if isinstance(one, Prime)]:
            measured = self.run(primes[0].tokens, primes[0].id_slot, ())
            commands = self.engine.handle(Primed(key, self.tick(), measured))
        sent = next(one for one in commands if isinstance(one, Send))
        measured = self.run(Tokens.of(prompt), sent.decision.id_slot, starts)
        ended = self.engine.handle(Answered(key, self.tick(), 200, measured))
        self.actions += [one.action for one in ended if isinstance(one, Record)]

    def run(self, prompt: Tokens, id_slot: int | None, starts: tuple[int, ...]) -> Measured:
        held = self.contents.hold(self.contents.add(prompt), len(prompt), len(prompt))
        launch = self.server.launch(Wish(1, held, id_slot, user_starts=starts))
        assert launch is not None
        self.server.finish(1, 1)
        reused = launch.reuse.likely
        self.evaluated += len(prompt) - reused
        return Measured(len(prompt), reused, len(prompt) - reused, 1, launch.slot, float(len(prompt) - reused))

    def tick(self) -> float:
        self.now += 0.01
        return self.now


def siblings(shared: int, own: int) -> list[list[int]]:
    words = random.Random(1)
    head = [words.randrange(700) for _ in range(shared)]
    return [[*head, 1000 + n, *(words.randrange(700) for _ in range(own - 1))] for n in range(6)]


def rules(thins: bool) -> Rules:
    return replace(SPLIT, window=Window(512, thins=thins))


@each_kind
def test_from_the_second_sibling_on_each_pays_for_its_own_part(thins: bool) -> None:
    play = Play(rules(thins), TOLD)
    for prompt in siblings(2500, 900):
        play.ask(prompt)
    assert play.actions == [Action.PASSED, Action.PRIMED, *[Action.PASSED] * 4]
    assert play.evaluated <= 2 * 3400 + 4 * 901 + 2


@each_kind
def test_where_the_window_still_reaches_back_nothing_is_planted(thins: bool) -> None:
    play = Play(rules(thins), TOLD)
    for prompt in siblings(2500, 400):
        play.ask(prompt)
    assert play.actions == [Action.PASSED] * 6
    assert play.evaluated <= 2900 + 5 * 401


def test_of_a_server_whose_flags_are_not_known_the_third_sibling_is_primed() -> None:
    """The likeliest hypothesis is wrong then: what it said that the server alone would reuse was never lost."""
    play = Play(rules(thins=False), Known(window=Window(512)))
    for prompt in siblings(2500, 900):
        play.ask(prompt)
    assert play.actions[2] is Action.PRIMED
    assert play.evaluated <= 0.65 * 6 * 3400


def test_strangers_are_not_primed() -> None:
    play = Play(rules(thins=True), TOLD)
    for n in range(6):
        play.ask([7 * n + 1, *(random.Random(n).randrange(700) for _ in range(2000))])
    assert play.actions == [Action.PASSED] * 6


@pytest.mark.parametrize("told", [Known(), replace(TOLD, window=None)])
def test_where_no_window_is_known_nothing_is_planted_before_there_is_trust(told: Known) -> None:
    play = Play(rules(thins=True), told)
    for prompt in siblings(2500, 900)[:3]:
        play.ask(prompt)
    assert play.actions == [Action.PASSED] * 3
