from __future__ import annotations

import logging

import pytest

from toki.complaints import Complaints


def test_each_kind_is_told_once_and_summed_up(caplog: pytest.LogCaptureFixture) -> None:
    complaints = Complaints(logging.getLogger("test"))
    for number in range(3):
        complaints.tell("deadline", f"late {number}")
    complaints.tell("fault", "broken")
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING"]
    assert "late 0" in caplog.messages[0]
    assert "broken" in caplog.messages[1]
    assert complaints.total("deadline") == 3
    caplog.clear()
    complaints.sum_up()
    assert caplog.messages == ["toki: deadline: 3 times in all"]
