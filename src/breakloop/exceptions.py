"""The errors that the library raises for denials. Importing this module loads no SDK and no engine.

    from breakloop.exceptions import DeniedError, LoopDetectedError
    try: search("refund policy")
    except LoopDetectedError as stop: print(stop.kind, stop.evidence)

`breakloop.openai` and `breakloop.anthropic` raise subclasses that are also the `RateLimitError` of that SDK.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from breakloop.errors import BreakloopError
from breakloop.model.decision import Decision

__all__ = ["DeniedError", "LoopDetectedError"]


class DeniedError(BreakloopError):
    """A denial. `reason` is from a closed list (docs/reference/reasons.md); `retry_after` is in seconds, or None if
    waiting does not help."""

    def __init__(self, decision: Decision, text: str = "") -> None:
        # Not `super()`: a subclass has another SDK's error as a second base, and initialises that by name.
        Exception.__init__(self, text or f"{decision.message} ({decision.error})")
        self.decision = decision
        self.message: str = decision.message
        self.reason = decision.reason
        self.retry_after = decision.retry_after

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as one of the two classes here, without the request and without the response of an SDK."""
        kind = LoopDetectedError if isinstance(self, LoopDetectedError) else DeniedError
        return kind, (replace(self.decision, _handle=None), str(self))


class LoopDetectedError(DeniedError):
    """The agent repeats itself. Sending the same again does not help; it has to stop or do something else."""

    def __init__(self, decision: Decision, text: str = "") -> None:
        DeniedError.__init__(self, decision, text)
        self.hit_count = decision.hit_count
        self.cooldown_seconds = decision.cooldown_seconds
        self.fingerprint = decision.fingerprint
        self.kind = decision.kind
        self.evidence = decision.evidence


def error_for(decision: Decision) -> DeniedError:
    """Return the error for a denial."""
    return LoopDetectedError(decision) if decision.is_loop else DeniedError(decision)
