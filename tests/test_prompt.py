"""PromptReader against a small tokenizer with odd rules; tests/live/test_prompt.py asks real ones."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any
from typing import cast

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.toy_tokenizer import CONTROL
from tests.toy_tokenizer import ToyTokenizer

from toki.endpoints.chat import read_chat
from toki.endpoints.question import Chat
from toki.endpoints.question import Ids
from toki.endpoints.question import Media
from toki.endpoints.question import Prompt
from toki.endpoints.question import Question
from toki.endpoints.question import Raw
from toki.endpoints.question import Unreadable
from toki.engine.tokens import Tokens
from toki.prompt import BEYOND
from toki.prompt import PromptReader
from toki.prompt import UnreadablePrompt
from toki.prompt import image_starts
from toki.server import Auth
from toki.server import LlamaServerBackend
from toki.server import Props
from toki.server import ServerError

AUTH = Auth("Bearer x")
PROPS = Props(4, 512, "b1", "/m", "<|a|><b>[C]", "<s>", "", False, {"vision": True}, "<__media__>", False)
LATER = 1e9


class Toy:
    """The server's side: its calls are `asked`, and `error` is raised by the call that is named so."""

    def __init__(self, **tokenizer: bool) -> None:
        self.tokenizer = ToyTokenizer(**tokenizer)
        self.asked: list[Any] = []
        self.errors: dict[str, ServerError] = {}
        self.timeouts: list[float] = []
        self.late = 0.0  # seconds that each call takes

    def props(self, auth: Auth, timeout: float, model: str = "") -> Props:
        self._note("props", auth, timeout, model)
        return PROPS

    def apply_template(self, body: bytes, auth: Auth, timeout: float) -> str:
        self._note("apply_template", auth, timeout, body)
        return "".join(f"<|a|>{shown(message['content'])}<b>" for message in json.loads(body)["messages"])

    def count(self, path: str, body: bytes, auth: Auth, timeout: float) -> int:
        """An image takes as many tokens as its data has characters, and one for the frame."""
        self._note("count", auth, timeout, path)
        image = json.loads(body)["messages"][0]["content"][0]["image_url"]["url"]
        return len(whole("<|a|><b>")) + len(image.partition(",")[2]) + 1

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
        self._note("tokenize", auth, timeout, content)
        return self.tokenizer(content, add_special=add_special, parse_special=parse_special)

    def _note(self, call: str, auth: Auth, timeout: float, what: Any) -> None:
        assert auth is AUTH
        self.asked.append((call, what))
        self.timeouts.append(timeout)
        if self.late:
            threading.Event().wait(self.late)
        if call in self.errors:
            raise self.errors[call]


def shown(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "".join(part["text"] if part["type"] == "text" else PROPS.media_marker for part in content)


def chat(*content: str | tuple[str]) -> Chat:
    """A message of texts and images; an image is a tuple of its URL."""
    parts = [
        {"type": "text", "text": each}
        if isinstance(each, str)
        else {"type": "image_url", "image_url": {"url": each[0]}}
        for each in content
    ]
    found = read_chat({"messages": [{"role": "user", "content": parts}]})
    assert isinstance(found, Chat)
    return found


def reader(toy: Toy) -> PromptReader:
    return PromptReader(cast(LlamaServerBackend, toy))


def read(
    prompts: PromptReader, prompt: Prompt, body: bytes = b"", model: str = "", deadline: float = LATER
) -> list[int]:
    tokens = prompts.read(Question("/x", prompt, model=model), body, AUTH, deadline)
    assert tokens == Tokens.of(tokens.ids)
    return list(tokens.ids)


def whole(text: str) -> list[int]:
    return list(ToyTokenizer()(text, add_special=True))


def test_a_chat_is_rendered_from_the_clients_bytes() -> None:
    toy, body = Toy(), b'{ "messages": [{"content":"ab"}] }'
    assert read(reader(toy), Chat(), body) == whole("<|a|>ab<b>")
    assert ("apply_template", body) in toy.asked


def test_a_converted_chat_is_rendered_from_what_it_became() -> None:
    assert read(reader(Toy()), Chat({"messages": [{"content": "ab"}]}), b"{}") == whole("<|a|>ab<b>")


def test_raw_text() -> None:
    assert read(reader(Toy()), Raw("abc<b>é")) == whole("abc<b>é")
    assert reader(Toy()).text(Question("/x", Raw("abc")), b"", AUTH, LATER) == "abc"


def test_ids_stay_as_they_are() -> None:
    toy = Toy()
    assert read(reader(toy), Ids((5, 0, 2**31 - 1))) == [5, 0, 2**31 - 1]
    assert read(reader(toy), Ids(())) == []
    assert toy.asked == []


def test_mixed_ids_get_special_tokens_only_before_a_text() -> None:
    assert read(reader(Toy()), Ids((5, "ab"))) == [5, 101]
    assert read(reader(Toy()), Ids(("ab", 5))) == [4, 101, 5]


@pytest.mark.parametrize("ids", [(-1,), (2**31,), (10**30,)])
def test_odd_ids_cannot_be_read(ids: tuple[int, ...]) -> None:
    with pytest.raises(UnreadablePrompt, match=r"^token ids of the prompt are out of range$"):
        read(reader(Toy()), Ids(ids))


def test_what_cannot_be_read_says_why() -> None:
    with pytest.raises(UnreadablePrompt, match=r"^a list of prompts$"):
        read(reader(Toy()), Unreadable("a list of prompts"))
    with pytest.raises(UnreadablePrompt, match="Unicode"):
        read(reader(Toy()), Raw("\ud800"))
    with pytest.raises(UnreadablePrompt, match="its images"):
        read(reader(Toy()), Chat(), b'{"messages": [{"content": "see <__media__>"}]}')
    with pytest.raises(UnreadablePrompt, match="token ids"):
        reader(Toy()).text(Question("/x", Ids((1,))), b"", AUTH, LATER)


CAT, DOG = ("data:image/png;base64,CAT=",), ("data:image/png;base64,DO==",)


def test_an_image_is_as_many_tokens_as_the_server_counts() -> None:
    toy = Toy()
    prompts = reader(toy)
    ids = read(prompts, chat("ab", CAT, "abc", DOG))
    cat, dog = ids[4], ids[-2]
    assert ids == [*whole("<|a|>ab"), *[cat] * 5, *whole("abc")[1:], *[dog] * 5, CONTROL["<b>"]]
    assert min(cat, dog) >= BEYOND
    assert cat != dog
    assert image_starts(Tokens.of(ids)) == (3, 3 + 5 + 1)
    before = len(toy.asked)
    assert read(prompts, chat("ab", CAT, "abc", DOG)) == ids
    assert [call for call, _ in toy.asked[before:]] == ["apply_template"]
    assert read(prompts, chat(CAT, DOG, DOG, "ab"))[2:-2] == [cat] * 5 + [dog] * 10


def test_the_data_of_an_image_goes_to_the_count_alone() -> None:
    toy = Toy()
    read(reader(toy), chat("ab", CAT, CAT))
    assert sum(call == "count" for call, _ in toy.asked) == 1
    assert not any(b"CAT" in what for call, what in toy.asked if isinstance(what, bytes))


@pytest.mark.parametrize(("image", "error"), [(("http://x/a.png",), None), (CAT, 400), (CAT, 404)])
def test_of_an_image_without_a_length_what_is_before_it_is_known(image: tuple[str], error: int | None) -> None:
    toy = Toy()
    if error is not None:
        toy.errors["count"] = ServerError("no", error)
    with pytest.raises(UnreadablePrompt, match="images whose length") as caught:
        read(reader(toy), chat("ab", image, "abc"))
    assert caught.value.head == Tokens.of(whole("<|a|>ab"))
    toy.errors.clear()
    if error is not None:
        assert len(read(reader(toy), chat("ab", image, "abc"))) == 10


def test_an_image_that_is_not_shown_cannot_be_read() -> None:
    with pytest.raises(UnreadablePrompt, match="does not show each of its images"):
        read(reader(Toy()), chat("ab", PROPS.media_marker, CAT))


def test_images_for_a_server_that_takes_none() -> None:
    toy = Toy()
    sound = Chat({"messages": []}, (Media({}, "audio", "ab"),))
    with pytest.raises(UnreadablePrompt, match="which this server does not take"):
        read(reader(toy), sound)
    assert "count" not in [call for call, _ in toy.asked]


def test_the_server_is_asked_for_itself_once() -> None:
    toy = Toy()
    prompts = reader(toy)
    for text in ("a", "b", "c"):
        read(prompts, Raw(text), model="m")
    assert toy.asked[0] == ("props", "m")
    assert json.loads(toy.asked[1][1])["model"] == "m"
    assert [call for call, _ in toy.asked] == ["props", "apply_template"] + ["tokenize"] * 7


def test_only_what_is_new_is_tokenised() -> None:
    toy = Toy()
    prompts = reader(toy)
    first = "<|a|>ab<b>abc<|a|>"
    assert read(prompts, Raw(first)) == whole(first)
    assert read(prompts, Raw(first + "ab<b>")) == whole(first + "ab<b>")
    assert toy.asked[-1] == ("tokenize", "<|a|>ab<b>")
    assert read(prompts, Raw("<|a|>ab<b>other")) == whole("<|a|>ab<b>other")
    assert toy.asked[-1] == ("tokenize", "<b>other")
    count = len(toy.asked)
    assert read(prompts, Raw("<|a|>ab<b>other")) == whole("<|a|>ab<b>other")
    assert len(toy.asked) == count  # known as a whole


def test_without_a_seam_the_whole_is_tokenised() -> None:
    toy = Toy()
    prompts = reader(toy)
    for text in ("abcabc", "abcab\n", "<|a|>x", "<|a|>y", "abcabc<b>"):
        assert read(prompts, Raw(text)) == whole(text)
        assert toy.asked[-1] == ("tokenize", text)


def test_a_tail_that_does_not_add_up_is_followed_by_the_whole() -> None:
    toy = Toy()
    prompts = reader(toy)
    for text in ("ab<b>c", "ab<b>zz", "ab<b>zz<b>"):
        assert read(prompts, Raw(text)) == whole(text)
    assert toy.asked[-2:] == [("tokenize", "<b>zz<b>"), ("tokenize", "ab<b>zz<b>")]


def test_a_vocabulary_that_ends_texts_is_asked_for_the_whole() -> None:
    toy = Toy(eos=True)
    prompts = reader(toy)
    for text in ("ab<b>c", "ab<b>cc"):
        assert read(prompts, Raw(text)) == [*whole(text), 9]


@pytest.mark.parametrize("call", ["tokenize", "apply_template"])
def test_a_refused_proof_leaves_the_whole(call: str) -> None:
    toy = Toy()
    prompts = reader(toy)
    toy.errors[call] = ServerError("no", 400)
    with suppress(ServerError):
        read(prompts, Raw("a"))
    toy.errors.clear()
    for text in ("ab<b>c", "ab<b>cc"):
        assert read(prompts, Raw(text)) == whole(text)
        assert toy.asked[-1] == ("tokenize", text)


@pytest.mark.parametrize("call", ["props", "apply_template", "tokenize"])
def test_a_server_that_is_gone_is_an_error_and_asked_again(call: str) -> None:
    toy = Toy()
    prompts = reader(toy)
    toy.errors[call] = ServerError("gone")
    with pytest.raises(ServerError, match="gone"):
        read(prompts, Raw("a"))
    toy.errors.clear()
    assert read(prompts, Raw("a<b>")) == whole("a<b>")
    read(prompts, Raw("a<b>b"))
    assert toy.asked[-1] == ("tokenize", "<b>b")


def test_what_is_left_of_the_time_is_each_calls_timeout() -> None:
    toy = Toy()
    read(reader(toy), Raw("a"), deadline=time.monotonic() + 100)
    assert all(0 < timeout <= 100 for timeout in toy.timeouts)
    assert toy.timeouts == sorted(toy.timeouts, reverse=True)


def test_past_the_deadline() -> None:
    toy = Toy()
    with pytest.raises(TimeoutError):
        read(reader(toy), Raw("a"), deadline=time.monotonic())
    assert toy.asked == []


def test_a_call_that_took_too_long() -> None:
    toy = Toy()
    toy.errors["props"] = ServerError("no answer in time")
    toy.late = 0.02
    with pytest.raises(TimeoutError):
        read(reader(toy), Raw("a"), deadline=time.monotonic() + 0.01)


EDITS = st.lists(
    st.tuples(st.integers(0, 40), st.integers(0, 40), st.lists(st.sampled_from([*CONTROL, *"abz \n<", "<u>", "zz"]))),
    max_size=8,
)


@given(EDITS)
def test_any_edits_give_the_tokens_of_the_whole(edits: list[tuple[int, int, list[str]]]) -> None:
    """Each text is a former one with a part replaced."""
    prompts, texts = reader(Toy()), ["<|a|>ab<b>\nabc<|a|>c[C] "]
    for start, end, parts in edits:
        base = texts[start % len(texts)]
        texts.append(base[:start] + "".join(parts) + base[start + end :])
        assert read(prompts, Raw(texts[-1])) == whole(texts[-1])


def test_threads_share_one_reader() -> None:
    prompts, wrong = reader(Toy()), []

    def work(number: int) -> None:
        text = ""
        for turn in range(30):
            text += f"<|a|>{'ab' * number}<b>{turn}"
            if read(prompts, Raw(text)) != whole(text):
                wrong.append(text)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_what_is_asked_only_once_can_be_asked_before() -> None:
    toy = Toy()
    prompts = reader(toy)
    prompts.prepare(AUTH, LATER)
    before = len(toy.asked)
    assert read(prompts, Chat(), json.dumps({"messages": [{"content": "ab"}]}).encode()) == whole("<|a|>ab<b>")
    assert [call for call, _ in toy.asked[before:]] == ["apply_template", "tokenize"]
    tokens = prompts.read(Question("/x", Raw("<|a|>ab")), b"", AUTH, LATER)
    prompts.user_starts(Question("/x", Chat()), tokens, AUTH, LATER)
    assert [call for call, _ in toy.asked[before + 2 :]] == ["tokenize"]


def test_of_texts_that_begin_alike_at_once_one_is_tokenised_whole() -> None:
    toy = Toy()
    prompts = reader(toy)
    prompts.prepare(AUTH, LATER)
    before, toy.late = len(toy.asked), 0.05
    head = "<|a|>" + "long " * 1000 + "<b><|a|>"
    found: dict[int, list[int]] = {}
    threads = [
        threading.Thread(target=lambda n=n: found.update({n: read(prompts, Raw(f"{head}{n}<b>"))})) for n in range(4)
    ]
    for thread in threads:
        thread.start()
        threading.Event().wait(0.005)
    for thread in threads:
        thread.join()
    assert found == {n: whole(f"{head}{n}<b>") for n in range(4)}
    assert sum(len(what) >= 5000 for call, what in toy.asked[before:]) == 1
    texts = ["a" * 5000, "b" * 5000]  # these have nothing in common
    assert [read(prompts, Raw(text)) for text in texts] == [whole(text) for text in texts]


def test_who_waits_for_another_text_gives_up_in_time() -> None:
    """The other one's call may outlast this one's patience."""
    toy = Toy()
    prompts = reader(toy)
    prompts.prepare(AUTH, LATER)
    text = "<|a|>" + "long " * 1000
    prompts._whole[text.encode()] = threading.Event()  # never set
    with pytest.raises(TimeoutError):
        prompts.read(Question("/x", Raw(f"{text}b")), b"", AUTH, time.monotonic() + 0.05)
