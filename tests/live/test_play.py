"""Playing traffic on real servers, straight and through toki."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import pytest
from tests.live.conftest import Llama

from play import PATHS
from play import Form
from play import Played
from play import play
from play import send
from proxy import Proxy
from proxy import mitmdump
from proxy import rows
from proxy import rows_of
from servers import LlamaServer
from traffic import SCENARIOS
from traffic import Request
from traffic.request import user


@pytest.fixture
def server(llama: Llama) -> LlamaServer:
    return llama()


@pytest.fixture
def request_() -> Request:
    return Request(session="one", messages=(user("a few words for a start " * 20),), max_tokens=6, kind="turn")


@pytest.mark.parametrize("form", list(PATHS))
@pytest.mark.parametrize("stream", [False, True])
def test_every_form_gives_its_figures(server: LlamaServer, request_: Request, form: Form, stream: bool) -> None:
    send(request_, server.url, form)
    played = send(request_, server.url, form, stream=stream)
    assert (played.status, played.form, played.aborted) == (200, form, False)
    assert played.prompt_tokens is not None
    assert played.reused == played.prompt_tokens - 1
    assert played.evaluated == 1
    assert played.reply_tokens == 6
    assert len(played.reply_text) == 6
    assert played.finish == {"chat": "length", "completion": "limit", "messages": "max_tokens"}.get(form)
    assert played.first_byte_s is not None
    assert 0 < played.first_byte_s <= played.total_s
    assert (played.slot is not None) == (form == "completion")


def test_a_client_that_leaves_in_prefill(server: LlamaServer, request_: Request) -> None:
    long = replace(request_, messages=(user("words of a long message " * 4000),), abort_after="prefill", stream=False)
    played = send(long, server.url)
    assert (played.status, played.aborted, played.first_byte_s, played.reply_text) == (200, True, None, "")


def test_a_client_that_leaves_in_an_answer(server: LlamaServer, request_: Request) -> None:
    played = send(replace(request_, abort_after=3, max_tokens=5000, stream=False), server.url, "completion")
    assert (played.status, played.aborted) == (200, True)
    assert 1 <= len(played.reply_text) < 5000


def test_a_refused_request_has_no_figures(server: LlamaServer, request_: Request) -> None:
    played = send(replace(request_, messages=(user("word " * 300_000),)), server.url)
    assert (played.status, played.prompt_tokens, played.reply_text) == (400, None, "")


def test_one_of_several_answers_goes_into_the_history(server: LlamaServer, request_: Request) -> None:
    for form in ("chat", "completion"):
        assert len(send(replace(request_, n=2), server.url, form).reply_text) == 6


def test_a_server_that_is_not_there(request_: Request) -> None:
    with pytest.raises(OSError, match="refused"):
        send(request_, "http://127.0.0.1:9")


@pytest.mark.parametrize("at_a_time", [1, 4])
def test_a_run_goes_on_with_what_was_answered(server: LlamaServer, at_a_time: int) -> None:
    told: list[Played] = []
    run = SCENARIOS["shared-preamble"].start(1, scale=0.1)
    played = play(run, server.url, at_a_time=at_a_time, told=told.append)
    assert len(played) == 72
    assert told == played
    assert not run.ready()
    for session in {one.request.session for one in played}:
        turns = [one for one in played if one.request.session == session]
        for one, following in pairwise(turns):
            assert following.request.messages[-2] == {"role": "assistant", "content": one.reply_text}
            assert following.sent_at >= one.sent_at + one.total_s
    overlapping = sum(one.sent_at + one.total_s > other.sent_at for one, other in pairwise(by_start(played)))
    assert (overlapping > 0) == (at_a_time > 1)


def by_start(played: list[Played]) -> list[Played]:
    return sorted(played, key=lambda one: one.sent_at)


@pytest.fixture
def toki(server: LlamaServer) -> Iterator[Proxy]:
    with mitmdump(server.url, options={"toki_mode": "observe"}) as proxy:
        yield proxy


def test_through_toki_there_is_a_row_for_each_request(toki: Proxy) -> None:
    assert rows(toki.db) == []
    played = play(SCENARIOS["mixed"].start(1, scale=0.05), toki.url, at_a_time=2)
    found = rows_of(toki.db, len(played))
    assert len(found) == len(played)
    told = Counter((one.prompt_tokens, one.reused) for one in played if one.reused is not None)
    kept = Counter((row["prompt_tokens"], row["reused"]) for row in found if row["reused"] is not None)
    assert not told - kept
    assert (kept - told).total() <= sum(one.aborted for one in played), "an answer may be whole before a client leaves"


def test_mitmdump_without_toki_keeps_no_rows(server: LlamaServer, request_: Request) -> None:
    with mitmdump(server.url, script=None) as proxy:
        assert send(request_, proxy.url).status == 200
        assert rows(proxy.db) == []


def test_a_proxy_that_does_not_start_says_why(server: LlamaServer) -> None:
    with (
        pytest.raises(RuntimeError, match="toki_mode"),
        mitmdump(server.url, options={"toki_mode": "wild"}),
    ):
        pass
