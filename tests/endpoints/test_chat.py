from __future__ import annotations

from typing import Any

import pytest

from toki.endpoints.chat import ChatCompletion
from toki.endpoints.chat import read_chat
from toki.endpoints.media import STAND_INS
from toki.endpoints.question import Chat
from toki.endpoints.question import Prompt
from toki.endpoints.question import Unreadable
from toki.engine.events import Kind
from toki.engine.events import Measured

CHAT = ChatCompletion("/v1/chat/completions")
TIMINGS = {"cache_n": 93, "prompt_n": 1, "prompt_ms": 13.0, "predicted_n": 3}
USAGE = {"completion_tokens": 3, "prompt_tokens": 94, "prompt_tokens_details": {"cached_tokens": 93}}
MEASURED = Measured(prompt_tokens=94, reused=93, evaluated=1, reply_tokens=3, prompt_ms=13.0, reply_text="The quick")


def user(content: object) -> list[object]:
    return [{"role": "user", "content": content}]


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        (user("hi"), Chat()),
        (user([{"type": "text", "text": "hi"}]), Chat()),
        (user(None), Chat()),
        ([{"role": "assistant", "tool_calls": [{"type": "function"}]}], Chat()),
        ([], Chat()),
        (user([{"type": "text", "text": "see"}, {"type": "video_url"}]), Unreadable("videos")),
        (user([{"type": "tool_use"}]), Unreadable("a content part of an odd type")),
        (user([{"text": "hi"}]), Unreadable("a content part of an odd type")),
        (user(["hi"]), Unreadable("a content part of an odd type")),
        (user([{"type": ["text"]}]), Unreadable("a content part of an odd type")),
        (None, Unreadable("no messages")),
        ("hi", Unreadable("no messages")),
        ({"role": "user"}, Unreadable("no messages")),
        ([None, 5, "x"], Chat()),  # the server refuses these itself, when asked to render them
    ],
)
def test_messages(messages: object, expected: Prompt) -> None:
    assert read_chat({"messages": messages}) == expected
    if expected == Chat():
        assert read_chat({"messages": messages}, converted=True) == Chat({"messages": messages})


def test_images_and_sound_are_rendered_without_their_data() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAECAw==", "detail": "high"}}
    sound = {"type": "input_audio", "input_audio": {"data": "AAECAw==", "format": "mp3"}}
    text = {"type": "text", "text": "see"}
    body = {"messages": [*user([text, image]), {"role": "assistant", "content": "hm"}, *user([sound])], "top_k": 1}
    found = read_chat(body)
    assert isinstance(found, Chat)
    assert found.body == {
        "messages": [
            *user([text, image | {"image_url": STAND_INS["image_url"]}]),
            {"role": "assistant", "content": "hm"},
            *user([sound | {"input_audio": STAND_INS["input_audio"]}]),
        ],
        "top_k": 1,
    }
    assert [(each.part, each.modality) for each in found.media] == [(image, "vision"), (sound, "audio")]
    assert found.media[0].name == found.media[1].name != ""


@pytest.mark.parametrize(
    ("image", "other"),
    [("data:image/png;base64,AA==", "data:image/png;base64,AQ=="), ("data:image/png;base64,AA==", "http://x/a.png")],
)
def test_an_image_is_named_by_its_data_alone(image: str, other: str) -> None:
    def name(url: str) -> str:
        found = read_chat({"messages": user([{"type": "image_url", "image_url": {"url": url}}])})
        assert isinstance(found, Chat)
        return found.media[0].name

    assert name(image) == name(image.replace("png", "jpeg")) != name(other)


@pytest.mark.parametrize(
    "held", [None, "x", [], {}, {"url": 5}, {"url": "http://x/a.png"}, {"url": "data:x"}, {"data": ""}]
)
def test_an_image_whose_bytes_are_not_in_the_body_has_no_name(held: object) -> None:
    found = read_chat({"messages": user([{"type": "image_url", "image_url": held}])})
    assert isinstance(found, Chat)
    assert [each.name for each in found.media] == [""]


def test_read() -> None:
    found = CHAT.read({"messages": user("hi"), "stream": True, "model": "m", "max_completion_tokens": 9, "n": 2})
    assert found.endpoint == "/v1/chat/completions"
    assert found.kind is Kind.COMPLETION
    assert found.prompt == Chat()
    assert (found.stream, found.model, found.max_tokens) == (True, "m", 9)
    assert (found.fixed, found.children) == ("n > 1", 1)
    assert found.honours_slot


def test_a_body_without_messages_is_unreadable() -> None:
    assert CHAT.read({}).prompt == Unreadable("no messages")


def measure(*chunks: dict[str, Any], finished: bool = True) -> Measured:
    meter = CHAT.meter()
    for chunk in chunks:
        meter.feed(chunk)
    return meter.measured(finished)


def plain(message: dict[str, Any], **more: Any) -> dict[str, Any]:
    choice = {"finish_reason": "stop", "index": 0, "message": {"role": "assistant", **message}}
    return {"choices": [choice], "usage": USAGE, "timings": TIMINGS, **more}


def delta(message: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"choices": [{"finish_reason": None, "index": 0, "delta": message}], **more}


FIRST = delta({"role": "assistant", "content": None})


def test_a_plain_answer() -> None:
    assert measure(plain({"content": "The quick"})) == MEASURED


def test_a_stream_has_timings_without_being_asked() -> None:
    chunks = [FIRST, delta({"content": "The"}), delta({"content": " quick"}), delta({}, timings=TIMINGS)]
    assert measure(*chunks) == MEASURED


def test_include_usage_moves_the_figures_to_a_chunk_without_choices() -> None:
    last = {"choices": [], "usage": USAGE, "timings": TIMINGS}
    chunks = [FIRST, delta({"content": "The quick"}), delta({}), last]
    assert measure(*chunks) == MEASURED


def test_verbose_shows_the_slot() -> None:
    verbose = {"id_slot": 1, "tokens_evaluated": 94, "tokens_predicted": 3, "tokens_cached": 96}
    assert measure(FIRST, delta({}, timings=TIMINGS, __verbose=verbose)).slot == 1


def test_progress_shows_the_reuse_before_the_first_token() -> None:
    progress = {"total": 94, "cache": 93, "processed": 93, "time_ms": 0}
    found = measure(FIRST | {"prompt_progress": progress}, finished=False)
    assert (found.prompt_tokens, found.reused, found.evaluated, found.finished) == (94, 93, None, False)


@pytest.mark.parametrize(
    "hidden",
    [{"tool_calls": [{"index": 0, "function": {"name": "f"}}]}, {"reasoning_content": "hm"}],
)
def test_a_reply_that_is_not_all_content_has_no_text(hidden: dict[str, Any]) -> None:
    assert measure(plain({"content": "The", **hidden})).reply_text is None
    assert measure(FIRST, delta(hidden), delta({"content": "The"})).reply_text is None
    assert measure(plain({"content": "The", "tool_calls": None, "reasoning_content": ""})).reply_text == "The"


def test_several_choices_have_no_common_figures() -> None:
    second = {"finish_reason": "stop", "index": 1, "message": {"content": "b"}}
    assert measure(plain({"content": "a"}) | {"choices": [*plain({"content": "a"})["choices"], second]}) == Measured()
    other = {"choices": [{"index": 1, "delta": {"content": "b"}}]}
    assert measure(FIRST, other, delta({}, timings=TIMINGS)) == Measured()


def test_an_error_in_the_stream_keeps_what_was_seen() -> None:
    found = measure(FIRST, delta({"content": "The"}), {"error": {"code": 500, "message": "no"}}, finished=False)
    assert found == Measured(reply_text="The", finished=False)
