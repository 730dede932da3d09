"""Traffic for models with a sliding window: conversations that share a head and nothing else.

Such a model can go back only to a checkpoint. The server makes one where the last user message begins, but none where a
shared head ends inside of it. Their own parts are longer than its window layers reach back beyond the window (512
tokens): with shorter ones it needs no checkpoint. (Slots that share one cache have longer windows: measured, they need
none either.)
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from traffic.run import Script
from traffic.run import once
from traffic.scenario import Scenario
from traffic.scenario import Stage
from traffic.scenario import opening
from traffic.scenario import single


def siblings(stage: Stage) -> Iterable[Script]:
    """Six prompts of 3,400 tokens, of which the first 2,500 are the same."""
    preamble = stage.writer("preamble").prose(2500, 2500)

    def session(name: str) -> Script:
        text = f"{preamble}\n{opening(name, stage.writer(name).prose(900, 900))}"
        return once(replace(single(name, "", text, stage.reply_tokens, "turn"), stream=True))

    return [session(f"sibling-{number}") for number in range(1, 7)]


SIBLINGS = Scenario("siblings", "six long prompts behind one preamble", siblings)
