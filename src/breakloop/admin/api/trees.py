"""Operations on trees of agents: list them, and stop or release a part of one."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from breakloop.admin.api.agents import StoppedView, stopped_view
from breakloop.admin.api.operations import OperationRequest, Operations, Reason
from breakloop.admin.errors import ApiError
from breakloop.history.tree_book import TreeRecord

OPERATIONS = Operations()
_DOLLAR: Final = 1_000_000

TreeName = Annotated[str, msgspec.Meta(min_length=1, max_length=1024)]


class TreeQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Which tree, as listed."""

    project: TreeName
    caller: TreeName
    root: TreeName


class TreePartBody(TreeQuery, forbid_unknown_fields=True, kw_only=True):
    """Which session of which tree. Everything that it started is meant, too."""

    session: TreeName


class KillTreeBody(TreePartBody, forbid_unknown_fields=True, kw_only=True):
    """Which session of which tree, and why. Everything that it started is meant, too."""

    reason: Reason


class TreeView(msgspec.Struct, kw_only=True):
    """A tree of agents that started each other."""

    project: str
    caller: str
    root: str
    sessions: int
    at_work: int  # sessions that sent a request in the last ten minutes
    depth: int
    usd: float
    tokens: int
    first_at: float
    last_at: float


class TreesResponse(msgspec.Struct):
    """Trees of the last 12 hours that this instance has seen, the one that was active last first."""

    trees: list[TreeView]


class TreeSessionView(msgspec.Struct, kw_only=True):
    """One session of a tree."""

    session: str
    parent: str  # the session that started it
    agent: str
    depth: int
    requests: int
    denied: int
    usd: float
    tokens: int
    first_at: float
    last_at: float


class TreeResponse(msgspec.Struct):
    """A tree, and its sessions, each after the one that started it."""

    tree: TreeView
    sessions: list[TreeSessionView]


class TreePartResponse(msgspec.Struct):
    """How many sessions the order applies to."""

    sessions: int
    shared: bool


class KillTreeResponse(TreePartResponse):
    """How many sessions are held, and what was stopped."""

    stopped: StoppedView


@OPERATIONS("GET", "/trees", "listTrees")
async def trees(request: OperationRequest) -> TreesResponse:
    """List trees of agents that started each other."""
    now = request.services.clock.now()
    return TreesResponse([_tree_view(one, now) for one in request.services.trees.all()])


@OPERATIONS("GET", "/tree", "getTree", query=TreeQuery, errors=(404,))
async def tree(request: OperationRequest) -> TreeResponse:
    """Show a tree: who started whom, when, and what each has spent."""
    query = request.query
    found = request.services.trees.find(query.project, query.caller, query.root)
    if found is None:
        raise ApiError(404, "nothing is known of this tree")
    sessions = [
        TreeSessionView(
            session=one.session,
            parent=one.use.parent,
            agent=one.use.agent,
            depth=one.depth,
            requests=one.use.requests,
            denied=one.use.denied,
            usd=one.use.cost_microusd / _DOLLAR,
            tokens=one.use.tokens,
            first_at=one.first_at,
            last_at=one.use.last_at,
        )
        for one in found.nodes
    ]
    return TreeResponse(_tree_view(found, request.services.clock.now()), sessions)


@OPERATIONS("POST", "/tree/kill", "killTree", body=KillTreeBody, acts=True, errors=(404,))
async def kill_tree(request: OperationRequest) -> KillTreeResponse:
    """Deny all requests of a session, of everything below it, and of what these start from now on, and stop those in
    flight."""
    body = request.body
    held, stopped = await request.actions.kill_tree(body.project, body.caller, body.root, body.session, body.reason)
    return KillTreeResponse(held, stopped.shared, stopped_view(stopped))


@OPERATIONS("POST", "/tree/land", "landTree", body=KillTreeBody, acts=True, errors=(404,))
async def land_tree(request: OperationRequest) -> TreePartResponse:
    """Ask a session and everything below it to finish.

    Two more LLM requests of each pass, with tools switched off and a sentence that asks for the final answer. Further
    requests, and agents that they start from now on, are denied.
    """
    body = request.body
    place = (body.project, body.caller, body.root, body.session)
    asked, told = await request.actions.kill_tree(*place, body.reason, lands=True)
    return TreePartResponse(asked, told.shared)


@OPERATIONS("POST", "/tree/release", "releaseTree", body=TreePartBody, acts=True, errors=(404,))
async def release_tree(request: OperationRequest) -> TreePartResponse:
    """Release a session and everything below it."""
    body = request.body
    return TreePartResponse(*await request.actions.release_tree(body.project, body.caller, body.root, body.session))


def _tree_view(tree: TreeRecord, now: float) -> TreeView:
    return TreeView(
        project=tree.project,
        caller=tree.caller,
        root=tree.root,
        sessions=len(tree.nodes) + tree.hidden,
        at_work=tree.at_work(now),
        depth=tree.depth,
        usd=tree.cost_microusd / _DOLLAR,
        tokens=tree.tokens,
        first_at=tree.first_at,
        last_at=tree.last_at,
    )
