"""Lines that stand around every result of a session (LD-4)."""

from __future__ import annotations

from breakloop.detect.steps import novelty
from breakloop.detect.steps.window import FRAME as PACKED
from breakloop.detect.steps.window import load
from tests.unit.detect.steps.stepping import PRINTER, called, prints

FRAME = "Observation:\nExecution logs:\n{}\nLast output from code snippet:\nNone"


def test_three_of_the_last_four() -> None:
    """At either end, and no longer than that (LD-4)."""
    packed = bytes(PACKED.size)
    lines = [b"a", b"b", b"c", b"d", b"e", b"f", b"g"]
    found = []
    for result in ([1, 2], [1, 3], [4, 1], [5], [1], [6]):
        packed = novelty.add_to_frame(packed, result)
        found.append(novelty.frame_of(packed, lines, [1, 2, 3, 4, 5, 6, 7]))
    assert found == [set(), set(), {b"a"}, {b"a"}, {b"a"}, set()]
    for _ in range(3):
        packed = novelty.add_to_frame(packed, [1, 2, 3, 4, 5, 6, 7])
    assert novelty.frame_of(packed, lines, [1, 2, 3, 4, 5, 6, 7]) == {b"a", b"b", b"c", b"e", b"f", b"g"}
    assert novelty.frame_of(packed, lines[:2], [7, 9]) == {b"a"}
    assert novelty.frame_of(packed, lines[:4], [9, 9, 9, 1]) == {b"d"}
    assert len(packed) == PACKED.size


def dry(*texts: str) -> float:
    """Return the turns without anything new after these results."""
    window = load(b"")
    for at, text in enumerate(texts):
        step = called(f'{{"a": {at}}}', text)
        novelty.compare(window, step, prints(step), PRINTER.seed, 1.0)
        window.steps += 1
    return window.dry


def test_a_new_line_within_a_frame_is_new() -> None:
    """Once the frame is known, one line of a result is enough (LD-4)."""
    texts = [FRAME.format(f"Row {at} of {at * 7}") for at in range(30)]
    assert dry(*texts[:3]) == 2.0
    assert dry(*texts) < 1.0


def test_a_frame_without_new_lines_is_not_new() -> None:
    """The frame weighs nothing; what it stands around has to be new (LD-4)."""
    rows = ["the same row", "another row", "and a third one", "the same row\nanother row"]
    texts = [FRAME.format(rows[at % 4] + ("\n" + rows[at // 4 % 4] if at > 3 else "")) for at in range(16)]
    assert dry(*texts) > 4.0


def test_repeated_calls_teach_nothing() -> None:
    """The lines of a call that is repeated are no frame (LD-4)."""
    window = load(b"")
    for at in range(8):
        step = called("{}", FRAME.format(f"Row {at}"))
        novelty.compare(window, step, prints(step), PRINTER.seed, 1.0)
    assert window.frame[12:] == bytes(PACKED.size - 12)
