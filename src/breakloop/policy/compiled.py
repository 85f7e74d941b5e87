"""A compiled bundle, as the engine uses it: immutable, in evaluation order, with every descriptor resolved to a
function.

`compile` creates it from the validated schema. Nothing in this module reads YAML, the clock or the network. It finds
the policies, kill switches and settings of agents that apply to a request, and decides whether evaluating a request
needs its body: a body that is not needed can be streamed through, however large it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final, NamedTuple, Protocol
from zoneinfo import ZoneInfo

from breakloop.detect.counting import DetectorConfig, route_matches
from breakloop.detect.stateful import DetectorSlot
from breakloop.dialects.registry import of_path
from breakloop.model.call import Call
from breakloop.policy.cache import MemoDict
from breakloop.policy.descriptors import CallerProfiles
from breakloop.policy.rules import BreakerRule, CompiledRule, Getter, RunRule
from breakloop.policy.tree_limits import TreeLimits
from breakloop.store.ops import CountFingerprint

_MINUTE_S: Final = 60
_DAY: Final = 24 * 60
_RETRY_AFTER_S: Final = 3600


class NotNow(NamedTuple):
    """Why an agent may not run now."""

    reason: str
    message: str
    wait_s: int | None  # None: waiting does not help


@dataclass(frozen=True, slots=True)
class ActiveHours:
    """When an agent, or every agent that a pattern matches, may run."""

    active: bool = True
    hours: tuple[int, int] | None = None  # minutes of the day; the end is smaller if the span crosses midnight
    zone: str = "UTC"

    def absent(self, now: float) -> NotNow | None:
        """Return why the agent may not run at `now`, or None if it may."""
        if not self.active:
            return NotNow("agent_inactive", "This agent is switched off in the bundle.", None)
        if self.hours is None:
            return None
        local = datetime.fromtimestamp(now, tz=UTC).astimezone(ZoneInfo(self.zone))
        minute = local.hour * 60 + local.minute
        start, end = self.hours
        inside = start <= minute < end if start < end else minute >= start or minute < end
        if inside:
            return None
        wait_s = ((start - minute) % _DAY) * _MINUTE_S - local.second
        span = f"{start // 60:02}:{start % 60:02} to {end // 60:02}:{end % 60:02} ({self.zone})"
        return NotNow("outside_hours", f"This agent may send requests from {span}.", max(1, wait_s))


class CompiledDetector(Protocol):
    """A compiled loop detector: either one that counts fingerprints or one that keeps a window."""

    config: DetectorConfig
    of_unnamed: bool  # it is only planned for calls whose session has no name

    def plan(self, call: Call, project: str, group: int, now: float) -> CountFingerprint | DetectorSlot | None:
        """Return its store operation, or a slot for one that can only be built once its window has been read."""
        ...


@dataclass(frozen=True, slots=True)
class CompiledSelector:
    """What a policy applies to. Without a path it applies to every path; empty `methods` means any method."""

    exact: str | None = None
    prefix: str | None = None
    methods: frozenset[str] = frozenset()
    hosts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CompiledPolicy:
    id: str
    index: int
    selector: CompiledSelector
    shadow: bool
    loops: tuple[CompiledDetector, ...]
    decides_loops: bool  # it has its own `loop_detection`, even a disabled one
    rules: tuple[CompiledRule, ...]
    fallback: CompiledRule | None
    breaker: BreakerRule | None
    status: int
    denies_on_store_error: bool
    rejects_large_bodies: bool
    descriptors: tuple[tuple[str, Getter], ...]  # all that it names, for debug headers and `explain`
    metered: bool  # some of its rules make charges that are corrected after the response
    steady: bool  # the keys of its rules depend only on the sender (`descriptors.steady`)
    tells_model: bool = False  # stages of its budgets change requests to an LLM


class _Node:
    __slots__ = ("below", "children", "here")

    def __init__(self) -> None:
        self.children: dict[str, _Node] = {}
        self.below: list[CompiledPolicy] = []  # prefixes that end here and match longer paths
        self.here: list[CompiledPolicy] = []  # exact paths, and prefixes without a trailing slash

    def at(self, segments: Sequence[str]) -> _Node:
        node = self
        for segment in segments:
            node = node.children.setdefault(segment, _Node())
        return node


class Routes:
    """An immutable index of policies: by host, then by a trie of path segments, then by method. The cost of a match
    depends on the depth of the path and on the number of policies that match, not on the total number. What applies to
    a path on all hosts is cached.
    """

    __slots__ = ("_any_host", "_hosts", "_methods_matter", "_on_all_hosts")

    def __init__(self, policies: Sequence[CompiledPolicy]) -> None:
        self._any_host: _Node = _Node()
        # Without a reference to this index, so that a replaced bundle is freed at once, and not by a rare collection.
        self._on_all_hosts = MemoDict(partial(_match_path, self._any_host))
        self._hosts: dict[str, _Node] = {}
        self._methods_matter = any(policy.selector.methods for policy in policies)
        for policy in policies:
            hosts = policy.selector.hosts
            roots = [self._hosts.setdefault(host, _Node()) for host in hosts] if hosts else [self._any_host]
            for root in roots:
                _insert(root, policy)

    def match(self, host: str, method: str, path: str) -> Sequence[CompiledPolicy]:
        """Return the policies that apply, in the order of the bundle."""
        found: Sequence[CompiledPolicy] = self._on_all_hosts[path]
        if self._hosts:
            root = self._hosts.get(host)
            if root is not None:
                found = _in_order([*found, *_collect(root, path)])
        if found and self._methods_matter:
            found = [p for p in found if not p.selector.methods or method in p.selector.methods]
        return found


def _match_path(root: _Node, path: str) -> tuple[CompiledPolicy, ...]:
    return tuple(_in_order(_collect(root, path)))


def _insert(root: _Node, policy: CompiledPolicy) -> None:
    selector = policy.selector
    if selector.exact is not None:
        root.at(selector.exact.split("/")[1:]).here.append(policy)
    if selector.prefix is not None or selector.exact is None:
        prefix = selector.prefix or "/"
        segments = prefix.split("/")[1:]
        if segments[-1] == "":
            root.at(segments[:-1]).below.append(policy)
        else:
            node = root.at(segments)
            node.below.append(policy)
            node.here.append(policy)


def _collect(node: _Node, path: str) -> list[CompiledPolicy]:
    found: list[CompiledPolicy] = []
    for segment in path[1:].split("/"):
        found += node.below
        child = node.children.get(segment)
        if child is None:
            return found
        node = child
    return found + node.here


def _in_order(found: list[CompiledPolicy]) -> list[CompiledPolicy]:
    by_index = {policy.index: policy for policy in found}  # the exact path and the prefix of one policy may both match
    return [by_index[index] for index in sorted(by_index)]


@dataclass(frozen=True, slots=True)
class CompiledKillSwitch:
    """A kill switch: it applies where `scope_key` equals `scope_value`, on `route`, until `expires`."""

    index: int
    scope_key: str
    scope_value: str
    route: str = ""
    reason: str = ""
    expires: float = math.inf
    id: str = ""  # set for switches created at run time

    @property
    def name(self) -> str:
        """The name of the switch in denials."""
        return f"kill_switch/{self.id}" if self.id else f"kill_switches[{self.index}]"

    def retry_after_s(self, now: float) -> int:
        """Return one hour, or less if the switch expires sooner."""
        return max(1, math.ceil(min(_RETRY_AFTER_S, self.expires - now)))


class KillSwitches:
    """Kill switches of a bundle and of operators, indexed by descriptor: a thousand cost as much as one."""

    __slots__ = ("_by_key", "_getter", "_switches", "keys")

    def __init__(self, switches: Iterable[CompiledKillSwitch], getter: Callable[[str], Getter]) -> None:
        self._switches = switches = tuple(switches)
        self._getter = getter
        grouped: dict[str, dict[str, list[CompiledKillSwitch]]] = {}
        for switch in switches:
            grouped.setdefault(switch.scope_key, {}).setdefault(switch.scope_value, []).append(switch)
        self._by_key = tuple((getter(key), values) for key, values in grouped.items())
        self.keys = frozenset(grouped)  # the descriptors that they read

    def with_more(self, switches: Iterable[CompiledKillSwitch]) -> KillSwitches:
        """Return a copy with more switches appended."""
        after = len(self._switches)
        more = [replace(switch, index=after + number) for number, switch in enumerate(switches)]
        return KillSwitches((*self._switches, *more), self._getter)

    def named(self, scope_key: str, scope_value: str, now: float) -> CompiledKillSwitch | None:
        """Return the first active switch with this scope that applies to every route, or None. Used for display."""
        scope = (scope_key, scope_value, "")
        found = (one for one in self._switches if (one.scope_key, one.scope_value, one.route) == scope)
        return next((one for one in found if one.expires > now), None)

    def find(self, call: Call, now: float) -> CompiledKillSwitch | None:
        """Return the first active switch that matches the call, or None."""
        first: CompiledKillSwitch | None = None
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


@dataclass(frozen=True, slots=True)
class AgentTerms:
    """The settings that apply to one agent in addition to the policies."""

    pattern: str  # as written in the bundle
    detectors: tuple[CompiledDetector, ...]
    presence: ActiveHours
    rules: tuple[CompiledRule, ...] = ()  # its rate limit and its daily budget
    run: RunRule | None = None  # the limit on the cost of each of its runs
    stop_webhook: tuple[str, bool] | None = None  # URL, and whether it may be at a private address

    @property
    def metered(self) -> bool:
        """Whether it makes charges that are corrected after the response."""
        return self.run is not None or any(rule.limiter.needs for rule in self.rules)


class CompiledAgents:
    """The settings of agents, found by the agent's name or else by the longest pattern that matches."""

    __slots__ = ("_named", "_prefixes", "terms", "trees")

    def __init__(self, terms: Iterable[AgentTerms], trees: TreeLimits | None = None) -> None:
        self.terms = tuple(terms)
        self.trees = trees or None  # the budgets of trees of agents; None if there are none
        self._named = {one.pattern: one for one in self.terms if not one.pattern.endswith("*")}
        patterns = [one for one in self.terms if one.pattern.endswith("*")]
        self._prefixes = sorted(patterns, key=lambda one: len(one.pattern), reverse=True)

    @property
    def metered(self) -> bool:
        """Whether any of them makes charges that are corrected after the response."""
        return self.trees is not None or any(one.metered for one in self.terms)

    @property
    def matches(self) -> bool:
        """Whether a rule of any of them applies only to some requests, by their content."""
        return any(rule.match for one in self.terms for rule in one.rules)

    def find(self, agent: str) -> AgentTerms | None:
        """Return the settings of an agent, or None."""
        named = self._named.get(agent)
        if named is not None:
            return named
        return next((one for one in self._prefixes if agent.startswith(one.pattern[:-1])), None)


@dataclass(frozen=True, slots=True)
class PauseTerms:
    """How long a person has to answer for a paused run, and what happens then."""

    answer_within_s: float = 1800.0
    then: str = "deny"  # "deny", "land" or "continue"
    hold_open_s: float = 0.0  # how long the gateway holds a request open


@dataclass(frozen=True, slots=True)
class CompiledBundle:
    """Everything that a request is evaluated against. Replaced as a whole, so a request sees exactly one bundle."""

    version: int
    digest: str
    policies: tuple[CompiledPolicy, ...]
    routes: Routes
    senders: CallerProfiles
    kill_switches: KillSwitches
    shadow_until: float  # `global_shadow` is active before this time
    kill_override_until: float
    expires: float
    default_loops: tuple[CompiledDetector, ...]
    project_loops: dict[str, tuple[CompiledDetector, ...]]  # projects with their own `loop_guard`
    tail_messages: int  # how many of the last messages of a request the detectors read
    agents: CompiledAgents
    agents_with: Callable[
        [Mapping[str, Mapping[str, Any]]], CompiledAgents
    ]  # `agents` merged with settings made at run time
    snoozed: Mapping[str, float] = field(default_factory=dict)  # fingerprints that may repeat, and until when
    pause: PauseTerms = field(default_factory=PauseTerms)

    def stops(self, agent: str, now: float) -> CompiledKillSwitch | None:
        """Return the active kill switch that stops every request of this agent by its name, or None."""
        return None if self.kill_override_until > now else self.kill_switches.named("agent:id", agent, now)


_NO_TEXT: Final = (b"multipart/", b"audio/", b"image/", b"video/", b"application/octet-stream", b"application/zip")
BODY_DESCRIPTORS: Final = frozenset(("agent:session", "llm:model", "llm:provider", "tool:name"))


def needs_body(bundle: CompiledBundle, host: str, method: str, path: str, content_type: bytes) -> bool:
    """Return whether anything in the bundle would read the body of such a request."""
    loops_decided, says_tokens = False, bool(of_path(path))  # token and cost limits recognize LLM calls by path
    if says_tokens and (bundle.agents.metered or bundle.agents.matches):
        return True
    for policy in bundle.routes.match(host, method, path):
        if (
            policy.loops
            or policy.rejects_large_bodies
            or (says_tokens and (policy.metered or policy.breaker is not None or policy.tells_model))
            or any(name in BODY_DESCRIPTORS for name, _ in policy.descriptors)
        ):
            return True
        loops_decided = loops_decided or (policy.decides_loops and not policy.shadow)
    if not BODY_DESCRIPTORS.isdisjoint(bundle.kill_switches.keys):
        return True
    # The built-in protection recognizes LLM calls by path or by a JSON body, whatever the content type is. The body
    # is not needed only if it is clearly not text and the path is not that of an LLM API.
    has_loops = bool(bundle.default_loops or bundle.project_loops)
    return has_loops and not loops_decided and (says_tokens or not content_type.lower().startswith(_NO_TEXT))


def rejects_large(bundle: CompiledBundle | None, call: Call) -> bool:
    """Return whether a policy for this call denies requests whose body is too large to be evaluated."""
    if bundle is None:
        return False
    return any(policy.rejects_large_bodies for policy in bundle.routes.match(call.host, call.method, call.path))
