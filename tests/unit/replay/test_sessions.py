"""Recorded sessions as data."""

from __future__ import annotations

from breakloop.replay.sessions import RecordedSession, RecordedTurn, SessionLabel
from tests.unit.replay.recorded import asks


def test_what_is_not_recorded_is_not_known() -> None:
    """No label is neither yes nor no, and no time is none (X-5)."""
    assert RecordedSession("a").label == SessionLabel(None)
    assert asks("Hello.").at_s is None
    assert RecordedSession("a").named
    assert RecordedSession("a").gateway == ""


def test_turns_do_not_share_their_headers() -> None:
    """A default that is changed by one would be seen by all."""
    one, other = asks("a"), asks("b")
    assert isinstance(one, RecordedTurn)
    assert one.headers == {}
    assert one.headers is not other.headers
