"""Reads the cases and plays them: renders their requests, tokenises them, and says what a server would answer."""

from __future__ import annotations

import json
import random
import re
import tomllib
from collections.abc import Iterator
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from toki.engine.events import Believed
from toki.engine.events import Holding
from toki.engine.events import Measured
from toki.engine.rules import Rules
from toki.engine.tokens import Tokens
from toki.engine.window import Window
from toki.inspect.comparison import Prompt
from toki.inspect.comparison import compare
from toki.inspect.explain import Explainer
from toki.inspect.finding import Finding
from toki.inspect.outline import Outline
from toki.inspect.outline import of_chat
from toki.inspect.outline import of_text

HERE = Path(__file__).parent / "cases"
MS_PER_TOKEN = 2.0
_MACRO = re.compile(r"\{w (\d+) (\w+)\}")
_TOKEN = re.compile(r"<\|\w+\|>|</?\w+>| ?\w+| ?[^\w\s]|\s")
_VOCABULARY: dict[str, int] = {}
_LETTERS = "bcdfghjklmnprstvw"


@dataclass(frozen=True)
class Case:
    name: str
    file: str
    requests: list[dict[str, Any]]
    expect: list[dict[str, Any]]
    template: str
    server: Mapping[str, Any]


@dataclass(frozen=True)
class Asked:
    """One request, rendered."""

    given: dict[str, Any]
    body: dict[str, Any]
    text: str
    tokens: Tokens | None
    outline: Outline


def load() -> list[Case]:
    found = []
    for path in sorted(HERE.glob("*.toml")):
        for case in tomllib.loads(path.read_text(encoding="utf-8"))["case"]:
            found.append(
                Case(
                    case["name"],
                    path.name,
                    case["requests"],
                    case.get("expect", []),
                    case.get("template", "chatml"),
                    case.get("server", {}),
                )
            )
    return found


def play(case: Case) -> tuple[Explainer, list[tuple[Finding, ...]]]:
    """Run a case through an Explainer; what it found, request by request."""
    explainer = Explainer()
    explainer.whole = bool(case.server.get("whole"))
    ends = {n: key + 0.25 for key, given in enumerate(case.requests, 1) for n in given.get("beside", ())}
    asked: list[Asked] = []
    findings = []
    for key, request in enumerate(requests(case), 1):
        comparison = compare(Prompt(key, request.outline, request.text, request.tokens), explainer.memory.prompts)
        explainer.memory.add(comparison)
        if request.given.get("restarted"):
            explainer.restarted()
        measured = answer(case, request, asked)
        believed = beliefs(case, request, asked)
        unread = request.given.get("gone") == "in prefill"
        ran = (key, ends.get(key, key + 0.5))
        findings.append(explainer.conclude(comparison, measured, believed, unread=unread, ran=ran))
        asked.append(request)
    return explainer, findings


# --- requests ---


def requests(case: Case) -> Iterator[Asked]:
    bodies: list[dict[str, Any]] = []
    for given in case.requests:
        body = _body(given, bodies)
        bodies.append(body)
        if "raw" in body:
            text = body["raw"]
            yield Asked(given, body, text, tokenize(text), of_text(text))
            continue
        images = any(isinstance(one["content"], list) for one in body["messages"])
        text = "" if images else render(body, case.template)
        yield Asked(given, body, text, tokenize(text) if text else None, of_chat(body))


def _body(given: Mapping[str, Any], earlier: list[dict[str, Any]]) -> dict[str, Any]:
    if "raw" in given:
        return {"raw": expand(given["raw"])}
    base = earlier[given["from"] - 1 if "from" in given else -1] if earlier else {}
    if "raw" in base:
        return dict(base)
    system = given.get("system", base.get("system"))
    talk = [message(one) for one in given["messages"]] if "messages" in given else list(base.get("talk", []))
    for number, one in given.get("replace", {}).items():
        talk[int(number)] = message(one)
    talk = [one for number, one in enumerate(talk) if number not in given.get("drop", ())]
    talk += [message(one) for one in given.get("more", ())]
    names = given.get("tools", base.get("names", []))
    head = [{"role": "system", "content": expand(system)}] if system is not None else []
    body = {"system": system, "talk": talk, "names": names, "messages": head + talk}
    if names:
        order = given.get("keys", base.get("keys", ""))
        body |= {"tools": [ordered(tool(one), order) for one in names], "keys": order}
    kwargs = given.get("kwargs", base.get("chat_template_kwargs"))
    return body | ({"chat_template_kwargs": kwargs} if kwargs is not None else {})


def message(given: str | Mapping[str, Any]) -> dict[str, Any]:
    if isinstance(given, str):
        role, _, content = given.partition(": ")
        return {"role": role, "content": expand(content)}
    content = expand(given.get("content", ""))
    found: dict[str, Any] = {"role": given["role"], "content": content}
    if "images" in given:
        names = given["images"] if isinstance(given["images"], list) else ["AAAA"] * given["images"]
        urls = [f"data:image/png;base64,{name}" for name in names]
        images = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
        found["content"] = [{"type": "text", "text": content}, *images]
    if "reasoning" in given:
        found["reasoning_content"] = expand(given["reasoning"])
    if "calls" in given:
        calls = [expand(call).partition(" ") for call in given["calls"]]
        found["tool_calls"] = [
            {"id": f"c{n}", "type": "function", "function": {"name": name, "arguments": arguments}}
            for n, (name, _, arguments) in enumerate(calls)
        ]
    return found


def tool(given: str | Mapping[str, Any]) -> dict[str, Any]:
    name = given if isinstance(given, str) else given["name"]
    said = words(25, name) if isinstance(given, str) else given["description"]
    argument = {"type": "string", "description": words(8, name + "arg")}
    parameters = {"type": "object", "properties": {"arg": argument}, "required": ["arg"]}
    return {"type": "function", "function": {"name": name, "description": said, "parameters": parameters}}


def ordered(value: Any, order: str) -> Any:
    """The same JSON with its keys in another order."""
    if isinstance(value, list):
        return [ordered(one, order) for one in value]
    if not isinstance(value, dict):
        return value
    keys = list(value)
    keys = keys[::-1] if order == "reversed" else sorted(keys) if order == "sorted" else keys
    return {key: ordered(value[key], order) for key in keys}


def expand(text: str) -> str:
    return _MACRO.sub(lambda found: words(int(found[1]), found[2]), text)


@cache
def words(number: int, name: str) -> str:
    """Made-up words, the same for the same name."""
    source = random.Random(name)
    return " ".join(
        "".join(source.choice(_LETTERS) + source.choice("aeiou") for _ in range(source.randint(1, 3)))
        for _ in range(number)
    )


# --- templates and tokens ---


def render(body: Mapping[str, Any], template: str) -> str:
    """What a chat template makes of a body; each is like some real one."""
    messages = body["messages"]
    tools = "\n".join(json.dumps(one) for one in body.get("tools", []))
    tools = f"# Tools\n<tools>\n{tools}\n</tools>" if tools else ""
    system = messages[0]["content"] if messages and messages[0]["role"] == "system" else ""
    rest = messages[1:] if system else messages
    if template == "hoist":
        system = "\n".join(one["content"] for one in messages if one["role"] == "system")
        rest = [one for one in messages if one["role"] != "system"]
    kwargs = body.get("chat_template_kwargs", {})
    shown = kwargs.items() if template == "kwargs" else ()
    arguments = "".join(f"{key}: {json.dumps(value)}\n" for key, value in shown)
    head = {
        "tools first": [tools, system],
        "tools last": [system],
    }.get(template, [arguments + system, tools])
    head = [one for one in head if one]
    text = f"<|im_start|>system\n{chr(10).join(head)}<|im_end|>\n" if head else ""
    latest = max((n for n, one in enumerate(rest) if one["role"] == "user"), default=-1)
    for number, one in enumerate(rest):
        if template == "tools last" and number == latest and tools:
            text += f"{tools}\n"
        text += f"<|im_start|>{one['role']}\n"
        if one.get("reasoning_content") and (template != "qwen3" or number > latest):
            text += f"<think>\n{one['reasoning_content']}\n</think>\n\n"
        elif template == "empty think" and one["role"] == "assistant" and number > latest:
            text += "<think>\n\n</think>\n\n"
        text += one["content"].strip()
        for call in one.get("tool_calls", []):
            function = call["function"]
            call = {"name": function["name"], "arguments": json.loads(function["arguments"])}
            text += f"\n<tool_call>\n{json.dumps(call)}\n</tool_call>"
        text += "<|im_end|>\n"
    return text + "<|im_start|>assistant\n"


def tokenize(text: str) -> Tokens:
    return Tokens.of([_VOCABULARY.setdefault(piece, len(_VOCABULARY)) for piece in _TOKEN.findall(text)])


# --- the server ---


def answer(case: Case, request: Asked, asked: list[Asked]) -> Measured:
    """The server's figures: all that it could reuse, unless the case says otherwise."""
    said = request.body.get("messages", [])
    length = len(request.tokens) if request.tokens is not None else sum(len(str(one)) // 4 for one in said)
    given = request.given.get("reused")
    best = max((_common(request, one, case.template) for one in asked), default=0)
    reused: int | None = min(best, length - 1)
    match given:
        case "unknown":
            reused = None
        case str():
            kind, _, number = given.partition(" ")
            other = asked[int(number) - 1].tokens
            assert other is not None
            assert request.tokens is not None
            reused = len(other) if kind == "prompt" else request.tokens.common_prefix(other)
        case int():
            reused = given if given >= 0 else min(best, length) + given
    evaluated = None if reused is None else length - reused
    return Measured(length, reused, evaluated, request.given.get("reply"), request.given.get("slot"))


def _common(request: Asked, earlier: Asked, template: str) -> int:
    """Tokens in common with an earlier prompt and the answer to it, which is what the next request says it was."""
    if request.tokens is None or earlier.tokens is None:
        return 0
    common = request.tokens.common_prefix(earlier.tokens)
    said = earlier.body.get("messages", [])
    more = request.body.get("messages", [])
    if common >= len(earlier.tokens) - 8 and len(more) > len(said) and more[len(said)]["role"] == "assistant":
        text = render({**earlier.body, "messages": more[: len(said) + 1]}, template)
        return request.tokens.common_prefix(tokenize(text.removesuffix("<|im_start|>assistant\n")))
    return common


def beliefs(case: Case, request: Asked, asked: list[Asked]) -> Believed | None:
    """What toki would believe of the slots and the RAM cache."""
    given = request.given
    if "slots" not in given or request.tokens is None:
        return Believed(_rules(case), (), given.get("slot"), (), MS_PER_TOKEN) if case.server else None
    numbers = [(slot, n) for slot, n in enumerate(given["slots"]) if n] + [(None, n) for n in given.get("ram", ())]
    holdings = []
    for slot, number in numbers:
        tokens = asked[number - 1].tokens
        assert tokens is not None
        length = len(tokens) + asked[number - 1].given.get("reply", 60)
        shared = request.tokens.common_prefix(tokens)
        shared = min(length, len(request.tokens)) if shared == len(tokens) else shared
        holdings.append(Holding(slot, length, shared, slot in given.get("busy", ())))
    stored = sum(one.length for one in holdings if one.slot is None)
    return Believed(_rules(case), tuple(holdings), given.get("slot"), (), MS_PER_TOKEN, stored=stored)


def _rules(case: Case) -> Rules:
    server = case.server
    clears = bool(server.get("clears"))
    window = Window(tokens=server["window"]) if "window" in server else None
    return Rules(server.get("slots", 4), unified=clears, idle_save=clears, ram=server.get("ram", 0), window=window)
