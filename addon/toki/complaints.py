"""What goes wrong inside toki, told without flooding: the first of each kind is logged, later ones are counted.

A server that is down for an hour must not write an hour of warnings, and a failure must not pass unseen either.
"""

from __future__ import annotations

import logging
import traceback
from collections import Counter
from pathlib import Path

from toki.printable import printable


class Complaints:
    """The troubles of one run, by kind. Not thread-safe: used on the event loop only."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._seen: Counter[str] = Counter()

    def tell(self, kind: str, text: str) -> None:
        """Log `text` as a warning where `kind` is new; count it in any case."""
        self._seen[kind] += 1
        if self._seen[kind] == 1:
            self._logger.warning(f"toki: {printable(text)} (told once, then counted)")

    def fault(self, kind: str, text: str, error: BaseException) -> None:
        """Tell of an error that nobody foresaw by its type and place.

        What it says itself is never logged: it may be about anything, and a UnicodeEncodeError holds the whole text
        that it is about, an error about a header its value.
        """
        place = traceback.extract_tb(error.__traceback__)[-1:]
        where = "".join(f" at {Path(one.filename).name}:{one.lineno}" for one in place)
        self.tell(f"{kind}: {type(error).__name__}", f"{text}: {type(error).__name__}{where}")
        self._logger.debug("".join(traceback.format_tb(error.__traceback__)))

    def total(self, kind: str) -> int:
        """How often `kind` was told."""
        return self._seen[kind]

    def sum_up(self) -> None:
        """Log, for each kind that came again, how often."""
        for kind, times in sorted(self._seen.items()):
            if times > 1:
                self._logger.warning(f"toki: {printable(kind)}: {times:,} times in all")
