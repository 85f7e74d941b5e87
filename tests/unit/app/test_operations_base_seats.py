"""Whether a process has operations."""

from __future__ import annotations

import pytest

from breakloop.app.operations_base import NoOperations, seated
from breakloop.config.settings import Settings


@pytest.mark.parametrize(
    ("given", "somebody"),
    [({"admin_port": 8788}, True), ({"history": "past.db"}, True), ({}, False), ({"history": "off"}, False)],
)
def test_operations_where_they_are_wanted(given: dict[str, object], somebody: bool) -> None:
    """An admin plane, or a history that was asked for; port 0 and `off` are off (X-1, G-2, T-2)."""
    made = seated(Settings.model_validate({"admin_port": 0, **given}))
    assert isinstance(made, NoOperations) is not somebody
