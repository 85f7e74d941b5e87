"""Marks of notes."""

from __future__ import annotations

from breakloop.dialects.steps import without_additions
from breakloop.model.call import END, MARK, marked


def test_a_marked_note_is_known_again() -> None:
    """Between its marks, which `steer` takes out again; nothing is not marked (LD-5)."""
    assert marked("Change course.") == "[breakloop] Change course. [/breakloop]"
    assert marked("Change course.").startswith(MARK)
    assert marked("Change course.").endswith(END)
    assert without_additions(f"A result.\n\n{marked('Change course.')}") == "A result."
    assert marked("") == ""
