"""Field types that all models share."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from breakloop.policy.schema import bundle
from tests.unit.policy.said import messages


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("2026-01-31T18:00:00Z", datetime(2026, 1, 31, 18, tzinfo=UTC)),
        ("2026-01-31 18:00:00Z", datetime(2026, 1, 31, 18, tzinfo=UTC)),
        ("2026-01-31T18:00:00.5+02:00", datetime(2026, 1, 31, 16, 0, 0, 500000, tzinfo=UTC)),
    ],
)
def test_timestamps(text: str, moment: datetime) -> None:
    """ISO-8601 with a zone (B-1)."""
    assert bundle.KillSwitch(scope_key="jwt:sub", scope_value="x", expires_at=text).expires_at == moment  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "text", ["2026-1-1T00:00:00Z", "2026-01-01", "2026-01-01T24:61:00Z", "2026-01-01T00:00:00+99:00", "now", ""]
)
def test_wrong_timestamps(text: str) -> None:
    """Malformed, impossible and incomplete ones (B-2)."""
    assert messages(bundle.Override, {"enabled": False, "expires_at": text})
