"""The processes of the demo: a stand-in LLM, the real gateway, and two agents, on loopback ports with a simulated
clock.

The agents speak Chat Completions over HTTP, as an SDK does. `demo` prints the results.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPMessage
from typing import Any, Final

from breakloop.app import build
from breakloop.clock import Clock, FakeClock
from breakloop.config.settings import Settings
from breakloop.engine.engine import Engine
from breakloop.gateway.decision import DecisionHandler
from breakloop.gateway.server import ListenError, Server
from breakloop.policy.compile import compile_loaded
from breakloop.policy.descriptors import Descriptors
from breakloop.store.memory import MemoryStore
from breakloop.testing import Answer, SeenRequest, StandInLLM, call_tool, say

LOOPING: Final = "looping"
HEALTHY: Final = "healthy"
MISSING: Final = "config.yml"
MODEL: Final = "demo-model"
TASKS: Final = {
    LOOPING: f"Find out from {MISSING} which database this project uses.",
    HEALTHY: "Read every module of this project and tell me what it does.",
}
_PATH: Final = "/v1/chat/completions"
_AREAS: Final = (
    "admin", "audit", "books", "cache", "cart", "coupon", "events", "export", "forms", "images", "login", "mail",
    "menus", "orders", "pages", "prices", "queue", "refund", "report", "search", "ship", "stock", "taxes", "urls",
    "users", "views",
)  # fmt: skip

Json = dict[str, Any]


def _module(number: int, area: str) -> str:
    return "\n".join(f"{area}_{line:02d} = rule({number}, {line})" for line in range(20 + number * 7 % 17))


FILES: Final[Mapping[str, str]] = {f"{area}.py": _module(number, area) for number, area in enumerate(_AREAS)}
# Coding agents send a map of the project with every request. It is most of what a call costs.
SYSTEM: Final = "You maintain a web shop. Use the tools, one step at a time. The project:\n" + "\n".join(
    f"{area}.py: {area}_{line:02d}(order, region)" for area in _AREAS for line in range(48)
)
TOOLS: Final = [
    {"type": "function", "function": {"name": "list", "parameters": {"type": "object", "properties": {}}}},
    {
        "type": "function",
        "function": {
            "name": "read",
            "parameters": {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
        },
    },
]


@dataclass(frozen=True, slots=True)
class DemoResponse:
    """One request of one agent: the gateway's response and what the agent did next."""

    agent: str
    at_s: int
    status: int
    did: str = ""  # `read(config.yml) -> error`
    finished: bool = False
    tokens_in: int = 0
    tokens_out: int = 0
    reason: str = ""  # X-Breakloop-Reason
    retry_after_s: int = 0
    code: str = ""  # from the error object that SDKs parse
    message: str = ""

    @property
    def passed(self) -> bool:
        return self.status == 200

    @property
    def blocked(self) -> bool:
        return bool(self.reason)

    @property
    def outcome(self) -> str:
        if self.blocked:
            return f"{self.reason}, wait {self.retry_after_s} s"
        return self.did or "failed"


class DemoAgent:
    """Sends a request, carries out the tool call, and repeats. When it is denied, it sends the same request again."""

    def __init__(self, name: str, client: DemoClient) -> None:
        self.name = name
        self.finished = False
        self._client = client
        self._messages: list[Json] = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": TASKS[name]}]

    async def turn(self, at_s: int) -> DemoResponse:
        request = {"model": MODEL, "messages": self._messages, "tools": TOOLS}
        status, headers, content = await self._client.post(_PATH, request)
        if status != 200:
            error = content.get("error") or {}
            return DemoResponse(
                self.name,
                at_s,
                status,
                reason=headers.get("x-breakloop-reason", ""),
                retry_after_s=int(headers.get("retry-after", "0")),
                code=str(error.get("code", "")),
                message=str(error.get("message", "")),
            )
        used = content["usage"]
        did = self._act(content["choices"][0]["message"])
        tokens = used["prompt_tokens"], used["completion_tokens"]
        return DemoResponse(self.name, at_s, status, did, self.finished, *tokens)

    def _act(self, said: Json) -> str:
        self._messages.append({"role": "assistant", "content": said["content"], "tool_calls": said.get("tool_calls")})
        if not said.get("tool_calls"):
            self.finished = True
            return "answers: done"
        call = said["tool_calls"][0]
        name, arguments = call["function"]["name"], json.loads(call["function"]["arguments"])
        result, short = _list() if name == "list" else _read(**arguments)
        self._messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
        return f"{name}({', '.join(arguments.values())}) -> {short}"


def _list() -> tuple[str, str]:
    return "\n".join(FILES), f"{len(FILES)} files"


def _read(path: str) -> tuple[str, str]:
    text = FILES.get(path)
    if text is None:
        return f"Error: there is no file {path}", "error"
    return text, f"{text.count(chr(10)) + 1} lines"


class DemoClient:
    """A client with one keep-alive connection to the demo's own server. Both agents use the same key."""

    _HEADERS: Final = {"Authorization": "Bearer demo", "Accept": "application/json", "Content-Type": "application/json"}

    def __init__(self, port: int) -> None:
        self._connection = HTTPConnection("127.0.0.1", port)
        self.close = self._connection.close

    async def post(self, path: str, content: Json) -> tuple[int, HTTPMessage, Json]:
        """Send a JSON object. Returns status, headers and the object in the response."""
        return await asyncio.to_thread(self._post, path, content)

    def _post(self, path: str, content: Json) -> tuple[int, HTTPMessage, Json]:
        self._connection.request("POST", path, json.dumps(content), self._HEADERS)
        response = self._connection.getresponse()
        return response.status, response.headers, json.load(response)


TURN_S: Final = 2  # simulated time that a call of the looping agent takes
PACE_S: Final = {LOOPING: TURN_S, HEALTHY: 2 * TURN_S}  # the healthy agent takes longer
_UPSTREAMS: Final = ("openai", "anthropic", "gemini")  # every upstream, so that no request leaves this machine
_SECRET: Final = b"breakloop demo"


class DemoStage:
    """The running demo. `turns` lets the agents act and the clock advance."""

    def __init__(self, clock: FakeClock, llm: StandInLLM, gateway_port: int, agents: tuple[DemoAgent, ...]) -> None:
        self.at_s = 0
        self.gateway_port = gateway_port
        self.llm_port = llm.port
        self._clock = clock
        self._llm = llm
        self._agents = agents

    @property
    def llm_requests(self) -> int:
        return self._llm.request_count

    async def turns(self) -> list[DemoResponse]:
        """Let each agent that is due make a request."""
        due = [agent for agent in self._agents if not agent.finished and self.at_s % PACE_S[agent.name] == 0]
        answered = [await agent.turn(self.at_s) for agent in due]
        self._clock.advance(TURN_S)
        self.at_s += TURN_S
        return answered


@asynccontextmanager
async def stage() -> AsyncIterator[DemoStage]:
    """Start all parts and stop them at the end. Raises `ListenError` if no port is free."""
    clock = FakeClock()
    async with AsyncExitStack() as started:
        try:
            llm = await started.enter_async_context(StandInLLM(respond=respond, clock=clock))
            port = await started.enter_async_context(_gateway(llm.url, clock))
        except OSError as error:
            raise ListenError(error.errno, error.strerror or str(error)) from error
        agents = []
        for name in PACE_S:
            client = DemoClient(port)
            started.callback(client.close)
            agents.append(DemoAgent(name, client))
        yield DemoStage(clock, llm, port, tuple(agents))


@asynccontextmanager
async def _gateway(llm_url: str, clock: Clock) -> AsyncIterator[int]:
    """Run what `breakloop serve` runs without a policy. No settings or files of the user are read."""
    settings = Settings(upstream=[f"{name}={llm_url}" for name in _UPSTREAMS])
    descriptors = Descriptors(build.context(settings, _SECRET), clock)
    engine = Engine(MemoryStore(), clock, descriptors)
    engine.set_bundle(compile_loaded(None, descriptors, _SECRET, build.loop_guard(settings)))
    judging = build.admission(settings, engine, descriptors, _SECRET, clock)
    door = DecisionHandler(judging, ready=lambda: (200, {"status": "ready"}))
    server = Server(door, build.limits(settings), clock=clock)
    build.open_proxy(server, settings, judging, door)
    port = await server.start()
    try:
        yield port
    finally:
        await server.stop(0)


def rule() -> str:
    """Return the built-in detector that the gateway applies."""
    guard = build.loop_guard(Settings())
    return f"repeated steps; the same end {guard.max_hits + 1} times in {guard.window_seconds} s"


def respond(seen: SeenRequest) -> Answer:
    """Answer as the model: one task runs in circles, the other ends after a few files."""
    messages = seen.fields["messages"]
    if messages[1]["content"] == TASKS[LOOPING]:
        return call_tool("read", {"path": MISSING}, text="I need the configuration.")
    results = sum(message["role"] == "tool" for message in messages)
    if results == 0:
        return call_tool("list", text="I begin with a list.")
    if results <= len(FILES):
        return call_tool("read", {"path": list(FILES)[results - 1]}, text="Next file.")
    return say(f"I have read all {len(FILES)} modules: it is a web shop.")
