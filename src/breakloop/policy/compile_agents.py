"""The bundle's `agents` -> what the engine holds them to (SPEC B-1, G-1). A part of `compile`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final
from zoneinfo import ZoneInfo

from breakloop.detect.loop import LoopTerms
from breakloop.limits.cost_budget import CostBudget
from breakloop.limits.limiter import Limiter
from breakloop.limits.periods import LocalDay
from breakloop.limits.run_budget import SETTING
from breakloop.limits.token_bucket import TokenBucket
from breakloop.limits.units import MICROUSD
from breakloop.policy import schema
from breakloop.policy.compile_watchers import WatcherMaker
from breakloop.policy.compiled import AgentTerms, Detector
from breakloop.policy.presence import Presence
from breakloop.policy.rules import AGENT, Getter, Rule
from breakloop.pricing.estimate import estimator

AGENTS: Final = "agents"  # what stands for a policy in verdicts and events
_STATUS: Final = 429


class AgentBudget(CostBudget):
    """The daily budget of an agent, in dollars."""

    __slots__ = ()

    reason = "agent_budget_exceeded"


def agent_terms(agents: Mapping[str, schema.Agent], make: WatcherMaker, agent_of: Getter) -> Iterator[AgentTerms]:
    """Yield what is said of each agent or pattern."""
    for index, (pattern, agent) in enumerate(agents.items()):
        presence = Presence(active=agent.active, hours=agent.hours, zone=agent.timezone)
        rules = tuple(_rules(agent, pattern, agent_of))
        run = None
        if agent.max_usd_per_run is not None:
            run = make.run_money(pattern, agent.max_usd_per_run, _terms("run", index, SETTING))
        yield AgentTerms(pattern, tuple(_detectors(agent, index, make)), presence, rules, run)


def _rules(agent: schema.Agent, pattern: str, agent_of: Getter) -> Iterator[Rule]:
    """Each agent that a pattern names has a limit and a budget of its own."""
    limit = agent.rate_limit
    if limit is not None:
        burst = limit.burst if limit.burst is not None else limit.requests_per_minute
        rate = min(limit.requests_per_minute / 60, burst)
        yield _rule(f"{pattern}/rate_limit", TokenBucket(rate, burst), agent_of)
    if agent.budget_usd_per_day is not None:
        day = LocalDay(ZoneInfo(agent.timezone))
        budget = AgentBudget(agent.budget_usd_per_day, day, [(100, "reject", 0)], unit=MICROUSD)
        rule = _rule(f"{pattern}/budget_usd_per_day", budget, agent_of)
        rule.estimator = estimator("simple_word")
        yield rule


def _rule(name: str, limiter: Limiter, agent_of: Getter) -> Rule:
    keys = ((AGENT, agent_of),)
    return Rule(name, AGENTS, match=(), keys=keys, limiter=limiter, rejects_missing=False, status=_STATUS)


def _detectors(agent: schema.Agent, index: int, make: WatcherMaker) -> Iterator[Detector]:
    if agent.max_steps_per_run is not None:
        yield make.ceiling(_terms("run", index, "max_steps_per_run"), agent.max_steps_per_run)
    if agent.kill_switch_enabled:
        weights = schema.Weights()
        window, threshold = agent.kill_switch_window_size, agent.kill_switch_threshold
        yield make.score(
            _terms("simhash", index, "kill_switch", "kill"), ("warn", "kill", "kill"), window, threshold, weights
        )


def _terms(kind: str, index: int, said: str, action: str = "reject") -> LoopTerms:
    return LoopTerms(kind, AGENTS, index, action, _STATUS, expects=frozenset(), allow=None, said=said, place="|")
