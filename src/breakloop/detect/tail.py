"""`similarity: tail` (SPEC LD-2): the same caller, agent, model and last messages, however long the history grows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from breakloop.detect.fingerprint import Fingerprinter, packed
from breakloop.model.call import Call, Chat

Text = Callable[[Call], str]


# For ASCII: white space as a space, capitals as small letters; everything else as it is.
_FOLDED_ASCII: Final = bytes(32 if chr(code).isspace() else ord(chr(code).lower()) for code in range(128)) + bytes(128)


# Characters of one request that are folded; what follows tells requests apart as it was sent.
_FOLDED_MAX: Final = 512 * 1024


def folded(text: str) -> str:
    """Return `text` trimmed, with white space and case folded."""
    if text.isascii():  # most texts, and prose without runs of white space six times as fast
        plain = text.encode().translate(_FOLDED_ASCII)
        return (b" ".join(plain.split()) if b"  " in plain else plain.strip()).decode()
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
        for message in chat.tail[-self._messages :]:
            matter.append(message.role)
            left -= len(message.text)
            matter.append(folded(message.text) if left >= 0 else message.text)
            matter.append(str(len(message.calls)))  # so that calls and further messages are not confused
            for made in message.calls:
                matter.append(made.name)
                left -= len(made.arguments)
                matter.append(folded(made.arguments) if left >= 0 else made.arguments)
        parts = [self._caller(call), self._agent(call), chat.model]
        return self._fingerprinter.digest(parts, packed(matter))
