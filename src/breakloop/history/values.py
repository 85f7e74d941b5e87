"""Filters of history queries, and the conversion of values to and from columns.

Column values are text that every database accepts, integers that fit, and JSON.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final


@dataclass(frozen=True, slots=True)
class EventFilter:
    """Selects events, the newest first. With `after` they are the ones behind that id, the oldest first."""

    names: Sequence[str] = ()
    project: str = ""
    agent: str = ""
    incident: str = ""
    since: float = 0.0
    until: float = float("inf")
    before: int = 0  # the page behind this id
    after: int = 0
    most: int = 50


@dataclass(frozen=True, slots=True)
class IncidentFilter:
    """Selects incidents, the newest first."""

    state: str = ""
    project: str = ""
    agent: str = ""
    kind: str = ""
    shadow: bool | None = None
    policy: str = ""
    before: float = float("inf")  # the page behind this `last_at`
    before_id: str = (
        ""  # with `before`: the last incident of the previous page, so that none with the same time is skipped
    )
    most: int = 50


TEXT_MAX: Final = 400  # characters; an index entry of PostgreSQL has at most 2,700 bytes
MOMENT_MAX: Final = 1e11  # seconds since 1970: the year 5138
_WHOLE_MAX: Final = 2**62


def text(value: object, most: int = TEXT_MAX) -> str:
    """Return text for a column, or "" for other types. PostgreSQL accepts no NUL, and no database a lone surrogate."""
    if not isinstance(value, str):
        return ""
    if not value.isascii():
        value = value.encode("utf-8", "replace").decode()
    if "\0" in value:
        value = value.replace("\0", "\N{REPLACEMENT CHARACTER}")
    return value[:most]


def whole(value: object) -> int:
    """Return an integer that fits a 64-bit column; 0 for other types."""
    if not isinstance(value, int | float) or value != value:  # noqa: PLR0124 - not a number
        return 0
    return int(min(max(value, -_WHOLE_MAX), _WHOLE_MAX))


def moment(value: float) -> float:
    """Return a time within the supported range."""
    return min(value, MOMENT_MAX) if value > 0.0 else 0.0


def to_json(value: object) -> str:
    """Return JSON in ASCII, which every database accepts unchanged."""
    return _ENCODER.encode(value)


def data_json(data: Mapping[str, Any]) -> str:
    return to_json(dict(data))


def from_json(stored: str) -> Any:
    return json.loads(stored)


def _other(value: object) -> object:
    """Values without a JSON form are replaced by their type: their text may contain private data."""
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, set | frozenset | tuple):
        return list(value)
    return f"<{type(value).__name__}>"


_ENCODER: Final = json.JSONEncoder(separators=(",", ":"), default=_other)
