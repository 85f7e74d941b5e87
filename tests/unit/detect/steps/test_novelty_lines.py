"""Lines, and how many of them are new (LD-4)."""

from __future__ import annotations

from array import array

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from breakloop.detect.fingerprint import Fingerprinter
from breakloop.detect.steps import novelty
from breakloop.detect.steps.fingerprints import StepFingerprinter, compact
from breakloop.detect.steps.window import BYTES, CAPACITY, WORD, AgedFilter, load


def share(*steps: str) -> float | None:
    """The share of new lines in the last of some texts."""
    known, found = AgedFilter(array(WORD, bytes(BYTES)), 0, 0), None
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
    known = AgedFilter(array(WORD, bytes(BYTES)), 0, 0)
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


def share_of(*steps: list[str]) -> float | None:
    """The share of new lines in the last of some steps, each with several texts."""
    known, found = AgedFilter(array(WORD, bytes(BYTES)), 0, 0), None
    for texts in steps:
        found = novelty.share(known, [text.encode() for text in texts], 7)
    return found


LONG_LINE = ", ".join(f'"field{index}": {index}' for index in range(60))


@pytest.mark.parametrize("first", ["a first text", LONG_LINE])
@pytest.mark.parametrize("others", [1, 2, 3])
def test_all_of_several_texts_are_compared(first: str, others: int) -> None:
    """The later ones too, whatever the length of the first one (LD-4)."""
    texts = [f"text number {number}" for number in range(others)]
    assert share_of([first, *texts], [texts[-1]]) == 0.0
    assert share_of([first, *texts], ["never seen before"]) == 1.0
    assert share_of([first], [first, *texts]) == share_of([first], [*texts, first])


def test_the_bound_is_that_of_one_text() -> None:
    """Of several texts with many lines, each is compared as far as if it were alone (Y-2)."""
    texts = ["\n".join(f"line {index} of {name}" for index in range(200)) for name in ("Ada", "Bob")]
    assert share_of(texts, ["line 150 of Ada"]) == share_of(texts, ["line 50 of Bob"]) == 0.0
    long = "\n".join(f"line {index}" for index in range(1000))
    assert share_of([long, "another"], ["line 500"]) == share_of([f"{LONG_LINE}\n{long}"], ["line 500"]) == 1.0
    assert share_of([long, "another"], ["line 127\nline 872"]) == 0.0


def test_two_equal_lines() -> None:
    """They are new as one of them alone is (LD-4)."""
    assert share("=====\n=====") == 1.0


@pytest.mark.parametrize(
    "texts",
    [
        [f"a heading\n{LONG_LINE}"],
        ["a heading", LONG_LINE],
        [LONG_LINE, "a heading"],
        [
            "a heading\n" + ", ".join(f"{one}{two}" for one in "abcdefgh" for two in "qrstuvwxyz")
        ],  # long with its blanks
    ],
)
def test_long_lines_are_split_wherever_they_are(texts: list[str]) -> None:
    """Below other lines, and in one of several texts: one more field is little that is new (LD-4)."""
    more = [text + ", a new field" if len(text) > 300 else text for text in texts]
    found = share_of(texts, more)
    assert found is not None
    assert 0 < found <= 0.3


@pytest.mark.parametrize(
    ("line", "is_split"),
    [
        (b" a. " + b"b" * 297 + b" ", False),  # 302 bytes, and 300 with the blanks folded
        (b" a. " + b"b" * 298 + b" ", True),
        (b"  a. " + b"b" * 297 + b" ", False),  # 303 bytes
        (b"  a. " + b"b" * 298, True),
        (b" a. " + b"b" * 296 + b" ", False),  # 301 bytes
        (b" " + b"a" * 296 + b"\\\\n" + b"b", False),
        (b" " + b"a" * 297 + b"\\\\n" + b"b", True),
    ],
)
def test_how_long_a_long_line_is(line: bytes, is_split: bool) -> None:
    """More than 300 bytes, with its blanks folded (LD-4)."""
    assert (b"\n" in novelty.pieces(line)) is is_split


def test_where_blanks_are_weighed() -> None:
    """Where the share is between 0.25 and 0.6, both excluded (LD-4)."""
    letters = "abcdefghijklmnopqrstuvwxyz"
    for known, new, expected in (
        (30, 10, 0.25),
        (30, 11, 11 / (11 + 40)),  # 59 bytes with blanks, of which 40 are weighed
        (12, 18, 0.6),
        (13, 18, 18 / (18 + 25)),
        (30, 5, 5 / 35),
    ):
        line = " ".join((letters * 2)[:known])
        assert share(line, f"{line}\n{letters[:new]}") == pytest.approx(expected), (known, new)


def test_repeated_lines_beside_new_ones() -> None:
    """They weigh as often as they occur, as long as the share stays at 0.6 or above (LD-4)."""
    known, new = "k" * 10, "n" * 30
    for times, expected in ((1, 30 / 40), (2, 30 / 50), (3, 30 / 40)):
        assert share(known, "\n".join([new, *[known] * times])) == pytest.approx(expected), times


def test_a_line_at_both_ends_of_a_text() -> None:
    """It is known as long as lines of the end of the text, also if the filter aged in between (LD-4)."""
    known = AgedFilter(array(WORD, bytes(BYTES)), 0, 0)

    def add(lines: list[str]) -> float | None:
        return novelty.share(known, ["\n".join(lines).encode()], 7)

    for start in (0, 200):
        add([f"line {number}" for number in range(start, start + 200)])
    add(["both ends", *[f"a new line {number}" for number in range(200)], "both ends"])
    assert known.count < 200  # it has aged
    while known.count < CAPACITY - 10:
        add([f"another {known.count} {number}" for number in range(9)])
    add([f"the last {number}" for number in range(20)])
    assert known.count < 20
    assert add(["both ends"]) == 0.0


def framed(*texts: str) -> float | None:
    """The share of new lines in the last of some results of new calls, given one after the other."""
    window, found = load(b""), None
    for text in texts:
        found = novelty.share(window.lines, [text.encode()], 7, window)
    return found


def test_weights_beside_a_frame() -> None:
    """Lines of the frame weigh nothing where the share is below 0.6 (LD-4)."""
    for size, known, new, expected in (
        (10, 10, 9, 9 / 19),
        (16, 16, 48, 0.6),
        (17, 16, 48, 48 / 64),
        (2, 10, 13, 13 / 23),
    ):
        frame = "f" * size
        old = "k" * known
        lines = [("abcdefgh"[at] * 30)[: min(30, new - at * 30)] for at in range((new + 29) // 30)]
        found = framed(
            *[f"{frame}\nrow {at}, which is another one each time" for at in range(4)],
            old,
            "\n".join([frame, old, *lines]),
        )
        assert found == pytest.approx(expected), (size, known, new)


def test_repeated_lines_in_a_frame() -> None:
    """A line that occurs several times at an end of a result takes one place (LD-4)."""
    head = "-----\n-----\n-----\n-----\nthe log of this run, with all that was written:\n"
    rows = ["\n".join(f"{name} {at}" for at in range(8)) for name in ("apple", "banana", "cherry", "damson")]
    assert framed(*[head + one for one in rows], f"{head}apple 3\nnew line") == pytest.approx(8 / 15)


_TEXTS = st.lists(st.sampled_from(("A", "bc", " ", "\t", "\n", "\r\n", "Ü", "ΟΔΟΣ", "\x0b", "[7]", "{", "x" * 99))).map(
    "".join
)


@given(_TEXTS)
def test_lines_are_the_same_from_a_stripped_text(text: str) -> None:
    """What an incoming text keeps without its blanks has the same lines as the text itself (LD-4)."""
    fingerprinter = StepFingerprinter(Fingerprinter(b"k" * 16).short)
    for one in (fingerprinter.incoming(text), fingerprinter.result(text)):
        assert one.plain == compact(one.text)
        assert novelty.plain(one.text, one.lines) == novelty.plain(one.text)


@given(
    st.lists(st.sampled_from(("one line", "another", "a third", "", "ONE LINE", "the fourth")), max_size=9),
    st.sampled_from((0, CAPACITY - 4)),
)
def test_lines_that_are_there_twice_are_added_once(lines: list[str], count: int) -> None:
    """Unless the filter may age in between, when all of them are added one after the other (LD-4)."""
    known, expected = (AgedFilter(array(WORD, bytes(BYTES)), 0, count) for _ in range(2))
    text = "\n".join(lines).encode()
    plain = novelty.plain(text)
    added = plain if count + len(plain) >= CAPACITY else dict.fromkeys(plain)
    expected.sift([xxhash.xxh32_intdigest(line, 7) for line in added])
    assert (novelty.share(known, [text], 7) is None) == (not plain)
    assert (known._words, known.count) == (expected._words, expected.count)
