"""What an operator does with agents: hold one, let it go, set its limits, leave a loop of it alone for a while."""

from __future__ import annotations

from typing import ClassVar, Final
from urllib.parse import urlencode

from breakloop.admin.actions import Actions
from breakloop.admin.dashboard.acts import Act, Asked, Input, Outcome, Question
from breakloop.admin.dashboard.views import agents, words
from breakloop.errors import OrderError

FOR: Final = (("", "until somebody releases it"), ("900", "15 minutes"), ("3600", "1 hour"), ("86400", "1 day"))
_NOTHING: Final = "was neither held nor known to be blocked; what its loops had counted is forgotten"
SNOOZE_S: Final = 3_600.0


class Kill(Act):
    """Hold an agent by its name."""

    name: ClassVar[str] = "agent.kill"
    carries: ClassVar[tuple[str, ...]] = ("project", "agent")

    def question(self, asked: Asked) -> Question:
        """Return what is asked."""
        agent = words.shortened(asked.get("agent", ""), 60)
        says = "Every request of this agent is denied from now on, whoever sends it, on all instances."
        inputs = (
            Input("reason", "Why", hint="The agent and the audit log are told.", required=True),
            Input("for", "For how long", kind="choice", choices=FOR),
        )
        return Question(f"Kill {agent}?", says, "Kill agent", danger=True, inputs=inputs)

    async def do(self, actions: Actions, form: Asked) -> Outcome:
        """Hold it."""
        project, agent = form.get("project", ""), form.get("agent", "")
        _, shared = await actions.kill(project, agent, form.get("reason", "").strip(), self.ends_at(form))
        seen, meant = await actions.seen(project, agent)
        if not seen:
            hint = f" Did you mean {words.shortened(meant, 60)}?" if meant else ""
            said = f"{agent} is held, but no agent of this name was ever seen.{hint}"
            return Outcome(said, agent_path(project, agent), "warn", shared)
        return Outcome(f"{agent} is held.", agent_path(project, agent), shared=shared)


class Release(Act):
    """Let an agent, a caller or a run go."""

    name: ClassVar[str] = "agent.release"
    carries: ClassVar[tuple[str, ...]] = ("project", "agent", "caller", "run")

    def question(self, asked: Asked) -> Question:
        """Return what is asked."""
        says = "It may send requests again at once. What was counted against it is cleared, so it starts afresh."
        return Question(f"Release {words.shortened(_who(asked), 60)}?", says, "Release")

    async def do(self, actions: Actions, form: Asked) -> Outcome:
        """Let it go."""
        project, agent, who = form.get("project", ""), form.get("agent", ""), _who(form)
        caller, run = form.get("caller", ""), form.get("run", "")
        ended, loops, shared = await actions.release(project, agent=agent, caller=caller, run=run)
        back = agent_path(project, agent) if agent else "/agents"
        if not ended and not loops:
            return Outcome(f"{who} {'was not held' if run else _NOTHING}.", back, "warn", shared)
        done = [words.counted(len(ended), "hold") + " ended"] if ended else []
        done += [words.counted(loops, "blocked loop") + " forgotten"] if loops else []
        return Outcome(f"{who} is released: {', '.join(done)}.", back, shared=shared)


class Snooze(Act):
    """Leave a loop alone for an hour."""

    name: ClassVar[str] = "loop.snooze"
    carries: ClassVar[tuple[str, ...]] = ("fingerprint", "agent")

    def question(self, asked: Asked) -> Question:
        """Return what is asked."""
        whose = f" of {words.shortened(asked['agent'], 60)}" if asked.get("agent") else ""
        says = "For one hour this very loop is neither warned of nor denied, and costs what it costs. Others still are."
        return Question(f"Snooze this loop{whose} for 1 hour?", says, "Snooze 1 h")

    async def do(self, actions: Actions, form: Asked) -> Outcome:
        """Leave it alone."""
        fingerprint = form.get("fingerprint", "")
        if not fingerprint:
            raise OrderError(["fingerprint: must not be empty"])
        await actions.snooze(fingerprint, SNOOZE_S)
        return Outcome("This loop is left alone for 1 hour.", "/incidents")


class Settings(Act):
    """Set what an agent may do. The agent's page has the form; the question is whether it is meant."""

    name: ClassVar[str] = "agent.settings"
    carries: ClassVar[tuple[str, ...]] = ("project", "agent")

    def question(self, asked: Asked) -> Question:
        """Return what is asked."""
        agent = words.shortened(asked.get("agent", ""), 60)
        return Question(f"Change the settings of {agent}", "The form is on the agent's page.", "Go back")

    async def do(self, actions: Actions, form: Asked) -> Outcome:
        """Keep them."""
        project, agent, history = form.get("project", ""), form.get("agent", ""), self._services.history
        known = await self._services.aside(lambda: history.agent(project, agent))
        await actions.set_agent(project, agent, agents.changes(form, known.settings if known is not None else {}))
        return Outcome(f"Settings of {agent} are saved.", agent_path(project, agent))


def agent_path(project: str, agent: str) -> str:
    """Return where the page of an agent is."""
    return "/agent?" + urlencode({"project": project, "name": agent})


def _who(given: Asked) -> str:
    if given.get("run"):
        return f"run {given['run']}"
    return given.get("agent") or f"caller {given.get('caller', '')}"
