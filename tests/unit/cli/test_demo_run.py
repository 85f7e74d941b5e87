"""The demonstration's machinery: real answers over real connections, on a clock that is moved by hand."""

from __future__ import annotations

import asyncio
import sys

import openai
import pytest

from breakloop.cli import demo_run
from breakloop.cli.demo_run import FILES, HEALTHY, LOOPING, MODEL, DemoClient, DemoResponse, DemoStage, rule, stage
from breakloop.config.settings import LoopGuard, Settings
from breakloop.gateway.server import ListenError
from breakloop.testing import StandInLLM


async def _play(on: DemoStage, until_s: int) -> list[DemoResponse]:
    answers: list[DemoResponse] = []
    while on.at_s < until_s:
        answers += await on.turns()
    return answers


def _whole(until_s: int = 130) -> tuple[list[DemoResponse], int]:
    async def whole() -> tuple[list[DemoResponse], int]:
        async with stage() as on:
            return await _play(on, until_s), on.llm_requests

    return asyncio.run(whole())


def test_the_looping_agent_is_stopped_by_the_gateway() -> None:
    """It fails four times, and then it is denied; whoever goes on asking stays denied (X-4, LD-4)."""
    answers, llm_requests = _whole()
    looping = [one for one in answers if one.agent == LOOPING]
    assert [one.status for one in looping] == [200] * 4 + [429] * 61
    blocked = [one for one in looping if one.blocked]
    assert {one.reason for one in blocked} == {"loop_detected"}
    assert [one.retry_after_s for one in blocked[:3]] == [30, 28, 26]
    assert blocked[0].code == "recursive_loop_detected"
    assert blocked[0].message.startswith("Blocked: the same call of `read` failed 4 times.")
    assert llm_requests == sum(one.passed for one in answers)  # the model never saw the others


def test_the_healthy_agent_finishes() -> None:
    """Another file each time, an answer at the end, and nobody in its way (X-4)."""
    healthy = [one for one in _whole()[0] if one.agent == HEALTHY]
    assert all(one.passed for one in healthy)
    assert len({one.did for one in healthy}) == len(healthy) == len(FILES) + 2
    assert [one.finished for one in healthy].index(True) == len(healthy) - 1
    assert healthy[-1].at_s < 130


def test_with_the_protection_off_nothing_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is the engine that denies, and not the demonstration (X-4)."""
    off = Settings(loop_guard=LoopGuard(max_hits=0))
    monkeypatch.setattr(demo_run, "Settings", lambda upstream: off.model_copy(update={"upstream": upstream}))
    answers, _ = _whole(60)
    assert {one.status for one in answers} == {200}


def test_a_real_sdk_raises_what_the_summary_says() -> None:
    """The looping agent's conversation, sent by the real `openai` package, after one request (X-4, A-3)."""

    async def ask() -> openai.RateLimitError:
        async with stage() as on:
            said = (await _play(on, 16))[-1]
            assert said.blocked
            conversation = on._agents[0]._messages
            async with openai.AsyncOpenAI(api_key="demo", base_url=f"http://127.0.0.1:{on.gateway_port}/v1") as client:
                before = on.llm_requests
                with pytest.raises(openai.RateLimitError) as raised:
                    await client.chat.completions.create(model=MODEL, messages=conversation)  # type: ignore[arg-type]
                assert on.llm_requests == before
            return raised.value

    error = asyncio.run(ask())
    assert (error.status_code, error.code) == (429, "recursive_loop_detected")
    assert isinstance(error.body, dict)
    assert str(error.body["message"]).startswith("Blocked: identical request sent ")


def test_only_this_machine_is_spoken_to() -> None:
    """Every address that is bound, connected to or looked up is loopback; a way out does not exist (X-4, Y-1)."""
    heard: list[tuple[str, object]] = []
    listening = True

    def hear(event: str, arguments: tuple[object, ...]) -> None:
        if listening and event in {"socket.connect", "socket.bind", "socket.sendto", "socket.getaddrinfo"}:
            address = arguments[0] if event == "socket.getaddrinfo" else arguments[1]
            heard.append((event, address[0] if isinstance(address, tuple) else address))

    sys.addaudithook(hear)
    _whole(20)
    listening = False
    assert {host for _, host in heard} == {"127.0.0.1"}
    assert {"socket.connect", "socket.bind"} <= {event for event, _ in heard}


@pytest.mark.parametrize("path", ["/v1/messages", "/v1beta/models/m:generateContent"])
def test_every_way_out_leads_to_the_stand_in(path: str) -> None:
    """Also the upstreams that are built in (X-4)."""

    async def ask() -> tuple[int, int]:
        async with stage() as on:
            client = DemoClient(on.gateway_port)
            status, _, _ = await client.post(path, {"messages": [{"role": "user", "content": ""}] * 2})
            client.close()
            return status, on.llm_requests

    assert asyncio.run(ask()) == (200, 1)


def test_nothing_stays_open() -> None:
    """No task, connection or listener outlives the show (warnings are errors) (S-6)."""

    async def left() -> set[asyncio.Task[object]]:
        async with stage() as on:
            await _play(on, 4)
            port = on.gateway_port
        with pytest.raises(OSError, match=r".*"):
            await asyncio.open_connection("127.0.0.1", port)
        return asyncio.all_tasks() - {asyncio.current_task()}

    assert asyncio.run(left()) == set()


def test_a_stand_in_that_cannot_listen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says why, whichever of the two could not."""

    async def start(self: StandInLLM) -> StandInLLM:
        raise PermissionError(1, "not permitted")

    monkeypatch.setattr(StandInLLM, "start", start)
    with pytest.raises(ListenError, match="not permitted"):
        _whole()


def test_the_rule_is_the_gateways() -> None:
    """What is said about the rule are the numbers that are in force (LD-2)."""
    guard = Settings().loop_guard
    assert rule() == f"repeated steps; the same end {guard.max_hits + 1} times in {guard.window_seconds} s"
