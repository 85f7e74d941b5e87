"""`Decision`, the public result in the Python library, whether the process or a decision service has decided; notes for
the model, which `marked` makes recognisable; and `ToolFailedError`, a tool's failure as the result of a step.

`breakloop hook` imports this module for every event, so it is apart from `Call` and the engine's `Verdict`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

ALLOWED: Final = "all_rules_passed"
LOOP: Final = "loop_detected"  # the reason of denials because of a loop
LOOP_ERROR: Final = "recursive_loop_detected"  # the value of `error` in their response body
PAUSED: Final = "run_paused"  # the reason of denials while a run waits for the answer of a person
# What ended a run, by the reason of the denial, or by the warning of a request that is landed. Programs branch on these
# words, so they are never renamed. The other reasons are faults of one request or of the installation, and end nothing.
STOP_REASONS: Final = {
    LOOP: "loop",
    "budget_exceeded": "budget",
    "agent_budget_exceeded": "budget",
    "run_limit_exceeded": "budget",
    "tree_budget_exceeded": "budget",
    "circuit_breaker_open": "budget",
    "kill_switch": "killed",
    "agent_quarantined": "killed",
    "agent_inactive": "killed",
    PAUSED: "paused",
    "token_bucket_exceeded": "limit",
    "prompt_tokens_exceeded": "limit",
    "max_tokens_per_request_exceeded": "limit",
    "tpm_exceeded": "limit",
    "tpd_exceeded": "limit",
    "run_rate_exceeded": "limit",
    "outside_hours": "limit",
    "budget_land": "budget",
    "run_land": "budget",
    "operator_land": "killed",
}


@dataclass(frozen=True, slots=True)
class Decision:
    """The decision on one request or step. Times are in seconds."""

    allowed: bool = True  # whether to send the request, or to go on
    reason: str = ALLOWED  # why it was denied, from a closed list
    status: int = 200  # the HTTP status that a client of the gateway would get
    message: str = ""  # explains a denial, to people and models
    retry_after: int | None = None  # None if retrying does not help, or nothing was denied
    delay_seconds: float = 0.0  # of a throttle: wait this long, then continue
    warning: str = ""  # the reason of a warning, if the request was allowed with one
    note: str = ""  # for the model: what it repeats, and what to do instead
    landed: bool = False  # send it with tools switched off: the model is to finish, as the note says
    kind: str = ""  # kind of the detected loop
    hit_count: int = 0  # repetitions so far
    cooldown_seconds: int = 0  # how long the same stays blocked
    fingerprint: str = ""  # keyed digest of what is repeated
    evidence: str = ""  # what is repeated, in words
    policy: str = ""  # id of the policy that decided
    request_id: str = ""  # the id in log lines and events
    degraded: bool = False  # made without stored state, or allowed because of an internal error
    tree_usd_left: float | None = None  # of `max_usd_per_tree`, for all agents of the tree; None without such a limit
    tree_tokens_left: int | None = None  # of `max_tokens_per_tree`
    _handle: object = field(default=None, repr=False, compare=False)  # used by the library to settle the call

    @property
    def is_loop(self) -> bool:
        """Whether the request was denied because of a loop."""
        return not self.allowed and self.reason == LOOP

    @property
    def stop_reason(self) -> str:
        """What ended the run, or ends it if the request is landed: `loop`, `budget`, `killed`, `paused` or `limit`;
        "" if the request was just allowed, or failed."""
        why = self.reason if not self.allowed else self.warning if self.landed else ""
        return STOP_REASONS.get(why, "")

    @property
    def error(self) -> str:
        """The value of `error` in the response body of this denial."""
        return LOOP_ERROR if self.reason == LOOP else self.reason

    @property
    def notice(self) -> str:
        """The message of a denial or a note about a detected loop, for the model; "" if there is neither."""
        if not self.allowed:
            return f"{self.message} ({self.error})"
        if self.note or self.warning != LOOP:
            return self.note
        what = self.evidence or f"the same {self.hit_count} times" if self.hit_count else "the same again"
        return f"You repeat yourself: {what}. Change course, or finish with what you have."


MARK: Final = "[breakloop]"
END: Final = "[/breakloop]"
_NOTE_MAX: Final = 1000
MARKED_NOTE_MAX: Final = 1100  # of a note with its markers; a longer text between markers is not a note of ours


def marked(text: str) -> str:
    """Return a note for the model between markers, which identify it in later requests; "" for an empty text. A text
    that is too long, or contains a marker itself, would not be identified, so it is cut and its markers are removed.
    """
    note = text[:_NOTE_MAX].replace(MARK, " ").replace(END, " ")  # a space, so that no new marker arises
    return f"{MARK} {note} {END}" if text else ""


class ToolFailedError(Exception):
    """The output of a failed tool, as the result of a step: an exception distinguishes it from output. Never raised."""
