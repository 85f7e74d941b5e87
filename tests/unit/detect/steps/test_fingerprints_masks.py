"""What is masked before texts are compared, and what is not (LD-4)."""

from __future__ import annotations

import pytest

from breakloop.detect.steps.fingerprints import (
    compact,
    content_words,
    folded,
    loose,
    lowered,
    own,
    ranked,
    shape,
    steady,
    word_digests,
)
from breakloop.model.decision import END, MARK, MARKED_NOTE_MAX
from tests.each import each
from tests.unit.detect.steps.stepping import LONG, PRINTER


@each("text, masked", [
    ("no number here", "no number here"),
    ("at 2026-01-02T03:04:05.678Z it ended", "at ~ it ended"),
    ("at 2026-01-02 03:04:05 it ended", "at ~ it ended"),
    ("12:30 PM, 09:15:59+02:00", "~, ~"),
    ("12:30:01 took 5s, 7 ms", "~ took ~, ~"),
    ("[2026-01-02 03:04:05,678] it ended, 03:04:05,678 INFO", "[~] it ended, ~ INFO"),
    ("took 1.25s, then 30 ms and 2 seconds", "took ~, then ~ and ~"),
    ("object at 0x7f3a2b4c5d", "object at ~"),
    ("pid 4711 and PID=12 and Thread-3", "~ and ~ and ~"),
    ("id 123e4567-e89b-12d3-a456-426614174000 gone", "id ~ gone"),
])  # fmt: skip
def test_steady(text: str, masked: str) -> None:
    """Times, durations, addresses, process numbers and UUIDs go, or a nonce would switch detection off (LD-4)."""
    assert steady(text.encode()).decode() == masked


@pytest.mark.parametrize(
    "text", ["page 3 of 7", "on 2026-01-02 alone", "order 4711", "line 12: 5 files", "9 steps", "v1.2"]
)
def test_numbers_that_matter_stay(text: str) -> None:
    """Counts, pages, dates and record numbers are the matter itself (LD-4)."""
    assert steady(text.encode()).decode() == text


def test_loose_collapses_numbers_and_typed_ids() -> None:
    """The second-class stream (LD-4)."""
    assert loose(b"order 4711 of req_8f3k2j4h5g6d7s") == loose(b"order 12 of req_1a2b3c4d5e6f7g")
    assert loose(b"get abcdefgh12345x") == loose(b"get hijklmnop9876y")
    assert loose(b"order of words") == b"order of words"
    assert loose(b"order 4711") != loose(b"invoice 4711")


def test_shape_of_errors() -> None:
    """In errors paths, quotes and numbers are masked, words are not (LD-4)."""
    one = shape(b"No such file: '/a/b.py' line 3\n  in /usr/lib/x.py")
    assert one == shape(b"No such file: '/c/d/e.py' line 99\nin /opt/y.py")
    assert one == b"No such file: \x01 line #\nin #"
    assert shape(b"permission denied") == b"permission denied"


def test_own_notes_go() -> None:
    """A note of ours never enters a fingerprint, wherever it stands (LD-5)."""
    assert own(b"a [breakloop] you repeat\nyourself [/breakloop]b") == b"a b"
    assert own(b"[breakloop] you repeat yourself [/breakloop]b") == b"b"
    assert own(b"a [breakloop] without an end") == b"a [breakloop] without an end"
    for size, left in ((MARKED_NOTE_MAX, b"a b"), (MARKED_NOTE_MAX + 1, None)):  # a longer text is not ours
        text = b"a " + MARK.encode() + b"x" * size + END.encode() + b"b"
        assert own(text) == (text if left is None else left)


def test_words() -> None:
    """Content words and numbers, each once, whatever the case; short words do not count (LD-4)."""
    assert content_words("The Answer is answer_42!") == content_words("answer: 42") == [b"answer", b"42"]
    assert len(content_words("some words, some more")) == 3
    assert content_words("Größe") == content_words("GRÖSSE".replace("SS", "ß"))
    assert content_words("x" * 2999 + " second") == [b"x" * 2999]
    assert word_digests([b"first"], 7) != word_digests([b"first"], 8)


def test_white_space_and_case() -> None:
    """How a text is laid out and capitalised is no matter where it says so (LD-4)."""
    assert compact(b" a\tb\r\n c ") == b"abc"
    assert folded(b" a\t b\r\n c ") == b"a b c"
    assert lowered(b"ABC") == b"abc"
    assert lowered("GRÖSSE \ud800".encode("utf-8", "surrogatepass")) == "grösse \ud800".encode("utf-8", "surrogatepass")


def test_loose_uuids_and_long_arguments() -> None:
    """Ids of any make go; what is very long is only looked at where it begins (LD-4)."""
    one, other = b"get e2e4567f-e89b-12d3-a456-426614174000", b"get abcd4567-a89b-12d3-b456-426614174abc"
    assert loose(one) == loose(other)
    assert loose(b"x" * 2000 + b" 17") == b"x" * 2000 + b" 17"


@pytest.mark.parametrize("value", ["42", "1207", "420", "4.2"])
def test_a_value_behind_a_time_stays(value: str) -> None:
    """In a table what follows a comma is the next column, not a part of the second (LD-4)."""
    assert steady(f"2026-01-01 00:00:05,{value}".encode()).decode() == f"~,{value}"
    assert steady(f"00:00:05,{value}\n00:00:06,{value},1".encode()).decode() == f"~,{value}\n~,{value},1"


UUID = b"e2e4567f-e89b-12d3-a456-426614174000"


@each("text, masked", [
    (b"5s left", b"~ left"),
    (b"took 5s", b"took ~"),
    (b"0x7f3a2b4c is gone", b"~ is gone"),
    (UUID, b"~"),
    (b"Process 12 ended", b"~ ended"),
    (b"Thread-3 ended", b"~ ended"),
    (b"pid 4711 ended", b"~ ended"),
])  # fmt: skip
def test_one_volatile_part_at_an_end_of_a_text(text: bytes, masked: bytes) -> None:
    """It is masked, also if it is the first or the last thing in a text, and alone (LD-4)."""
    assert steady(text) == masked


@each("text, masked", [
    (b"tid 17 is in no process", b"~ is in no process"),
    (b"tid 17: deadlock in thread", b"~: deadlock in thread"),
    (b"tid 17 has no pid", b"~ has no pid"),
])  # fmt: skip
def test_the_number_of_a_thread_before_a_last_word_about_processes(text: bytes, masked: bytes) -> None:
    """It is masked wherever a process or a thread is named, also if that is the end of the text (LD-4)."""
    assert steady(text) == masked


@each("text, masked", [
    (UUID, b"#"),
    (b"get abcdefgh1234", b"get #"),  # twelve letters and digits
    (b"abcdefgh1234 is there", b"# is there"),
    (b"get abcdefg1234", b"get abcdefg#"),
])  # fmt: skip
def test_ids_in_arguments(text: bytes, masked: bytes) -> None:
    """UUIDs, and twelve letters and digits or more (LD-4)."""
    assert loose(text) == masked


def test_ends_of_notes_that_are_not_ours() -> None:
    """The end of a note that did not begin stays, and notes behind it go (LD-5)."""
    assert own(b"[/breakloop] a [breakloop] x [/breakloop]b") == b"[/breakloop] a b"
    assert own(b"a [/breakloop] b [breakloop] x [/breakloop]c") == b"a [/breakloop] b c"


def test_notes_in_messages_and_results() -> None:
    """They are part of neither (LD-5)."""
    with_note = f"{LONG} [breakloop] you repeat yourself [/breakloop]"
    assert PRINTER.incoming(with_note).key == PRINTER.incoming(LONG).key
    assert PRINTER.result(with_note).key == PRINTER.result(LONG).key


def test_letters_of_words() -> None:
    """Letters of any script belong to words, control characters separate them (LD-4)."""
    assert content_words("пример") == ["пример".encode()]
    assert content_words("first\x7fsecond") == [b"first", b"second"]


def test_samples_of_words_do_not_depend_on_the_key() -> None:
    """Whatever the seed, the same words come first. Digests without their words stay as they are (LD-4)."""
    words = content_words("several painters borrowed yellow ladders yesterday")
    orders = []
    for seed in (7, 8):
        digests = word_digests(words, seed)
        orders.append([words[digests.index(one)] for one in ranked(words, digests)])
    assert orders[0] == orders[1] != words
    assert sorted(orders[0]) == sorted(words)
    assert ranked((), [3, 1, 2]) == [3, 1, 2]
