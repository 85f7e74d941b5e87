"""Lines, and how many of them are new (LD-4)."""

from __future__ import annotations

from array import array

import pytest

from breakloop.detect.steps import novelty
from breakloop.detect.steps.window import BYTES, AgedFilter


def share(*steps: str) -> float | None:
    """The share of new lines in the last of some texts."""
    known, found = AgedFilter(array("Q", bytes(BYTES)), 0, 0), None
    for step in steps:
        found = novelty.share(known, [step.encode()], 7)
    return found


def test_all_none_and_some() -> None:
    """Lines are new or not, however they are laid out (LD-4)."""
    assert share("") is None
    assert share(" \n\t\n") is None
    assert share("one line\nanother line") == 1.0
    assert share("one line\nanother line", "another  line\n\n\tOne line ") == 0.0
    assert share("Öne line", "öNE LINE") == 0.0
    assert share("one line here", "one line here\nand a new one, much longer than the first") == 33 / (33 + 11)


def test_lines_weigh_by_length_near_the_threshold_with_their_blanks() -> None:
    """Whether it is news is decided by lengths as people count them (LD-4)."""
    assert share("a b c d e f g", "a b c d e f g\nhijklmnop") == pytest.approx(9 / 22)
    assert share("x" * 90 + "\ny", "x" * 90 + "\n" + "z" * 29) == pytest.approx(29 / 69)


def test_several_texts_are_one() -> None:
    """The share is that of all that came (LD-4)."""
    known = AgedFilter(array("Q", bytes(BYTES)), 0, 0)
    assert novelty.share(known, [b"first text", b"second text"], 7) == 1.0
    assert novelty.share(known, [b"first text", b"", b"second text", b"first text"], 7) == 0.0


def test_long_lines_are_taken_in_pieces() -> None:
    """One long line of JSON with one new field is not new as a whole; a short one is a line (LD-4)."""
    fields = [f'"field{index}": {index}' for index in range(60)]
    assert len(novelty.plain(novelty.pieces(", ".join(fields).encode()))) == 60
    assert len(novelty.plain(novelty.pieces(", ".join(fields[:15]).encode()))) == 1
    known = share(", ".join(fields), ", ".join([*fields[:59], '"another": 1']))
    assert known is not None
    assert 0 < known < 0.05
    assert share(", ".join(fields[:25]), ", ".join([*fields[:24], '"another": 1'])) == pytest.approx(0.04, abs=0.02)
    assert novelty.pieces(b"a. " * 101) == b"a.\n" * 101
    assert novelty.plain(novelty.pieces(b"word,\t" * 61)) == [b"word,"] * 61
    assert [novelty.pieces(b"a. " + b"b" * more).count(b"\n") for more in (297, 298)] == [0, 1]
    assert novelty.pieces(b" " * 301 + b"a. b") == b" " * 301 + b"a. b"
    assert novelty.pieces((b"a" * 20 + b"\\\\n") * 20).count(b"\n") == 20


def test_of_very_many_lines_the_first_and_the_last() -> None:
    """One text does not push everything else out of the filter (LD-4)."""
    many = [str(index).encode() for index in range(5000)]
    assert novelty.bounded(many) == many[:128] + many[-128:]
    assert novelty.bounded(many[:256]) == many[:256]
    long = "\n".join(f"line {index}" for index in range(1000))
    assert share(long, "line 1\nline 999") == 0.0
    assert share(long, "line 500") == 1.0


def test_both_ways_give_as_many_lines() -> None:
    """Weights belong to lines (LD-4)."""
    text = b"a  b\n\n \t\nc\r\n" + b"word, " * 80 + b"\nend"
    cut = novelty.pieces(text)
    assert len(novelty.plain(cut)) == len(novelty.folded(cut))
    assert novelty.folded(cut)[0] == b"a b"


def test_a_line_that_comes_twice_counts_once() -> None:
    """What stands in one text many times is not known for that (LD-4)."""
    assert share("=====\nnew\n=====\n" * 9) == 1.0
    assert share("a known line", "a known line\n" + "a line of a grid\n" * 50) == pytest.approx(16 / (16 + 12))
    assert share("a b c d e f g", "a b c d e f g\nhijklmnop\nhijklmnop\na b c d e f g") == pytest.approx(9 / 22)


@pytest.mark.parametrize("longest", [10, 34, 255, 256, 5000])
def test_no_line_weighs_more_than_others_for_its_length(longest: int) -> None:
    """However long it is (LD-4)."""
    texts = [b"x" * size for size in (1, 33, 34, 35, longest)]
    assert novelty._weight(texts) == 1 + 33 + 34 + 34 + min(longest, 34)
