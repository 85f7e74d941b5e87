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
    """A request or step was denied: by a limit, a budget, a kill switch, or as a `LoopDetectedError`."""

    def __init__(self, decision: Decision, text: str = "") -> None:
        # Not `super()`: a subclass has another SDK's error as a second base, and initialises that by name.
        Exception.__init__(self, text or f"{decision.message} ({decision.error})")
        self.decision = decision  # the whole decision
        self.message: str = decision.message  # why, for people and models
        self.reason = decision.reason  # one of a closed list, such as "rate_limited"
        self.stop_reason = (
            decision.stop_reason
        )  # what ended the run: "loop", "budget", "killed", "paused", "limit", or ""
        self.retry_after = decision.retry_after  # seconds; None if waiting does not help

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as one of the two classes here, without the request and without the response of an SDK."""
        kind = LoopDetectedError if isinstance(self, LoopDetectedError) else DeniedError
        return kind, (replace(self.decision, _handle=None), str(self))


class LoopDetectedError(DeniedError):
    """The agent repeats itself. Sending the same again does not help; it has to stop or do something else:

    ```python
    try:
        answer = search("refund policy")
    except LoopDetectedError as stop:
        answer = f"{stop.message} Use what you have, or ask the user."
        print(stop.kind, stop.evidence)  # repeat `search` returned the same 10 bytes 5 times in a row
    ```
    """

    def __init__(self, decision: Decision, text: str = "") -> None:
        DeniedError.__init__(self, decision, text)
        self.hit_count = decision.hit_count  # of a blocked step: requests since the block; repeats are in `evidence`
        self.cooldown_seconds = decision.cooldown_seconds  # how long the same stays blocked; grows while it is repeated
        self.fingerprint = decision.fingerprint  # a keyed digest of what is repeated
        self.kind = decision.kind  # kind of the loop, such as "repeat" or "cycle"
        self.evidence = decision.evidence  # what is repeated, in words


def error_for(decision: Decision) -> DeniedError:
    """Return the error for a denial."""
    return LoopDetectedError(decision) if decision.is_loop else DeniedError(decision)
