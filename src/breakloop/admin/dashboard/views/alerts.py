"""Webhooks, deliveries and alert rules as the dashboard shows them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

_TONES: Final = {
    "delivered": "good",
    "ok": "good",
    "pending": "warn",
    "waiting": "warn",
    "failing": "warn",
    "failed": "bad",
    "disabled": "bad",
}
DELIVERY: Final = ("id", "webhook", "event", "state", "attempts", "status", "error", "at", "next_at")
WEBHOOK: Final = ("id", "url", "events", "allow_private", "created_at", "state")
RULE: Final = ("name", "type", "agent", "cooldown_seconds", "recovery", "targets", "last_at")


def filled(given: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """Return these fields; what is not there is None, so that a template may ask for it."""
    return {name: given.get(name) for name in names}


def tone(state: object) -> str:
    """Return how a state is coloured."""
    return _TONES.get(str(state), "info")


def endings(deliveries: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Return how many deliveries are in each state."""
    counts: dict[str, int] = {}
    for one in deliveries:
        state = str(one.get("state", ""))
        counts[state] = counts.get(state, 0) + 1
    return counts


def listed(value: object) -> list[str]:
    """Return a value as a list of words."""
    if value is None or value == "":
        return []
    return [str(one) for one in value] if isinstance(value, list | tuple | set) else [str(value)]
