"""Finds the policies and kill switches that apply to a request.

Policies are matched by host, then by a trie of path segments, then by method. The cost depends on the depth of the
path and on the number of policies that match, not on the total number. Kill switches are checked before the policies
and are indexed by descriptor, so a thousand switches on one descriptor cost as much as one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Generic, Protocol, TypeVar

from breakloop.detect.counting import route_matches
from breakloop.model.call import Call


@dataclass(frozen=True, slots=True)
class CompiledSelector:
    """What a policy applies to. Without a path it applies to every path; empty `methods` means any method."""

    exact: str | None = None
    prefix: str | None = None
    methods: frozenset[str] = frozenset()
    hosts: tuple[str, ...] = ()


class Routed(Protocol):
    """Anything that has a position in the bundle and a selector."""

    @property
    def index(self) -> int: ...

    @property
    def selector(self) -> CompiledSelector: ...


T = TypeVar("T", bound=Routed)


class _Node(Generic[T]):
    __slots__ = ("below", "children", "here")

    def __init__(self) -> None:
        self.children: dict[str, _Node[T]] = {}
        self.below: list[T] = []  # prefixes that end here and match longer paths
        self.here: list[T] = []  # exact paths, and prefixes without a trailing slash

    def at(self, segments: Sequence[str]) -> _Node[T]:
        node = self
        for segment in segments:
            node = node.children.setdefault(segment, _Node())
        return node


class Routes(Generic[T]):
    """An immutable index of policies."""

    __slots__ = ("_any_host", "_hosts", "_methods_matter")

    def __init__(self, policies: Sequence[T]) -> None:
        self._any_host: _Node[T] = _Node()
        self._hosts: dict[str, _Node[T]] = {}
        self._methods_matter = any(policy.selector.methods for policy in policies)
        for policy in policies:
            hosts = policy.selector.hosts
            roots = [self._hosts.setdefault(host, _Node()) for host in hosts] if hosts else [self._any_host]
            for root in roots:
                _insert(root, policy)

    def match(self, host: str, method: str, path: str) -> list[T]:
        """Return the policies that apply, in the order of the bundle."""
        segments = path[1:].split("/")
        found: list[T] = []
        _collect(self._any_host, segments, found)
        if self._hosts:
            root = self._hosts.get(host)
            if root is not None:
                _collect(root, segments, found)
        if found and self._methods_matter:
            found = [p for p in found if not p.selector.methods or method in p.selector.methods]
        return found if len(found) < 2 else _in_order(found)


def _insert(root: _Node[T], policy: T) -> None:
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


def _collect(node: _Node[T], segments: list[str], found: list[T]) -> None:
    for segment in segments:
        if node.below:
            found += node.below
        child = node.children.get(segment)
        if child is None:
            return
        node = child
    if node.here:
        found += node.here


def _in_order(found: list[T]) -> list[T]:
    by_index = {policy.index: policy for policy in found}  # the exact path and the prefix of one policy may both match
    return [by_index[index] for index in sorted(by_index)]


RETRY_AFTER_S = 3600


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
        return max(1, math.ceil(min(RETRY_AFTER_S, self.expires - now)))


class KillSwitches:
    """The kill switches of a bundle and those created at run time."""

    __slots__ = ("_by_key", "_getter", "_switches", "keys")

    def __init__(
        self, switches: Iterable[CompiledKillSwitch], getter: Callable[[str], Callable[[Call], str | None]]
    ) -> None:
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
        """Return the first active switch with exactly this scope that applies to every route, or None. Used for
        display.
        """
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
