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
from divergence_report import actions
from divergence_report import comparisons
from divergence_report import page
from divergence_report import read
from divergence_report import text
from divergence_ways import WAYS
from divergence_ways import Answer
from divergence_ways import Pass
from divergence_ways import answer_of
from divergence_ways import body
from divergence_ways import failed
from divergence_ways import with_actions
from toki.divergence.meaning import deterministic

PASS = Pass("smollm2", "skulk", "fresh", 0.0, 1, 0)


def answer(prompt: str, said: str, reused: int = 0, action: str | None = None) -> dict[str, Any]:
    tokens = [[word, -0.5, 0.05] for word in said.split()]
    figures = {"reused": reused, "evaluated": 10 - reused, "finish": "length", "tokens": tokens}
    return {"prompt": prompt, "kind": "chat", "text": said, "action": action, **figures}


def kept(way: str, number: int, *answers: dict[str, Any]) -> dict[str, Any]:
    asked = {"model": "m", "build": "b", "way": way, "temperature": 0.0, "number": number, "part": 0}
    return {"pass": asked, "seconds": 1.0, "load": 0.0, "answers": list(answers)}


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


@pytest.mark.slow
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


def test_margins_that_the_server_does_not_tell_are_not_shown() -> None:
    texts = [("Yes or no", "Yes or so"), ("去故宫 二", "去故事 二"), ("Hi 故", "Hi so")]
    for number, kind in ((0, "chat"), (1, "chat"), (2, "chat"), (0, "json"), (0, "tools")):
        one, other = (answer("1", said) | {"kind": kind} for said in texts[number])
        (comparison,) = comparisons([kept("fresh", 1, one), kept("alone", 1, other)], deterministic())
        (pair,) = comparison.pairs
        assert pair.first is not None
        assert (pair.margin is not None) == (kind == "chat" and number == 0)


def test_how_far_the_first_token_shifts() -> None:
    one, same, other = answer("1", "Yes or no"), answer("1", "Yes or so"), answer("1", "No")
    same["tokens"][0][1] = -0.7
    for base, way, kind, expected in ((one, same, "chat", 0.2), (one, other, "chat", None), (one, same, "json", None)):
        files = [kept("fresh", 1, base | {"kind": kind}), kept("alone", 1, way)]
        (comparison,) = comparisons(files, deterministic())
        assert comparison.figures()["shift_median"] == (None if expected is None else pytest.approx(expected))
        assert comparison.figures()["shifts"] == (expected is not None)


def test_steered_requests_come_apart() -> None:
    files = [
        kept("fresh", 1, answer("1", "It is open."), answer("2", "Take the bus."), answer("3", "Go.")),
        kept("alone-cram0", 1, answer("1", "It is shut."), answer("2", "Take the train."), answer("3", "Go.")),
        kept(
            "toki-cram0",
            1,
            answer("1", "It is open.", action="pinned"),
            answer("2", "Take the tram.", action="passed"),
            answer("3", "Go.", action="pinned"),
        ),
    ]
    assert actions(files[2]) == {"pinned": 2, "passed": 1}
    assert actions(files[0]) == {}
    figures = [one.figures() for one in comparisons(files, deterministic())]
    found = {(one["way"], one["against"], one["steered"]): (one["divergent"], one["prompts"]) for one in figures}
    assert found == {
        ("alone-cram0", "fresh", False): (2, 3),
        ("toki-cram0", "fresh", False): (1, 3),
        ("toki-cram0", "alone-cram0", False): (2, 3),
        ("toki-cram0", "fresh", True): (0, 2),
        ("alone-cram0", "fresh", True): (1, 2),
        ("toki-cram0", "alone-cram0", True): (1, 2),
    }
    assert len([line for line in text(figures).splitlines() if line.startswith(("toki-cram0* ", "alone-cram0* "))]) == 3


def test_an_answer_gets_the_action_of_its_row() -> None:
    answers = [Answer(str(n), "chat", "", "stop", reused, 9, ()) for n, reused in enumerate((5, 0, 5))]
    rows = [
        {"reused": 5, "evaluated": 9, "action": "pinned"},
        {"reused": 5, "evaluated": 9, "action": "passed"},
        {"reused": 0, "evaluated": 9, "action": "swapped"},
    ]
    assert [one.action for one in with_actions(answers, rows)] == ["pinned", "swapped", "passed"]
    with pytest.raises(ValueError, match="2: no row with 5 reused and 9 evaluated tokens"):
        with_actions(answers, rows[::2])


def test_a_servers_error_is_an_answer_without_figures() -> None:
    broken = failed(prompts(0)[0], {"error": {"code": 500, "message": "Failed to parse input", "type": "server_error"}})
    assert (broken.text, broken.finish) == ("Failed to parse input", "error")
    rows: list[dict[str, Any]] = [
        {"reused": 0, "evaluated": 0, "action": "swapped"},
        {"reused": None, "evaluated": None, "action": "pinned"},
    ]
    assert [one.action for one in with_actions([broken], rows)] == ["pinned"]


def test_files_are_read_in_their_order(tmp_path: Path) -> None:
    for name in ("b", "a"):
        (tmp_path / f"{name}.json").write_text(json.dumps({"name": name}))
    assert [file["name"] for file in read(tmp_path)] == ["a", "b"]
