"""aider (the coding agent, unmodified) edits a small repository, straight and through toki, and what came of it.

Some sessions run at once, as of a user with some terminals. The server is SmolLM2 behind `-np 4`, fresh for
each side. Evaluated tokens are the server's own count. Needs what
`install.install_clients` installs; `docs/agents/aider.md` shows a run.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import requests

import install
from proxy import mitmdump
from proxy import rows
from servers import Build
from servers import Flags
from servers import LlamaServer
from servers import smollm2
from servers import start

FLAGS = Flags(n_parallel=4, n_ctx=32768, n_predict=300, metrics=True)
BUILD: Build = "xllamacpp"
PATIENCE = 900.0  # seconds for one aider
FILES = {
    "shop.py": '''"""Prices of a small shop."""

PRICES = {"apple": 3, "pear": 4, "plum": 2}


def total(basket):
    """The price of all that is in the basket."""
    price = 0
    for name, count in basket.items():
        price += PRICES[name] * count
    return price


def receipt(basket):
    lines = []
    for name, count in basket.items():
        lines.append(f"{count} x {name}: {PRICES[name] * count}")
    lines.append(f"total: {total(basket)}")
    return "\\n".join(lines)
''',
    "text.py": '''"""Small tools for text."""


def words(text):
    return text.split()


def longest(text):
    """The longest word of a text."""
    return max(words(text), key=len)


def title(text):
    return " ".join(word.capitalize() for word in words(text))
''',
    "test_shop.py": """import unittest

import shop
import text


class Test(unittest.TestCase):
    def test_total(self):
        self.assertEqual(shop.total({"apple": 2, "plum": 1}), 8)

    def test_empty(self):
        self.assertEqual(shop.total({}), 0)

    def test_longest(self):
        self.assertEqual(text.longest("a few words"), "words")


if __name__ == "__main__":
    unittest.main()
""",
}
# What is typed. The model is too small to edit files, so the user does it in between, as users do too.
TASKS = {
    "shop": (
        "Write all of shop.py with cherry for 5 in PRICES.",
        """!sed -i 's/"plum": 2/"plum": 2, "cherry": 5/' shop.py""",
        "/commit",
        "What does total do?",
        "/add test_shop.py",
        "Write a test for receipt.",
        f"!{sys.executable} -m unittest -q",
        "Why?",
        """!sed -i 's/"total: {total/"Total: {total/' shop.py""",
        "/commit",
        "Write all of shop.py with a function discount(basket, percent).",
    ),
    "text": (
        "Write all of text.py with a docstring in title.",
        """!sed -i 's/(text):$/(text: str):/' text.py""",
        "/commit",
        "What does longest do?",
        "/add test_shop.py",
        "Write a test for title.",
        f"!{sys.executable} -m unittest -q",
        "Why?",
        "/commit",
        "Write all of text.py with a function count(text) that counts the words.",
    ),
}


@dataclass(frozen=True, slots=True)
class Side:
    """What one side came to; tokens."""

    evaluated: int
    seconds: float
    commits: int
    rows: Sequence[dict[str, Any]]  # toki's, of which there are none straight


def repository(where: Path) -> None:
    where.mkdir()
    for name, text in FILES.items():
        (where / name).write_text(text)
    for command in (
        ["init", "--quiet"],
        ["config", "user.name", "someone"],
        ["config", "user.email", "someone@localhost"],
        ["add", "."],
        ["commit", "--quiet", "-m", "Start"],
    ):
        subprocess.run(["git", *command], cwd=where, check=True)


def session(number: int, url: str, home: Path) -> int:
    """One aider in a repository of its own, as a user would type into it; how many commits it made."""
    name = list(TASKS)[number % len(TASKS)]
    home.mkdir()
    prices = home / ".aider" / "caches" / "model_prices_and_context_window.json"  # else from the internet
    prices.parent.mkdir(parents=True)
    prices.write_text('{"none": {}}')
    work = home / "work"
    repository(work)
    command = [str(install.CLIENTS / "bin" / "aider"), "--model", "openai/smollm2", "--edit-format", "whole"]
    command += ["--map-tokens", "512", "--yes-always", "--no-pretty", "--no-fancy-input", "--no-detect-urls"]
    command += ["--no-check-update", "--analytics-disable", "--no-show-release-notes", "--no-show-model-warnings"]
    command += ["--auto-test", "--test-cmd", f"{sys.executable} -m unittest -q", f"{name}.py"]
    with (home / "aider.log").open("w") as log:
        subprocess.run(
            command,
            input="\n".join((*TASKS[name], "/exit")) + "\n",
            cwd=work,
            env={
                "PATH": "/usr/local/bin:/usr/bin:/bin",
                "HOME": str(home),
                "OPENAI_API_BASE": f"{url}/v1",
                "OPENAI_API_KEY": "none",
                "LITELLM_LOCAL_MODEL_COST_MAP": "True",
                "BROWSER": "true",
            },
            stdout=log,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=PATIENCE,
            check=True,
        )
    made = subprocess.run(["git", "rev-list", "--count", "HEAD"], cwd=work, capture_output=True, text=True, check=True)
    return int(made.stdout) - 1


def counted(server: LlamaServer, name: str) -> int:
    """A counter of the server's /metrics."""
    text = requests.get(f"{server.url}/metrics", timeout=10).text
    return round(sum(float(line.split()[1]) for line in text.splitlines() if line.startswith(f"llamacpp:{name} ")))


def play(through_toki: bool, sessions: int, flags: Flags, home: Path) -> Side:
    with start(smollm2(), flags, BUILD) as server:
        if not through_toki:
            return side(server, server.url, sessions, home)
        with mitmdump(server.url) as toki:
            found = side(server, toki.url, sessions, home)
            time.sleep(1)  # the last row is there within a second
            return replace(found, rows=rows(toki.db))


def side(server: LlamaServer, url: str, sessions: int, home: Path) -> Side:
    began = time.monotonic()
    home.mkdir()
    with ThreadPoolExecutor() as pool:
        commits = sum(pool.map(lambda number: session(number, url, home / str(number)), range(sessions)))
    seconds = time.monotonic() - began
    return Side(counted(server, "prompt_tokens_total"), seconds, commits, ())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep", type=Path, help="a directory that gets the repositories and what aider said")
    parser.add_argument("--sessions", type=int, default=2, help="how many at once (default: %(default)s)")
    parser.add_argument("--cache-ram", type=int, help="the server's RAM cache in MiB (default: the server's own)")
    options = parser.parse_args()
    flags = replace(FLAGS, cache_ram_mib=options.cache_ram)
    print(f"{BUILD}: {' '.join(flags.argv())}", flush=True)
    install.install_clients()
    with TemporaryDirectory() as name:
        home = options.keep or Path(name)
        home.mkdir(exist_ok=True)
        for title, through_toki in (("straight", False), ("through toki", True)):
            found = play(through_toki, options.sessions, flags, home / title.replace(" ", "-"))
            print(
                f"{title}: {found.evaluated} tokens evaluated, {found.seconds:.0f} s, {found.commits} commits",
                flush=True,
            )
            known = [row for row in found.rows if row["evaluated"] is not None]
            if known:
                alone = sum(
                    row["evaluated"] if row["alone"] is None else row["prompt_tokens"] - row["alone"] for row in known
                )
                actions = ", ".join(
                    f"{count} {action}" for action, count in Counter(row["action"] for row in known).items()
                )
                print(f"  rows: {len(found.rows)}; prompts {sum(row['prompt_tokens'] for row in known)} tokens,")
                print(f"  evaluated {sum(row['evaluated'] for row in known)}, predicted alone {alone}; {actions}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
