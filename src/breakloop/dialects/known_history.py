"""Messages that an earlier request of the same caller had, which are not decoded again.

An agent sends its whole conversation with every request, and only the last messages are new. Of a large body, the bytes
between the first messages and the last ones are cut out before it is decoded, if an earlier body of the caller began
with the same bytes. That body has been decoded, so it is known that these bytes are whole messages, and how many.

Once the session of a conversation is known, few requests need its first messages, and they are cut out, too. So are the
declared tools, if they follow the messages, as they do in the bodies of most clients: their names are kept.

What is kept of a conversation is where to cut, a digest and the name of its session, some 500 bytes; of its tools, only
their names. A client that makes the digests of two of its bodies equal only has its own requests misread, because
nothing is shared between callers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import compress, starmap
from typing import Any, Final

import msgspec
import xxhash

from breakloop.dialects.base import EARLIER, SMALL_BODY

CONVERSATIONS: Final = 32  # of one caller, the last ones
CALLERS: Final = 256
ENDINGS: Final = 8  # of one caller, which usually declares the same tools in all conversations
_FIRST, _LAST = 3, 4  # messages at either end that stay: most readers need no others
_MOST: Final = 64
_PROBE: Final = 32  # bytes at the end of a beginning that are compared first
_SEPARATORS: Final = (1, 2)  # characters between two messages: "," or ", "
_COMMAS: Final = (b"", b",", b", ")
_MESSAGES: Final = b'"messages"'
_OPENING: Final = ord("[")
_CLOSING: Final = b"]"
_TOOLS_MIN: Final = 1024  # bytes; to cut out fewer is not worth it
_ENDING_MAX: Final = 1024  # bytes of an ending without its tools
_NAMES_MAX: Final = 128  # tools of an ending
_NAMES_CHARS_MAX: Final = 4096  # of all their names
_TOOLS: Final = b'"tools"'
Raw = msgspec.Raw
ToolNames = Callable[[], Sequence[str] | None]
_decode_fields: Final = msgspec.json.Decoder(dict[str, Raw]).decode


class Ending(msgspec.Struct, eq=False, gc=False):
    """What follows the messages of a body, most of which are the declared tools. The next requests end alike."""

    size: int
    digest: bytes
    rest: bytes  # the same without the tools
    tools: tuple[str, ...]  # their names, without those that other fields declare


class Opening(msgspec.Struct, gc=False):
    """What was found out about the messages with which a conversation opens."""

    agent: str = ""
    session: str = ""  # the name that is derived from them, for this agent; "" if it was not asked for
    is_read: bool = True  # False: now that the session is known, nobody has asked for these messages again


class Beginning(msgspec.Struct, eq=False, gc=False):
    """The first bytes of a body. They become more with each request that continues the conversation."""

    dialect: str
    first: int  # number of the first messages, which stay as long as they are read
    start: int  # where they begin
    first_end: int  # where they end
    end: int  # where the messages end that are cut out
    number: int  # of these
    separator: int
    digest: bytes
    opening: Opening
    ending: Ending | None


class ShortBody(msgspec.Struct, gc=False):
    """A body without the messages that are known."""

    body: bytes
    first: int  # how many of the first messages it has
    beginning: Beginning
    state: xxhash.xxh3_128  # of the beginning
    tools: tuple[str, ...]  # the names of those that were cut out


class KnownHistory:
    """The last conversations of one caller."""

    __slots__ = ("_beginnings", "_endings", "_first", "_last", "_probes")

    def __init__(self) -> None:
        self._endings: dict[tuple[str, bytes], Ending | None] = {}  # by dialect and digest
        self._beginnings: list[Beginning] = []  # the newest first
        self._probes: list[tuple[bytes, int]] = []  # the last bytes of each, and where they are
        self._first, self._last = _FIRST, _LAST

    def shorten(self, body: bytes, dialect: str) -> ShortBody | None:
        """Return a body without what is known of it; None if nothing is."""
        # Without a loop in Python: most of a caller's other conversations are skipped here with each request.
        for one in compress(self._beginnings, starmap(body.startswith, self._probes)):
            if one.dialect == dialect:
                view, end = memoryview(body), one.end
                state = xxhash.xxh3_128(view[:end])
                if state.digest() == one.digest:
                    ending, stop, rest = one.ending, len(body), b""
                    tools: tuple[str, ...] = ()
                    # A body that is valid and ends alike declares the same tools there, whatever stands before the
                    # ending: it closes a list and the body itself, so it begins within a list of the body.
                    if ending is not None and xxhash.xxh3_128_digest(view[stop - ending.size :]) == ending.digest:
                        stop, rest, tools = stop - ending.size, ending.rest, ending.tools
                    if one.opening.is_read or not body.startswith(_COMMAS[one.separator], end):
                        first, pieces = one.first, (view[: one.first_end], view[end:stop], rest)
                    else:
                        first, pieces = 0, (view[: one.start], view[end + one.separator : stop], rest)
                    shorter = b"".join(pieces)
                    if rest and len(shorter) <= SMALL_BODY:  # its messages would be decoded in another way
                        shorter = shorter.ljust(SMALL_BODY + 1)
                    return ShortBody(shorter, first, one, state, tools)
        return None

    def restore(self, body: bytes, items: list[Any], short: ShortBody) -> bool:
        """Insert `EARLIER` into the messages of a short body for those that it does not have. Returns False if they are
        not the messages that follow.
        """
        known, first = short.beginning, short.first
        newer = items[first:]
        if not newer:
            return False
        if type(newer[0]) is not Raw:
            if short.body.find(_MESSAGES, known.start) >= 0:  # of two lists, the second counts
                return False
        elif not body.startswith(newer[0], known.end + known.separator):
            return False
        items[first:first] = [EARLIER] * (known.first - first + known.number)
        if _continue(body, newer, self._last, short):
            beginnings, probes = self._beginnings, self._probes
            at = beginnings.index(known)
            if at:
                beginnings.insert(0, beginnings.pop(at))
                probes.insert(0, probes.pop(at))
            probes[0] = _probe(body, known.end)
        return True

    def learn(self, body: bytes, items: list[Any], dialect: str, tools: ToolNames) -> None:
        """Take the messages of a body that was decoded as a whole. `tools` returns the names of its tools; None if it
        declares some in other fields, too."""
        found = _beginning(body, items, self._first, self._last, dialect) if self._last <= _MOST else None
        if found is not None:
            found.ending = self._ending_of(dialect, body[_messages_end(found, items, self._last) :], tools)
            self._beginnings.insert(0, found)
            self._probes.insert(0, _probe(body, found.end))
            del self._beginnings[CONVERSATIONS:], self._probes[CONVERSATIONS:]

    def _ending_of(self, dialect: str, last: bytes, tools: ToolNames) -> Ending | None:
        """Return the ending of a body, if it has tools that are worth cutting out."""
        if len(last) < _TOOLS_MIN:
            return None
        digest, endings = xxhash.xxh3_128_digest(last), self._endings
        key = (dialect, digest)
        if key not in endings:
            if len(endings) >= ENDINGS:
                self._drop(endings.pop(next(iter(endings))))
            endings[key] = _read_ending(last, digest, tools)
        return endings[key]

    def _drop(self, ending: Ending | None) -> None:
        for one in self._beginnings:
            if one.ending is ending:
                one.ending = None

    def widen(self) -> None:
        """Keep more messages from now on, because one was asked for that had been cut out."""
        self._beginnings.clear()
        self._probes.clear()
        self._first, self._last = 2 * self._first, 2 * self._last


def _beginning(body: bytes, items: list[Any], first: int, last: int, dialect: str) -> Beginning | None:
    """Return where to cut the next body that begins like this one; None if that is not clear, or not worth it."""
    number = len(items) - first - last
    if number <= 0 or type(items[0]) is not Raw or type(items[-1]) is not Raw:
        return None
    start = body.find(bytes(items[0]))
    if start < 1 or body[start - 1] != _OPENING:
        return None
    size = sum(map(len, items))
    for separator in _SEPARATORS:
        stop = start + size + (len(items) - 1) * separator
        if _ends(body, stop, items):  # then there is nothing between the messages but separators
            first_end = start + sum(map(len, items[:first])) + (first - 1) * separator
            end = stop - sum(map(len, items[-last:])) - last * separator
            digest = xxhash.xxh3_128_digest(memoryview(body)[:end])
            return Beginning(dialect, first, start, first_end, end, number, separator, digest, Opening(), None)
    return None


def _messages_end(known: Beginning, items: list[Any], last: int) -> int:
    """Return where the messages of the body end that a beginning is from."""
    return known.end + sum(map(len, items[-last:])) + last * known.separator


def _read_ending(last: bytes, digest: bytes, tools: ToolNames) -> Ending | None:
    """Return what follows the messages of a body; None if there are no tools to cut out, or it is not clear where."""
    try:
        fields = _decode_fields(b'{"messages":[' + last)
    except (ValueError, RecursionError):
        return None
    declared = bytes(fields.get("tools", b""))
    at = last.find(b"[", last.find(_TOOLS))
    if len(declared) < _TOOLS_MIN or not last.startswith(declared, at):
        return None
    rest, names = last[:at] + b"[]" + last[at + len(declared) :], tools()
    if names is None or len(rest) > _ENDING_MAX or len(names) > _NAMES_MAX or sum(map(len, names)) > _NAMES_CHARS_MAX:
        return None
    return Ending(len(last), digest, rest, tuple(names))


def _probe(body: bytes, end: int) -> tuple[bytes, int]:
    return body[end - _PROBE : end], end - _PROBE


def _continue(body: bytes, newer: list[Any], last: int, short: ShortBody) -> bool:
    """Do the same for a body that was shortened; `newer` are the messages after those that were cut out. Returns False
    if the beginning remains what it was.
    """
    known, state = short.beginning, short.state
    more = len(newer) - last
    if more <= 0 or type(newer[0]) is not Raw or type(newer[-1]) is not Raw:
        return False
    end = known.end + sum(map(len, newer[:more])) + more * known.separator
    if not _ends(body, end + sum(map(len, newer[more:])) + last * known.separator, newer):
        return False
    state.update(memoryview(body)[known.end : end])
    known.end, known.digest = end, state.digest()
    known.number += more
    return True


def _ends(body: bytes, stop: int, items: list[Any]) -> bool:
    """Tell whether the last message ends at a position, and the list of messages with it."""
    newest = items[-1]
    return body.startswith(_CLOSING, stop) and body.startswith(newest, stop - len(newest))


class KnownHistories:
    """The conversations of all callers. The caller that was seen first is forgotten first."""

    __slots__ = ("_of_callers",)

    def __init__(self) -> None:
        self._of_callers: dict[str, KnownHistory] = {}

    def of(self, caller: str) -> KnownHistory:
        known = self._of_callers.get(caller)
        if known is None:
            if len(self._of_callers) >= CALLERS:
                del self._of_callers[next(iter(self._of_callers))]
            known = self._of_callers[caller] = KnownHistory()
        return known
