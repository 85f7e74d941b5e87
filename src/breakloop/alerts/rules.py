"""Alert rules: which events a rule matches, and which events belong to the same subject.

The order of deliveries, the state of a rule and the deduplication keys of pagers are derived from the subject.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from hashlib import sha256
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, Field

from breakloop.model import events
from breakloop.model.events import Event
from breakloop.policy.diagnostics import did_you_mean
from breakloop.policy.schema.types import Model, SchemaFault, Shorthand, Text, fault, refuse

# Conditions that last until another event ends them ...
FAMILIES: Final[Mapping[str, str]] = {
    events.LOOP_DETECTED: "loop",
    events.AGENT_KILLED: "kill",
    events.RUN_PAUSED: "pause",
    events.BREAKER_OPENED: "breaker",
    events.STORE_DEGRADED: "store",
    events.BUNDLE_REJECTED: "bundle",
    events.BUNDLE_EXPIRED: "bundle",
    events.WORKER_DIED: "worker",
    events.LIMIT_EXCEEDED: "limit",
    events.SHADOW_WOULD_REJECT: "shadow",
}
# ... and the events that end them. All other events are momentary.
ENDS: Final[Mapping[str, tuple[str, ...]]] = {
    events.LOOP_CLEARED: ("loop",),
    events.AGENT_RELEASED: ("kill", "loop", "pause"),
    events.RUN_ANSWERED: ("pause",),
    events.BREAKER_CLOSED: ("breaker",),
    events.STORE_RECOVERED: ("store",),
    events.BUNDLE_LOADED: ("bundle",),
    events.WORKER_REPLACED: ("worker",),
}
# These also end when no further event arrives: there is no event for an agent that stops by itself.
FADING: Final = frozenset(("loop", "limit", "shadow"))
QUIET_S: Final = 600.0

# Events that can occur with every request; they are throttled, and dropped first when the outbox is full.
FREQUENT: Final = frozenset(
    (
        events.LIMIT_EXCEEDED,
        events.SHADOW_WOULD_REJECT,
        events.DESCRIPTOR_MISSING,
        events.BODY_NOT_UNPACKED,
        events.MODEL_UNKNOWN,
        events.API_UNKNOWN,
        events.STORE_DEGRADED,
    )
)
# The data fields that identify the subject of a family, or of an event name.
_SUBJECT_FIELDS: Final[Mapping[str, tuple[str, ...]]] = {
    "loop": ("caller", "agent", "shadow"),
    "kill": ("caller", "agent", "binds"),
    "pause": ("id",),
    "breaker": ("policy", "key", "shadow"),
    "worker": ("process",),
    "store": (),
    "bundle": (),
    "limit": ("policy", "rule", "reason"),
    "shadow": ("policy", "rule", "reason"),
    events.BUDGET_THRESHOLD: ("key", "threshold_percent", "shadow"),
    events.KILL_SWITCH_CHANGED: ("id",),
    events.OVERRIDE_CHANGED: ("name",),
    events.MODEL_UNKNOWN: ("model",),
    events.API_UNKNOWN: ("upstream", "path"),
    events.DESCRIPTOR_MISSING: ("policy", "rule", "descriptor"),
    events.UPSTREAM_FAILED: ("upstream", "cause"),
}
_GLOBAL: Final = frozenset(("store", "bundle", "worker"))  # they belong to no project, whatever the event contains
_AGENT_EVENTS: Final = frozenset(
    (events.LOOP_DETECTED, events.LOOP_CLEARED, events.AGENT_KILLED, events.AGENT_RELEASED)
)


def subject(event: Event) -> str:
    """Return a key of fixed length that is the same for all events about the same subject."""
    kind = FAMILIES.get(event.name, event.name)
    names = _SUBJECT_FIELDS.get(kind, ("agent",))
    return _key(kind, _project(kind, event), *(event.data.get(name) for name in names))


def order_key(event: Event) -> str:
    """Return the key of deliveries that must arrive in order: a loop and the actions on its agent share one."""
    data = event.data
    if event.name in _AGENT_EVENTS:
        return _key("agent", event.project, data.get("agent") or data.get("caller"))
    family = FAMILIES.get(event.name) or next(iter(ENDS.get(event.name, ())), event.name)
    names = _SUBJECT_FIELDS.get(family, ())
    return _key(family, _project(family, event), *(data.get(name) for name in names))


def ends(event: Event, family: str, project: str, data: Mapping[str, Any]) -> bool:
    """Return whether an event ends the condition with these data. Fields that are empty in the event match all."""
    if family not in ENDS.get(event.name, ()):
        return False
    if family in {"loop", "kill"} or (family == "pause" and event.name == events.AGENT_RELEASED):
        same = event.name != events.LOOP_CLEARED or _same_loop(event, data)
        return same and same_agent(event, project, data)
    return all(event.data.get(name) == data.get(name) for name in _SUBJECT_FIELDS[family])


def same_agent(event: Event, project: str, data: Mapping[str, Any]) -> bool:
    """Return whether an event is about the agent or the caller of these data."""
    given = [(name, event.data.get(name)) for name in ("agent", "caller") if event.data.get(name)]
    return bool(given) and project == event.project and all(value == data.get(name) for name, value in given)


def _same_loop(event: Event, data: Mapping[str, Any]) -> bool:
    """Return whether the event ends this loop, not another one of the same agent."""
    given = [(name, event.data[name]) for name in ("kind", "policy", "shadow") if event.data.get(name)]
    return bool(event.data.get("shadow")) == bool(data.get("shadow")) and all(
        data.get(n) == value for n, value in given
    )


def _project(kind: str, event: Event) -> str:
    return "" if kind in _GLOBAL else event.project


def _key(kind: str, *parts: object) -> str:
    text = json.dumps([str(part) for part in parts])
    return f"{kind}-{sha256(text.encode()).hexdigest()[:24]}"


TYPES: Final[Mapping[str, tuple[str, ...]]] = {
    "kill_switch": (events.AGENT_KILLED,),
    "loop": (events.LOOP_DETECTED,),
    "pause": (events.RUN_PAUSED,),
    "budget": (events.BUDGET_THRESHOLD,),
    "breaker": (events.BREAKER_OPENED,),
    "limit": (events.LIMIT_EXCEEDED,),
    "store": (events.STORE_DEGRADED,),
    "bundle": (events.BUNDLE_REJECTED, events.BUNDLE_EXPIRED),
    "shadow": (events.SHADOW_WOULD_REJECT,),
}
ANY: Final = "any"
_SEVERITY: Final = {"warn": 1, "steer": 2, "throttle": 3, "land": 4, "pause": 5, "reject": 6, "cut": 6, "kill": 7}


def _check_type(value: str) -> str:
    known = (*TYPES, ANY)
    if value not in known and not re.fullmatch(r"[a-z_]+\.[a-z_]+", value):
        hint = f"write one of {', '.join(known)}, or the name of an event such as loop.detected"
        raise fault("is not a type of alert" + did_you_mean(value, known), hint)
    return value


def _one_as_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


_Type = Annotated[str, AfterValidator(_check_type)]
_Span = Annotated[float, Field(ge=0, le=31 * 86_400)]


class AlertRule(Model):
    """Which events are sent to which targets, and how often."""

    name: Text = Field(description="Its name, in messages and on the dashboard.")
    type: Annotated[list[_Type], Field(min_length=1), Shorthand(_one_as_list)] = Field(
        description="What it is about: `kill_switch` (an agent is quarantined), `loop`, `pause` (a person is asked), "
        "`budget`, `breaker`, `limit`, `store`, `bundle`, `shadow`, `any`, or names of events; one or a list."
    )
    targets: Annotated[list[Text], Field(min_length=1)] = Field(description="Names of `alert_targets`.")
    agent: Text = Field(default="*", description="Only agents whose name matches; `*` stands for anything.")
    project: Text = Field(default="*", description="Only projects whose name matches.")
    min_action: Literal["", "warn", "steer", "throttle", "land", "pause", "reject", "kill"] = Field(
        default="", description="For loops: only if at least this action was taken."
    )
    cooldown_seconds: _Span = Field(
        default=300.0, description="After an alert, how long further alerts about the same subject are suppressed."
    )
    repeat_seconds: _Span = Field(
        default=0.0, description="How often to repeat an alert while its cause lasts; 0: never."
    )
    recovery: bool = Field(
        default=False, description="Also send a message when it is over. (PagerDuty always gets one.)"
    )
    shadow: bool = Field(default=False, description="Also alert on findings in shadow mode.")

    def matches(self, event: Event) -> bool:
        return (
            self._has_type(event.name)
            and self._fits(event)
            and fnmatchcase(str(event.data.get("agent") or ""), self.agent)
            and fnmatchcase(event.project, self.project)
        )

    def _has_type(self, name: str) -> bool:
        for kind in self.type:
            if name in TYPES.get(kind, (kind,)):
                return True
            if kind == ANY and name not in ENDS and (self.shadow or name != events.SHADOW_WOULD_REJECT):
                return True
        return False

    def _fits(self, event: Event) -> bool:
        data = event.data
        if data.get("shadow") is True and not self.shadow:
            return False
        if event.name == events.BREAKER_OPENED and data.get("alert") is False:
            return False  # alerts are switched off in the policy
        if event.name != events.LOOP_DETECTED or not self.min_action:
            return True
        return _SEVERITY.get(str(data.get("action")), 0) >= _SEVERITY[self.min_action]


def check_rules(rules: Sequence[AlertRule], targets: Mapping[str, Model]) -> None:
    """Reject rules with the same name, and rules whose targets do not exist."""
    names = [rule.name for rule in rules]
    faults = [
        SchemaFault(("alerts", at, "name"), f'"{name}" is used twice', "keep one")
        for at, name in enumerate(names)
        if name in names[:at]
    ]
    for at, rule in enumerate(rules):
        for number, target in enumerate(rule.targets):
            if target not in targets:
                known = f"known are {', '.join(sorted(targets))}" if targets else "there are none"
                faults.append(SchemaFault(("alerts", at, "targets", number), "is not a target in alert_targets", known))
    refuse(faults)
