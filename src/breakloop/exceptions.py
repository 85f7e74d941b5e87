"""What the library raises instead of a request or a step that was denied. Public, and light: it imports no SDK.

`breakloop.openai` and `breakloop.anthropic` raise subclasses that are also that SDK's `RateLimitError`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from breakloop.errors import BreakloopError
from breakloop.model.decision import Decision

__all__ = ["DeniedError", "LoopDetectedError", "error_for"]


class DeniedError(BreakloopError):
    """A denial. `reason` is from the closed list in the docs, `retry_after` seconds (None: waiting does not help)."""

    def __init__(self, verdict: Decision, text: str = "") -> None:
        # Not `super()`: where an SDK's error stands behind us in the order of bases, it has been initialised by name.
        Exception.__init__(self, text or f"{verdict.message} ({verdict.error})")
        self.verdict = verdict
        self.message: str = verdict.message
        self.reason = verdict.reason
        self.retry_after = verdict.retry_after

    def __reduce__(self) -> tuple[Any, ...]:
        """Errors travel between processes; the request that is behind the decision, and an SDK's response, do not."""
        kind = LoopDetectedError if isinstance(self, LoopDetectedError) else DeniedError
        return kind, (replace(self.verdict, call=None, verdict=None), str(self))


class LoopDetectedError(DeniedError):
    """An agent repeats itself, and is to stop or do something else. Sending the same again does not help."""

    def __init__(self, verdict: Decision, text: str = "") -> None:
        DeniedError.__init__(self, verdict, text)
        self.hit_count = verdict.hit_count
        self.cooldown_seconds = verdict.cooldown_seconds
        self.fingerprint = verdict.fingerprint
        self.kind = verdict.kind
        self.evidence = verdict.evidence


def error_for(verdict: Decision) -> DeniedError:
    """Return the error that stands for a denial."""
    return LoopDetectedError(verdict) if verdict.is_loop else DeniedError(verdict)
