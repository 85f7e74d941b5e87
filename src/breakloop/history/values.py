"""What goes into a column and comes out of it: texts that any database takes, whole numbers that fit, JSON. Nothing is
added to what was given and nothing is looked into."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

TEXT_MAX: Final = 400  # characters: an index of PostgreSQL takes no entry beyond 2,700 bytes
MOMENT_MAX: Final = 1e11  # seconds since the epoch: the year 5138
_WHOLE_MAX: Final = 2**62


def text(value: object, most: int = TEXT_MAX) -> str:
    """Return a text for a column, or "" for what is none. PostgreSQL takes no NUL, and no database half a character."""
    if not isinstance(value, str):
        return ""
    if not value.isascii():
        value = value.encode("utf-8", "replace").decode()
    if "\0" in value:
        value = value.replace("\0", "\N{REPLACEMENT CHARACTER}")
    return value[:most]


def whole(value: object) -> int:
    """Return a whole number that fits a column of 64 bits; 0 for what is none."""
    if not isinstance(value, int | float) or value != value:  # noqa: PLR0124 - not a number
        return 0
    return int(min(max(value, -_WHOLE_MAX), _WHOLE_MAX))


def moment(value: float) -> float:
    """Return a time that can be reckoned with, whatever was asked for."""
    return min(value, MOMENT_MAX) if value > 0.0 else 0.0


def to_json(value: object) -> str:
    """Return JSON in ASCII, so that every database takes it as it is."""
    return _ENCODER.encode(value)


def data_json(data: Mapping[str, Any]) -> str:
    """Return a map of any kind as JSON."""
    return to_json(dict(data))


def from_json(stored: str) -> Any:
    """Return what was stored."""
    return json.loads(stored)


def _other(value: object) -> object:
    """What JSON has no form for is told by its kind alone: its text may hold more than should be kept."""
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, set | frozenset | tuple):
        return list(value)
    return f"<{type(value).__name__}>"


_ENCODER: Final = json.JSONEncoder(separators=(",", ":"), default=_other)
