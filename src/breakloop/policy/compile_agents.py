"""The bundle's `agents` -> what the engine holds them to (SPEC B-1, G-1). A part of `compile`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from breakloop.detect.loop import LoopTerms
from breakloop.policy import schema
from breakloop.policy.compile_watchers import WatcherMaker
from breakloop.policy.compiled import AgentTerms, Detector

AGENTS: Final = "agents"  # what stands for a policy in verdicts and events
_STATUS: Final = 429


def agent_terms(agents: Mapping[str, schema.Agent], make: WatcherMaker) -> Iterator[AgentTerms]:
    """Yield what is said of each agent or pattern, as far as anything is."""
    for index, (pattern, agent) in enumerate(agents.items()):
        detectors = tuple(_detectors(agent, index, make))
        if detectors:
            yield AgentTerms(pattern, detectors)


def _detectors(agent: schema.Agent, index: int, make: WatcherMaker) -> Iterator[Detector]:
    if agent.max_steps_per_run is not None:
        yield make.ceiling(_terms("run", index, "reject"), agent.max_steps_per_run)
    if agent.kill_switch_enabled:
        weights = schema.Weights()
        window, threshold = agent.kill_switch_window_size, agent.kill_switch_threshold
        yield make.score(_terms("simhash", index, "kill"), ("warn", "kill", "kill"), window, threshold, weights)


def _terms(kind: str, index: int, action: str) -> LoopTerms:
    said = "kill_switch" if action == "kill" else "max_steps_per_run"
    return LoopTerms(kind, AGENTS, index, action, _STATUS, expects=frozenset(), allow=None, said=said, place="|")
