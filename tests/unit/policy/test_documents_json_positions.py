"""JSON text: data, and where each part stands."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from breakloop.errors import BundleError
from breakloop.policy.documents import DocumentPath, read_document, read_json

JSON = b'{"top": [\n\t{"a": 1,\n\t\t"b c": {"d": ["x", "\xc3\xa9", "z"]}},\n  5 ], "last": null}'


def at(text: bytes, name: str, path: DocumentPath, *, key: bool = False) -> tuple[int, int]:
    place = read_document(text, name)[1].locate(path, key=key)
    assert place.file == name
    return place.line, place.column


@pytest.mark.parametrize(
    ("path", "key", "value"),
    [
        ((), (1, 1), (1, 1)),
        (("top",), (1, 2), (1, 9)),
        (("top", 0, "a"), (2, 3), (2, 8)),
        (("top", 0, "b c", "d", 2), (3, 27), (3, 27)),
        (("top", 1), (4, 3), (4, 3)),
        (("last",), (4, 8), (4, 16)),
        (("top", 0, "nowhere"), (2, 2), (2, 2)),
        (("last", "below"), (4, 8), (4, 8)),
    ],
)
def test_places_in_json(path: DocumentPath, key: tuple[int, int], value: tuple[int, int]) -> None:
    """Tabs and characters beyond ASCII count as one column (B-2)."""
    assert at(JSON, "x.json", path, key=True) == key
    assert at(JSON, "x.json", path) == value


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="\ufeff\u2028\u2029\ufffe\uffff")),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("abc :é", max_size=4), inner, max_size=4),
    max_leaves=15,
)  # fmt: skip


def parts(data: Any, path: DocumentPath = ()) -> list[tuple[DocumentPath, Any]]:
    below = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    return [(path, data), *(found for key, item in below for found in parts(item, (*path, key)))]


@given(PLAIN, st.sampled_from([None, 1, "\t"]))
def test_json_places_hold_the_values(data: Any, indent: Any) -> None:
    """Decoding from the reported place gives the value that stands there (B-2)."""
    text = json.dumps(data, indent=indent, ensure_ascii=False)
    read, places = read_document(text.encode(), "x.json")
    assert read == data
    lines = text.split("\n")
    for path, value in parts(data):
        place = places.locate(path)
        offset = sum(len(line) + 1 for line in lines[: place.line - 1]) + place.column - 1
        assert json.JSONDecoder().raw_decode(text, offset)[0] == value


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{"a": NaN, "b": }', '1:17: is not valid JSON: unexpected "}"'),
        ('{"a": NaN, "b": ' + "9" * 5000 + "}", "1:7: NaN is not a supported number"),
    ],
)
def test_broken_syntax_goes_before_suspect_values(text: str, problem: str) -> None:
    """What is suspect is only looked for in a text that is JSON at all (B-2)."""
    with pytest.raises(BundleError) as caught:
        read_json(text, "x.json")
    assert str(caught.value.problems[0]) == f"x.json:{problem}"
