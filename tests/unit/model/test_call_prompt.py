"""What a prompt is: `wire` makes one, and `pricing` takes any that is one."""

from __future__ import annotations

from breakloop.dialects import prompt
from breakloop.model.call import Prompt, PromptSize, chars_of
from tests.each import each


def test_the_one_that_wire_makes_is_one() -> None:
    """The two do not know each other (L-3)."""
    made: Prompt = prompt.RequestPrompt(None, 7)
    assert (made.size, made.body_bytes, made.texts()) == (None, 7, [])
    assert PromptSize(3) == (3, 0, 0)


@each(
    "text, expected",
    [
        ("", 0),
        ("four", 4),
        ("größer", 6),
        ("свобода", 7),
        ("समानता", 6),
        ("“quoted” – €", 12),
        ("自由，", 9),
        ("すべて", 9),
        ("한국", 6),
        ("ok 😀", 6),
        ("a\ud800", 4),
    ],
)
def test_how_long_a_text_is(text: str, expected: int) -> None:
    """Characters; three where one is most of a token (L-3)."""
    assert chars_of(text) == expected
