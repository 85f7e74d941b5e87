"""Parts of state keys: escaped, bounded, one spelling each."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from breakloop.store.keys import (
    PART_MAX,
    RuleKey,
    TreeKey,
    escape,
    fingerprint_of,
    join_values,
    parse_rule_key,
    parse_tree_key,
    place_of,
    project_of,
    split_values,
    unescape,
)

TEXTS = st.text(st.sampled_from("ab%:|~25C") | st.characters(), max_size=12) | st.text(min_size=250, max_size=270)


def test_what_separates_is_escaped() -> None:
    """Parts are escaped (S-2)."""
    assert escape("a:b|c%d") == "a%3Ab%7Cc%25d"
    assert escape("plain-1") == "plain-1"
    assert join_values(["a|b", "c"]) == "a%7Cb|c"
    assert join_values(["a:b"]) == "a%3Ab"
    assert join_values([]) == ""


@given(one=st.lists(TEXTS, min_size=2, max_size=2), other=st.lists(TEXTS, min_size=2, max_size=2))
def test_different_values_give_different_keys(one: list[str], other: list[str]) -> None:
    """Nobody can name another's key (S-2)."""
    assert (join_values(one) == join_values(other)) is (one == other)
    assert (escape(one[0]) == escape(one[1])) is (one[0] == one[1])


@given(st.text(min_size=1, max_size=2000))
def test_a_client_does_not_choose_how_large_a_key_is(value: str) -> None:
    """Memory is bounded in bytes, not only in entries; whatever a header holds (Y-2)."""
    assert len(escape(value)) <= 3 * PART_MAX
    assert ":" not in escape(value)
    assert "|" not in escape(value)


def test_long_values_are_told_apart() -> None:
    """By a digest that stands for the whole (Y-2)."""
    long = "x" * 5000
    assert len(escape(long)) < 100
    assert escape("x" * 256) == "x" * 256
    assert len(escape("x" * 257)) == 34
    assert escape(long + "a") != escape(long + "b")
    assert escape(long) == escape(long)
    assert escape("\ud800" * 500)


@given(TEXTS.filter(lambda text: len(text) <= PART_MAX))
def test_people_read_what_was_meant(value: str) -> None:
    assert unescape(escape(value)) == value


def test_a_rule_key_is_taken_apart() -> None:
    """Policy and values as they were, whatever they contain; keys of other kinds are none (CB-2)."""
    key = f"brk:p|a:{escape('my:policy')}:rule:{join_values(['x|y', 'z'])}"
    assert parse_rule_key(key) == RuleKey(False, "p|a", "my:policy", "x%7Cy|z")
    shadow = parse_rule_key(f"shadow:{key}")
    assert shadow is not None
    assert (shadow.shadow, project_of(shadow.place), split_values(shadow.values)) == (True, "p", ["x|y", "z"])
    assert parse_rule_key("win:p:s:") is None
    assert (place_of(key), place_of(f"shadow:{key}"), fingerprint_of("cnt:p:|builtin:0:abc")) == ("p|a", "p|a", "abc")


def test_the_account_of_a_tree() -> None:
    """Money or tokens of one caller's tree, in shadow or not; other keys are none (C-7, S-2)."""
    assert parse_tree_key("treeusd:p:caller|root%3A1") == TreeKey(False, "treeusd", "p", "caller", "root:1")
    assert parse_tree_key("shadow:treetok:p:a|b") == TreeKey(True, "treetok", "p", "a", "b")
    for other in ("tb:p:a|b", "treeusd:p", "treeusd:p:a", "treeusd:p:a|b|c", "treeusd:p:a|b:c", ""):
        assert parse_tree_key(other) is None
