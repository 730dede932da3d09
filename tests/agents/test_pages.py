"""What a page of docs/agents claims of its agent's traffic is so of traffic of that shape, and its flags exist."""

from __future__ import annotations

import json
import os
import re
import shlex
import statistics
import subprocess
from collections import defaultdict
from functools import cache
from pathlib import Path

import pytest
from tests.agents.shapes import shape

from servers import llama_server_binary
from toki import endpoints
from toki import splice
from toki.flags import parse_flags
from traffic import Request
from traffic import chat
from traffic import messages_api
from traffic import responses_api
from traffic.request import render

DIRECTORY = Path(__file__).parents[2] / "docs" / "agents"
PAGES = sorted(path for path in DIRECTORY.glob("*.md") if path.stem != "README")
TURNS = {"turn", "fim", "again"}
ROW = re.compile(r"^\| (Endpoint|Slot|A turn keeps|Side requests share) \| (.+) \|$", re.MULTILINE)


def claims(page: Path) -> dict[str, str]:
    return {name: value.strip("`") for name, value in ROW.findall(page.read_text(encoding="utf-8"))}


def prompt(request: Request) -> str:
    """The prompt without the words that ask for the answer."""
    return render(request).removesuffix("<|im_start|>assistant\n")


def common(first: str, second: str) -> int:
    pairs = enumerate(zip(first, second, strict=False))
    return next((place for place, (one, other) in pairs if one != other), min(len(first), len(second)))


def keeps(requests: list[Request]) -> str:
    """How much of a turn's prompt the next turn of its session starts with."""
    shares = []
    before: dict[str, str] = {}
    for request in requests:
        if request.kind in TURNS and "/" not in request.session:
            text = prompt(request)
            if request.session in before:
                shares.append(common(before[request.session], text) / len(before[request.session]))
            before[request.session] = text
    middle = statistics.median(shares)
    if middle > 0.98:
        return "all" if min(shares) > 0.98 else "all, but after a rewrite"
    return "part" if middle > 0.3 else "little"


def side_requests_share(requests: list[Request]) -> str:
    """How much of itself a side request finds in the turns of its session."""
    turns: dict[str, list[str]] = defaultdict(list)
    shares = []
    for request in requests:
        session = request.session.partition("/")[0]
        if request.kind in TURNS and "/" not in request.session:
            turns[session].append(prompt(request))
        elif request.kind not in {"subagent", "compaction"} and turns[session]:
            text = prompt(request)
            shares.append(max(common(each, text) for each in turns[session]) / len(text))
    if not shares:
        return "there are none"
    return "the history" if statistics.median(shares) > 0.5 else "nothing"


def body_of(path: str, request: Request) -> dict[str, object]:
    if path.endswith("/messages"):
        return messages_api(request)
    if path.endswith("/responses"):
        return responses_api(request)
    if path == "/infill":
        text = str(request.messages[-1]["content"])
        return {"input_prefix": text, "input_suffix": "", "id_slot": 0, "cache_prompt": True, "n_predict": 128}
    return chat(request)


def slot(path: str, request: Request) -> str:
    """Whether toki can send the request to a slot, as its reader of the endpoint sees it."""
    endpoint = endpoints.match("POST", path)
    assert endpoint
    body = body_of(path, request)
    question = endpoint.read(body)
    content = json.dumps(body).encode()
    if question.fixed == "the client chose a slot":
        with pytest.raises(splice.Unsteerable):
            splice.steer(content, body, 1)
        return "the client's choice"
    assert splice.steer(content, body, 1).startswith(b'{"id_slot":1,')
    return "toki's choice" if question.honours_slot else "the server's choice; toki primes"


def test_there_is_a_page_for_each_and_all_are_listed() -> None:
    listed = re.findall(r"\]\(([\w-]+)\.md\)", (DIRECTORY / "README.md").read_text(encoding="utf-8"))
    assert sorted(listed) == [page.stem for page in PAGES]
    assert len(PAGES) == 12


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_what_a_page_claims(page: Path) -> None:
    said = claims(page)
    requests = shape(page.stem)
    path = said["Endpoint"]
    assert said == {
        "Endpoint": path,
        "Slot": slot(path, requests[0]),
        "A turn keeps": keeps(requests),
        "Side requests share": side_requests_share(requests),
    }


@cache
def known_flags() -> set[str]:
    """All options that the packaged llama-server knows."""
    binary = llama_server_binary()
    libraries = {**os.environ, "LD_LIBRARY_PATH": str(binary.parent)}
    text = subprocess.run([str(binary), "--help"], capture_output=True, text=True, env=libraries, check=True).stdout
    return set(re.findall(r"(?<![\w-])--?[a-z][\w-]*", text))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_flags_of_a_page_exist(page: Path) -> None:
    lines = re.findall(r"^llama-server .*$", page.read_text(encoding="utf-8"), re.MULTILINE)
    assert lines
    for line in lines:
        words = shlex.split(line)[1:]
        assert {word for word in words if re.match(r"--?[a-z]", word)} <= known_flags()
        parse_flags(words, {})


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_puts_toki_in_the_path(page: Path) -> None:
    assert "127.0.0.1:8081" in page.read_text(encoding="utf-8")
