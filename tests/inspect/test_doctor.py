"""The doctor's judgement on facts that were made up: each rule once, on its own."""

from __future__ import annotations

import shlex
import subprocess
from dataclasses import replace

import pytest

from toki.engine.rules import Known
from toki.engine.rules import Rules
from toki.facts import known
from toki.flags import ServerFlags
from toki.flags import parse_flags
from toki.gguf import Header
from toki.gguf import Layer
from toki.inspect.doctor import Diagnosis
from toki.inspect.doctor import Facts
from toki.inspect.doctor import Grade
from toki.inspect.doctor import Verdict
from toki.inspect.doctor import diagnose
from toki.inspect.probes import Came
from toki.inspect.probes import Probed
from toki.inspect.records import Checked
from toki.inspect.records import WorkingSet
from toki.server import Props

MODEL = Header("llama", 131_072, 0, (Layer(1024, 1024, False),) * 32)  # 128 KiB a token
GIB = 2**30


def props(slots: int = 4, n_ctx: int = 32_768) -> Props:
    return Props(slots, n_ctx, "b11549", "/models/m.gguf", "{{ messages }}", "", "", False, {}, "", False)


def server(words: str, slots: int = 4, n_ctx: int = 32_768, header: Header | None = MODEL) -> Facts:
    """A server that was started with these words, as its process shows."""
    said, flags = props(slots, n_ctx), parse_flags(shlex.split(words), {})
    return Facts(
        url="http://127.0.0.1:8080",
        props=said,
        flags=flags,
        source="the flags of its process",
        words=shlex.split(words),
        header=header,
        known=known(said, flags, header),
        unprobed="they were not allowed",
    )


GOOD = server("-m m.gguf -np 4 -c 131072 --cache-ram 32768")


def test_flags_of_the_environment_are_part_of_the_command() -> None:
    command = diagnose(replace(server("-m m.gguf -cram 0"), environment={"LLAMA_ARG_NO_MMAP": "1 2"})).command
    assert command.startswith("LLAMA_ARG_NO_MMAP='1 2' llama-server ")


def found(diagnosis: Diagnosis, what: str) -> str:
    """The one finding that starts so, whole."""
    lines = [str(finding) for finding in diagnosis.findings if finding.what.startswith(what)]
    assert len(lines) == 1, [str(finding) for finding in diagnosis.findings]
    return lines[0]


def flags_of(command: str) -> ServerFlags:
    program, *words = shlex.split(command)
    assert program == "llama-server"
    return parse_flags(words, {})


def test_a_good_server_gets_no_command() -> None:
    diagnosis = diagnose(GOOD)
    assert diagnosis.verdict is Verdict.GOOD
    assert diagnosis.lines()[0].startswith("verdict: good — ")
    assert not [line for line in diagnosis.lines() if line.startswith("llama-server ")]
    assert {finding.grade for finding in diagnosis.findings} == {Grade.NOTE}
    assert "does steering help: yes" in str(diagnosis.findings)


def test_every_finding_is_one_line() -> None:
    for facts in (GOOD, server("-m m.gguf"), server("-np 1 -cram 0", 1)):
        assert not [line for line in diagnose(facts).lines() if "\n" in line]


def test_words_of_several_lines_stay_in_one() -> None:
    template = "a\nb's \\d\x85 \u2028"
    facts = replace(server("-np 1 -cram 32768", 1), words=("--chat-template", template, "-np", "1"))
    facts = replace(facts, props=replace(props(1), build="b1\x1b[2J\n"))
    lines = diagnose(facts).lines()
    assert all(line.isprintable() for line in lines)
    said = subprocess.run(["bash", "-c", f"printf '%s|' {lines[-1]}"], capture_output=True, check=True).stdout.decode()
    assert said.startswith(f"llama-server|--chat-template|{template}|")


def test_idle_clearing() -> None:
    facts = replace(
        server("-m m.gguf --port 9 --api-key hush --cache-ram 40960", n_ctx=131_072),
        probed=Probed(rules=Rules(n_ctx=131_072), sent=17, cleared=True, back=Came(1000, 1024)),
    )
    diagnosis = diagnose(facts)
    assert diagnosis.verdict is Verdict.IMPROVABLE
    line = found(diagnosis, "every request clears")
    assert "a slot was empty after the next request, and 1,000 of 1,024 tokens came back" in line
    better = flags_of(diagnosis.command)
    assert (better.parallel, better.kv_unified, better.ctx) == (4, False, 131_072)
    assert diagnosis.command.startswith("llama-server -m m.gguf --port 9 --api-key SECRET --cache-ram 40960 ")
    assert "KV cache of" not in line, "four slots of 32,768 tokens cost no more"
    assert "may then have 32,768 tokens instead of 131,072" in line


def test_slots_of_their_own_may_cost_memory() -> None:
    diagnosis = diagnose(server("-m m.gguf -c 16384", n_ctx=16_384))
    assert "in a KV cache of 8,192 MiB instead of 2,048" in found(diagnosis, "every request clears")


def test_no_ram_cache_is_bad() -> None:
    facts = server("-m m.gguf -np 4 -cram 0")
    diagnosis = diagnose(replace(facts, probed=Probed(facts.rules, sent=12, back=Came(0, 1024), speed=900.0)))
    assert diagnosis.verdict is Verdict.BAD
    assert "0 of 1,024 tokens came back" in found(diagnosis, "no RAM cache")
    assert "some" in found(diagnosis, "does steering help")
    better = flags_of(diagnosis.command)
    assert better.cache_ram_mib is not None
    assert better.cache_ram_mib >= 8192
    assert better.parallel == 4


def test_a_ram_cache_for_shared_slots_comes_with_slots_of_their_own() -> None:
    assert flags_of(diagnose(server("-m m.gguf -cram 0", n_ctx=131_072)).command).kv_unified is False


@pytest.mark.parametrize(
    ("working", "verdict", "what"),
    [
        (WorkingSet(99, 2, 100_000, 120_000), Verdict.BAD, "the RAM cache is smaller than one conversation"),
        (
            WorkingSet(99, 6, 30_000, 120_000),
            Verdict.IMPROVABLE,
            "the RAM cache is smaller than the conversations in use",
        ),
        (WorkingSet(99, 2, 30_000, 50_000), Verdict.GOOD, "RAM cache"),
        (None, Verdict.IMPROVABLE, "the RAM cache is smaller than one full context"),
    ],
)
def test_ram_against_what_is_in_use(working: WorkingSet | None, verdict: Verdict, what: str) -> None:
    """8 GiB at 128 KiB a token are 65 thousand tokens."""
    diagnosis = diagnose(replace(server("-m m.gguf -np 4 -c 524288", n_ctx=131_072), working=working))
    assert diagnosis.verdict is verdict
    found(diagnosis, what)
    if verdict is not Verdict.GOOD:
        assert (flags_of(diagnosis.command).cache_ram_mib or 0) > 8192


def test_no_more_ram_than_half_the_machine_has() -> None:
    facts = replace(
        server("-m m.gguf -np 4", n_ctx=131_072), memory=24 * GIB, working=WorkingSet(99, 2, 100_000, 200_000)
    )
    assert flags_of(diagnose(facts).command).cache_ram_mib == 12 * 1024


def test_a_single_slot() -> None:
    assert diagnose(server("-m m.gguf -np 1 -cram 32768", 1)).verdict is Verdict.IMPROVABLE
    alone = replace(server("-m m.gguf -np 1 -cram 32768", 1), working=WorkingSet(99, 0, 9_000, 0))
    assert diagnose(alone).verdict is Verdict.GOOD


def test_context() -> None:
    small = diagnose(server("-np 4 -c 8192", n_ctx=2048))
    assert small.verdict is Verdict.IMPROVABLE
    assert flags_of(small.command).ctx == 4 * 32_768
    shared = server("-np 16 -kvu --no-cache-idle-slots -c 65536", slots=16, n_ctx=65_536)
    outgrown = diagnose(replace(shared, working=WorkingSet(99, 1, 66_000, 66_000)))
    assert flags_of(outgrown.command).ctx == 82_944, "which all slots share"
    chats = diagnose(server("-np 4 -c 32768", n_ctx=8192))
    assert chats.verdict is Verdict.GOOD
    found(chats, "little context for coding agents")
    outgrown = diagnose(replace(server("-np 4 -c 65536", n_ctx=16_384), working=WorkingSet(99, 1, 20_000, 20_000)))
    assert outgrown.verdict is Verdict.BAD
    assert "has 20,000" in found(outgrown, "the context of a slot is too small")
    assert (flags_of(outgrown.command).ctx or 0) >= 4 * 25_000


def test_more_conversations_than_slots() -> None:
    working = WorkingSet(99, 6, 4_000, 20_000)
    assert "wait in the RAM cache" in found(diagnose(replace(GOOD, working=working)), "more conversations than slots")
    without = diagnose(replace(server("-np 4 -cram 0"), working=working))
    assert flags_of(without.command).parallel == 6


@pytest.mark.parametrize(
    ("words", "what", "field", "value"),
    [
        ("-np 4 -sps 0", "slots are not chosen by their contents", "slot_prompt_similarity", 0.1),
        ("-np 4 -sps 0.5", "a high slot similarity", "slot_prompt_similarity", 0.1),
        ("-np 4 --no-cache-prompt", "the prompt cache is off", "cache_prompt", True),
        ("-np 4 --cache-reuse 256", "shifted prompt parts", "cache_reuse", 0),
        ("-np 4 --context-shift", "context shift", "context_shift", False),
    ],
)
def test_flags_that_hurt(words: str, what: str, field: str, value: object) -> None:
    diagnosis = diagnose(server(f"-m m.gguf -cram 32768 {words}"))
    assert diagnosis.verdict is not Verdict.GOOD
    found(diagnosis, what)
    assert getattr(flags_of(diagnosis.command), field) == value


def test_no_slots() -> None:
    diagnosis = diagnose(replace(server("-np 4 --no-slots -cram 32768"), shows_slots=False))
    assert diagnosis.verdict is Verdict.IMPROVABLE
    assert flags_of(diagnosis.command).slots is True


def test_models_that_can_not_go_back() -> None:
    window = replace(MODEL, architecture="gemma3", window=512, layers=None)
    facts = server("-np 4 -cram 32768", header=window)
    diagnosis = diagnose(replace(facts, probed=Probed(facts.rules, sent=9, branch=Came(40, 700))))
    assert "of 700 shared tokens 40 were reused" in found(diagnosis, "a sliding-window model")
    whole = diagnose(server("-np 4 --swa-full", header=window))
    assert not [finding for finding in whole.findings if "window model" in finding.what]
    without = diagnose(server("-np 4 -cram 32768 -ctxcp 0", header=window))
    assert without.verdict is Verdict.BAD
    assert flags_of(without.command).ctx_checkpoints == 32
    hybrid = diagnose(server("-np 4 -cram 32768", header=replace(MODEL, layers=None, recurrent=True)))
    assert "no" in found(hybrid, "does steering help")
    found(hybrid, "recurrent layers can't go back")
    unread = replace(server("-np 4", header=None), probed=Probed(Rules(unified=False), sent=9, branch=Came(0, 700)))
    found(diagnose(unread), "a model that can't go back to any token")


def test_reasoning() -> None:
    drops = replace(GOOD, reasoning_dropped=True)
    assert diagnose(drops).verdict is Verdict.IMPROVABLE
    assert flags_of(diagnose(drops).command).reasoning_preserve is True
    kept = replace(drops, flags=replace(GOOD.flags or ServerFlags(), reasoning_preserve=True))
    assert diagnose(kept).verdict is Verdict.GOOD


def test_time_outs_against_prefill() -> None:
    slow = replace(GOOD, probed=Probed(GOOD.rules, sent=17, speed=80.0))
    assert "32,768 tokens take 410 s" in found(diagnose(slow), "prompts of more than 24,000 tokens may run into")
    fast = replace(GOOD, probed=Probed(GOOD.rules, sent=17, speed=800.0))
    assert not [one for one in diagnose(fast).findings if "time-outs" in one.what]


def test_notes() -> None:
    said = props()
    facts = replace(
        GOOD,
        props=replace(said, modalities={"vision": True, "audio": False}, is_sleeping=True),
        metrics=False,
        messages=True,
        proxies=("http_proxy",),
        between="nginx",
        probed=Probed(GOOD.rules, sent=17, messages_slot=False, pinned=Came(0, 1000)),
    )
    diagnosis = diagnose(facts)
    assert diagnosis.verdict is Verdict.GOOD
    for what in (
        "a multimodal projector",
        "it sleeps",
        "/metrics is off",
        "/v1/messages",
        "http_proxy is set here",
        "answers come through nginx",
        "pins pass by the RAM cache",
    ):
        found(diagnosis, what)
    found(diagnose(replace(facts, probed=Probed(GOOD.rules, pinned=Came(990, 1000)))), "id_slot of a busy slot")
    found(diagnose(replace(facts, messages=False)), "no /v1/messages")


def test_answers_that_were_checked() -> None:
    assert diagnose(replace(GOOD, checked=Checked(9, cosmetic=2))).findings == diagnose(GOOD).findings
    diagnosis = diagnose(replace(GOOD, checked=Checked(9, cosmetic=2, substantive=3, latest=17)))
    assert diagnosis.verdict is Verdict.GOOD, "rounding alone does that"
    assert "3 of 9 that were asked for again, that of request 17 last" in found(diagnosis, "answers say something else")


def test_what_was_measured_counts_more_than_flags() -> None:
    measured = Rules(n_ctx=32_768, unified=False, idle_save=False, ram=0)
    diagnosis = diagnose(replace(GOOD, probed=Probed(measured, sent=17, back=Came(0, 900))))
    assert diagnosis.verdict is Verdict.BAD
    assert "ram" in found(diagnosis, "it behaves other than its flags say")


def test_unpredictable_servers_are_not_steered() -> None:
    probed = Probed(GOOD.rules, sent=17, wrong=6)
    assert "little" in found(diagnose(replace(GOOD, probed=probed)), "does steering help")


def test_flags_that_nobody_knows() -> None:
    facts = replace(GOOD, flags=None, words=(), header=None, known=Known(), unprobed="they were not allowed")
    diagnosis = diagnose(facts)
    assert diagnosis.verdict is Verdict.UNKNOWN
    assert "they were not allowed" in diagnosis.sentence
    assert diagnosis.command.startswith("llama-server -m /models/m.gguf ")
    half = replace(facts, unprobed="", probed=Probed(Rules(), frozenset({"ram"}), sent=2, trouble="the time was up"))
    assert diagnose(half).verdict is Verdict.UNKNOWN
    assert "the time was up" in diagnose(half).sentence


def test_nothing_there() -> None:
    lines = diagnose(Facts(url="http://x", trouble="nothing answers at http://x")).lines()
    assert lines[0] == "verdict: unknown — nothing answers at http://x"
    assert lines[-1].startswith("llama-server ")
