"""`toki doctor` before real servers of both builds, one for each set of flags that it judges."""

from __future__ import annotations

import io
import shlex
import time
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler
from http.server import ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from typing import Literal

import pytest
import requests
from tests.inspect.recorded import row
from tests.inspect.recorded import write
from tests.live.conftest import Llama
from tests.live.test_models import router as router

from servers import Build
from servers import LlamaServer
from servers import free_port
from servers import tiny_projector
from toki.cli import main
from toki.engine.rules import Known
from toki.flags import parse_flags
from toki.inspect.doctor import Facts
from toki.inspect.doctor import Verdict
from toki.inspect.doctor import diagnose
from toki.inspect.probes import probe
from toki.server import Auth
from toki.server import LlamaServerBackend


def consult(capsys: pytest.CaptureFixture[str], url: str, *arguments: str) -> tuple[int, list[str]]:
    """The exit status and the lines of `toki doctor`."""
    begun = time.monotonic()
    status = main(["doctor", url, *arguments])
    assert time.monotonic() - begun < 45
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("verdict: ")
    commands = [number for number, line in enumerate(lines) if line.startswith("llama-server ")]
    assert commands == ([] if status == 0 else [len(lines) - 1])
    return status, lines


def tasks(server: LlamaServer) -> list[int]:
    return [slot.get("id_task", -1) for slot in requests.get(f"{server.url}/slots", timeout=10).json()]


@pytest.mark.parametrize(
    ("flags", "verdict", "said"),
    [
        ({}, "improvable", "better: every request clears the other idle slots"),
        ({"n_parallel": 4, "n_ctx": 65_536}, "good", "note: does steering help: yes"),
        ({"n_parallel": 4, "n_ctx": 65_536, "cache_ram_mib": 0}, "bad", "bad: no RAM cache"),
    ],
)
def test_verdicts(
    llama: Llama, build: Build, capsys: pytest.CaptureFixture[str], flags: dict[str, Any], verdict: str, said: str
) -> None:
    status, lines = consult(capsys, llama(build=build, **flags).url, "--yes")
    assert lines[0].startswith(f"verdict: {verdict} — ")
    assert status == (verdict != "good")
    assert [line for line in lines if line.startswith(said)], lines
    assert ", 0 of their outcomes unexpected" in "\n".join(lines)
    assert "note: /v1/messages: it ignores id_slot: for its clients only primers help" in lines
    risky = [line for line in lines if line.startswith("note: id_slot of a busy slot can damage the answer")]
    assert ["(measured: a pinned prompt fetched its conversation from RAM)" in line for line in risky] == (
        [] if flags.get("cache_ram_mib") == 0 else [True]
    )


@pytest.mark.parametrize(
    ("flags", "verdict", "said"),
    [
        ({"n_parallel": 1, "n_ctx": 16_384}, "improvable", "better: a single slot"),
        (
            {"n_parallel": 4, "n_ctx": 16_384, "kv_unified": True, "cache_idle_slots": False},
            "good",
            "tokens of context each at most (shared)",
        ),
        (
            {"n_parallel": 2, "n_ctx": 32_768, "slot_prompt_similarity": 0.0},
            "improvable",
            "better: slots are not chosen",
        ),
        ({"n_parallel": 2, "n_ctx": 32_768, "slot_prompt_similarity": 0.5}, "improvable", "better: a high slot simil"),
        ({"n_parallel": 4, "n_ctx": 8192}, "improvable", "better: little context for each slot"),
        ({"n_parallel": 2, "n_ctx": 32_768, "slots": False}, "improvable", "better: /slots is not shown"),
    ],
)
def test_more_verdicts(
    llama: Llama, capsys: pytest.CaptureFixture[str], flags: dict[str, Any], verdict: str, said: str
) -> None:
    _, lines = consult(capsys, llama(**flags).url, "--yes")
    assert lines[0].startswith(f"verdict: {verdict} — ")
    assert [line for line in lines if said in line], lines


def test_the_better_command_is_better(fresh_llama: Llama, capsys: pytest.CaptureFixture[str]) -> None:
    _, lines = consult(capsys, fresh_llama(cache_ram_mib=0).url, "--yes")
    better = parse_flags(shlex.split(lines[-1]), {})
    server = fresh_llama(
        n_parallel=better.parallel,
        n_ctx=better.ctx,
        kv_unified=better.kv_unified,
        cache_ram_mib=better.cache_ram_mib,
    )
    status, lines = consult(capsys, server.url, "--yes")
    assert (status, lines[0][:13]) == (0, "verdict: good")


def test_windows(llama: Llama, build: Build, capsys: pytest.CaptureFixture[str]) -> None:
    _, lines = consult(capsys, llama("tiny-window", build, n_parallel=2, n_ctx=32_768).url, "--yes")
    assert [line for line in lines if line.startswith("note: a sliding-window model: ") and "(measured: of " in line]


def test_a_hybrid_model(llama: Llama, build: Build, capsys: pytest.CaptureFixture[str]) -> None:
    status, lines = consult(capsys, llama("tiny-hybrid", build, n_parallel=2, n_ctx=32_768).url, "--yes")
    assert status == 0
    assert "with recurrent layers" in lines[1]
    assert [
        line for line in lines if line.startswith("note: recurrent layers can't go back: ") and "(measured: of " in line
    ]
    assert [line for line in lines if line.startswith("note: does steering help: no: ")]


@pytest.mark.parametrize("model", ["tiny-hybrid", "tiny-window"])
def test_no_checkpoints(
    llama: Llama, capsys: pytest.CaptureFixture[str], model: Literal["tiny-hybrid", "tiny-window"]
) -> None:
    status, lines = consult(capsys, llama(model, n_parallel=2, n_ctx=32_768, ctx_checkpoints=0).url, "--yes")
    assert (status, lines[0]) == (1, "verdict: bad — no checkpoints")
    assert parse_flags(shlex.split(lines[-1]), {}).ctx_checkpoints == 32


def test_a_projector(llama: Llama, capsys: pytest.CaptureFixture[str]) -> None:
    url = llama(n_parallel=3, n_ctx=49_152, mmproj=str(tiny_projector())).url
    status, lines = consult(capsys, url, "--yes")
    assert status == 0
    assert [line for line in lines if line.startswith("note: a multimodal projector: prompts may hold vision")]


def test_a_window_that_nobody_knows_of(llama: Llama, build: Build) -> None:
    """As on another machine, where neither flags nor model file can be read."""
    server = llama("tiny-window", build, n_parallel=2, n_ctx=32_768)
    backend = LlamaServerBackend(server.url)
    props = backend.props(Auth(), 5)
    probed = probe(backend, props, Known(), Auth(), time.monotonic() + 30, messages=False, seed=1)
    backend.close()
    assert "ram" not in probed.doubtful
    assert diagnose(Facts(url=server.url, props=props, probed=probed)).verdict is Verdict.GOOD


def test_no_probes_unless_allowed(
    fresh_llama: Llama, build: Build, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = fresh_llama(build=build)
    for answer in ("n\n", ""):
        monkeypatch.setattr("sys.stdin", io.StringIO(answer))
        status, lines = consult(capsys, server.url)
        # skulk's flags are those of its process; xllamacpp's is no llama-server by name
        assert lines[0].startswith("verdict: improvable" if build == "skulk" else "verdict: unknown")
        assert status == 1
        assert set(tasks(server)) == {-1}
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    _, lines = consult(capsys, server.url)
    assert "18 probes" in "\n".join(lines)


def test_a_server_with_a_key(llama: Llama, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    server = llama(n_parallel=2, n_ctx=32_768, api_key="sesame")
    status, lines = consult(capsys, server.url, "--yes")
    assert status == 2
    assert "wants a key: put it into the environment variable LLAMA_API_KEY" in lines[0]
    monkeypatch.setenv("LLAMA_API_KEY", "sesame")
    status, lines = consult(capsys, server.url, "--yes")
    assert status == 0
    assert "sesame" not in "\n".join(lines)


def test_probes_end_in_time_and_leave_others_alone(llama: Llama) -> None:
    server = llama(n_parallel=2, n_ctx=32_768)
    backend = LlamaServerBackend(server.url)
    props = backend.props(Auth(), 5)
    before = tasks(server)
    late = probe(backend, props, Known(), Auth(), time.monotonic(), messages=True, seed=1)
    assert (late.sent, late.trouble, late.rules is None) == (0, "the time was up", True)
    assert tasks(server) == before
    with requests.post(
        f"{server.url}/completion",
        json={"prompt": "a", "n_predict": -1, "stream": True, "ignore_eos": True},
        stream=True,
    ) as running:
        lines = running.iter_lines()  # the connection ends with it
        assert next(lines)
        busy = probe(backend, props, Known(), Auth(), time.monotonic() + 30, messages=True, seed=1)
    backend.close()
    assert (busy.sent, busy.trouble) == (0, "others use the server")


@pytest.fixture
def stranger() -> Iterator[str]:
    """A web server that is no llama-server."""
    with ThreadingHTTPServer(("127.0.0.1", 0), SimpleHTTPRequestHandler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_no_llama_server(stranger: str, capsys: pytest.CaptureFixture[str]) -> None:
    status, lines = consult(capsys, stranger, "--yes")
    assert status == 2
    assert lines[0].startswith(f"verdict: unknown — what answers at {stranger}, which calls itself 'SimpleHTTP")
    nobody = f"http://127.0.0.1:{free_port()}"
    status, lines = consult(capsys, nobody, "--yes")
    assert status == 2
    assert lines[0].startswith(f"verdict: unknown — nothing answers at {nobody} (")
    assert main(["doctor", "localhost"]) == 2


def test_recorded_traffic_counts(llama: Llama, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = llama(n_parallel=4, n_ctx=65_536).url
    db = write(tmp_path / "toki.db", [row(1, prompt_tokens=20_000)])
    status, lines = consult(capsys, url, "--yes", "--db", str(db), "--model", "only a router has several")
    assert status == 1
    assert ", 0 of their outcomes unexpected" in "\n".join(lines)
    assert "the longest recorded conversation has 20,020" in "\n".join(lines)
    assert (parse_flags(shlex.split(lines[-1]), {}).ctx or 0) > 4 * 20_020
    url = llama(n_parallel=2, n_ctx=49_152, cache_ram_mib=1).url  # room for some 13,000 tokens
    turns = [row(key, conversation=key % 3, prompt_tokens=15_000 + key, at=1000.0 + key) for key in range(1, 7)]
    status, lines = consult(capsys, url, "--yes", "--db", str(write(tmp_path / "more.db", turns)))
    assert lines[0] == "verdict: bad — the RAM cache is smaller than one conversation"
    assert (parse_flags(shlex.split(lines[-1]), {}).cache_ram_mib or 0) > 1
    assert [line for line in lines if line.startswith("note: more conversations than slots: 3 recorded conversations")]
    (tmp_path / "other").write_text("something else")
    for file, said in (("nowhere", "there is no database at "), ("other", "can't be read as toki's database")):
        assert main(["doctor", url, "--yes", "--db", str(tmp_path / file)]) == 2
        assert said in capsys.readouterr().err


@pytest.mark.parametrize("kept", [False, True])
def test_reasoning(fresh_llama: Llama, capsys: pytest.CaptureFixture[str], kept: bool) -> None:
    """A template that shows reasoning only in the last message, and one that keeps all."""
    shown = "true" if kept else "loop.last"
    template = (
        "{% for m in messages %}{{ m.role }}: {% if m.reasoning_content and " + shown + " %}{{ m.reasoning_content }}"
        "{% endif %}{{ m.content }}\n{% endfor %}"
    )
    server = fresh_llama(n_parallel=2, n_ctx=32_768, jinja=True, chat_template=template)
    status, lines = consult(capsys, server.url, "--yes")
    assert [line for line in lines if line.startswith("better: the template drops earlier reasoning")] == lines[1:2] * (
        not kept
    )
    assert status == (not kept)
    assert kept or parse_flags(shlex.split(lines[-1]), {}).reasoning_preserve is True


def test_proxy_variables(llama: Llama, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    url = llama(n_parallel=4, n_ctx=65_536).url
    for name in ("no_proxy", "NO_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    _, lines = consult(capsys, url, "--yes")
    assert [line for line in lines if line.startswith("note: http_proxy is set here: ")]
    monkeypatch.setenv("no_proxy", "127.0.0.1,localhost")
    _, lines = consult(capsys, url, "--yes")
    assert not [line for line in lines if "_proxy" in line]


def test_a_router(router: str, capsys: pytest.CaptureFixture[str]) -> None:
    status, lines = consult(capsys, router, "--yes")
    assert status == 2
    assert lines[0].endswith("name one of its loaded models with --model (none)")
    requests.post(
        f"{router}/completion", json={"prompt": "a", "n_predict": 1, "model": "alpha"}, timeout=60
    ).raise_for_status()
    for arguments in ((), ("--model", "alpha")):
        status, lines = consult(capsys, router, "--yes", *arguments)
        assert status == 1
        assert lines[0].startswith("verdict: improvable — little context for each slot")
        assert "known from the flags that the router names; no probes: behind a router none are sent" in lines[2]
        assert parse_flags(shlex.split(lines[-1]), {}).parallel == 2
