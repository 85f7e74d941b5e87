"""One process at a time keeps its state in a data directory. The lock goes with the process, however it ends."""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from pathlib import Path


class Lock:
    """A lock on a file of its own, which stays where it is."""

    __slots__ = ("_descriptor", "path")

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor = -1

    def take(self) -> str:
        """Take the lock; return why that is not possible, or an empty text."""
        try:
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            return error.strerror or str(error)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return "another process uses this data directory"
        except OSError as error:
            os.close(descriptor)
            return error.strerror or str(error)
        self._descriptor = descriptor
        return ""

    def release(self) -> None:
        """Let another process have it."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            with suppress(OSError):
                os.close(descriptor)
