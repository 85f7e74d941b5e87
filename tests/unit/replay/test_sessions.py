"""Recorded sessions as data."""

from __future__ import annotations

from breakloop.replay.sessions import Label, Session, Turn
from tests.unit.replay.recorded import asks


def test_what_is_not_recorded_is_not_known() -> None:
    """No label is neither yes nor no, and no time is none (X-5)."""
    assert Session("a").label == Label(None)
    assert asks("Hello.").at_s is None
    assert Session("a").named
    assert Session("a").lane == ""


def test_turns_do_not_share_their_headers() -> None:
    """A default that is changed by one would be seen by all."""
    one, other = asks("a"), asks("b")
    assert isinstance(one, Turn)
    assert one.headers == {}
    assert one.headers is not other.headers
