"""Alert rules as data: which events a rule is about, and how often it tells. What has been told is
`router`'s business."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final

from breakloop.alerts.subjects import ENDS
from breakloop.model import events
from breakloop.model.events import Event

TYPES: Final[Mapping[str, tuple[str, ...]]] = {
    "kill_switch": (events.AGENT_KILLED,),
    "loop": (events.LOOP_DETECTED,),
    "budget": (events.BUDGET_THRESHOLD,),
    "breaker": (events.BREAKER_OPENED,),
    "limit": (events.LIMIT_EXCEEDED,),
    "store": (events.STORE_DEGRADED,),
    "bundle": (events.BUNDLE_REJECTED, events.BUNDLE_EXPIRED),
    "shadow": (events.SHADOW_WOULD_REJECT,),
}
ANY: Final = "any"
_WEIGHTS: Final = {"warn": 1, "steer": 2, "throttle": 3, "reject": 4, "cut": 4, "kill": 5}


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule. `types` are words of `TYPES`, `any`, or names of events."""

    name: str
    types: tuple[str, ...]
    targets: tuple[str, ...]
    agent: str = "*"
    project: str = "*"
    min_action: str = ""
    cooldown_s: float = 300.0
    repeat_s: float = 0.0  # 0: what goes on is told once
    recovery: bool = False
    shadow: bool = False

    def wants(self, event: Event) -> bool:
        """Tell whether the rule is about an event."""
        return (
            self._named(event.name)
            and self._fits(event)
            and fnmatchcase(str(event.data.get("agent") or ""), self.agent)
            and fnmatchcase(event.project, self.project)
        )

    def _named(self, name: str) -> bool:
        for one in self.types:
            if name in TYPES.get(one, (one,)):
                return True
            if one == ANY and name not in ENDS and (self.shadow or name != events.SHADOW_WOULD_REJECT):
                return True
        return False

    def _fits(self, event: Event) -> bool:
        data = event.data
        if data.get("shadow") is True and not self.shadow:
            return False
        if event.name == events.BREAKER_OPENED and data.get("alert") is False:
            return False  # the policy says that nobody is to be woken
        if event.name != events.LOOP_DETECTED or not self.min_action:
            return True
        return _WEIGHTS.get(str(data.get("action")), 0) >= _WEIGHTS[self.min_action]
