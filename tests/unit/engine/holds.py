"""A quarantine and what happens to it, for tests."""

from __future__ import annotations

import math
from collections.abc import Sequence

from breakloop.engine.pauses import KEPT_S, Question
from breakloop.engine.quarantine import AGENT, RUN, Hold, Quarantine
from breakloop.model.events import Event
from breakloop.store.memory import MemoryStore

NOW = 1000.0
DUE = NOW + 1800
THE_RUN = "caller|s-1"


class Here:
    """A quarantine, its store and what it told."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.events: list[Event] = []
        self.quarantine = Quarantine(self.store.drop, self.events.append)

    def kill(self, agent: str, *, at: float = NOW, until: float = math.inf, **more: object) -> None:
        self.quarantine.hold(Hold(AGENT, "p", "caller", agent, at, until, "it loops", **more))  # type: ignore[arg-type]

    def find(self, agent: str, *, caller: str = "caller", at: float = NOW, run: str = "") -> Hold | None:
        return self.quarantine.find("p", caller, agent, lambda: run, at)


class Kept:
    """What a register heard, in order."""

    def __init__(self, here: Here) -> None:
        self.heard: list[str] = []
        self._here = here
        here.quarantine.register = self

    def used(self, hold: Hold) -> None:
        self.heard.append(f"used {hold.agent}")

    def held(self, hold: Hold) -> None:
        told = [(event.name, event.data["agent"], event.at) for event in self._here.events]
        assert ("agent.killed", hold.agent, hold.since) not in told
        self.heard.append(f"{hold.binds} {hold.agent or hold.caller}")

    def ended(self, holds: Sequence[Hold], by: str) -> None:
        self.heard += [f"end of {hold.agent} by {by}" for hold in holds]


def paused(number: str = "q-1") -> Hold:
    """A run about which a person is asked."""
    question = Question(number, DUE, "deny", 30.0)
    return Hold(RUN, "p", "caller", "a", NOW, DUE + KEPT_S, "it loops", THE_RUN, ("k",), question=question)
