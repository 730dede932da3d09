"""What a sliding-window model reuses, as real servers of both builds say it."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from dataclasses import field

import pytest
import requests
from tests.live.conftest import Llama

from servers import Build
from servers import LlamaServer
from toki.engine.contents import Contents
from toki.engine.rules import Rules
from toki.engine.shadow import Shadow
from toki.engine.shadow import Wish
from toki.engine.tokens import Tokens
from toki.engine.window import Window
from toki.engine.window import planted
from toki.engine.window import user_starts
from toki.turns import user_delimiter

N_SWA = 512


@dataclass
class Beside:
    """A server and its shadow, which are told the same."""

    server: LlamaServer
    rules: Rules
    session: requests.Session = field(default_factory=requests.Session)
    contents: Contents = field(default_factory=Contents)
    keys: int = 0

    def __post_init__(self) -> None:
        self.session.trust_env = False
        self.shadow = Shadow(self.rules, self.contents)

    def post(self, path: str, body: dict[str, object]) -> dict[str, object]:
        answer = self.session.post(self.server.url + path, json=body, timeout=60)
        answer.raise_for_status()
        found: dict[str, object] = answer.json()
        return found

    def predict(self, ids: list[int], starts: tuple[int, ...] = ()) -> int:
        """Launch in the shadow; returns the likely reuse."""
        self.keys += 1
        prompt = self.contents.hold(self.contents.add(Tokens.of(ids)), len(ids), len(ids))
        launch = self.shadow.launch(Wish(self.keys, prompt, user_starts=starts))
        assert launch is not None
        return launch.reuse.likely

    def settle(self, prompt: list[int], reply: list[int]) -> None:
        self.shadow.finish(self.keys, len(reply))
        old = self.contents.hold(self.contents.add(Tokens.of(prompt)), len(prompt), len(prompt) + len(reply) - 1)
        self.shadow.reveal(old, self.contents.add(Tokens.of([*prompt, *reply[:-1]])))

    def complete(self, ids: list[int], n_predict: int) -> tuple[int, int, list[int]]:
        """The reuse that the shadow predicts, what the server measured, and the tokens of the answer."""
        predicted = self.predict(ids)
        body = {"prompt": ids, "n_predict": n_predict, "temperature": 0, "ignore_eos": True, "return_tokens": True}
        answer = self.post("/completion", body)
        timings, reply = answer["timings"], answer["tokens"]
        assert isinstance(timings, dict)
        assert isinstance(reply, list)
        self.settle(ids, reply)
        return predicted, timings["cache_n"], reply


def words(seed: int, length: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(300, 900) for _ in range(length)]


def beside(llama: Llama, build: Build, n_parallel: int | None, ubatch: int = 128) -> Beside:
    slots = n_parallel or 4
    server = llama("tiny-window", build, n_parallel=n_parallel, n_ubatch=ubatch, n_ctx=16384 * slots)
    sharing = 1 if n_parallel else slots
    window = Window(N_SWA, sharing=sharing, ubatch=ubatch, thins=build == "skulk")
    return Beside(server, Rules(n_slots=slots, n_ctx=16384, unified=n_parallel is None, window=window))


@pytest.mark.parametrize("n_parallel", [None, 4])
def test_prompts_that_go_on_step_back_and_return(fresh_llama: Llama, build: Build, n_parallel: int | None) -> None:
    both = beside(fresh_llama, build, n_parallel)
    rng = random.Random(7)
    chats = [words(seed, 700 * seed) for seed in (1, 2, 3)]
    near = exact = 0
    rounds = 30
    for turn in range(rounds):
        number = rng.randrange(len(chats))
        prompt = chats[number]
        step = rng.choice([0, 0, 0, 1, 40, 300, 800])
        prompt = [*prompt[: max(1, len(prompt) - step)], *words(1000 + turn, rng.choice([1, 20, 200, 700]))]
        predicted, measured, reply = both.complete(prompt, rng.choice([1, 8, 60]))
        chats[number] = [*prompt, *reply]
        exact += predicted == measured
        near += abs(predicted - measured) <= len(prompt) / 20
    assert near / rounds >= 0.9
    assert exact / rounds >= 0.8


def test_a_planted_head_serves_siblings(fresh_llama: Llama, build: Build) -> None:
    both = beside(fresh_llama, build, 4)
    assert both.rules.window is not None
    shared = words(1, 2500)
    siblings = [[*shared, *words(seed, 900)] for seed in range(2, 6)]
    head = planted(both.rules.window, 2500, 3400)
    assert head is not None
    assert both.complete(siblings[0][:head], 0)[:2] == (0, 0)
    assert both.complete(siblings[0], 8)[:2] == (head, head)
    assert [both.complete(sibling, 8)[:2] for sibling in siblings[1:]] == [(2499, 2499)] * 3


def test_a_chat_goes_back_to_where_a_user_message_starts(fresh_llama: Llama, build: Build) -> None:
    both = beside(fresh_llama, build, 4)
    written = user_delimiter(lambda body: str(both.post("/apply-template", json.loads(body))["prompt"]))
    assert written == "<|im_start|>user"
    delimiter = both.post("/tokenize", {"content": written, "parse_special": True})["tokens"]
    assert isinstance(delimiter, list)
    found = []
    for question in ("What was that? " * 90, "Tell me something else. " * 90, "And now? " * 30):
        system = {"role": "system", "content": "You are a friend of few words. " * 60}
        body: dict[str, object] = {"messages": [system, {"role": "user", "content": question}], "max_tokens": 4}
        text = both.post("/apply-template", body)["prompt"]
        ids = both.post("/tokenize", {"content": text, "add_special": True, "parse_special": True})["tokens"]
        assert isinstance(ids, list)
        starts = user_starts(Tokens.of(ids).ids, delimiter)
        assert len(starts) == 1
        predicted = both.predict(ids, starts)
        timings = both.post("/v1/chat/completions", {**body, "temperature": 0})["timings"]
        assert isinstance(timings, dict)
        both.settle(ids, [0] * timings["predicted_n"])
        found.append((predicted, timings["cache_n"], starts[0]))
    assert all(predicted == measured for predicted, measured, _ in found)
    assert [measured - start for _, measured, start in found[1:]] == [-1, -1]  # less the last token before it
