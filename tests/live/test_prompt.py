"""Incremental tokens are the tokens of the whole: random chats and texts on real vocabularies, growing and edited."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from servers import Build
from servers import Flags
from servers import gemma3
from servers import smollm2
from servers import start
from toki.endpoints.question import Chat
from toki.endpoints.question import Ids
from toki.endpoints.question import Prompt
from toki.endpoints.question import Question
from toki.endpoints.question import Raw
from toki.prompt import PromptReader
from toki.server import Auth
from toki.server import LlamaServerBackend

pytestmark = pytest.mark.live

AUTH = Auth()
PATIENCE = 60.0
# Gemma's own template is not in the file of that package.
GEMMA = """{{ bos_token }}{% for message in messages %}{{ '<start_of_turn>' + message.role + '
' + message.content | trim + '<end_of_turn>
' }}{% endfor %}{% if add_generation_prompt %}{{ '<start_of_turn>model
' }}{% endif %}"""
SERVERS: dict[str, tuple[Callable[[], Path], Build, str | None, set[str]]] = {
    "skulk-smollm2": (smollm2, "skulk", None, {"<|im_start|>", "<|im_end|>"}),
    "skulk-gemma3": (gemma3, "skulk", GEMMA, {"<start_of_turn>", "<end_of_turn>", "<bos>", "<eos>"}),
    "xllamacpp-smollm2": (smollm2, "xllamacpp", None, {"<|im_start|>", "<|im_end|>"}),
    "xllamacpp-gemma3": (gemma3, "xllamacpp", GEMMA, {"<start_of_turn>", "<end_of_turn>", "<bos>", "<eos>"}),
}
WORDS = [
    *[
        "the",
        "def",
        "return",
        "class",
        "x=1;",
        "日本語",
        "🙂🙂",
        "naïve",
        "é",
        "12345",
        "...",
        "==",
        "=>",
        '"',
        "'",
        "\\",
        "﷽",
        "́",
        "\u200d",
        "user\n",
        "assistant\n",
    ],
    *[
        "<|im_start|>",
        "<|im_end|>",
        "<start_of_turn>",
        "<end_of_turn>",
        "<bos>",
        "<eos>",
        "<|endoftext|>",
        "<unk>",
        "</s>",
        "[INST]",
    ],
    *["<|im_start", "<|im_", "start|>", "<table>", "</table>", "<div>", "<|fim_prefix|>", "|>", "<|", "<", ">"],
    *[" ", "\n", "  ", "\t", "\n\n\n", "\r\n", "\n\n\n\n ", "      "],
]


@dataclass
class Counting(LlamaServerBackend):
    """Notes with which add_special /tokenize is asked."""

    base_url: str
    whole: list[bool] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__(self.base_url)

    def tokenize(
        self,
        content: str | Sequence[int | str],
        auth: Auth,
        timeout: float,
        *,
        add_special: bool,
        parse_special: bool = True,
        model: str = "",
    ) -> npt.NDArray[np.int32]:
        self.whole.append(add_special)
        return super().tokenize(
            content, auth, timeout, add_special=add_special, parse_special=parse_special, model=model
        )


@pytest.fixture(scope="module", params=SERVERS)
def served(request: pytest.FixtureRequest) -> Iterator[tuple[Counting, set[str]]]:
    model, build, template, controls = SERVERS[request.param]
    flags = Flags(n_parallel=1, n_ctx=256, chat_template=template, swa_full=True)
    with start(model(), flags, build) as server:
        backend = Counting(server.url)
        yield backend, controls
        backend.close()


class Checked:
    """A reader whose every answer is compared with what the server says of the whole."""

    def __init__(self, backend: Counting) -> None:
        self.reader = PromptReader(backend)
        self.backend = backend
        self.incremental = 0
        self.read(Raw("a"), "a")  # learns

    def chat(self, body: dict[str, Any]) -> None:
        content = json.dumps(body).encode()
        self.read(Chat(), self.backend.apply_template(content, AUTH, PATIENCE), content)

    def raw(self, text: str) -> None:
        self.read(Raw(text), text)

    def read(self, prompt: Prompt, text: str, body: bytes = b"") -> None:
        self.backend.whole.clear()
        tokens = self.reader.read(Question("/x", prompt), body, AUTH, time.monotonic() + PATIENCE)
        self.incremental += True not in self.backend.whole
        expected = self.backend.tokenize(text, AUTH, PATIENCE, add_special=True)
        assert tokens.ids.tolist() == expected.tolist()


def words(random: Random, most: int) -> str:
    return "".join(random.choice(WORDS) + random.choice(["", " ", "\n"]) for _ in range(random.randint(0, most)))


def test_chats(served: tuple[Counting, set[str]]) -> None:
    random, checked = Random(11), Checked(served[0])
    chats: list[list[dict[str, str]]] = []
    for _ in range(250):
        if not chats or random.random() < 0.1:
            chats.append([{"role": random.choice(["system", "user"]), "content": words(random, 40)}])
        chat = random.choice(chats[-6:])
        match random.randrange(10):
            case 0:
                random.choice(chat)["content"] = words(random, 30)
            case 1:
                chat[-1]["content"] += words(random, 5)
            case 2:
                chat = [dict(message) for message in chat[: random.randint(1, len(chat))]]
                chats.append(chat)
            case _:
                role = "assistant" if chat[-1]["role"] == "user" else "user"
                chat.append({"role": role, "content": words(random, 30)})
        checked.chat({"messages": chat})
    assert checked.incremental > 150


def test_raw_texts(served: tuple[Counting, set[str]]) -> None:
    random, checked = Random(12), Checked(served[0])
    texts = ["<bos>", ""]
    for _ in range(400):
        base = random.choice(texts[-30:])
        cut = random.randint(0, len(base))
        text = random.choice([base, base[:cut], words(random, 20)])
        text += words(random, 15) + random.choice(["", base[cut:]])
        texts.append(text[:2000])
        checked.raw(texts[-1])
    assert checked.incremental > 60


def test_mixed_ids(served: tuple[Counting, set[str]]) -> None:
    """The server puts special tokens before a mixed prompt only where a text is first, and takes ids as they are."""
    backend, _ = served
    reader = PromptReader(backend)
    for ids in (("Hello ", 6, " there"), (6, "Hello")):
        tokens = reader.read(Question("/x", Ids(ids)), b"", AUTH, time.monotonic() + PATIENCE)
        answer = backend.completion({"prompt": list(ids), "n_predict": 1, "cache_prompt": False}, AUTH, PATIENCE)
        assert answer["tokens_evaluated"] == len(tokens)
        again = backend.completion({"prompt": tokens.ids.tolist(), "n_predict": 1}, AUTH, PATIENCE)
        assert again["timings"]["cache_n"] == len(tokens) - 1


def test_the_control_tokens_of_the_template_are_learned(served: tuple[Counting, set[str]]) -> None:
    backend, controls = served
    reader = PromptReader(backend)
    text = "".join(f"{control}text" for control in sorted(controls))
    reader.read(Question("/x", Raw(text)), b"", AUTH, time.monotonic() + PATIENCE)
    for control in controls:
        backend.whole.clear()
        head = text[: text.index(control) + len(control)]
        reader.read(Question("/x", Raw(head + " other")), b"", AUTH, time.monotonic() + PATIENCE)
        assert backend.whole == [text.index(control) == 0]
