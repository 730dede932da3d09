"""Runs the whole suite: style, types, and the tests on each supported Python that this machine has.

Everything runs on the oldest supported Python (3.11, mitmproxy 11): unit tests and live tests. The others
(mitmproxy 12) run what faces mitmproxy, live tests among it, one before the one llama-server build, one before the
other, side by side; the rest, which knows no mitmproxy, runs there inside them. With CI=true none of them may be
missing.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from install import ROOT
from install import install

VERSIONS = ("3.11", "3.12", "3.13")
NOT_BEFORE = {"3.12": "xllamacpp", "3.13": "skulk"}  # which build a server has is nothing to the interpreter
LINT = (
    ["-m", "ruff", "check", "--quiet"],
    ["-m", "ruff", "format", "--check", "--quiet"],
    ["-m", "mypy"],
)
CORES = 2
# Tests mostly wait for servers, so a few files at a time keep two cores busy; those of one file share its servers.
# In the order of their names, which has the quick ones last: no core waits for the other's long last file.
PYTEST = ["-m", "pytest", "--dist=loadfile", "--no-loadscope-reorder"]
ALL = [*PYTEST, f"--numprocesses={CORES}"]
COVERAGE = ["--cov", "--cov-report=term", "--cov-fail-under=90"]  # it doubles what a unit test takes


def candidates(wanted: str) -> Iterator[str]:
    """Commands and paths that may be Python `wanted` ("3.12"): the PATH first, then pyenv, newest first."""
    yield from filter(None, map(shutil.which, (f"python{wanted}", "python3", "python")))
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    yield from map(str, sorted(pyenv.glob(f"{wanted}.*/bin/python"), reverse=True))


def find(wanted: str) -> str | None:
    """A working interpreter of version `wanted` that can make virtual environments, or None."""
    if wanted == running():
        return sys.executable
    question = "import ensurepip, sys, venv; print('%d.%d' % sys.version_info[:2])"
    for python in candidates(wanted):
        answer = subprocess.run([python, "-c", question], capture_output=True, text=True, check=False)
        if answer.stdout.strip() == wanted:
            return python
    return None


def running() -> str:
    return "{}.{}".format(*sys.version_info[:2])


def environment(wanted: str, python: str) -> Path:
    """The Python of the virtual environment for `wanted`, made and filled if need be."""
    if wanted == running():
        return Path(sys.executable)
    directory = ROOT / f".venv-{wanted}"
    install(directory, "test", python)
    return directory / "bin" / "python"


def facing_mitmproxy(wanted: str, processes: int) -> list[str]:
    """The command for what faces mitmproxy: only files that mark such tests are read, which takes half the time."""
    marked = [path for path in (ROOT / "tests").rglob("test_*.py") if "mark.proxy" in path.read_text(encoding="utf-8")]
    files = sorted(str(path.relative_to(ROOT)) for path in marked)
    return [*PYTEST, f"--numprocesses={processes}", "-m", "proxy", "-k", f"not {NOT_BEFORE[wanted]}", *files]


def run(title: str, inside: Path, command: list[str]) -> bool:
    """Run tests and print what they say, once they have ended; whether they passed."""
    done = subprocess.run(
        [inside, *command], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    print(f"\n== {title}: what faces mitmproxy\n{done.stdout}", flush=True)
    return done.returncode == 0


def lint() -> bool:
    """Whether all checks pass; each of them runs, whatever the others say."""
    results = [subprocess.run([sys.executable, *command], cwd=ROOT, check=False).returncode for command in LINT]
    return not any(results)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lint", action="store_true", help="style and types only")
    parser.add_argument("--coverage", action="store_true", help="which lines no test reaches, on this Python only")
    given = parser.parse_args()
    if given.lint:
        return 0 if lint() else 1
    if given.coverage:
        return subprocess.run([sys.executable, *ALL, *COVERAGE], cwd=ROOT, check=False).returncode

    found = {wanted: python for wanted in VERSIONS if (python := find(wanted))}
    missing = [wanted for wanted in VERSIONS if wanted not in found]
    if missing and os.environ.get("CI") == "true":
        print(f"CI needs Python {', '.join(missing)}: found neither on the PATH nor under pyenv")
        return 2
    if missing:
        print(f"not tested, since not found on the PATH or under pyenv: Python {', '.join(missing)}")

    with ThreadPoolExecutor() as pool:  # installing mostly waits for the package index
        linted = pool.submit(lint)
        environments = dict(zip(found, pool.map(environment, found, found.values()), strict=True))
    failed = [] if linted.result() else ["style and types"]
    titles = {wanted: describe(inside) for wanted, inside in environments.items()}
    oldest, *newer = found
    print(f"\n== {titles[oldest]}: everything", flush=True)
    if subprocess.run([environments[oldest], *ALL], cwd=ROOT, check=False).returncode != 0:
        failed.append(titles[oldest])
    with ThreadPoolExecutor() as pool:
        processes = max(1, CORES // max(1, len(newer)))
        commands = {wanted: facing_mitmproxy(wanted, processes) for wanted in newer}
        passed = {wanted: pool.submit(run, titles[wanted], environments[wanted], commands[wanted]) for wanted in newer}
    failed += [titles[wanted] for wanted in newer if not passed[wanted].result()]
    print(f"\nfailed: {'; '.join(failed)}" if failed else f"\nall passed on Python {', '.join(found)}")
    return 1 if failed else 0


def describe(python: Path) -> str:
    question = "import sys; from importlib.metadata import version as v; print(sys.version.split()[0], v('mitmproxy'))"
    answer = subprocess.run([python, "-c", question], capture_output=True, text=True, check=True)
    return "Python {}, mitmproxy {}".format(*answer.stdout.split())


if __name__ == "__main__":
    sys.exit(main())
