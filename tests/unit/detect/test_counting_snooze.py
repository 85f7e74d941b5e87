"""Loops that may go on for a while."""

from __future__ import annotations

from breakloop.detect.counting import is_snoozed
from breakloop.store.ops import CountFingerprint, FingerprintSpec, Observation
from tests.stores import NO_OWNER


def test_by_fingerprint_and_until_its_time() -> None:
    """Only what counts this fingerprint, and not longer (LD-6)."""
    op = CountFingerprint(FingerprintSpec(60.0, 3), "cnt:p:|builtin:0:abc", NO_OWNER)
    assert is_snoozed(op, {"abc": 10.0}, 9.9)
    assert not is_snoozed(op, {"abc": 10.0}, 10.0)
    assert not is_snoozed(op, {"bc": 10.0, "builtin:0:abc": 10.0}, 1.0)
    assert not is_snoozed(Observation(NO_OWNER), {"abc": 10.0}, 1.0)
