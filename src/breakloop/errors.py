"""The error tree. A denial is a value (`model.verdict.Verdict`), never an exception, inside the engine.

BreakloopError
|-- BundleError        a policy bundle that was refused whole; carries every `Problem` found
|   `-- UnreadableError  the system did not let us read it; the same bytes may be readable a moment later
|-- SettingsError      a wrong setting, with the name of the setting and where it came from
|-- StateError         the store could not do what it was asked; callers decide on local state or allow
|-- OrderError         what an operator ordered cannot be carried out as it was given; says why, by field
|-- HistoryError       the database of what happened cannot be read or written
|-- AlertError         a target for alerts that is refused, or could not be reached
|-- FleetError         processes that cannot be kept running; the message says which and why
|-- RequestError       a request that cannot be judged as sent (bad path, bad framing); carries a status
`-- UpstreamError      an upstream that cannot be reached or answers no HTTP; the client gets 502 or 504
"""

from __future__ import annotations

from dataclasses import dataclass


class BreakloopError(Exception):
    """Every error that breakloop raises on purpose."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong with a bundle or settings file, located so that a person can go there."""

    file: str
    line: int
    column: int
    path: str
    message: str
    hint: str = ""

    def __str__(self) -> str:
        """`file:line:column: path: message (hint)`, the form editors and terminals link; line 0: it is no file."""
        where = f"{self.file}:{self.line}:{self.column}: " if self.line else f"{self.file}: "
        what = f"{self.path}: {self.message}" if self.path else self.message
        return where + what + (f" ({self.hint})" if self.hint else "")


class BundleError(BreakloopError):
    """A bundle that was refused; nothing of it was applied."""

    def __init__(self, problems: list[Problem]) -> None:
        super().__init__("\n".join(str(problem) for problem in problems))
        self.problems = problems


class UnreadableError(BundleError):
    """A bundle whose files could not be read (no such file, no permission, too many open files)."""


class SettingsError(BreakloopError):
    """A setting with an unusable value."""


class StateError(BreakloopError):
    """The store failed; nothing was charged as far as is known."""


class OrderError(BreakloopError):
    """An operator's order that is refused; nothing has changed."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


class HistoryError(BreakloopError):
    """The database of what happened failed; traffic goes on without it."""


class AlertError(BreakloopError):
    """A target for alerts that cannot be used; the message says why."""


class FleetError(BreakloopError):
    """A process of several that cannot be started."""


class RequestError(BreakloopError):
    """A request that cannot be judged as it was sent."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class UpstreamError(BreakloopError):
    """An upstream that failed; the message says how."""
