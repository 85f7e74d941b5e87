"""A bundle as the engine uses it: immutable, in evaluation order, every descriptor resolved to a function.
`compile` makes it from the validated schema; nothing here reads YAML, time or the network. What a rule does is in
`rules`.

Whether an agent may work at all, and at this hour (SPEC B-1): `active`, `allowed_hours` in its time zone.

Whether judging a request needs its body (SPEC D-1): one that nobody looks at can pass in pieces, however large.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple, Protocol
from zoneinfo import ZoneInfo

from breakloop.detect.counting import DetectorConfig
from breakloop.detect.stateful import DetectorSlot
from breakloop.dialects.registry import of_path
from breakloop.limits.budget import RunBudget
from breakloop.model.call import Call
from breakloop.policy.matching import CompiledKillSwitch, CompiledSelector, KillSwitches, Routes
from breakloop.policy.rules import BreakerRule, CompiledRule, Getter, MeterPort
from breakloop.policy.senders import CallerProfiles
from breakloop.store.ops import CountFingerprint, Op

_MINUTE_S: Final = 60
_DAY: Final = 24 * 60


class NotNow(NamedTuple):
    """Why an agent may not work now."""

    reason: str
    message: str
    wait_s: int | None  # None: waiting does not help


class ActiveHours:
    """When one agent, or all that a pattern names, may work."""

    __slots__ = ("_active", "_hours", "_zone")

    def __init__(self, *, active: bool = True, hours: tuple[int, int] | None = None, zone: str = "UTC") -> None:
        self._active = active
        self._hours = hours  # minutes of the day; the end is the smaller one when it goes over midnight
        self._zone = ZoneInfo(zone)

    def absent(self, now: float) -> NotNow | None:
        """Return why it may not work now, or None."""
        if not self._active:
            return NotNow("agent_inactive", "This agent is switched off in the bundle.", None)
        if self._hours is None:
            return None
        local = datetime.fromtimestamp(now, tz=UTC).astimezone(self._zone)
        minute = local.hour * 60 + local.minute
        start, end = self._hours
        inside = start <= minute < end if start < end else minute >= start or minute < end
        if inside:
            return None
        wait_s = ((start - minute) % _DAY) * _MINUTE_S - local.second
        span = f"{start // 60:02}:{start % 60:02} to {end // 60:02}:{end % 60:02} ({self._zone.key})"
        return NotNow("outside_hours", f"This agent may work from {span}.", max(1, wait_s))


class CompiledDetector(Protocol):
    """A compiled loop detector: one that counts fingerprints, or one that remembers."""

    config: DetectorConfig

    def plan(self, call: Call, project: str, group: int, now: float) -> CountFingerprint | DetectorSlot | None:
        """Return what it needs from the store, or what stands for that until a window is read."""
        ...


@dataclass(frozen=True, slots=True)
class CompiledPolicy:
    """One policy, compiled."""

    id: str
    index: int
    selector: CompiledSelector
    shadow: bool
    loops: tuple[CompiledDetector, ...]
    decides_loops: bool  # it has a `loop_detection` of its own, even a disabled one
    rules: tuple[CompiledRule, ...]
    fallback: CompiledRule | None
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

    def plan(self, call: Call, group: int, meter: MeterPort) -> tuple[DetectorSlot | Op, ...]:
        """Return what stands for its charges until a window is read."""
        ...


@dataclass(frozen=True, slots=True)
class AgentTerms:
    """What holds for one agent beside the policies."""

    pattern: str  # as the bundle names it
    detectors: tuple[CompiledDetector, ...]
    presence: ActiveHours
    rules: tuple[CompiledRule, ...] = ()  # its rate limit and its daily budget
    run: RunCharges | None = None  # what each of its runs may cost

    @property
    def metered(self) -> bool:
        """Whether it charges what an answer corrects."""
        return self.run is not None or any(rule.limiter.needs for rule in self.rules)


class CompiledAgents:
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
    policies: tuple[CompiledPolicy, ...]
    routes: Routes[CompiledPolicy]
    senders: CallerProfiles
    kill_switches: KillSwitches
    shadow_until: float  # `global_shadow` is active before this time
    kill_override_until: float
    expires: float
    default_loops: tuple[CompiledDetector, ...]
    project_loops: dict[str, tuple[CompiledDetector, ...]]  # projects with a `loop_guard` of their own
    tail_messages: int  # last messages of a request that its detectors read
    agents: CompiledAgents
    agents_with: Callable[
        [Mapping[str, Mapping[str, Any]]], CompiledAgents
    ]  # and with what was set for some at run time
    snoozed: Mapping[str, float] = field(default_factory=dict)  # fingerprints that may repeat, and until when

    def stops(self, agent: str, now: float) -> CompiledKillSwitch | None:
        """Return the kill switch that stops all requests of an agent, as far as its name tells."""
        return None if self.kill_override_until > now else self.kill_switches.named("agent:id", agent, now)


_NO_TEXT: Final = (b"multipart/", b"audio/", b"image/", b"video/", b"application/octet-stream", b"application/zip")
BODY_DESCRIPTORS: Final = frozenset(("agent:session", "llm:model", "llm:provider", "tool:name"))


def needs_body(bundle: CompiledBundle, host: str, method: str, path: str, content_type: bytes) -> bool:
    """Tell whether anything in the bundle would look into the body of such a request."""
    loops_decided, says_tokens = False, bool(of_path(path))  # what limits of tokens and money read is found by the path
    if says_tokens and bundle.agents.metered:
        return True
    for policy in bundle.routes.match(host, method, path):
        if (
            policy.loops
            or policy.rejects_large_bodies
            or (says_tokens and (policy.metered or policy.breaker is not None))
            or any(name in BODY_DESCRIPTORS for name, _ in policy.descriptors)
        ):
            return True
        loops_decided = loops_decided or (policy.decides_loops and not policy.shadow)
    if not BODY_DESCRIPTORS.isdisjoint(bundle.kill_switches.keys):
        return True
    # The protection of LLM calls finds them by their path, or in JSON, whatever the type says. Only what is clearly no
    # text, and goes nowhere where LLMs answer, is none.
    has_loops = bool(bundle.default_loops or bundle.project_loops)
    return has_loops and not loops_decided and (says_tokens or not content_type.lower().startswith(_NO_TEXT))


def rejects_large(bundle: CompiledBundle | None, call: Call) -> bool:
    """Tell whether a policy for this call does not want bodies to pass that are too large to be judged (SPEC Y-2)."""
    if bundle is None:
        return False
    return any(policy.rejects_large_bodies for policy in bundle.routes.match(call.host, call.method, call.path))
