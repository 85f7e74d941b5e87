"""A bundle as the engine uses it: immutable, in evaluation order, every descriptor resolved to a function.
`compile` makes it from the validated schema; nothing here reads YAML, time or the network. What a rule does is in
`rules`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from breakloop.detect.loop import LoopTerms
from breakloop.detect.watch import Watch
from breakloop.limits.run_budget import RunBudget
from breakloop.model.call import Call
from breakloop.policy.kill_switch import KillSwitch, KillSwitches
from breakloop.policy.presence import Presence
from breakloop.policy.routes import Routes, Selector
from breakloop.policy.rules import BreakerRule, Getter, Metering, Rule
from breakloop.policy.senders import Senders
from breakloop.state.ops import Op, Repeat


class Detector(Protocol):
    """A compiled loop detector: one that counts fingerprints, or one that remembers."""

    terms: LoopTerms

    def plan(self, call: Call, project: str, group: int, now: float) -> Repeat | Watch | None:
        """Return what it needs from the store, or what stands for that until a window is read."""
        ...


@dataclass(frozen=True, slots=True)
class Policy:
    """One policy, compiled."""

    id: str
    index: int
    selector: Selector
    shadow: bool
    loops: tuple[Detector, ...]
    decides_loops: bool  # it has a `loop_detection` of its own, even a disabled one
    rules: tuple[Rule, ...]
    fallback: Rule | None
    breaker: BreakerRule | None
    status: int
    denies_on_store_error: bool
    rejects_large_bodies: bool
    descriptors: tuple[tuple[str, Getter], ...]  # all it names, for debug headers and `explain`
    metered: bool  # some of its rules charge what an answer corrects
    steady: bool  # whom its rules count depends on nothing but the sender (`policy.senders`)


class RunCharges(Protocol):
    """The ceiling of what a run may cost (`policy.run_rule`)."""

    limiter: RunBudget
    name: str

    def plan(self, call: Call, group: int, meter: Metering) -> tuple[Watch | Op, ...]:
        """Return what stands for its charges until a window is read."""
        ...


@dataclass(frozen=True, slots=True)
class AgentTerms:
    """What holds for one agent beside the policies."""

    pattern: str  # as the bundle names it
    detectors: tuple[Detector, ...]
    presence: Presence
    rules: tuple[Rule, ...] = ()  # its rate limit and its daily budget
    run: RunCharges | None = None  # what each of its runs may cost

    @property
    def metered(self) -> bool:
        """Whether it charges what an answer corrects."""
        return self.run is not None or any(rule.limiter.needs for rule in self.rules)


class Agents:
    """Settings by agent: by its name, else by the longest pattern that fits."""

    __slots__ = ("_named", "_prefixes")

    def __init__(self, terms: Iterable[AgentTerms]) -> None:
        made = list(terms)
        self._named = {one.pattern: one for one in made if not one.pattern.endswith("*")}
        patterns = [one for one in made if one.pattern.endswith("*")]
        self._prefixes = sorted(patterns, key=lambda one: len(one.pattern), reverse=True)

    def __bool__(self) -> bool:
        return bool(self._named or self._prefixes)

    @property
    def metered(self) -> bool:
        """Whether any of them charges what an answer corrects."""
        return any(one.metered for one in (*self._named.values(), *self._prefixes))

    def find(self, agent: str) -> AgentTerms | None:
        """Return what is said of an agent, or None."""
        named = self._named.get(agent)
        if named is not None:
            return named
        return next((one for one in self._prefixes if agent.startswith(one.pattern[:-1])), None)


@dataclass(frozen=True, slots=True)
class CompiledBundle:
    """Everything one request is judged by. Swapped whole: a request sees one bundle."""

    version: int
    digest: str
    policies: tuple[Policy, ...]
    routes: Routes[Policy]
    senders: Senders
    kill_switches: KillSwitches
    shadow_until: float  # `global_shadow` is active before this time
    kill_override_until: float
    expires: float
    default_loops: tuple[Detector, ...]
    project_loops: dict[str, tuple[Detector, ...]]  # projects with a `loop_guard` of their own
    tail_messages: int  # last messages of a request that its detectors read
    agents: Agents
    agents_with: Callable[[Mapping[str, Mapping[str, Any]]], Agents]  # and with what was set for some at run time
    snoozed: Mapping[str, float] = field(default_factory=dict)  # fingerprints that may repeat, and until when

    def stops(self, agent: str, now: float) -> KillSwitch | None:
        """Return the kill switch that stops all requests of an agent, as far as its name tells."""
        return None if self.kill_override_until > now else self.kill_switches.named("agent:id", agent, now)
