"""A bundle on the shelf, as data."""

from __future__ import annotations

from dataclasses import replace

from breakloop.errors import StateError
from breakloop.store.redis.bundle import NoPushedBundleError, PushDeniedError, PushedBundle


def test_every_push_has_its_own_stamp() -> None:
    """The same bytes pushed again (signed, forced) are news (B-3)."""
    first = PushedBundle(1, "d", b"x", pushed_at="1.000001")
    assert first.stamp != replace(first, pushed_at="1.000002").stamp
    assert first.stamp != replace(first, digest="e").stamp
    assert first.stamp == replace(first, pushed_by="me").stamp


def test_its_errors_are_the_stores() -> None:
    """Whoever handles a store that fails handles these (B-3)."""
    assert issubclass(NoPushedBundleError, StateError)
    assert issubclass(PushDeniedError, StateError)
