"""Windows: what detectors remember of a session, an agent or a caller is read before a decision, judged, and written
with it in one commit (SPEC E-5, S-2). What a detector keeps in its section is its own business."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from breakloop.detect.sections import pack, unpack
from breakloop.detect.watch import Watch, window_key
from breakloop.model.answer import Answer
from breakloop.model.call import Call
from breakloop.state.ops import ENFORCED, Committed, Op, WindowWrite
from breakloop.state.store import Store

TTL_S: Final = 3600.0
_TRIES: Final = 3  # so often a window that moved on is judged again (SPEC S-2)


class _Book:
    """One window while it is being judged."""

    __slots__ = ("changed", "key", "sections", "version", "watches")

    def __init__(self, key: str, version: int, data: bytes) -> None:
        self.key = key
        self.version = version
        self.sections = unpack(data)
        self.changed = False
        self.watches: list[Watch] = []

    def put(self, tag: bytes, section: bytes) -> None:
        self.sections[tag] = section
        self.changed = True

    def write(self) -> WindowWrite:
        return WindowWrite(self.key, self.version, pack(self.sections), TTL_S)


class Windows:
    """Reads, judges and packs."""

    __slots__ = ("_store", "conflicts")

    def __init__(self, store: Store) -> None:
        self._store = store
        self.conflicts = 0  # decisions whose windows moved on too often: made without writing them

    def commit(self, call: Call, ops: Sequence[Any], project: str, now: float) -> tuple[list[Op], Committed]:
        """Judge and commit; again where a window has moved on meanwhile, and in the end without the windows."""
        found, writes = self._look(call, ops, project, now)
        done = self._store.commit(found, now, writes)
        for _ in range(_TRIES):
            if done.conflict is None:
                return found, done
            found, writes = self._look(call, ops, project, now)
            done = self._store.commit(found, now, writes)
        if done.conflict is not None:
            self.conflicts += 1
            done = self._store.commit(found, now)
        return found, done

    def _look(self, call: Call, ops: Sequence[Any], project: str, now: float) -> tuple[list[Op], list[WindowWrite]]:
        """Return the operations with what was found in the place of each `Watch`, and the windows to write."""
        books: dict[str, _Book] = {}
        out: list[Op] = []
        for op in ops:
            if type(op) is not Watch:
                out.append(op)
                continue
            detector = op.detector
            owner = detector.owner(call)
            if not owner:
                continue
            key = window_key(f"{project}:{owner}")
            book = books.get(key)
            if book is None:
                window = self._store.read_window(key, now)
                book = books[key] = _Book(key, window.version, window.data)
            tag = detector.tags[op.group != ENFORCED]
            before = book.sections.get(tag, b"")
            looked = detector.look(call, before, now)
            if looked is None:
                continue
            if looked.window is not before:
                book.put(tag, looked.window)
            if detector.hears(call, looked):
                book.watches.append(op)
            found = detector.operation(call, looked, project, op.group)
            if found is not None:
                out.append(found)
        call.watched = [(book.key, book.watches) for book in books.values() if book.watches] or None
        return out, [book.write() for book in books.values() if book.changed]

    def heard(self, call: Call, answer: Answer, now: float) -> None:
        """Take note of how a call was answered, in every window that it was judged with."""
        for key, watches in call.watched:
            self._heard(key, watches, answer, now)

    def _heard(self, key: str, watches: Sequence[Watch], answer: Answer, now: float) -> None:
        for _ in range(_TRIES):
            window = self._store.read_window(key, now)
            book = _Book(key, window.version, window.data)
            for watch in watches:
                tag = watch.detector.tags[watch.group != ENFORCED]
                section = book.sections.get(tag)
                if section is not None:
                    after = watch.detector.heard(section, answer)
                    if after is not section:
                        book.put(tag, after)
            if not book.changed or self._store.commit((), now, [book.write()]).conflict is None:
                return
