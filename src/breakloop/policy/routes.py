"""Which policies apply to a request (SPEC R-1): host first, then a trie of path segments, then methods.

The cost depends on the depth of the path and on how many policies match, never on how many there are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar


@dataclass(frozen=True, slots=True)
class Selector:
    """What a policy applies to. Without a path it applies to every path; `methods` empty means any."""

    exact: str | None = None
    prefix: str | None = None
    methods: frozenset[str] = frozenset()
    hosts: tuple[str, ...] = ()


class Routed(Protocol):
    """Anything with a place in the order of the bundle and a selector."""

    @property
    def index(self) -> int:
        """Place in the bundle."""
        ...

    @property
    def selector(self) -> Selector:
        """What it applies to."""
        ...


T = TypeVar("T", bound=Routed)


class _Node(Generic[T]):
    __slots__ = ("below", "children", "here")

    def __init__(self) -> None:
        self.children: dict[str, _Node[T]] = {}
        self.below: list[T] = []  # prefixes that end here: they match what goes on
        self.here: list[T] = []  # exact paths, and prefixes without a final slash

    def at(self, segments: Sequence[str]) -> _Node[T]:
        node = self
        for segment in segments:
            node = node.children.setdefault(segment, _Node())
        return node


class Routes(Generic[T]):
    """An immutable index over policies."""

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
    by_index = {policy.index: policy for policy in found}  # exact and prefix of one policy may both match
    return [by_index[index] for index in sorted(by_index)]
