"""What is asked of the past."""

from __future__ import annotations

import inspect
import math

from breakloop.history.store import History
from breakloop.model.records import EventFilter, IncidentFilter


def test_filters_without_anything_are_a_first_page() -> None:
    assert EventFilter() == EventFilter((), "", "", "", 0.0, math.inf, 0, 0, 50)
    assert IncidentFilter() == IncidentFilter("", "", "", "", None, "", math.inf, "", 50)


def test_the_store_has_the_shape_of_the_interface() -> None:
    """Names, parameters and defaults, so that whoever codes against the interface gets what it says."""
    asked = {name: value for name, value in vars(History).items() if inspect.isfunction(value) and name[0] != "_"}
    assert len(asked) == 15
    for name, value in asked.items():
        assert inspect.signature(getattr(History, name)) == inspect.signature(value), name
