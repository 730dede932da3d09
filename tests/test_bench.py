"""The benchmark's pure parts: its plan, what is kept, sums, checks, tables, pictures, and the judging of answers."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import bench
from benchmark import checks
from benchmark.cells import EVERY
from benchmark.cells import FLAGS
from benchmark.cells import FULL
from benchmark.cells import MODELS
from benchmark.cells import QUICK
from benchmark.cells import SIDES
from benchmark.cells import Cell
from benchmark.cells import Wanted
from benchmark.cells import in_order
from benchmark.cells import plan
from benchmark.compare import compare
from benchmark.damage import Answer
from benchmark.damage import agreement
from benchmark.damage import agreement_wanted
from benchmark.damage import damage
from benchmark.damage import markers
from benchmark.machine import session
from benchmark.plots import plots
from benchmark.results import Absence
from benchmark.results import Answers
from benchmark.results import Results
from benchmark.results import Run
from benchmark.results import load
from benchmark.results import save
from benchmark.summary import evaluated
from benchmark.summary import first_p95
from benchmark.summary import paired
from benchmark.summary import summed
from benchmark.summary import times_bound
from benchmark.tables import tables
from play import Played
from traffic import SCENARIOS
from traffic import Request
from traffic.request import user

CELL = Cell(flags="default", scenario="codex")
KEPT = "-np 16 -kvu --no-cache-idle-slots"


def run(side: str = "auto", evaluated: int = 100, cell: Cell = CELL, seed: int = 1, **changes: Any) -> Run:
    usual: dict[str, Any] = {
        "cell": cell,
        "side": side,
        "seed": seed,
        "session": 0,
        "requests": 10,
        "failed": 0,
        "prompt_tokens": 1000,
        "evaluated": evaluated,
        "bound": 100,
        "wall_s": 1.0,
        "first_p50_s": 0.1,
        "first_p95_s": 0.2,
        "wave_s": 0.3,
    }
    return Run(**(usual | changes))


def pair(auto: int, alone: int, cell: Cell = CELL, seed: int = 1, **changes: Any) -> list[Run]:
    return [run("alone", alone, cell, seed), run("auto", auto, cell, seed, **changes)]


class TestPlan:
    def test_all_that_is_to_be_shown_is_in_the_full_plan(self) -> None:
        planned = plan(FULL, Wanted())
        cells = [each.cell for each in planned]
        assert len(set(cells)) == len(cells)
        assert {cell.scenario for cell in cells} == {*SCENARIOS, "siblings"}
        for flags in FLAGS:
            for scenario in EVERY:
                for at_once in (1, 4):
                    assert Cell(flags=flags, scenario=scenario, at_once=at_once) in cells
        assert {cell.shape for cell in cells} == {"chat", "messages", "responses", "completion"}
        assert {cell.reply for cell in cells} == {8, 200}
        assert {cell.model for cell in cells} == set(MODELS)
        assert {side for each in planned for side in each.sides} == set(SIDES)

    def test_each_option_narrows_it(self) -> None:
        wanted = Wanted(axes={"flags": ("-np 4",), "at_once": (4,), "model": ("tiny",)}, sides=("alone", "pin"))
        planned = plan(FULL, wanted)
        assert planned
        assert {(each.cell.flags, each.cell.at_once, each.cell.model) for each in planned} == {("-np 4", 4, "tiny")}
        assert {each.sides for each in planned} == {("alone", "pin"), ("alone",)}

    def test_nothing_left_is_an_error(self) -> None:
        with pytest.raises(ValueError, match="--list"):
            plan(QUICK, Wanted(axes={"model": ("Gemma 3",)}))

    def test_the_build_is_that_of_every_cell(self) -> None:
        assert {each.cell.build for each in plan(QUICK, Wanted(build="xllamacpp"))} == {"xllamacpp"}

    def test_every_side_is_first_in_its_turn(self) -> None:
        assert [in_order(SIDES, seed)[0] for seed in range(len(SIDES))] == list(SIDES)
        assert all(sorted(in_order(SIDES, seed)) == sorted(SIDES) for seed in range(9))


class TestOptions:
    def test_names_and_numbers(self) -> None:
        line = ["--flags", "default,-np 4", "--at-once", "4", "--reply", "8,200", "--shapes", "chat", "--seeds", "3,1"]
        options = bench.parser().parse_args(line)
        assert options.seeds == (3, 1)
        assert bench.wanted(options).axes == {
            "flags": ("default", "-np 4"),
            "at_once": (4,),
            "reply": (8, 200),
            "shape": ("chat",),
        }

    @pytest.mark.parametrize(
        ("option", "value", "hint"),
        [
            ("--seeds", "a", "like 1,2,3"),
            ("--seeds", "1,1", "different"),
            ("--at-once", "0", "from 1 up"),
            ("--flags", "-np 5", "-np 4"),
            ("--scenarios", "none", "codex"),
            ("--sides", "toki", "auto"),
        ],
    )
    def test_what_is_wrong_is_said(
        self, option: str, value: str, hint: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        with pytest.raises(SystemExit) as stopped:
            bench.parser().parse_args([f"{option}={value}"])
        assert stopped.value.code == 2
        assert hint in capsys.readouterr().err

    def test_a_list_plays_nothing(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert bench.run(bench.parser().parse_args(["--quick", "--list", "--seeds", "1,2"])) == 0
        assert capsys.readouterr().out.splitlines()[-1] == "20 runs with 2 seeds"


class TestKept:
    def test_a_file_gives_back_what_was_kept(self, tmp_path: Path) -> None:
        results = Results(
            sessions=[session("--quick", 1)],
            runs=[*pair(10, 20, steered={"pinned": 3}), run("pin", 5, first_p95_s=None)],
            absences=[Absence(cell=CELL, side="callo", seed=1, session=0, reason="“no”")],
            answers=[Answers(cell=CELL, side="auto", seed=1, session=0, compared=9, differ=0, damaged=["x"])],
            costs={"choice ms, p50": 0.5},
        )
        path = tmp_path / "new" / "results.json"
        save(results, path)
        assert load(path) == results
        assert [file.name for file in path.parent.iterdir()] == ["results.json"]
        assert sum(line.startswith('{"cell"') for line in path.read_text().splitlines()) == 5  # a line for each run

    def test_nothing_is_kept_well_too(self, tmp_path: Path) -> None:
        save(Results(), tmp_path / "empty.json")
        assert load(tmp_path / "empty.json") == Results()

    @pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 0}', '{"format": 1, "runs": [{"cell": {}}]}'])
    def test_a_file_of_something_else_is_refused(self, text: str, tmp_path: Path) -> None:
        (tmp_path / "odd.json").write_text(text)
        with pytest.raises(ValueError, match=r"odd\.json holds no results"):
            load(tmp_path / "odd.json")

    def test_what_is_measured_or_known_to_be_absent_is_not_played_again(self) -> None:
        results = Results(runs=[run()], absences=[Absence(cell=CELL, side="callo", seed=2, session=0, reason="no")])
        assert results.has(CELL, "auto", 1)
        assert results.has(CELL, "callo", 2)
        assert not results.has(CELL, "auto", 2)
        assert not results.has(CELL, "alone", 1)
        assert not results.has(replace(CELL, at_once=4), "auto", 1)


class TestSums:
    def test_only_seeds_that_both_have_played_are_paired(self) -> None:
        found = paired([*pair(50, 100), run("auto", 1, seed=2), run("alone", 1, seed=3)], "auto")
        assert len(found) == 1
        assert found[0].ratios(evaluated) == [0.5]
        assert paired([run("auto")], "auto") == []

    def test_sums_are_of_medians(self) -> None:
        other = replace(CELL, scenario="aider")
        runs = [*pair(10, 100), *pair(20, 100, seed=2), *pair(900, 200, seed=3), *pair(80, 100, other)]
        assert summed(paired(runs, "auto"), evaluated) == pytest.approx((20 + 80) / (100 + 100))
        assert summed([], evaluated) is None

    def test_a_figure_that_is_missing_is_left_out(self) -> None:
        runs = [*pair(1, 1, first_p95_s=None), *pair(1, 1, seed=2, first_p95_s=0.1)]
        assert paired(runs, "auto")[0].ratios(first_p95) == [0.5]
        assert paired(runs[:2], "auto")[0].medians(first_p95) is None

    @given(st.lists(st.integers(1, 10**6), min_size=1))
    def test_the_bound_is_met_by_the_bound_itself(self, tokens: list[int]) -> None:
        assert times_bound([run("auto", n, bound=n, seed=n) for n in tokens]) == 1

    def test_random_traffic_has_no_bound(self) -> None:
        assert times_bound([run("auto", 500, replace(CELL, scenario="mixed"))]) is None
        assert times_bound([run("auto", 500, replace(CELL, scenario="mixed")), run("auto", 150)]) == 1.5


def check(results: Results, start: str) -> checks.Check:
    found = [one for one in checks.checks(results) if one.name.startswith(start)]
    assert len(found) == 1, [one.name for one in found]
    return found[0]


class TestChecks:
    def test_nothing_measured_is_neither_held_nor_missed(self) -> None:
        found = checks.checks(Results())
        assert {one.held for one in found} == {None}
        assert len({one.name for one in found}) == len(found)
        assert list(checks.lines(found))[-1] == f"0 of {len(found)} checks hold, 0 fail, {len(found)} were not measured"

    @pytest.mark.parametrize(("auto", "held"), [((102, 90, 500), True), ((103, 103, 1), False)])
    def test_every_cell_by_its_median(self, auto: tuple[int, ...], held: bool) -> None:
        runs = [one for seed, tokens in enumerate(auto) for one in pair(tokens, 100, seed=seed)]
        found = check(Results(runs=runs), "in turn, every cell")
        assert found.held is held
        assert ("codex" in found.figures) is not held

    def test_one_losing_cell_is_enough(self) -> None:
        runs = [*pair(1, 100), *pair(110, 100, replace(CELL, flags="-np 1"))]
        assert check(Results(runs=runs), "in turn, every cell").held is False

    def test_several_at_once_may_lose_a_cell_but_not_the_sum_of_a_flag_set(self) -> None:
        cell = replace(CELL, at_once=4)
        runs = [*pair(150, 100, cell), *pair(40, 100, replace(cell, scenario="aider"))]
        assert check(Results(runs=runs), "at once, answers of 8: evaluated").held is True
        assert check(Results(runs=runs), "at once, answers of 200: evaluated").held is None
        runs += pair(150, 100, replace(cell, flags="-np 1"))
        found = check(Results(runs=runs), "at once, answers of 8: evaluated")
        assert found.held is False
        assert "-np 1 1.500 (missed)" in found.figures

    @pytest.mark.parametrize(("wall_s", "held"), [(1.05, True), (1.06, False)])
    def test_wall_time(self, wall_s: float, held: bool) -> None:
        runs = pair(1, 1, replace(CELL, at_once=4), wall_s=wall_s)
        assert check(Results(runs=runs), "at once, answers of 8: wall").held is held

    @pytest.mark.parametrize(
        ("flags", "at_once", "evaluated", "start", "held"),
        [
            ("default", 1, 105, "in turn, default", True),
            ("default", 1, 106, "in turn, default", False),
            ("-np 4", 1, 105, "in turn, -np 4: ", False),
            (KEPT, 1, 104, f"in turn, {KEPT}: ", True),
            ("-np 4", 4, 130, "at once, -np 4: ", True),
            ("default", 4, 141, "at once, default: ", False),
        ],
    )
    def test_near_the_bound(self, flags: str, at_once: int, evaluated: int, start: str, held: bool) -> None:
        runs = pair(evaluated, 250, replace(CELL, flags=flags, at_once=at_once))
        assert check(Results(runs=runs), start).held is held

    def test_without_a_ram_cache_the_basic_scenarios_count(self) -> None:
        cell = Cell(flags="-np 4 -cram 0", scenario="shared-preamble")
        runs = [*pair(232, 400, cell), *pair(900, 900, replace(cell, scenario="codex"))]
        assert check(Results(runs=runs), "in turn, basic scenarios, -np 4").held is True
        assert check(Results(runs=pair(233, 400, cell)), "in turn, basic scenarios, -np 4").held is False

    def test_a_small_ram_cache(self) -> None:
        runs = [*pair(60, 100, replace(CELL, flags="-cram 1")), *pair(61, 100, replace(CELL, flags="-cram 6"))]
        found = check(Results(runs=runs), "in turn, -cram")
        assert found.held is False
        assert found.figures == "-cram 1 0.600; -cram 6 0.610 (missed)"

    def test_the_shared_document(self) -> None:
        cell = Cell(flags="default", scenario="same-document", at_once=4, scale=2.0)
        runs = pair(30, 100, cell, wave_s=0.15)
        assert check(Results(runs=runs), "one document of 8,000 tokens, four at once: evaluated").held is True
        assert check(Results(runs=runs), "one document of 8,000 tokens, four at once: time").held is False

    def test_other_shapes_have_room_of_a_tenth(self) -> None:
        cell = replace(CELL, shape="messages")
        assert check(Results(runs=pair(115, 200, cell)), "messages, in turn").held is True
        assert check(Results(runs=pair(116, 200, cell)), "messages, in turn").held is False
        assert check(Results(runs=pair(116, 200, cell)), "responses, in turn").held is None

    def test_real_models(self) -> None:
        cell = Cell(model="Gemma 3", flags="-np 4", scenario="siblings")
        results = Results(runs=pair(65, 100, cell, wall_s=0.9, first_p95_s=0.3))
        assert check(results, "Gemma 3, siblings").held is True
        assert check(results, "Gemma 3: wall time improves").held is True
        assert check(results, "Gemma 3: first token p95").held is False
        assert check(results, "SmolLM2: wall time improves").held is None

    def test_runs_that_end_early_and_requests_that_fail(self) -> None:
        start = "no run ends early"
        assert check(Results(runs=pair(1, 1)), start).held is True
        assert check(Results(runs=pair(1, 1, failed=2)), start).held is False
        broken = [Absence(cell=CELL, side="auto", seed=1, session=0, reason="died")]
        assert check(Results(runs=pair(1, 1), absences=broken), start).held is False
        absent = [replace(broken[0], side="callo")]
        assert check(Results(runs=pair(1, 1), absences=absent), start).held is True

    def test_damaged_answers(self) -> None:
        fine = Answers(cell=CELL, side="auto", seed=1, session=0, compared=70, differ=3, damaged=[])
        assert check(Results(answers=[fine]), "at once, no answer").held is True
        bad = replace(fine, damaged=["agent-1 (turn): cut"])
        found = check(Results(answers=[fine, bad]), "at once, no answer")
        assert found.held is False
        assert "1 of 140 answers" in found.figures
        assert "cut" in found.figures

    @pytest.mark.parametrize(("ms", "held"), [(0.9, True), (1.1, False)])
    def test_the_cost_of_a_choice(self, ms: float, held: bool) -> None:
        assert check(Results(costs={"choice ms, p50": ms}), "the choice costs").held is held


class TestOutput:
    def test_losses_stand_out(self) -> None:
        slow = replace(CELL, at_once=4)
        results = Results(runs=[*pair(103, 100), *pair(1, 100, slow, wall_s=1.06), *pair(1, 100, slow, seed=2)])
        marked = [line for line in tables(results) if "<< WORSE" in line]
        assert len(marked) == 1
        assert marked[0].split()[0] == "auto"
        assert marked[0].endswith("<< WORSE: evaluated")
        results.runs += pair(1, 100, slow, seed=3, wall_s=1.06)
        assert [line for line in tables(results) if line.endswith("<< WORSE: wall")]

    def test_everything_that_was_measured_is_there(self) -> None:
        results = Results(
            runs=[*pair(50, 100, steered={"pinned": 4}), *pair(70, 100, seed=2, steered={"swapped": 1}, failed=3)],
            absences=[Absence(cell=CELL, side="callo", seed=n, session=0, reason="no wheel") for n in (1, 2)],
            answers=[Answers(cell=CELL, side="auto", seed=1, session=0, compared=70, differ=3, damaged=["cut short"])],
        )
        text = "\n".join(tables(results))
        assert "== tiny, chat, in turn, answers of 8: default   (seeds 1, 2)" in text
        assert "pinned 2 swapped 0" in text
        assert "3 FAILED" in text
        assert "callo, default (2 runs): no wheel" in text
        assert "70 compared, 3 differ in their text, 1 damaged" in text
        assert "cut short" in text
        auto = next(line.split() for line in text.splitlines() if line.split()[:1] == ["auto"])
        assert auto[1:7] == ["60", "60", "70", "0.600", "0.600", "0.70"]

    @pytest.mark.slow
    def test_pictures(self, tmp_path: Path) -> None:
        runs = [*pair(50, 100), *pair(110, 100, replace(CELL, flags="-np 4", scenario="aider")), run("pin", 80)]
        written = plots(Results(runs=runs), tmp_path / "b")
        assert {path.name for path in written} == {
            f"b-tiny-chat-in-turn-answers-of-8{suffix}.{kind}" for suffix in ("", "-cells") for kind in ("png", "svg")
        }
        assert all(path.stat().st_size > 1000 for path in written)
        cells = next(path for path in written if path.name.endswith("-cells.svg")).read_text()
        assert "1.10" in cells
        assert "aider" in cells
        before = {path: path.read_bytes() for path in written if path.suffix == ".svg"}
        plots(Results(runs=runs), tmp_path / "b")
        assert {path: path.read_bytes() for path in before} == before

    @pytest.mark.slow
    def test_without_toki_there_is_no_map_of_its_cells(self, tmp_path: Path) -> None:
        assert len(plots(Results(runs=[run("alone")]), tmp_path / "b")) == 2

    def test_two_results_side_by_side(self) -> None:
        one = Results(sessions=[{"commit": "aaa"}], runs=[*pair(50, 100), *pair(50, 100, seed=2)])
        other = Results(sessions=[{"commit": "bbb"}], runs=pair(60, 100, seed=2))
        text = "\n".join(compare(one, other))
        assert "A: commit aaa" in text
        assert "B: commit bbb" in text
        assert "2 cells and sides with seeds in common; of 2 in A, 2 in B" in text
        assert "1.200" in text
        changed = text.split("\n\n")[-1].splitlines()
        assert changed[0].startswith("1 cells changed")
        assert changed[1].startswith("auto: tiny, chat, in turn, answers of 8, default, codex")

    @pytest.mark.slow
    def test_a_kept_file_is_reported_and_checked(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        path = tmp_path / "kept.json"
        save(Results(runs=pair(110, 100)), path)
        assert bench.run(bench.parser().parse_args(["--report", str(path)])) == 0
        assert bench.run(bench.parser().parse_args(["--report", str(path), "--check"])) == 1
        assert "FAIL in turn, every cell" in capsys.readouterr().out
        assert bench.run(bench.parser().parse_args(["--compare", str(path), str(path)])) == 0

    def test_a_file_that_is_not_there_is_no_traceback(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setattr(sys, "argv", ["bench.py", "--report", "/nowhere.json"])
        assert bench.main() == 2
        assert "/nowhere.json" in capsys.readouterr().err


def played(text: str, finish: str | None = "length", tokens: int | None = 4, status: int = 200) -> Played:
    request = Request(
        session="agent-1",
        messages=(user("Conversation agent-1. What is new?"),),
        max_tokens=4,
        kind="turn",
    )
    return Played(
        request=request,
        form="chat",
        status=status,
        sent_at=0.0,
        first_byte_s=0.1,
        total_s=0.2,
        reply_text=text,
        prompt_tokens=10,
        reused=0,
        evaluated=10,
        reply_tokens=tokens,
        slot=None,
        aborted=False,
        finish=finish,
    )


NAMES = {"agent-1", "agent-11", "agent-2"}


class TestDamage:
    @pytest.mark.parametrize(
        ("one", "reference", "least", "hint"),
        [
            (played("ABCD"), Answer("length", 4, "ABCD"), 1.0, None),
            (played("ABXY"), Answer("length", 4, "ABCD"), 0.0, None),
            (played("ABXY"), Answer("length", 4, "ABCD"), 1.0, "alone 'ABCD'"),
            (played("ABXY"), Answer("length", 4, "ABCD"), 0.5, None),
            (played("AXYZ"), Answer("length", 4, "ABCD"), 0.5, "alone 'ABCD'"),
            (played("AB", "stop", 2), Answer("length", 4, "ABCD"), 0.0, "ended by 'stop'"),
            (played("AX", "stop", 2), Answer("length", 4, "ABCD"), 0.0, None),
            (played("AX", "length", 2), Answer("length", 4, "ABCD"), 0.0, "2 tokens where 4 were wanted"),
            (played("", None, None), Answer("length", 4, "ABCD"), 0.0, "no regular end"),
            (played("", "length", 4, 500), Answer("length", 4, ""), 0.0, "status 500"),
            (played("of agent-2!"), Answer("length", 4, "of me"), 0.0, "'agent-2'"),
            (played("of agent-2!"), Answer("length", 4, "of agent-2?"), 0.0, None),
            (played("of agent-1!"), Answer("length", 4, "of me"), 0.0, None),
            (played("of agent-22!"), Answer("length", 4, "of me"), 0.0, None),
        ],
    )
    def test_what_is_wrong_is_said(self, one: Played, reference: Answer, least: float, hint: str | None) -> None:
        found = list(damage(one, reference, NAMES, least))
        assert len(found) == (hint is not None)
        assert all(line.startswith("agent-1 (turn): ") for line in found)
        if hint:
            assert hint in found[0]

    @pytest.mark.parametrize(
        ("flags", "model", "least"),
        [
            ("default", "tiny", 0.5),
            ("-np 4", "tiny", 1.0),
            ("-np 1", "tiny", 1.0),
            (KEPT, "tiny", 0.5),
            ("-cram 1", "tiny", 0.5),
            ("-np 4", "SmolLM2", 0.0),
        ],
    )
    def test_how_much_must_agree(self, flags: str, model: str, least: float) -> None:
        assert agreement_wanted(Cell(model=model, flags=flags, scenario="codex")) == least

    @given(st.text("AB"), st.text("AB"))
    def test_agreement_is_a_share(self, one: str, other: str) -> None:
        assert 0 <= agreement(one, other) <= 1
        assert (agreement(one, other) == 1) == (one == other)

    def test_conversations_name_themselves(self) -> None:
        assert markers(played("").request) == {"agent-1"}
        run = SCENARIOS["shared-preamble"].start(1, scale=0.1)
        names: set[str] = set()
        while (request := run.take()) is not None:
            names |= markers(request)
            run.answer(request.session, "yes")
        assert names == {f"agent-{number}" for number in range(1, 7)}
