"""The console script as a user runs it: a process of its own before a real upstream."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests
from tests.answering import Answering
from tests.answering import answering

from servers import free_port
from toki import __version__
from toki.cli import CannotRun
from toki.cli import addon_script
from toki.cli import main
from toki.cli import what_to_paste
from toki.schema import open_database

ROOT = Path(__file__).parents[1]


class Upstream(Answering):
    """Answers each GET with the path that was asked for, and closes the connection."""

    protocol_version = "HTTP/1.0"

    def do_GET(self) -> None:
        self.answer(200, self.path.encode())


@pytest.fixture
def upstream() -> Iterator[str]:
    with answering(Upstream) as port:
        yield f"http://127.0.0.1:{port}"


def start(directory: Path, *arguments: str) -> subprocess.Popen[str]:
    """`toki` with `arguments` as a process whose files all lie in `directory`."""
    proxies = {name for name in os.environ if name.lower().endswith("_proxy")}
    return subprocess.Popen(
        [sys.executable, "-c", "import sys; from toki.cli import main; sys.exit(main())", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=directory,
        env={name: value for name, value in os.environ.items() if name not in proxies}
        | {"PYTHONPATH": str(ROOT / "addon"), "HOME": str(directory), "XDG_STATE_HOME": str(directory)},
    )


def get(url: str, process: subprocess.Popen[str]) -> str:
    """The answer of `url` as soon as `process` listens there."""
    end = time.monotonic() + 60
    with requests.Session() as session:
        session.trust_env = False
        while True:
            try:
                return session.get(url, timeout=10).text
            except requests.ConnectionError:
                assert process.poll() is None, process.communicate()
                assert time.monotonic() < end
                time.sleep(0.02)


@pytest.mark.slow
@pytest.mark.proxy
@pytest.mark.parametrize(("prefix", "more"), [("", []), ("/llama", ["--verbose"])])
def test_run_proxies_until_interrupted(tmp_path: Path, upstream: str, prefix: str, more: list[str]) -> None:
    port = free_port()
    options = ["--set", "toki_mode=observe", "--set", "confdir=.", *more]
    process = start(tmp_path, "run", f"{upstream}{prefix}/", "--port", str(port), *options)
    try:
        assert get(f"http://127.0.0.1:{port}{prefix}/health", process) == f"{prefix}/health"
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=30)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 0, errors
    assert output.startswith(f"toki listens on http://127.0.0.1:{port}{prefix} in front of {upstream}{prefix}; ")
    assert f"export OPENAI_BASE_URL=http://127.0.0.1:{port}{prefix}/v1\n" in output
    assert "Traceback" not in output + errors
    assert ("client connect" in output + errors) == bool(more)  # mitmproxy's lines of each connection


@pytest.mark.slow
@pytest.mark.proxy
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--no-such-option"], "--no-such-option"),
        (["--set", "toki_mode=fast"], "toki: toki_mode='fast': must be one of auto, observe, pin, off"),
        (["--set", "toki_min_reuse=many"], "toki: toki_min_reuse='many': must be a whole number"),
        (["--set", "toki_db=."], "toki: toki_db='.': must be a file; this is a directory"),
    ],
)
def test_what_mitmdump_refuses_could_not_run(tmp_path: Path, upstream: str, arguments: list[str], said: str) -> None:
    process = start(tmp_path, "run", upstream, "--port", str(free_port()), *arguments)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 2
    assert said in output + errors
    assert "Traceback" not in output + errors


@pytest.mark.slow
@pytest.mark.proxy
def test_run_before_a_dead_server_says_so_and_starts(tmp_path: Path) -> None:
    port = free_port()
    dead = f"http://127.0.0.1:{free_port()}"
    process = start(tmp_path, "run", dead, "--port", str(port), "--set", "confdir=.")
    try:
        assert "502 Bad Gateway" in get(f"http://127.0.0.1:{port}/health", process)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=30)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 0
    assert errors.startswith(f"toki: nothing answers at {dead} yet (GET /props: no connection); requests fail until ")


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["--version"])
    assert stop.value.code == 0
    assert capsys.readouterr().out == f"toki {__version__}\n"


def failure(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one line that a command says where it could not run."""
    assert main(arguments) == 2
    output, errors = capsys.readouterr()
    assert output == ""
    assert errors.startswith("toki: ")
    assert errors.count("\n") == 1
    return errors


def test_run_needs_a_url(capsys: pytest.CaptureFixture[str]) -> None:
    assert "'localhost:8080' is not of the form http(s)://host" in failure(capsys, "run", "localhost:8080")


def test_run_needs_a_free_port(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        said = failure(capsys, "run", "http://127.0.0.1:8080", "-p", port)
    assert f"cannot listen on 127.0.0.1:{port}: Address already in use; choose another with --port" in said


def test_run_needs_an_address_of_this_machine(capsys: pytest.CaptureFixture[str]) -> None:
    said = failure(capsys, "run", "http://127.0.0.1:8080", "--listen-host", "192.0.2.1")
    assert "cannot listen on 192.0.2.1:8081: " in said


@pytest.mark.parametrize("port", ["0", "65536", "-1"])
def test_run_needs_a_port_number(capsys: pytest.CaptureFixture[str], port: str) -> None:
    assert f"--port {port}: must be 1 to 65535" in failure(capsys, "run", "http://127.0.0.1:8080", f"--port={port}")


def test_run_needs_mitmproxy(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mitmproxy.tools.main", None)
    said = failure(capsys, "run", "http://127.0.0.1:8080", "--port", str(free_port()))
    assert "mitmproxy is not installed here" in said


def test_path_is_the_script_of_the_checkout(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["path"]) == 0
    assert capsys.readouterr().out == f"{ROOT / 'toki_addon.py'}\n"
    assert (ROOT / "toki_addon.py").is_file()


def test_a_reader_that_has_seen_enough_is_no_fault(tmp_path: Path) -> None:
    process = start(tmp_path, "path")
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()  # as head does, long before Python has started
    with process.stderr as said:
        assert said.read() == ""
    assert process.wait() == 0


def test_the_script_of_a_wheel_lies_in_the_package(tmp_path: Path) -> None:
    package = tmp_path / "site-packages" / "toki"
    package.mkdir(parents=True)
    with pytest.raises(CannotRun, match=r"toki_addon\.py is missing from this installation"):
        addon_script(package)
    (package / "toki_addon.py").touch()
    assert addon_script(package) == package / "toki_addon.py"


@pytest.mark.parametrize(
    ("host", "prefix", "base"),
    [
        ("127.0.0.1", "", "http://127.0.0.1:81"),
        ("", "", "http://127.0.0.1:81"),
        ("0.0.0.0", "/llama", "http://127.0.0.1:81/llama"),
        ("::", "", "http://127.0.0.1:81"),
        ("::1", "", "http://[::1]:81"),
        ("box.lan", "", "http://box.lan:81"),
    ],
)
def test_what_to_paste_can_be_reached(host: str, prefix: str, base: str) -> None:
    text = what_to_paste("http://up:8080", prefix, host, 81)
    assert f"export OPENAI_BASE_URL={base}/v1\n" in text
    assert f"export ANTHROPIC_BASE_URL={base}\n" in text
    assert f"curl {base}/v1/chat/completions " in text
    assert f"{base.removesuffix('/llama')}/toki/\n" in text


@pytest.mark.parametrize(
    "arguments",
    [
        *(["--help"], ["path", "--help"], ["run", "--help"], ["run", "http://x", "--help"]),
        *(["doctor", "--help"], ["report", "--help"], ["advise", "--help"]),
    ],
)
def test_help(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 0
    assert capsys.readouterr().out.startswith("usage: toki")


@pytest.mark.parametrize(
    "arguments",
    [
        *([], ["fly"], ["path", "--quiet"], ["run"], ["run", "http://x", "--port", "many"], ["doctor"]),
        *(["doctor", "http://x", "--no"], ["report", "--format", "xml"], ["advise", "--ctx", "0"]),
    ],
)
def test_wrong_usage(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 2
    assert "error: " in capsys.readouterr().err


def some_rows(db: Path) -> None:
    """A database with a row whose model no ASCII terminal can show."""
    open_database(db).close()
    with contextlib.closing(sqlite3.connect(db)) as file, file:
        columns = "at, conversation, endpoint, model, stream, shared, outcome, action, reason, added_ms, total_ms"
        values = "1, 1, '/completion', 'größer', 0, 0, 'unknown', 'passed', 'größer', 1, 1"
        file.execute(f"INSERT INTO requests ({columns}) VALUES ({values})")


def test_what_a_locale_can_not_show_ends_no_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    some_rows(tmp_path / "toki.db")
    report = start(tmp_path, "report", "--db", "toki.db")
    printed, said = report.communicate(timeout=60)
    assert (report.returncode, said) == (1, "")
    assert "gr\\xf6\\xdfer" in printed


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_full_disk_is_said_in_one_line(tmp_path: Path) -> None:
    some_rows(tmp_path / "toki.db")
    program = "import sys; from toki.cli import main; sys.exit(main())"
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-c", program, "report", "--db", str(tmp_path / "toki.db")],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT / "addon")},
            timeout=60,
        )
    assert done.returncode == 2
    assert done.stderr == "toki: what was found can't be written: No space left on device\n"
