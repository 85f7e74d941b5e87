"""The scenarios of `make torture` that no other test has, as small as possible. Durations are not judged here."""

from __future__ import annotations

import pytest

from tests.torture.gateway import Rig
from tests.torture.scenarios import run

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


@pytest.mark.parametrize(
    "name",
    ["gzip-bodies", "idle-clients-few-files", "clock-set-back"],
)
def test_it_holds(name: str) -> None:
    """Clients that do nothing wrong are served, within the memory and the files that there are (Y-2)."""
    row = run(name, Rig(long=False))
    assert row.checks
    assert row.failures(times=False) == []
