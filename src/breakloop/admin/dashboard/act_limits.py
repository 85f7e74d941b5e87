"""What an operator does with limits and policies: close breakers, set kill switches and overrides, promote."""

from __future__ import annotations

from typing import ClassVar, Final

from breakloop.admin.actions import Actions
from breakloop.admin.dashboard.act_agents import FOR
from breakloop.admin.dashboard.acts import Act, Asked, Input, Outcome, Question
from breakloop.admin.dashboard.views import words
from breakloop.policy.orders import GLOBAL_SHADOW, KILL_SWITCH_OVERRIDE

OVERRIDES: Final = {
    GLOBAL_SHADOW: "Nothing is denied any more: every policy only watches.",
    KILL_SWITCH_OVERRIDE: "Kill switches stop nobody any more.",
}
_A_WHILE: Final = FOR[1:]
_WHERE: Final = "/limits"


class ResetBreaker(Act):
    """Close a breaker at once."""

    name: ClassVar[str] = "breaker.reset"
    carries: ClassVar[tuple[str, ...]] = ("policy", "key")

    def question(self, asked: Asked) -> Question:
        """Return what is asked."""
        says = f"Requests pass again at once, with nothing counted: {words.shortened(asked.get('key', ''), 120)}"
        return Question("Close this breaker?", says, "Close breaker")

    async def do(self, actions: Actions, form: Asked) -> Outcome:
        """Close it."""
        await actions.reset_breaker(form.get("policy", ""), form.get("key", ""))
        return Outcome("The breaker is closed.", _WHERE)


class SetSwitch(Act):
    """Stop whoever has a value in a descriptor."""

    name: ClassVar[str] = "switch.set"

    def question(self, asked: Asked) -> Question:
        """Return what is asked."""
        key, value = asked.get("scope_key", "agent:id"), asked.get("scope_value", "")
        inputs = (
            Input("scope_key", "Descriptor", key, "Like agent:id or header:x-team.", required=True),
            Input("scope_value", "Value", value, "Whoever has it is stopped.", required=True),
            Input("route", "Only for paths like", "", "Empty: every path."),
            Input("reason", "Why", "", "The client and the audit log are told.", required=True),
            Input("for", "For how long", kind="choice", choices=(("", "until somebody lifts it"), *_A_WHILE)),
        )
        says = "Every request that matches is denied, on all instances, within a second."
        return Question("Set a kill switch", says, "Set kill switch", danger=True, inputs=inputs)

    async def do(self, actions: Actions, form: Asked) -> Outcome:
        """Set it."""
        key, value, route, reason = (
            form.get(name, "").strip() for name in ("scope_key", "scope_value", "route", "reason")
        )
        _, shared = await actions.set_switch(key, value, route=route, reason=reason, expires_at=self.ends_at(form))
        return Outcome(f"Kill switch on {key}={value} is set.", _WHERE, shared=shared)


class LiftSwitch(Act):
    """End a kill switch."""

    name: ClassVar[str] = "switch.lift"
    carries: ClassVar[tuple[str, ...]] = ("id", "scope")

    def question(self, asked: Asked) -> Question:
        """Return what is asked."""
        scope = words.shortened(asked.get("scope", ""), 80)
        title = f"Lift the kill switch on {scope}?" if scope else "Lift this kill switch?"
        return Question(title, "Whoever it stops may send requests again at once.", "Lift kill switch")

    async def do(self, actions: Actions, form: Asked) -> Outcome:
        """Lift it."""
        return Outcome("The kill switch is lifted.", _WHERE, shared=await actions.lift_switch(form.get("id", "")))


class SetOverride(Act):
    """Switch an override on for a while."""

    name: ClassVar[str] = "override.set"
    carries: ClassVar[tuple[str, ...]] = ("override",)

    def question(self, asked: Asked) -> Question:
        """Return what is asked."""
        name = asked.get("override", "")
        inputs = (Input("reason", "Why", required=True), Input("for", "For how long", kind="choice", choices=_A_WHILE))
        title = f"Switch {words.shortened(name, 40)} on?"
        return Question(title, OVERRIDES.get(name, ""), "Switch on", danger=True, inputs=inputs)

    async def do(self, actions: Actions, form: Asked) -> Outcome:
        """Switch it on."""
        name, reason = form.get("override", ""), form.get("reason", "").strip()
        return Outcome(
            f"{name} is on.", _WHERE, "warn", shared=await actions.set_override(name, reason, self.ends_at(form))
        )


class LiftOverride(Act):
    """End an override."""

    name: ClassVar[str] = "override.lift"
    carries: ClassVar[tuple[str, ...]] = ("override",)

    def question(self, asked: Asked) -> Question:
        """Return what is asked."""
        name = words.shortened(asked.get("override", ""), 40)
        return Question(f"Switch {name} off?", "Policies and kill switches bind again at once.", "Switch off")

    async def do(self, actions: Actions, form: Asked) -> Outcome:
        """Switch it off."""
        name = form.get("override", "")
        return Outcome(f"{name} is off.", _WHERE, shared=await actions.lift_override(name))


class Promote(Act):
    """Turn a policy from shadow to enforce."""

    name: ClassVar[str] = "policy.promote"
    carries: ClassVar[tuple[str, ...]] = ("policy",)

    def question(self, asked: Asked) -> Question:
        """Return what is asked."""
        says = "What it would have blocked, it blocks from now on. The bundle is changed, so that it stays so."
        title = f"Enforce {words.shortened(asked.get('policy', ''), 60)}?"
        return Question(title, says, "Promote to enforce", danger=True)

    async def do(self, actions: Actions, form: Asked) -> Outcome:
        """Promote it."""
        policy = form.get("policy", "")
        await actions.promote(policy)
        return Outcome(f"{policy} is enforced.", "/policies")
