"""The trees of agents that are at work: who started whom, when, and what each has spent.

It is kept in the memory of the process that runs the dashboard, from the sums of all its workers, and is gone after a
restart. It holds the trees of the last 12 hours, `TREES_MAX` at most, with `NODES_MAX` sessions each: about 50 MB if
all of that is used.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from breakloop.model.events import TreeNodeKey, TreeNodeUse, add_use

TREES_MAX: Final = 200
NODES_MAX: Final = 500
KEPT_S: Final = 43_200.0
ACTIVE_S: Final = 600.0  # a session is at work for so long after its last request

TreeName = tuple[str, str, str]  # project, caller, root


@dataclass(frozen=True, slots=True)
class TreeNode:
    """One session of a tree."""

    session: str
    depth: int  # 1 for the root
    first_at: float
    use: TreeNodeUse


@dataclass(frozen=True, slots=True)
class TreeRecord:
    """A tree. A session that was started comes after the one that started it, the earlier first."""

    project: str
    caller: str
    root: str
    nodes: tuple[TreeNode, ...]
    hidden: int  # sessions beyond `NODES_MAX`

    @property
    def first_at(self) -> float:
        return min(one.first_at for one in self.nodes)

    @property
    def last_at(self) -> float:
        return max(one.use.last_at for one in self.nodes)

    @property
    def depth(self) -> int:
        return max(one.depth for one in self.nodes)

    @property
    def cost_microusd(self) -> int:
        return sum(one.use.cost_microusd for one in self.nodes)

    @property
    def tokens(self) -> int:
        return sum(one.use.tokens for one in self.nodes)

    def at_work(self, now: float) -> int:
        """Return how many sessions have sent a request recently."""
        return sum(now - one.use.last_at < ACTIVE_S for one in self.nodes)

    def below(self, session: str) -> list[TreeNode]:
        """Return a session and all that it started, directly or not."""
        start = next((at for at, one in enumerate(self.nodes) if one.session == session), len(self.nodes))
        found = [self.nodes[start]] if start < len(self.nodes) else []
        for one in self.nodes[start + 1 :]:
            if one.depth <= found[0].depth:
                break
            found.append(one)
        return found


@dataclass(slots=True)
class _Kept:
    nodes: dict[str, tuple[float, TreeNodeUse]] = field(default_factory=dict)  # by session: when it was first seen
    hidden: set[int] = field(default_factory=set)


class TreeBook:
    """The trees of this process and its workers."""

    def __init__(self) -> None:
        self._trees: OrderedDict[TreeName, _Kept] = OrderedDict()  # the one that was active last is the last

    def add(self, uses: Mapping[TreeNodeKey, TreeNodeUse], now: float) -> None:
        """Add what sessions have used since the last call."""
        for (project, caller, root, session), use in uses.items():
            name = (project, caller, root)
            kept = self._trees.setdefault(name, _Kept())
            self._trees.move_to_end(name)
            known = kept.nodes.get(session)
            if known is not None:
                add_use(known[1], use)
            elif len(kept.nodes) < NODES_MAX:
                kept.nodes[session] = (use.last_at or now, use)
            else:
                kept.hidden.add(hash(session) % 2**20)
        while self._trees:
            name, oldest = next(iter(self._trees.items()))
            if len(self._trees) <= TREES_MAX and now - max(use.last_at for _, use in oldest.nodes.values()) < KEPT_S:
                break
            del self._trees[name]

    def all(self) -> list[TreeRecord]:
        """Return the trees, the one that was active last first."""
        return [_record(*one) for one in reversed(self._trees.items())]

    def find(self, project: str, caller: str, root: str) -> TreeRecord | None:
        """Return a tree, or None if nothing is known of it."""
        name = (project, caller, root)
        kept = self._trees.get(name)
        return None if kept is None else _record(name, kept)


def _record(name: TreeName, kept: _Kept) -> TreeRecord:
    return TreeRecord(*name, tuple(_ordered(name[2], kept.nodes)), len(kept.hidden))


def _ordered(root: str, known: Mapping[str, tuple[float, TreeNodeUse]]) -> Iterable[TreeNode]:
    """Yield the sessions below each other. One whose parent is not known is below the root."""
    children: dict[str, list[str]] = {}
    for session, (_, use) in sorted(known.items(), key=lambda one: one[1][0]):
        if session != root:
            children.setdefault(use.parent if use.parent in known else root, []).append(session)
    first = min(at for at, _ in known.values())
    done: set[str] = set()
    pending = dict.fromkeys(known)
    waiting = [(root, 1)]
    while waiting or pending:
        # Sessions that name each other as parents are below nobody.
        session, depth = waiting.pop() if waiting else (next(iter(pending)), 2)
        if session in done:
            continue
        done.add(session)
        pending.pop(session, None)
        at, use = known.get(session, (first, TreeNodeUse(last_at=first)))
        yield TreeNode(session, depth, at, use)
        waiting += [(one, depth + 1) for one in reversed(children.get(session, ()))]
