"""The README's table of options says what the code says."""

from __future__ import annotations

import re
from pathlib import Path

from toki.settings import OPTIONS

README = Path(__file__).parents[1] / "README.md"


def documented() -> list[tuple[str, ...]]:
    """Name, type and default of each row `| toki_x | type | default | …`, without the backticks of code."""
    rows = [line for line in README.read_text(encoding="utf-8").splitlines() if re.match(r"\|\s*`?toki_", line)]
    return [tuple(cell.strip().replace("`", "") for cell in row.split("|")[1:4]) for row in rows]


def test_options_table_is_complete_and_true() -> None:
    assert documented() == [(option.name, option.type_text, option.default_text) for option in OPTIONS]
