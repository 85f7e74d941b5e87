"""Any text: JSON or YAML, read or refused with a place."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from breakloop.errors import BundleError, Problem
from breakloop.policy import documents
from breakloop.policy.documents import read_document
from tests.each import each


@pytest.mark.parametrize("name", ["x.yaml", "x.json"])
def test_every_duplicate_key_is_reported(name: str) -> None:
    """Located at the second, naming the line of the first (B-2)."""
    text = b'{"a": 1,\n "b": [{"c": 1, "c": 2}],\n "a": 3}'
    with pytest.raises(BundleError) as caught:
        read_document(text, name)
    assert sorted((p.line, p.column, p.message) for p in caught.value.problems) == [
        (2, 17, 'key "c" is used twice; the first is on line 2'),
        (3, 2, 'key "a" is used twice; the first is on line 1'),
    ]


def test_json_is_known_by_its_content_too() -> None:
    assert read_document(b'\n{"a":\t[1,\t2]}', "bundle")[0] == {"a": [1, 2]}
    assert read_document(b"{a: [1, 2]}", "bundle")[0] == {"a": [1, 2]}


@each(
    "text, name, message",
    [
        (b" \n\t\n", "x.json", "x.json:1:1: is empty"),
        (b"[" * 5000 + b"]" * 5000, "x", "x:1:65: is nested more than 64 deep"),
        (b'{"a": ' + b"9" * 5000 + b"}", "x.json", "x.json:1:7: the number is too large"),
        (b"[" + b"9" * 5000 + b', 1.2.3, "9', "x.json", "x.json:1:2: the number is too large"),
        (b'{"a": 1, "a": 2, }', "x.json", 'x.json:1:16: is not valid JSON: a comma before "}" (nothing follows it, so remove it)'),
        (b'{"a": "\\q"}', "x.json", "x.json:1:8: is not valid JSON: unknown escape in a text (write \\\\ for a backslash)"),
        (b'{"a": "b', "x.json", 'x.json:1:7: is not valid JSON: a text is not closed (add the missing ")'),
        (b"{a: 1}", "x.json", 'x.json:1:2: is not valid JSON: unexpected "a" (write keys in double quotes)'),
        (b'{"a": -Infinity}', "x.json", "x.json:1:7: -Infinity is not a supported number"),
        (b"a: 1\nkey\nb: 2\n", "x.yaml", 'x.yaml:2:1: is not valid YAML: a key without ":" (write key: value)'),
        (b"a: {b: 1\n", "x.yaml", 'x.yaml:2:1: is not valid YAML: the map opened on line 1 lacks a comma or its "}"'),
        (b"- !!map [a]\n", "x.yaml", 'x.yaml:1:3: tag "!!map" is not supported (remove it)'),
        (b'"\\ud83d": 1\n', "x.yaml", "x.yaml:1:1: has a key with an unpaired surrogate"),
        (b"a: !!float .nan\n", "x.yaml", "x.yaml:1:4: .nan is not a supported number"),
        (b"a: 1e999\n", "x.yaml", "x.yaml:1:4: 1e999 is not a supported number"),
    ],
)  # fmt: skip
def test_texts_that_cannot_be_read(text: bytes, name: str, message: str) -> None:
    """Each has a place and says what to do (B-2)."""
    with pytest.raises(BundleError) as caught:
        read_document(text, name)
    assert [str(problem) for problem in caught.value.problems] == [message]


def test_surrogate_pairs_are_whole_characters() -> None:
    assert read_document(b'{"a": "\\ud83d\\ude00"}', "x.json")[0] == {"a": "\U0001f600"}


def test_size_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file too large is refused before it is parsed (B-2)."""
    monkeypatch.setattr(documents, "MAX_BYTES", 40)
    monkeypatch.setattr(documents, "MAX_YAML_LENGTH", 20)
    for text, name, message in (
        (b"#" * 41, "x.json", "x.json:1:1: has 41 bytes, more than the 40 allowed"),
        (b"#" * 21, "x.yaml", "x.yaml:1:1: has more than the 20 characters allowed for YAML (write it as JSON)"),
    ):
        with pytest.raises(BundleError) as caught:
            read_document(text, name)
        assert str(caught.value) == message


@given(st.text("ab:- \n\t'\"[]{},&*!<|>#%@\\0.~?", max_size=40), st.sampled_from(["x.yaml", "x.json", "x"]))
def test_no_text_makes_the_reader_fail_otherwise(text: str, name: str) -> None:
    """Any text is either read or refused with a place (B-2)."""
    problems: list[Problem] | None = None
    try:
        read_document(text.encode(), name)
    except BundleError as error:
        problems = error.problems
    assert problems != []
    assert all(problem.line > 0 and problem.column > 0 for problem in problems or [])
