"""`Decision`: a verdict as programs that use the library see it, the same whether it was made in this process or by a
decision service. Public; the engine's own `Verdict` knows more, and stays inside."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from breakloop.model.reason import ALLOWED

LOOP: Final = "loop_detected"  # the reason of a loop's denial
LOOP_ERROR: Final = "recursive_loop_detected"  # and what stands as `error` in its body


@dataclass(frozen=True, slots=True)
class Decision:
    """What was decided about one request or step. Times are seconds."""

    allowed: bool = True
    reason: str = ALLOWED
    status: int = 200
    message: str = ""  # of a denial, for people and models
    retry_after: int | None = None  # None: waiting does not help, or nothing was denied
    delay_seconds: float = 0.0  # a throttle: wait so long, then go on
    warning: str = ""  # why it is allowed, and yet worth a word
    note: str = ""  # for the model: what it repeats, and what to do instead
    kind: str = ""  # of the loop that was seen
    hit_count: int = 0
    cooldown_seconds: int = 0
    fingerprint: str = ""
    evidence: str = ""
    policy: str = ""
    request_id: str = ""
    degraded: bool = False  # made without its state, or allowed because of a fault of ours
    # What the doors need again when the answer is there; nobody else's business.
    call: Any = field(default=None, repr=False, compare=False)
    verdict: Any = field(default=None, repr=False, compare=False)
    body: bytes = field(default=b"", repr=False, compare=False)
    fields: tuple[tuple[str, str], ...] = field(default=(), repr=False, compare=False)  # header fields of a denial

    @property
    def is_loop(self) -> bool:
        """Whether it is a denial because of a loop."""
        return not self.allowed and self.reason == LOOP

    @property
    def error(self) -> str:
        """What stands as `error` in the body of this denial."""
        return LOOP_ERROR if self.reason == LOOP else self.reason

    @property
    def notice(self) -> str:
        """One or two sentences for the model where a loop was seen, whatever followed from it; else ""."""
        if not self.allowed:
            return f"{self.message} ({self.error})"
        if self.note or self.warning != LOOP:
            return self.note
        what = self.evidence or f"the same {self.hit_count} times" if self.hit_count else "the same again"
        return f"You repeat yourself: {what}. Change course, or finish with what you have."
