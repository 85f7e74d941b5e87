"""`similarity: tail` (SPEC LD-2): the same caller, agent, model and last messages, however long the history grows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from breakloop.detect.fingerprint import Fingerprinter, packed
from breakloop.model.call import Call, Chat

Text = Callable[[Call], str]


# For ASCII: white space as a space, capitals as small letters; everything else as it is.
_FOLDED_ASCII: Final = bytes(32 if chr(code).isspace() else ord(chr(code).lower()) for code in range(128)) + bytes(128)


_RUNS: Final = 32  # of white space; with fewer a text is taken apart there and not at every word, in half the time


# Characters of one request that are folded; what follows tells requests apart as it was sent.
_FOLDED_MAX: Final = 512 * 1024


def folded(text: str) -> str:
    """Return `text` trimmed, with white space and case folded."""
    if text.isascii():  # most texts
        plain = text.encode().translate(_FOLDED_ASCII)
        pieces = plain.split(b"  ", _RUNS)
        if len(pieces) > _RUNS:
            return b" ".join(plain.split()).decode()
        return b" ".join(filter(None, map(bytes.strip, pieces))).decode()
    return " ".join(text.split()).casefold()


class TailFingerprint:
    """Reads the last messages of an LLM request: role, text, tool calls and results, never their ids."""

    __slots__ = ("_agent", "_caller", "_chat", "_fingerprinter", "_messages")

    def __init__(
        self,
        fingerprinter: Fingerprinter,
        *,
        caller: Text,
        agent: Text,
        chat: Callable[[Call], Chat | None],
        messages: int,
    ) -> None:
        self._fingerprinter = fingerprinter
        self._caller = caller
        self._agent = agent
        self._chat = chat
        self._messages = messages

    def __call__(self, call: Call) -> str | None:
        """Return the fingerprint, or None when this is no LLM request (or its body was not shown to us)."""
        chat = self._chat(call)
        if chat is None:
            return None
        matter: list[str] = []
        left = _FOLDED_MAX
        for role, text, calls in chat.tail[-self._messages :]:
            left -= len(text)
            # The number is there so that calls and further messages are not confused.
            matter += (role, folded(text) if left >= 0 and text else text, str(len(calls)) if calls else "0")
            for name, arguments in calls:
                left -= len(arguments)
                matter += (name, folded(arguments) if left >= 0 else arguments)
        parts = [self._caller(call), self._agent(call), chat.model]
        return self._fingerprinter.digest(parts, packed(matter))
