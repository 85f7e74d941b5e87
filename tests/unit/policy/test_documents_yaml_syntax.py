"""What is said about text that is not YAML; the museum has the usual mistakes."""

from __future__ import annotations

import pytest

from breakloop.errors import BundleError
from breakloop.policy.documents import read_yaml


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a: [1\nb: 2\n", '2:2: is not valid YAML: the list opened on line 1 lacks a comma or its "]"'),
        ("a: 1\nkey\nb: 2\n", '2:1: is not valid YAML: a key without ":" (write key: value)'),
        ("a: 'b\n", "1:4: is not valid YAML: a quoted text is not closed"),
        ("a: `b`\n", '1:4: is not valid YAML: a value cannot begin with "`" (put it in quotes)'),
        ('a:\n  "\\UFFFFFFFF"\n', "2:4: is not valid YAML: an invalid escape"),
        ("a: 1\nb: \x01\n", "2:4: is not valid YAML: a control character (remove it)"),
    ],
)
def test_syntax_errors_are_located_and_explained(text: str, problem: str) -> None:
    """In plain words, where the mistake is (B-2)."""
    with pytest.raises(BundleError) as caught:
        read_yaml(text, "x.yaml")
    assert str(caught.value) == f"x.yaml:{problem}"


def test_what_has_no_translation_keeps_the_parsers_words() -> None:
    with pytest.raises(BundleError, match=r"^x.yaml:1:\d+: is not valid YAML: expected a digit"):
        read_yaml("%YAML 9.x\n---\na: 1\n", "x.yaml")
