"""Metrics, read back by the parser of Prometheus' own client library."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families
from tests.page.test_history import OWN
from tests.page.test_history import WRITTEN

from toki.engine.events import Outcome
from toki.page.counters import Counters
from toki.page.metrics import text
from toki.page.model import Held
from toki.page.model import Saving
from toki.page.model import Server
from toki.schema import Check
from toki.schema import Found
from toki.schema import Row

URL = "http://127.0.0.1:8080"


def counted(server: str = URL) -> Counters:
    counters = Counters()
    row: dict[str, Any] = WRITTEN | {"at": time.time(), "added_ms": 3.0, "first_byte_ms": 400.0}
    counters.count(server, Row(**row, outcome=Outcome.HIT, alone=40, evaluated=60, own=(OWN, OWN)))
    counters.count(server, Row(**row, outcome=Outcome.HIT, alone=None, evaluated=60))
    counters.count(server, Row(**row, outcome=Outcome.UNKNOWN, alone=10, evaluated=None))
    counters.count(server, Found(1, "clock", "the system text", 90, 1.0, 2, "rewrite", "a verdict"))
    counters.count(server, Check(1, "substantive", 3, 60, 0, 1.0))
    return counters


def read(written: str) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    """Samples by name and labels."""
    found: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    for family in text_string_to_metric_families(written):
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(sorted(sample.labels.items()))] = sample.value
    return found


def server(name: str) -> Server:
    held = (Held(0, 100, True, 1, 2.0), Held(None, 70, False, None, None), Held(None, 30, False, None, None))
    return Server(name, "auto", "4 slots, trusted", True, 4, 4096, None, 1, 2.5, Saving(0, 0.0), held)


def test_everything_that_was_counted_is_read_back() -> None:
    found = read(text("1.2", [server(URL)], counted().servers, 7))
    here = ("server", URL)
    assert found["toki_info"] == {(("version", "1.2"),): 1}
    assert found["toki_requests_total"] == {
        (("action", "passed"), ("outcome", "hit"), here): 2,
        (("action", "passed"), ("outcome", "unknown"), here): 1,
    }
    tokens = {"prompt": 300, "reused": 120, "evaluated": 120, "alone_evaluated": 120, "reply": 3}
    for kind, number in tokens.items():
        assert found[f"toki_{kind}_tokens_total"] == {(here,): number}
    assert found["toki_own_requests_total"] == {(("purpose", "primer"), here): 2}
    assert found["toki_own_evaluated_tokens_total"] == {(("purpose", "primer"), here): 20}
    assert found["toki_reread_tokens_total"] == {(("cause", "clock"), here): 90}
    assert found["toki_checks_total"] == {(("divergence", "substantive"), here): 1}
    assert found["toki_held_seconds_count"] == {(here,): 3}
    assert found["toki_held_seconds_sum"][here,] == pytest.approx(0.009)
    assert found["toki_held_seconds_bucket"][("le", "0.0025"), here] == 0
    assert found["toki_held_seconds_bucket"][("le", "0.005"), here] == 3
    assert found["toki_first_byte_seconds_bucket"][("le", "0.5"), here] == 3
    assert found["toki_first_byte_seconds_bucket"][("le", "+Inf"), here] == 3
    assert found["toki_slot_tokens"] == {(here, ("slot", "0")): 100}
    assert found["toki_slot_busy"] == {(here, ("slot", "0")): 1}
    assert found["toki_ram_tokens"] == {(here,): 100}
    assert found["toki_ram_entries"] == {(here,): 2}
    assert found["toki_open_requests"] == {(here,): 1}
    assert found["toki_prefill_seconds_per_token"] == {(here,): 0.0025}
    assert found["toki_lost_rows_total"] == {(): 7}


@given(st.text(st.characters(codec="utf-8")))
def test_any_name_of_a_server_comes_back(name: str) -> None:
    found = read(text("1", [server(name)], counted(name).servers, 0))
    assert list(found["toki_trusted"]) == [(("server", name),)]
    assert found["toki_prompt_tokens_total"] == {(("server", name),): 300}


def test_nothing_counted_yet_is_fine() -> None:
    assert read(text("1", [], {}, 0))["toki_lost_rows_total"] == {(): 0}


def test_servers_that_are_called_the_same_have_labels_of_their_own() -> None:
    names = ["a", "a", "a (2)", "a"]
    samples = [line for line in text("", map(server, names), {}, 0).splitlines() if not line.startswith("#")]
    labels = [line.rpartition(" ")[0] for line in samples]
    assert len(labels) == len(set(labels))
    assert sum(line.startswith("toki_open_requests") for line in samples) == len(names)
