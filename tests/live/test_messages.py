"""/v1/messages on real servers: what toki makes of a body is what the server makes of it."""

from __future__ import annotations

import pytest
from tests.endpoints.corpus import bodies
from tests.live.converted import Body
from tests.live.converted import asked
from tests.live.converted import check_figures_and_text
from tests.live.converted import check_whether_a_slot_is_honoured
from tests.live.converted import lengths
from tests.live.converted import misread
from tests.live.converted import not_found
from tests.live.converted import server
from tests.live.converted import tiny
from tests.live.converted import two_slots

from servers import LlamaServer
from toki.endpoints.messages import to_chat

__all__ = ["server", "tiny", "two_slots"]

PATH = "/v1/messages"
SAMPLE = ("tool_loop_1", "unicode", "chat_strings")


def short(body: Body) -> Body:
    """The same prompt, answered with a few tokens, always the same: a stream whose reply is empty shows no figures."""
    return {**body, "max_tokens": 16, "temperature": 0}


def test_every_body_is_as_long_as_the_server_counts(server: LlamaServer) -> None:
    found = lengths(server, PATH, bodies("messages"))
    assert {name: pair for name, pair in found.items() if pair[0] != pair[1]} == {}
    assert sum(count is not None for _, count in found.values()) >= 55


def test_every_answer_and_the_servers_own_conversion_agree(tiny: LlamaServer) -> None:
    asking = {name: short(body) for name, body in bodies("messages").items()}
    assert misread(tiny, PATH, asking, to_chat, dropped=("model",)) == {}


def test_the_tokens_are_those_that_the_server_finds_in_its_slot(server: LlamaServer) -> None:
    assert not_found(server, PATH, {name: short(bodies("messages")[name]) for name in SAMPLE}) == {}


def test_the_stamp_of_the_attribution_line_does_not_count(tiny: LlamaServer) -> None:
    body = short(bodies("messages")["start"])
    stamp = body["system"][0]["text"]
    other = {**body, "system": [{"type": "text", "text": stamp[:-6] + "0c0de;"}, *body["system"][1:]]}
    assert stamp != other["system"][0]["text"]
    asked(tiny, PATH, body)
    measured = asked(tiny, PATH, other)
    assert measured is not None
    assert measured.evaluated == 1


@pytest.mark.parametrize("stream", [False, True])
def test_the_figures_and_the_text_of_an_answer(tiny: LlamaServer, stream: bool) -> None:
    body = {"messages": [{"role": "user", "content": f"Say it, stream {stream}."}], "max_tokens": 8, "stream": stream}
    check_figures_and_text(tiny, PATH, body)


def test_whether_a_slot_is_honoured(two_slots: LlamaServer) -> None:
    body = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 1}
    check_whether_a_slot_is_honoured(two_slots, PATH, body)
