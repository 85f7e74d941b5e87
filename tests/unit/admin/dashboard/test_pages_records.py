"""The audit log and the settings in force."""

from __future__ import annotations

from dataclasses import replace

from breakloop.admin.dashboard.pages import RECORDS_LISTED
from tests.admin_client import browser
from tests.admin_world import empty, full


def test_audit() -> None:
    """Who did what, newest first, page by page (K-3)."""
    world = full()
    made, _ = browser(world)
    text = made.get("/audit").text
    assert text.index("drops tables") < text.index("on holiday")
    one = world.history.audit_rows[0]
    world.history.audit_rows = [replace(one, id=500 - at) for at in range(RECORDS_LISTED + 1)]
    assert "/audit?before=401" in made.get("/audit").text
    assert made.get("/audit?before=401").text.count("drops tables") == 1
    assert "breakloop kill" in browser(empty())[0].get("/audit").text


def test_settings_say_where_from() -> None:
    """Each effective value and its origin; secrets come masked (T-1)."""
    text = browser(full())[0].get("/settings").text
    assert "BREAKLOOP_ADMIN_TOKEN" in text
    assert "********" in text
    assert "1 d 3 h" in text
