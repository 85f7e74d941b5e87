"""A program with an agent of the Claude Agent SDK, run in the SDK's own environment: asks the model at the first
argument, under HOME, with hooks for the gateway that BREAKLOOP_URL names, or in
process, with the bundle in BREAKLOOP_POLICY. Prints how it ended, as JSON."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Any

from claude_agent_sdk import ClaudeAgentOptions, HookMatcher, ResultMessage, query

from breakloop import Guard
from breakloop.integrations.claude_agent import ClaudeHooks, breakloop_hooks

MODEL = "claude-sonnet-4-5"


async def main(url: str) -> dict[str, Any]:
    gateway = os.environ.get("BREAKLOOP_URL", "")
    policy = json.loads(os.environ.get("BREAKLOOP_POLICY", "null"))
    guard = Guard(url=gateway) if gateway else Guard(policy) if policy else None
    seen: list[str] = []

    async def mine(sent: Any, tool_use_id: str | None, context: Any) -> dict[str, Any]:
        seen.append(sent["tool_use_id"])
        return {}

    hooks = breakloop_hooks(guard, agent="reviewer", hooks={"PreToolUse": [HookMatcher("Bash", [mine])]})
    (ours,) = hooks["PostToolUse"][0].hooks
    assert isinstance(ours, ClaudeHooks)
    env = {name: os.environ[name] for name in ("HOME", "IS_SANDBOX", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC")}
    options = ClaudeAgentOptions(
        hooks=hooks,
        permission_mode="bypassPermissions",
        model=MODEL,
        cwd=os.environ["HOME"],
        env={**env, "ANTHROPIC_BASE_URL": url, "ANTHROPIC_API_KEY": "sk-canary-claude"},
    )
    async for message in query(prompt="Please read the file.", options=options):
        if isinstance(message, ResultMessage):
            return {
                "ended": message.terminal_reason,
                "said": message.result,
                "denied": len(message.permission_denials or []),
                "mine": len(seen),
                "faults": ours.guard.faults,
            }
    raise AssertionError("no result")


if __name__ == "__main__":
    sys.stdout.write(json.dumps(asyncio.run(main(sys.argv[1]))))
