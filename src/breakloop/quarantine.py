"""Who is held (SPEC G-1): agents that were killed for looping or by an operator, and runs at their ceiling. Nothing
passes that is held, until its time is over or a person releases it, which also clears what was remembered against it.
What makes a detector kill is `judge`'s matter; keeping holds over a restart, and telling other instances, the store's.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from breakloop.errors import StateError
from breakloop.judge import denial
from breakloop.model.events import AGENT_KILLED, AGENT_RELEASED, STORE_DEGRADED, Event, Publish
from breakloop.model.verdict import Verdict
from breakloop.state.store import Store

AGENT, CALLER, NAME, RUN = "agent", "caller", "name", "run"  # what a hold binds
CALLER_AFTER: Final = 3  # so many agents of one caller, within
CALLER_WITHIN_S: Final = 600.0
HOLDS_MAX: Final = 100_000
Key = tuple[str, str, str, str]


@dataclass(frozen=True, slots=True)
class Hold:
    """One entry. `until` is infinite where only a person ends it."""

    binds: str
    project: str
    caller: str  # "" where an operator named the agent
    agent: str  # "" where the whole caller is held
    since: float
    until: float
    why: str
    run: str = ""  # the run that is at its ceiling
    clears: tuple[str, ...] = ()  # keys of what was remembered against it, which goes with it

    @property
    def key(self) -> Key:
        """What tells it from others."""
        return self.binds, self.project, self.caller, self.run or self.agent


class Quarantine:
    """The holds of one process."""

    __slots__ = ("_holds", "_publish", "_recent", "_store")

    def __init__(self, store: Store, publish: Publish) -> None:
        self._store = store
        self._publish = publish
        self._holds: dict[Key, Hold] = {}
        self._recent: dict[tuple[str, str], list[tuple[float, str]]] = {}  # agents killed, by project and caller

    def __bool__(self) -> bool:
        """Whether anything is held, so that nobody looks in vain."""
        return bool(self._holds)

    def __len__(self) -> int:
        return len(self._holds)

    def find(self, project: str, caller: str, agent: str, run: Callable[[], str], now: float) -> Hold | None:
        """Return what holds this sender: an operator's word first, then the agent's, the caller's, the run's."""
        keys = ((NAME, project, "", agent), (AGENT, project, caller, agent), (CALLER, project, caller, ""))
        found = next((hold for key in keys if (hold := self._live(key, now)) is not None), None)
        # Which run it is may have to be read from the body, so it is asked for last.
        return found or self._live((RUN, project, caller, run()), now)

    def _live(self, key: Key, now: float) -> Hold | None:
        hold = self._holds.get(key)
        if hold is None or hold.until > now:
            return hold
        self._end(hold, now, "its time is over")  # the count of its caller's agents goes on
        return None

    def kill(self, hold: Hold) -> None:
        """Hold an agent; after three of one caller's within ten minutes, the caller."""
        self._put(hold)
        if hold.binds != AGENT:
            return
        who = (hold.project, hold.caller)
        recent = [one for one in self._recent.get(who, ()) if one[0] > hold.since - CALLER_WITHIN_S]
        recent = [one for one in recent if one[1] != hold.agent] + [(hold.since, hold.agent)]
        self._recent[who] = recent
        if len(self._recent) > HOLDS_MAX:
            del self._recent[next(iter(self._recent))]
        if len(recent) >= CALLER_AFTER:
            within = f"within {CALLER_WITHIN_S / 60:g} minutes"
            why = f"{len(recent)} of its agents were stopped {within}; the last: {hold.why}"
            self._put(Hold(CALLER, hold.project, hold.caller, "", hold.since, hold.until, why))

    def _put(self, hold: Hold) -> None:
        known = self._holds.get(hold.key)
        if known is not None and known.until >= hold.until:
            return
        if len(self._holds) >= HOLDS_MAX:
            self._make_room(hold.since)
        self._holds[hold.key] = hold
        self._tell(AGENT_KILLED, hold, hold.since, hold.why)

    def release(self, project: str, *, agent: str = "", caller: str = "", run: str = "", now: float) -> list[Hold]:
        """End the holds on an agent (of one caller or of all), on a caller or on a run; return them."""
        ended = [
            hold
            for hold in self._holds.values()
            if hold.project == project
            and (not agent or hold.agent == agent)
            and (not caller or hold.caller == caller)
            and (not run or hold.run == run)
        ]
        for hold in ended:
            self._recent.pop((hold.project, hold.caller), None)
            self._end(hold, now, "released")
        return ended

    def holds(self, now: float) -> list[Hold]:
        """Return everything that is held."""
        return [hold for hold in self._holds.values() if hold.until > now]

    def _end(self, hold: Hold, now: float, how: str) -> None:
        del self._holds[hold.key]
        try:
            self._store.drop(hold.clears)
        except StateError as error:  # what was remembered against it runs out by itself
            self._publish(Event(STORE_DEGRADED, now, {"error": str(error)}, hold.project))
        self._tell(AGENT_RELEASED, hold, now, how)

    def _make_room(self, now: float) -> None:
        """Against a flood of invented names: what is over goes, else the oldest that no person made."""
        over = [key for key, hold in self._holds.items() if hold.until <= now]
        oldest = next((key for key, hold in self._holds.items() if hold.binds != NAME), next(iter(self._holds)))
        for key in over or [oldest]:
            del self._holds[key]

    def _tell(self, name: str, hold: Hold, now: float, why: str) -> None:
        data: dict[str, object] = {
            "binds": hold.binds,
            "agent": hold.agent,
            "caller": hold.caller,
            "reason": why,
            "expires_at": None if hold.until == math.inf else hold.until,
        }
        self._publish(Event(name, now, data, hold.project))


def held(hold: Hold, now: float) -> Verdict:
    """Return the denial of whoever is held."""
    end = "A person has to release it." if hold.until == math.inf else f"It ends in {math.ceil(hold.until - now)} s."
    if hold.binds == RUN:
        verdict = denial("run_limit_exceeded", 429, f"This run has reached its ceiling: {hold.why}. {end}")
    else:
        what = "This caller" if hold.binds == CALLER else f'Agent "{hold.agent}"'
        verdict = denial("agent_quarantined", 429, f"{what} is quarantined: {hold.why}. {end}")
    verdict.rule = f"quarantine/{hold.binds}"
    verdict.retry_after_s = None if hold.until == math.inf else math.ceil(hold.until - now)
    verdict.never = True
    return verdict
