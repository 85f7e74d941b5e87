"""The errors that breakloop raises. A denial inside the engine is a value (`model.verdict.Verdict`), not an error.

BreakloopError
|-- BundleError          a bundle that was rejected as a whole; carries every `Problem`
|   `-- UnreadableError  a bundle that could not be read; the next attempt may succeed
|-- SettingsError        an invalid setting; the message names it and its source
|-- StateError           the store failed; the caller decides from local state, or allows the request
|-- OrderError           an invalid operator command; the problems name its fields
|-- HistoryError         the history database cannot be read or written
|-- AlertError           an alert target that is invalid or cannot be reached
|-- FleetError           a process that cannot be kept running; the message names it
|-- RequestError         a request that cannot be checked as it was sent (bad path, bad framing); carries a status
`-- UpstreamError        an upstream that cannot be reached or sends invalid HTTP; the client gets 502 or 504
"""

from __future__ import annotations

from dataclasses import dataclass


class BreakloopError(Exception):
    """Base class of all errors that breakloop raises."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One error in a bundle or settings file, with its position."""

    file: str
    line: int  # 0 if it has no position
    column: int
    path: str  # of the value in the document, such as `policies[0].spec.rules`
    message: str
    hint: str = ""  # what to do about it

    def __str__(self) -> str:
        """Return `file:line:column: path: message (hint)`, which editors can link. Line 0 means no position."""
        where = f"{self.file}:{self.line}:{self.column}: " if self.line else f"{self.file}: "
        what = f"{self.path}: {self.message}" if self.path else self.message
        return where + what + (f" ({self.hint})" if self.hint else "")


class BundleError(BreakloopError):
    """A bundle that was rejected; no part of it was applied."""

    def __init__(self, problems: list[Problem]) -> None:
        super().__init__("\n".join(str(problem) for problem in problems))
        self.problems = problems  # every mistake that was found


class UnreadableError(BundleError):
    """A bundle whose files could not be read (no such file, no permission, too many open files)."""


class SettingsError(BreakloopError):
    """A setting with an invalid value."""


class StateError(BreakloopError):
    """The store failed. Charges are assumed not to have been applied."""


class OrderError(BreakloopError):
    """An operator command that was rejected; nothing was changed."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


class HistoryError(BreakloopError):
    """The history database failed; requests are still decided without it."""


class AlertError(BreakloopError):
    """An alert target that cannot be used."""


class FleetError(BreakloopError):
    """A process of an instance with several workers that cannot be started."""


class RequestError(BreakloopError):
    """A request that cannot be checked as it was sent. `status` is the HTTP status for the client."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status  # 400, 413 and so on


class UpstreamError(BreakloopError):
    """A request to an upstream that failed."""
