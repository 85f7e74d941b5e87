"""Actions of the dashboard. An action is one class here and one row in `dashboard.ACTIONS`.

`/ask/NAME` shows the question, as a page or in a dialog; `/act/NAME` carries it out. `admin.actions` writes the
audit log before an action is acknowledged.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from breakloop.admin.actions import Actions, AdminServices
from breakloop.admin.auth import AdminIdentity, identity
from breakloop.admin.dashboard import views, words
from breakloop.admin.dashboard.render import PageRenderer, check_acts, own_path
from breakloop.admin.errors import ApiError
from breakloop.errors import OrderError
from breakloop.policy.orders import GLOBAL_SHADOW, KILL_SWITCH_OVERRIDE

Asked = Mapping[str, str]
SHARED_LATER: Final = " The shared store is unavailable: other instances follow when it is back."


@dataclass(frozen=True, slots=True)
class FormInput:
    """A field to fill in. `choices` are values and labels."""

    name: str
    label: str
    value: str = ""
    hint: str = ""
    kind: str = "text"  # "text", "choice" or "check"
    choices: tuple[tuple[str, str], ...] = ()
    required: bool = False


@dataclass(frozen=True, slots=True)
class Question:
    """The question before an action."""

    title: str
    says: str
    button: str
    danger: bool = False
    inputs: tuple[FormInput, ...] = ()


@dataclass(frozen=True, slots=True)
class ActionResult:
    """The outcome of an action, for the operator."""

    said: str
    back: str
    tone: str = "good"
    shared: bool = True  # every instance has it
    secret: str = ""  # shown once


class DashboardAction(ABC):
    """One action. `carries` are the parameters of the question that the form sends on."""

    name: ClassVar[str]
    carries: ClassVar[tuple[str, ...]] = ()

    def __init__(self, services: AdminServices) -> None:
        self._services = services

    @abstractmethod
    def question(self, asked: Asked) -> Question: ...

    @abstractmethod
    async def do(self, actions: Actions, form: Asked) -> ActionResult:
        """Carry it out. Raises `BreakloopError`."""

    def ends_at(self, form: Asked) -> float | None:
        """Return when an order expires; None for never. Raises `OrderError`."""
        given = form.get("for", "")
        if not given:
            return None
        if not (given.isascii() and given.isdecimal()) or len(given) > 9:
            raise OrderError(["for: must be a number of seconds"])
        return self._services.clock.now() + int(given)


class DashboardActions:
    """The routes of all actions."""

    def __init__(self, renderer: PageRenderer, actions: Sequence[DashboardAction]) -> None:
        self._renderer = renderer
        self._actions = {action.name: action for action in actions}

    def routes(self) -> list[Route]:
        return [self._renderer.get("/ask/{name}", self.ask), self._renderer.post("/act/{name}", self.act)]

    async def ask(self, request: Request) -> Response:
        check_acts(identity(request))
        action, asked = self._named(request), dict(request.query_params)
        values: dict[str, Any] = {
            "act": action.name,
            "question": action.question(asked),
            "carried": {name: asked.get(name, "") for name in action.carries},
            "back": own_path(asked.get("back", ""), ""),
        }
        return await self._renderer.show(request, "ask.html", **values)

    async def act(self, request: Request, who: AdminIdentity, form: dict[str, str]) -> Response:
        """Carry out an action, and redirect."""
        done = await self._named(request).do(Actions(self._renderer.services, who), form)
        if done.secret:
            return await self._renderer.show(request, "secret.html", said=done.said, secret=done.secret, back=done.back)
        said = done.said if done.shared else done.said + SHARED_LATER
        return self._renderer.go(own_path(form.get("back", ""), done.back), said, done.tone)

    def _named(self, request: Request) -> DashboardAction:
        action = self._actions.get(request.path_params["name"])
        if action is None:
            raise ApiError(404, "there is no such action")
        return action


FOR: Final = (("", "until it is released"), ("900", "15 minutes"), ("3600", "1 hour"), ("86400", "1 day"))
_NOTHING: Final = "was neither quarantined nor blocked; the counts of its loops were cleared"
SNOOZE_S: Final = 3_600.0


class KillAction(DashboardAction):
    """Quarantine an agent by its name."""

    name: ClassVar[str] = "agent.kill"
    carries: ClassVar[tuple[str, ...]] = ("project", "agent")

    def question(self, asked: Asked) -> Question:
        agent = words.shortened(asked.get("agent", ""), 60)
        says = "From now on every request of this agent is denied, for all callers and on all instances."
        inputs = (
            FormInput("reason", "Reason", hint="Shown to the agent and in the audit log.", required=True),
            FormInput("for", "Duration", kind="choice", choices=FOR),
        )
        return Question(f"Kill {agent}?", says, "Kill agent", danger=True, inputs=inputs)

    async def do(self, actions: Actions, form: Asked) -> ActionResult:
        project, agent = form.get("project", ""), form.get("agent", "")
        _, shared = await actions.kill(project, agent, form.get("reason", "").strip(), self.ends_at(form))
        seen, meant = await actions.seen(project, agent)
        if not seen:
            hint = f" Did you mean {words.shortened(meant, 60)}?" if meant else ""
            said = f"{agent} is quarantined, but no agent of this name was ever seen.{hint}"
            return ActionResult(said, agent_path(project, agent), "warn", shared)
        return ActionResult(f"{agent} is quarantined.", agent_path(project, agent), shared=shared)


class ReleaseAction(DashboardAction):
    """Release an agent, a caller or a run."""

    name: ClassVar[str] = "agent.release"
    carries: ClassVar[tuple[str, ...]] = ("project", "agent", "caller", "run")

    def question(self, asked: Asked) -> Question:
        says = "It may send requests again immediately. Its counters are cleared."
        return Question(f"Release {words.shortened(_who(asked), 60)}?", says, "Release")

    async def do(self, actions: Actions, form: Asked) -> ActionResult:
        project, agent, who = form.get("project", ""), form.get("agent", ""), _who(form)
        caller, run = form.get("caller", ""), form.get("run", "")
        ended, loops, shared = await actions.release(project, agent=agent, caller=caller, run=run)
        back = agent_path(project, agent) if agent else "/agents"
        if not ended and not loops:
            return ActionResult(f"{who} {'was not quarantined' if run else _NOTHING}.", back, "warn", shared)
        done = [words.counted(len(ended), "hold") + " ended"] if ended else []
        done += [words.counted(loops, "blocked loop") + " cleared"] if loops else []
        return ActionResult(f"{who} is released: {', '.join(done)}.", back, shared=shared)


class SnoozeAction(DashboardAction):
    """Ignore a loop for an hour."""

    name: ClassVar[str] = "loop.snooze"
    carries: ClassVar[tuple[str, ...]] = ("fingerprint", "agent")

    def question(self, asked: Asked) -> Question:
        whose = f" of {words.shortened(asked['agent'], 60)}" if asked.get("agent") else ""
        says = "For one hour this loop is neither reported nor denied. Other loops still are."
        return Question(f"Snooze this loop{whose} for 1 hour?", says, "Snooze 1 h")

    async def do(self, actions: Actions, form: Asked) -> ActionResult:
        fingerprint = form.get("fingerprint", "")
        if not fingerprint:
            raise OrderError(["fingerprint: must not be empty"])
        await actions.snooze(fingerprint, SNOOZE_S)
        return ActionResult("This loop is ignored for 1 hour.", "/incidents")


class SettingsAction(DashboardAction):
    """Save the settings of an agent. Its page has the form, so the question only leads back."""

    name: ClassVar[str] = "agent.settings"
    carries: ClassVar[tuple[str, ...]] = ("project", "agent")

    def question(self, asked: Asked) -> Question:
        agent = words.shortened(asked.get("agent", ""), 60)
        return Question(f"Change the settings of {agent}", "The form is on the agent's page.", "Go back")

    async def do(self, actions: Actions, form: Asked) -> ActionResult:
        project, agent, history = form.get("project", ""), form.get("agent", ""), self._services.history
        known = await self._services.in_thread(lambda: history.agent(project, agent))
        await actions.set_agent(project, agent, views.changes(form, known.settings if known is not None else {}))
        return ActionResult(f"Settings of {agent} are saved.", agent_path(project, agent))


def agent_path(project: str, agent: str) -> str:
    """Return the path of an agent's page."""
    return "/agent?" + urlencode({"project": project, "name": agent})


def _who(given: Asked) -> str:
    if given.get("run"):
        return f"run {given['run']}"
    return given.get("agent") or f"caller {given.get('caller', '')}"


OVERRIDES: Final = {
    GLOBAL_SHADOW: "No request is denied: every policy runs in shadow mode.",
    KILL_SWITCH_OVERRIDE: "Kill switches have no effect.",
}
_A_WHILE: Final = FOR[1:]
_LIMITS_PAGE: Final = "/limits"


class ResetBreakerAction(DashboardAction):
    """Close a breaker."""

    name: ClassVar[str] = "breaker.reset"
    carries: ClassVar[tuple[str, ...]] = ("policy", "key")

    def question(self, asked: Asked) -> Question:
        key = words.shortened(asked.get("key", ""), 120)
        says = f"Requests are allowed again immediately, and its counter is reset: {key}"
        return Question("Close this breaker?", says, "Close breaker")

    async def do(self, actions: Actions, form: Asked) -> ActionResult:
        await actions.reset_breaker(form.get("policy", ""), form.get("key", ""))
        return ActionResult("The breaker is closed.", _LIMITS_PAGE)


class SetSwitchAction(DashboardAction):
    """Set a kill switch."""

    name: ClassVar[str] = "switch.set"

    def question(self, asked: Asked) -> Question:
        key, value = asked.get("scope_key", "agent:id"), asked.get("scope_value", "")
        inputs = (
            FormInput("scope_key", "Descriptor", key, "For example agent:id or header:x-team.", required=True),
            FormInput("scope_value", "Value", value, "Requests with this value are denied.", required=True),
            FormInput("route", "Path", "", "Empty: all paths. * at the end matches any suffix."),
            FormInput("reason", "Reason", "", "Shown to the client and in the audit log.", required=True),
            FormInput("for", "Duration", kind="choice", choices=(("", "until it is lifted"), *_A_WHILE)),
        )
        says = "All matching requests are denied, on all instances, within a second."
        return Question("Set a kill switch", says, "Set kill switch", danger=True, inputs=inputs)

    async def do(self, actions: Actions, form: Asked) -> ActionResult:
        key, value, route, reason = (
            form.get(name, "").strip() for name in ("scope_key", "scope_value", "route", "reason")
        )
        _, shared = await actions.set_switch(key, value, route=route, reason=reason, expires_at=self.ends_at(form))
        return ActionResult(f"Kill switch on {key}={value} is set.", _LIMITS_PAGE, shared=shared)


class LiftSwitchAction(DashboardAction):
    """Lift a kill switch."""

    name: ClassVar[str] = "switch.lift"
    carries: ClassVar[tuple[str, ...]] = ("id", "scope")

    def question(self, asked: Asked) -> Question:
        scope = words.shortened(asked.get("scope", ""), 80)
        title = f"Lift the kill switch on {scope}?" if scope else "Lift this kill switch?"
        return Question(title, "The requests it matches are allowed again immediately.", "Lift kill switch")

    async def do(self, actions: Actions, form: Asked) -> ActionResult:
        return ActionResult(
            "The kill switch is lifted.", _LIMITS_PAGE, shared=await actions.lift_switch(form.get("id", ""))
        )


class SetOverrideAction(DashboardAction):
    """Activate an override until it expires."""

    name: ClassVar[str] = "override.set"
    carries: ClassVar[tuple[str, ...]] = ("override",)

    def question(self, asked: Asked) -> Question:
        name = asked.get("override", "")
        inputs = (
            FormInput("reason", "Reason", required=True),
            FormInput("for", "Duration", kind="choice", choices=_A_WHILE),
        )
        title = f"Switch {words.shortened(name, 40)} on?"
        return Question(title, OVERRIDES.get(name, ""), "Switch on", danger=True, inputs=inputs)

    async def do(self, actions: Actions, form: Asked) -> ActionResult:
        name, reason = form.get("override", ""), form.get("reason", "").strip()
        return ActionResult(
            f"{name} is on.", _LIMITS_PAGE, "warn", shared=await actions.set_override(name, reason, self.ends_at(form))
        )


class LiftOverrideAction(DashboardAction):
    """End an override."""

    name: ClassVar[str] = "override.lift"
    carries: ClassVar[tuple[str, ...]] = ("override",)

    def question(self, asked: Asked) -> Question:
        name = words.shortened(asked.get("override", ""), 40)
        return Question(
            f"Switch {name} off?", "Policies and kill switches take effect again immediately.", "Switch off"
        )

    async def do(self, actions: Actions, form: Asked) -> ActionResult:
        name = form.get("override", "")
        return ActionResult(f"{name} is off.", _LIMITS_PAGE, shared=await actions.lift_override(name))


class PromoteAction(DashboardAction):
    """Change a policy from shadow to enforce mode."""

    name: ClassVar[str] = "policy.promote"
    carries: ClassVar[tuple[str, ...]] = ("policy",)

    def question(self, asked: Asked) -> Question:
        says = "From now on it denies what it would have denied. The bundle itself is changed."
        title = f"Enforce {words.shortened(asked.get('policy', ''), 60)}?"
        return Question(title, says, "Promote to enforce", danger=True)

    async def do(self, actions: Actions, form: Asked) -> ActionResult:
        policy = form.get("policy", "")
        await actions.promote(policy)
        return ActionResult(f"{policy} is enforced.", "/policies")


_ALERTS_PAGE: Final = "/alerts"


class AddWebhookAction(DashboardAction):
    """Register a webhook."""

    name: ClassVar[str] = "webhook.add"

    def question(self, asked: Asked) -> Question:
        inputs = (
            FormInput("url", "URL", asked.get("url", ""), "Each event is sent as a signed POST.", required=True),
            FormInput(
                "events", "Events", "loop.detected, agent.killed", "Names with commas between; empty: all events."
            ),
            FormInput("allow_private", "Allow private addresses", kind="check"),
        )
        return Question("Add a webhook", "Its secret is shown once, on the next page.", "Add webhook", inputs=inputs)

    async def do(self, actions: Actions, form: Asked) -> ActionResult:
        url, events = form.get("url", "").strip(), form.get("events", "").replace(",", " ").split()
        if not url.startswith(("http://", "https://")):
            raise OrderError(["url: must begin with http:// or https://"])
        made = await actions.add_webhook(url, events, allow_private=bool(form.get("allow_private")))
        return ActionResult(f"Webhook {made['id']} is added.", _ALERTS_PAGE, secret=str(made["secret"]))


class RemoveWebhookAction(DashboardAction):
    """Remove a webhook."""

    name: ClassVar[str] = "webhook.remove"
    carries: ClassVar[tuple[str, ...]] = ("id",)

    def question(self, asked: Asked) -> Question:
        says = "Nothing more is sent there; waiting deliveries are given up."
        return Question(f"Remove webhook {words.shortened(asked.get('id', ''), 40)}?", says, "Remove", danger=True)

    async def do(self, actions: Actions, form: Asked) -> ActionResult:
        given = form.get("id", "")
        await actions.remove_webhook(given)
        return ActionResult(f"Webhook {given} is removed.", _ALERTS_PAGE)


class RotateSecretAction(DashboardAction):
    """Replace the secret of a webhook."""

    name: ClassVar[str] = "webhook.rotate"
    carries: ClassVar[tuple[str, ...]] = ("id",)

    def question(self, asked: Asked) -> Question:
        says = "The new secret is shown once, on the next page. The old one also signs for a day."
        return Question(f"New secret for {words.shortened(asked.get('id', ''), 40)}?", says, "Create new secret")

    async def do(self, actions: Actions, form: Asked) -> ActionResult:
        made = await actions.rotate_webhook(form.get("id", ""))
        return ActionResult(f"Webhook {made['id']} has a new secret.", _ALERTS_PAGE, secret=str(made["secret"]))


class RetryDeliveryAction(DashboardAction):
    """Send a failed delivery again."""

    name: ClassVar[str] = "delivery.again"
    carries: ClassVar[tuple[str, ...]] = ("id",)

    def question(self, asked: Asked) -> Question:
        says = "It is sent with the same id, so that the receiver can detect a duplicate."
        return Question(f"Send {words.shortened(asked.get('id', ''), 40)} again?", says, "Send again")

    async def do(self, actions: Actions, form: Asked) -> ActionResult:
        given = form.get("id", "")
        await actions.send_again(given)
        return ActionResult(f"Delivery {given} is queued again.", _ALERTS_PAGE)


class TestAlertAction(DashboardAction):
    """Send a test event."""

    name: ClassVar[str] = "webhook.test"
    carries: ClassVar[tuple[str, ...]] = ("id",)

    def question(self, asked: Asked) -> Question:
        says = "Sends a test event, signed like the real ones."
        return Question(f"Send a test to {words.shortened(asked.get('id', ''), 40)}?", says, "Send test")

    async def do(self, actions: Actions, form: Asked) -> ActionResult:
        given = form.get("id", "")
        came = await actions.test_webhook(given)
        status, error = came.get("status"), came.get("error")
        answered = f"it answered {status}" if status else words.shortened(error or "no response")
        return ActionResult(f"Test to {given}: {answered}.", _ALERTS_PAGE, "good" if came.get("delivered") else "bad")
