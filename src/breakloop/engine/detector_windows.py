"""Windows: what detectors remember of a session, an agent or a caller is read before a decision, judged, and written
with it in one commit (SPEC E-5, S-2). What a detector keeps in its section is its own business.

Copies of windows that are kept in a shared store, so that most decisions need one round trip (SPEC S-2). A copy may
be old: the store's version tells, and sends the newer one. What was sent is taken for written at once, so that the next
request of the same session need not wait; commands are carried out in the order in which they were sent.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from breakloop.detect.counting import is_snoozed
from breakloop.detect.stateful import DetectorSlot, pack_sections, unpack_sections, window_key, window_shard
from breakloop.engine.decision_state import state_of
from breakloop.model.call import Answer, Call
from breakloop.store.ops import ENFORCED, CommitResult, Op, Store, StoredWindow, WindowWrite

TTL_S: Final = 3600.0
TRIES: Final = 3  # so often a window that moved on is judged again (SPEC S-2)

_new: Final = tuple.__new__  # makes a named tuple in half the time that its name takes

Read = Callable[[str, float], StoredWindow]


class _OpenWindow:
    """One window while it is being judged."""

    __slots__ = ("changed", "key", "sections", "version")

    def __init__(self, key: str, version: int, data: bytes) -> None:
        self.key = key
        self.version = version
        self.sections = unpack_sections(data)
        self.changed = False

    def put(self, tag: bytes, section: bytes) -> None:
        self.sections[tag] = section
        self.changed = True

    def write(self, first: int = 1) -> WindowWrite:
        data = pack_sections(self.sections) if self.changed else None
        return _new(WindowWrite, (self.key, self.version, data, TTL_S, first))


class DetectorWindows:
    """Reads, judges and packs."""

    __slots__ = ("_store", "conflicts", "read")

    def __init__(self, store: Store) -> None:
        self._store = store
        self.read: Read = store.read_window
        self.conflicts = 0  # decisions whose windows moved on too often: made without writing them

    def commit(self, call: Call, ops: Sequence[Any], project: str, now: float) -> tuple[list[Op], CommitResult]:
        """Judge and commit; again where a window has moved on meanwhile, and in the end without the windows."""
        read = self.read
        found, writes = look(call, ops, project, now, read)
        done = self._store.commit(found, now, writes)
        tries = 0
        while done.conflict is not None and tries < TRIES:
            found, writes = look(call, ops, project, now, read)
            done = self._store.commit(found, now, writes)
            tries += 1
        if done.conflict is not None:
            self.conflicts += 1
            done = self._store.commit(found, now)
        return found, done

    def heard(self, call: Call, answer: Answer, now: float) -> None:
        """Take note of how a call was answered, in every window that it was judged with."""
        for key, watches in state_of(call).windows or ():
            for _ in range(TRIES):
                write = hear(key, self.read(key, now), watches, answer)
                if write is None or self._store.commit((), now, [write]).conflict is None:
                    break


def keys(call: Call, ops: Sequence[Any], project: str) -> list[str]:
    """Return the keys of the windows that a plan needs."""
    shard = call.identity.shard or project
    owners = [op.detector.owner(call) for op in ops if type(op) is DetectorSlot]
    return list(
        dict.fromkeys([window_key(f"{window_shard(owner, shard, project)}:{owner}") for owner in owners if owner])
    )


def look(
    call: Call, ops: Sequence[Any], project: str, now: float, read: Read, *, copies: bool = False
) -> tuple[list[Op], list[WindowWrite]]:
    """Return the operations with what was found in the place of each `DetectorSlot`, and the windows to
    write; where they were read from copies, those that only have to be unchanged, too."""
    shard = call.identity.shard or project
    books: dict[str, _OpenWindow] = {}
    watched: dict[str, list[DetectorSlot]] = {}
    out: list[Op] = []
    for op in ops:
        if type(op) is not DetectorSlot:
            out.append(op)
            continue
        detector = op.detector
        owner = detector.owner(call)
        if not owner:
            continue
        place = window_shard(owner, shard, project)
        key = window_key(f"{place}:{owner}")
        book = books.get(key)
        if book is None:
            window = read(key, now)
            book = books[key] = _OpenWindow(key, window.version, window.data)
        tag = detector.tags[op.group != ENFORCED]
        before = book.sections.get(tag, b"")
        looked = detector.evaluate(call, before, now)
        if looked is None:
            continue
        if looked.window is not before:
            book.put(tag, looked.window)
        if detector.awaits_answer(call, looked):
            watched.setdefault(key, []).append(op)
        found = detector.operation(call, looked, place, op.group)
        if found is not None and (call.decision.snoozed is None or not is_snoozed(found, call.decision.snoozed, now)):
            out.append(found)
    state_of(call).windows = list(watched.items()) or None
    if not copies:
        return out, [book.write() for book in books.values() if book.changed]
    # A window that was dropped and begun anew must not be taken for the one that somebody still has a copy of.
    first = int(now * 1000)
    return out, [book.write(first) for book in books.values()]


def hear(key: str, window: StoredWindow, watches: Sequence[DetectorSlot], answer: Answer) -> WindowWrite | None:
    """Return a window after the answer to a call that it judged; None where nothing changes."""
    book = _OpenWindow(key, window.version, window.data)
    for watch in watches:
        tag = watch.detector.tags[watch.group != ENFORCED]
        section = book.sections.get(tag)
        if section is not None:
            after = watch.detector.answered(section, answer)
            if after is not section:
                book.put(tag, after)
    return book.write() if book.changed else None


KEPT: Final = 10_000  # of at most 6 KB each

NONE: Final = StoredWindow(0, b"")
_UNKNOWN: Final = -1  # the version of a copy that may be right or not


class RemoteWindowCache:
    """The most recently used ones."""

    __slots__ = ("_kept", "_windows")

    def __init__(self, kept: int = KEPT) -> None:
        self._kept = kept
        self._windows: OrderedDict[str, StoredWindow] = OrderedDict()

    def __len__(self) -> int:
        return len(self._windows)

    def missing(self, keys: Sequence[str]) -> list[str]:
        """Return the keys of which there is no copy, or none that can be relied on."""
        windows = self._windows
        return [key for key in keys if (window := windows.get(key)) is None or window[0] == _UNKNOWN]

    def get(self, key: str, _now: float = 0.0) -> StoredWindow:
        """Return the copy, or a window that is none."""
        window = self._windows.get(key)
        if window is None:
            return NONE
        self._windows.move_to_end(key)
        return window

    def put(self, key: str, window: StoredWindow) -> None:
        """Keep what the store has."""
        windows = self._windows
        windows[key] = window
        windows.move_to_end(key)
        if len(windows) > self._kept:
            windows.popitem(last=False)

    def sent(self, writes: Sequence[WindowWrite]) -> None:
        """Take for written what is on its way."""
        for write in writes:
            if write.data is not None:
                self.put(write.key, StoredWindow(write.becomes, write.data))

    def refused(self, writes: Sequence[WindowWrite], newer: Mapping[str, StoredWindow]) -> None:
        """Nothing of it was written, because some had moved on; the others are not as they were taken to be."""
        self.lost(writes)
        for key, window in newer.items():
            self.put(key, window)

    def lost(self, writes: Sequence[WindowWrite]) -> None:
        """Nobody knows whether it was written: good enough to go on without the store, and to be read again with it."""
        for write in writes:
            copy = self._windows.get(write.key)
            if copy is not None:
                self._windows[write.key] = StoredWindow(_UNKNOWN, copy.data)

    def drop(self, keys: Sequence[str]) -> None:
        """Forget copies."""
        for key in keys:
            self._windows.pop(key, None)
