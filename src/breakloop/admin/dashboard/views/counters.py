"""What a store keeps under a key, as a table: whatever fields there are, the key first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from breakloop.admin.dashboard.views import words

ROWS_MAX: Final = 200


def table(found: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Return the names of the columns, and the rows."""
    names = list(dict.fromkeys(["key", *(name for row in found for name in row)])) if found else []
    return [words.shortened(name.replace("_", " "), 40) for name in names], [
        [_cell(name, row.get(name)) for name in names] for row in found[:ROWS_MAX]
    ]


def _cell(name: str, value: object) -> str:
    if value is None:
        return ""
    if name.endswith("_at") and isinstance(value, int | float):
        return words.moment(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return words.count(value)
    return words.shortened(value)
