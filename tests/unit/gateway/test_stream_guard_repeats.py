"""What the stream guard knows of the texts in one stream, whoever sends them."""

from __future__ import annotations

from breakloop.gateway.stream_guard import ANSWERS_MAX, StreamRepetition
from tests.unit.gateway.repeating import LOOPED, PROSE, UNIT


def test_answers_without_end_are_not_all_kept() -> None:
    """An upstream may number them as it likes (Y-2)."""
    repeats = StreamRepetition()
    for choice in range(5000):
        repeats.said(choice, 0, UNIT)
        repeats.thought(-choice, 0, UNIT)
    assert (len(repeats.open), repeats.found) == (1000, False)
    assert len(repeats._texts) + len(repeats._thoughts) == 2 * ANSWERS_MAX


def test_a_new_part_is_another_text() -> None:
    """What is said before and after a tool's call is not one text (LD-8)."""
    repeats = StreamRepetition()
    for part in range(LOOPED):
        repeats.said(0, part, UNIT)
    assert (repeats.found, repeats.probe) == (False, None)
    for _ in range(LOOPED):
        repeats.said(0, LOOPED, UNIT)
    assert (repeats.found, repeats.open) == (True, [0])
    repeats.ended(0)
    assert (repeats.found, repeats.open) == (False, [])


def test_how_much_was_said_and_thought() -> None:
    """For a guess at the tokens, so it may lag behind by less than a look, for each text (LD-8)."""
    repeats = StreamRepetition()
    for number in range(40):
        repeats.said(0, 0, PROSE.format(number))
        repeats.thought(1, 0, PROSE.format(number))
    repeats.said(0, 1, PROSE * 10)
    length = 2 * sum(len(PROSE.format(number)) for number in range(40)) + 10 * len(PROSE)
    assert length - 2 * 256 < repeats.chars <= length
