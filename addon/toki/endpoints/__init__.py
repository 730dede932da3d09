"""The API shapes of llama-server that carry prompts, one module each; `match` finds the one that a request speaks."""

from __future__ import annotations

import re

from toki.endpoints.chat import ChatCompletion
from toki.endpoints.completion import Completion
from toki.endpoints.completion import TextCompletion
from toki.endpoints.infill import Infill
from toki.endpoints.messages import Messages
from toki.endpoints.question import Endpoint
from toki.endpoints.responses import Responses

# Longest first: a shorter route can be the end of a longer one.
ENDPOINTS: tuple[Endpoint, ...] = (
    ChatCompletion("/v1/chat/completions"),
    ChatCompletion("/chat/completions"),
    TextCompletion("/v1/completions"),
    Responses("/v1/responses"),
    Messages("/v1/messages"),
    Completion("/completions"),
    Completion("/completion"),
    Responses("/responses"),
    Infill("/infill"),
)


_CHANGES = re.compile(r"/(lora-adapters|slots/[^/]+)$")


def changes_slots(path: str) -> bool:
    """Whether a POST to `path` changes what slots hold, or whether it is still of use: other adapters for requests that
    name none, a slot that is restored or erased."""
    route, _, query = path.partition("?")
    return _CHANGES.search(route) is not None and "action=save" not in query.split("&")


def match(method: str, path: str) -> Endpoint | None:
    """The prompt endpoint that `method` and `path` address; None for everything else.

    `path` may carry a query and, in front of the route, a prefix of the server (--api-prefix) or of a proxy.
    """
    if method != "POST":
        return None
    route = path.partition("?")[0]
    return next((endpoint for endpoint in ENDPOINTS if route.endswith(endpoint.name)), None)
