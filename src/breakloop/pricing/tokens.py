"""Token estimates for prompts, before the provider has counted them, and their accuracy.

`dialects.prompt` extracts the content of a prompt. The `tokenizer` estimator is an optional extra: it counts with
the vocabulary of OpenAI's models since GPT-4o, which is included in the package `toktok-rs`, so nothing is
downloaded.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import ClassVar, Final, Protocol

from breakloop.errors import SettingsError
from breakloop.model.call import CHARS_A_TOKEN, Prompt, ToolCall, chars_of

HINT: Final = "x-token-estimate"  # header field of `header_hint`, in canonical form
# Most models use 85 to 1,600 tokens for an image, depending on its decoded size, and more for a document.
MEDIA_TOKENS: Final = 1000
_HINT_MAX: Final = 10**9
_DIGITS_MAX: Final = 20


class Estimator(Protocol):
    @property
    def name(self) -> str: ...

    def prompt_tokens(self, prompt: Prompt, hint: str | None = None) -> int:
        """Return the estimated number of tokens. `hint` is the value of the header field `HINT`, if present."""
        ...


class SimpleWord:
    """`simple_word`: one token per four characters of content, or of the body if it cannot be parsed."""

    name = "simple_word"

    def prompt_tokens(self, prompt: Prompt, _hint: str | None = None) -> int:
        size = prompt.size
        if size is None:
            return _tokens(prompt.body_bytes)
        return _tokens(size.chars) + size.media * MEDIA_TOKENS + size.tokens


class HeaderHint(SimpleWord):
    """`header_hint`: the client's own estimate in `X-Token-Estimate`, or that of `simple_word` if it is unusable."""

    name = "header_hint"

    def prompt_tokens(self, prompt: Prompt, hint: str | None = None) -> int:
        said = None if hint is None else _number(hint)
        return super().prompt_tokens(prompt) if said is None else said


def estimator(name: str) -> Estimator:
    """Return the estimator with this name. Raises `SettingsError` for `tokenizer` if its package is not installed."""
    if name == "header_hint":
        return HeaderHint()
    if name == "tokenizer":
        return Tokenizer()
    return SimpleWord()


def answer_tokens(text: str, calls: Iterable[ToolCall] = (), unkept_chars: int = 0) -> int:
    """Estimate the tokens of an interrupted answer, for which no usage was reported, from the part received."""
    called = sum([chars_of(call.name) + chars_of(call.arguments) for call in calls])
    return _tokens(chars_of(text) + called + unkept_chars)


def _tokens(chars: int) -> int:
    return -(-chars // CHARS_A_TOKEN)


def _number(hint: str) -> int | None:
    if len(hint) > _DIGITS_MAX:
        return None
    try:
        said = float(hint)
    except ValueError:
        return None
    return math.ceil(said) if 0 <= said <= _HINT_MAX else None  # False for NaN


@dataclass(slots=True)
class EstimateError:
    """The distribution of the ratio of estimated to actual tokens. 1 is an exact estimate."""

    BOUNDS: ClassVar = (0.25, 0.5, 0.75, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 4.0)

    count: int = 0
    total: float = 0.0  # sum of all ratios
    signed_tokens: int = 0  # overestimated minus underestimated tokens
    absolute_tokens: int = 0  # overestimated plus underestimated tokens
    # The number of ratios up to each bound and above the previous one.
    buckets: list[int] = field(default_factory=lambda: [0] * (len(EstimateError.BOUNDS) + 1))

    def note(self, estimated: int, actual: int) -> None:
        """Record one estimate. It is ignored if the actual count is unknown."""
        if actual <= 0 or estimated < 0:
            return
        ratio = estimated / actual
        self.count += 1
        self.total += ratio
        self.signed_tokens += estimated - actual
        self.absolute_tokens += abs(estimated - actual)
        self.buckets[bisect_left(self.BOUNDS, ratio)] += 1

    @property
    def mean(self) -> float:
        """The mean ratio, or 1 if there are no estimates."""
        return self.total / self.count if self.count else 1.0


class EstimateErrors(dict[str, EstimateError]):
    """The errors of each estimator since the process started, for metrics only."""

    def note(self, estimator: str, estimated: int, actual: int) -> None:
        if estimator not in self:
            self[estimator] = EstimateError()
        self[estimator].note(estimated, actual)

    def lines(self) -> list[dict[str, object]]:
        """Return a summary for each estimator, sorted by name."""
        return [
            {
                "estimator": name,
                "count": error.count,
                "mean_ratio": round(error.mean, 3),
                "signed_tokens": error.signed_tokens,
                "absolute_tokens": error.absolute_tokens,
            }
            for name, error in sorted(self.items())
            if error.count
        ]


ENCODING: Final = "o200k_base"
# Counting takes 20 to 150 us per 1,000 characters and blocks other requests. Text beyond this limit is therefore
# extrapolated from the text before it.
COUNTED_MAX_CHARS: Final = 64 * 1024


def is_installed() -> bool:
    """Return whether the package is installed, without importing it."""
    return find_spec("toktok") is not None


class Tokenizer(SimpleWord):
    """`tokenizer`: counts tokens, or estimates like `simple_word` if the prompt cannot be parsed."""

    name = "tokenizer"

    def __init__(self) -> None:
        try:
            import toktok  # noqa: PLC0415 - an extra: only those who name it need it
        except ImportError:
            remedy = 'pip install "breakloop[tokenizer]", or use estimator: simple_word'
            message = f"token_source.estimator: tokenizer needs the extra 'tokenizer' ({remedy})"
            raise SettingsError(message) from None
        self._count = toktok.batch_count
        self._count(["loaded now, and not by the first request"], ENCODING, 1)

    def prompt_tokens(self, prompt: Prompt, _hint: str | None = None) -> int:
        """Count the tokens of all texts; media are estimated as by `simple_word`."""
        size = prompt.size
        if size is None:
            return super().prompt_tokens(prompt)
        counted, chars, beyond = [], 0, 0
        for text in prompt.texts():
            part = text[: COUNTED_MAX_CHARS - chars]
            chars += len(part)
            beyond += len(text) - len(part)
            counted.append(part)
        # Lone surrogates cannot be encoded as UTF-8.
        clean = [text if text.isascii() else text.encode("utf-8", "replace").decode() for text in counted if text]
        tokens: int = sum(self._count(clean, ENCODING, 1))
        if beyond:
            tokens += -(-tokens * beyond // chars)
        return tokens + size.media * MEDIA_TOKENS + size.tokens
