"""YAML text: data, and where each part stands."""

from __future__ import annotations

import pytest

from breakloop.errors import BundleError
from breakloop.policy import documents
from breakloop.policy.documents import DocumentPath, plain_value, read_document
from tests.each import each

YAML = b"""# comment
top:
  - a: 1
    "b c": {d: [x, \xc3\xa9, z], e: "q"}
  - !!str 5
last: |
  text
"""


def at(text: bytes, name: str, path: DocumentPath, *, key: bool = False) -> tuple[int, int]:
    place = read_document(text, name)[1].locate(path, key=key)
    assert place.file == name
    return place.line, place.column


@each(
    "path, key, value",
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
def test_places_in_yaml(path: DocumentPath, key: tuple[int, int], value: tuple[int, int]) -> None:
    """Line and column of each key and value; what is missing is looked for at the key of what is around it (B-2)."""
    assert at(YAML, "x.yaml", path, key=True) == key
    assert at(YAML, "x.yaml", path) == value


@each(
    "text, value",
    [
        ("", None), ("~", None), ("null", None), ("true", True), ("FALSE", False), ("yes", "yes"), ("off", "off"),
        ("12", 12), ("-3", -3), ("+4", 4), ("0", 0), ("007", "007"), ("1_000", "1_000"), ("0o17", 15), ("0x1F", 31),
        ("1.5", 1.5), (".5", 0.5), ("1.", 1.0), ("1e3", 1000.0), ("1e", "1e"), ("-", "-"), (".", "."), ("1.2.3", "1.2.3"),
        ("2026-01-01", "2026-01-01"), ("12:30", "12:30"), ("9" * 500, "9" * 500),
    ],
)  # fmt: skip
def test_what_plain_yaml_words_mean(text: str, value: object) -> None:
    """YAML 1.2; numbers with zeros in front stay text (B-1)."""
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


def test_aliases_count_as_often_as_they_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "MAX_NODES", 20)
    assert read_document(b"a: &a [1, 2, 3]\nb: [*a, *a]\n", "x.yaml")[0]["b"] == [[1, 2, 3]] * 2
    with pytest.raises(BundleError, match="counting each use of an alias"):
        read_document(b"a: &a [1, 2, 3]\nb: [*a, *a, *a, *a]\n", "x.yaml")
