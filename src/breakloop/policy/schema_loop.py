"""Bundle models of loop detection (SPEC LD-1 to LD-6): one block is one detector with its thresholds and what it does.
How a detector judges is `breakloop.detect`'s matter."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from breakloop.policy.schema_types import (
    LARGEST,
    CountFloat,
    CountInt,
    Fault,
    Model,
    PositiveFloat,
    PositiveInt,
    Route,
    Shorthand,
    Text,
    Timestamp,
    one_as_list,
    refuse,
)

Action = Literal["warn", "steer", "throttle", "reject", "kill"]
Severity = Literal["notice", "block", "stop"]
_STRENGTH: dict[str, int] = {"warn": 0, "steer": 1, "throttle": 2, "reject": 3, "kill": 4}


class Ladder(Model):
    """What is done by severity; a step that is left out does at least what the step before it does."""

    notice: Action = Field(default="warn", description="What a first sign does.")
    block: Action = Field(default="reject", description="What a recognised loop does.")
    stop: Action = Field(default="reject", description="What a loop that goes on in spite of that does.")

    @model_validator(mode="before")
    @classmethod
    def _left_out(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        filled, before = dict(data), "warn"
        for step, default in (("notice", "warn"), ("block", "reject"), ("stop", "reject")):
            said = filled.get(step, default)
            if step not in filled:
                said = filled[step] = max(default, before, key=_STRENGTH.__getitem__)
            before = said if isinstance(said, str) and said in _STRENGTH else before
        return filled

    @model_validator(mode="after")
    def _rises(self) -> Ladder:
        faults = [
            Fault((high,), f'"{getattr(self, high)}" is weaker than {low} ("{getattr(self, low)}")', "a ladder rises")
            for low, high in (("notice", "block"), ("block", "stop"))
            if _STRENGTH[getattr(self, high)] < _STRENGTH[getattr(self, low)]
        ]
        refuse(faults)
        return self


def _entry(value: Any) -> Any:
    return {"value": value} if isinstance(value, str) else value


class AllowEntry(Model):
    """One entry of an allow list, for ever or until a time."""

    value: Text = Field(description="What is allowed to repeat itself.")
    expires_at: Timestamp | None = Field(default=None, description="Until when the entry holds; without it, for ever.")


class AllowRoute(AllowEntry):
    """One allowed route, for ever or until a time."""

    value: Route = Field(description="A path, or the beginning of one with `*` at the end.")


Entry = Annotated[AllowEntry, Shorthand(_entry, {"type": "string"})]
RouteEntry = Annotated[AllowRoute, Shorthand(_entry, {"type": "string"})]


class Allow(Model):
    """What this detector leaves alone."""

    routes: list[RouteEntry] = Field(default_factory=list, description="Paths, exact or with `*` at the end.")
    agents: list[Entry] = Field(default_factory=list, description="Agents by id.")
    callers: list[Entry] = Field(default_factory=list, description="Callers as events show them.")
    tools: list[Entry] = Field(default_factory=list, description="Tools by name.")
    fingerprints: list[Entry] = Field(default_factory=list, description="Fingerprints as denials and events show them.")


class ExpectRepeats(Model):
    """Who may announce repeats with the `X-Breakloop-Expect-Repeats` header."""

    callers: Annotated[list[Text], Field(min_length=1)] = Field(description="Callers whose header is honoured.")


class LoopBase(Model):
    """What every loop detector has in common."""

    enabled: bool = Field(default=True, description="Whether the detector is on.")
    action: Action | None = Field(
        default=None,
        description="What a loop does: `warn`, `steer`, `throttle`, `reject` or `kill`; a mere notice only warns.",
    )
    ladder: Ladder | None = Field(default=None, description="What is done by severity, instead of one `action`.")
    quarantine_seconds: CountInt = Field(
        default=0, description="How long `kill` quarantines the agent; 0 = until a person releases it."
    )
    allow: Allow = Field(default_factory=Allow, description="What this detector leaves alone, for ever or for a while.")
    expect_repeats: ExpectRepeats | None = Field(default=None, description="Who may announce repeats beforehand.")

    @property
    def default_action(self) -> Action:
        """What is done when neither `action` nor `ladder` is given."""
        return "reject"

    def action_for(self, severity: Severity) -> Action:
        """Return what this block does at a severity; hits of exact, tail and simhash are `block`."""
        if self.ladder is not None:
            steps: dict[str, Action] = {"notice": self.ladder.notice, "block": self.ladder.block}
            return steps.get(severity, self.ladder.stop)
        return "warn" if severity == "notice" else self.action or self.default_action

    @model_validator(mode="after")
    def _one_answer(self) -> LoopBase:
        if self.action is not None and self.ladder is not None:
            refuse([Fault(("ladder",), "stands beside action", "keep one of them")])
        kills = "kill" in (self.action_for("notice"), self.action_for("block"), self.action_for("stop"))
        if self.quarantine_seconds and not kills:
            refuse([Fault(("quarantine_seconds",), "does nothing here", "only the action kill quarantines")])
        return self


class RepeatBase(LoopBase):
    """What the detectors that count identical requests have in common (SPEC LD-6)."""

    concurrent_free: CountInt = Field(
        default=16,
        description="How many identical requests join one that began less than a second ago and is not answered; "
        "they count once. Where answers are seen or reported.",
    )
    retry_free: CountInt = Field(
        default=10,
        description="How many requests a window do not count because the upstream answered 429, 5xx or not at all. "
        "Where answers are seen or reported.",
    )


class ExactLoop(RepeatBase):
    """`similarity: exact`: the same request, byte for byte (SPEC LD-1)."""

    similarity: Literal["exact"] = Field(default="exact", description="`exact`: the same request again.")
    enabled: bool = Field(description="Whether the detector is on.")
    window_seconds: PositiveInt = Field(default=60, description="Length of the window; required when enabled.")
    threshold_identical_requests: Annotated[int, Field(ge=2, le=LARGEST)] = Field(
        default=5, description="The how-manieth identical request trips, at least 2; required when enabled."
    )
    window: Literal["idle", "sliding"] = Field(
        default="idle",
        description="`idle`: the count lives for the window after the last hit; `sliding`: a true window.",
    )

    @model_validator(mode="after")
    def _required(self) -> ExactLoop:
        if self.enabled:
            needed = ("window_seconds", "threshold_identical_requests")
            missing = [name for name in needed if name not in self.model_fields_set]
            refuse([Fault((name,), "is required when enabled") for name in missing])
        return self


class TailLoop(RepeatBase):
    """`similarity: tail`: the same last messages of a conversation (SPEC LD-2)."""

    similarity: Literal["tail"] = Field(description="`tail`: the same last messages again.")
    tail_messages: Annotated[int, Field(ge=1, le=20)] = Field(
        default=3, description="How many last messages are compared."
    )
    max_hits: CountInt = Field(default=5, description="How many in the window pass; 0 switches the detector off.")
    window_seconds: PositiveInt = Field(default=60, description="Length of the sliding window.")
    cooldown_seconds: CountInt = Field(default=30, description="How long a detected fingerprint is blocked.")
    cooldown_growth: Annotated[float, Field(ge=1, le=100, allow_inf_nan=False)] = Field(
        default=2.0, description="Factor by which each further cooldown grows; 1 keeps it flat."
    )
    cooldown_max_seconds: CountInt = Field(default=900, description="The longest cooldown.")

    @model_validator(mode="after")
    def _cooldown(self) -> TailLoop:
        if self.cooldown_max_seconds < self.cooldown_seconds:
            named = "cooldown_max_seconds" in self.model_fields_set
            bound = f"cooldown_seconds ({self.cooldown_seconds})"
            message = f"must be at least {bound}, got {self.cooldown_max_seconds}"
            other = f"must be at most cooldown_max_seconds ({self.cooldown_max_seconds}), got {self.cooldown_seconds}"
            at = ("cooldown_max_seconds",) if named else ("cooldown_seconds",)
            refuse([Fault(at, message if named else other, "" if named else "raise cooldown_max_seconds as well")])
        return self


class Weights(Model):
    """What each kind of similarity adds to the score."""

    prompt: CountFloat = Field(default=1.0, description="For each similar prompt.")
    response: CountFloat = Field(default=2.0, description="For each similar response.")
    tool: CountFloat = Field(default=1.5, description="For each repeated tool call.")


def reachable_score(window_requests: int, weights: Weights) -> float:
    """Return the highest score a window can give: every earlier request alike in every way."""
    return (window_requests - 1) * (weights.prompt + weights.response + weights.tool)


class SimhashLoop(LoopBase):
    """`similarity: simhash`: similar prompts, responses and tool calls add up to a score (SPEC LD-3)."""

    similarity: Literal["simhash"] = Field(description="`simhash`: similar requests, scored.")
    window_requests: Annotated[int, Field(ge=2, le=1000)] = Field(
        default=20, description="How many last requests are compared."
    )
    threshold_score: PositiveFloat = Field(default=10.0, description="The score above which it trips.")
    weights: Weights = Field(default_factory=Weights, description="What each kind of similarity adds.")

    @property
    def default_action(self) -> Action:
        """What is done when neither `action` nor `ladder` is given."""
        return "kill"

    @model_validator(mode="after")
    def _reachable(self) -> SimhashLoop:
        highest = reachable_score(self.window_requests, self.weights)
        if highest <= self.threshold_score:
            message = f"{self.threshold_score:g} can never be exceeded: a window of {self.window_requests} requests"
            at = "threshold_score" if "threshold_score" in self.model_fields_set else "window_requests"
            refuse([Fault((at,), f"{message} scores at most {highest:g}", "lower threshold_score or widen the window")])
        return self


class StepsLoop(LoopBase):
    """`similarity: steps`: what the agent did and what came back, sparing progress (SPEC LD-4)."""

    similarity: Literal["steps"] = Field(description="`steps`: the same steps without progress.")
    sensitivity: Literal["relaxed", "normal", "strict"] = Field(
        default="normal", description="How early it speaks up: `relaxed`, `normal` or `strict`."
    )


AnyLoop = ExactLoop | TailLoop | SimhashLoop | StepsLoop


def _kind(value: Any) -> Any:
    if isinstance(value, dict):
        return value.get("similarity", "exact")
    return getattr(value, "similarity", "exact")  # what is no block at all is refused by the block itself


LoopBlock = Annotated[
    Annotated[ExactLoop, Tag("exact")]
    | Annotated[TailLoop, Tag("tail")]
    | Annotated[SimhashLoop, Tag("simhash")]
    | Annotated[StepsLoop, Tag("steps")],
    Discriminator(_kind),
]
LoopBlocks = Annotated[list[LoopBlock], Field(min_length=1), Shorthand(one_as_list)]
