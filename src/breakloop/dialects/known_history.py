"""Messages that an earlier request of the same caller had, which are not decoded again.

An agent sends its whole conversation with every request, and only the last messages are new. Of a large body, the bytes
between the first messages and the last ones are cut out before it is decoded, if an earlier body of the caller began
with the same bytes. That body has been decoded, so it is known that these bytes are whole messages, and how many.

Once the session of a conversation is known, few requests need its first messages, and they are cut out, too.

What is kept of a conversation is where to cut, a digest and the name of its session, some 500 bytes. A client that
makes the digests of two of its bodies equal only has its own requests misread, because nothing is shared between
callers.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
import xxhash

from breakloop.dialects.base import EARLIER

CONVERSATIONS: Final = 32  # of one caller, the last ones
CALLERS: Final = 256
_FIRST, _LAST = 3, 4  # messages at either end that stay: most readers need no others
_MOST: Final = 64
_PROBE: Final = 32  # bytes at the end of a beginning that are compared first
_SEPARATORS: Final = (1, 2)  # characters between two messages: "," or ", "
_COMMAS: Final = (b"", b",", b", ")
_MESSAGES: Final = b'"messages"'
_OPENING: Final = ord("[")
_CLOSING: Final = b"]"
Raw = msgspec.Raw


class Opening(msgspec.Struct, gc=False):
    """What was found out about the messages with which a conversation opens."""

    agent: str = ""
    session: str = ""  # the name that is derived from them, for this agent; "" if it was not asked for
    is_read: bool = True  # False: now that the session is known, nobody has asked for these messages again


class Beginning(msgspec.Struct, frozen=True, eq=False, gc=False):
    """The first bytes of a body."""

    dialect: str
    first: int  # number of the first messages, which stay as long as they are read
    start: int  # where they begin
    first_end: int  # where they end
    end: int  # where the messages end that are cut out
    number: int  # of these
    separator: int
    digest: bytes
    probe: bytes
    opening: Opening  # the same object as long as the conversation goes on


class ShortBody(msgspec.Struct, gc=False):
    """A body without the messages that are known."""

    body: bytes
    first: int  # how many of the first messages it has
    beginning: Beginning
    state: xxhash.xxh3_128  # of the beginning


class KnownHistory:
    """The last conversations of one caller."""

    __slots__ = ("_beginnings", "_first", "_last")

    def __init__(self) -> None:
        self._beginnings: list[Beginning] = []  # the newest last
        self._first, self._last = _FIRST, _LAST

    def shorten(self, body: bytes, dialect: str) -> ShortBody | None:
        """Return a body without what is known of it; None if nothing is."""
        for one in reversed(self._beginnings):
            if body.startswith(one.probe, one.end - _PROBE) and one.dialect == dialect:
                view, end = memoryview(body), one.end
                state = xxhash.xxh3_128(view[:end])
                if state.digest() == one.digest:
                    if one.opening.is_read or not body.startswith(_COMMAS[one.separator], end):
                        return ShortBody(b"".join((view[: one.first_end], view[end:])), one.first, one, state)
                    return ShortBody(b"".join((view[: one.start], view[end + one.separator :])), 0, one, state)
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
        elif not body.startswith(bytes(newer[0]), known.end + known.separator):
            return False
        items[first:first] = [EARLIER] * (known.first - first + known.number)
        found = _continued(body, newer, self._last, short)
        if found is not None:
            self._beginnings.remove(known)
            self._beginnings.append(found)
        return True

    def learn(self, body: bytes, items: list[Any], dialect: str) -> None:
        """Take the messages of a body that was decoded as a whole."""
        found = _beginning(body, items, self._first, self._last, dialect) if self._last <= _MOST else None
        if found is not None:
            self._beginnings.append(found)
            del self._beginnings[:-CONVERSATIONS]

    def widen(self) -> None:
        """Keep more messages from now on, because one was asked for that had been cut out."""
        self._beginnings.clear()
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
            probe = body[end - _PROBE : end]
            return Beginning(dialect, first, start, first_end, end, number, separator, digest, probe, Opening())
    return None


def _continued(body: bytes, newer: list[Any], last: int, short: ShortBody) -> Beginning | None:
    """Return the same for a body that was shortened; `newer` are the messages after those that were cut out."""
    known, state = short.beginning, short.state
    if len(newer) <= last or type(newer[0]) is not Raw or type(newer[-1]) is not Raw:
        return None
    stop = known.end + sum(map(len, newer)) + len(newer) * known.separator
    if not _ends(body, stop, newer):
        return None
    end = stop - sum(map(len, newer[-last:])) - last * known.separator
    state.update(memoryview(body)[known.end : end])
    return msgspec.structs.replace(
        known, end=end, number=known.number + len(newer) - last, digest=state.digest(), probe=body[end - _PROBE : end]
    )


def _ends(body: bytes, stop: int, items: list[Any]) -> bool:
    """Tell whether the last message ends at a position, and the list of messages with it."""
    newest = items[-1]
    return body[stop : stop + 1] == _CLOSING and body.startswith(bytes(newest), stop - len(newest))


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
