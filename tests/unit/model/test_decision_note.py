"""Marks of notes."""

from __future__ import annotations

import pytest

from breakloop.detect.steps.fingerprints import own
from breakloop.dialects.steps import without_additions
from breakloop.model.decision import END, MARK, marked


def test_a_marked_note_is_known_again() -> None:
    """Between its marks, which `steer` takes out again; nothing is not marked (LD-5)."""
    assert marked("Change course.") == "[breakloop] Change course. [/breakloop]"
    assert marked("Change course.").startswith(MARK)
    assert marked("Change course.").endswith(END)
    assert without_additions(f"A result.\n\n{marked('Change course.')}") == "A result."
    assert marked("") == ""


@pytest.mark.parametrize(
    "text", ["long " * 400, f"before {END} after", f"before {MARK} after", f"before [break{MARK}loop] after"]
)
def test_any_note_is_known_again(text: str) -> None:
    """A long note, and one that contains a marker, is removed as a whole (LD-5)."""
    result = f"A result.\n\n{marked(text)}"
    assert without_additions(result) == "A result."
    assert own(result.encode()).strip() == b"A result."
