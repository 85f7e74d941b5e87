"""smolagents: a step callback that checks each step of an agent.

    from breakloop.integrations.smolagents import GuardSteps
    agent = ToolCallingAgent(tools=[search], model=model, step_callbacks=[GuardSteps()])

A notice for the model is added to the observations of the step. An agent that is landed has no tools left but
`final_answer`, until its run ends. A denial ends the run with `LoopDetectedError` or `DeniedError`.
"""

from __future__ import annotations

import weakref
from typing import Any, NamedTuple

from smolagents import ActionStep, AgentMaxStepsError, CodeAgent

from breakloop.exceptions import error_for
from breakloop.model.decision import Decision, marked
from breakloop.sdk.context import AgentContext
from breakloop.sdk.guard import Guard
from breakloop.sdk.requests import ToolInvocation
from breakloop.sdk.toolkit import Run, steps_guard, toolkit_of

__all__ = ["GuardSteps"]

_ANSWER = "final_answer"


class _Tools(NamedTuple):
    tools: dict[str, Any]
    managed_agents: dict[str, Any]


class GuardSteps:
    """Checks the steps of agents, code agents included, streamed or not:

        agent = CodeAgent(tools=[search], model=model, step_callbacks=[GuardSteps()])

    A run of an agent is one conversation.
    """

    def __init__(self, guard: Guard | None = None, *, agent: str = "") -> None:
        self.guard = guard or steps_guard()
        self._toolkit = toolkit_of(self.guard)
        self._agent = agent
        self._runs: weakref.WeakKeyDictionary[Any, Run] = weakref.WeakKeyDictionary()
        self._removed: weakref.WeakKeyDictionary[Any, _Tools] = weakref.WeakKeyDictionary()  # of agents that finish

    def __call__(self, step: ActionStep, agent: Any) -> None:
        ended = step.is_final_answer or isinstance(step.error, AgentMaxStepsError)
        if ended or not (step.tool_calls or step.error or step.model_output):  # the last: the model could not be asked
            self._restore(agent)
            return
        decision = Decision()
        with self._toolkit.fail_open():
            decision = self._check(step, agent)
        if not decision.allowed:
            self._restore(agent)
            raise error_for(decision)
        self.guard.wait(decision)
        if decision.notice:
            seen = f"{step.observations}\n\n" if step.observations else ""
            step.observations = f"{seen}{marked(decision.notice)}"
        if decision.landed and agent not in self._removed:
            self._land(agent)

    def _check(self, step: ActionStep, agent: Any) -> Decision:
        run = self._runs.get(agent)
        if run is None or step.step_number == 1:
            name = self._agent or str(getattr(agent, "name", None) or "")
            model = str(getattr(agent.model, "model_id", None) or "")
            run = self._toolkit.new_run(AgentContext(name), model=model, task=str(agent.task or ""))
            self._runs[agent] = run
        result = f"Error: {step.error}" if step.error else step.observations or ""
        used = step.token_usage
        usage = {"input_tokens": used.input_tokens, "output_tokens": used.output_tokens} if used else None
        calls = _calls(step)
        return run.step(calls, [result] * len(calls), usage=usage)

    def _land(self, agent: Any) -> None:
        self._removed[agent] = _Tools(agent.tools, agent.managed_agents)
        agent.tools = {name: tool for name, tool in agent.tools.items() if name == _ANSWER}
        agent.managed_agents = {}
        if isinstance(agent, CodeAgent):  # it was given the tools when the run began
            agent.python_executor.send_tools(agent.tools)

    def _restore(self, agent: Any) -> None:
        removed = self._removed.pop(agent, None)
        if removed is not None:
            agent.tools, agent.managed_agents = removed
            if isinstance(agent, CodeAgent):
                agent.python_executor.send_tools({**removed.tools, **removed.managed_agents})


def _calls(step: ActionStep) -> list[ToolInvocation]:
    """Return what the model did. A step that failed early has no calls: what cannot be read is a call of the step."""
    if step.tool_calls:
        return [(one.name, one.arguments) for one in step.tool_calls]
    made = getattr(step.model_output_message, "tool_calls", None)
    return [(one.function.name, one.function.arguments) for one in made or ()] or [("step", str(step.model_output))]
