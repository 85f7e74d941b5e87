"""What a webhook gets of an event (SPEC G-4): `{event, timestamp, project_id, request_id, data}`. Only single values of
an event's data are in it: names, digests and counts. The steps of an incident, and everything else that is longer, stay
in the history."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from breakloop.model.events import LOOP_DETECTED, Event

Payload = dict[str, Any]

_TEXT_MAX: Final = 2000
_NAMES_MAX: Final = 60
_NEVER: Final = frozenset(("steps", "score", "excerpt", "excerpts"))  # also where somebody has made a text of them
_LOOP: Final[Mapping[str, object]] = {
    "fingerprint": "",
    "hit_count": 0,
    "model": "",
    "cooldown_seconds": 0,
    "kind": "",
    "evidence": "",
    "action": "",
    "agent": "",
    "caller": "",
    "policy": "",
    "shadow": False,
}


def payload(event: Event, more: Mapping[str, object] | None = None, project: str = "") -> Payload:
    """Return what is told of an event; `more` is what else is known of it, such as its incident."""
    data: dict[str, object] = dict(_LOOP) if event.name == LOOP_DETECTED else {}
    for name, value in (*event.data.items(), *(more or {}).items()):
        if name not in _NEVER and isinstance(value, str | int | float | None) and len(data) < _NAMES_MAX:
            data[name] = _plain(value)
    return {
        "event": event.name,
        "timestamp": timestamp(event.at),
        "project_id": (event.project or project)[:_TEXT_MAX],
        "request_id": event.request_id[:_TEXT_MAX],
        "data": data,
    }


def encoded(value: Mapping[str, Any]) -> str:
    """Return it as JSON in ASCII."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


def timestamp(at: float) -> str:
    """Return a time as RFC 3339 has it, in UTC."""
    return datetime.fromtimestamp(at, tz=UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _plain(value: float | str | None) -> float | str | None:
    if isinstance(value, str):
        return value[:_TEXT_MAX]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
