"""toki as users install it: a wheel and an sdist, pipx in both ways, and the files of docs/deploy."""

from __future__ import annotations

import configparser
import contextlib
import json
import os
import plistlib
import shlex
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML
from tests.live.wire import HOST
from tests.live.wire import PATIENCE
from tests.live.wire import ROOT
from tests.live.wire import ask
from tests.live.wire import request
from tests.live.wire import until

from servers import Flags
from servers import LlamaServer
from servers import free_port
from servers import llama_server_binary
from servers import start
from servers import tiny_model
from toki.page.routes import FILES

pytestmark = pytest.mark.live

DEPLOY = ROOT / "docs" / "deploy"
SERVER = "http://127.0.0.1:8080"  # as the files of docs/deploy name it
BIN = Path(sys.executable).parent


def run(command: Sequence[str | Path], **more: Any) -> str:
    ended: subprocess.CompletedProcess[str] = subprocess.run(
        [str(word) for word in command], capture_output=True, text=True, timeout=4 * PATIENCE, check=False, **more
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


@pytest.fixture(scope="module")
def server() -> Iterator[LlamaServer]:
    with start(tiny_model(), Flags(n_parallel=2, n_ctx=4096)) as running:
        yield running


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with an sdist of this checkout and a wheel that was built from that sdist."""
    where = tmp_path_factory.mktemp("dist")
    run([sys.executable, "-m", "build", "--installer", "uv", "--outdir", where, ROOT], env=with_tools())
    return where


@pytest.fixture(scope="module")
def wheel(dist: Path) -> Path:
    (found,) = dist.glob("*.whl")
    return found


def with_tools() -> dict[str, str]:
    """Our environment, with uv on its PATH."""
    kept = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    kept.pop("PYTHONPATH", None)
    return kept | {"PATH": os.pathsep.join([str(BIN), os.environ["PATH"]])}


def test_the_packages_are_in_order(dist: Path) -> None:
    files = sorted(map(str, dist.iterdir()))
    assert len(files) == 2
    run([sys.executable, "-m", "twine", "check", "--strict", *files])


def test_the_wheel_has_all_of_the_package_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    package = ROOT / "addon"
    modules = {str(path.relative_to(package)) for path in package.glob("toki/**/*.py")}
    assert modules | {"toki/py.typed", "toki/toki_addon.py"} | {f"toki/page/{name}" for name in FILES} <= names
    assert {name.partition("/")[0] for name in names} == {"toki"}
    assert not [name for name in names if "__pycache__" in name]


def test_the_sdist_has_what_the_tests_need_and_nothing_that_was_made(dist: Path) -> None:
    (sdist,) = dist.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    for needed in (
        "Makefile",
        ".ci/run",
        "toki_addon.py",
        "addon/toki/addon.py",
        "scripts/suite.py",
        "tests/conftest.py",
    ):
        assert needed in names
    assert not [
        name for name in names if any(made in name for made in ("node_modules", ".venv", ".cache", "__pycache__"))
    ]
    assert sdist.stat().st_size < 10 * 2**20


# --- pipx ---


@pytest.fixture
def pipx(tmp_path: Path) -> dict[str, str]:
    """The environment of a pipx that has installed nothing so far; its programs come to the directory `bin`."""
    places = {"PIPX_HOME": tmp_path / "pipx", "PIPX_BIN_DIR": tmp_path / "bin", "PIPX_MAN_DIR": tmp_path / "man"}
    fast = {"PIPX_DEFAULT_BACKEND": "uv", "PIPX_DEFAULT_PYTHON": sys.executable}
    return with_tools() | {name: str(path) for name, path in places.items()} | fast


def test_pipx_install(pipx: dict[str, str], wheel: Path, server: LlamaServer, tmp_path: Path) -> None:
    run([sys.executable, "-m", "pipx", "install", wheel, "--include-deps"], env=pipx)
    for name in ("toki", "mitmdump", "mitmweb", "mitmproxy"):
        assert (tmp_path / "bin" / name).exists()
    answers([tmp_path / "bin" / "toki", "run", server.url], tmp_path)


def test_pipx_inject(pipx: dict[str, str], wheel: Path, server: LlamaServer, tmp_path: Path) -> None:
    run([sys.executable, "-m", "pipx", "install", "mitmproxy"], env=pipx)
    run([sys.executable, "-m", "pipx", "inject", "mitmproxy", wheel, "--include-apps"], env=pipx)
    with_the_script(tmp_path, server)


def with_the_script(where: Path, server: LlamaServer) -> None:
    """As the README says, in a shell: mitmdump -s "$(toki path)"."""
    port = free_port()
    line = f'exec mitmdump --mode reverse:{server.url} --listen-host {HOST} -p {port} -s "$(toki path)"'
    answers(["sh", "-c", line], where, port)


def answers(command: Sequence[str | Path], where: Path, port: int | None = None, db: Path | None = None) -> None:
    """Run a command that starts toki (on `port`, or with --port), ask through it, look for its line, and end it."""
    if port is None:
        port = free_port()
        command = [*command, "--port", str(port)]
    db = db or where / f"{port}.db"
    settings = where / f"mitmproxy-{port}"
    settings.mkdir()
    (settings / "config.yaml").write_text(f"toki_db: {db}\n")
    words = [str(word) for word in command]
    if words[0] == "sh":
        words[-1] += f" --set confdir={settings}"
    else:
        words += ["--set", f"confdir={settings}"]
    path = os.pathsep.join([str(where / "bin"), "/usr/bin", "/bin"])
    with (where / f"{port}.log").open("w+") as log:
        process = subprocess.Popen(
            words, cwd=where, env={"PATH": path, "HOME": str(where)}, stdout=log, stderr=subprocess.STDOUT
        )
        try:
            until(lambda: process.poll() is not None or (db.exists() and listening(port)), 40)
            assert process.poll() is None, (where / f"{port}.log").read_text()
            body = {"model": "any", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}
            answer = ask(port, request("/v1/chat/completions", json.dumps(body).encode()))
            assert answer.first.endswith("200 OK"), answer
            assert json.loads(answer.body)["usage"]["completion_tokens"] == 4
            until(lambda: recorded(db))
            if words[0] != "sh":  # `toki run` writes each line of its log as it comes
                until(lambda: b"toki 200 /v1/chat/completions" in (where / f"{port}.log").read_bytes())
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE) == 0, (where / f"{port}.log").read_text()
        finally:
            process.kill()
            process.wait()


def recorded(db: Path) -> bool:
    with contextlib.closing(sqlite3.connect(db)) as connection:
        found = connection.execute("SELECT endpoint, status FROM requests").fetchall()
    return found == [("/v1/chat/completions", 200)]


def listening(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection((HOST, port), timeout=1):
        return True
    return False


# --- docs/deploy ---


def here(command: Sequence[str], server: LlamaServer) -> tuple[list[str | Path], int]:
    """A command line of docs/deploy with this machine's toki, server and a free port in it, and that port."""
    words: list[str | Path] = [
        word.replace(SERVER, server.url).replace("http://llama-server:8080", server.url) for word in command
    ]
    assert server.url in words
    port = free_port()
    words[words.index("8081")] = str(port)
    program = "import sys; from toki.cli import main; sys.exit(main())"
    return ["env", f"PYTHONPATH={ROOT / 'addon'}", sys.executable, "-c", program, *words[1:]], port


def test_the_systemd_unit(server: LlamaServer, tmp_path: Path) -> None:
    unit = DEPLOY / "toki.service"
    parsed = configparser.ConfigParser(interpolation=None)
    parsed.optionxform = str  # type: ignore[assignment,method-assign]
    parsed.read_string(unit.read_text())
    program, *arguments = shlex.split(parsed["Service"]["ExecStart"])
    assert program == "%h/.local/bin/toki"
    if analyze := shutil.which("systemd-analyze"):
        (tmp_path / ".local" / "bin").mkdir(parents=True)
        (tmp_path / ".local" / "bin" / "toki").symlink_to("/bin/true")
        copy = tmp_path / unit.name
        copy.write_text(unit.read_text().replace("%h", str(tmp_path)))
        run([analyze, "verify", "--user", copy], env={**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)})
    command, port = here([program, *arguments], server)
    answers(command, tmp_path, port)


def test_the_launchd_agent(server: LlamaServer, tmp_path: Path) -> None:
    parsed = plistlib.loads((DEPLOY / "toki.plist").read_bytes())
    assert parsed["Label"] == "toki"
    assert Path(parsed["ProgramArguments"][0]).name == "toki"
    command, port = here(parsed["ProgramArguments"], server)
    answers(command, tmp_path, port)


def test_docker_compose(tmp_path: Path) -> None:
    """Both command lines, one in front of the other; no container is started."""
    file = DEPLOY / "compose.yaml"
    services = YAML(typ="safe").load(file)["services"]
    assert services["toki"]["ports"] == ["127.0.0.1:8081:8081"]
    assert (DEPLOY / services["toki"]["build"]["context"] / "pyproject.toml").is_file()
    port = free_port()
    said = services["llama-server"]["command"]
    changed = {"/models/${MODEL:-model.gguf}": str(tiny_model()), "0.0.0.0": HOST, "8080": str(port)}
    binary = llama_server_binary()
    command = [str(binary), *(changed.get(word, word) for word in said), "-c", "4096", "--device", "none"]
    flags = said[said.index("-np") :]
    assert f"toki_server_flags={' '.join(flags)}" in services["toki"]["command"]
    with (tmp_path / "server.log").open("w") as log:
        libraries = {**os.environ, "LD_LIBRARY_PATH": str(binary.parent)}
        process = subprocess.Popen(command, env=libraries, stdout=log, stderr=subprocess.STDOUT)
    try:
        until(lambda: healthy(port))
        words = [word.replace("llama-server:8080", f"{HOST}:{port}") for word in services["toki"]["command"]]
        words = [word.replace("0.0.0.0", HOST).replace("/rows/toki.db", str(tmp_path / "rows.db")) for word in words]
        mine = free_port()
        words[words.index("8081")] = str(mine)
        program = "import sys; from toki.cli import main; sys.exit(main())"
        before = ["env", f"PYTHONPATH={ROOT / 'addon'}", sys.executable, "-c", program]
        answers([*before, *words[1:]], tmp_path, mine, tmp_path / "rows.db")
    finally:
        process.kill()
        process.wait()


def healthy(port: int) -> bool:
    with contextlib.suppress(OSError, AssertionError):
        return ask(port, request("/health", method="GET")).first.endswith("200 OK")
    return False
