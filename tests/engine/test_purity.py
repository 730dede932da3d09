"""The engine is pure: no HTTP, no mitmproxy, no threads, no clock. Its imports show it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import toki.engine

ENGINE = Path(toki.engine.__file__).parent
ALLOWED = {
    "__future__",
    "array",
    "bisect",
    "collections",
    "dataclasses",
    "enum",
    "functools",
    "hashlib",
    "itertools",
    "json",
    "math",
    "numpy",
    "operator",
    "sklearn",
    "threadpoolctl",
    "toki.engine",
    "typing",
}
# What imports without an import statement, or reads and writes without an import at all.
FORBIDDEN_CALLS = {"__import__", "exec", "eval", "open", "input", "print"}


def impurities(source: str) -> list[str]:
    """The imports and calls in `source` that a pure module has no use for."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names if not is_allowed(alias.name)]
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            found += [] if is_allowed(module) else [module]
        elif isinstance(node, ast.Name) and node.id in FORBIDDEN_CALLS:
            found.append(node.id)
    return found


def is_allowed(module: str) -> bool:
    return any(module == name or module.startswith(f"{name}.") for name in ALLOWED)


@pytest.mark.parametrize("path", sorted(ENGINE.rglob("*.py")), ids=lambda path: path.name)
def test_the_engine_imports_only_what_is_pure(path: Path) -> None:
    assert impurities(path.read_text(encoding="utf-8")) == []


def test_the_engine_was_found() -> None:
    assert {"core.py", "events.py", "index.py", "tokens.py"} <= {path.name for path in ENGINE.rglob("*.py")}


@pytest.mark.parametrize(
    "source",
    [
        "import time",
        "import numpy, os",
        "import concurrent.futures",
        "import os.path as numpy",
        "from datetime import datetime",
        "from toki import server",
        "from toki.server import LlamaServerBackend",
        "from toki.enginery import x",
        "from . import events",
        "from .. import server",
        "def f():\n    from random import random",
        "__import__('socket')",
        "open('x')",
    ],
)
def test_what_is_not_pure_is_noticed(source: str) -> None:
    assert len(impurities(source)) == 1
