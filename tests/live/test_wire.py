"""What endpoints/, splice.py and sse.py believe of the server, checked against real ones."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest
import requests

from servers import BUILDS
from servers import Build
from servers import Flags
from servers import LlamaServer
from servers import start
from servers import tiny_model
from toki.endpoints import ENDPOINTS
from toki.endpoints import match
from toki.endpoints.question import Chat
from toki.endpoints.question import Endpoint
from toki.endpoints.question import Ids
from toki.endpoints.question import Question
from toki.endpoints.question import Raw
from toki.engine.events import Measured
from toki.splice import Unsteerable
from toki.splice import parse
from toki.splice import steer
from toki.sse import EventReader

pytestmark = pytest.mark.live

SLOTS = 3  # no power of two, so that wrapping in 32 bits shows
STEERABLE = ["/completion", "/completions", "/v1/completions", "/chat/completions", "/v1/chat/completions"]
Json = dict[str, Any]
ENDPOINTS_BY_NAME = {endpoint.name: endpoint for endpoint in ENDPOINTS}


@pytest.fixture(scope="module", params=BUILDS)
def server(request: pytest.FixtureRequest) -> Iterator[LlamaServer]:
    build: Build = request.param
    with start(tiny_model(), Flags(n_parallel=SLOTS, n_ctx=SLOTS * 1024), build) as running:
        yield running


def post(server: LlamaServer, path: str, content: bytes | Json) -> requests.Response:
    """A connection of its own each time: this server can break one after a stream."""
    data = content if isinstance(content, bytes) else json.dumps(content).encode()
    headers = {"Content-Type": "application/json", "Connection": "close"}
    return requests.post(server.url + path, data=data, headers=headers, stream=True, timeout=60)


def chunks(response: requests.Response) -> list[Any]:
    """The JSON values of an answer: one of a plain one, those of all events of a stream."""
    if not response.headers["Content-Type"].startswith("text/event-stream"):
        return [response.json()]
    reader = EventReader()
    events = [event for data in response.iter_content(7) for event in reader.feed(data)]
    assert reader.dropped == 0
    return [json.loads(event) for event in events if event != b"[DONE]"]


def measure(endpoint: Endpoint, response: requests.Response) -> tuple[Measured, list[Json]]:
    assert response.status_code == 200, response.text
    fed = chunks(response)
    meter = endpoint.meter()
    for chunk in fed:
        meter.feed(chunk)
    return meter.measured(True), fed


def tokens(server: LlamaServer, question: Question, body: bytes) -> list[int]:
    """The prompt as the server's own look-ups give it."""
    match question.prompt:
        case Chat(None):
            text = post(server, "/apply-template", body).json()["prompt"]
        case Raw(text):
            pass
        case Ids(ids):
            text = list(ids)
        case prompt:
            raise AssertionError(prompt)
    found = post(server, "/tokenize", {"content": text, "add_special": True, "parse_special": True}).json()["tokens"]
    assert isinstance(found, list)
    return found


def idle_slot(server: LlamaServer, slot: int) -> Json:
    """What GET /slots says of `slot` once it is idle: a slot is released a moment after the last byte."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        view: Json = requests.get(server.url + "/slots", timeout=10).json()[slot]
        if not view["is_processing"]:
            return view
    raise AssertionError(f"slot {slot} stays busy")


def common_prefix(left: list[int], right: list[int]) -> int:
    return next((i for i, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right)))


def bodies(route: str, seed: str) -> tuple[Json, Json]:
    """Two requests of which the second extends the first."""
    opening = f"{seed} and then a long story about a river and the people who live by it. " * 4
    if "chat" in route:
        turns = [{"role": "system", "content": opening}, {"role": "user", "content": "What happened next?"}]
        more = [*turns, {"role": "user", "content": "Tell me the rest."}]
        return {"messages": turns, "max_tokens": 6}, {"messages": more, "max_tokens": 6}
    return {"prompt": opening, "max_tokens": 6}, {"prompt": opening + "what happened next is this", "max_tokens": 6}


# --- figures ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("asked", [{}, {"verbose": True, "return_progress": True, "timings_per_token": True}])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("route", STEERABLE)
def test_a_spliced_request_goes_to_its_slot_and_its_figures_are_true(
    server: LlamaServer, route: str, stream: bool, asked: Json
) -> None:
    endpoint = match("POST", route)
    assert endpoint is not None
    slot = 1
    held: list[int] = []
    post(server, "/completion", {"prompt": [5], "id_slot": slot, "n_predict": 1}).close()  # forget the last test
    idle_slot(server, slot)
    for body in bodies(route, f"{route} {stream} {sorted(asked)}"):
        content = json.dumps(body | asked | {"stream": stream, "ignore_eos": True}).encode()
        question = endpoint.read(parse(content, None))
        prompt = tokens(server, question, content)
        found, fed = measure(endpoint, post(server, route, steer(content, parse(content, None), slot)))

        timings = next(chunk["timings"] for chunk in reversed(fed) if "timings" in chunk)
        assert (found.reused, found.evaluated) == (timings["cache_n"], timings["prompt_n"])
        assert (found.reply_tokens, found.prompt_ms) == (timings["predicted_n"], timings["prompt_ms"])
        assert found.prompt_tokens == len(prompt)
        assert found.reused is not None
        assert found.evaluated is not None
        assert found.reply_tokens is not None
        assert found.reused + found.evaluated == len(prompt)
        assert found.reply_tokens == body["max_tokens"]
        if held:  # the second prompt finds the first one in the slot, and perhaps some of its reply
            common = common_prefix(held, prompt)
            assert common > 20
            assert common <= found.reused <= common + body["max_tokens"]
        held = prompt

        after = idle_slot(server, slot)  # an independent witness of slot, prompt and reply
        assert after["n_prompt_tokens"] == found.prompt_tokens + found.reply_tokens - 1
        if endpoint.name in ("/completion", "/completions") or asked:
            assert found.slot == slot
        else:
            assert found.slot is None
        assert found.reply_text is not None
        assert len(found.reply_text) > 0
        assert not found.truncated


def test_tokens_cached_is_not_the_reuse(server: LlamaServer) -> None:
    response = post(server, "/completion", {"prompt": "some words to trap us", "n_predict": 3, "id_slot": 2})
    found, fed = measure(ENDPOINTS_BY_NAME["/completion"], response)
    assert fed[0]["tokens_evaluated"] == found.prompt_tokens
    assert fed[0]["tokens_cached"] != found.reused


def test_include_usage_agrees_with_the_timings(server: LlamaServer) -> None:
    endpoint = ENDPOINTS_BY_NAME["/v1/chat/completions"]
    body, _ = bodies(endpoint.name, "usage")
    content = body | {"stream": True, "stream_options": {"include_usage": True}}
    found, fed = measure(endpoint, post(server, endpoint.name, content))
    usage = fed[-1]["usage"]
    assert usage["prompt_tokens"] == found.prompt_tokens
    assert usage["prompt_tokens_details"]["cached_tokens"] == found.reused
    without_timings = endpoint.meter()
    without_timings.feed({"usage": usage})
    assert without_timings.measured(True).evaluated == found.evaluated


def test_an_answer_that_hides_its_figures_shows_what_is_left(server: LlamaServer) -> None:
    endpoint = ENDPOINTS_BY_NAME["/completion"]
    body = {"prompt": "hidden figures", "n_predict": 2}
    assert measure(endpoint, post(server, "/completion", body | {"response_fields": ["model"]}))[0] == Measured()
    shown = measure(endpoint, post(server, "/completion", body | {"response_fields": ["timings/cache_n", "id_slot"]}))[
        0
    ]
    assert shown.reused is not None
    assert shown.slot is not None
    assert (shown.prompt_tokens, shown.reply_text) == (None, None)


# --- bodies -------------------------------------------------------------------------------------------------------


SLOT_LITERALS = """
    0 7 -1 -2 -5 2147483647 2147483648 4294967295 4294967297 18446744073709551615 -9223372036854775808
    1.9 -0.5 true false null "1" [1] {}
"""


@pytest.mark.parametrize("literal", SLOT_LITERALS.split())
def test_the_clients_slot_is_read_as_the_server_reads_it(server: LlamaServer, literal: str) -> None:
    content = b'{"id_slot":%s,"prompt":"whose slot","n_predict":1}' % literal.encode()
    question = ENDPOINTS_BY_NAME["/completion"].read(parse(content, None))
    assert question.fixed == "the client chose a slot"
    with pytest.raises(Unsteerable):
        steer(content, parse(content, None), 0)
    taken = post(server, "/completion", content).json()["id_slot"]
    if question.client_slot is not None:
        assert taken == question.client_slot % 2**32 % SLOTS


@pytest.mark.parametrize(
    "body",
    [
        {"n": 2},
        {"n": 2.7},
        {"n": True},
        {"n_cmpl": 1, "n": 2},
        {"n_cmpl": None, "n": 3},
        {"prompt": ["a", "b"]},
        {"prompt": ["a"]},
        {"prompt": [[3, 4], "b", [5]]},
        {"prompt": ["a", "b"], "n": 2},
    ],
)
def test_results_are_as_many_as_prompts_times_copies(server: LlamaServer, body: Json) -> None:
    content = {"prompt": "how many", "n_predict": 1} | body
    question = ENDPOINTS_BY_NAME["/completion"].read(content)
    answer = post(server, "/completion", content).json()
    results = answer if isinstance(answer, list) else [answer]
    assert len(results) == question.prompts * (1 + question.children)
    assert bool(question.fixed) == (len(results) > 1)


@pytest.mark.parametrize(
    "prompt",
    ["plain words", [3, 4, 5], [3, "and words", 4], ["words", 3], ["words"], [[3, 4]], {"prompt_string": ["a", 3]}],
)
def test_prompts_become_the_tokens_that_the_server_evaluates(server: LlamaServer, prompt: object) -> None:
    endpoint = ENDPOINTS_BY_NAME["/completion"]
    body = {"prompt": prompt, "n_predict": 1}
    found, _ = measure(endpoint, post(server, "/completion", body))
    assert found.prompt_tokens == len(tokens(server, endpoint.read(body), b""))


@pytest.mark.parametrize("prompt", [None, 5, [], [1.5], [True], [1, None], [1, [2]], [["a", "b"]], {}, [-1]])
def test_odd_prompts_are_refused_by_the_server_itself(server: LlamaServer, prompt: object) -> None:
    body = {"prompt": prompt, "n_predict": 1}
    assert not isinstance(ENDPOINTS_BY_NAME["/completion"].read(body).prompt, Raw | Ids) or prompt == [-1]
    assert post(server, "/completion", body).status_code == 400


@pytest.mark.parametrize(
    "limits",
    [
        {"max_tokens": 2},
        {"max_completion_tokens": 3, "max_tokens": 2},
        {"n_predict": 4, "max_completion_tokens": 3},
        {"n_predict": None, "max_tokens": 2.9},
    ],
)
def test_the_first_limit_counts(server: LlamaServer, limits: Json) -> None:
    for route in ("/completion", "/v1/completions"):
        endpoint = ENDPOINTS_BY_NAME[route]
        body = {"prompt": "how long", "ignore_eos": True} | limits
        assert measure(endpoint, post(server, route, body))[0].reply_tokens == endpoint.read(body).max_tokens


LITERALS = r"""
    0 -0 1.0 1e-05 1E+2 1e308 1e309 1e999 1e-999 NaN -Infinity 01 1. 123456789012345678901234567890 true True null
    "a" "\u00e9" "\u0000" "\ud83d\ude00" "\ud83d" "\uDE00" "\ud83d\u0041" "\\ud83d" "\x" "é😀" {} []
    {"a":1,"a":2} {"a":"\ud83d","a":2} [1,] {,} // 'a'
"""
VALUES = [*LITERALS.split(), "1" * 308, "9" * 309, "[" * 700 + "]" * 700, '"\t"', '"\x7f"', '"\u2028"']


def test_what_is_read_here_is_read_by_the_server(server: LlamaServer) -> None:
    random = Random(7)
    with requests.Session() as session:
        session.trust_env = False
        refused = read = 0
        for number in range(300):
            values = [VALUES[number]] if number < len(VALUES) else random.choices(VALUES, k=random.randrange(1, 4))
            pairs = [f'"{name}":{value}' for name, value in zip("xyz", values, strict=False)]
            content = ("{" + ",".join(['"content":"words"', *pairs]) + random.choice(["", " ", "\n"]) + "}").encode()
            status = session.post(server.url + "/tokenize", data=content, timeout=10).status_code
            try:
                parse(content, None)
            except Unsteerable:
                refused += status != 200
            else:
                assert status == 200, content
                read += 1
        assert read > 50
        assert refused > 50


# --- routes -------------------------------------------------------------------------------------------------------

OTHERS = """
    /tokenize /detokenize /apply-template /embeddings /v1/embeddings /rerank /v1/rerank /v1/messages/count_tokens
    /v1/responses/input_tokens /v1/chat/completions/input_tokens /v1/chat/completions/control /v1/audio/transcriptions
"""


@pytest.mark.parametrize("build", BUILDS)
def test_every_route_exists_behind_an_api_prefix(build: Build) -> None:
    with start(tiny_model(), Flags(n_parallel=1, n_ctx=512, api_prefix="/llm"), build) as server:
        for endpoint in ENDPOINTS:
            assert match("POST", "/llm" + endpoint.name + "?a=b") is endpoint
            assert post(server, endpoint.name + "?a=b", {}).status_code != 404, endpoint.name
        for route in OTHERS.split():
            assert match("POST", "/llm" + route) is None
            assert post(server, route, {}).status_code != 404, route


def test_a_refusal_has_no_figures(server: LlamaServer) -> None:
    for endpoint in ENDPOINTS:
        response = post(server, endpoint.name, {})  # /infill: this model knows no gaps
        assert response.status_code >= 400
        meter = endpoint.meter()
        meter.feed(response.json())
        assert meter.measured(True) == Measured()
