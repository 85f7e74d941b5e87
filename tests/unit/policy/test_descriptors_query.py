"""The query, parsed and as fingerprints see it."""

from __future__ import annotations

from urllib.parse import quote, urlencode

from hypothesis import given
from hypothesis import strategies as st

from breakloop.model.call import Call
from breakloop.policy.descriptors import _sorted_query, fields, query_for_fingerprint


def call(query: str) -> Call:
    return Call("GET", "/", query=query)


def test_repeated_keys_are_kept_and_escapes_decoded() -> None:
    """The query is parsed, with repeated keys in order (C-1)."""
    assert fields(call("a=1&b=x%20y+z&a=2&c&&d=")) == {"a": ["1", "2"], "b": ["x y z"], "c": [""], "d": [""]}
    assert fields(call("")) == {}


def test_the_number_of_fields_is_bounded() -> None:
    """Ten thousand fields are not ten thousand objects; what is beyond still tells requests apart (C-1)."""
    many = "&".join(f"k{number}=1" for number in range(10_000))
    assert len(fields(call(many))) == 1000
    assert query_for_fingerprint(call(many)) != query_for_fingerprint(call(many + "&more=1"))
    assert "secret" not in query_for_fingerprint(call(many + "&key=secret"))


def test_broken_escapes_do_no_harm() -> None:
    assert fields(call("a=%zz&b=%&c=%ff")) == {"a": ["%zz"], "b": ["%"], "c": ["\ufffd"]}
    assert query_for_fingerprint(call("c=%ff")) != query_for_fingerprint(call("c=%fe"))


def test_sorted_by_key_with_repeats_in_order() -> None:
    """The order of different keys is no difference, the order of one key's values is (LD-1)."""
    assert query_for_fingerprint(call("b=2&a=1")) == query_for_fingerprint(call("a=1&b=2")) == "a=1&b=2"
    assert query_for_fingerprint(call("a=2&a=1")) != query_for_fingerprint(call("a=1&a=2"))


def test_the_api_key_is_left_out() -> None:
    """`?key=` is a secret and no part of what is asked (C-7)."""
    assert query_for_fingerprint(call("alt=sse&key=AIza-secret")) == "alt=sse"
    assert query_for_fingerprint(call("%6bey=AIza-secret&alt=sse")) == "alt=sse"
    assert query_for_fingerprint(call("key=s")) == ""
    assert query_for_fingerprint(call("keys=1")) == "keys=1"


@given(st.lists(st.tuples(st.text(st.characters(codec="utf-8"), min_size=1), st.text(st.characters(codec="utf-8")))))
def test_one_spelling_for_equal_queries(pairs: list[tuple[str, str]]) -> None:
    """However it is escaped, the same query is the same (LD-1)."""
    plus = urlencode(pairs)
    escaped = urlencode(pairs, quote_via=quote)
    everything = "&".join(f"{_escape_all(name)}={_escape_all(value)}" for name, value in pairs)
    assert (
        query_for_fingerprint(call(plus))
        == query_for_fingerprint(call(escaped))
        == query_for_fingerprint(call(everything))
    )
    expected: dict[str, list[str]] = {}
    for name, value in pairs:
        expected.setdefault(name, []).append(value)
    assert fields(call(everything)) == expected


PIECES = st.sampled_from(["a", "b", "key", "%6bey", "%", "4", "1", "=", "&", "+", "~", "\ud83d", "ü", "0breakloop0"])


@given(st.lists(PIECES, max_size=12).map("".join), st.lists(PIECES, max_size=3).map("".join))
def test_a_query_that_differs_in_its_last_value_is_sorted_as_any_other(before: str, last: str) -> None:
    """What stands around the last value is kept (LD-1)."""
    for query in (f"{before}={last}", f"{before}=1", f"{before}=A9", before, f"{before}={last}"):
        assert query_for_fingerprint(call(query)) == _sorted_query(query)


def _escape_all(text: str) -> str:
    return "".join(f"%{byte:02x}" for byte in text.encode())
