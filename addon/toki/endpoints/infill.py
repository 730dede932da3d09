"""/infill: code around a gap. The server builds the prompt itself and no endpoint shows its tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from toki.endpoints.completion import ResultMeter
from toki.endpoints.options import question
from toki.endpoints.question import Question
from toki.endpoints.question import Unreadable
from toki.engine.events import Kind


@dataclass(frozen=True, slots=True)
class Infill:
    """Answers have the form of /completion."""

    name: str

    def read(self, body: Mapping[str, Any]) -> Question:
        return question(self.name, body, Unreadable("the prompt of /infill can't be had"), kind=Kind.INFILL)

    def meter(self) -> ResultMeter:
        return ResultMeter()
