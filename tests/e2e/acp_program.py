"""Both sides of the Agent Client Protocol, with its Python package, which the environment `semantic-kernel` has.

`acp_program.py agent` is an agent on stdin and stdout: "loop" makes the same call over and over, "work" thirty different
ones, and "ask" asks for permission before each of the same calls. It stops when it is cancelled.
`acp_program.py client PROMPTS COMMAND...` is an editor that starts the command, sends the prompts one after the other in
one session, and prints as JSON what it got for each.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import acp
from acp import schema
from acp.stdio import spawn_agent_process

CALLS = 30


class Agent:
    def __init__(self) -> None:
        self.client: Any = None
        self.cancelled = asyncio.Event()
        self.calls = 0

    def on_connect(self, conn: Any) -> None:
        self.client = conn

    async def initialize(self, protocol_version: int, **_: Any) -> schema.InitializeResponse:
        return schema.InitializeResponse(protocol_version=protocol_version)

    async def new_session(self, **_: Any) -> schema.NewSessionResponse:
        return schema.NewSessionResponse(session_id="s1")

    async def cancel(self, **_: Any) -> None:
        self.cancelled.set()

    async def prompt(self, prompt: list[Any], session_id: str, **_: Any) -> schema.PromptResponse:
        task = prompt[0].text
        self.cancelled.clear()
        for number in range(CALLS):
            self.calls += 1
            same = task != "work"
            asked = {"command": "make test" if same else f"cat {number}.txt"}
            printed = "1 failed" if same else f"line {number * 7919}"
            call_id = f"call-{self.calls}"
            started = acp.start_tool_call(call_id, "Run", kind="execute", status="pending", raw_input=asked)
            await self.client.session_update(session_id, started)
            if task == "ask" and not await self.permitted(session_id, call_id):
                return schema.PromptResponse(stop_reason="cancelled")
            content = [acp.tool_content(acp.text_block(printed))]
            done = acp.update_tool_call(call_id, status="completed", content=content)
            await self.client.session_update(session_id, done)
            # Another message makes the round to the client and back, so that a cancellation has come by now.
            await self.client.read_text_file(session_id=session_id, path="/nothing")
            if self.cancelled.is_set() and task != "ask":
                return schema.PromptResponse(stop_reason="cancelled")
        await self.client.session_update(session_id, acp.update_agent_message_text("Done."))
        return schema.PromptResponse(stop_reason="end_turn")

    async def permitted(self, session_id: str, call_id: str) -> bool:
        options = [schema.PermissionOption(option_id="yes", name="Yes", kind="allow_once")]
        call = schema.ToolCallUpdate(tool_call_id=call_id)
        answer = await self.client.request_permission(session_id=session_id, tool_call=call, options=options)
        return bool(answer.outcome.outcome == "selected")


class Editor:
    def __init__(self) -> None:
        self.texts: list[str] = []
        self.calls: set[str] = set()
        self.asked = 0

    def on_connect(self, conn: Any) -> None:
        pass

    async def session_update(self, session_id: str, update: Any, **_: Any) -> None:
        if update.session_update == "agent_message_chunk":
            self.texts.append(update.content.text)
        else:
            self.calls.add(update.tool_call_id)

    async def request_permission(self, options: list[Any], **_: Any) -> schema.RequestPermissionResponse:
        self.asked += 1
        outcome = schema.AllowedOutcome(outcome="selected", option_id=options[0].option_id)
        return schema.RequestPermissionResponse(outcome=outcome)

    async def read_text_file(self, **_: Any) -> schema.ReadTextFileResponse:
        return schema.ReadTextFileResponse(content="")


async def edit(prompts: list[str], command: list[str]) -> list[dict[str, Any]]:
    editor, got = Editor(), []
    async with spawn_agent_process(editor, *command, transport_kwargs={"stderr": sys.stderr}) as (connection, _):
        await connection.initialize(protocol_version=acp.PROTOCOL_VERSION)
        session = await connection.new_session(cwd="/", mcp_servers=[])
        for prompt in prompts:
            editor.texts, editor.calls, editor.asked = [], set(), 0
            answer = await connection.prompt(session_id=session.session_id, prompt=[acp.text_block(prompt)])
            text = "".join(editor.texts)
            outcome = {"stopped": answer.stop_reason, "calls": len(editor.calls), "asked": editor.asked, "text": text}
            got.append({**outcome, "meta": answer.field_meta})
    return got


if __name__ == "__main__":
    if sys.argv[1] == "agent":
        asyncio.run(acp.run_agent(Agent()))
    else:
        sys.stdout.write(json.dumps(asyncio.run(edit(sys.argv[2].split(","), sys.argv[3:]))))
