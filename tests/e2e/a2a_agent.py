"""An agent that asks another one over A2A, with the real SDK, for test_a2a.py: `python a2a_agent.py URL BINDING TASK`. TASK is
`loop` (asks the same thirty times) or `work` (asks something else each time); the agent behind the gateway repeats itself
for the first. Prints, as its last line, how it ended, as JSON."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import httpx
from a2a.client import ClientConfig, ClientFactory, minimal_agent_card
from a2a.types import Message, Part, Role, SendMessageRequest

MESSAGES = 30


async def main(url: str, binding: str, task: str) -> dict[str, Any]:
    passed = 0
    async with httpx.AsyncClient(trust_env=False) as http:
        config = ClientConfig(streaming=False, httpx_client=http, supported_protocol_bindings=[binding])
        client = ClientFactory(config).create(minimal_agent_card(url, [binding]))
        try:
            for number in range(MESSAGES):
                text = "Find our refund policy." if task == "loop" else f"Translate chapter {number}."
                part = Part(text=text)
                message = Message(
                    role=Role.ROLE_USER, parts=[part], message_id=f"m-{number}", context_id=f"{binding}-{task}"
                )
                async for _ in client.send_message(SendMessageRequest(message=message)):
                    pass
                passed += 1
        except Exception as error:  # noqa: BLE001 - whatever the SDK raises
            return {"passed": passed, "error": type(error).__name__, "message": str(error)}
    return {"passed": passed, "error": "", "message": ""}


sys.stdout.write(json.dumps(asyncio.run(main(*sys.argv[1:]))) + "\n")
