"""The actions of operators, for the API and the dashboard.

An action is written to the audit log before it is acknowledged. Orders also wait until every instance has them
(`shared`). Callers check the role first.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from breakloop.admin.auth import AdminIdentity
from breakloop.admin.bundles import BundleAdmin
from breakloop.admin.errors import ApiError
from breakloop.alerts.service import Alerts
from breakloop.clock import Clock
from breakloop.engine.breakers import BreakerState
from breakloop.engine.operator import Operator
from breakloop.engine.quarantine import Hold, hold_key
from breakloop.engine.tree_budgets import TreeSpending
from breakloop.errors import BreakloopError
from breakloop.history.store import History
from breakloop.history.tree_book import TreeBook, TreeNode
from breakloop.model.records import STOPPED, IncidentFilter, is_blocked
from breakloop.policy.diagnostics import nearest
from breakloop.policy.orders import checked_agent

SNOOZE_MAX_S: Final = 30 * 86_400.0
_NAMES_MAX: Final = 500  # known agents that are searched for a similar name
_DETAIL_MAX: Final = 300  # characters of a text in the audit log


@dataclass(slots=True)
class AdminServices:
    """What the API and the dashboard work with. The application builds it, for one process or for several."""

    clock: Clock
    history: History
    operator: Operator
    bundles: BundleAdmin
    alerts: Alerts
    project: str  # the default project
    status: Callable[[], Mapping[str, Any]]  # version, url, uptime_seconds, state, degraded, workers, tally
    settings: Callable[[], Sequence[tuple[str, str, str]]]  # name, value with secrets masked, origin
    metrics: Callable[[], bytes]  # in the Prometheus text format
    breakers: Callable[[], Awaitable[list[BreakerState]]]
    reset_breaker: Callable[[str, str], Awaitable[BreakerState | None]]
    trees: TreeBook
    tree_budgets: Callable[[], Awaitable[list[TreeSpending]]]
    reset_tree_budget: Callable[[str, str, str], Awaitable[TreeSpending | None]]  # project, caller, root
    counters: Callable[[str], Awaitable[list[Mapping[str, Any]]]]  # by prefix of the key
    live: Callable[[], AsyncIterator[Mapping[str, Any]]]  # events and sums as they happen, for one listener
    in_thread: Callable[[Callable[[], Any]], Awaitable[Any]]  # runs a blocking function in a thread

    async def past(self, ask: Callable[[History], Any]) -> Any:
        """Query the history, in a thread."""
        return await self.in_thread(lambda: ask(self.history))


class Stopped(NamedTuple):
    """What an order has stopped: calls in flight, streams among them, and the agents that sent them; and whether every
    instance has the order."""

    calls: int
    streams: int
    agents: list[str]
    shared: bool


class Actions:
    """The actions of one operator."""

    def __init__(self, services: AdminServices, who: AdminIdentity) -> None:
        self.services = services
        self._who = who

    async def kill(
        self, project: str, agent: str, reason: str, expires_at: float | None = None, *, caller: str = ""
    ) -> tuple[Hold, Stopped]:
        """Quarantine an agent by its name, of one caller or of all, and the sessions that it started; return the hold,
        and what was stopped. Raises `OrderError`.
        """
        operator, by = self.services.operator, self._who.name
        hold = operator.kill(project, agent, reason, by, expires_at, caller=caller)
        holds, others = [hold], set[str]()
        for tree in self.services.trees.all():
            if tree.project == project and caller in {"", tree.caller}:
                own = [one.session for one in tree.nodes if one.use.agent == agent]
                # Named after the agent, so that releasing it releases them.
                started = [one for session in own for one in tree.below(session) if one.use.agent != agent]
                below = dict.fromkeys([one.session for one in started], agent)
                others |= {one.use.agent for one in started}
                if below:
                    holds += operator.kill_runs(project, tree.caller, below, reason, by, expires_at=expires_at)
        self._tell_agents(project, (agent, *others), reason)
        detail = {"reason": reason, "expires_at": expires_at} | ({"caller": caller} if caller else {})
        return hold, await self._stopped("agent.kill", f"{project}/{agent}", detail, [hold_key(one) for one in holds])

    def _tell_agents(self, project: str, agents: Iterable[str], reason: str) -> None:
        """Call the stop webhooks of agents, in the background."""
        for agent in dict.fromkeys(agents):
            hook = self.services.operator.stop_webhook(agent)
            if hook is not None:
                told = {"event": "agent.killed", "project": project, "agent": agent, "reason": reason}
                self.services.alerts.call_stop(hook[0], told | {"by": self._who.name}, allow_private=hook[1])

    async def _stopped(self, action: str, target: str, detail: Mapping[str, Any], orders: Sequence[str]) -> Stopped:
        """Audit an order, wait for it, and audit what it has stopped."""
        shared = await self._ordered(action, target, detail)
        calls, streams, agents = await self.services.operator.stopped(orders)
        if calls:
            await self.audit("calls.stopped", target, {"calls": calls, "streams": streams, "agents": len(agents)})
        return Stopped(calls, streams, sorted(agents), shared)

    async def answer(self, pause: str, answer: str) -> tuple[Hold, bool]:
        """Answer for a paused run; return the pause, and whether every instance has the answer. Raises `OrderError`."""
        hold = self.services.operator.answer(pause, answer, self._who.name)
        detail = {"pause": pause, "answer": answer, "run": hold.run, "reason": hold.why}
        return hold, await self._ordered("run.answer", f"{hold.project}/{hold.agent}", detail)

    async def seen(self, project: str, agent: str) -> tuple[bool, str]:
        """Return whether an agent was ever seen, and if not, the known agent with the most similar name, or ""."""
        if await self.services.past(lambda history: history.agent(project, agent)) is not None:
            return True, ""
        known = await self.services.past(lambda history: history.agents(project, "", _NAMES_MAX))
        return False, nearest(agent, [one.agent for one in known]) or ""

    async def release(
        self, project: str, *, agent: str = "", caller: str = "", run: str = ""
    ) -> tuple[list[Hold], int, bool]:
        """End the holds on an agent, a caller or a run, and clear the loops of an agent or a caller.

        Returns the holds that ended, the number of loops that were blocked, and whether every instance has the
        order.
        """
        by, operator = self._who.name, self.services.operator
        seen = await self._blocked(project, agent, caller) if not run else 0
        ended = operator.release(project, agent=agent, caller=caller, run=run, by=by)
        seen = 0 if ended else seen  # the loop of a hold is not counted again
        loops = operator.unblock(project, agent=agent, caller=caller, by=by, seen=seen) if not run else 0
        detail = {"agent": agent, "caller": caller, "run": run, "ended": len(ended), "loops": loops}
        return ended, loops, await self._ordered("agent.release", f"{project}/{agent or caller or run}", detail)

    async def _blocked(self, project: str, agent: str, caller: str) -> int:
        """Return how many loops are being denied, on any instance."""
        now = self.services.clock.now()
        wanted = IncidentFilter(state=STOPPED, project=project, agent=agent, shadow=False)
        found = await self.services.past(lambda history: history.incidents(wanted))
        return sum(caller in {"", one.caller} and is_blocked(one, now) for one in found)

    async def set_agent(self, project: str, agent: str, changes: Mapping[str, Any]) -> dict[str, Any]:
        """Change the run-time settings of an agent; None removes a setting. Raises `OrderError`."""
        services = self.services
        if not agent.strip():
            raise ApiError(400, "must not be empty", field="agent")
        known = await services.past(lambda history: history.agent(project, agent))
        wanted = checked_agent({**(known.settings if known else {}), **changes})
        await services.past(lambda history: history.set_agent(project, agent, wanted))
        removed = dict.fromkeys(services.operator.agent_settings().get(agent, {}))
        services.operator.set_agent(agent, {**removed, **wanted}, "api")
        await self.audit("agent.settings", f"{project}/{agent}", changes)
        return wanted

    async def set_switch(
        self, scope_key: str, scope_value: str, *, route: str = "", reason: str = "", expires_at: float | None = None
    ) -> tuple[str, Stopped]:
        """Set a kill switch; return its id, and what was stopped. Raises `OrderError`."""
        made = self.services.operator.set_switch(
            scope_key, scope_value, self._who.name, route=route, reason=reason, expires_at=expires_at
        )
        detail = {"id": made, "route": route, "reason": reason, "expires_at": expires_at}
        return made, await self._stopped("switch.set", f"{scope_key}={scope_value}", detail, [made])

    async def lift_switch(self, switch: str) -> bool:
        """Lift a kill switch that was set at run time. Raises `ApiError` if there is none."""
        if not self.services.operator.lift_switch(switch, self._who.name):
            raise ApiError(404, "there is no such kill switch; to lift one of the bundle, change the bundle")
        return await self._ordered("switch.lift", switch, {})

    async def set_override(self, name: str, reason: str, expires_at: float | None) -> bool:
        """Activate an override until it expires. Raises `OrderError`."""
        self.services.operator.set_override(name, reason, expires_at, self._who.name)
        return await self._ordered("override.set", name, {"reason": reason, "expires_at": expires_at})

    async def lift_override(self, name: str) -> bool:
        """End an override that was set at run time. Raises `ApiError` if there is none."""
        if not self.services.operator.lift_override(name, self._who.name):
            raise ApiError(404, "there is no such override; to end one of the bundle, change the bundle")
        return await self._ordered("override.lift", name, {})

    async def snooze(self, fingerprint: str, seconds: float) -> float:
        """Stop detecting a fingerprint for some time; return the end of it."""
        until = self.services.clock.now() + seconds
        self.services.operator.snooze(fingerprint, until, self._who.name)
        await self.audit("loop.snooze", fingerprint, {"seconds": seconds})
        return until

    async def reset_breaker(self, policy: str, key: str) -> BreakerState:
        """Close a breaker; return its state before. Raises `ApiError` if it is not open."""
        found = await self.services.reset_breaker(policy, key)
        if found is None:
            raise ApiError(404, "there is no such breaker, or it is not open")
        await self.audit("breaker.reset", key, {"policy": policy})
        return found

    async def kill_tree(
        self, project: str, caller: str, root: str, session: str, reason: str, *, lands: bool = False
    ) -> tuple[int, Stopped]:
        """Hold a session of a tree and everything that it started or starts, or with `lands` ask all of them to finish;
        return how many sessions there are, and what was stopped. Raises `ApiError` if there is no such session, and
        `OrderError`.
        """
        runs = {one.session: one.use.agent for one in self._below(project, caller, root, session)}
        held = self.services.operator.kill_runs(project, caller, runs, reason, self._who.name, lands=lands)
        detail = {"root": root, "sessions": len(held), "reason": reason}
        if not lands:
            self._tell_agents(project, runs.values(), reason)
        act, orders = "tree.land" if lands else "tree.kill", [hold_key(one) for one in held]
        return len(held), await self._stopped(act, f"{project}/{caller}/{session}", detail, orders)

    async def release_tree(self, project: str, caller: str, root: str, session: str) -> tuple[int, bool]:
        """Release a session of a tree and everything below it; return how many were held, and whether every instance
        has the order. Raises `ApiError` if there is no such session.
        """
        nodes, operator, by = self._below(project, caller, root, session), self.services.operator, self._who.name
        runs = [f"{caller}|{one.session}" for one in nodes]
        ended = [hold for run in runs for hold in operator.release(project, caller=caller, run=run, by=by)]
        detail = {"root": root, "sessions": len(ended)}
        return len(ended), await self._ordered("tree.release", f"{project}/{caller}/{session}", detail)

    def _below(self, project: str, caller: str, root: str, session: str) -> list[TreeNode]:
        tree = self.services.trees.find(project, caller, root)
        found = [] if tree is None else tree.below(session)
        if not found:
            raise ApiError(404, "there is no such tree, or no such session in it")
        return found

    async def reset_tree_budget(self, project: str, caller: str, root: str) -> TreeSpending:
        """Give a tree of agents its whole budget again; return its state before. Raises `ApiError` if it has none."""
        found = await self.services.reset_tree_budget(project, caller, root)
        if found is None:
            raise ApiError(404, "there is no such tree, or it has spent nothing")
        spent = {"microusd": found.microusd, "tokens": found.tokens}
        await self.audit("tree_budget.reset", f"{project}/{caller}/{root}", spent)
        return found

    async def apply(self, text: bytes, *, force: bool) -> Mapping[str, Any]:
        """Activate a bundle. Raises `BundleError`."""
        made = await self._changed(lambda bundles: bundles.apply(text, force=force, by=self._who.name))
        await self.audit("bundle.apply", str(made.get("version", "")), _of(made) | {"force": force})
        return made

    async def rollback(self, version: int) -> Mapping[str, Any]:
        """Activate an earlier bundle again. Raises `BundleError`."""
        made = await self._changed(lambda bundles: bundles.rollback(version, by=self._who.name))
        await self.audit("bundle.rollback", str(version), _of(made))
        return made

    async def promote(self, policy: str) -> Mapping[str, Any]:
        """Change a policy from shadow to enforce mode, in the bundle itself. Raises `BundleError`."""
        made = await self._changed(lambda bundles: bundles.promote(policy, by=self._who.name))
        await self.audit("policy.promote", policy, _of(made))
        return made

    async def _changed(self, change: Callable[[BundleAdmin], Mapping[str, Any]]) -> Mapping[str, Any]:
        made: Mapping[str, Any] = await self.services.in_thread(lambda: change(self.services.bundles))
        return made

    async def add_webhook(self, url: str, events: Sequence[str], *, allow_private: bool) -> Mapping[str, Any]:
        """Register a webhook; return id and secret. Raises `AlertError`."""
        alerts = self.services.alerts
        made: Mapping[str, Any] = await self.services.in_thread(
            lambda: alerts.add_webhook(url, events, allow_private=allow_private)
        )
        # The path or query of a URL may contain a secret, so only the host is logged.
        detail = {"host": _host(url), "events": list(events), "allow_private": allow_private}
        await self.audit("webhook.add", str(made["id"]), detail)
        return made

    async def remove_webhook(self, webhook: str) -> None:
        """Delete a webhook. Raises `ApiError` if there is none."""
        if not await self.services.in_thread(lambda: self.services.alerts.remove_webhook(webhook)):
            raise ApiError(404, "there is no such webhook")
        await self.audit("webhook.remove", webhook, {})

    async def rotate_webhook(self, webhook: str) -> Mapping[str, Any]:
        """Replace the secret of a webhook; return id and secret. Raises `ApiError` if there is none."""
        await self._known(webhook)
        made: Mapping[str, Any] = await self.services.in_thread(lambda: self.services.alerts.rotate_webhook(webhook))
        await self.audit("webhook.rotate", webhook, {})
        return made

    async def send_again(self, delivery: str) -> None:
        """Send a failed delivery again. Raises `ApiError` if there is none."""
        if not await self.services.in_thread(lambda: self.services.alerts.retry(delivery)):
            raise ApiError(404, "there is no such delivery, or it has not failed")
        await self.audit("delivery.again", delivery, {})

    async def test_webhook(self, webhook: str) -> Mapping[str, Any]:
        """Send a test event; return the outcome. Raises `ApiError` if there is no such webhook."""
        await self._known(webhook)
        made = await self.services.alerts.test(webhook)
        await self.audit("webhook.test", webhook, {})
        return made

    async def _known(self, webhook: str) -> None:
        known = await self.services.in_thread(self.services.alerts.webhooks)
        if all(one.get("id") != webhook for one in known):
            raise ApiError(404, "there is no such webhook")

    async def audit(self, action: str, target: str, detail: Mapping[str, Any]) -> None:
        """Write an entry to the audit log. Raises `ApiError` if that fails; the action itself is not undone."""
        who, now = self._who, self.services.clock.now()
        short = {name: value[:_DETAIL_MAX] if isinstance(value, str) else value for name, value in detail.items()}
        try:
            await self.services.past(
                lambda history: history.add_audit(who.name, who.role, action, target[:_DETAIL_MAX], short, now)
            )
        except BreakloopError as error:
            message = f"the action was done, but could not be written to the audit log: {error}"
            raise ApiError(503, message, code="not_audited") from None

    async def _ordered(self, action: str, target: str, detail: Mapping[str, Any]) -> bool:
        await self.audit(action, target, detail)
        return await self.services.operator.acknowledged()


def _of(made: Mapping[str, Any]) -> dict[str, Any]:
    return {name: made[name] for name in ("version", "digest") if name in made}


def _host(url: str) -> str:
    return url.partition("://")[2].partition("/")[0].rpartition("@")[2].partition("?")[0]
