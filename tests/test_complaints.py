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


def test_a_fault_is_told_by_its_place_and_not_by_its_words(caplog: pytest.LogCaptureFixture) -> None:
    """An error about a text holds the text."""
    complaints = Complaints(logging.getLogger("test"))
    words = "a secret \ud800"
    with pytest.raises(UnicodeEncodeError, match="surrogates") as caught:
        words.encode()
    assert words in caught.value.args
    with caplog.at_level(logging.DEBUG):
        complaints.fault("reading", "a fault in reading", caught.value)
    assert caplog.messages[0].startswith("toki: a fault in reading: UnicodeEncodeError at test_complaints.py:")
    assert complaints.total("reading: UnicodeEncodeError") == 1
    assert "in test_a_fault_is_told_by_its_place" in caplog.messages[1]  # where it happened, for who asks for more
    assert not [record for record in caplog.records if record.exc_info]
    assert "secret" not in caplog.text


def test_an_error_that_was_never_raised_has_no_place(caplog: pytest.LogCaptureFixture) -> None:
    Complaints(logging.getLogger("test")).fault("reading", "a fault in reading", ValueError("secret"))
    assert caplog.messages == ["toki: a fault in reading: ValueError (told once, then counted)"]


def test_nothing_reaches_a_terminal_as_it_came(caplog: pytest.LogCaptureFixture) -> None:
    complaints = Complaints(logging.getLogger("test"))
    for _ in range(2):
        complaints.tell("model \x1b[2J", "no model \x1b[2J\nfake line")
    complaints.sum_up()
    assert [message.isprintable() for message in caplog.messages] == [True, True]
