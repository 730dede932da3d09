"""What flags and a model file say of a server. Real servers: tests/live/test_facts.py."""

from __future__ import annotations

import logging
import os
import shlex
import time
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servers import tiny_model
from toki import facts as module
from toki.engine.rules import UNLIMITED
from toki.engine.rules import Known
from toki.engine.rules import hypotheses
from toki.engine.window import Window
from toki.facts import find_out
from toki.facts import known
from toki.flags import parse_flags
from toki.gguf import Header
from toki.gguf import Layer
from toki.server import Props

PROPS = Props(4, 8192, "b1-x", "", "", "", "", False, {}, "", False)
ELSEWHERE = "http://192.0.2.1:8080"
HERE = "http://127.0.0.1:9"  # nothing listens there
FULL = Header("llama", 32768, 0, (Layer(1024, 1024, windowed=False),) * 32)  # 131,084 bytes a token
SLIDING = Header(
    "gemma3", 32768, 512, tuple(Layer(256, 256, windowed=layer % 6 < 5) for layer in range(18))
)  # 3,084 bytes a token, 15,372 in the window
STRANGE = Header("mamba2", 32768, 0, None)
DEFAULT = Known(unified=True, idle_save=True, sps=0.1)


def read(line: str, header: Header | None = None, props: Props = PROPS) -> Known:
    return known(props, parse_flags(shlex.split(line), {}), header)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("", DEFAULT),
        ("-m 'a model.gguf' --unheard-of", DEFAULT),
        ("-np -1 -no-kvu", DEFAULT),  # observed on b10434: automatic is unified whatever else is said
        ("-np 4", replace(DEFAULT, unified=False)),
        ("-np 4 -kvu", DEFAULT),
        ("-sps 0", replace(DEFAULT, sps=0.0)),
        ("--cache-ram 0", replace(DEFAULT, idle_save=False, ram=0)),
        ("--cache-ram 64 --no-cache-idle-slots", replace(DEFAULT, idle_save=False)),
        ("-cram -1", replace(DEFAULT, ram=8192)),
        ("-np 4 -cram -1", replace(DEFAULT, unified=False, ram=4 * 8192)),
    ],
)
def test_flags_alone(line: str, expected: Known) -> None:
    assert read(line) == expected


@pytest.mark.parametrize(
    ("line", "pool"),
    [
        ("--kv-unified-per-slot 8192", 4 * 8192),  # without -c there is room for each slot's part
        ("--kv-unified-per-slot 8192 -c 20000", 20_224),  # rounded up to 256
        ("--kv-unified-per-slot 8192 -c 0", 32_768),  # the model's
        ("--kv-unified-per-slot 9000 -c 8192", None),  # the part is the whole
        ("--kv-unified-per-slot 4096", None),  # slots have more: the build does not know it
        ("--kv-unified-per-slot 8192 -np 4", None),  # split
        ("", None),
    ],
)
def test_slots_that_share_more_than_each_may_fill(line: str, pool: int | None) -> None:
    found = read(line, FULL)
    assert found.pool == pool
    assert hypotheses(4, PROPS.n_ctx, found)[0].pool == (UNLIMITED if "-np" in line else pool or PROPS.n_ctx)
    assert read(f"{line} -cram -1", FULL).ram == (4 * 8192 if "-np" in line else pool or 8192)


def test_an_older_build_that_has_one_slot_unless_told_otherwise() -> None:
    assert read("", props=replace(PROPS, total_slots=1)).unified is None


@pytest.mark.parametrize(
    ("line", "ram"),
    [
        ("", 8192 * 2**20 // 131_084),
        ("-cram 1000", 1000 * 2**20 // 131_084),
        ("-np 4 -cram 1000", 1000 * 2**20 // 131_084),
        ("-cram 1000 -ctk q8_0 -ctv q8_0", 1000 * 2**20 // (64 * 1024 // 32 * 34 + 12)),
        ("-ctk unheard-of", None),
        ("-md draft.gguf", None),
        ("--spec-type draft-mtp", None),
        ("--spec-type ngram-simple", 8192 * 2**20 // 131_084),
        ("-cram 0", 0),
    ],
)
def test_the_size_of_the_ram_cache(line: str, ram: int | None) -> None:
    found = read(line, FULL)
    assert (found.ram, found.ram_entry) == (ram, 0)


def test_a_cache_that_is_not_modelled_has_no_size() -> None:
    assert read("", STRANGE).ram is None
    assert read("-cram 0", STRANGE).ram == 0


@pytest.mark.parametrize(("line", "copies"), [("", 3), ("-ctxcp 1", 2), ("-ctxcp 0", 1), ("--swa-full", 1)])
def test_an_entry_holds_the_window_and_its_checkpoints(line: str, copies: int) -> None:
    found = read(line, SLIDING)
    assert found.ram == 8192 * 2**20 // 3084
    assert found.ram_entry == pytest.approx(copies * 512 * 15_372 / 3084, abs=1)


@pytest.mark.parametrize(
    ("line", "window"),
    [
        ("", Window(512)),
        ("-ub 64", Window(512, ubatch=64)),
        ("-b 256", Window(512, batch=256, ubatch=256)),
        ("-ub 0", Window(512, ubatch=2048)),
        ("-ctxcp 4 -cms 0", Window(512, most=4, min_step=0)),
        ("--swa-full", None),
    ],
)
def test_the_window(line: str, window: Window | None) -> None:
    assert read(line, SLIDING).window == window


def test_the_model_alone_tells_the_window_and_may_tell_of_split_slots() -> None:
    assert known(PROPS, None, None) == Known()
    assert known(replace(PROPS, n_ctx=4096, total_slots=8), None, SLIDING) == Known(unified=False, window=Window(512))
    assert known(PROPS, None, SLIDING) == Known(window=Window(512))  # 4 of 8,192: -np 4, or -c 8192 and no number
    assert known(replace(PROPS, n_ctx=32768), None, FULL) == Known(whole=True)
    assert read("--swa-full", SLIDING).whole
    assert not read("", STRANGE).whole
    assert not read("", replace(FULL, recurrent=True)).whole
    assert known(replace(PROPS, n_ctx=11008, total_slots=3), None, FULL).unified is False  # rounded up to 256
    assert known(replace(PROPS, total_slots=1), None, FULL).unified is None


# --- finding out --------------------------------------------------------------------------------


def test_what_the_user_says_comes_first() -> None:
    assert find_out("-np 4", ["-np", "4", "-kvu"], ELSEWHERE, PROPS).unified is False
    assert find_out("", ["-np", "4", "-kvu"], ELSEWHERE, PROPS).unified is True
    assert find_out("", [], ELSEWHERE, PROPS) == Known()


def test_one_line_says_what_was_found(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    find_out("-np 4 --api-key secret", [], HERE, replace(PROPS, model=str(tiny_model())))
    (said,) = said_by_toki(caplog)
    assert said == (
        "toki: the flags given as toki_server_flags and its model file say of the server: unified KV cache: no, "
        "idle slots saved: yes, RAM cache: 113,025,455 tokens, slot similarity: 0.1, window: none"
    )
    caplog.clear()
    find_out("", [], ELSEWHERE, PROPS)
    assert not said_by_toki(caplog)


def said_by_toki(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name.startswith("toki")]


def test_flags_of_another_server_are_not_used(caplog: pytest.LogCaptureFixture) -> None:
    assert find_out("-np 8 -cram 0", [], ELSEWHERE, PROPS) == Known()
    assert "the server has 4 slots" in caplog.text


def test_the_model_of_another_machine_is_not_looked_for() -> None:
    props = replace(PROPS, model=str(tiny_model()), n_ctx=32768, total_slots=8)
    assert find_out("", [], HERE, props) == Known(unified=False, whole=True)
    assert find_out("", [], ELSEWHERE, props) == Known()


def test_a_relative_model_is_looked_for_where_the_server_was_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cwd").mkdir()
    (tmp_path / "cwd" / "model.gguf").symlink_to(tiny_model())
    (tmp_path / "cmdline").write_bytes(b"llama-server\0-np\x004\0-cram\x001\0")
    monkeypatch.setattr(module, "local_process", lambda url: tmp_path)
    props = replace(PROPS, model="model.gguf")
    assert find_out("", [], HERE, props) == Known(False, True, 2**20 // 76, 1, sps=0.1, whole=True)
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path / "cwd")
    assert find_out("", [], HERE, props) == Known()  # here it would be another one's


def test_a_model_that_cannot_be_read(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "text").write_text("no model")
    for model in (tmp_path / "pipe", tmp_path / "text", tmp_path / "none", tmp_path, "/\0", "/" + "x" * 5000):
        caplog.clear()
        assert find_out("", [], HERE, replace(PROPS, model=str(model))) == Known()
        assert "model file can't be read" in caplog.text


@given(st.text(), st.lists(st.text(), max_size=4), st.text(), st.integers(0, 2**31), st.integers(0, 2**31))
def test_never_raises(model: str, args: list[str], url: str, slots: int, n_ctx: int) -> None:
    find_out("", args, url, replace(PROPS, model=model, total_slots=slots, n_ctx=n_ctx))


def test_takes_no_time() -> None:
    props = replace(PROPS, model=str(tiny_model()))
    times = []
    for _ in range(5):
        began = time.perf_counter()
        find_out("", [], HERE, props)
        times.append(time.perf_counter() - began)
    assert min(times) < 0.1


# --- hypotheses ---------------------------------------------------------------------------------


def test_what_is_known_leads_and_the_rest_stays_possible() -> None:
    said = Known(unified=False, idle_save=False, ram=5000, ram_entry=3, sps=0.3)
    first, *others = hypotheses(4, 2048, said)
    assert (first.unified, first.idle_save, first.ram, first.ram_entry, first.sps) == (False, False, 5000, 3, 0.3)
    assert {rules.sps for rules in others} == {0.3, 0.1, 0.0, 0.5}
    assert {rules.ram for rules in others} == {5000, 0}
    assert {(rules.unified, rules.pool) for rules in others} == {(True, 2048), (False, UNLIMITED)}
    assert len({first, *others}) == 1 + len(others)


def test_with_nothing_known_the_servers_defaults_lead() -> None:
    first, second, *others = hypotheses(4, 2048, Known())
    assert (first.unified, first.idle_save, first.ram, first.sps) == (True, True, UNLIMITED, 0.1)
    assert second == replace(first, unified=False, pool=UNLIMITED)
    assert len(others) == 16


def test_no_ram_cache_may_be_wrong_too() -> None:
    first, *others = hypotheses(4, 2048, Known(unified=False, idle_save=False, ram=0, sps=0.1))
    assert (first.ram, first.idle_save) == (0, False)
    assert {rules.ram for rules in others} == {0, UNLIMITED}


def test_a_window_is_shared_where_the_cache_is() -> None:
    found = hypotheses(4, 2048, Known(unified=True, window=Window(512)))
    assert found[0].window == Window(512, sharing=4)
    assert {rules.window for rules in found} == {
        Window(512, sharing=sharing, thins=thins) for sharing in (1, 4) for thins in (True, False)
    }
    assert hypotheses(1, 2048, Known())[0].window is None
