from __future__ import annotations

from typing import Any

import pytest

from toki.endpoints.options import question
from toki.endpoints.question import Question
from toki.endpoints.question import Raw
from toki.engine.events import Kind


def asked(**body: Any) -> Question:
    return question("/completion", body, Raw("x"))


def test_nothing_said_is_the_servers_default() -> None:
    assert asked() == Question(endpoint="/completion", prompt=Raw("x"))
    assert asked().kind is Kind.COMPLETION


# (id_slot, as the server reads it): tried on b10434 and b11549 with four slots, compare test_wire.py
@pytest.mark.parametrize(
    ("value", "slot"),
    [
        (0, 0),
        (7, 7),
        (-1, None),
        (-2, -2),
        (2**31 - 1, 2**31 - 1),
        (2**31, -(2**31)),
        (2**32 - 1, None),
        (2**32 + 1, 1),
        (2**64 - 1, None),
        (-(2**63), 0),
        (2**70, None),
        (1.9, 1),
        (-1.5, None),
        (-0.5, 0),
        (1e300, None),
        (float("inf"), None),
        (float("nan"), None),
        (-2147483648.9, -(2**31)),
        (2147483648.0, None),
        (True, 1),
        (False, 0),
        (None, None),
        ("1", None),
        ([1], None),
        ({}, None),
    ],
)
def test_a_slot_in_any_form_is_the_clients_choice(value: object, slot: int | None) -> None:
    found = asked(id_slot=value, n=2)
    assert found.fixed == "the client chose a slot"
    assert found.client_slot == slot


@pytest.mark.parametrize(
    ("body", "children"),
    [
        ({"n": 1}, 0),
        ({"n": 2}, 1),
        ({"n": 2.7}, 1),
        ({"n_cmpl": 3}, 2),
        ({"n_cmpl": 1, "n": 2}, 0),
        ({"n_cmpl": None, "n": 2}, 1),
        ({"n": True}, 0),
        ({"n": None}, 0),
        ({"n": 0}, 0),
        ({"n": -4}, 0),
        ({"n": "2"}, 0),
        ({"n": [2]}, 0),
    ],
)
def test_more_than_one_answer_is_never_steered(body: dict[str, Any], children: int) -> None:
    found = asked(**body)
    assert found.children == children
    assert found.fixed == ("n > 1" if children else "")


def test_a_list_of_prompts_is_never_steered() -> None:
    found = question("/completion", {"n": 2}, Raw("x"), prompts=2)
    assert (found.fixed, found.prompts, found.children) == ("a list of prompts", 2, 1)


@pytest.mark.parametrize(
    ("body", "limit"),
    [
        ({"max_tokens": 5}, 5),
        ({"max_completion_tokens": 6, "max_tokens": 5}, 6),
        ({"n_predict": 7, "max_completion_tokens": 6}, 7),
        ({"n_predict": None, "max_tokens": 5}, 5),
        ({"n_predict": 0}, 0),
        ({"n_predict": -1, "max_tokens": 5}, None),
        ({"max_tokens": 5.9}, 5),
        ({"max_tokens": "5"}, None),
    ],
)
def test_max_tokens(body: dict[str, Any], limit: int | None) -> None:
    assert asked(**body).max_tokens == limit


@pytest.mark.parametrize(
    ("lora", "canonical"),
    [
        (None, ""),
        ([], ""),
        ("0", ""),
        ([{"id": 0, "scale": 1}], "0=1.0"),
        ([{"id": 2, "scale": 0.5}, {"id": 0, "scale": 1.0}], "0=1.0 2=0.5"),
        ([{"id": 0, "scale": 1.0}, {"id": 1, "scale": 0.0}], "0=1.0"),
        ([{"id": 0, "scale": 1.0}, {"id": 0, "scale": 2}], "0=2.0"),
        ([{"id": 0, "scale": 0}], "none"),
        ([{"id": 1}], "none"),
        ([{"scale": 1}], "-1=1.0"),
        ([5, None, {"id": [], "scale": {}}], "none"),
    ],
)
def test_equal_adapter_sets_have_one_name(lora: object, canonical: str) -> None:
    assert asked(lora=lora).lora == canonical


@pytest.mark.parametrize(("value", "cached"), [(True, True), (None, True), (False, False), ("false", True), (0, True)])
def test_cache_prompt(value: object, cached: bool) -> None:
    found = asked(cache_prompt=value)
    assert found.cache_prompt is cached
    assert found.chose_cache
    assert not asked().chose_cache
    assert found.fixed == ""


@pytest.mark.parametrize(
    ("value", "stream"), [(True, True), (False, False), (None, False), ("true", False), (1, False)]
)
def test_stream(value: object, stream: bool) -> None:
    assert asked(stream=value).stream is stream


@pytest.mark.parametrize(("value", "model"), [("a", "a"), (None, ""), (5, ""), (["a"], "")])
def test_model(value: object, model: str) -> None:
    assert asked(model=value).model == model
