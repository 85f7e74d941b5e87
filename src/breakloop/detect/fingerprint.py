"""Keyed 128-bit fingerprints of requests: whole (`similarity: exact`), or of the last messages (`similarity: tail`).

They show whether requests are equal, and reveal nothing else. Large texts are first reduced by xxh3 (0.4 us for 20 KB;
blake2b needs 29), and the rest is hashed with the key. A client that makes xxh3 collide only makes its own requests
look equal, because caller and agent are not hashed with xxh3.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b
from typing import Final

import xxhash

from breakloop.dialects import text_actions
from breakloop.model.call import EMBEDDINGS_DIALECT, UNREAD, Call, Chat, Message

_SEPARATOR = "\x00"


def packed(parts: list[str]) -> bytes:
    """Return `parts` as bytes, different for different lists. UTF-8 has no bytes fe and ff."""
    # Joining twice takes a third of the time of counting the separators, or of length prefixes.
    if _SEPARATOR not in "".join(parts) and parts:
        return _SEPARATOR.join(parts).encode("utf-8", "surrogatepass")
    # A part contains the separator: length prefixes keep ("a\0b", "c") and ("a", "b\0c") apart.
    text = "".join(f"{len(part)}{_SEPARATOR}{part}" for part in parts)
    return b"\xff" + text.encode("utf-8", "surrogatepass")


class Fingerprinter:
    """Computes fingerprints with one secret; instances that share it compute the same ones."""

    __slots__ = ("_keyed", "_step")

    def __init__(self, secret: bytes) -> None:
        self._keyed = blake2b(digest_size=16, key=secret[:64], person=b"breakloop-fp").copy
        # A salt, because a key is one more block to hash: steps have half a dozen short digests.
        salt = blake2b(secret, digest_size=16, person=b"breakloop-salt").digest()
        self._step = blake2b(digest_size=8, salt=salt, person=b"breakloop-step").copy

    def short(self, content: bytes) -> bytes:
        """Return the 8-byte digest that windows contain."""
        state = self._step()
        state.update(content)
        return state.digest()

    def digest(self, parts: list[str], content: bytes = b"") -> str:
        """Return 32 hex digits for `parts` in their order and `content`, which may be large."""
        state = self._keyed()
        state.update(packed(parts))
        if content:
            state.update(b"\xfe" + xxhash.xxh3_128_digest(content))  # as in `finish`
        return state.hexdigest()

    def start(self, parts: list[str]) -> blake2b:
        """Return the state after these parts, to compute several digests from copies of it (`finish`)."""
        state = self._keyed()
        state.update(packed(parts))
        return state


def finish(state: blake2b, content: bytes) -> str:
    """Return the digest of a state and `content`. Changes the state: pass a copy if you need it again."""
    if content:
        state.update(b"\xfe" + xxhash.xxh3_128_digest(content))  # no text contains the byte fe, see `packed`
    return state.hexdigest()


Text = Callable[[Call], str]
_SENDERS_MAX: Final = 1024
_METHOD_MAX: Final = 16  # characters of a method that is cached
_ANSWERS: Final = frozenset(("assistant", "model"))


class ExactFingerprint:
    """Fingerprint of a whole request. JSON bodies are equal whatever their key order or white space."""

    __slots__ = ("_body", "_fingerprinter", "_identity", "_query", "_states")

    def __init__(
        self, fingerprinter: Fingerprinter, *, identity: Text, query: Text, body: Callable[[bytes], bytes]
    ) -> None:
        self._fingerprinter = fingerprinter
        self._identity = identity  # caller, agent and the policy's descriptors in one text
        self._query = query
        self._body = body
        self._states: dict[tuple[str, str], blake2b] = {}  # after identity and method

    def __call__(self, call: Call) -> str | None:
        """Return the fingerprint, or None if the gateway did not forward the body: without it, all POSTs to one path
        look the same, and healthy agents would be stopped."""
        if call.body_unseen:
            return None
        identity, query = self._identity, self._query  # first: calling an attribute takes longer
        sender = (identity(call), call.method)
        path, asked = call.path, query(call) if call.query else ""
        target = f"{path}{_SEPARATOR}{asked}"
        begun = self._states.get(sender)
        if begun is None or _SEPARATOR in path or _SEPARATOR in asked:
            return self._unusual(sender, target, call)
        state = begun.copy()
        state.update(target.encode("utf-8", "surrogatepass"))
        return finish(state, self._body(call.body)) if call.body else state.hexdigest()

    def _unusual(self, sender: tuple[str, str], target: str, call: Call) -> str:
        """Return the same fingerprint without a known state. Keeps the state for the next requests of the sender."""
        path = call.path
        if _SEPARATOR not in sender[0] and _SEPARATOR not in sender[1] and len(sender[1]) <= _METHOD_MAX:
            if len(self._states) >= _SENDERS_MAX:
                self._states.clear()
            self._states[sender] = self._fingerprinter.start([*sender, ""])
        parts = [*sender, path, target[len(path) + 1 :]]
        return self._fingerprinter.digest(parts, self._body(call.body) if call.body else b"")


# ASCII white space as a space, capitals as small letters, everything else unchanged.
_FOLDED_ASCII: Final = bytes(32 if chr(code).isspace() else ord(chr(code).lower()) for code in range(128)) + bytes(128)


_SHORT: Final = 64  # characters; splitting so few at every word is fastest
_RUNS: Final = 32  # of white space; a text with fewer is split at these and not at every word, in half the time


# Characters of one request that are folded; the rest is compared as it was sent.
_FOLDED_MAX: Final = 512 * 1024
_ACTION_MAX: Final = 16 * 1024  # characters of an answer that are searched for a call
_MODEL_MAX: Final = 256  # characters of a name that is cached


def folded(text: str) -> str:
    """Return `text` trimmed, with white space and case folded."""
    if text.isascii():  # most texts
        if len(text) < _SHORT:
            return " ".join(text.split()).lower()
        plain = text.encode().translate(_FOLDED_ASCII)
        if plain.rfind(b"  ") < 0:  # takes a third of the time of `find`
            return plain.strip().decode()
        pieces = plain.split(b"  ", _RUNS)
        if len(pieces) > _RUNS:
            return b" ".join(plain.split()).decode()
        return b" ".join(filter(None, map(bytes.strip, pieces))).decode()
    return " ".join(text.split()).casefold()


_NAME: Final = b"\xfd"  # before a name; no text contains this byte, see `packed`


def is_at_work(chat: Chat) -> bool:
    """Return whether the last messages show an agent at work: calls of tools, or two answers of the model. Openings of
    conversations do not, and many people may send the same one.
    """
    answers = 0
    for role, _, calls in chat.tail:
        if calls:
            return chat.message_count > 1
        answers += role in _ANSWERS
    return answers > 1


_OPENING_ROLES: Final = frozenset(("user", "system", "developer", "prompt"))
_PING_BYTES: Final = 1024


def is_opening(chat: Chat) -> bool:
    """Return whether a request opens a conversation: it contains neither answers nor results."""
    tail = chat.tail
    if chat.message_count > len(tail):  # what stands before them has not been read
        return False
    return all(role in _OPENING_ROLES and not calls for role, _, calls in tail)


def is_ping(call: Call, chat: Chat) -> bool:
    """Return whether a request is small and asks for one token. It is a ping if it also opens a conversation."""
    return chat.max_tokens == 1 and len(call.body) <= _PING_BYTES


def is_cheap(call: Call, chat: Chat) -> bool:
    """Return whether a request does nothing that an agent could loop on: an embedding, or a ping."""
    return chat.dialect == EMBEDDINGS_DIALECT or (is_ping(call, chat) and is_opening(chat))


def _answers_text_action(answer: Message, message: Message) -> bool:
    """Return whether a message of the user is the result of a call that the model wrote as text."""
    if message.role != "user" or answer.role not in _ANSWERS:
        return False
    return text_actions.read(answer.text[-_ACTION_MAX:]) is not None


class TailFingerprint:
    """Fingerprint of the last messages of an LLM request: role, text, tool calls and results, never their ids. Sessions
    and end users that the client names have their own, so that people who share a key do not count for each other.
    """

    __slots__ = (
        "_agent",
        "_caller",
        "_chat",
        "_fingerprinter",
        "_is_new_name",
        "_latest",
        "_messages",
        "_named",
        "_states",
    )

    def __init__(
        self,
        fingerprinter: Fingerprinter,
        *,
        caller: Text,
        agent: Text,
        chat: Callable[[Call], Chat | None],
        named: Text,
        is_new_name: Callable[[Call], bool],
        messages: int,
    ) -> None:
        self._fingerprinter = fingerprinter
        self._caller = caller
        self._agent = agent
        self._chat = chat
        self._named = named
        self._is_new_name = is_new_name
        self._latest: tuple[Call, bytes] | None = None  # the content of a call, which is needed twice
        self._messages = messages
        self._states: dict[tuple[str, str, str], blake2b] = {}

    def __call__(self, call: Call) -> str | None:
        """Return the fingerprint, or None if this is not an LLM request, its body was not forwarded, or none of its
        last messages can be read: then different requests would look the same."""
        chat = call.parsed.chat or None
        if chat is None or chat.tail is UNREAD:
            chat = self._chat(call)
        if chat is None:
            return None
        for _, text, calls in chat.tail:
            if text or calls:
                break
        else:
            return None
        latest, self._latest = self._latest, None  # a reference would keep the body
        content = latest[1] if latest is not None and latest[0] is call else self._content(chat)
        identity = call.identity
        sender = (identity.caller or self._caller(call), identity.agent or self._agent(call), chat.model)
        state = (self._states.get(sender) or self._start(sender)).copy()
        named = identity.named
        if named is None:
            named = self._named(call)
        if named:
            state.update(_NAME + named.encode("utf-8", "surrogatepass"))
        return finish(state, content)

    def of_all_names(self, call: Call) -> str | None:
        """Return the fingerprint of a caller, whatever agent, model, session or end user it names, for clients that
        change the name with each request. None for a name that was used before, and for a request that does not show an
        agent at work.
        """
        chat = self._chat(call)
        if chat is None:
            return None
        identity = call.identity
        named = self._named(call) if identity.named is None else identity.named
        if not named and (identity.agent or self._agent(call)) == (identity.caller or self._caller(call)):
            return None  # the client names nothing, as most do
        if not self._is_new_name(call) or not is_at_work(chat):
            return None
        content = self._content(chat)
        self._latest = call, content
        return finish(self._fingerprinter.start([self._caller(call)]), content)

    def _content(self, chat: Chat) -> bytes:
        content: list[str] = []
        left = _FOLDED_MAX
        tail = chat.tail
        first = len(tail) - self._messages
        if first > 0:
            if tail[first - 1][2] or (tail[first][0] == "user" and _answers_text_action(tail[first - 1], tail[first])):
                first -= 1  # a result is identified by its call: many calls return "ok"
            tail = tail[first:]
        for role, text, calls in tail:
            if text:
                left -= len(text)
                if left >= 0:
                    text = folded(text)  # noqa: PLW2901
            # The number separates calls from further messages.
            if not calls:
                content += (role, text, "0")
                continue
            content += (role, text, "1" if len(calls) == 1 else str(len(calls)))
            for name, arguments in calls:
                left -= len(arguments)
                content += (name, folded(arguments) if left >= 0 else arguments)
        return packed(content)

    def _start(self, sender: tuple[str, str, str]) -> blake2b:
        """Hash the sender, which is the same in thousands of requests. Bounded: names of models come from clients."""
        state = self._fingerprinter.start([*sender])
        if len(sender[2]) <= _MODEL_MAX:
            if len(self._states) >= _SENDERS_MAX:
                self._states.clear()
            self._states[sender] = state
        return state
