from __future__ import annotations

from toki.endpoints.infill import Infill
from toki.endpoints.question import Unreadable
from toki.engine.events import Kind


def test_the_prompt_is_unknown_but_the_task_is_known() -> None:
    body = {"input_prefix": "def f(", "input_suffix": "return x", "prompt": "", "id_slot": 0, "n_predict": 128}
    found = Infill("/infill").read(body)
    assert found.endpoint == "/infill"
    assert found.kind is Kind.INFILL
    assert found.prompt == Unreadable("the prompt of /infill can't be had")
    assert (found.fixed, found.client_slot, found.max_tokens) == ("the client chose a slot", 0, 128)


def test_answers_have_the_form_of_completion() -> None:
    meter = Infill("/infill").meter()
    meter.feed({"content": "x", "id_slot": 2, "tokens_evaluated": 9, "timings": {"cache_n": 4, "prompt_n": 5}})
    found = meter.measured(True)
    assert (found.slot, found.prompt_tokens, found.reused, found.evaluated) == (2, 9, 4, 5)
