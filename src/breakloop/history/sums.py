"""Adding up: what one batch says of every agent. Pure; `agents` and `curves` add it to what they have."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from breakloop.history.values import text
from breakloop.model.activity import Activity
from breakloop.model.events import LOOP_DETECTED, Event

Key = tuple[str, str]  # project, agent


@dataclass(slots=True)
class Sums:
    """Of one agent, or of one project."""

    requests: int = 0
    denied: int = 0
    failed: int = 0
    loops: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cost_microusd: int = 0
    saved_requests: int = 0
    saved_microusd: int = 0
    last_at: float = 0.0
    model: str = ""

    def add(self, other: Sums) -> None:
        """Add another's."""
        self.requests += other.requests
        self.denied += other.denied
        self.failed += other.failed
        self.loops += other.loops
        self.input_tokens += other.input_tokens
        self.output_tokens += other.output_tokens
        self.cost_microusd += other.cost_microusd
        self.saved_requests += other.saved_requests
        self.saved_microusd += other.saved_microusd


@dataclass(slots=True)
class Batch:
    """All of it."""

    agents: dict[Key, Sums] = field(default_factory=dict)
    callers: dict[tuple[str, str, str], float] = field(default_factory=dict)  # project, agent, caller: last seen

    def of(self, project: str, agent: str) -> Sums:
        """Return an agent's, new if need be."""
        key = text(project), text(agent)
        known = self.agents.get(key)
        if known is None:
            known = self.agents[key] = Sums()
        return known

    def projects(self) -> dict[str, Sums]:
        """Return the same by project."""
        found: dict[str, Sums] = {}
        for (project, _), sums in self.agents.items():
            found.setdefault(project, Sums()).add(sums)
        return found


def summed(events: Iterable[Event], activity: Activity, now: float) -> Batch:
    """Add up a batch. A loop in shadow is not one that anybody felt."""
    batch = Batch()
    for (project, caller, agent), use in activity.agents.items():
        sums = batch.of(project, agent)
        sums.requests += use.requests
        sums.denied += use.denied
        sums.failed += use.failed
        sums.input_tokens += use.input_tokens
        sums.output_tokens += use.output_tokens
        sums.cost_microusd += use.cost_microusd
        at = use.last_at or now
        if at >= sums.last_at:
            sums.last_at, sums.model = at, text(use.model) or sums.model
        batch.callers[text(project), text(agent), text(caller)] = at
    for (project, _, agent, _), loop in activity.loops.items():
        sums = batch.of(project, agent)
        sums.saved_requests += loop.stopped
        sums.saved_microusd += loop.stopped_microusd
        sums.last_at = sums.last_at or now
    for event in events:
        if event.name == LOOP_DETECTED and not event.data.get("shadow"):
            sums = batch.of(event.project, text(event.data.get("agent")))
            sums.loops += 1
            sums.last_at = max(sums.last_at, event.at)
    return batch
