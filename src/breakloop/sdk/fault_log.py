"""Says in the log that a `Guard` could not decide: where it asked and why that failed, the first time and then once a
minute. Nothing of what was asked about is in it (SPEC Y-1); counting and allowing is `guard`'s."""

from __future__ import annotations

import http.client
import logging
import socket
import ssl
from collections.abc import Callable
from typing import Final

from breakloop.clock import Clock, SystemClock
from breakloop.errors import SettingsError
from breakloop.exceptions import DeniedError
from breakloop.observe.log import log
from breakloop.sdk.core import AnswerError

EVERY_S: Final = 60.0


class FailOpen:
    """`with guard.fail_open():` around code of ours on somebody's path: what it raises is counted and logged, and the
    program goes on after the block. A denial is no fault and passes."""

    __slots__ = ("_fault",)

    def __init__(self, fault: Callable[[Exception], object]) -> None:
        self._fault = fault

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> bool:
        if not isinstance(error, Exception) or isinstance(error, DeniedError):
            return False
        self._fault(error)
        return True


class FaultLog:
    """The faults of one `Guard`. `where` is the URL that it asks; "" where it decides itself."""

    def __init__(self, where: str = "", clock: Clock | None = None) -> None:
        self._where = where
        self._clock = clock or SystemClock()
        self._told_at = -EVERY_S
        self._left_out = 0

    def tell(self, error: Exception) -> None:
        """Log a fault, or count it for the next line."""
        now = self._clock.now()
        if 0 <= now - self._told_at < EVERY_S:
            self._left_out += 1
            return
        more: dict[str, object] = {"url": self._where} if self._where else {}
        if self._left_out:
            more["left_out"] = self._left_out
        self._told_at, self._left_out = now, 0
        log(logging.ERROR, "guard.fault", {"error": f"{cause(error)}; allowed, and so is what follows", **more})


def cause(error: Exception) -> str:
    """Return why something failed, in words that cannot hold what was asked about: of errors that are not known, only
    their kind."""
    kind = type(error).__name__
    if isinstance(error, AnswerError):
        return f"{error} (is that the traffic port of breakloop?)"
    if isinstance(error, SettingsError):
        return str(error)
    if isinstance(error, TimeoutError):
        return f"{kind}: no answer in time"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"{kind}: {error.verify_message}"
    if isinstance(error, socket.gaierror):
        return f"{kind}: the host name cannot be resolved"
    if isinstance(error, ConnectionError) and not isinstance(error, http.client.HTTPException) and error.strerror:
        return f"{kind}: {error.strerror}"
    return kind
