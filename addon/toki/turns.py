"""Turns: what a chat template writes before each user message.

On a sliding-window model the server keeps a checkpoint where a user message starts, so what it reuses cannot be told
without knowing where that is. It finds the places by the tokens of a delimiter, which no endpoint shows; the template
itself shows it, when it is asked to render a chat whose messages are known.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import takewhile

_FIRST, _ANSWER, _SECOND = "Xfirst1X", "Xanswer2X", "Xsecond3X"


def user_delimiter(render: Callable[[bytes], str]) -> str:
    """What stands before each user message; "" where the template does not tell.

    `render` turns the JSON of a chat request into its prompt, as /apply-template does; its errors go to the caller.
    """
    messages = [
        {"role": "user", "content": _FIRST},
        {"role": "assistant", "content": _ANSWER},
        {"role": "user", "content": _SECOND},
    ]
    text = render(json.dumps({"messages": messages, "add_generation_prompt": False}).encode())
    before_first, found, rest = text.partition(_FIRST)
    before_second, found_too, after = rest.partition(_ANSWER)[2].partition(_SECOND)
    if not (found and found_too):
        return ""
    pairs = zip(reversed(before_first), reversed(before_second), strict=False)
    shared = "".join(one for one, _ in takewhile(lambda pair: pair[0] == pair[1], pairs))[::-1]
    # A default system message may end as a user message does. White space may become one token with what follows.
    return shared.removeprefix(after).rstrip()
