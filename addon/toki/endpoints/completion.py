"""/completion and its two namesakes: a prompt as text or token ids, no template."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from toki.endpoints.figures import Figures
from toki.endpoints.figures import Reply
from toki.endpoints.figures import choice
from toki.endpoints.media import image
from toki.endpoints.options import INT32_MAX
from toki.endpoints.options import question
from toki.endpoints.question import Ids
from toki.endpoints.question import Prompt
from toki.endpoints.question import Question
from toki.endpoints.question import Raw
from toki.endpoints.question import Unreadable
from toki.engine.events import Measured

ODD = Unreadable("a prompt of an odd type")


def read_prompt(prompt: object) -> tuple[Prompt, int]:
    """The prompt as the server splits it, and how many prompts it is.

    Source: server-common.cpp, tokenize_input_prompts. An array without any integer is a list of prompts; one prompt
    in such a list is one task like any other.
    """
    if isinstance(prompt, list) and not any(type(element) is int for element in prompt):
        if len(prompt) > 1:
            return Unreadable("a list of prompts"), len(prompt)
        return (_single(prompt[0]) if prompt else Unreadable("no prompt")), 1
    return _single(prompt), 1


def _single(prompt: object) -> Prompt:
    match prompt:
        case str():
            return Raw(prompt)
        case list() if not prompt or any(type(element) is int for element in prompt):
            return _ids(prompt)
        case {"prompt_string": str(text), "multimodal_data": [*data]} if all(isinstance(each, str) for each in data):
            return Raw(text, tuple(map(image, data)))
        case {"multimodal_data": _}:
            return ODD
        case {"prompt_string": str(text)}:
            return Raw(text)
        case {"prompt_string": list(elements)}:
            return _ids(elements)
    return ODD


def _ids(elements: list[Any]) -> Prompt:
    for element in elements:
        if not isinstance(element, str) and not (type(element) is int and 0 <= element <= INT32_MAX):
            return ODD
    return Ids(tuple(elements))


@dataclass(frozen=True, slots=True)
class Completion:
    """/completion and /completions: the server's own form of answer."""

    name: str

    def read(self, body: Mapping[str, Any]) -> Question:
        prompt, prompts = read_prompt(body.get("prompt"))
        return question(self.name, body, prompt, prompts=prompts)

    def meter(self) -> ResultMeter:
        return ResultMeter()


@dataclass(frozen=True, slots=True)
class TextCompletion:
    """/v1/completions: the same prompts, answered in the form of OpenAI's completions."""

    name: str

    def read(self, body: Mapping[str, Any]) -> Question:
        prompt, prompts = read_prompt(body.get("prompt"))
        return question(self.name, body, prompt, prompts=prompts)

    def meter(self) -> TextMeter:
        return TextMeter()


class ResultMeter:
    """Answers in the server's own form. A stream's last chunk has `stop`, the slot and the timings."""

    def __init__(self) -> None:
        self._figures = Figures()
        self._reply = Reply()

    def feed(self, chunk: Mapping[str, Any]) -> None:
        self._figures.several |= chunk.get("index", 0) != 0
        self._figures.progress(chunk)
        self._figures.result(chunk)
        self._figures.timings(chunk)
        self._reply.add(chunk.get("content"))
        if chunk.get("stop_type") == "word":  # the stop word was sampled but is not shown
            self._reply.spoil()

    def measured(self, finished: bool) -> Measured:
        return self._figures.measured(finished, self._reply.text)


class TextMeter:
    """Answers in the form of OpenAI's completions. A stream's last chunk has the usage and the timings."""

    def __init__(self) -> None:
        self._figures = Figures()
        self._reply = Reply()

    def feed(self, chunk: Mapping[str, Any]) -> None:
        self._figures.openai(chunk)
        self._reply.add(choice(chunk).get("text"))

    def measured(self, finished: bool) -> Measured:
        return self._figures.measured(finished, self._reply.text)
