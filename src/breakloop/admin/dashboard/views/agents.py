"""Agents as the dashboard shows them: what each does now, who holds it, and the form of its settings."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from breakloop.errors import OrderError
from breakloop.model.records import Agent
from breakloop.policy.kill_switch import KillSwitch
from breakloop.quarantine import RUN, Hold

RUNNING, HELD, STOPPED, INACTIVE, OFF = "running", "held", "kill switch", "inactive", "off"
STATES: Final = (RUNNING, HELD, STOPPED, INACTIVE, OFF)
ACTIVE_S: Final = 900.0  # whoever was seen within this is running


@dataclass(frozen=True, slots=True)
class Row:
    """An agent in a list."""

    agent: Agent
    state: str
    holds: tuple[Hold, ...]


@dataclass(frozen=True, slots=True)
class Field:
    """One field of the settings form."""

    name: str
    label: str
    hint: str
    kind: str  # "number", "text" or "switch"
    value: str = ""
    step: str = "any"


FIELDS: Final = (
    Field("active", "May send requests", "Off: every request is denied.", "switch"),
    Field("budget_usd_per_day", "Dollars a day", "Empty: no budget of its own.", "number"),
    Field("allowed_hours", "Hours", "Like 08:00-18:00; empty: always.", "text"),
    Field("timezone", "Time zone", "Of hours and budget, like Europe/Paris.", "text"),
    Field("requests_per_minute", "Requests a minute", "Empty: no limit of its own.", "number", step="1"),
    Field("max_steps_per_run", "Steps a run", "At the ceiling a person has to release it.", "number", step="1"),
    Field("max_usd_per_run", "Dollars a run", "At the ceiling a person has to release it.", "number"),
    Field("kill_switch_enabled", "Hold it when its requests are alike", "Scores prompts, answers and calls.", "switch"),
)


def holds_of(agent: Agent, holds: Iterable[Hold]) -> tuple[Hold, ...]:
    """Return what holds this agent, itself or one of its runs."""
    return tuple(one for one in holds if (one.project, one.agent) == (agent.project, agent.agent))


def unseen(project: str, name: str) -> Agent:
    """Return an agent that was never seen, for one that is held all the same."""
    return Agent(project, name, 0, 0.0, 0.0, 0, 0, 0, 0, 0, 0, 0, 0, "")


def state_of(agent: Agent, holds: Sequence[Hold], stops: KillSwitch | None, now: float) -> str:
    """Return what it does: held, stopped by a kill switch, switched off, running, or not seen for a while."""
    if any(one.binds != RUN for one in holds):
        return HELD
    if stops is not None:
        return STOPPED
    if agent.settings.get("active") is False:
        return OFF
    return RUNNING if now - agent.last_at < ACTIVE_S else INACTIVE


def rows(
    agents: Iterable[Agent],
    holds: Sequence[Hold],
    stops: Callable[[str], KillSwitch | None],
    now: float,
    state: str = "",
) -> list[Row]:
    """Return agents with their states, only those in `state` where it is given."""
    found = []
    for agent in agents:
        held = holds_of(agent, holds)
        found.append(Row(agent, state_of(agent, held, stops(agent.agent), now), held))
    return [row for row in found if state in {"", row.state}]


def dearest(agents: Iterable[Agent], most: int = 5) -> list[tuple[Agent, float]]:
    """Return the agents that spent most today, each with its share of the highest."""
    spent = sorted((one for one in agents if one.today_microusd), key=lambda one: -one.today_microusd)[:most]
    return [(one, one.today_microusd / spent[0].today_microusd) for one in spent]


def ends(hold: Hold) -> float | None:
    """Return when a hold ends by itself; None where only a person ends it."""
    return None if math.isinf(hold.until) else hold.until


def fields(settings: Mapping[str, Any]) -> list[Field]:
    """Return the form, filled with what is set at run time."""
    limit = settings.get("rate_limit")
    given = dict(settings)
    if isinstance(limit, Mapping):
        given["requests_per_minute"] = limit.get("requests_per_minute", "")
    given.setdefault("active", True)
    return [replace(one, value=_shown(one, given.get(one.name))) for one in FIELDS]


def _shown(field: Field, value: object) -> str:
    if value is None or value is False or (field.kind == "number" and not isinstance(value, int | float)):
        return ""
    return "on" if value is True else str(value)


def changes(form: Mapping[str, str], kept: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a form changes; None takes a setting away, back to the bundle's. Raises `OrderError`."""
    made: dict[str, Any] = {}
    for one in FIELDS:
        text = form.get(one.name, "").strip()
        if one.kind == "switch":
            default = one.name == "active"
            made[one.name] = None if bool(text) is default else not default
        elif one.kind == "number":
            made[one.name] = _number(one, text) if text else None
        else:
            made[one.name] = text or None
    rate, before = made.pop("requests_per_minute"), kept.get("rate_limit")
    limit = dict(before) if isinstance(before, Mapping) else {}
    made["rate_limit"] = None if rate is None else limit | {"requests_per_minute": rate}
    return made


def _number(field: Field, text: str) -> int | float:
    try:
        return int(text) if field.step == "1" else float(text)
    except ValueError:
        raise OrderError([f"{field.name}: must be a {'whole ' if field.step == '1' else ''}number"]) from None
