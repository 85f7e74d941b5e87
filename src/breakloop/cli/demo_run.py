"""The demonstration's machinery: a stand-in LLM, the real gateway in front of it and two agents in front of that, all
on loopback ports, on a clock that is moved by hand. What came of it goes out as values; showing it is `demo`'s work."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final

from breakloop import parts
from breakloop.cli.demo_agents import FILES, HEALTHY, LOOPING, MISSING, TASKS, Agent, Answered, Client
from breakloop.clock import Clock, FakeClock
from breakloop.engine import Engine
from breakloop.gateway.decision import DecisionDoor
from breakloop.gateway.server import ListenError, Server
from breakloop.policy.compile import compile_bundle
from breakloop.policy.descriptors import Descriptors
from breakloop.settings import Settings
from breakloop.state.memory import MemoryStore
from breakloop.testing import Answer, SeenRequest, StandInLLM, call_tool, say

TURN_S: Final = 2  # how long a call and what follows from it take a looping agent
PACE_S: Final = {LOOPING: TURN_S, HEALTHY: 2 * TURN_S}  # the healthy one has something to think about
_UPSTREAMS: Final = ("openai", "anthropic", "gemini")  # all of them, so that there is no way out of this machine
_SECRET: Final = b"breakloop demo"


class Stage:
    """Everything in place. `turns` lets both agents act, and time pass."""

    def __init__(self, clock: FakeClock, llm: StandInLLM, gateway_port: int, agents: tuple[Agent, ...]) -> None:
        self.at_s = 0
        self.gateway_port = gateway_port
        self.llm_port = llm.port
        self._clock = clock
        self._llm = llm
        self._agents = agents

    @property
    def llm_requests(self) -> int:
        """How many requests the stand-in LLM has counted itself."""
        return self._llm.request_count

    async def turns(self) -> list[Answered]:
        """Let each agent whose time it is make a request."""
        due = [agent for agent in self._agents if not agent.finished and self.at_s % PACE_S[agent.name] == 0]
        answered = [await agent.turn(self.at_s) for agent in due]
        self._clock.advance(TURN_S)
        self.at_s += TURN_S
        return answered


@asynccontextmanager
async def stage() -> AsyncIterator[Stage]:
    """Start everything, and stop it at the end. Raises `ListenError` where nothing can listen."""
    clock = FakeClock()
    async with AsyncExitStack() as started:
        try:
            llm = await started.enter_async_context(StandInLLM(respond=respond, clock=clock))
            port = await started.enter_async_context(_gateway(llm.url, clock))
        except OSError as error:
            raise ListenError(error.errno, error.strerror or str(error)) from error
        agents = []
        for name in PACE_S:
            client = await Client.connect(port)
            started.push_async_callback(client.close)
            agents.append(Agent(name, client))
        yield Stage(clock, llm, port, tuple(agents))


@asynccontextmanager
async def _gateway(llm_url: str, clock: Clock) -> AsyncIterator[int]:
    """Run what `breakloop serve` runs with no policy, from the same parts; nobody's settings or files are read."""
    settings = Settings(upstream=[f"{name}={llm_url}" for name in _UPSTREAMS])
    descriptors = Descriptors(parts.context(settings, _SECRET), clock)
    engine = Engine(MemoryStore(), clock, descriptors)
    engine.use(compile_bundle(None, "builtin", descriptors, _SECRET, parts.loop_guard(settings)))
    judging = parts.judging(settings, engine, descriptors, _SECRET, clock)
    door = DecisionDoor(judging, ready=lambda: (200, {"status": "ready"}))
    server = Server(door, parts.limits(settings), clock=clock)
    parts.open_proxy(server, settings, judging, door)
    port = await server.start()
    try:
        yield port
    finally:
        await server.stop(0)


def rule() -> str:
    """Return what the gateway goes by: its built-in protection."""
    guard = parts.loop_guard(Settings())
    return f"repeated steps; the same end {guard.max_hits + 1} times in {guard.window_seconds} s"


def respond(seen: SeenRequest) -> Answer:
    """Be the model: one task sends it in circles, the other from file to file to an answer."""
    messages = seen.fields["messages"]
    if messages[1]["content"] == TASKS[LOOPING]:
        return call_tool("read", {"path": MISSING}, text="I need the configuration.")
    results = sum(message["role"] == "tool" for message in messages)
    if results == 0:
        return call_tool("list", text="I begin with a list.")
    if results <= len(FILES):
        return call_tool("read", {"path": list(FILES)[results - 1]}, text="Next file.")
    return say(f"I have read all {len(FILES)} modules: it is a web shop.")
