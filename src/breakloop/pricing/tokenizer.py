"""The `tokenizer` estimator (SPEC L-3), an extra: counts as OpenAI's models since GPT-4o do, with the vocabulary
that is part of the package `toktok-rs`. Nothing is downloaded. Where the package is missing, it cannot be made."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Final

from breakloop.errors import SettingsError
from breakloop.model.prompt import Prompt
from breakloop.pricing.estimate import MEDIA_TOKENS, Estimator

ENCODING: Final = "o200k_base"
# Counting takes 20 to 150 us for 1,000 characters, in the way of all other requests; so what is beyond this counts like
# the part before it.
COUNTED_MAX_CHARS: Final = 64 * 1024


def is_installed() -> bool:
    """Tell whether the package is there, without loading it."""
    return find_spec("toktok") is not None


class Tokenizer:
    """`tokenizer`: real tokens. Where a prompt cannot be read, another guess."""

    __slots__ = ("_count", "_otherwise")

    name = "tokenizer"

    def __init__(self, otherwise: Estimator) -> None:
        try:
            import toktok  # noqa: PLC0415 - an extra: only those who name it need it
        except ImportError:
            remedy = "pip install 'breakloop[tokenizer]', or use estimator: simple_word"
            message = f"token_source.estimator: tokenizer needs the extra 'tokenizer' ({remedy})"
            raise SettingsError(message) from None
        self._count = toktok.batch_count
        self._otherwise = otherwise
        self._count(["loaded now, and not by the first request"], ENCODING, 1)

    def prompt_tokens(self, prompt: Prompt, hint: str | None = None) -> int:
        """Count the tokens of all texts; media as `simple_word` does."""
        size = prompt.size
        if size is None:
            return self._otherwise.prompt_tokens(prompt, hint)
        counted, chars, beyond = [], 0, 0
        for text in prompt.texts():
            part = text[: COUNTED_MAX_CHARS - chars]
            chars += len(part)
            beyond += len(text) - len(part)
            counted.append(part)
        # A lone surrogate is no character to a tokenizer.
        clean = [text if text.isascii() else text.encode("utf-8", "replace").decode() for text in counted if text]
        tokens: int = sum(self._count(clean, ENCODING, 1))
        if beyond:
            tokens += -(-tokens * beyond // chars)
        return tokens + size.media * MEDIA_TOKENS + size.tokens
