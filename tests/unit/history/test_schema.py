"""The tables."""

from __future__ import annotations

from dataclasses import fields

from breakloop.history.incidents import OpenIncident
from breakloop.history.schema import EVENTS, INCIDENTS, METADATA
from breakloop.model.records import EventRecord, Incident


def test_rows_are_records() -> None:
    """What is read is what is shown: the names are the same."""
    assert [column.name for column in EVENTS.c] == [field.name for field in fields(EventRecord)]
    columns = {column.name for column in INCIDENTS.c}
    assert {field.name for field in fields(Incident)} - columns == {"steps", "score"}
    assert {field.name for field in fields(OpenIncident)} - columns == {"steps", "score"}
    assert columns <= {field.name for field in fields(OpenIncident)}


def test_tables_cannot_be_mistaken_for_somebody_elses() -> None:
    """A database may be shared with other programs."""
    assert [name for name in METADATA.tables if not name.startswith("breakloop_")] == []
