"""Paragraphs of one answer that are almost the same (LD-8)."""

from __future__ import annotations

from breakloop.detect.stream import ParagraphProbe

A = "The table was built before the token was read and so the parser fails."
B = "The parser fails and so the token was read before the table was built."
OTHER = "Meanwhile somebody else has to water all seven plants upstairs on Sunday."
ORDERED = [f"w{at:02}" for at in range(27)]  # 25 trigrams, 107 characters


def paragraph(words: list[str]) -> str:
    return " ".join(words)


def counted(*paragraphs: str) -> list[int]:
    """Return the count after each paragraph."""
    probe, found = ParagraphProbe(), []
    for one in paragraphs:
        before = probe.times
        near = probe.feed(one + "\n\n")
        assert near is (probe.times > before)
        found.append(probe.times)
    return found


def test_the_same_and_almost_the_same() -> None:
    """All words known, and most of the trigrams in one of the last paragraphs; whatever the case and the line breaks."""
    assert counted(A, A, A.upper(), A.replace(" ", "\n", 3)) == [0, 1, 2, 3]
    assert counted(A, B, A, B) == [0, 0, 1, 2]  # other trigrams, until both are known
    assert counted(OTHER, A, OTHER, A) == [0, 0, 1, 2]
    assert counted(A, A, B) == [0, 1, 0]  # known words in another order begin the count again


def test_a_new_word_brings_something() -> None:
    """Then the count begins again (LD-8)."""
    assert counted(A, A, A.replace("token", "comma"), A, A) == [0, 1, 0, 1, 2]


def test_sixty_percent_of_the_trigrams() -> None:
    """15 of 25 are enough, 14 are not (LD-8)."""
    for known, times in ((17, 1), (16, 0)):
        rest = ORDERED[known:]
        again = [*ORDERED[:known], *rest[::-1]]
        probe = ParagraphProbe()
        probe.feed(paragraph(ORDERED) + "\n\n")
        trigrams = {" ".join(again[at : at + 3]) for at in range(25)}
        assert sum(one in paragraph(ORDERED) for one in trigrams) == known - 2
        assert probe.feed(paragraph(again) + "\n\n") is bool(times)


def replaced(words: list[str], *places: int) -> str:
    """Return the paragraph with another known word in these places."""
    return paragraph([words[-1 - at] if at in places else word for at, word in enumerate(words)])


def test_half_of_the_trigrams_that_are_tried_first() -> None:
    """About six, at equal distances: every fifth of 25, every third of 12 (LD-8)."""
    ordered = [f"word{at:02}" for at in range(14)]
    for words, places, times in (
        (ORDERED, (0, 5, 10), 0),  # two of five are known, and 18 of all
        (ORDERED, (0, 5), 1),
        (ordered, (0, 3), 1),  # two of four, and eight of all
    ):
        assert counted(paragraph(words), replaced(words, *places)) == [0, times], places


def test_trigrams_of_one_paragraph() -> None:
    """Half from one and half from another is a new paragraph (LD-8)."""
    one, two = paragraph(ORDERED), paragraph(ORDERED[::-1])
    assert counted(one, two, paragraph(ORDERED[:14] + ORDERED[:13:-1])) == [0, 0, 0]


def test_short_paragraphs() -> None:
    """Less than sixty characters is a heading or an interjection: it does not count, and if it has no new word it does
    not end the count (LD-8)."""
    assert counted(*["x" * 20 + " " + "y" * 19 + " " + "z" * 19] * 3) == [0, 1, 2]
    assert counted(*["x" * 20 + " " + "y" * 18 + " " + "z" * 19] * 3) == [0, 0, 0]
    assert counted(A, A, "the table", A) == [0, 1, 1, 2]
    assert counted(A, A, "Next, a cake", A) == [0, 1, 0, 1]
    assert counted("the table", A, A) == [0, 0, 1]
    assert counted(*["x" * 40 + " " + "y" * 40] * 3) == [0, 0, 0]  # two words have no trigram


def test_the_last_eight_are_compared() -> None:
    """One that was further back is new (LD-8, Y-2)."""
    others = [f"{OTHER} {name * 5}" for name in "abcdefgh"]
    assert counted(A, *others[:7], A)[-1] == 1
    assert counted(A, *others, A)[-1] == 0


def test_characters_of_the_repeats() -> None:
    """How long the repeated paragraphs are together (LD-8)."""
    probe = ParagraphProbe()
    probe.feed(f"{A}\n\n{A}\n\n{B}\n\n")
    assert (probe.times, probe.chars) == (0, 0)
    probe.feed(f"{A}\n\n{B}\n\n")
    assert (probe.times, probe.chars) == (2, len(A) + len(B))


def test_pieces_of_any_size() -> None:
    """The break between two paragraphs may be in two pieces; several paragraphs may be in one (LD-8)."""
    text = f"{A}\n\n" * 4
    for size in (1, 2, 3, 7, 64, 1000):
        probe = ParagraphProbe()
        found = [probe.feed(text[at : at + size]) for at in range(0, len(text), size)]
        assert probe.times == 3
        assert any(found)
    probe = ParagraphProbe()
    assert probe.feed(f"{A}\n\n{A}\n\n{OTHER}\n\n") is True  # found, although the last one is new
    assert probe.feed(f"{A}\n") is False
    assert probe.feed(f"\n{OTHER}") is True  # the break is complete


def test_of_long_paragraphs_the_end_is_compared() -> None:
    """A thousand characters (LD-8, Y-2)."""
    end = " ".join(f"word{at:03}" for at in range(125))
    assert len(end) == 999
    assert counted(f"Begun like this {end}", f"Begun like this {end}") == [0, 1]
    probe = ParagraphProbe()
    for begin in ("one way of it", "another beginning"):
        for at in range(0, 4000, 50):
            probe.feed((begin * 400)[at : at + 50])
        probe.feed(f" {end}\n\n")
    assert probe.times == 1


def test_a_paragraph_that_does_not_end_is_not_all_kept() -> None:
    """A thousand characters, also of a piece that has the end of another one (Y-2)."""
    probe = ParagraphProbe()
    for piece in ("x" * 4000, f"{A}\n\n" + "x" * 4000, "x" * 4000):
        probe.feed(piece)
        assert len(probe._rest) == 1000
