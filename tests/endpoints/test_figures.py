from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toki.endpoints import ENDPOINTS
from toki.endpoints import figures
from toki.endpoints.figures import Figures
from toki.endpoints.figures import Reply
from toki.endpoints.figures import count
from toki.endpoints.figures import milliseconds
from toki.engine.events import Measured

LIES = [-1, -(2**63), 2**31, 2**63, 1.0, 60.5, float("nan"), float("inf"), True, False, "60", None, [60], {"n": 60}]


@pytest.mark.parametrize("lie", LIES)
def test_a_lie_is_no_count(lie: object) -> None:
    assert count(lie) is None


@pytest.mark.parametrize("value", [0, 1, 2**31 - 1])
def test_a_count(value: int) -> None:
    assert count(value) == value


@pytest.mark.parametrize("lie", [-1, -0.5, float("nan"), float("inf"), True, "5", None, [5], 2**40])
def test_a_lie_is_no_duration(lie: object) -> None:
    assert milliseconds(lie) is None


@pytest.mark.parametrize("value", [0, 12, 12.5])
def test_a_duration(value: float) -> None:
    assert milliseconds(value) == value


@pytest.mark.parametrize("lie", LIES)
def test_a_lie_costs_only_its_own_figure(lie: object) -> None:
    found = Figures()
    found.timings({"timings": {"cache_n": lie, "prompt_n": 5, "predicted_n": 2, "prompt_ms": 1.5}})
    found.usage({"usage": {"prompt_tokens": lie, "completion_tokens": lie, "prompt_tokens_details": lie}})
    found.result({"id_slot": lie})
    assert found.measured(True) == Measured(evaluated=5, reply_tokens=2, prompt_ms=1.5)


def test_a_lie_does_not_replace_a_figure() -> None:
    found = Figures()
    found.note(prompt_tokens=10, reused=4, slot=2, prompt_ms=1.0)
    found.note(prompt_tokens=-10, reused=4.0, slot=-1, prompt_ms=float("nan"))
    assert found.measured(True) == Measured(prompt_tokens=10, reused=4, evaluated=6, slot=2, prompt_ms=1.0)


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ((10, 4, 6), (10, 4, 6)),
        ((10, 4, None), (10, 4, 6)),
        ((10, None, 6), (10, 4, 6)),
        ((None, 4, 6), (10, 4, 6)),
        ((10, None, None), (10, None, None)),
        ((None, 4, None), (None, 4, None)),
        ((None, None, 6), (None, None, 6)),
        ((10, 11, None), (10, None, None)),  # more reused than there was
        ((10, None, 11), (10, None, None)),
        ((10, 11, 6), (10, 4, 6)),  # the impossible one is the wrong one
        ((10, 4, 11), (10, 4, 6)),
        ((10, 4, 5), (10, None, None)),  # one of them is wrong, and it can't be told which
        ((None, 2**31 - 1, 2**31 - 1), (None, 2**31 - 1, 2**31 - 1)),
    ],
)
def test_figures_add_up(told: tuple[object, ...], expected: tuple[int | None, ...]) -> None:
    found = Figures()
    found.note(prompt_tokens=told[0], reused=told[1], evaluated=told[2])
    measured = found.measured(True)
    assert (measured.prompt_tokens, measured.reused, measured.evaluated) == expected


def test_an_unfinished_answer_need_not_add_up() -> None:
    found = Figures()
    found.note(prompt_tokens=10, reused=4, evaluated=2)
    measured = found.measured(False)
    assert (measured.prompt_tokens, measured.reused, measured.evaluated) == (10, 4, 2)


def test_an_unfinished_answer_is_not_completed() -> None:
    found = Figures()
    found.note(reused=4, evaluated=2)
    assert found.measured(False) == Measured(reused=4, evaluated=2, finished=False)


# --- the reply's text ---------------------------------------------------------------------------------------------


def test_text_is_concatenated() -> None:
    reply = Reply()
    assert reply.text is None
    for piece in ("The", None, " dog", 5, ""):
        reply.add(piece)
    assert reply.text == "The dog"


def test_an_empty_text_is_a_text() -> None:
    reply = Reply()
    reply.add("")
    assert reply.text == ""


def test_a_spoilt_text_stays_spoilt() -> None:
    reply = Reply()
    reply.add("The")
    reply.spoil()
    reply.add(" dog")
    assert reply.text is None


def test_a_long_text_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "MAX_REPLY", 10)
    reply = Reply()
    reply.add("x" * 10)
    assert reply.text == "x" * 10
    reply.add("y")
    reply.add("z")
    assert reply.text is None


# --- hostile bodies and answers, at every endpoint ----------------------------------------------------------------

REQUEST_NAMES = """
    prompt messages role content type text id_slot n n_cmpl lora id scale stream model cache_prompt max_tokens
    prompt_string multimodal_data system tools input instructions thinking budget_tokens tool_choice source
    stop_sequences metadata user_id tool_use_id arguments call_id output summary name input_schema
"""
ANSWER_NAMES = """
    choices index message delta tool_calls usage prompt_tokens prompt_tokens_details cached_tokens
    completion_tokens timings cache_n prompt_n predicted_n prompt_ms __verbose prompt_progress total cache
    truncated stop_type tokens_evaluated response output_tokens input_tokens error
    cache_read_input_tokens input_tokens_details content_block stop_sequence item
"""
NAMES = st.sampled_from((REQUEST_NAMES + ANSWER_NAMES).split())
KINDS = """
    assistant tool_use tool_result thinking image document enabled function_call function_call_output reasoning
    input_text output_text message response.created response.output_text.delta text_delta
"""
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(min_value=-(2**70), max_value=2**70)
    | st.integers(min_value=-3, max_value=9)
    | st.floats()  # a body's are finite (splice.parse), an answer's need not be
    | st.sampled_from(["", "text", "image_url", "word", "user", "-1", "\ud800", *KINDS.split()]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=12,
)
OBJECTS = st.dictionaries(NAMES, VALUES, max_size=6)


@given(body=OBJECTS)
def test_no_body_raises(body: dict[str, Any]) -> None:
    for endpoint in ENDPOINTS:
        question = endpoint.read(body)
        assert question.endpoint == endpoint.name
        assert question.children >= 0
        assert question.prompts >= 1
        assert question.fixed or "id_slot" not in body or not question.honours_slot
        hash(question.fixed + question.lora)


@given(chunks=st.lists(OBJECTS, max_size=4), finished=st.booleans())
def test_no_answer_raises_and_no_figure_lies(chunks: list[dict[str, Any]], finished: bool) -> None:
    for endpoint in ENDPOINTS:
        meter = endpoint.meter()
        for chunk in chunks:
            meter.feed(chunk)
        found = meter.measured(finished)
        assert found.finished is finished
        for figure in (found.prompt_tokens, found.reused, found.evaluated, found.reply_tokens, found.slot):
            assert figure is None or (type(figure) is int and 0 <= figure < 2**31)
        if found.prompt_tokens is not None and found.reused is not None:
            assert found.reused <= found.prompt_tokens
            if finished:
                assert found.evaluated == found.prompt_tokens - found.reused
        assert found.reply_text is None or json.dumps(found.reply_text)
