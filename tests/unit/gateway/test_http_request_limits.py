"""The bounds that the specification fixes."""

from __future__ import annotations

from breakloop.gateway.http_request import RequestLimits


def test_defaults_are_those_of_the_specification() -> None:
    """64 KB and 200 fields of head, 10 MB of body, at most 16 pipelined, bounded connections and idle times (Y-2)."""
    limits = RequestLimits()
    assert (limits.head_bytes, limits.fields, limits.body_bytes) == (65_536, 200, 10_485_760)
    assert (limits.pipelined, limits.connections) == (16, 10_000)
    assert (limits.idle_s, limits.head_s, limits.body_s) == (75, 10, 60)
