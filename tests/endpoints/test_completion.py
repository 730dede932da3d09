from __future__ import annotations

from typing import Any

import pytest

from toki.endpoints.completion import Completion
from toki.endpoints.completion import TextCompletion
from toki.endpoints.completion import read_prompt
from toki.endpoints.media import image
from toki.endpoints.question import Ids
from toki.endpoints.question import Prompt
from toki.endpoints.question import Raw
from toki.endpoints.question import Unreadable
from toki.engine.events import Kind
from toki.engine.events import Measured

ODD = Unreadable("a prompt of an odd type")
LIST = Unreadable("a list of prompts")

TIMINGS = {"cache_n": 60, "prompt_n": 1, "prompt_ms": 12.5, "predicted_n": 3, "predicted_ms": 20.1}
LAST = {
    "index": 0,
    "content": "",
    "tokens": [],
    "id_slot": 3,
    "stop": True,
    "tokens_predicted": 3,
    "tokens_evaluated": 61,
    "truncated": False,
    "stop_type": "limit",
    "tokens_cached": 63,  # the trap: what the slot holds afterwards
    "timings": TIMINGS,
}
MEASURED = Measured(prompt_tokens=61, reused=60, evaluated=1, reply_tokens=3, slot=3, prompt_ms=12.5, reply_ms=20.1)


@pytest.mark.parametrize(
    ("prompt", "expected", "prompts"),
    [
        ("text", Raw("text"), 1),
        ("", Raw(""), 1),
        ([1, 2, 3], Ids((1, 2, 3)), 1),
        ([1, "a", 2], Ids((1, "a", 2)), 1),
        (["a", 1], Ids(("a", 1)), 1),
        (["a"], Raw("a"), 1),
        ([[1, 2]], Ids((1, 2)), 1),
        ([[]], Ids(()), 1),
        ({"prompt_string": "a"}, Raw("a"), 1),
        ({"prompt_string": ["a", 1]}, Ids(("a", 1)), 1),
        (["a", "b"], LIST, 2),
        ([[1], [2], "c"], LIST, 3),
        (["a", None], LIST, 2),
        ([True, False], LIST, 2),
        ([], Unreadable("no prompt"), 1),
        ({"prompt_string": "a", "multimodal_data": ["aGk="]}, Raw("a", (image("aGk="),)), 1),
        ([{"prompt_string": "a", "multimodal_data": []}], Raw("a"), 1),
        ({"prompt_string": "a", "multimodal_data": [5]}, ODD, 1),
        ({"prompt_string": [1], "multimodal_data": []}, ODD, 1),
        (None, ODD, 1),
        (5, ODD, 1),
        (1.5, ODD, 1),
        (True, ODD, 1),
        ({}, ODD, 1),
        ({"prompt_string": 5}, ODD, 1),
        ([None], ODD, 1),
        ([1, None], ODD, 1),
        ([1, True], ODD, 1),
        ([1, 2.0, "a"], ODD, 1),
        ([1, [2]], ODD, 1),
        ([["a", "b"]], ODD, 1),
        ([-1], ODD, 1),
        ([2**31], ODD, 1),
    ],
)
def test_prompts(prompt: object, expected: Prompt, prompts: int) -> None:
    assert read_prompt(prompt) == (expected, prompts)


@pytest.mark.parametrize("endpoint", [Completion("/completions"), TextCompletion("/v1/completions")])
def test_read(endpoint: Completion | TextCompletion) -> None:
    found = endpoint.read({"prompt": "hi", "stream": True, "model": "m", "max_tokens": 5, "cache_prompt": False})
    assert found.endpoint == endpoint.name
    assert found.kind is Kind.COMPLETION
    assert found.prompt == Raw("hi")
    assert (found.stream, found.model, found.max_tokens, found.cache_prompt) == (True, "m", 5, False)
    assert found.honours_slot
    assert found.fixed == ""


@pytest.mark.parametrize("endpoint", [Completion("/completion"), TextCompletion("/v1/completions")])
def test_a_list_of_prompts_stays_as_it_is(endpoint: Completion | TextCompletion) -> None:
    found = endpoint.read({"prompt": ["a", "b"]})
    assert (found.prompt, found.prompts, found.fixed) == (LIST, 2, "a list of prompts")


def test_a_missing_prompt_is_odd() -> None:
    assert Completion("/completion").read({}).prompt == ODD


def measure(endpoint: Completion | TextCompletion, *chunks: dict[str, Any], finished: bool = True) -> Measured:
    meter = endpoint.meter()
    for chunk in chunks:
        meter.feed(chunk)
    return meter.measured(finished)


# --- /completion --------------------------------------------------------------------------------------------------

RESULT = Completion("/completion")


def chunk_of(content: str, n: int, index: int = 0) -> dict[str, Any]:
    return {
        "index": index,
        "content": content,
        "tokens": [5],
        "stop": False,
        "id_slot": -1,
        "tokens_predicted": n,
        "tokens_evaluated": 61,
    }


def with_text(text: str | None, **changes: Any) -> Measured:
    figures = {name: getattr(MEASURED, name) for name in Measured.__slots__} | {"reply_text": text} | changes
    return Measured(**figures)


def test_a_plain_answer() -> None:
    assert measure(RESULT, LAST | {"content": "The dog"}) == with_text("The dog")


def test_a_stream_shows_its_figures_at_the_end() -> None:
    assert measure(RESULT, chunk_of("The", 1), chunk_of(" dog", 2), LAST) == with_text("The dog")


def test_a_stream_that_was_cut_off_shows_what_it_had() -> None:
    found = measure(RESULT, chunk_of("The", 1), chunk_of(" dog", 2), finished=False)
    assert found == Measured(prompt_tokens=61, reply_tokens=2, reply_text="The dog", finished=False)


def test_progress_shows_the_reuse_before_the_first_token() -> None:
    progress = {"prompt_progress": {"total": 61, "cache": 60, "processed": 60, "time_ms": 0}}
    found = measure(RESULT, chunk_of("", 0) | progress, finished=False)
    assert (found.prompt_tokens, found.reused, found.evaluated) == (61, 60, None)


def test_a_stop_word_was_sampled_but_is_not_shown() -> None:
    assert measure(RESULT, LAST | {"content": "The", "stop_type": "word", "stopping_word": "."}) == with_text(None)


def test_an_answer_without_content_has_no_text_rather_than_an_empty_one() -> None:
    assert measure(RESULT, {"timings": TIMINGS}).reply_text is None


def test_response_fields_can_move_a_figure_to_the_root() -> None:
    found = measure(RESULT, chunk_of("a", 1), {"content": "", "timings/cache_n": 60})
    assert (found.prompt_tokens, found.reused, found.evaluated) == (61, 60, 1)


def test_a_shifted_context_is_told() -> None:
    assert measure(RESULT, LAST | {"truncated": True}).truncated
    assert not measure(RESULT, LAST | {"truncated": "yes"}).truncated


def test_the_figures_of_one_of_several_results_are_not_those_of_the_request() -> None:
    assert measure(RESULT, chunk_of("a", 1), chunk_of("b", 1, index=1), LAST) == Measured()
    assert measure(RESULT, LAST, LAST | {"index": 1}) == Measured()


def test_no_answer_no_figures() -> None:
    assert measure(RESULT, finished=False) == Measured(finished=False)
    assert measure(RESULT, {"error": {"code": 400, "message": "no"}}) == Measured()


# --- /v1/completions ----------------------------------------------------------------------------------------------

TEXT = TextCompletion("/v1/completions")
USAGE = {
    "completion_tokens": 3,
    "prompt_tokens": 61,
    "total_tokens": 64,
    "prompt_tokens_details": {"cached_tokens": 60},
}


def text_chunk(text: str, **more: Any) -> dict[str, Any]:
    return {"choices": [{"text": text, "index": 0, "finish_reason": None}], "object": "text_completion", **more}


def test_a_plain_text_answer() -> None:
    assert measure(TEXT, text_chunk("The dog", usage=USAGE, timings=TIMINGS)) == with_text("The dog", slot=None)


def test_a_text_stream() -> None:
    chunks = [text_chunk("The"), text_chunk(" dog"), text_chunk("", usage=USAGE, timings=TIMINGS)]
    assert measure(TEXT, *chunks) == with_text("The dog", slot=None)


def test_usage_alone_gives_the_reuse() -> None:
    found = measure(TEXT, text_chunk("The dog", usage=USAGE))
    assert found == with_text("The dog", slot=None, prompt_ms=None, reply_ms=None)


def test_verbose_shows_the_slot() -> None:
    verbose = LAST | {"truncated": True}
    found = measure(TEXT, text_chunk("a") | {"__verbose": {"id_slot": -1}}, text_chunk("b", __verbose=verbose))
    assert (found.slot, found.truncated, found.prompt_tokens) == (3, True, 61)


def test_several_choices_have_no_common_figures() -> None:
    two = {"choices": [{"text": "a", "index": 0}, {"text": "b", "index": 1}], "usage": USAGE, "timings": TIMINGS}
    assert measure(TEXT, two) == Measured()
    second = {"choices": [{"text": "b", "index": 1}]}
    assert measure(TEXT, text_chunk("a"), second, text_chunk("", usage=USAGE)) == Measured()
