"""What is kept of the past, as data."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, fields

import pytest

from breakloop.model.records import CLEARED, OPEN, STOPPED, AgentRecord, Incident, TotalsRecord


def test_records_do_not_change() -> None:
    """Whoever shows one may hand it on."""
    totals = TotalsRecord(requests=1)
    with pytest.raises(FrozenInstanceError):
        totals.requests = 2  # type: ignore[misc]
    assert TotalsRecord() == TotalsRecord(*[0] * len(fields(TotalsRecord)))


def test_states_of_an_incident() -> None:
    """Warned only; denied or killed; over (G-3)."""
    assert (OPEN, STOPPED, CLEARED) == ("open", "stopped", "cleared")


def test_money_is_in_micro_dollars() -> None:
    """Whole numbers, named so."""
    names = {field.name for kind in (AgentRecord, Incident, TotalsRecord) for field in fields(kind)}
    assert {name for name in names if "usd" in name} == {name for name in names if name.endswith("_microusd")}
    assert {field.type for kind in (AgentRecord, Incident) for field in fields(kind) if field.name.endswith("usd")} == {
        "int"
    }
