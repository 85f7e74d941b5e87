"""Session windows: what detectors remember of a conversation is read before a decision, judged, and written with it in
one commit (SPEC E-5, S-2). What a detector keeps in its section is its own business."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from breakloop.detect.sections import pack, unpack
from breakloop.detect.step_loop import Watch
from breakloop.model.answer import Answer
from breakloop.model.call import Call
from breakloop.state.keys import part
from breakloop.state.ops import ENFORCED, Committed, Op, WindowWrite
from breakloop.state.store import Store

TTL_S: Final = 3600.0
_TRIES: Final = 3  # so often a session that moved on is judged again (SPEC S-2)


class Windows:
    """Reads, judges and packs. `session` names whose window it is, caller included; "" for a call that has none."""

    __slots__ = ("_session", "_store", "conflicts")

    def __init__(self, store: Store, session: Callable[[Call], str]) -> None:
        self._store = store
        self._session = session
        self.conflicts = 0  # decisions whose session moved on too often: made without writing its window

    def commit(self, call: Call, ops: Sequence[Any], project: str, now: float) -> tuple[list[Op], Committed]:
        """Judge and commit; again where the session has moved on meanwhile, and in the end without its window."""
        found, window = self._look(call, ops, project, now)
        done = self._store.commit(found, now, window)
        for _ in range(_TRIES):
            if done.conflict is None:
                return found, done
            found, window = self._look(call, ops, project, now)
            done = self._store.commit(found, now, window)
        if done.conflict is not None:
            self.conflicts += 1
            done = self._store.commit(found, now)
        return found, done

    def _look(self, call: Call, ops: Sequence[Any], project: str, now: float) -> tuple[list[Op], WindowWrite | None]:
        """Return the operations with what was found in the place of each `Watch`, and the window to write."""
        session = self._session(call)
        if not session:
            return [op for op in ops if type(op) is not Watch], None
        key = f"win:{project}:{part(session)}"
        window = self._store.read_window(key, now)
        sections = unpack(window.data)
        changed: dict[bytes, bytes] = {}
        out: list[Op] = []
        for op in ops:
            if type(op) is not Watch:
                out.append(op)
                continue
            detector, tag = op.detector, op.detector.tags[op.group != ENFORCED]
            judged = detector.look(call, sections.get(tag, b""), now)
            if judged is None:
                continue
            changed[tag] = judged.window
            found = detector.operation(judged, project, op.group)
            if found is not None:
                out.append(found)
        if not changed:
            return out, None
        call.watched = (key, tuple(op for op in ops if type(op) is Watch))
        return out, WindowWrite(key, window.version, pack(sections | changed), TTL_S)

    def heard(self, call: Call, answer: Answer, now: float) -> None:
        """Take note of what the model answered: its copies in later requests are no news from outside."""
        if not answer.text:
            return
        key, watches = call.watched
        for _ in range(_TRIES):
            window = self._store.read_window(key, now)
            sections = unpack(window.data)
            for watch in watches:
                tag = watch.detector.tags[watch.group != ENFORCED]
                if tag in sections:
                    sections[tag] = watch.detector.heard(sections[tag], answer.text)
            written = self._store.commit((), now, WindowWrite(key, window.version, pack(sections), TTL_S))
            if written.conflict is None:
                return
