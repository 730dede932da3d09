"""Which endpoints' prompts are counted by the server too before they are believed.

Prompts of /v1/messages and /v1/responses are converted here as known builds do it; another may do it otherwise. So the
first ones of a server are counted beside the look-ups, which costs no time, and so are those of any endpoint for a
while after an answer told another length than was read.
"""

from __future__ import annotations

from toki.endpoints.question import Chat
from toki.endpoints.question import Question

ENOUGH = 3  # counts in a row that must agree


class Counts:
    """The doubts about one server and model. Used on the event loop only."""

    def __init__(self) -> None:
        self._left: dict[str, int] = {}  # counts that are still to agree, by endpoint

    def wanted(self, question: Question) -> bool:
        """Whether the server should count this prompt too."""
        chat = question.prompt if isinstance(question.prompt, Chat) else Chat()
        left = self._left.setdefault(question.endpoint, ENOUGH if chat.body is not None else 0)
        # What the server would have to fetch from elsewhere it shall not fetch twice.
        return left > 0 and question.count_path != "" and all(each.name for each in chat.media)

    def compare(self, question: Question, read: int, counted: int) -> bool:
        """Whether the two lengths of a prompt agree, in tokens; takes note of it."""
        left = self._left.get(question.endpoint, 0)
        self._left[question.endpoint] = max(left - 1, 0) if read == counted else ENOUGH
        return read == counted

    def uncountable(self, question: Question) -> None:
        """The server has no such endpoint: its answers alone must tell."""
        self._left[question.endpoint] = 0

    def doubt(self, endpoint: str) -> None:
        """An answer told another length than was read."""
        self._left[endpoint] = ENOUGH
