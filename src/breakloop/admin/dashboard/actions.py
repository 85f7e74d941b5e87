"""Actions of the dashboard. An action is one function here, and its question in `templates/ask.html`.

`/ask/NAME` shows the question, as a page or in a dialog; `/act/NAME` carries it out. `admin.actions` writes the
audit log before an action is acknowledged.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from breakloop.admin.actions import Actions, Stopped
from breakloop.admin.auth import AdminIdentity, identity
from breakloop.admin.dashboard import views, words
from breakloop.admin.dashboard.render import PageRenderer, check_acts, own_path
from breakloop.admin.errors import ApiError
from breakloop.engine import pauses
from breakloop.errors import OrderError
from breakloop.formatting import plural
from breakloop.policy.orders import GLOBAL_SHADOW, KILL_SWITCH_OVERRIDE

Asked = Mapping[str, str]
SHARED_LATER: Final = " The shared store is unavailable: other instances follow when it is back."
SNOOZE_S: Final = 3_600.0
OVERRIDES: Final = {
    GLOBAL_SHADOW: "No request is denied: every policy runs in shadow mode.",
    KILL_SWITCH_OVERRIDE: "Kill switches have no effect.",
}
_LIMITS_PAGE: Final = "/limits"
_ALERTS_PAGE: Final = "/alerts"
_NOTHING: Final = "was neither quarantined nor blocked; the counts of its loops were cleared"


@dataclass(frozen=True, slots=True)
class ActionResult:
    """The outcome of an action, for the operator."""

    said: str
    back: str
    tone: str = "good"
    shared: bool = True  # every instance has it
    secret: str = ""  # shown once


Do = Callable[[Actions, Asked], Awaitable[ActionResult]]


ACTIONS: Final[dict[str, Do]] = {}


def _action(name: str) -> Callable[[Do], Do]:
    def add(do: Do) -> Do:
        ACTIONS[name] = do
        return do

    return add


class DashboardActions:
    def __init__(self, renderer: PageRenderer) -> None:
        self._renderer = renderer

    def routes(self) -> list[Route]:
        return [self._renderer.get("/ask/{name}", self.ask), self._renderer.post("/act/{name}", self.act)]

    async def ask(self, request: Request) -> Response:
        check_acts(identity(request))
        asked = defaultdict(str, request.query_params)
        _named(request)
        values = {"act": request.path_params["name"], "asked": asked, "who": _who(asked), "overrides": OVERRIDES}
        return await self._renderer.show(request, "ask.html", **values, back=own_path(asked["back"], ""))

    async def act(self, request: Request, who: AdminIdentity, form: dict[str, str]) -> Response:
        """Carry out an action, and redirect."""
        done = await _named(request)(Actions(self._renderer.services, who), form)
        if done.secret:
            return await self._renderer.show(request, "secret.html", said=done.said, secret=done.secret, back=done.back)
        said = done.said if done.shared else done.said + SHARED_LATER
        return self._renderer.go(own_path(form.get("back", ""), done.back), said, done.tone)


def _named(request: Request) -> Do:
    do = ACTIONS.get(request.path_params["name"])
    if do is None:
        raise ApiError(404, "there is no such action")
    return do


def _ends_at(actions: Actions, form: Asked) -> float | None:
    """Return when an order expires; None for never. Raises `OrderError`."""
    given = form.get("for", "")
    if not given:
        return None
    if not (given.isascii() and given.isdecimal()) or len(given) > 9:
        raise OrderError(["for: must be a number of seconds"])
    return actions.services.clock.now() + int(given)


def tree_path(project: str, caller: str, root: str) -> str:
    return "/tree?" + urlencode({"project": project, "caller": caller, "root": root})


def agent_path(project: str, agent: str) -> str:
    return "/agent?" + urlencode({"project": project, "name": agent})


def _who(given: Asked) -> str:
    if given.get("run"):
        return f"run {given['run']}"
    return given.get("agent") or f"caller {given.get('caller', '')}"


@_action("agent.kill")
async def kill(actions: Actions, form: Asked) -> ActionResult:
    project, agent = form.get("project", ""), form.get("agent", "")
    _, stopped = await actions.kill(project, agent, form.get("reason", "").strip(), _ends_at(actions, form))
    seen, meant = await actions.seen(project, agent)
    if not seen:
        hint = f" Did you mean {words.shortened(meant, 60)}?" if meant else ""
        said = f"{agent} is quarantined, but no agent of this name was ever seen.{hint}"
        return ActionResult(said, agent_path(project, agent), "warn", stopped.shared)
    said = f"{agent} is quarantined.{_in_flight(stopped)}"
    return ActionResult(said, agent_path(project, agent), shared=stopped.shared)


def _in_flight(stopped: Stopped) -> str:
    """Return a sentence about calls in flight that were stopped; "" if there were none."""
    if not stopped.calls:
        return ""
    calls, streams = plural(stopped.calls, "call"), plural(stopped.streams, "stream")
    return f" {calls} in flight stopped ({streams}), of {plural(len(stopped.agents), 'agent')}."


@_action("agent.release")
async def release(actions: Actions, form: Asked) -> ActionResult:
    project, agent, who = form.get("project", ""), form.get("agent", ""), _who(form)
    caller, run = form.get("caller", ""), form.get("run", "")
    ended, loops, shared = await actions.release(project, agent=agent, caller=caller, run=run)
    back = agent_path(project, agent) if agent else "/agents"
    if not ended and not loops:
        return ActionResult(f"{who} {'was not quarantined' if run else _NOTHING}.", back, "warn", shared)
    done = [plural(len(ended), "hold") + " ended"] if ended else []
    done += [plural(loops, "blocked loop") + " cleared"] if loops else []
    return ActionResult(f"{who} is released: {', '.join(done)}.", back, shared=shared)


@_action("run.answer")
async def answer(actions: Actions, form: Asked) -> ActionResult:
    hold, shared = await actions.answer(form.get("id", ""), form.get("answer", ""))
    said = f"{hold.agent}: {pauses.words(form.get('answer', ''))}. The answer is in force."
    return ActionResult(said, "/pauses", shared=shared)


@_action("loop.snooze")
async def snooze(actions: Actions, form: Asked) -> ActionResult:
    fingerprint = form.get("fingerprint", "")
    if not fingerprint:
        raise OrderError(["fingerprint: must not be empty"])
    await actions.snooze(fingerprint, SNOOZE_S)
    return ActionResult("This loop is ignored for 1 hour.", "/incidents")


@_action("agent.settings")
async def save_settings(actions: Actions, form: Asked) -> ActionResult:
    project, agent = form.get("project", ""), form.get("agent", "")
    known = await actions.services.past(lambda history: history.agent(project, agent))
    await actions.set_agent(project, agent, views.changes(form, known.settings if known is not None else {}))
    return ActionResult(f"Settings of {agent} are saved.", agent_path(project, agent))


@_action("breaker.reset")
async def reset_breaker(actions: Actions, form: Asked) -> ActionResult:
    await actions.reset_breaker(form.get("policy", ""), form.get("key", ""))
    return ActionResult("The breaker is closed.", _LIMITS_PAGE)


@_action("tree.kill")
async def kill_tree(actions: Actions, form: Asked) -> ActionResult:
    return await _end_tree(actions, form, "stopped", lands=False)


@_action("tree.land")
async def land_tree(actions: Actions, form: Asked) -> ActionResult:
    return await _end_tree(actions, form, "asked to finish", lands=True)


async def _end_tree(actions: Actions, form: Asked, what: str, *, lands: bool) -> ActionResult:
    project, caller, root, session = (form.get(name, "") for name in ("project", "caller", "root", "session"))
    reason = form.get("reason", "")
    ended, stopped = await actions.kill_tree(project, caller, root, session, reason, lands=lands)
    said = f"{plural(ended, 'agent')} of the tree {what}.{_in_flight(stopped)}"
    return ActionResult(said, tree_path(project, caller, root), shared=stopped.shared)


@_action("tree.release")
async def release_tree(actions: Actions, form: Asked) -> ActionResult:
    project, caller, root, session = (form.get(name, "") for name in ("project", "caller", "root", "session"))
    released, shared = await actions.release_tree(project, caller, root, session)
    said = f"{plural(released, 'agent')} of the tree released."
    return ActionResult(said, tree_path(project, caller, root), shared=shared)


@_action("tree_budget.reset")
async def reset_tree_budget(actions: Actions, form: Asked) -> ActionResult:
    await actions.reset_tree_budget(form.get("project", ""), form.get("caller", ""), form.get("root", ""))
    return ActionResult("The tree has its whole budget again.", _LIMITS_PAGE)


@_action("switch.set")
async def set_switch(actions: Actions, form: Asked) -> ActionResult:
    key, value, route, reason = (form.get(name, "").strip() for name in ("scope_key", "scope_value", "route", "reason"))
    expires_at = _ends_at(actions, form)
    _, stopped = await actions.set_switch(key, value, route=route, reason=reason, expires_at=expires_at)
    said = f"Kill switch on {key}={value} is set.{_in_flight(stopped)}"
    return ActionResult(said, _LIMITS_PAGE, shared=stopped.shared)


@_action("switch.lift")
async def lift_switch(actions: Actions, form: Asked) -> ActionResult:
    shared = await actions.lift_switch(form.get("id", ""))
    return ActionResult("The kill switch is lifted.", _LIMITS_PAGE, shared=shared)


@_action("override.set")
async def set_override(actions: Actions, form: Asked) -> ActionResult:
    name, reason = form.get("override", ""), form.get("reason", "").strip()
    shared = await actions.set_override(name, reason, _ends_at(actions, form))
    return ActionResult(f"{name} is on.", _LIMITS_PAGE, "warn", shared)


@_action("override.lift")
async def lift_override(actions: Actions, form: Asked) -> ActionResult:
    name = form.get("override", "")
    return ActionResult(f"{name} is off.", _LIMITS_PAGE, shared=await actions.lift_override(name))


@_action("policy.promote")
async def promote(actions: Actions, form: Asked) -> ActionResult:
    policy = form.get("policy", "")
    await actions.promote(policy)
    return ActionResult(f"{policy} is enforced.", "/policies")


@_action("webhook.add")
async def add_webhook(actions: Actions, form: Asked) -> ActionResult:
    url, events = form.get("url", "").strip(), form.get("events", "").replace(",", " ").split()
    if not url.startswith(("http://", "https://")):
        raise OrderError(["url: must begin with http:// or https://"])
    made = await actions.add_webhook(url, events, allow_private=bool(form.get("allow_private")))
    return ActionResult(f"Webhook {made['id']} is added.", _ALERTS_PAGE, secret=str(made["secret"]))


@_action("webhook.remove")
async def remove_webhook(actions: Actions, form: Asked) -> ActionResult:
    given = form.get("id", "")
    await actions.remove_webhook(given)
    return ActionResult(f"Webhook {given} is removed.", _ALERTS_PAGE)


@_action("webhook.rotate")
async def rotate_secret(actions: Actions, form: Asked) -> ActionResult:
    made = await actions.rotate_webhook(form.get("id", ""))
    return ActionResult(f"Webhook {made['id']} has a new secret.", _ALERTS_PAGE, secret=str(made["secret"]))


@_action("delivery.again")
async def retry_delivery(actions: Actions, form: Asked) -> ActionResult:
    given = form.get("id", "")
    await actions.send_again(given)
    return ActionResult(f"Delivery {given} is queued again.", _ALERTS_PAGE)


@_action("webhook.test")
async def test_alert(actions: Actions, form: Asked) -> ActionResult:
    given = form.get("id", "")
    came = await actions.test_webhook(given)
    status, error = came.get("status"), came.get("error")
    answered = f"it answered {status}" if status else words.shortened(error or "no response")
    return ActionResult(f"Test to {given}: {answered}.", _ALERTS_PAGE, "good" if came.get("delivered") else "bad")
