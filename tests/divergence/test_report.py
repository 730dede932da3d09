"""The report on kept answers, and the prompts that they answer."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from divergence import collect
from divergence import passes
from divergence_prompts import PARTS
from divergence_prompts import Prompt
from divergence_prompts import prompts
from divergence_report import comparisons
from divergence_report import page
from divergence_report import read
from divergence_report import text
from divergence_ways import WAYS
from divergence_ways import Pass
from divergence_ways import answer_of
from divergence_ways import body
from toki.divergence.meaning import deterministic

PASS = Pass("smollm2", "skulk", "fresh", 0.0, 1, 0)


def answer(prompt: str, said: str, reused: int = 0) -> dict[str, Any]:
    tokens = [[word, -0.5, 0.05] for word in said.split()]
    figures = {"reused": reused, "evaluated": 10 - reused, "finish": "length", "tokens": tokens}
    return {"prompt": prompt, "kind": "chat", "text": said, **figures}


def kept(way: str, number: int, *answers: dict[str, Any]) -> dict[str, Any]:
    asked = {"model": "m", "build": "b", "way": way, "temperature": 0.0, "number": number, "part": 0}
    return {"pass": asked, "actions": {}, "seconds": 1.0, "load": 0.0, "answers": list(answers)}


def test_there_are_enough_prompts_of_each_kind_and_parts_are_mixed() -> None:
    parts = [prompts(part) for part in range(PARTS)]
    everything = [prompt for part in parts for prompt in part]
    assert len(everything) == len({prompt.name for prompt in everything}) == 208
    assert min(Counter(prompt.kind for prompt in everything).values()) >= 24
    kinds = {prompt.kind for prompt in everything}
    assert kinds == {"chat", "code", "json", "tools", "document", "non-latin"}
    assert all(len({prompt.kind for prompt in part}) >= 5 for part in parts)


def test_all_ways_ask_the_same_but_for_what_makes_them_ways() -> None:
    prompt = prompts(0)[0]
    bodies = {way: json.loads(body(Pass("smollm2", "skulk", way, 0.8, 1, 0), prompt)) for way in WAYS}
    assert bodies["fresh"].pop("cache_prompt") is False
    assert bodies["restore"].pop("id_slot") == 0
    assert all(other == bodies["alone"] for other in bodies.values())


def test_passes_come_once_each() -> None:
    found = [one.name for one in passes(["smollm2", "gemma3"], ["skulk", "xllamacpp"], [0.0, 0.8])]
    assert len(found) == len(set(found)) == 2 * 2 * 2 * 2 * len(WAYS) * PARTS


def test_what_is_there_is_not_collected_again(tmp_path: Path) -> None:
    (tmp_path / f"{PASS.name}.json").write_text("{}")
    assert collect([PASS], tmp_path, 0.0)
    assert not collect([Pass("smollm2", "skulk", "alone", 0.0, 1, 0)], tmp_path, -1.0)


def test_an_answer_holds_what_a_client_sees_and_where_it_was_unsure() -> None:
    call = {"function": {"name": "f", "arguments": "{}"}}
    top = [{"logprob": -0.5}, {"logprob": -0.75}]
    said = {
        "choices": [
            {
                "message": {"content": "Hi", "tool_calls": [call]},
                "finish_reason": "stop",
                "logprobs": {"content": [{"token": "Hi", "logprob": -0.5, "top_logprobs": top}]},
            }
        ],
        "timings": {"cache_n": 3, "prompt_n": 4},
    }
    found = answer_of(Prompt("p", "chat", "g", ()), said)
    assert found.text == 'Hi\n{"name": "f", "arguments": "{}"}'
    assert found.tokens == [("Hi", -0.5, 0.25)]
    assert (found.reused, found.evaluated, found.finish) == (3, 4, "stop")


def test_shares_first_difference_margin_and_reuse() -> None:
    files = [
        kept("fresh", 1, answer("1", "It takes 5 days."), answer("2", "It is open."), answer("3", "Take the bus.")),
        kept(
            "alone", 1, answer("1", "It takes 6 days.", 5), answer("2", "It is open!", 5), answer("3", "Take the bus.")
        ),
        kept("alone", 2, answer("1", "It takes 6 days.", 5)),
    ]
    against, again = (one.figures() for one in comparisons(files, deterministic()))
    assert (against["way"], against["against"], against["prompts"]) == ("alone", "fresh", 3)
    assert against["classes"] == {"identical": 1, "whitespace-only": 0, "restore-noise": 1, "substantive": 1}
    assert against["substantive_of_divergent"] == 0.5
    assert against["first_diverging_token_median"] == pytest.approx(2.0)
    assert (against["near_ties"], against["margins"]) == (2, 2)
    assert (against["reused_tokens"], against["evaluated_tokens"]) == (10, 20)
    assert (again["way"], again["against"], again["divergent"]) == ("alone (again)", "alone", 0)
    assert again["substantive_of_divergent"] is None
    table = text([against, again])
    assert "50 %" in table
    assert "33 %" in table
    assert table in page([against, again], "about <this>")
    assert "about &lt;this&gt;" in page([against, again], "about <this>")


def test_files_are_read_in_their_order(tmp_path: Path) -> None:
    for name in ("b", "a"):
        (tmp_path / f"{name}.json").write_text(json.dumps({"name": name}))
    assert [file["name"] for file in read(tmp_path)] == ["a", "b"]
