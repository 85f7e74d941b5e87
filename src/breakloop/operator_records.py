"""Operator state as it is kept and as it is used: holds, kill switches and overrides to records and back. A record may
come from another version, or out of another's hands: what cannot be understood is left alone."""

from __future__ import annotations

from typing import Any, NamedTuple

from breakloop.errors import OrderError
from breakloop.policy.kill_switch import KillSwitch
from breakloop.policy.orders import OVERRIDES, checked_switch
from breakloop.quarantine import Hold, Key
from breakloop.state.keys import part
from breakloop.state.operator import Record

_TEXTS = ("binds", "project", "caller", "agent", "why", "run", "by")


class Switch(NamedTuple):
    """A kill switch that was set at run time."""

    id: str
    scope_key: str
    scope_value: str
    route: str
    reason: str
    expires_at: float  # infinite where only a person lifts it
    by: str
    since: float

    def compiled(self, index: int) -> KillSwitch:
        """Return it as the engine uses it."""
        return KillSwitch(index, self.scope_key, self.scope_value, self.route, self.reason, self.expires_at, self.id)


class Override(NamedTuple):
    """An override that was set at run time."""

    name: str
    reason: str
    expires_at: float
    by: str
    since: float


def hold_key(hold: Hold) -> str:
    """Return the key of a hold's record."""
    return ":".join(map(part, hold.key))


def hold_value(hold: Hold) -> dict[str, Any]:
    """Return what a hold's record says."""
    texts = {name: getattr(hold, name) for name in _TEXTS}
    return texts | {"since": hold.since, "clears": list(hold.clears), "of": list(hold.key)}


def hold_of(record: Record) -> Hold | None:
    """Return the hold that a record speaks of."""
    value = record.value
    texts, clears, since = [value.get(name) for name in _TEXTS], value.get("clears"), value.get("since")
    if not all(isinstance(text, str) for text in texts) or not isinstance(since, int | float):
        return None
    if not isinstance(clears, list) or not all(isinstance(key, str) for key in clears):
        return None
    binds, project, caller, agent, why, run, by = map(str, texts)
    return Hold(binds, project, caller, agent, float(since), record.expires_at, why, run, tuple(clears), by)


def held_key(record: Record) -> Key | None:
    """Return what a hold's record binds, or bound."""
    match record.value.get("of"):
        case [str(binds), str(project), str(caller), str(last)]:
            return binds, project, caller, last
    return None


def switch_of(record: Record) -> Switch | None:
    """Return the kill switch that a record speaks of."""
    value = record.value
    given = {name: value.get(name) for name in ("scope_key", "scope_value", "route", "reason")}
    try:
        checked = checked_switch(given, record.expires_at)
    except OrderError:
        return None
    return Switch(record.key, **checked, expires_at=record.expires_at, by=_by(record), since=record.changed_at)


def override_of(record: Record) -> Override | None:
    """Return the override that a record speaks of."""
    if record.key not in OVERRIDES:
        return None
    reason = str(record.value.get("reason", ""))
    return Override(record.key, reason, record.expires_at, _by(record), record.changed_at)


def _by(record: Record) -> str:
    return str(record.value.get("by", ""))
