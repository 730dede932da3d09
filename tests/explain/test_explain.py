"""What holds for findings whatever the traffic: bounds, words, and no word of a prompt where none may be."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path

import pytest
from tests.engine.test_purity import ALLOWED
from tests.explain.cases import load
from tests.explain.cases import play
from tests.explain.cases import tokenize
from tests.explain.cases import words

import toki.inspect
from toki.engine.events import Measured
from toki.inspect import comparison
from toki.inspect import explain
from toki.inspect.comparison import Prompt
from toki.inspect.comparison import compare
from toki.inspect.explain import Explainer
from toki.inspect.explain import Memory
from toki.inspect.finding import REMEDIES
from toki.inspect.finding import WHAT
from toki.inspect.finding import Block
from toki.inspect.finding import Cause
from toki.inspect.finding import Diff
from toki.inspect.finding import Finding
from toki.inspect.finding import Part
from toki.inspect.finding import Remedy
from toki.inspect.finding import duration
from toki.inspect.finding import ordinal
from toki.inspect.finding import what
from toki.inspect.outline import of_text

PURE = ("changes", "comparison", "explain", "finding", "losses", "outline", "texts", "volatile")
ALSO = {"contextlib", "re", "toki.inspect"}


def prompt(key: int, text: str) -> Prompt:
    return Prompt(key, of_text(text), text, tokenize(text))


@pytest.mark.parametrize("name", PURE)
def test_explain_is_pure(name: str) -> None:
    source = (Path(toki.inspect.__file__).parent / f"{name}.py").read_text(encoding="utf-8")
    for node in ast.walk(ast.parse(source)):
        modules = [one.name for one in node.names] if isinstance(node, ast.Import) else []
        modules += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        for module in modules:
            assert any(module == one or module.startswith(f"{one}.") for one in ALLOWED | ALSO), module


def test_memory_is_bounded_in_bytes_and_in_number() -> None:
    size = prompt(1, words(500, "text0")).memory
    for memory, most in ((Memory(most_bytes=4 * size), 4), (Memory(most=3), 3), (Memory(most_bytes=size // 2), 0)):
        for key in range(10):
            memory.add(compare(prompt(key, words(500, f"text{key}")), memory.prompts))
        kept = [one.prompt.key for one in memory.prompts]
        assert len(kept) in (most, most - 1)
        assert kept == list(range(10 - len(kept), 10))
        assert memory.size <= max(4 * size, memory.size if most == 3 else 0)


def test_of_a_growing_conversation_only_the_latest_prompt_is_kept() -> None:
    memory = Memory()
    for key in range(5):
        memory.add(compare(prompt(key, words(100, "head") + words(50 * key, "talk")[: 200 * key]), memory.prompts))
    assert [one.prompt.key for one in memory.prompts] == [4]


def test_the_number_of_causes_and_requests_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(explain, "KEPT_CAUSES", 3)
    monkeypatch.setattr(explain, "KEPT_REQUESTS", 5)
    explainer = Explainer()
    for key in range(1, 41):
        text = f"It is 10:{key % 60:02}:00.\n{words(200, f'text{key // 2}')}"
        comparison = compare(prompt(key, text), explainer.memory.prompts)
        explainer.memory.add(comparison)
        explainer.conclude(comparison, Measured(prompt_tokens=250, reused=4, evaluated=246), None)
    before = len(explainer.causes), len(explainer.memory.prompts)
    explainer.forget()
    assert (before, len(explainer.causes), len(explainer.memory.prompts)) == ((3, 40), 0, 0)


@pytest.mark.parametrize("case", [case for case in load() if case.expect], ids=lambda case: case.name)
def test_findings_are_within_what_was_evaluated_and_say_no_word_of_the_prompt(case: object) -> None:
    _, found = play(case)  # type: ignore[arg-type]
    for finding in (finding for each in found for finding in each):
        assert finding.tokens >= comparison.LEAST
        assert finding.seconds is None or finding.seconds == pytest.approx(finding.tokens * 0.002)
        bare = Finding(
            finding.cause, finding.block, finding.tokens, finding.seconds, finding.times, finding.remedy, finding.hint
        )
        assert replace(finding, diff=None, detail="", against=None) == bare
        if finding.diff is not None and finding.diff.token is not None:
            assert finding.diff.was_id != finding.diff.now_id
            assert finding.diff.was != finding.diff.now
        for word in finding.verdict.split():
            assert not (finding.diff and word.strip(".,;:()") in finding.diff.before.split() and len(word) > 9), word


def test_every_cause_has_words_and_a_remedy() -> None:
    assert set(WHAT) == set(REMEDIES) == set(Cause)
    for cause in Cause:
        for block in (None, *(Block(part, 3) for part in Part), Block(Part.SYSTEM, 0), Block(Part.USER)):
            assert "{" not in what(cause, block)


def test_a_verdict_is_one_line_with_cost_cause_times_and_remedy() -> None:
    finding = Finding(Cause.CLOCK, Block(Part.SYSTEM, 0), 58_112, 19.4, 3, Remedy.REWRITE, "freeze it")
    assert finding.verdict == "58,112 tokens read again (19.4 s): a clock in the system text, 3rd time; freeze it"
    once = replace(finding, times=1, seconds=None, detail="so it is")
    assert once.verdict == "58,112 tokens read again: a clock in the system text (so it is); freeze it"


def test_the_word_that_differs() -> None:
    diff = Diff("rules\nNow: 2026-03-10T09:15:0", "1Z\nmore", "2Z\nmore")
    assert diff.words == ("2026-03-10T09:15:01Z", "2026-03-10T09:15:02Z")
    assert Diff("a ", " b", "").words == ("", "")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 ms"), (0.1804, "180 ms"), (0.9999, "1.0 s"), (4.2, "4.2 s"), (99.94, "99.9 s"), (180, "3 min")],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_ordinals() -> None:
    assert [ordinal(n) for n in (1, 2, 3, 4, 11, 12, 13, 21, 102, 111)] == [
        "1st", "2nd", "3rd", "4th", "11th", "12th", "13th", "21st", "102nd", "111th",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "text",
    [
        "-" * 20_000 + "{} x",
        "1," * 10_000 + "{}x",
        "<think>" * 20_000 + "{}",
        "<|im_start|>user\n" * 20_000 + "{}",
        "a_" * 10_000 + "{}\n" + "\n".join("same line" for _ in range(5_000)),
        "\n".join(f"{{}} line {n % 7}" for n in range(3_000)),
        " " * 20_000 + "{}<a>" + "</a>" * 5_000,
        "<think></think>" * 20_000 + "{}",
    ],
    ids=range(8),
)
def test_hostile_texts_take_no_longer_than_others(text: str) -> None:
    texts = [f"{words(20, 'start')}\n{text.replace('{}', str(key))}{words(100, 'tail')}" for key in (1, 2)]
    first, second = (prompt(key, each) for key, each in enumerate(texts, 1))
    memory = Memory()
    memory.add(compare(first, memory.prompts))
    found = compare(second, memory.prompts)
    assert found.against is first
    assert found.shared is not None
