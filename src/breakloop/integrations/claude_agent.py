"""Hooks for the Claude Agent SDK:

    from breakloop.integrations.claude_agent import breakloop_hooks
    options = ClaudeAgentOptions(hooks=breakloop_hooks())

A model that repeats itself reads a note, then its call is denied, then its run is ended. A run that is landed gets no
more calls: the model reads why, and answers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from claude_agent_sdk import HookMatcher

from breakloop.integrations import claude_code
from breakloop.integrations.claude_code import STOP_AFTER, HookEvent, Json
from breakloop.model.decision import Decision
from breakloop.sdk.context import AgentContext
from breakloop.sdk.guard import Guard
from breakloop.sdk.toolkit import BoundedDict, steps_guard, toolkit_of

__all__ = ["ClaudeHooks", "breakloop_hooks"]

_OWNERS_MAX: Final = 1000


def breakloop_hooks(
    guard: Guard | None = None,
    *,
    agent: str = "",
    stop_after: int = STOP_AFTER,
    hooks: Mapping[str, list[HookMatcher]] | None = None,
) -> dict[Any, list[HookMatcher]]:
    """Return the hooks for `ClaudeAgentOptions(hooks=...)`. `hooks` are your own, which run first. After `stop_after`
    blocks in a row the run is ended; 0 means never."""
    callback = ClaudeHooks(guard, agent=agent, stop_after=stop_after)
    made = {event: list(matchers) for event, matchers in (hooks or {}).items()}
    for event in claude_code.EVENTS:
        made.setdefault(event, []).append(HookMatcher(hooks=[callback]))
    return made


class ClaudeHooks:
    """One callback for all events. Each session, and each sub-agent in it, is a run of its own:

    ```python
    hooks = ClaudeHooks(agent="reviewer")
    options = ClaudeAgentOptions(hooks={"PostToolUse": [HookMatcher(hooks=[hooks])]})
    ```
    """

    def __init__(self, guard: Guard | None = None, *, agent: str = "", stop_after: int = STOP_AFTER) -> None:
        self.guard = guard or steps_guard()
        self._toolkit = toolkit_of(self.guard)
        self._agent = agent
        self._stop_after = stop_after
        self._strikes: BoundedDict[str, int] = BoundedDict(_OWNERS_MAX)  # blocks in a row, by owner
        self._landing: BoundedDict[str, Decision] = BoundedDict(_OWNERS_MAX)  # owners that are to answer without tools

    async def __call__(self, sent: Mapping[str, Any], tool_use_id: str | None, context: Any) -> Json:  # noqa: ARG002
        with self._toolkit.fail_open():
            return await self._answer(claude_code.read(sent))
        return {}

    async def _answer(self, event: HookEvent) -> Json:
        run = self._toolkit.run_for(AgentContext(self._agent, event.owner))
        if event.kind == claude_code.PROMPT:
            self._strikes.pop(event.owner, None)
            self._landing.pop(event.owner, None)
            return claude_code.answer_to(event.kind, await run.astep(user=event.prompt))
        if event.kind == claude_code.BEFORE:
            decision = self._landing.get(event.owner) or await run.abefore_tool(event.tool, event.arguments)
        elif event.kind in {claude_code.AFTER, claude_code.FAILED}:
            decision = await run.aafter_tool(event.tool, event.arguments, event.outcome)
            if decision.landed:
                self._landing[event.owner] = decision
        else:
            return {}
        return claude_code.answer_to(event.kind, decision, self._count(event, decision), self._stop_after)

    def _count(self, event: HookEvent, decision: Decision) -> int:
        """Return the blocks in a row. A step without any finding ends the row."""
        blocks = claude_code.blocks_call(event.kind, decision)
        strikes = self._strikes.pop(event.owner, 0) + blocks
        if strikes and (blocks or decision.notice or event.kind == claude_code.BEFORE):
            self._strikes[event.owner] = strikes
        return strikes
