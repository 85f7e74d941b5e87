"""What the library raises instead of a request or a step that was denied. Public, and light: it imports no SDK.

`breakloop.openai` and `breakloop.anthropic` raise subclasses that are also that SDK's `RateLimitError`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from breakloop.errors import BreakloopError
from breakloop.model.verdict import Decision

__all__ = ["DeniedError", "LoopDetectedError", "error_for"]


class DeniedError(BreakloopError):
    """A denial. `reason` is from the closed list in the docs, `retry_after` seconds (None: waiting does not help)."""

    def __init__(self, decision: Decision, text: str = "") -> None:
        # Not `super()`: where an SDK's error stands behind us in the order of bases, it has been initialised by name.
        Exception.__init__(self, text or f"{decision.message} ({decision.error})")
        self.decision = decision
        self.message: str = decision.message
        self.reason = decision.reason
        self.retry_after = decision.retry_after

    def __reduce__(self) -> tuple[Any, ...]:
        """Errors travel between processes; the request that is behind the decision, and an SDK's response, do not."""
        kind = LoopDetectedError if isinstance(self, LoopDetectedError) else DeniedError
        return kind, (replace(self.decision, call=None, verdict=None), str(self))


class LoopDetectedError(DeniedError):
    """An agent repeats itself, and is to stop or do something else. Sending the same again does not help."""

    def __init__(self, decision: Decision, text: str = "") -> None:
        DeniedError.__init__(self, decision, text)
        self.hit_count = decision.hit_count
        self.cooldown_seconds = decision.cooldown_seconds
        self.fingerprint = decision.fingerprint
        self.kind = decision.kind
        self.evidence = decision.evidence


def error_for(decision: Decision) -> DeniedError:
    """Return the error that stands for a denial."""
    return LoopDetectedError(decision) if decision.is_loop else DeniedError(decision)
