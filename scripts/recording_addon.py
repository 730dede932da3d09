"""What `mitmdump -s` loads to run toki and write down all that its engines hear, so that it can be judged afterwards.

The file named in the environment variable TOKI_EVENTS gets one pickle after another: for each engine that starts the
arguments it was made with, a tuple, and then the events that it heard. The engine is pure: the same events lead it to
the same decisions, with all that no row shows, such as the predicted range.
"""

from __future__ import annotations

import os
import pickle
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "addon"))

from toki import upstream
from toki.addon import Toki
from toki.engine.core import Engine
from toki.engine.events import Command
from toki.engine.events import Event
from toki.engine.events import Mode


class Recording(Engine):
    """An engine that writes down what it hears before it acts on it."""

    def __init__(self, mode: Mode, min_reuse: int) -> None:
        super().__init__(mode, min_reuse)
        self._write((mode, min_reuse))

    def handle(self, event: Event) -> list[Command]:
        self._write(event)
        return super().handle(event)

    def _write(self, item: Event | tuple[Mode, int]) -> None:
        with Path(os.environ["TOKI_EVENTS"]).open("ab") as file:
            pickle.dump(item, file)


upstream.Engine = Recording  # type: ignore[attr-defined]
addons = [Toki()]
