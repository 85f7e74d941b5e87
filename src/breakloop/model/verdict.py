"""The engine's result for one call, and the reasons for denials.

Entry points turn a `Verdict` into a response and do not modify it. `REASONS` lists every reason for a denial. A reason
that was released is never renamed, and `docs/reference/reasons.md` is generated from the table.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from breakloop.model.decision import ALLOWED, LOOP, PAUSED


class ReasonInfo(NamedTuple):
    """Documentation of one reason, for the person who receives it."""

    status: int
    source: str
    meaning: str
    remedy: str
    retry_helps: bool


REASONS: Final[dict[str, ReasonInfo]] = {
    "no_bundle_loaded": ReasonInfo(
        503,
        "bundle",
        "A policy source is configured, but it has not provided a valid bundle yet, and there is no last good copy.",
        "Run `breakloop validate` on the bundle; `/readyz` turns 200 as soon as a valid one is loaded.",
        retry_helps=True,
    ),
    "kill_switch": ReasonInfo(
        429,
        "kill switch",
        "An operator's kill switch matches this request.",
        "Ask the operator; the switch ends when it expires or is lifted. Do not retry.",
        retry_helps=False,
    ),
    LOOP: ReasonInfo(
        429,
        "loop detection",
        "The same request was sent too often without progress (`error` in the body is `recursive_loop_detected`).",
        "Do not resend it: change the request, use what you have, or stop. See `message` and `evidence` in the body.",
        retry_helps=False,
    ),
    "token_bucket_exceeded": ReasonInfo(
        429,
        "token_bucket",
        "More requests (or cost) than the bucket holds and refills.",
        "Wait for `Retry-After` seconds. Without `Retry-After` the cost is larger than the bucket: it can never pass.",
        retry_helps=True,
    ),
    "missing_descriptor": ReasonInfo(
        429,
        "rules",
        "A rule with `on_missing: reject` needs a descriptor (a header, claim or query field) that the request lacks.",
        "Send the field that the message names.",
        retry_helps=False,
    ),
    "body_too_complex": ReasonInfo(
        413,
        "`on_large_body: reject`",
        "The body would take too long to decode: it holds too many JSON values, or too long a text.",
        "Send less, for example a batch in several requests.",
        retry_helps=False,
    ),
    "store_unavailable": ReasonInfo(
        429,
        "state",
        "The state store failed and the policy sets `on_store_error: deny`.",
        "Wait and retry; operators: see `breakloop doctor`.",
        retry_helps=True,
    ),
    "circuit_breaker_open": ReasonInfo(
        429,
        "circuit breaker",
        "Spending per minute passed the threshold of the policy's circuit breaker.",
        "Wait for `Retry-After` seconds, or let an operator reset the breaker.",
        retry_helps=True,
    ),
    "budget_exceeded": ReasonInfo(
        429,
        "cost_based",
        "The budget of this period is used up.",
        "Wait for the next period (`Retry-After`), or raise the budget.",
        retry_helps=True,
    ),
    "prompt_tokens_exceeded": ReasonInfo(
        429,
        "token_bucket_llm",
        "The prompt is longer than `max_prompt_tokens`.",
        "Send a shorter prompt; the same one can never pass.",
        retry_helps=False,
    ),
    "max_tokens_per_request_exceeded": ReasonInfo(
        429,
        "token_bucket_llm",
        "Prompt and completion together are larger than `max_tokens_per_request`.",
        "Lower `max_tokens` or the prompt; the same request can never pass.",
        retry_helps=False,
    ),
    "tpm_exceeded": ReasonInfo(
        429, "token_bucket_llm", "The tokens of this minute are used up.", "Wait for `Retry-After` seconds.", True
    ),
    "tpd_exceeded": ReasonInfo(
        429, "token_bucket_llm", "The tokens of this day are used up.", "Wait until the day ends (UTC).", True
    ),
    "agent_quarantined": ReasonInfo(
        429,
        "agents",
        "The agent was stopped for looping, or by an operator.",
        "A person has to release it, or its quarantine has to expire. Do not retry.",
        retry_helps=False,
    ),
    "agent_inactive": ReasonInfo(
        429, "agents", "The agent is switched off in the bundle.", "Set `active: true` for it.", False
    ),
    "outside_hours": ReasonInfo(
        429, "agents", "The agent may not run at this hour.", "Wait until its allowed hours begin.", True
    ),
    "agent_budget_exceeded": ReasonInfo(
        429, "agents", "The agent's daily budget is used up.", "Wait for the next day, or raise the budget.", True
    ),
    "run_rate_exceeded": ReasonInfo(
        429,
        "agents",
        "The agent has opened as many runs this hour as `max_runs_per_hour` allows.",
        "Wait for the next hour, or raise the limit. Runs that are under way go on.",
        retry_helps=True,
    ),
    "run_limit_exceeded": ReasonInfo(
        429,
        "agents",
        "The run reached its ceiling of steps or money.",
        "An operator has to reset it; start a new run if the work is done.",
        retry_helps=False,
    ),
    "tree_budget_exceeded": ReasonInfo(
        429,
        "agents",
        "The agents that started each other have used up their common budget of money or tokens.",
        "Finish with what you have. An operator can reset the budget of the tree, or raise it.",
        retry_helps=False,
    ),
    PAUSED: ReasonInfo(
        429,
        "`pause`",
        "The run is held, and a person was asked whether it may go on.",
        "Wait for `Retry-After` seconds and send the same again. Without `Retry-After`, nobody answered in time: a "
        "person has to release the run.",
        retry_helps=True,
    ),
    "unknown_model": ReasonInfo(
        429,
        "prices",
        "The model has no price, and `unknown_model` is `deny`.",
        "Add a price for it in the settings.",
        retry_helps=False,
    ),
    "proxy_loop": ReasonInfo(
        508,
        "proxy",
        "The request has already passed through this proxy.",
        "An upstream URL points back at breakloop: correct it.",
        retry_helps=False,
    ),
}

ALLOWED_NO_POLICY: Final = "no_matching_policy"


@dataclass(frozen=True, slots=True)
class LoopFinding:
    """A detected loop, as reported to the client."""

    kind: str
    fingerprint: str
    hit_count: int
    window_s: int
    cooldown_s: int  # how much longer this fingerprint stays blocked, rounded up
    action: str
    fresh: bool  # detected by this request, not by an earlier one whose cooldown is active
    message: str
    evidence: str


@dataclass(slots=True)
class LimitState:
    """The state of one limit after the request, for the `RateLimit` header fields."""

    name: str
    quota: int
    window_s: int
    remaining: int
    reset_s: int


@dataclass(slots=True)
class TreeBudgetState:
    """What is left of the budget of a tree of agents after the request. None: that unit has no limit."""

    microusd_left: int | None = None
    tokens_left: int | None = None
    note: str = ""  # what is left, in words, if the model is to be told


class ShadowFinding(NamedTuple):
    """What a policy in shadow mode would have decided. It is recorded, but not sent to the client."""

    policy: str
    rule: str
    reason: str
    action: str  # "deny", "land", "throttle" or "warn"


# The answers that people are offered for a paused run, with the words on their buttons. Any other amount or time is
# accepted as well (`engine.pauses`).
ANSWERS: Final = {
    "once": "Go on once",
    "5usd": "Go on for $5",
    "1h": "Go on for 1 hour",
    "land": "Finish now",
    "kill": "Stop the run",
}
UNANSWERED: Final = {"deny": "it stays held", "land": "it has to finish", "continue": "it goes on"}  # by `then`


@dataclass(frozen=True, slots=True)
class PauseState:
    """The pause that denied a call."""

    run: tuple[str, str, str, str]  # key of the hold
    hold_open_s: float  # how long the gateway may let the call wait for the answer


class Verdict:
    """The engine's result for one call. `reason` is `ALLOWED`, `ALLOWED_NO_POLICY` or a key of `REASONS`."""

    __slots__ = (
        "allowed",
        "degraded",
        "delay_ms",
        "landed",
        "limit",
        "loop",
        "message",
        "never",
        "note",
        "pause",
        "policy",
        "reason",
        "retry_after_s",
        "retry_jitter",
        "rule",
        "shadow",
        "status",
        "tree",
        "warning",
    )

    pause: PauseState  # only set if the reason is `PAUSED`

    def __init__(  # not keyword-only: such defaults take twice as long, and most verdicts have nothing else
        self,
        allowed: bool = True,  # noqa: FBT001, FBT002
        reason: str = ALLOWED,
        status: int = 200,
        policy: str = "",
        rule: str = "",
        message: str = "",
        limit: LimitState | None = None,
    ) -> None:
        self.allowed = allowed
        self.reason = reason
        self.status = status
        self.policy = policy
        self.rule = rule
        self.message = message
        self.limit = limit
        self.retry_after_s: int | None = None  # before jitter; None: retrying does not help
        self.retry_jitter = False
        self.never = False  # the same request will always be denied
        self.delay_ms = 0
        self.loop: LoopFinding | None = None
        self.warning = ""
        self.note = ""
        self.landed = False  # passes without tools: the model is to finish, as the note says
        self.shadow: tuple[ShadowFinding, ...] = ()
        self.degraded = False
        self.tree: TreeBudgetState | None = None
