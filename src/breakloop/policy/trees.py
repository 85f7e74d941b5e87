"""The place of a session in a tree of agents: which session is at the top, which one started it, and how deep it is.

Clients state the root, the parent and the depth in header fields, in `baggage`, or in the body
(`dialects.session_ids`). Most state the parent only. The root and the depth of a grandchild are then known because its
parent was seen before: `SeenTrees` is bounded and kept in this process; instances that share a store also share it
there. Sessions of one trace belong to the tree of the session that had the trace first; traces are not shared.

For a request that names none of these, nothing is read but the names of its header fields.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from breakloop.dialects import session_ids
from breakloop.dialects.base import ParsedBody
from breakloop.dialects.session_ids import DEPTH, DEPTH_MAX, PARENT, ROOT, BodyIds, TreeIds, depth_of, in_baggage
from breakloop.model.call import NO_TREE, Call, Tree
from breakloop.policy import identity
from breakloop.policy.cache import TwoGenerationCache
from breakloop.policy.identity import IdentityHasher

ROOT_HEADER: Final = "x-agent-root"
DEPTH_HEADER: Final = "x-agent-depth"
_BAGGAGE: Final = "baggage"
# Codex sends both: the session is the thread at the top, and each sub-agent has a thread of its own.
_CODEX_ROOT: Final = "session-id"
_CODEX_OWN: Final = "thread-id"
_PARENTS: Final = frozenset((*identity.PARENT_HEADERS, identity.CLAUDE_CODE_AGENT))
TREE_HEADERS: Final = frozenset((*_PARENTS, ROOT_HEADER, DEPTH_HEADER, _BAGGAGE, _CODEX_ROOT))
_TREE_OR_TRACE: Final = frozenset((*TREE_HEADERS, *identity.TRACE_HEADERS))

# An entry takes about 500 bytes, and up to twice as many are held: 16 MB.
_SEEN_MAX: Final = 16_384
_SIZE_MAX: Final = 4 * 1024 * 1024  # total length of keys, in case ids are long


class SeenTrees(TwoGenerationCache[str, Tree]):
    """Maps sessions that another session started to their place in the tree."""

    def __init__(self, limit: int = _SEEN_MAX) -> None:
        super().__init__(limit, _SIZE_MAX)
        self.on_remember: Callable[[str, str, str], None] | None = None  # called with caller, session and place

    def place(self, caller: str, session: str) -> Tree | None:
        return self.get(f"{caller}\0{session}")

    def remember(self, caller: str, session: str, tree: Tree) -> None:
        self.put(f"{caller}\0{session}", tree)
        if self.on_remember is not None:
            self.on_remember(caller, session, f"{tree.depth} {tree.root}")

    def learn(self, caller: str, session: str, place: str) -> None:
        """Record what another instance remembered."""
        depth, _, root = place.partition(" ")
        known = depth_of(depth)
        if known and root:
            self.put(f"{caller}\0{session}", Tree(root, "", known))


class Trees:
    """Finds the place of each call in its tree. The functions read the call; a name of an agent is no session."""

    def __init__(
        self,
        digests: IdentityHasher,
        caller: Callable[[Call], str],
        session: Callable[[Call], str],
        parsed_body: Callable[[Call], ParsedBody | None],
    ) -> None:
        self._bounded = digests.bounded
        self._caller = caller
        self._session = session
        self._parsed_body = parsed_body
        self.seen = SeenTrees()
        self._of_traces: TwoGenerationCache[str, str] = TwoGenerationCache(_SEEN_MAX, _SIZE_MAX)
        self._agents: TwoGenerationCache[str, bool] = TwoGenerationCache(_SEEN_MAX, _SIZE_MAX)

    def add_agent_name(self, caller: str, agent: str) -> None:
        """Record a name that an agent of this caller has. The agent may run in many trees at the same time, so a parent
        that is given by such a name tells nothing about the tree.
        """
        self._agents.put(f"{caller}\0{agent}", True)

    def find(self, call: Call) -> Tree:
        """Return the place of a call; `NO_TREE` if nothing names one, as in most requests."""
        headers = call.headers
        body = call.parsed.body if call.parsed.chat else self._parsed_body(call)
        ids = session_ids.NONE if body is None else body.session_ids()  # type: ignore[attr-defined]  # the registry made it
        if _TREE_OR_TRACE.isdisjoint(headers) and ids.tree is None and not ids.trace:
            return NO_TREE
        session, caller = self._session(call), self._caller(call)
        root, parent, depth = self._ids(call, ids.tree)
        if parent and (parent == session or self._is_name(caller, parent)):
            parent = ""
        if not (root or parent or depth):
            return self._by_trace(caller, session, identity.trace_id(call) or ids.trace)
        return self._place(caller, session, TreeIds(root, parent, depth))

    def below(self, call: Call, ids: BodyIds) -> Tree:
        """Return the place of the agent that a call is sent to, which is one below the sender. `ids` are those in the
        body. A call whose parent is its own session names the place of the receiver already."""
        caller, session = self._caller(call), self._session(call)
        if not session or call.identity.session_derived:
            session = self._bounded(ids.session)
        root, parent, depth = self._ids(call, ids.tree)
        if session and parent == session and depth:
            return Tree(root or session, parent, depth)
        if parent and (parent == session or self._is_name(caller, parent)):
            parent = ""
        own = self._place(caller, session, TreeIds(root, parent, depth))
        return Tree(own.root, session, min(own.depth + 1, DEPTH_MAX))

    def _place(self, caller: str, session: str, ids: TreeIds) -> Tree:
        """Return the place of a session by what its call states, and remember it."""
        root, parent, depth = ids
        if parent:
            found = self._below(caller, session, parent, root)
        else:
            found = Tree(root or session, "", 2 if root and root != session else 1)
        if root or depth:
            found = Tree(root or found.root, found.parent, depth or found.depth)
        if session and found.parent and self.seen.place(caller, session) != found:
            self.seen.remember(caller, session, found)
        return found

    def _is_name(self, caller: str, parent: str) -> bool:
        """Tell whether a parent is the name of an agent, and not a session that was seen to be started."""
        key = f"{caller}\0{parent}"
        return bool(self._agents.get(key)) and not self.seen.get(key)

    def unknown(self, call: Call) -> tuple[str, str] | None:
        """Return caller and parent of a call if only another instance can know the place of the parent."""
        if _PARENTS.isdisjoint(call.headers):  # as in most requests
            return None
        root, parent, depth = self._ids(call, None)
        if not parent or depth or parent == root:
            return None
        caller = self._caller(call)
        own = self.seen.place(caller, self._session(call))
        if (own is not None and own.parent == parent) or self.seen.place(caller, parent):
            return None
        return caller, parent

    def _ids(self, call: Call, in_body: TreeIds | None) -> TreeIds:
        """Return what a call states; header fields take precedence, and ours among them."""
        headers = call.headers
        root, parent, depth = in_body or TreeIds()
        if not TREE_HEADERS.isdisjoint(headers):
            carried = in_baggage(headers[_BAGGAGE].decode("latin-1")) if _BAGGAGE in headers else {}
            root = identity.header(call, ROOT_HEADER) or carried.get(ROOT) or root or _root_of_client(call)
            parent = identity.parent_header(call) or carried.get(PARENT) or parent
            depth = depth_of(identity.header(call, DEPTH_HEADER)) or depth_of(carried.get(DEPTH)) or depth
        return TreeIds(self._bounded(root), self._bounded(parent), depth)

    def _below(self, caller: str, session: str, parent: str, root: str) -> Tree:
        """Return the place below a parent: one that was found before, or else one more than that of the parent."""
        own = self.seen.place(caller, session)
        if own is not None and own.parent == parent:
            return own
        above = self.seen.place(caller, parent)
        if above is not None:
            return Tree(above.root, parent, min(above.depth + 1, DEPTH_MAX))
        return Tree(parent, parent, 3 if root and root != parent else 2)

    def _by_trace(self, caller: str, session: str, trace: str) -> Tree:
        """Return the place of a session whose parent is not named, but that has the trace of another one."""
        if not trace or not session:
            return NO_TREE
        key = f"{caller}\0{self._bounded(trace)}"
        root = self._of_traces.get(key)
        if root is None:
            own = self.seen.place(caller, session)
            root = session if own is None else own.root
            self._of_traces.put(key, root)
        return Tree(root, "", 1 if root == session else 2, by_trace=True)


def states_tree(call: Call) -> bool:
    """Return whether header fields may state the place of a call in a tree."""
    return not TREE_HEADERS.isdisjoint(call.headers)


def _root_of_client(call: Call) -> str:
    """Return the session at the top if the client's own fields state it: those of Claude Code and Codex do."""
    headers = call.headers
    if identity.CLAUDE_CODE_AGENT in headers and identity.CLAUDE_CODE in headers:
        return identity.header(call, identity.CLAUDE_CODE)
    return identity.header(call, _CODEX_ROOT) if _CODEX_ROOT in headers and _CODEX_OWN in headers else ""
