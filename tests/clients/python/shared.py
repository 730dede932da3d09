"""What all Python clients here say, and the frame that they say it in.

A client runs in an environment of its own: `python CLIENT.py URL ...` makes the same calls to each server and prints,
one line of JSON for each, what it made of the answers.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from collections.abc import Mapping
from typing import Any

MODEL = "tiny"
KEY = "a-key"
INSTRUCTIONS = "Be brief."
ASKED = "What is the weather in Paris?"
CITIES = ("Paris", "Oslo")
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": list(CITIES)}},
    "required": ["city"],
}


def main(calls: Mapping[str, Callable[[str], Any]]) -> None:
    """Make `calls` (by name; each gets the server's URL) to every server of the command line."""
    for url in sys.argv[1:]:
        print(json.dumps({name: call(url) for name, call in calls.items()}), flush=True)
