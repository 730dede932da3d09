"""/v1/responses on real servers: what toki makes of a body is what the server makes of it."""

from __future__ import annotations

import pytest
from tests.endpoints.corpus import bodies
from tests.live.converted import Body
from tests.live.converted import check_figures_and_text
from tests.live.converted import check_whether_a_slot_is_honoured
from tests.live.converted import counted
from tests.live.converted import lengths
from tests.live.converted import misread
from tests.live.converted import not_found
from tests.live.converted import server
from tests.live.converted import tiny
from tests.live.converted import two_slots

from servers import LlamaServer
from toki.endpoints.responses import to_chat

__all__ = ["server", "tiny", "two_slots"]

PATH = "/v1/responses"
SAMPLE = (
    "start_other_tools",
    "tool_step_2",
    "two_answers_merge",
    "reasoning_twice",
    "unicode",
    "string_and_instructions",
)


def short(body: Body) -> Body:
    """The same prompt, answered with a few tokens.

    Where the body has tools, those tokens can end the stream with an error, before its usage: so ask for the progress.
    """
    return {**body, "max_output_tokens": 4, "stream": True, "return_progress": True}


def refused_by(server: LlamaServer) -> set[str]:
    """What this build answers with an error though it could be read: b10434 takes no images from a tool."""
    return {"image_in_output"} if counted(server, PATH, bodies("responses")["image_in_output"]) is None else set()


def test_every_body_is_as_long_as_the_server_counts(server: LlamaServer) -> None:
    found = lengths(server, PATH, bodies("responses"))
    assert {name for name, pair in found.items() if pair[0] != pair[1]} <= refused_by(server)
    assert sum(count is not None for _, count in found.values()) >= 45


def test_every_answer_and_the_servers_own_conversion_agree(tiny: LlamaServer) -> None:
    asking = {name: short(body) for name, body in bodies("responses").items()}
    assert misread(tiny, PATH, asking, to_chat, dropped=()).keys() <= refused_by(tiny)


def test_the_tokens_are_those_that_the_server_finds_in_its_slot(server: LlamaServer) -> None:
    assert not_found(server, PATH, {name: short(bodies("responses")[name]) for name in SAMPLE}) == {}


@pytest.mark.parametrize("stream", [False, True])
def test_the_figures_and_the_text_of_an_answer(tiny: LlamaServer, stream: bool) -> None:
    body = {"input": f"Say it, stream {stream}.", "max_output_tokens": 8, "stream": stream}
    check_figures_and_text(tiny, PATH, body)


def test_whether_a_slot_is_honoured(two_slots: LlamaServer) -> None:
    body = {"input": "Hello", "max_output_tokens": 1}
    check_whether_a_slot_is_honoured(two_slots, PATH, body)
