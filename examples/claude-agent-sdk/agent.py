"""A stuck Claude Agent SDK agent, guarded by breakloop's hooks. The model is a stand-in: no keys, no network.
`python agent.py` shows the note, the denial, and the end of the run."""

from __future__ import annotations

import asyncio
import tempfile

from claude_agent_sdk import AssistantMessage, ClaudeAgentOptions, ResultMessage, ToolResultBlock, UserMessage, query

from breakloop.integrations.claude_agent import breakloop_hooks
from breakloop.testing import SeenRequest, StandInLLM, call_tool


def stuck_model(request: SeenRequest) -> object:
    """Simulate a model that ignores warnings and runs the same command every time."""
    turn = len(request.fields.get("messages", []))
    return call_tool("Bash", {"command": "cat missing.txt; true"}, tool_id=f"toolu_{turn:010}")


async def main(url: str, folder: str) -> None:
    """Run the agent until it ends."""
    options = ClaudeAgentOptions(
        hooks=breakloop_hooks(),  # the line added for breakloop
        permission_mode="bypassPermissions",
        cwd=folder,
        env={
            "ANTHROPIC_BASE_URL": url,
            "ANTHROPIC_API_KEY": "none",
            "HOME": folder,
            "IS_SANDBOX": "1",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        },
    )
    calls = 0
    async for message in query(prompt="What is in missing.txt?", options=options):
        if isinstance(message, AssistantMessage):
            calls += 1
        elif isinstance(message, UserMessage):
            for block in message.content:
                if isinstance(block, ToolResultBlock):
                    print(f"call {calls}: {block.content}")
        elif isinstance(message, ResultMessage):
            print(f"ended after {calls} calls: {message.terminal_reason}")


if __name__ == "__main__":
    with StandInLLM.in_thread(respond=stuck_model) as llm, tempfile.TemporaryDirectory() as folder:
        asyncio.run(main(llm.url, folder))
        notes = llm.requests[-1].body.count(b"[breakloop] ")
        print(f"the model was asked {len(llm.requests)} times, and read {notes} notes")
