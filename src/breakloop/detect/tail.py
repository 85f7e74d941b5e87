"""`similarity: tail` (SPEC LD-2): the same caller, agent, model and last messages, however long the history grows."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b
from typing import Final

from breakloop.detect.fingerprint import Fingerprinter, ended, packed
from breakloop.model.call import Call, Chat

Text = Callable[[Call], str]


# For ASCII: white space as a space, capitals as small letters; everything else as it is.
_FOLDED_ASCII: Final = bytes(32 if chr(code).isspace() else ord(chr(code).lower()) for code in range(128)) + bytes(128)


_SHORT: Final = 256  # characters; taking so few apart at every word costs less than any way around it
_RUNS: Final = 32  # of white space; with fewer a text is taken apart there and not at every word, in half the time


# Characters of one request that are folded; what follows tells requests apart as it was sent.
_FOLDED_MAX: Final = 512 * 1024
_SENDERS_MAX: Final = 1024
_MODEL_MAX: Final = 256  # characters of a name that is kept


def folded(text: str) -> str:
    """Return `text` trimmed, with white space and case folded."""
    if text.isascii():  # most texts
        if len(text) < _SHORT:
            return " ".join(text.split()).lower()
        plain = text.encode().translate(_FOLDED_ASCII)
        pieces = plain.split(b"  ", _RUNS)
        if len(pieces) > _RUNS:
            return b" ".join(plain.split()).decode()
        return b" ".join(filter(None, map(bytes.strip, pieces))).decode()
    return " ".join(text.split()).casefold()


class TailFingerprint:
    """Reads the last messages of an LLM request: role, text, tool calls and results, never their ids."""

    __slots__ = ("_agent", "_begun", "_caller", "_chat", "_fingerprinter", "_messages")

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
        self._begun: dict[tuple[str, str, str], blake2b] = {}

    def __call__(self, call: Call) -> str | None:
        """Return the fingerprint, or None when this is no LLM request (or its body was not shown to us)."""
        chat = self._chat(call)
        if chat is None:
            return None
        matter: list[str] = []
        left = _FOLDED_MAX
        tail = chat.tail
        first = max(0, len(tail) - self._messages)
        if first and tail[first - 1].calls:  # a result is told from others by its call: "ok" comes back from many
            first -= 1
        for role, text, calls in tail[first:]:
            left -= len(text)
            said = folded(text) if left >= 0 and text else text
            # The number is there so that calls and further messages are not confused.
            if not calls:
                matter += (role, said, "0")
                continue
            matter += (role, said, str(len(calls)))
            for name, arguments in calls:
                left -= len(arguments)
                matter += (name, folded(arguments) if left >= 0 else arguments)
        sender = (call.caller_cache or self._caller(call), call.agent_cache or self._agent(call), chat.model)
        begun = self._begun.get(sender) or self._begin(sender)
        return ended(begun.copy(), packed(matter))

    def _begin(self, sender: tuple[str, str, str]) -> blake2b:
        """Hash who sends, which is the same in thousands of requests. Bounded: names of models come from clients."""
        begun = self._fingerprinter.begun([*sender])
        if len(sender[2]) <= _MODEL_MAX:
            if len(self._begun) >= _SENDERS_MAX:
                self._begun.clear()
            self._begun[sender] = begun
        return begun
