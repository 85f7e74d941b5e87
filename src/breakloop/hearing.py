"""Answers, as detectors remember them in windows of a store beyond a connection (SPEC S-2). Nobody waits for it: where
it cannot be written, the answer is not remembered, and the next request is judged by what is known without it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from breakloop.detect.watch import Watch
from breakloop.errors import StateError
from breakloop.model.answer import Answer
from breakloop.model.call import Call
from breakloop.state.ops import Committed, Window, WindowWrite
from breakloop.state.store import RemoteStore
from breakloop.window_cache import WindowCache
from breakloop.windows import TRIES, hear


class Hearer:
    """Writes answers into windows."""

    __slots__ = ("failed", "fault", "store", "windows")

    def __init__(
        self,
        store: RemoteStore,
        windows: WindowCache,
        failed: Callable[[str], None],
        fault: Callable[[Exception], object],
    ) -> None:
        self.store = store
        self.windows = windows
        self.failed = failed  # of the store
        self.fault = fault  # of ours

    def heard(self, call: Call, answer: Answer) -> None:
        """Let every detector that wants it remember how a call was answered."""
        for key, watches in call.watched:
            _Hearing(self, key, watches, answer).start()


class _Hearing:
    """One answer on its way into one window."""

    __slots__ = ("_answer", "_key", "_owner", "_tries", "_watches", "_write")

    def __init__(self, owner: Hearer, key: str, watches: Sequence[Watch], answer: Answer) -> None:
        self._owner = owner
        self._key = key
        self._watches = watches
        self._answer = answer
        self._tries = 0
        self._write: WindowWrite | None = None

    def start(self) -> None:
        """Take note in the copy that there is, else in what the store has."""
        windows = self._owner.windows
        if windows.missing((self._key,)):
            self._owner.store.read_windows((self._key,), self._read)
        else:
            self._commit()

    def _read(self, windows: list[Window] | StateError) -> None:
        if isinstance(windows, StateError):
            self._owner.failed(str(windows))
            return
        self._owner.windows.put(self._key, windows[0])
        self._commit()

    def _commit(self) -> None:
        owner = self._owner
        try:
            self._write = hear(self._key, owner.windows.get(self._key), self._watches, self._answer)
        except Exception as error:  # noqa: BLE001 - an outermost edge, as in `_Deciding`
            owner.fault(error)
            return
        if self._write is not None:
            owner.windows.sent((self._write,))
            owner.store.commit((), (self._write,), self._committed)

    def _committed(self, done: Committed | StateError) -> None:
        owner, write = self._owner, self._write
        if write is None:
            return
        if isinstance(done, StateError):
            owner.windows.lost((write,))
            owner.failed(str(done))
        elif done.conflict is not None:
            owner.windows.refused((write,), done.conflict)
            self._tries += 1
            if self._tries < TRIES:
                self._commit()
