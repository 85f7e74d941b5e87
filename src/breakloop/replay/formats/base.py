"""Values that all formats look for in a record: JSON in strings, times, names of sessions."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

TIMES = ("timestamp", "start_time", "startTime", "time", "ts", "created_at", "date")
SESSIONS = ("session_id", "sessionId", "conversation_id", "thread_id", "run_id", "session", "litellm_session_id")
TRACES = ("trace_id", "traceId", "litellm_trace_id")
AGENTS = ("agent", "agent_id", "agent_name")
_MILLISECONDS_FROM = 1e11  # in seconds, the year 5138
_NANOSECONDS_FROM = 1e17
_COUNT_MAX = 1e15
_LATEST = 1e21  # in nanoseconds; a larger number is not a time


def decoded(value: object) -> Any:
    """Parse a JSON string. Other values, and strings that are not JSON, are returned as they are."""
    if not isinstance(value, str) or value.lstrip()[:1] not in ("{", "["):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value


def mapping(value: object) -> dict[str, Any]:
    """Return a map, given as such or as a JSON string; an empty map for anything else."""
    found = decoded(value)
    return found if isinstance(found, dict) else {}


def first(record: Mapping[str, Any], names: Iterable[str]) -> Any:
    """Return the first of these fields that is not empty."""
    return next((record[name] for name in names if record.get(name) not in (None, "", {}, [])), None)


def named(record: Mapping[str, Any], names: Iterable[str]) -> str:
    """Return the first of these names in a record or its metadata, as text, or ""."""
    listed = tuple(names)
    found = first(record, listed)
    if not isinstance(found, str | int):
        found = first(mapping(record.get("metadata")), listed)
    return str(found) if isinstance(found, str | int) and not isinstance(found, bool) else ""


def seconds(value: object) -> float | None:
    """Return a time in seconds, from a number of seconds, milliseconds or nanoseconds, or from an ISO 8601 date."""
    if isinstance(value, str) and value.replace(".", "", 1).isdigit():
        value = float(value)
    if isinstance(value, int | float) and not isinstance(value, bool):
        if not math.isfinite(value) or abs(value) > _LATEST:
            return None
        if value >= _NANOSECONDS_FROM:
            return value / 1e9
        return value / 1e3 if value >= _MILLISECONDS_FROM else float(value)
    if not isinstance(value, str):
        return None
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        return None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def count(value: object) -> int:
    """Return a count, or 0 for anything that is not a number."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < _COUNT_MAX:
        return 0
    return int(value)
