"""Loops that a person lets go on for a while (SPEC LD-6): by the fingerprint that the denial and the event name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from breakloop.state.ops import Repeat


def is_snoozed(op: Any, snoozed: Mapping[str, float], now: float) -> bool:
    """Tell whether an operation counts a fingerprint that may repeat now; it is the last part of its key."""
    return type(op) is Repeat and snoozed.get(op.key.rpartition(":")[2], 0.0) > now
