"""How much a request says to the model (`model.prompt`). What it says is found by `prompt_texts`; what a token is, is
`pricing`'s business."""

from __future__ import annotations

from breakloop.model.call import Call
from breakloop.model.prompt import PromptSize, chars_of
from breakloop.wire import dialects
from breakloop.wire.conversation import Taken
from breakloop.wire.prompt_texts import Texts, texts_of


class Prompt:
    """What one request says. Measured when asked for the first time."""

    __slots__ = ("_read", "_size", "_taken", "body_bytes")

    def __init__(self, taken: dialects.Taken | None, body_bytes: int) -> None:
        self._taken = taken if isinstance(taken, Taken) else None
        self.body_bytes = body_bytes
        self._read = False
        self._size: PromptSize | None = None

    @property
    def size(self) -> PromptSize | None:
        """How much it says; None where that cannot be read."""
        if not self._read:
            self._read = True
            said = texts_of(self._taken)
            self._size = None if said is None else _size(said)
        return self._size

    def texts(self) -> list[str]:
        """Return all that is said."""
        said = texts_of(self._taken)
        return [] if said is None else said.texts + [bytes(raw).decode("utf-8", "replace") for raw in said.raws]


def prompt_of(call: Call) -> Prompt:
    """Return what a call says; its chat has been read before. A body that passes in pieces counts by its length."""
    known: Prompt | None = call.prompt_cache
    if known is None:
        size = len(call.body)
        if call.body_unseen:
            length = call.headers.get("content-length", b"")
            size = int(length) if length.isdigit() and len(length) < 16 else size
        known = call.prompt_cache = Prompt(call.taken_cache, size)
    return known


def _size(said: Texts) -> PromptSize:
    """Add it up."""
    texts = said.texts
    chars = sum(map(len, texts)) if all(map(str.isascii, texts)) else sum(map(chars_of, texts))
    for raw in said.raws:
        sent = bytes(raw)
        chars += len(sent) if sent.isascii() else chars_of(sent.decode("utf-8", "replace"))
    return PromptSize(chars, said.media, said.tokens)
