"""The demonstration's traffic: two simulated agents, a real decision service on a loopback port, a clock that is moved
by hand. What they were answered comes out as values; showing them is `demo`'s work."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field

from breakloop.cli.offline import Offline
from breakloop.clock import FakeClock
from breakloop.gateway.server import Server
from breakloop.settings import Settings

LOOPING = "looping"
HEALTHY = "healthy"
_TARGET = "/v1/decision/envoy/v1/chat/completions"
_TOPICS = ("pricing page", "change log", "open issues", "release notes", "status page", "support forum", "benchmarks")


@dataclass(frozen=True, slots=True)
class Answered:
    """One request of one agent and what the decision service said to it."""

    agent: str
    number: int
    at_s: int
    status: int
    reason: str = ""
    retry_after_s: int = 0
    message: str = ""

    @property
    def allowed(self) -> bool:
        """Tell whether the call would have been forwarded to the model."""
        return self.status == 200


@dataclass(slots=True)
class Totals:
    """What became of an agent's requests."""

    passed: int = 0
    blocked: int = 0
    cooldowns_s: list[int] = field(default_factory=list)  # one for each detection
    cooling: bool = False

    def count(self, answered: Answered) -> bool:
        """Count an answer; tell whether it is a new detection (and not one more request during a cooldown)."""
        if answered.allowed:
            self.passed += 1
            self.cooling = False
            return False
        self.blocked += 1
        fresh = not self.cooling
        if fresh:
            self.cooling = True
            self.cooldowns_s.append(answered.retry_after_s)
        return fresh


async def traffic(seconds: int) -> AsyncIterator[list[Answered]]:
    """Run both agents for so many simulated seconds, one request a second each; yield each second's answers."""
    clock = FakeClock()
    service = Offline(None, Settings(), clock)
    server = Server(service.door)
    port = await server.start()
    client = await _Client.connect(port)
    try:
        for at_s in range(seconds):
            yield [await _ask(client, agent, at_s) for agent in (LOOPING, HEALTHY)]
            clock.advance(1)
    finally:
        client.close()
        await server.stop(0)


def chat(agent: str, number: int) -> dict[str, object]:
    """Return an agent's next request: one asks the same for ever, the other asks something new each time."""
    if agent == LOOPING:
        question = "The deploy failed. Read the log again and fix it."
    else:
        question = (
            f"Note {number}: summarise the {_TOPICS[number % len(_TOPICS)]} of vendor {number // len(_TOPICS) + 1}."
        )
    messages = [{"role": "system", "content": f"You are {agent}."}, {"role": "user", "content": question}]
    return {"model": "demo-model", "messages": messages}


async def _ask(client: _Client, agent: str, at_s: int) -> Answered:
    number = at_s + 1
    status, headers, body = await client.post(_TARGET, {"X-Agent-Id": agent}, chat(agent, number))
    detail = json.loads(body)["detail"] if body else {}
    reason = headers.get("x-breakloop-reason", "")
    wait_s = int(headers.get("retry-after", "0"))
    return Answered(agent, number, at_s, status, reason, wait_s, str(detail.get("message", "")))


class _Client:
    """Just enough HTTP for one keep-alive connection to our own server."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def connect(cls, port: int) -> _Client:
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    async def post(
        self, target: str, headers: Mapping[str, str], content: Mapping[str, object]
    ) -> tuple[int, dict[str, str], bytes]:
        body = json.dumps(content).encode()
        fields = {"Host": "llm.example.com", "Content-Type": "application/json", **headers}
        head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        self._writer.write(f"POST {target} HTTP/1.1\r\n{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        status, *lines = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1").strip().split("\r\n")
        answered = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        return int(status.split(" ")[1]), answered, await self._reader.readexactly(int(answered["content-length"]))

    def close(self) -> None:
        self._writer.close()
