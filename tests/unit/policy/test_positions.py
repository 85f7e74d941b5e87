"""Text -> data and places: what JSON and YAML mean here, and where each part stands."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from breakloop.errors import BundleError, Problem
from breakloop.policy import positions, yaml_positions
from breakloop.policy.places import Path, in_order, path_text, readable
from breakloop.policy.positions import read_document
from breakloop.policy.yaml_positions import plain_value

YAML = b"""# comment
top:
  - a: 1
    "b c": {d: [x, \xc3\xa9, z], e: "q"}
  - !!str 5
last: |
  text
"""
JSON = b'{"top": [\n\t{"a": 1,\n\t\t"b c": {"d": ["x", "\xc3\xa9", "z"]}},\n  5 ], "last": null}'


def at(text: bytes, name: str, path: Path, *, key: bool = False) -> tuple[int, int]:
    place = read_document(text, name)[1].locate(path, key=key)
    assert place.file == name
    return place.line, place.column


@pytest.mark.parametrize(
    ("path", "key", "value"),
    [
        ((), (2, 1), (2, 1)),
        (("top",), (2, 1), (3, 3)),
        (("top", 0, "a"), (3, 5), (3, 8)),
        (("top", 0, "b c"), (4, 5), (4, 12)),
        (("top", 0, "b c", "d", 2), (4, 23), (4, 23)),
        (("top", 0, "b c", "e"), (4, 27), (4, 30)),
        (("top", 1), (5, 5), (5, 5)),
        (("last",), (6, 1), (6, 7)),
        (("top", 0, "nowhere"), (3, 5), (3, 5)),
        (("nowhere", "below"), (2, 1), (2, 1)),
        (("top", 0, "b c", "d", 9), (4, 13), (4, 13)),
    ],
)
def test_places_in_yaml(path: Path, key: tuple[int, int], value: tuple[int, int]) -> None:
    """B-2: line and column of each key and value; what is missing is looked for at the key of what is around it."""
    assert at(YAML, "x.yaml", path, key=True) == key
    assert at(YAML, "x.yaml", path) == value


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
def test_places_in_json(path: Path, key: tuple[int, int], value: tuple[int, int]) -> None:
    """B-2: tabs and characters beyond ASCII count as one column."""
    assert at(JSON, "x.json", path, key=True) == key
    assert at(JSON, "x.json", path) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", None), ("~", None), ("null", None), ("true", True), ("FALSE", False), ("yes", "yes"), ("off", "off"),
        ("12", 12), ("-3", -3), ("+4", 4), ("0", 0), ("007", "007"), ("1_000", "1_000"), ("0o17", 15), ("0x1F", 31),
        ("1.5", 1.5), (".5", 0.5), ("1.", 1.0), ("1e3", 1000.0), ("1e", "1e"), ("-", "-"), (".", "."), ("1.2.3", "1.2.3"),
        ("2026-01-01", "2026-01-01"), ("12:30", "12:30"), ("9" * 500, "9" * 500),
    ],
)  # fmt: skip
def test_what_plain_yaml_words_mean(text: str, value: object) -> None:
    """B-1: YAML 1.2; numbers with zeros in front stay text."""
    made = plain_value(text)
    assert made == value
    assert type(made) is type(value)


def test_an_alias_stands_where_its_text_stands() -> None:
    text = b"a: &x {k: 1}\nb: *x\nc: {<<: *x, k: 2}\nd: {<<: [*x, {m: 3}]}\n"
    data, places = read_document(text, "x.yaml")
    assert data == {"a": {"k": 1}, "b": {"k": 1}, "c": {"k": 2}, "d": {"k": 1, "m": 3}}
    assert places.locate(("b", "k"))[1:] == (1, 11)
    assert places.locate(("c", "k"))[1:] == (3, 16)
    assert places.locate(("d", "m"), key=True)[1:] == (4, 15)


def test_a_quoted_merge_key_is_a_key() -> None:
    assert read_document(b'"<<": 1\n', "x.yaml")[0] == {"<<": 1}


@pytest.mark.parametrize("name", ["x.yaml", "x.json"])
def test_every_duplicate_key_is_reported(name: str) -> None:
    """B-2: located at the second, naming the line of the first."""
    text = b'{"a": 1,\n "b": [{"c": 1, "c": 2}],\n "a": 3}'
    with pytest.raises(BundleError) as caught:
        read_document(text, name)
    assert sorted((p.line, p.column, p.message) for p in caught.value.problems) == [
        (2, 17, 'key "c" stands twice; the first is on line 2'),
        (3, 2, 'key "a" stands twice; the first is on line 1'),
    ]


def test_json_is_known_by_its_content_too() -> None:
    assert read_document(b'\n{"a":\t[1,\t2]}', "bundle")[0] == {"a": [1, 2]}
    assert read_document(b"{a: [1, 2]}", "bundle")[0] == {"a": [1, 2]}


@pytest.mark.parametrize(
    ("text", "name", "message"),
    [
        (b" \n\t\n", "x.json", "x.json:1:1: is empty"),
        (b"[" * 5000 + b"]" * 5000, "x", "x:1:65: is nested more than 64 deep"),
        (b'{"a": ' + b"9" * 5000 + b"}", "x.json", "x.json:1:7: the number is too large"),
        (b'{"a": 1, "a": 2, }', "x.json", 'x.json:1:16: is not valid JSON: a comma before "}" (nothing follows it, so take it out)'),
        (b'{"a": "\\q"}', "x.json", "x.json:1:8: is not valid JSON: unknown escape in a text (write \\\\ for a backslash)"),
        (b'{"a": "b', "x.json", 'x.json:1:7: is not valid JSON: a text is not closed (add the missing ")'),
        (b"{a: 1}", "x.json", 'x.json:1:2: is not valid JSON: unexpected "a" (keys stand in double quotes)'),
        (b'{"a": -Infinity}', "x.json", "x.json:1:7: -Infinity is not a number that can be used"),
        (b"a: 1\nkey\nb: 2\n", "x.yaml", 'x.yaml:2:1: is not valid YAML: a key without ":" (write key: value)'),
        (b"a: {b: 1\n", "x.yaml", 'x.yaml:2:1: is not valid YAML: the map opened on line 1 lacks a comma or its "}"'),
        (b"- !!map [a]\n", "x.yaml", 'x.yaml:1:3: tag "!!map" is not supported (take it out)'),
        (b'"\\ud83d": 1\n', "x.yaml", "x.yaml:1:1: has a key with half a character in it"),
        (b"a: !!float .nan\n", "x.yaml", "x.yaml:1:4: .nan is not a number that can be used"),
        (b"a: 1e999\n", "x.yaml", "x.yaml:1:4: 1e999 is not a number that can be used"),
    ],
)  # fmt: skip
def test_texts_that_cannot_be_read(text: bytes, name: str, message: str) -> None:
    """B-2: each has a place and says what to do."""
    with pytest.raises(BundleError) as caught:
        read_document(text, name)
    assert [str(problem) for problem in caught.value.problems] == [message]


def test_surrogate_pairs_are_whole_characters() -> None:
    assert read_document(b'{"a": "\\ud83d\\ude00"}', "x.json")[0] == {"a": "\U0001f600"}


def test_size_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """B-2: a file too large is refused before it is parsed."""
    monkeypatch.setattr(positions, "MAX_BYTES", 40)
    monkeypatch.setattr(positions, "MAX_YAML_LENGTH", 20)
    for text, name, message in (
        (b"#" * 41, "x.json", "x.json:1:1: has 41 bytes, more than the 40 allowed"),
        (b"#" * 21, "x.yaml", "x.yaml:1:1: has more than the 20 characters allowed for YAML (write it as JSON)"),
    ):
        with pytest.raises(BundleError) as caught:
            read_document(text, name)
        assert str(caught.value) == message


def test_aliases_count_as_often_as_they_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(yaml_positions, "MAX_NODES", 20)
    assert read_document(b"a: &a [1, 2, 3]\nb: [*a, *a]\n", "x.yaml")[0]["b"] == [[1, 2, 3]] * 2
    with pytest.raises(BundleError, match="aliases counted as often as used"):
        read_document(b"a: &a [1, 2, 3]\nb: [*a, *a, *a, *a]\n", "x.yaml")


def test_paths_as_people_write_them() -> None:
    assert path_text(("policies", 0, "spec", "match", "jwt:sub", 3)) == 'policies[0].spec.match["jwt:sub"][3]'
    assert path_text(()) == ""


def test_nothing_unprintable_reaches_a_terminal() -> None:
    """Y-1: a file's text cannot drive the terminal of whoever reads the message."""
    assert readable("a\x1b[31m\n\ud800") == "a\\x1b[31m\\n\\ud800"
    assert len(readable("x" * 10_000)) == 503


def test_problems_are_sorted_and_cut() -> None:
    """B-2: by place; after 50 only how many more there are."""
    problems = [Problem("f", line, 1, "", "m") for line in range(80, 0, -1)]
    ordered = in_order([*problems, problems[0]])
    assert [p.line for p in ordered] == list(range(1, 52))
    assert ordered[-1].message == "and 30 more problems"


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="\ufeff\u2028\u2029\ufffe\uffff")),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("abc :é", max_size=4), inner, max_size=4),
    max_leaves=15,
)  # fmt: skip


def parts(data: Any, path: Path = ()) -> list[tuple[Path, Any]]:
    below = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    return [(path, data), *(found for key, item in below for found in parts(item, (*path, key)))]


@given(PLAIN, st.sampled_from([None, 1, "\t"]))
def test_json_places_hold_the_values(data: Any, indent: Any) -> None:
    """B-2: decoding from the reported place gives the value that stands there."""
    text = json.dumps(data, indent=indent, ensure_ascii=False)
    read, places = read_document(text.encode(), "x.json")
    assert read == data
    lines = text.split("\n")
    for path, value in parts(data):
        place = places.locate(path)
        offset = sum(len(line) + 1 for line in lines[: place.line - 1]) + place.column - 1
        assert json.JSONDecoder().raw_decode(text, offset)[0] == value


@given(st.text("ab:- \n\t'\"[]{},&*!<|>#%@\\0.~?", max_size=40), st.sampled_from(["x.yaml", "x.json", "x"]))
def test_no_text_makes_the_reader_fail_otherwise(text: str, name: str) -> None:
    """B-2: any text is either read or refused with a place."""
    problems: list[Problem] | None = None
    try:
        read_document(text.encode(), name)
    except BundleError as error:
        problems = error.problems
    assert problems != []
    assert all(problem.line > 0 and problem.column > 0 for problem in problems or [])
