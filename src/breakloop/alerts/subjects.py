"""What an event is about, and which events end it: the one place that knows what belongs together. The order of
deliveries, the state of alert rules, and the keys that pagers fold by are made of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import sha256
from typing import Any, Final

from breakloop.model import events
from breakloop.model.events import Event

# What goes on until something says that it is over ...
FAMILIES: Final[Mapping[str, str]] = {
    events.LOOP_DETECTED: "loop",
    events.AGENT_KILLED: "kill",
    events.BREAKER_OPENED: "breaker",
    events.STORE_DEGRADED: "store",
    events.BUNDLE_REJECTED: "bundle",
    events.BUNDLE_EXPIRED: "bundle",
    events.WORKER_DIED: "worker",
    events.LIMIT_EXCEEDED: "limit",
    events.SHADOW_WOULD_REJECT: "shadow",
}
# ... and what says so. Everything else happens once.
ENDS: Final[Mapping[str, tuple[str, ...]]] = {
    events.LOOP_CLEARED: ("loop",),
    events.AGENT_RELEASED: ("kill", "loop"),
    events.BREAKER_CLOSED: ("breaker",),
    events.STORE_RECOVERED: ("store",),
    events.BUNDLE_LOADED: ("bundle",),
    events.WORKER_REPLACED: ("worker",),
}
# These are over too when nothing more is heard of them: nobody tells when an agent stops by itself.
FADING: Final = frozenset(("loop", "limit", "shadow"))
QUIET_S: Final = 600.0

# Of these there may be one a request; when there is no room they are dropped first.
FREQUENT: Final = frozenset(
    (
        events.LIMIT_EXCEEDED,
        events.SHADOW_WOULD_REJECT,
        events.DESCRIPTOR_MISSING,
        events.BODY_NOT_UNPACKED,
        events.MODEL_UNKNOWN,
        events.STORE_DEGRADED,
    )
)
# What makes two events of a family, or of a name, the same thing.
_PARTS: Final[Mapping[str, tuple[str, ...]]] = {
    "loop": ("caller", "agent", "shadow"),
    "kill": ("caller", "agent", "binds"),
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
    events.DESCRIPTOR_MISSING: ("policy", "rule", "descriptor"),
    events.UPSTREAM_FAILED: ("upstream", "cause"),
}
_EVERYWHERE: Final = frozenset(("store", "bundle", "worker"))  # of no project, whatever the event says
_AGENTS: Final = frozenset((events.LOOP_DETECTED, events.LOOP_CLEARED, events.AGENT_KILLED, events.AGENT_RELEASED))


def subject(event: Event) -> str:
    """Return the key of what an event is about: the same for the same thing, and of one length."""
    kind = FAMILIES.get(event.name, event.name)
    names = _PARTS.get(kind, ("agent",))
    return _key(kind, _project(kind, event), *(event.data.get(name) for name in names))


def order_key(event: Event) -> str:
    """Return the key under which deliveries keep their order: a loop and what is done about its agent share one."""
    data = event.data
    if event.name in _AGENTS:
        return _key("agent", event.project, data.get("agent") or data.get("caller"))
    family = FAMILIES.get(event.name) or next(iter(ENDS.get(event.name, ())), event.name)
    names = _PARTS.get(family, ())
    return _key(family, _project(family, event), *(data.get(name) for name in names))


def ends(event: Event, family: str, project: str, data: Mapping[str, Any]) -> bool:
    """Tell whether an event ends what is known under these data. Names that the event leaves empty match all."""
    if family not in ENDS.get(event.name, ()):
        return False
    if family in {"loop", "kill"}:
        same = event.name != events.LOOP_CLEARED or _same_loop(event, data)
        return same and same_agent(event, project, data)
    return all(event.data.get(name) == data.get(name) for name in _PARTS[family])


def same_agent(event: Event, project: str, data: Mapping[str, Any]) -> bool:
    """Tell whether an event is about the agent, or the caller, of these data."""
    said = [(name, event.data.get(name)) for name in ("agent", "caller") if event.data.get(name)]
    return bool(said) and project == event.project and all(value == data.get(name) for name, value in said)


def _same_loop(event: Event, data: Mapping[str, Any]) -> bool:
    """Tell whether it is this loop that is over, and not another one of the same agent."""
    said = [(name, event.data[name]) for name in ("kind", "policy", "shadow") if event.data.get(name)]
    return bool(event.data.get("shadow")) == bool(data.get("shadow")) and all(data.get(n) == value for n, value in said)


def _project(kind: str, event: Event) -> str:
    return "" if kind in _EVERYWHERE else event.project


def _key(kind: str, *parts: object) -> str:
    text = json.dumps([str(part) for part in parts])
    return f"{kind}-{sha256(text.encode()).hexdigest()[:24]}"
