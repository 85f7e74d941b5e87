"""Several processes that accept from one listening socket. The system would give nearly all connections of a burst to
whoever wakes up first, so each takes one only while it has no more than the others have; a connection that nobody
takes within a moment is taken by anybody. Who the processes are is `fleet`'s business.
"""

from __future__ import annotations

import asyncio
import mmap
import socket
from collections.abc import Callable
from typing import Any, Final

_ABSENT: Final = 0xFFFFFFFF
_PAUSE_S: Final = 0.001  # the finest that the loop's clock has
_PATIENCE_S: Final = 0.005  # on a busy machine it takes some milliseconds to wake up
_AGAIN_S: Final = 0.02  # so long after it began to wait, it is another connection that waits
_AT_ONCE: Final = 32
_NONE_LEFT_S: Final = 1.0
_SLACK_SHIFT: Final = 3  # an eighth more than the least is still fair
_RECENT_SHIFT: Final = 4
_RECENT_S: Final = 1.0


class Shares:
    """How many connections each process has, in memory that all of them see."""

    __slots__ = ("_counts", "_memory")

    def __init__(self, fd: int, count: int) -> None:
        self._memory = mmap.mmap(fd, count * 4)
        self._counts = memoryview(self._memory).cast("I")

    def absent(self, index: int) -> None:
        """It takes no connections, or none any more."""
        self._counts[index] = _ABSENT

    def has(self, index: int, connections: int) -> None:
        """It has so many now."""
        self._counts[index] = connections

    def allows(self, connections: int, recent: int = 0) -> bool:
        """Tell whether somebody with so many may take another one, after so many that were taken just now. Connections
        that come and go by the thousand need no fairness, but speed."""
        least = min(self._counts)
        return connections <= least + (least >> _SLACK_SHIFT) + (recent >> _RECENT_SHIFT)

    def shown(self) -> list[int | None]:
        """Return all of them; None for those that are absent."""
        return [None if count == _ABSENT else count for count in self._counts]


class Turns:
    """Accepts for one process, as a `Server`'s listener. `connected` counts the connections that are open."""

    def __init__(
        self,
        sock: socket.socket,
        shares: Shares,
        index: int,
        make: Callable[[], asyncio.BaseProtocol],
        connected: Callable[[], int],
        tls: dict[str, Any] | None = None,
    ) -> None:
        self._sock = sock
        self._shares = shares
        self._index = index
        self._make = make
        self._connected = connected
        self._tls = tls or {}
        self._loop = asyncio.get_running_loop()
        self._opening: set[asyncio.Task[Any]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._waits_since = 0.0
        self._patience_s = _PATIENCE_S
        self._recent = 0  # accepted since then
        self._recent_since = 0.0
        self._closed = False
        self._watch()
        self.changed()

    def changed(self) -> None:
        """Tell the others how many there are now."""
        if not self._closed:
            self._shares.has(self._index, self._connected() + len(self._opening))

    def close(self) -> None:
        """Accept no more. The socket itself stays open elsewhere: what waits in it is for the others."""
        if self._closed:
            return
        self._closed = True
        self._shares.absent(self._index)
        if self._timer is None:
            self._loop.remove_reader(self._sock.fileno())
        else:
            self._timer.cancel()
        self._sock.close()

    async def wait_closed(self) -> None:
        """Wait for connections that were just being made."""
        if self._opening:
            await asyncio.wait(self._opening)

    def _watch(self) -> None:
        self._timer = None
        self._loop.add_reader(self._sock.fileno(), self._readable)

    def _readable(self) -> None:
        if self._may():
            self._patience_s = _PATIENCE_S
            for _ in range(_AT_ONCE):
                if not self._accept() or not self._may():
                    return
        elif self._is_patient():
            self._rest(_PAUSE_S)
        else:
            self._patience_s, self._waits_since = self._patience_s / 2, 0.0
            self._accept()

    def _may(self) -> bool:
        return self._shares.allows(self._connected() + len(self._opening), self._recent)

    def _is_patient(self) -> bool:
        """Whoever has less is awake too, and will be quicker. If not, it is busy: after a moment anybody may, and after
        a shorter one each time that goes on."""
        now = self._loop.time()
        if now - self._waits_since > _AGAIN_S:
            self._waits_since = now
        return now - self._waits_since < self._patience_s

    def _rest(self, seconds: float) -> None:
        self._loop.remove_reader(self._sock.fileno())
        self._timer = self._loop.call_later(seconds, self._watch)

    def _accept(self) -> bool:
        try:
            taken, _ = self._sock.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return False
        except OSError:  # no descriptors left: those that wait get their turn when others have gone
            self._rest(_NONE_LEFT_S)
            return False
        taken.setblocking(False)
        self._note_recent()
        task = self._loop.create_task(self._open(taken))
        self._opening.add(task)
        task.add_done_callback(self._opened)
        self.changed()
        return True

    def _note_recent(self) -> None:
        now = self._loop.time()
        if now - self._recent_since > _RECENT_S:
            self._recent, self._recent_since = 0, now
        self._recent += 1

    async def _open(self, taken: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(self._make, taken, **self._tls)
        except (OSError, TimeoutError):  # it left at once, or a handshake that failed: as if it had never come
            taken.close()

    def _opened(self, task: asyncio.Task[Any]) -> None:
        self._opening.discard(task)
        if not task.cancelled():
            task.exception()  # looked at, so that nobody is told of it at the end
        self.changed()
