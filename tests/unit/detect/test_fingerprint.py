"""Fingerprints: keyed, 128 bit, and no way to make two different requests of others look alike."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from breakloop.detect.fingerprint import Fingerprinter, packed

MADE = Fingerprinter(b"secret")
TEXTS = st.text(st.sampled_from("a1\x00\x1f3") | st.characters(codec=None), max_size=6)
PARTS = st.lists(TEXTS, min_size=1, max_size=5)


def test_128_bits_in_hex() -> None:
    """What is stored or shown is a keyed 128-bit digest (LD-1)."""
    digest = MADE.digest(["a", "b"], b"matter")
    assert len(digest) == 32
    assert int(digest, 16) >= 0
    assert digest == Fingerprinter(b"secret").digest(["a", "b"], b"matter")


def test_another_secret_gives_other_fingerprints() -> None:
    """Without the secret nobody can try prompts out; a fleet that shares it agrees (Y-1)."""
    assert MADE.digest(["a"]) != Fingerprinter(b"other").digest(["a"])
    assert Fingerprinter(b"").digest(["a"]) != MADE.digest(["a"])
    assert len(Fingerprinter(b"k" * 500).digest(["a"])) == 32
    long = [Fingerprinter(b"k" * 63 + last) for last in (b"1", b"2")]
    assert long[0].digest(["a"]) != long[1].digest(["a"])
    assert long[0].short(b"a") != long[1].short(b"a")


def test_they_are_the_same_everywhere() -> None:
    """Counts and windows are shared by a fleet, and by the versions before and after an upgrade (E-7)."""
    assert MADE.digest(["a", "b"], b"matter") == "b4dc98d0a88880f85cb447772bb35b8b"
    assert MADE.short(b"matter").hex() == "8ccc79bb95de4fed"


def test_order_and_matter_count() -> None:
    """Each part stands in its place (LD-1)."""
    digests = {
        MADE.digest(["a", "b"]),
        MADE.digest(["b", "a"]),
        MADE.digest(["ab"]),
        MADE.digest(["a", "b", ""]),
        MADE.digest(["a", "b"], b"x"),
        MADE.digest(["a", "b"], b"y"),
        MADE.digest(["a", "bx"]),
    }
    assert len(digests) == 7


@given(one=PARTS, other=PARTS)
@example(one=["a\x00b", "c"], other=["a", "b\x00c"])
def test_separators_in_parts_cannot_collide(one: list[str], other: list[str]) -> None:
    """Whatever the parts hold, also the separator itself and half characters (LD-1)."""
    assert (packed(one) == packed(other)) is (one == other)
    assert (MADE.digest(one) == MADE.digest(other)) is (one == other)


@given(parts=PARTS)
def test_a_part_cannot_pass_for_several(parts: list[str]) -> None:
    """The same characters in one part are something else (LD-1)."""
    whole = ["\x00".join(parts)]
    assert (packed(parts) == packed(whole)) is (parts == whole)


def test_a_list_cannot_pass_for_a_longer_one() -> None:
    """Not even with the length prefixes that keep separators apart (LD-1)."""
    sly = ["a\x00b", "c"]
    assert packed(sly) != packed(["", "3", "a", "b1", "c"])
    assert packed(["3", "a", "b1", "c"]) != packed(sly)


def test_nothing_is_not_an_empty_text() -> None:
    """A conversation without messages is not one with an empty one."""
    assert packed([]) == b"\xff"
    assert packed([""]) == b""
