"""Events: their names, and publishing to nobody."""

from __future__ import annotations

import pytest

from breakloop.model import events
from breakloop.model.events import Event, nowhere


def test_names_are_dotted_and_differ() -> None:
    """`thing.happened`; those of the specification are spelled as there (G-2)."""
    names = [value for name, value in vars(events).items() if name.isupper()]
    assert len(set(names)) == len(names)
    assert all(name.count(".") == 1 and name == name.lower() for name in names)
    wanted = {
        "loop.detected",
        "limit.exceeded",
        "shadow.would_reject",
        "bundle.loaded",
        "bundle.rejected",
        "store.degraded",
    }
    assert wanted <= set(names)


def test_an_event_is_a_value() -> None:
    """Made once, read by many (G-2)."""
    event = Event("loop.detected", 1.0, {"hit_count": 6})
    assert (event.project, event.request_id) == ("", "")
    with pytest.raises(AttributeError):
        event.name = "other"  # type: ignore[misc]
    nowhere(event)
