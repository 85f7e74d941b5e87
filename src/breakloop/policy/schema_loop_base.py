"""What the bundle models of all loop detectors have in common: actions and ladders (SPEC LD-5), allow lists (LD-6),
cooldowns. The detectors' own blocks are in `schema_loop` and `schema_steps`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from breakloop.policy.schema_types import CountInt, Fault, Model, Route, Shorthand, Text, Timestamp, refuse
from breakloop.state.ops import COOLDOWN_GROWTH, COOLDOWN_MAX_S, COOLDOWN_S

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


class Cooldowns(Model):
    """How long a detected loop is blocked, and how that grows (SPEC LD-2)."""

    cooldown_seconds: CountInt = Field(default=COOLDOWN_S, description="How long a detected loop is blocked.")
    cooldown_growth: Annotated[float, Field(ge=1, le=100, allow_inf_nan=False)] = Field(
        default=COOLDOWN_GROWTH, description="Factor by which each further cooldown grows; 1 keeps it flat."
    )
    cooldown_max_seconds: CountInt = Field(default=COOLDOWN_MAX_S, description="The longest cooldown.")

    @model_validator(mode="after")
    def _cooldown(self) -> Cooldowns:
        if self.cooldown_max_seconds < self.cooldown_seconds:
            named = "cooldown_max_seconds" in self.model_fields_set
            bound = f"cooldown_seconds ({self.cooldown_seconds})"
            message = f"must be at least {bound}, got {self.cooldown_max_seconds}"
            other = f"must be at most cooldown_max_seconds ({self.cooldown_max_seconds}), got {self.cooldown_seconds}"
            at = ("cooldown_max_seconds",) if named else ("cooldown_seconds",)
            refuse([Fault(at, message if named else other, "" if named else "raise cooldown_max_seconds as well")])
        return self
