"""Tests of `admin.sessions`: cookies that nobody else can make."""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from dataclasses import replace
from pathlib import Path

import pytest

from breakloop.admin.auth import LASTS_S, AdminTokens, DashboardSessions
from breakloop.clock import FakeClock
from tests.admin_client import ADA, GRACE, KEY


@pytest.fixture
def sessions(clock: FakeClock) -> DashboardSessions:
    return DashboardSessions(KEY, AdminTokens([ADA, GRACE]), clock)


def test_a_session_lasts_twelve_hours(sessions: DashboardSessions, clock: FakeClock) -> None:
    """A session lasts twelve hours (Y-3)."""
    cookie = sessions.open(ADA)
    found = sessions.find(cookie)
    assert found is not None
    assert found.token is ADA
    clock.advance(12 * 3600 - 1)
    assert sessions.find(cookie) == found
    clock.advance(1)
    assert sessions.find(cookie) is None


def test_a_session_that_was_closed_stays_closed_after_a_restart(tmp_path: Path, clock: FakeClock) -> None:
    """What was closed is kept until it would have expired; a damaged file opens and breaks nothing else (Y-3)."""
    tokens = AdminTokens([ADA, GRACE])
    before = DashboardSessions(KEY, tokens, clock, tmp_path)
    closed, left_open = before.open(ADA), before.open(ADA)
    before.close(closed)
    after = DashboardSessions(KEY, tokens, clock, tmp_path)
    assert after.find(closed) is None
    assert after.find(left_open) is not None
    [file] = tmp_path.iterdir()
    assert file.stat().st_mode & 0o777 == 0o600
    clock.advance(LASTS_S + 1)
    last = DashboardSessions(KEY, tokens, clock, tmp_path)
    assert last._closed == {}
    file.write_bytes(b"\xff\x00 nonsense")
    again = DashboardSessions(KEY, tokens, clock, tmp_path)
    cookie = again.open(ADA)
    again.close(cookie)
    assert DashboardSessions(KEY, tokens, clock, tmp_path).find(cookie) is None


def test_names_may_contain_dots(clock: FakeClock) -> None:
    """A cookie separates its parts by dots (Y-3)."""
    token = replace(ADA, name="ada.b.example.com")
    sessions = DashboardSessions(KEY, AdminTokens([token]), clock)
    found = sessions.find(sessions.open(token))
    assert found is not None
    assert found.token is token


def test_every_session_has_its_own_csrf_text(sessions: DashboardSessions) -> None:
    texts = {found.csrf for _ in range(5) if (found := sessions.find(sessions.open(ADA))) is not None}
    assert len(texts) == 5


def test_a_closed_session_is_over(sessions: DashboardSessions) -> None:
    one, other = sessions.open(ADA), sessions.open(ADA)
    sessions.close(one)
    sessions.close("nonsense")
    assert sessions.find(one) is None
    assert sessions.find(other) is not None


def test_closed_sessions_do_not_pile_up(
    sessions: DashboardSessions, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("breakloop.admin.auth._CLOSED_MAX", 2)
    for _ in range(2):
        sessions.close(sessions.open(ADA))
    clock.advance(LASTS_S)
    sessions.close(sessions.open(ADA))
    assert len(sessions._closed) == 1


def test_another_token_of_the_same_name_ends_it(sessions: DashboardSessions, clock: FakeClock) -> None:
    cookie = sessions.open(ADA)
    assert DashboardSessions(KEY, AdminTokens([GRACE]), clock).find(cookie) is None


@pytest.mark.parametrize("cookie", ["", "x", "é", "AAAA", "=" * 8])
def test_what_is_no_cookie_is_nobody(sessions: DashboardSessions, cookie: str) -> None:
    assert sessions.find(cookie) is None


def test_a_changed_cookie_is_nobody(sessions: DashboardSessions, clock: FakeClock) -> None:
    raw = bytearray(urlsafe_b64decode(sessions.open(GRACE)))
    for at in (0, 31, 40, len(raw) - 1):
        changed = bytes(raw[:at]) + bytes([raw[at] ^ 1]) + bytes(raw[at + 1 :])
        assert sessions.find(urlsafe_b64encode(changed).decode()) is None
    assert DashboardSessions(b"other" * 8, AdminTokens([ADA, GRACE]), clock).find(sessions.open(ADA)) is None
