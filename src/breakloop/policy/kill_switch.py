"""Kill switches (SPEC K-2): looked at before routing. Indexed by descriptor, so a thousand cost what one costs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from breakloop.detect.allow import route_matches
from breakloop.model.call import Call

RETRY_AFTER_S = 3600


@dataclass(frozen=True, slots=True)
class KillSwitch:
    """One switch: who (`scope_key` equals `scope_value`), where (`route`), until when."""

    index: int
    scope_key: str
    scope_value: str
    route: str = ""
    reason: str = ""
    expires: float = math.inf
    id: str = ""  # of one that was set at run time

    @property
    def name(self) -> str:
        """What a denial calls it."""
        return f"kill_switch/{self.id}" if self.id else f"kill_switches[{self.index}]"

    def retry_after_s(self, now: float) -> int:
        """Return an hour, or less if the switch expires sooner."""
        return max(1, math.ceil(min(RETRY_AFTER_S, self.expires - now)))


class KillSwitches:
    """All switches of a bundle, and those that were set at run time."""

    __slots__ = ("_by_key", "_getter", "_switches", "keys")

    def __init__(self, switches: Iterable[KillSwitch], getter: Callable[[str], Callable[[Call], str | None]]) -> None:
        self._switches = switches = tuple(switches)
        self._getter = getter
        grouped: dict[str, dict[str, list[KillSwitch]]] = {}
        for switch in switches:
            grouped.setdefault(switch.scope_key, {}).setdefault(switch.scope_value, []).append(switch)
        self._by_key = tuple((getter(key), values) for key, values in grouped.items())
        self.keys = frozenset(grouped)  # the descriptors that they look at

    def with_more(self, switches: Iterable[KillSwitch]) -> KillSwitches:
        """Return these with others after them."""
        after = len(self._switches)
        more = [replace(switch, index=after + number) for number, switch in enumerate(switches)]
        return KillSwitches((*self._switches, *more), self._getter)

    def named(self, scope_key: str, scope_value: str, now: float) -> KillSwitch | None:
        """Return the first live switch of this very scope that holds for every route, or None. For people."""
        scope = (scope_key, scope_value, "")
        found = (one for one in self._switches if (one.scope_key, one.scope_value, one.route) == scope)
        return next((one for one in found if one.expires > now), None)

    def find(self, call: Call, now: float) -> KillSwitch | None:
        """Return the first live switch that matches, or None."""
        first: KillSwitch | None = None
        for get, values in self._by_key:
            value = get(call)
            if value is None:
                continue
            for switch in values.get(value, ()):
                if first is not None and switch.index > first.index:
                    break
                if switch.expires > now and (not switch.route or route_matches(switch.route, call.path)):
                    first = switch
                    break
        return first
