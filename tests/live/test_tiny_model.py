"""The tiny model in a real server: any text goes in and comes back, and answers are the tokens they look like."""

from __future__ import annotations

from typing import Any

import pytest
import requests
from hypothesis import HealthCheck
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
from tests.live.conftest import Llama

from servers import Build
from servers import LlamaServer

ENGLISH = (
    "You are a helpful assistant. When the user asks a question, read the files of the project and answer with a short "
    "summary of what is important. Do not change any code unless you were told to.\n"
)
CODE = 'def read(path: str) -> list[str]:\n    """The lines."""\n    with open(path) as file:\n        return []\n'
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "read_file",
            "description": "Read a file",
            "parameters": {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
        },
    }
]
SOME = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture
def server(llama: Llama, build: Build) -> LlamaServer:
    return llama(build=build)


def post(server: LlamaServer, path: str, body: dict[str, Any]) -> Any:
    answer = requests.post(server.url + path, json=body, timeout=30)
    assert answer.status_code == 200, answer.text
    return answer.json()


def tokens(server: LlamaServer, text: str, **fields: Any) -> list[int]:
    found: list[int] = post(server, "/tokenize", {"content": text, **fields})["tokens"]
    return found


@SOME
@given(text=st.text())
def test_any_text_survives(server: LlamaServer, text: str) -> None:
    ids = tokens(server, text, parse_special=False)
    assert post(server, "/detokenize", {"tokens": ids})["content"] == text


def test_tokens_are_as_long_as_those_of_real_models(server: LlamaServer) -> None:
    assert len(ENGLISH) / len(tokens(server, ENGLISH)) > 3
    assert len(CODE) / len(tokens(server, CODE)) > 1.8


@SOME
@given(
    prompt=st.one_of(st.text(min_size=1), st.sampled_from([ENGLISH, CODE, "A", " ", "  ", "\n", "x  ", "the T", "'"])),
    temperature=st.sampled_from([0.0, 0.8, 2.0]),
)
def test_an_answer_tokenised_anew_is_what_was_sampled(server: LlamaServer, prompt: str, temperature: float) -> None:
    body = {"prompt": prompt, "n_predict": 12, "return_tokens": True, "temperature": temperature}
    answer = post(server, "/completion", body)
    reply = answer["content"]
    assert len(reply) == 12
    assert set(reply) <= set("ABCDEFGHIJKLMNOPQRSTUVWXYZ")
    assert tokens(server, reply) == answer["tokens"]
    before = tokens(server, prompt, add_special=True)
    assert tokens(server, prompt + reply, add_special=True) == before + answer["tokens"]


def test_answers_depend_on_the_prompt(server: LlamaServer) -> None:
    bodies = [{"prompt": f"{ENGLISH}{number}", "n_predict": 16, "temperature": 0} for number in range(20)]
    answers = {post(server, "/completion", body)["content"] for body in bodies}
    assert len(answers) > 10


def test_conversations_extend_their_own_tokens(server: LlamaServer) -> None:
    """A chat's next prompt begins with the last prompt and its answer: what all reuse rests on."""
    messages: list[dict[str, Any]] = [{"role": "system", "content": ENGLISH}, {"role": "user", "content": "Hello."}]
    body = {"messages": messages, "tools": TOOLS, "max_tokens": 8}
    prompt = post(server, "/apply-template", body)["prompt"]
    reply = post(server, "/v1/chat/completions", body)["choices"][0]["message"]["content"]
    messages += [{"role": "assistant", "content": reply}, {"role": "user", "content": "And then?"}]
    longer = post(server, "/apply-template", body)["prompt"]
    assert longer.startswith(prompt + reply)
    again = post(server, "/v1/chat/completions", body)
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] >= len(tokens(server, prompt, add_special=True)) + 7


def test_template_renders_tools_calls_and_results(server: LlamaServer) -> None:
    call = {"id": "call1", "type": "function", "function": {"name": "read_file", "arguments": '{"path": "a.txt"}'}}
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Read a.txt."},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call1", "content": "its text"},
    ]
    prompt = post(server, "/apply-template", {"messages": messages, "tools": TOOLS})["prompt"]
    parts = ["Read a file", "Be brief.", "Read a.txt.", '"name": "read_file"', '"a.txt"', "its text", "assistant\n"]
    places = [prompt.rindex(part) for part in parts]
    assert places == sorted(places)
    answer = post(server, "/v1/chat/completions", {"messages": messages, "tools": TOOLS, "max_tokens": 4})
    assert answer["usage"]["prompt_tokens"] == len(tokens(server, prompt, add_special=True))
