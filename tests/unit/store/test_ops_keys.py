"""Parts of state keys: escaped, bounded, one spelling each."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from breakloop.store.ops import PART_MAX, joined, part, plain

TEXTS = st.text(st.sampled_from("ab%:|~25C") | st.characters(), max_size=12) | st.text(min_size=250, max_size=270)


def test_what_separates_is_escaped() -> None:
    """Parts are escaped (S-2)."""
    assert part("a:b|c%d") == "a%3Ab%7Cc%25d"
    assert part("plain-1") == "plain-1"
    assert joined(["a|b", "c"]) == "a%7Cb|c"
    assert joined(["a:b"]) == "a%3Ab"
    assert joined([]) == ""


@given(one=st.lists(TEXTS, min_size=2, max_size=2), other=st.lists(TEXTS, min_size=2, max_size=2))
def test_different_values_give_different_keys(one: list[str], other: list[str]) -> None:
    """Nobody can name another's key (S-2)."""
    assert (joined(one) == joined(other)) is (one == other)
    assert (part(one[0]) == part(one[1])) is (one[0] == one[1])


@given(st.text(min_size=1, max_size=2000))
def test_a_client_does_not_choose_how_large_a_key_is(value: str) -> None:
    """Memory is bounded in bytes, not only in entries; whatever a header holds (Y-2)."""
    assert len(part(value)) <= 3 * PART_MAX
    assert ":" not in part(value)
    assert "|" not in part(value)


def test_long_values_are_told_apart() -> None:
    """By a digest that stands for the whole (Y-2)."""
    long = "x" * 5000
    assert len(part(long)) < 100
    assert part("x" * PART_MAX) == "x" * PART_MAX
    assert part(long + "a") != part(long + "b")
    assert part(long) == part(long)
    assert part("\ud800" * 500)


@given(TEXTS.filter(lambda text: len(text) <= PART_MAX))
def test_people_read_what_was_meant(value: str) -> None:
    assert plain(part(value)) == value
