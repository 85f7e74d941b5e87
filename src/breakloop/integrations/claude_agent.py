"""Hooks for the Claude Agent SDK, in process: `ClaudeAgentOptions(hooks=breakloop_hooks(guard))`. A model that repeats
itself reads a note, then is refused the call, then its run is ended. What events and answers look like is
`claude_code`'s matter; the package is imported only here."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, Final

from claude_agent_sdk import HookMatcher

from breakloop.integrations import claude_code
from breakloop.integrations.claude_code import STOP_AFTER, HookEvent, Json
from breakloop.model.verdict import Decision
from breakloop.sdk.backend import STEPS_ONLY
from breakloop.sdk.guard import Guard
from breakloop.sdk.run import aafter, abefore

_OWNERS_MAX: Final = 1000


def breakloop_hooks(
    guard: Guard | None = None,
    *,
    agent: str = "",
    stop_after: int = STOP_AFTER,
    hooks: Mapping[str, list[HookMatcher]] | None = None,
) -> dict[Any, list[HookMatcher]]:
    """Return the hooks for `ClaudeAgentOptions(hooks=...)`. `hooks` are those of your own, which come first; after so
    many blocks in a row (`stop_after`; 0: never) the run is ended."""
    watch = ClaudeHooks(guard, agent=agent, stop_after=stop_after)
    made = {event: list(matchers) for event, matchers in (hooks or {}).items()}
    for event in claude_code.EVENTS:
        made.setdefault(event, []).append(HookMatcher(hooks=[watch]))
    return made


class ClaudeHooks:
    """One callback for all events; sessions and their sub-agents are told apart."""

    def __init__(self, guard: Guard | None = None, *, agent: str = "", stop_after: int = STOP_AFTER) -> None:
        self.guard = guard or Guard(STEPS_ONLY)
        self._agent = agent
        self._stop_after = stop_after
        self._strikes: OrderedDict[str, int] = OrderedDict()  # blocks in a row

    async def __call__(self, sent: Mapping[str, Any], tool_use_id: str | None, context: Any) -> Json:  # noqa: ARG002
        """Answer an event; {} is none."""
        with self.guard.fail_open():
            return await self._answer(claude_code.read(sent))
        return {}

    async def _answer(self, event: HookEvent) -> Json:
        run = self.guard.run_of(self._agent, event.owner)
        if event.kind == claude_code.PROMPT:
            self._strikes.pop(event.owner, None)
            return claude_code.prompted(await run.astep(user=event.prompt))
        if event.kind == claude_code.BEFORE:
            decision = await abefore(run, event.made)
            return claude_code.before(decision, self._strikes_of(event, decision), self._stop_after)
        if event.kind not in {claude_code.AFTER, claude_code.FAILED}:
            return {}
        decision = await aafter(run, event.made, event.outcome)
        return claude_code.after(event.kind, decision, self._strikes_of(event, decision), self._stop_after)

    def _strikes_of(self, event: HookEvent, decision: Decision) -> int:
        """Count blocks in a row: a step that nobody minds ends the row."""
        strikes = self._strikes.pop(event.owner, 0) + (not decision.allowed)
        if strikes and (not decision.allowed or decision.notice or event.kind == claude_code.BEFORE):
            self._strikes[event.owner] = strikes
            while len(self._strikes) > _OWNERS_MAX:
                self._strikes.popitem(last=False)
        return strikes
