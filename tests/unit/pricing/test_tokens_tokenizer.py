"""Real tokens: counted with a vocabulary that is there, bounded, and refused with a remedy where it is not."""

from __future__ import annotations

import socket
import sys

import pytest

from breakloop.errors import SettingsError
from breakloop.model.call import PromptSize
from breakloop.pricing.tokens import COUNTED_MAX_CHARS, MEDIA_TOKENS, Tokenizer, estimator
from tests.unit.pricing.test_tokens_estimate import Said


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("hello world", 2),
        ("The quick brown fox jumps over the lazy dog.", 10),
        ("<|endoftext|>", 7),
        ("", 0),
    ],
)
def test_it_counts_as_the_models_do(tokenizer: Tokenizer, text: str, expected: int) -> None:
    """o200k, with what looks like a special token as the text that it is (L-3)."""
    assert tokenizer.prompt_tokens(Said(PromptSize(len(text)), 0, text)) == expected


def test_it_adds_up(tokenizer: Tokenizer) -> None:
    """Texts one by one, media by the piece, tokens as they are (L-3)."""
    said = Said(PromptSize(22, media=1, tokens=5), 0, "hello world", "hello world")
    assert tokenizer.prompt_tokens(said) == 2 + 2 + MEDIA_TOKENS + 5


def test_what_cannot_be_read_is_guessed(tokenizer: Tokenizer) -> None:
    """As `simple_word` does (L-3)."""
    assert tokenizer.prompt_tokens(Said(None, 4000)) == 1000


def test_a_long_prompt_is_counted_in_part(tokenizer: Tokenizer) -> None:
    """The rest counts like the part before it, so that one request holds up nobody (L-3)."""
    text = "hello world " * 100_000
    counted = tokenizer.prompt_tokens(Said(PromptSize(len(text)), 0, text[:1000], text[1000:]))
    assert counted == pytest.approx(200_000, rel=0.01)
    asked: list[int] = []

    def count(texts: list[str], *_: object) -> list[int]:
        asked.append(len("".join(texts)))
        return [7]

    made = Tokenizer()
    made._count = count
    made.prompt_tokens(Said(PromptSize(len(text)), 0, text[:1000], text[1000:]))
    assert asked == [COUNTED_MAX_CHARS]


def test_halves_of_characters_do_no_harm(tokenizer: Tokenizer) -> None:
    """What JSON can say, and UTF-8 cannot (C-9)."""
    assert tokenizer.prompt_tokens(Said(PromptSize(4), 0, "a\ud800b")) > 0


def test_nothing_is_downloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even when it is used for the first time (L-3)."""

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a tokenizer that wants the network")

    monkeypatch.setattr(socket, "socket", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    for name in [name for name in sys.modules if name.partition(".")[0] == "toktok" and "_toktok" not in name]:
        monkeypatch.delitem(sys.modules, name)
    assert Tokenizer().prompt_tokens(Said(PromptSize(11), 0, "hello world")) == 2


def test_without_the_package_it_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """An extra; a bundle that names it is told so when it is loaded (L-3)."""
    monkeypatch.setitem(sys.modules, "toktok", None)
    with pytest.raises(SettingsError, match=r'pip install "breakloop\[tokenizer\]"'):
        estimator("tokenizer")
