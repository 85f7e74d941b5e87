"""Allow lists of a loop detector (SPEC LD-6): what is never judged, or only until a time (a snooze)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from breakloop.model.call import Call

Entries = Mapping[str, float]  # value -> when it expires, as a time; infinity for never


def route_matches(route: str, path: str) -> bool:
    """Tell whether `path` is `route`, or begins with it where it ends in `*`."""
    if route.endswith("*"):
        return path.startswith(route[:-1])
    return path == route


@dataclass(frozen=True, slots=True)
class AllowList:
    """Whose repeats are fine. `tools` allows a call only if every tool its tail names is listed."""

    routes: Entries
    agents: Entries
    callers: Entries
    tools: Entries
    fingerprints: Entries

    @property
    def says_anything(self) -> bool:
        """Tell whether there is any entry, so that an empty list costs nothing per request."""
        return bool(self.routes or self.agents or self.callers or self.tools or self.fingerprints)

    def covers(self, call: Call, fingerprint: str, who: Identity, now: float) -> bool:
        """Tell whether this call is not to be judged now."""
        if self.fingerprints.get(fingerprint, 0.0) > now:
            return True
        if self.agents and self.agents.get(who.agent(call), 0.0) > now:
            return True
        if self.callers and self.callers.get(who.caller(call), 0.0) > now:
            return True
        if self.tools:
            names = who.tools(call)
            if names and all(self.tools.get(name, 0.0) > now for name in names):
                return True
        return any(expires > now and route_matches(route, call.path) for route, expires in self.routes.items())


@dataclass(frozen=True, slots=True)
class Identity:
    """How to read who sent a call; the readers come from `policy.descriptors`."""

    caller: Callable[[Call], str]
    agent: Callable[[Call], str]
    tools: Callable[[Call], tuple[str, ...]]
