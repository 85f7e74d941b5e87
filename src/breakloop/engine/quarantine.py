"""Who is held (SPEC G-1): agents that were killed for looping or by an operator, and runs at their ceiling. Nothing
passes that is held, until its time is over or a person releases it, which also clears what was remembered against it.
What makes a detector kill is `judge`'s matter; keeping holds over a restart and sharing them, that of `operator`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from breakloop.engine.fold import denial
from breakloop.errors import StateError
from breakloop.model.events import AGENT_KILLED, AGENT_RELEASED, STORE_DEGRADED, Event, Publish
from breakloop.model.verdict import Verdict

AGENT, CALLER, NAME, RUN = "agent", "caller", "name", "run"  # what a hold binds
CALLER_AFTER: Final = 3  # so many agents of one caller, within
CALLER_WITHIN_S: Final = 600.0
HOLDS_MAX: Final = 100_000
BLOCKED_MAX: Final = 10_000  # senders whose loops are remembered as blocked,
BLOCKED_KEYS_MAX: Final = 256  # with so many keys each
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
    by: str = ""  # the person who ordered it

    @property
    def key(self) -> Key:
        """What tells it from others."""
        return self.binds, self.project, self.caller, self.run or self.agent


class HoldStore(Protocol):
    """Keeps holds longer than this process lives, and shares them."""

    def held(self, hold: Hold) -> None:
        """Somebody is held from now on; kept when this returns."""
        ...

    def ended(self, holds: Sequence[Hold], by: str) -> None:
        """These are held no longer, before their time; `by` is empty where no person said so."""
        ...


class Quarantine:
    """The holds of this process. A release clears the state that was counted against the sender."""

    __slots__ = ("_blocked", "_drop_keys", "_foreign", "_holds", "_publish", "_recent", "register")

    def __init__(self, drop: Callable[[Sequence[str]], None], publish: Publish) -> None:
        self._drop_keys = drop
        self.register: HoldStore | None = None
        self._publish = publish
        self._holds: dict[Key, Hold] = {}
        self._foreign: set[Key] = set()  # another instance made them, and tells when their time is over
        self._recent: dict[tuple[str, str], list[tuple[float, str]]] = {}  # agents killed, by project and caller
        # By project, caller and agent: what is counted in loops that were denied here, and until when each blocks.
        self._blocked: dict[tuple[str, str, str], dict[str, float]] = {}

    def drop_with(self, drop: Callable[[Sequence[str]], None]) -> None:
        """Clear what was counted against a sender in another way: also in a shared store."""
        self._drop_keys = drop

    def __bool__(self) -> bool:
        """Whether anything is held."""
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

    def hold(self, hold: Hold) -> None:
        """Hold an agent; after three of one caller's within ten minutes, the caller."""
        self._put(hold)
        if hold.binds != AGENT:
            return
        recent = self._count(hold)
        if len(recent) >= CALLER_AFTER:
            within = f"within {CALLER_WITHIN_S / 60:g} minutes"
            why = f"{len(recent)} of its agents were stopped {within}; the last: {hold.why}"
            self._put(Hold(CALLER, hold.project, hold.caller, "", hold.since, hold.until, why))

    def adopt(self, hold: Hold, *, foreign: bool = False) -> None:
        """Hold what was held before a restart, or by another instance: it was told of and is kept already."""
        self._set(hold)
        if foreign:
            self._foreign.add(hold.key)
        if hold.binds == AGENT:
            self._count(hold)

    def blocked(self, who: tuple[str, str, str], keys: Mapping[str, float]) -> None:
        """Remember what blocks a sender (project, caller, agent) without holding it: keys, and until when each does."""
        known = self._blocked.pop(who, None) or {}
        for key, until in keys.items():
            known.pop(key, None)
            known[key] = until
        while len(known) > BLOCKED_KEYS_MAX:
            del known[next(iter(known))]
        self._blocked[who] = known
        if len(self._blocked) > BLOCKED_MAX:
            del self._blocked[next(iter(self._blocked))]

    def unblock(
        self, project: str, *, agent: str = "", caller: str = "", now: float, by: str = "", seen: int = 0
    ) -> int:
        """Forget the loops of an agent (of one caller or of all) or of a caller, here and, where a person says so, on
        all instances; return how many were blocked: `seen` is how many others know of."""
        loops = max(seen, self._unblock(project, agent, caller, now))
        if by:
            why = "released: its loops are forgotten"
            binds = (AGENT if caller else NAME) if agent else CALLER
            order = Hold(binds, project, caller, agent, now, math.inf, why, by=by)
            if self.register is not None:
                self.register.ended([order], by)
            if loops:
                self._tell(AGENT_RELEASED, order, now, why, by)
        return loops

    def _unblock(self, project: str, agent: str, caller: str, now: float) -> int:
        found = [who for who in self._blocked if who[0] == project and agent in {"", who[2]} and caller in {"", who[1]}]
        keys = {key: until for who in found for key, until in self._blocked.pop(who).items()}
        if keys:
            self._drop(tuple(keys), project, now)
        return sum(until > now for until in keys.values())

    def forget(self, key: Key, now: float) -> None:
        """End what another instance has ended, and told of."""
        binds, project, caller, last = key
        if binds != RUN:
            self._unblock(project, last, caller, now)
        hold = self._holds.pop(key, None)
        if hold is not None:
            self._foreign.discard(key)
            self._recent.pop((hold.project, hold.caller), None)
            self._clear(hold, now)

    def _count(self, hold: Hold) -> list[tuple[float, str]]:
        """Return which agents of its caller were stopped lately, this one included."""
        who = (hold.project, hold.caller)
        recent = [one for one in self._recent.get(who, ()) if one[0] > hold.since - CALLER_WITHIN_S]
        recent = [one for one in recent if one[1] != hold.agent] + [(hold.since, hold.agent)]
        self._recent[who] = recent
        if len(self._recent) > HOLDS_MAX:
            del self._recent[next(iter(self._recent))]
        return recent

    def _put(self, hold: Hold) -> None:
        known = self._holds.get(hold.key)
        if known is not None and known.until >= hold.until and hold.binds != NAME:  # a person's last word counts
            return
        self._set(hold)
        if self.register is not None:
            self.register.held(hold)
        self._tell(AGENT_KILLED, hold, hold.since, hold.why, hold.by)

    def _set(self, hold: Hold) -> None:
        if len(self._holds) >= HOLDS_MAX and hold.key not in self._holds:
            self._make_room(hold.since)
        self._holds[hold.key] = hold
        self._foreign.discard(hold.key)

    def release(
        self, project: str, *, agent: str = "", caller: str = "", run: str = "", now: float, by: str = ""
    ) -> list[Hold]:
        """End the holds on an agent (of one caller or of all), on a caller or on a run; return them."""
        ended = [
            hold
            for hold in self._holds.values()
            if hold.project == project
            and (not agent or hold.agent == agent)
            and (not caller or hold.caller == caller)
            and (not run or hold.run == run)
        ]
        if ended and self.register is not None:
            self.register.ended(ended, by)
        for hold in ended:
            self._recent.pop((hold.project, hold.caller), None)
            self._end(hold, now, "released", by)
        return ended

    def sweep(self, now: float) -> None:
        """End what is over though nobody asks for it any more."""
        for hold in [hold for hold in self._holds.values() if hold.until <= now]:
            self._end(hold, now, "its time is over")

    def holds(self, now: float) -> list[Hold]:
        """Return everything that is held."""
        return [hold for hold in self._holds.values() if hold.until > now]

    def _end(self, hold: Hold, now: float, how: str, by: str = "") -> None:
        del self._holds[hold.key]
        self._clear(hold, now)
        elsewhere = hold.key in self._foreign and not by
        self._foreign.discard(hold.key)
        if not elsewhere:
            self._tell(AGENT_RELEASED, hold, now, how, by)

    def _clear(self, hold: Hold, now: float) -> None:
        self._drop(hold.clears, hold.project, now)

    def _drop(self, keys: Sequence[str], project: str, now: float) -> None:
        try:
            self._drop_keys(keys)
        except StateError as error:  # what was remembered against it runs out by itself
            self._publish(Event(STORE_DEGRADED, now, {"error": str(error)}, project))

    def _make_room(self, now: float) -> None:
        """Against a flood of invented names: what is over goes, else the oldest that no person made."""
        over = [key for key, hold in self._holds.items() if hold.until <= now]
        oldest = next((key for key, hold in self._holds.items() if hold.binds != NAME), next(iter(self._holds)))
        if not over and self.register is not None:
            self.register.ended([self._holds[oldest]], "")
        for key in over or [oldest]:
            del self._holds[key]
            self._foreign.discard(key)

    def _tell(self, name: str, hold: Hold, now: float, why: str, by: str) -> None:
        data: dict[str, object] = {
            "binds": hold.binds,
            "agent": hold.agent,
            "caller": hold.caller,
            "reason": why,
            "expires_at": None if hold.until == math.inf else hold.until,
            "by": by,
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
