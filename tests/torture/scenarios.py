"""All scenarios by section and name, and how one is run."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping
from typing import Final

import pytest

from tests.torture import bodies, clock_steps, connections, processes, soak, standing_tests, stores, trust
from tests.torture.gateway import Rig
from tests.torture.table import Row

Scenario = Callable[[Rig, Row], None]
SECTIONS: Final[Mapping[str, Mapping[str, Scenario]]] = {
    "Bodies and streams": bodies.SCENARIOS,
    "Clock": clock_steps.SCENARIOS,
    "Connections": connections.SCENARIOS,
    "Other clients": trust.SCENARIOS,
    "Processes": processes.SCENARIOS,
    "Redis and PostgreSQL": stores.SCENARIOS,
    "A long time": soak.SCENARIOS,
    "Tests of `make test`": standing_tests.SCENARIOS,
}


def names() -> list[str]:
    """In the order of the table."""
    return [name for scenarios in SECTIONS.values() for name in scenarios]


def run(name: str, rig: Rig) -> Row:
    """Run one; whatever breaks it off is its result."""
    section = next(section for section, scenarios in SECTIONS.items() if name in scenarios)
    row = Row(section, name)
    try:
        SECTIONS[section][name](rig, row)
    except (Exception, pytest.fail.Exception, pytest.skip.Exception) as error:  # noqa: BLE001 - the next one runs
        at = traceback.extract_tb(error.__traceback__)[-1]
        row.error = f"broke off in {at.name}: {type(error).__name__}: {error}"[:400]
    return row
