"""The scenarios of `make torture` that no other test has, as small as possible. Durations are not judged here."""

from __future__ import annotations

import pytest

from tests.torture.gateway import Rig
from tests.torture.scenarios import run

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


@pytest.mark.parametrize(
    "name",
    ["gzip-bodies", "tiny-events", "idle-clients-few-files", "idle-clients-of-the-admin-port"],
)
def test_it_holds(name: str) -> None:
    """Bystanders are served, and the process lives within the memory and the files that it has (Y-2)."""
    row = run(name, Rig(long=False))
    assert row.checks
    assert row.failures(times=False) == []
