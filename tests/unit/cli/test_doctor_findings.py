"""A finding is a value."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, asdict

import pytest

from breakloop.cli.doctor import DoctorFinding


def test_a_finding() -> None:
    """`doctor --json` prints its three parts by these names (T-1)."""
    finding = DoctorFinding("warning", "host", "is unsafe")
    assert asdict(finding) == {"level": "warning", "about": "host", "message": "is unsafe"}
    with pytest.raises(FrozenInstanceError):
        finding.level = "note"  # type: ignore[misc]
