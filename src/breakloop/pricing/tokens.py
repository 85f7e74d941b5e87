"""Tokens, guessed before a provider has counted them (SPEC L-3 `token_source.estimator`), and how good the guesses are.
What a request says is read by `wire.prompt`; real tokens, for those who want them, are `tokenizer`'s.

The `tokenizer` estimator (SPEC L-3), an extra: counts as OpenAI's models since GPT-4o do, with the vocabulary
that is part of the package `toktok-rs`. Nothing is downloaded. Where the package is missing, it cannot be made.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable
from importlib.util import find_spec
from typing import Final, Protocol

from breakloop.errors import SettingsError
from breakloop.model.call import CHARS_A_TOKEN, Prompt, ToolCall, chars_of

HINT: Final = "x-token-estimate"  # the header field of `header_hint`, in its canonical form
# An image is 85 to 1,600 tokens to most models, by its size, which nobody knows before decoding it; a document is more.
MEDIA_TOKENS: Final = 1000
_HINT_MAX: Final = 10**9
_DIGITS_MAX: Final = 20


class Estimator(Protocol):
    """Guesses the tokens of a prompt."""

    @property
    def name(self) -> str:
        """As bundles name it."""
        ...

    def prompt_tokens(self, prompt: Prompt, hint: str | None = None) -> int:
        """Return about how many tokens a prompt has. `hint` is the value of the field `HINT`, where there is one."""
        ...


class SimpleWord:
    """`simple_word`: a token for every four characters of what is said; of the body, where that cannot be read."""

    __slots__ = ()

    name = "simple_word"

    def prompt_tokens(self, prompt: Prompt, _hint: str | None = None) -> int:
        """Divide, rounding up."""
        size = prompt.size
        if size is None:
            return _tokens(prompt.body_bytes)
        return _tokens(size.chars) + size.media * MEDIA_TOKENS + size.tokens


class HeaderHint:
    """`header_hint`: what the client says in `X-Token-Estimate`; where it says nothing of use, another guess."""

    __slots__ = ("_otherwise",)

    name = "header_hint"

    def __init__(self, otherwise: Estimator) -> None:
        self._otherwise = otherwise

    def prompt_tokens(self, prompt: Prompt, hint: str | None = None) -> int:
        """Take the client's word."""
        said = None if hint is None else _number(hint)
        return self._otherwise.prompt_tokens(prompt) if said is None else said


def estimator(name: str) -> Estimator:
    """Return the estimator that a bundle names. `tokenizer` raises `SettingsError` where its package is missing."""
    if name == "header_hint":
        return HeaderHint(SimpleWord())
    if name == "tokenizer":
        return Tokenizer(SimpleWord())
    return SimpleWord()


def answer_tokens(text: str, calls: Iterable[ToolCall] = (), unkept_chars: int = 0) -> int:
    """Return about how many tokens an answer has that nobody counted, because it broke off: by what came of it."""
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
    return math.ceil(said) if 0 <= said <= _HINT_MAX else None  # which no NaN is


class EstimateError:
    """How estimates compare with what was counted: the ratio of the two, 1 where they are the same."""

    __slots__ = ("absolute_tokens", "buckets", "count", "largest", "signed_tokens", "smallest", "total")

    BOUNDS: Final = (0.25, 0.5, 0.75, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 4.0)

    def __init__(self) -> None:
        self.count = 0
        self.total = 0.0  # of all ratios
        self.smallest = math.inf
        self.largest = 0.0
        self.signed_tokens = 0  # estimated too many, less those too few
        self.absolute_tokens = 0  # estimated wrongly, either way
        self.buckets = [0] * (len(self.BOUNDS) + 1)  # how many are at most that bound, and above the one before

    def note(self, estimated: int, actual: int) -> None:
        """Take one pair; one without a real count says nothing."""
        if actual <= 0 or estimated < 0:
            return
        ratio = estimated / actual
        self.count += 1
        self.total += ratio
        self.smallest = min(self.smallest, ratio)
        self.largest = max(self.largest, ratio)
        self.signed_tokens += estimated - actual
        self.absolute_tokens += abs(estimated - actual)
        self.buckets[bisect_left(self.BOUNDS, ratio)] += 1

    @property
    def mean(self) -> float:
        """The mean ratio; 1 before there is any."""
        return self.total / self.count if self.count else 1.0


class EstimateErrors:
    """The errors of each estimator since start. Metrics show it; nobody decides by it."""

    __slots__ = ("by_estimator",)

    def __init__(self) -> None:
        self.by_estimator: dict[str, EstimateError] = {}

    @property
    def count(self) -> int:
        """How many pairs were noted in all."""
        return sum([error.count for error in self.by_estimator.values()])

    def note(self, estimator: str, estimated: int, actual: int) -> None:
        """Take one pair of an estimator."""
        error = self.by_estimator.get(estimator)
        if error is None:
            error = self.by_estimator[estimator] = EstimateError()
        error.note(estimated, actual)

    def lines(self) -> list[dict[str, object]]:
        """Return what there is to tell of each estimator, in the order of their names."""
        return [
            {
                "estimator": name,
                "count": error.count,
                "mean_ratio": round(error.mean, 3),
                "signed_tokens": error.signed_tokens,
                "absolute_tokens": error.absolute_tokens,
            }
            for name, error in sorted(self.by_estimator.items())
            if error.count
        ]


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
