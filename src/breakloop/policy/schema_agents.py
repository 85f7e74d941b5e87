"""Bundle models of agents and projects (SPEC B-1, G-1): settings that hold beside the policies."""

from __future__ import annotations

import re
from typing import Annotated, Any
from zoneinfo import ZoneInfo

from pydantic import AfterValidator, Field, model_validator

from breakloop.policy.schema_loop import Weights, reachable_score
from breakloop.policy.schema_types import (
    CountInt,
    Fault,
    Model,
    PositiveFloat,
    PositiveInt,
    Shorthand,
    fault,
    refuse,
)

_HOURS = re.compile(r"([01]\d|2[0-3]):([0-5]\d)-([01]\d|2[0-3]):([0-5]\d)|([01]\d|2[0-3]):([0-5]\d)-24:00")
_HOURS_HINT = 'write "08:00-18:00", or [8, 18]; "22:00-06:00" goes over midnight'


def _hour_pair(value: Any) -> Any:
    """Turn `[8, 18]` into `08:00-18:00`."""
    if not isinstance(value, list):
        return value
    whole = len(value) == 2 and all(type(hour) is int and 0 <= hour <= 24 for hour in value)
    if not whole or value[0] == 24:
        raise fault("must be two hours from 0 to 24", _HOURS_HINT)
    return f"{value[0]:02}:00-{value[1]:02}:00"


def _hours(value: str) -> str:
    if not _HOURS.fullmatch(value):
        raise fault(f'"{value}" are no hours of a day', _HOURS_HINT)
    start, end = value.split("-")
    if start == end:
        hint = "leave allowed_hours out for the whole day, or set active: false for never"
        raise fault(f'"{value}" begins and ends at the same time', hint)
    return value


def _timezone(value: str) -> str:
    try:
        ZoneInfo(value)
    except (OSError, ValueError, KeyError):  # a directory, a path that is no name, not found
        raise fault(f'unknown time zone "{value}"', "write a name like Europe/Paris or UTC") from None
    return value


class RateLimit(Model):
    """A plain limit on an agent's requests."""

    requests_per_minute: PositiveInt = Field(description="Requests per minute.")
    burst: PositiveInt | None = Field(default=None, description="Requests at once; default `requests_per_minute`.")


class Agent(Model):
    """Settings of one agent, or of all agents that a pattern names."""

    active: bool = Field(default=True, description="Whether the agent may send anything.")
    budget_usd_per_day: PositiveFloat | None = Field(
        default=None, description="Dollars a day, counted in its time zone."
    )
    allowed_hours: (
        Annotated[
            str,
            AfterValidator(_hours),
            Shorthand(_hour_pair, {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 2}),
        ]
        | None
    ) = Field(default=None, description="When it may work: `08:00-18:00`, over midnight `22:00-06:00`, or `[8, 18]`.")
    timezone: Annotated[str, AfterValidator(_timezone)] = Field(
        default="UTC", description="Time zone of hours and budget."
    )
    rate_limit: RateLimit | None = Field(default=None, description="Limit on its requests.")
    kill_switch_enabled: bool = Field(default=False, description="Whether similar requests in a row quarantine it.")
    kill_switch_window_size: Annotated[int, Field(ge=2, le=1000)] = Field(
        default=20, description="How many last requests are compared."
    )
    kill_switch_threshold: PositiveFloat = Field(default=10.0, description="The score above which it is quarantined.")
    max_steps_per_run: PositiveInt | None = Field(
        default=None, description="Steps a run may have; only an operator resets it."
    )
    max_usd_per_run: PositiveFloat | None = Field(
        default=None, description="Dollars a run may cost; only an operator resets it."
    )

    @property
    def hours(self) -> tuple[int, int] | None:
        """Start and end in minutes of the day; the end is the smaller one when it goes over midnight."""
        if self.allowed_hours is None:
            return None
        start, end = ((int(t[:2]) * 60 + int(t[3:])) for t in self.allowed_hours.split("-"))
        return start, end

    @model_validator(mode="after")
    def _reachable(self) -> Agent:
        highest = reachable_score(self.kill_switch_window_size, Weights())
        if self.kill_switch_enabled and highest <= self.kill_switch_threshold:
            window = f"a window of {self.kill_switch_window_size} requests scores at most {highest:g}"
            message = f"{self.kill_switch_threshold:g} can never be exceeded: {window}"
            named = "kill_switch_threshold" in self.model_fields_set
            at = "kill_switch_threshold" if named else "kill_switch_window_size"
            refuse([Fault((at,), message, "lower the threshold or widen the window")])
        return self


class LoopGuard(Model):
    """A project's values for the built-in `tail` detector; what is left out stays as it is."""

    window_seconds: PositiveInt | None = Field(default=None, description="Length of the sliding window.")
    max_hits: CountInt | None = Field(default=None, description="How many in the window pass; 0 switches it off.")
    cooldown_seconds: CountInt | None = Field(default=None, description="How long a detected fingerprint is blocked.")


class Project(Model):
    """Settings of one project."""

    loop_guard: LoopGuard | None = Field(default=None, description="Values for the built-in loop detector.")
