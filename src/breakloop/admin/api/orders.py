"""Operations that give orders at run time: kill switches, answers for paused runs, overrides, snoozes, breakers and
budgets of trees."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from breakloop.admin.actions import SNOOZE_MAX_S
from breakloop.admin.api.agents import StoppedView, end, stopped_view
from breakloop.admin.api.operations import Ends, OperationRequest, Operations, Reason, ends
from breakloop.engine.breakers import BreakerState
from breakloop.engine.operator import OverrideOrder, SwitchOrder
from breakloop.engine.quarantine import Hold
from breakloop.engine.tree_budgets import TreeSpending

OPERATIONS = Operations()
_DOLLAR: Final = 1_000_000


class SwitchBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Deny all requests with this value in this descriptor."""

    scope_key: Annotated[
        str, msgspec.Meta(min_length=1, max_length=256, description="A descriptor, such as `agent:id`.")
    ]
    scope_value: Annotated[str, msgspec.Meta(min_length=1, max_length=1024, description="The value it must have.")]
    route: Annotated[
        str, msgspec.Meta(max_length=1024, description="A path, or the beginning of one with `*` at the end.")
    ] = ""
    reason: Annotated[str, msgspec.Meta(max_length=256, description="Reason, shown to people.")] = ""
    expires_at: Ends = None


class OverrideBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Why, and until when."""

    reason: Reason
    expires_at: Annotated[
        float | str, msgspec.Meta(description="When it ends: seconds since 1970, or a time like 2027-01-31T18:00:00Z.")
    ]


class SnoozeBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Which fingerprint is ignored, and for how long."""

    fingerprint: Annotated[
        str, msgspec.Meta(pattern="^[0-9a-f]{16,64}$", description="As shown in denials and incidents.")
    ]
    seconds: Annotated[float, msgspec.Meta(gt=0, le=SNOOZE_MAX_S)]


class ResetBreakerBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Which breaker, as listed."""

    policy: Annotated[str, msgspec.Meta(min_length=1, max_length=256)]
    key: Annotated[str, msgspec.Meta(min_length=1, max_length=2048)]


class ResetTreeBudgetBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Which tree, as listed."""

    project: Annotated[str, msgspec.Meta(min_length=1, max_length=256)]
    caller: Annotated[str, msgspec.Meta(min_length=1, max_length=1024)]
    root: Annotated[str, msgspec.Meta(min_length=1, max_length=1024)]


class AnswerBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The answer for a paused run."""

    answer: Annotated[
        str,
        msgspec.Meta(
            min_length=1,
            max_length=16,
            description="`once`, an amount like `5usd`, a time like `30m` or `1h`, `land` or `kill`.",
        ),
    ]


class PauseView(msgspec.Struct, kw_only=True):
    """A run that waits for an answer."""

    id: str
    project: str
    caller: str
    agent: str
    session: str
    reason: str
    since: float
    answer_by: float  # without an answer by then, `then` applies
    then: str


class PausesResponse(msgspec.Struct):
    """Runs that wait for an answer, the oldest first."""

    pauses: list[PauseView]


class SharedOrder(msgspec.Struct):
    """An order that was carried out."""

    shared: bool  # every instance has it, and it is stored


class SwitchView(msgspec.Struct, kw_only=True):
    """A kill switch."""

    id: str
    scope_key: str
    scope_value: str
    route: str
    reason: str
    expires_at: float | None
    by: str
    since: float


class SwitchesResponse(msgspec.Struct):
    """Kill switches that were set at run time, without those of the bundle."""

    kill_switches: list[SwitchView]


class SwitchResponse(msgspec.Struct):
    """A kill switch that was set."""

    id: str
    shared: bool
    stopped: StoppedView


class OverrideView(msgspec.Struct, kw_only=True):
    """An override."""

    name: str
    reason: str
    expires_at: float | None
    by: str
    since: float


class OverridesResponse(msgspec.Struct):
    """Overrides that were set at run time, without those of the bundle."""

    overrides: list[OverrideView]


class SnoozeResponse(msgspec.Struct):
    """A fingerprint that is ignored for some time."""

    fingerprint: str
    until: float


class BreakersResponse(msgspec.Struct):
    """Circuit breakers, open ones first."""

    breakers: list[BreakerState]


class TreeBudgetView(msgspec.Struct, kw_only=True):
    """What the agents of one tree have spent, with what is reserved for requests in flight."""

    project: str
    caller: str
    root: str  # the session at the top of the tree, or the name that clients give it
    usd: float
    usd_limit: float | None  # the highest limit that an entry of `agents` sets
    usd_left: float | None
    tokens: int
    tokens_limit: int | None
    tokens_left: int | None
    last_at: float  # when a request was last allowed; the account is deleted 12 hours later
    shadow: bool  # counted in global shadow mode, and not enforced


class TreeBudgetsResponse(msgspec.Struct):
    """Trees of agents, those that have spent the largest share of their budget first."""

    trees: list[TreeBudgetView]


@OPERATIONS("GET", "/kill-switches", "listKillSwitches")
async def switches(request: OperationRequest) -> SwitchesResponse:
    """List kill switches set at run time."""
    return SwitchesResponse([switch_view(one) for one in request.services.operator.switches()])


@OPERATIONS("POST", "/kill-switches", "setKillSwitch", body=SwitchBody, acts=True, status=201)
async def set_switch(request: OperationRequest) -> SwitchResponse:
    """Set a kill switch: deny requests with a value in a descriptor, and stop those in flight."""
    body = request.body
    made, stopped = await request.actions.set_switch(
        body.scope_key, body.scope_value, route=body.route, reason=body.reason, expires_at=ends(body.expires_at)
    )
    return SwitchResponse(made, stopped.shared, stopped_view(stopped))


@OPERATIONS("DELETE", "/kill-switches/{id}", "liftKillSwitch", acts=True)
async def lift_switch(request: OperationRequest) -> SharedOrder:
    """Lift a kill switch."""
    return SharedOrder(await request.actions.lift_switch(request.path["id"]))


@OPERATIONS("GET", "/pauses", "listPauses")
async def pauses(request: OperationRequest) -> PausesResponse:
    """List paused runs that wait for an answer."""
    return PausesResponse([pause_view(one) for one in request.services.operator.pauses()])


@OPERATIONS("POST", "/pauses/{id}/answer", "answerPause", body=AnswerBody, acts=True)
async def answer(request: OperationRequest) -> SharedOrder:
    """Answer for a paused run: let it go on, finish, or stop."""
    _, shared = await request.actions.answer(request.path["id"], request.body.answer)
    return SharedOrder(shared)


@OPERATIONS("GET", "/overrides", "listOverrides")
async def overrides(request: OperationRequest) -> OverridesResponse:
    """List overrides set at run time."""
    return OverridesResponse([override_view(one) for one in request.services.operator.overrides()])


@OPERATIONS("PUT", "/overrides/{name}", "setOverride", body=OverrideBody, acts=True)
async def set_override(request: OperationRequest) -> SharedOrder:
    """Activate `global_shadow` or `kill_switch_override` until it expires."""
    until = ends(request.body.expires_at)
    return SharedOrder(await request.actions.set_override(request.path["name"], request.body.reason, until))


@OPERATIONS("DELETE", "/overrides/{name}", "liftOverride", acts=True)
async def lift_override(request: OperationRequest) -> SharedOrder:
    """End an override."""
    return SharedOrder(await request.actions.lift_override(request.path["name"]))


@OPERATIONS("POST", "/snooze", "snoozeLoop", body=SnoozeBody, acts=True)
async def snooze(request: OperationRequest) -> SnoozeResponse:
    """Ignore a fingerprint for some time."""
    until = await request.actions.snooze(request.body.fingerprint, request.body.seconds)
    return SnoozeResponse(request.body.fingerprint, until)


@OPERATIONS("GET", "/breakers", "listBreakers")
async def breakers(request: OperationRequest) -> BreakersResponse:
    """List circuit breakers, open ones first."""
    return BreakersResponse(await request.services.breakers())


@OPERATIONS("POST", "/breakers/reset", "resetBreaker", body=ResetBreakerBody, acts=True, errors=(404,))
async def reset_breaker(request: OperationRequest) -> BreakerState:
    """Close a circuit breaker."""
    return await request.actions.reset_breaker(request.body.policy, request.body.key)


@OPERATIONS("GET", "/tree-budgets", "listTreeBudgets")
async def tree_budgets(request: OperationRequest) -> TreeBudgetsResponse:
    """List what trees of agents have spent of their budgets (`max_usd_per_tree`, `max_tokens_per_tree`)."""
    return TreeBudgetsResponse([tree_budget_view(one) for one in await request.services.tree_budgets()])


@OPERATIONS("POST", "/tree-budgets/reset", "resetTreeBudget", body=ResetTreeBudgetBody, acts=True, errors=(404,))
async def reset_tree_budget(request: OperationRequest) -> TreeBudgetView:
    """Give a tree of agents its whole budget again. Returns its state before."""
    body = request.body
    return tree_budget_view(await request.actions.reset_tree_budget(body.project, body.caller, body.root))


def tree_budget_view(tree: TreeSpending) -> TreeBudgetView:
    usd_left, tokens_left = tree.left
    return TreeBudgetView(
        project=tree.project,
        caller=tree.caller,
        root=tree.root,
        usd=tree.microusd / _DOLLAR,
        usd_limit=None if tree.microusd_limit is None else tree.microusd_limit / _DOLLAR,
        usd_left=None if usd_left is None else usd_left / _DOLLAR,
        tokens=tree.tokens,
        tokens_limit=tree.tokens_limit,
        tokens_left=tokens_left,
        last_at=tree.last_at,
        shadow=tree.shadow,
    )


def pause_view(hold: Hold) -> PauseView:
    question = hold.question
    assert question is not None  # noqa: S101 - only called for pauses
    return PauseView(
        id=question.id,
        project=hold.project,
        caller=hold.caller,
        agent=hold.agent,
        session=hold.run.removeprefix(f"{hold.caller}|"),
        reason=hold.why,
        since=hold.since,
        answer_by=question.due,
        then=question.then,
    )


def switch_view(switch: SwitchOrder) -> SwitchView:
    return SwitchView(**{**switch._asdict(), "expires_at": end(switch.expires_at)})


def override_view(override: OverrideOrder) -> OverrideView:
    return OverrideView(**{**override._asdict(), "expires_at": end(override.expires_at)})
