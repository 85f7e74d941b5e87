"""Who did what."""

from __future__ import annotations

import sqlite3

from breakloop.clock import FakeClock
from breakloop.history.store import History
from breakloop.model.records import AuditRecord
from tests.histories import Past


def test_audit(history: History, clock: FakeClock) -> None:
    """Newest first, page by page (K-3, X-2)."""
    now = clock.now()
    for index in range(5):
        history.add_audit(
            "alice", "operator", "agent.kill", f"bot{index}", {"reason": "ä\0", "n": [index]}, now + index
        )
    found = history.audit()
    assert found[0] == AuditRecord(5, now + 4, "alice", "operator", "agent.kill", "bot4", {"reason": "ä\0", "n": [4]})
    assert [record.id for record in found] == [5, 4, 3, 2, 1]
    assert [record.id for record in history.audit(before=4, most=2)] == [3, 2]
    assert [record.id for record in history.audit(most=0)] == [5]


def test_it_is_on_disk_before_it_is_acknowledged(sqlite_past: Past) -> None:
    """Another process sees it at once, and it is written through to the disk (K-3)."""
    history = sqlite_past.open()
    history.add_audit("alice", "operator", "bundle.apply", "7", {}, sqlite_past.clock.now())
    file = sqlite3.connect(sqlite_past.where)
    assert file.execute("SELECT who, action FROM breakloop_audit").fetchall() == [("alice", "bundle.apply")]
    file.close()
