"""Keyed 128-bit fingerprints (SPEC 7): they tell equal requests apart from different ones, and reveal nothing.

Large texts are first reduced by xxh3 (0.4 us for 20 KB, blake2b needs 29), then the short rest is hashed with the
key. Somebody who makes xxh3 collide makes only requests of his own look equal: caller and agent stand outside it.

`similarity: exact` (SPEC LD-1): the same method, path, query, body, caller, agent and descriptors.

`similarity: tail` (SPEC LD-2): the same caller, agent, model and last messages, however long the history grows.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b
from typing import Final

import xxhash

from breakloop.model.call import Call, Chat

_SEPARATOR = "\x00"


def packed(parts: list[str]) -> bytes:
    """Return `parts` as bytes that no other list gives, whatever their texts hold. UTF-8 has no bytes fe and ff."""
    if parts and _SEPARATOR not in "".join(parts):  # in a third of the time that counting takes
        return _SEPARATOR.join(parts).encode("utf-8", "surrogatepass")
    # A part holds the separator: length prefixes keep ("a\0b", "c") and ("a", "b\0c") apart.
    text = "".join(f"{len(part)}{_SEPARATOR}{part}" for part in parts)
    return b"\xff" + text.encode("utf-8", "surrogatepass")


class Fingerprinter:
    """Makes fingerprints with one secret; a fleet that shares the secret agrees on them."""

    __slots__ = ("_keyed", "_step")

    def __init__(self, secret: bytes) -> None:
        self._keyed = blake2b(digest_size=16, key=secret[:64], person=b"breakloop-fp")
        self._step = blake2b(digest_size=8, key=secret[:64], person=b"breakloop-step").copy

    def short(self, matter: bytes) -> bytes:
        """Return the 8 bytes that stand for something in a session's window."""
        state = self._step()
        state.update(matter)
        return state.digest()

    def digest(self, parts: list[str], matter: bytes = b"") -> str:
        """Return 32 hex digits for `parts` in their order and `matter`, which may be large."""
        return ended(self.begun(parts), matter)

    def begun(self, parts: list[str]) -> blake2b:
        """Return how the digests of these parts begin, for whoever makes many of them; `ended` takes a copy of it."""
        state = self._keyed.copy()
        state.update(packed(parts))
        return state


def ended(begun: blake2b, matter: bytes) -> str:
    """Return the digest of what was begun, and `matter`. Whoever keeps the beginning hands over a copy."""
    if matter:
        begun.update(b"\xfe" + xxhash.xxh3_128_digest(matter))  # no text holds the byte fe, see `packed`
    return begun.hexdigest()


Text = Callable[[Call], str]


class ExactFingerprint:
    """Reads what identifies a call whole. Equal JSON bodies are equal whatever their key order or white space."""

    __slots__ = ("_body", "_fingerprinter", "_identity", "_query")

    def __init__(
        self,
        fingerprinter: Fingerprinter,
        *,
        identity: Text,
        query: Text,
        body: Callable[[bytes], bytes],
    ) -> None:
        self._fingerprinter = fingerprinter
        self._identity = identity  # caller, agent and the policy's descriptors in one text
        self._query = query
        self._body = body

    def __call__(self, call: Call) -> str | None:
        """Return the fingerprint, or None when the request has a body that was not shown to us.

        Without its body every POST to one path looks the same, and healthy agents would be stopped.
        """
        if call.body_unseen:
            return None
        parts = [self._identity(call), call.method, call.path, self._query(call) if call.query else ""]
        return self._fingerprinter.digest(parts, self._body(call.body) if call.body else b"")


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
        sender = (call.identity.caller or self._caller(call), call.identity.agent or self._agent(call), chat.model)
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
