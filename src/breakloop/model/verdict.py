"""`Verdict`: what the engine says about one call. A value, never an exception; doors render it, nobody changes it."""

from __future__ import annotations

from dataclasses import dataclass

from breakloop.model.reason import ALLOWED


@dataclass(frozen=True, slots=True)
class Loop:
    """What a loop detector saw, as the client is told (SPEC A-3)."""

    kind: str
    fingerprint: str
    hit_count: int
    window_s: int
    cooldown_s: int  # how long this fingerprint stays blocked from now on, rounded up
    action: str
    fresh: bool  # this request made the detection (and not one during its cooldown)
    message: str
    evidence: str


@dataclass(slots=True)
class Limit:
    """The state of one limit after the request, for the `RateLimit` fields."""

    name: str
    quota: int
    window_s: int
    remaining: int
    reset_s: int


@dataclass(frozen=True, slots=True)
class Shadowed:
    """A would-be verdict of a policy in shadow mode: recorded, never seen by the client."""

    policy: str
    rule: str
    reason: str
    action: str  # "deny", "throttle" or "warn"


class Verdict:
    """One decision. `reason` is from the closed list of `model.reason`."""

    __slots__ = (
        "allowed",
        "degraded",
        "delay_ms",
        "limit",
        "loop",
        "message",
        "never",
        "note",
        "policy",
        "reason",
        "retry_after_s",
        "retry_jitter",
        "rule",
        "shadow",
        "status",
        "warning",
    )

    def __init__(
        self,
        *,
        allowed: bool = True,
        reason: str = ALLOWED,
        status: int = 200,
        policy: str = "",
        rule: str = "",
        message: str = "",
        limit: Limit | None = None,
    ) -> None:
        self.allowed = allowed
        self.reason = reason
        self.status = status
        self.policy = policy
        self.rule = rule
        self.message = message
        self.limit = limit
        self.retry_after_s: int | None = None  # before jitter; None: waiting does not help
        self.retry_jitter = False
        self.never = False  # the same request can never pass
        self.delay_ms = 0
        self.loop: Loop | None = None
        self.warning = ""
        self.note = ""
        self.shadow: tuple[Shadowed, ...] = ()
        self.degraded = False
