"""`Prompt`: how much a request says to the model, as estimates of tokens need it. Found by `wire`, counted by
`pricing`; before an answer has told what it really was."""

from __future__ import annotations

from typing import Final, NamedTuple, Protocol

CHARS_A_TOKEN: Final = 4  # wherever tokens are guessed from the length of a text or of a body
# Every byte that does not begin a character of Chinese, Japanese or Korean (U+3000 and above), or an emoji, in UTF-8.
_NARROW: Final = bytes(byte for byte in range(256) if byte < 0xE3)
_WIDE: Final = 3


class PromptSize(NamedTuple):
    """What is said in a request."""

    chars: int  # of all texts, calls, results and declarations of tools, as `chars_of` counts them
    media: int = 0  # images, sounds, documents
    tokens: int = 0  # of prompts that came as tokens


class Prompt(Protocol):
    """What a request says."""

    @property
    def body_bytes(self) -> int:
        """The length of the body."""
        ...

    @property
    def size(self) -> PromptSize | None:
        """How much it says; None where that cannot be read."""
        ...

    def texts(self) -> list[str]:
        """Return all that is said, as far as it is text; nothing where it cannot be read."""
        ...


def chars_of(text: str) -> int:
    """Return how long a text is, where four characters are about a token: of Chinese, Japanese and Korean, one and a
    third are, so these count three times.
    """
    if text.isascii():
        return len(text)
    wide = len(text.encode("utf-8", "surrogatepass").translate(None, _NARROW))
    return len(text) + wide * (_WIDE - 1)
