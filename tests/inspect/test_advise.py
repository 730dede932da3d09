"""Traces that are reconstructed from rows, and the grid of servers on which they are replayed."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from tests.inspect.recorded import chats
from tests.inspect.recorded import row
from tests.inspect.recorded import write

from toki.cli import main
from toki.engine.contents import Contents
from toki.engine.rules import Rules
from toki.engine.shadow import Shadow
from toki.engine.shadow import Wish
from toki.engine.tokens import Tokens
from toki.inspect.advise import RAM_GIB
from toki.inspect.advise import USUAL
from toki.inspect.advise import Setting
from toki.inspect.advise import advise
from toki.inspect.advise import predict
from toki.inspect.advise import rules_of
from toki.inspect.advise import text
from toki.inspect.records import requests
from toki.inspect.replay import replay
from toki.inspect.trace import reconstruct

ALONE = Rules(n_slots=1, ram=0)
ROOMY = Rules(n_slots=8, unified=False)


def test_common_prefixes_are_those_of_the_rows() -> None:
    rows = chats(1, 60)
    trace = reconstruct(rows)
    prompts = {step.key: step.prompt for step in trace.steps}
    for each in rows:
        assert prompts[each.id].length == each.prompt_tokens
        if each.parent is not None:
            assert trace.contents.lcp(prompts[each.id].place, prompts[each.parent].place) == each.shared
    assert (trace.unread, trace.left_out) == (0, 0)
    assert trace.bound == sum((each.prompt_tokens or 0) - each.shared for each in rows)


def test_a_replay_is_what_the_shadow_says_of_the_tokens_themselves() -> None:
    contents = Contents()
    shadow = Shadow(Rules(n_slots=2, unified=False, ram=4000), contents)
    rows, evaluated = chats(2, 80), 0
    lists: dict[int, list[int]] = {}
    for each in rows:
        assert each.prompt_tokens
        own = range(1_000_000 * each.id, 1_000_000 * each.id + each.prompt_tokens + 20 - each.shared)
        lists[each.id] = [*(lists[each.parent][: each.shared] if each.parent else []), *own]
        prompt = contents.hold(contents.add(Tokens.of(lists[each.id])), each.prompt_tokens, each.prompt_tokens)
        launch = shadow.launch(Wish(each.id, prompt))
        assert launch
        evaluated += prompt.length - launch.reuse.likely
        shadow.finish(each.id, 20)
    assert replay(reconstruct(rows), shadow.rules).evaluated == evaluated


def test_an_endless_cache_is_the_bound() -> None:
    trace = reconstruct(chats(3, 80))
    roomy = replay(trace, replace(ROOMY, n_slots=80)).evaluated
    assert trace.bound <= roomy <= replay(trace, ALONE).evaluated


def test_requests_beside_each_other_keep_slots_busy() -> None:
    """Two conversations at once on one slot: each request waits, and drives the other's contents out."""
    first, second = (replace(one, at=0.0, parent=None, shared=0, total_ms=60_000.0) for one in chats(1, 2, 1))
    later = [
        replace(one, id=one.id + 2, at=100.0, parent=one.id, shared=one.prompt_tokens or 0) for one in (first, second)
    ]
    rows = [first, second, *later]
    total = sum(one.prompt_tokens or 0 for one in rows)
    assert replay(reconstruct(rows), ALONE).evaluated > total - (second.prompt_tokens or 0)
    assert (
        replay(reconstruct(rows), replace(ALONE, n_slots=2)).evaluated
        <= sum((one.prompt_tokens or 0) for one in rows[:2]) + 2
    )


def test_rows_that_tell_little() -> None:
    rows = chats(4, 30)
    rows[7] = replace(rows[7], prompt_tokens=None)
    rows[9] = replace(rows[9], status=None)
    rows[11] = replace(rows[11], parent=None, shared=0, predicted=None, alone=None)
    trace = reconstruct(rows[1:])  # the preamble's first row was deleted
    assert trace.left_out == 2
    assert trace.unread == 1
    assert len(trace.steps) == 27
    orphans = [step.prompt.place for step, each in zip(trace.steps, rows[1:], strict=False) if each.parent == 1][:2]
    assert trace.contents.lcp(*orphans) == 300


def test_a_prompt_beyond_the_context_is_refused() -> None:
    trace = reconstruct(chats(5, 30))
    found = replay(trace, replace(ROOMY, n_ctx=1000))
    assert found.refused == sum(step.prompt.length >= 1000 for step in trace.steps) > 0


def test_what_need_not_be_replayed_is_the_same() -> None:
    trace = reconstruct(chats(6, 60))
    small = replace(USUAL, layers=(USUAL.layers or ())[:1] * 3000)  # 12 MB a token: 1 GiB holds 87
    for one in predict(trace, small, 32 * 4096):
        found = replay(trace, rules_of(one.setting, small, 32 * 4096))
        assert (one.evaluated, one.refused) == (found.evaluated, found.refused), one.setting


def test_flags_become_rules() -> None:
    own, shared = (rules_of(Setting(4, 8192, unified), USUAL, 65_536) for unified in (False, True))
    assert (own.n_ctx, own.unified, own.idle_save, own.clears) == (16_384, False, True, False)
    assert (shared.n_ctx, shared.pool, shared.clears) == (65_536, 65_536, True)
    assert own.ram == pytest.approx(65_536, rel=0.001)
    assert rules_of(Setting(4, 0, False), USUAL, None).ram == 0


def test_the_cheapest_of_the_best_is_advised() -> None:
    advice = advise(chats(7, 80), None, None, {})
    least = min(one.evaluated for one in advice.grid)
    assert advice.best.evaluated <= 1.02 * least
    better = [one for one in advice.grid if one.evaluated <= 1.02 * least]
    assert advice.best.setting.ram_mib == min(one.setting.ram_mib for one in better)
    assert advice.worthwhile
    assert advice.assumed == "128 KiB of cache for a token and room in every slot"
    with pytest.raises(ValueError, match="no request was recorded"):
        advise([], None, None, {})


def test_toki_s_own_requests_count_as_recorded() -> None:
    rows = chats(7, 80)
    plain, more = (advise(rows, None, None, own) for own in ({}, {rows[0].id: 700, rows[1].id: 60, 10**6: 5}))
    assert more.recorded.evaluated == plain.recorded.evaluated + 760


def test_a_server_that_refuses_prompts_is_no_advice() -> None:
    advice = advise(chats(7, 80), None, 1000, {})
    assert advice.best.refused > 0
    assert not advice.worthwhile
    assert text(advice).endswith(f" evaluated tokens, and {advice.best.refused} requests refused")


@pytest.mark.slow
def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    turns = [row(1)] + [
        row(key, conversation=1, parent=key - 1, shared=1019 + 60 * (key - 2), prompt_tokens=1000 + 60 * (key - 1))
        for key in range(2, 12)
    ]
    path = write(tmp_path / "toki.db", turns)
    assert [one.shared for one in requests(path)] == [0, *(one.shared for one in turns[1:])]

    picture = tmp_path / "advice.png"
    assert main(["advise", "--db", str(path), "--plot", str(picture)]) == 1
    said = capsys.readouterr().out
    assert said.startswith("11 requests with 14,300 prompt tokens\n")
    assert "-np" in said
    assert "\nleast for its price: -np 1 --cache-ram 0: 1,410 evaluated tokens\n" in said
    assert picture.read_bytes().startswith(b"\x89PNG")

    assert main(["advise", "--db", str(path), "--json", "--ctx", "65536", "--latest", "5"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["recorded"]["requests"] == 5
    assert found["best"]["flags"] == "-np 1 --cache-ram 0"
    assert len(found["predicted"]) == 11 * len(RAM_GIB)


def test_command_without_matplotlib(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    path = write(tmp_path / "toki.db", [row(1)])
    assert main(["advise", "--db", str(path), "--plot", str(tmp_path / "advice.png")]) == 0
    output, errors = capsys.readouterr()
    assert "least for its price" in output
    assert "no plot without matplotlib" in errors


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--db", "nowhere.db"], "there is no database at nowhere.db"),
        (["--db", __file__], "can't be read as toki's database: file is not a database"),
        (["--model", __file__], "not a GGUF file"),
        (["--since", "1s"], "no request was recorded"),
    ],
)
def test_command_could_not_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    path = write(tmp_path / "toki.db", [row(1)])
    assert main(["advise", "--db", str(path), *arguments]) == 2
    assert said in capsys.readouterr().err
