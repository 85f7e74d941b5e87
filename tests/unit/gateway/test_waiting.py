"""Calls of a paused run that wait for the answer of a person (K-7)."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from breakloop.engine.operator import Operator
from breakloop.gateway import waiting
from breakloop.gateway.connection import Phase
from breakloop.store.orders import FileOrderStore
from tests.builders import CHAT, bundle, chat_body, compiled, policy, tail, user
from tests.unit.gateway.fake_client import Client, get, read_replies
from tests.unit.gateway.fake_upstream import Proxy, ok


def asked(text: str = "again", session: str = "s-1") -> bytes:
    body = chat_body(user(text))
    fields = f"Content-Length: {len(body)}", "Content-Type: application/json", f"X-Agent-Session: {session}"
    return get(CHAT, *fields, method="POST") + body


def held(**pause: Any) -> dict[str, Any]:
    return bundle(policy("p", loop=tail(action="pause", max_hits=1)), pause={"hold_open_seconds": 120, **pause})


class Held(Proxy):
    """A proxy whose client has sent a request that waits."""

    def __init__(self, **pause: Any) -> None:
        super().__init__(held(**pause))
        clock = self.world.clock
        self.operator = Operator(self.world.engine, FileOrderStore(None, print), clock, self.world.events.append)
        self.operator.start()
        self.exchange(asked())
        self.transport.sent = b""
        self.send(asked())

    def waiting(self) -> int:
        return len(self.door.waiting or ())

    def answer(self, answer: str) -> None:
        [hold] = self.operator.pauses()
        assert hold.question is not None
        self.operator.answer(hold.question.id, answer, "ann")
        self.loop.turn(4)

    def passes(self, seconds: int) -> None:
        self.world.clock.advance(seconds)
        for _ in range(seconds):
            self.server.sweep()
        self.loop.turn(4)

    def last(self) -> tuple[int, Any, dict[bytes, bytes]]:
        status, body, fields = read_replies(self.sent())[-1]
        return status, json.loads(body), fields


def posts(proxy: Proxy) -> int:
    return sum(one.wire.sent.count(b"POST") for one in proxy.pools["up"].made)


def test_a_call_waits_and_goes_on_with_the_answer() -> None:
    """Nothing is sent to the client or the upstream before; then the same request is (K-7)."""
    with Held() as proxy:
        assert (proxy.sent(), proxy.phase(), proxy.waiting()) == (b"", Phase.WAITING, 1)
        assert posts(proxy) == 1
        proxy.passes(100)
        assert (proxy.sent(), proxy.waiting()) == (b"", 1)
        proxy.answer("once")
        assert (proxy.waiting(), posts(proxy)) == (0, 2)
        proxy.upstream().says(ok(b"{}"))
        assert proxy.last()[0] == 200
        assert proxy.server.body_memory.held == 0


def test_a_call_that_waited_long_enough_is_denied() -> None:
    """With what a client needs to ask again (K-7)."""
    with Held() as proxy:
        proxy.passes(120)
        status, content, fields = proxy.last()
        assert (status, content["detail"]["error"]) == (429, "run_paused")
        assert content["detail"]["stop_reason"] == "paused"
        assert fields[b"retry-after"] == b"60"
        assert fields[b"x-should-retry"] == b"true"
        assert fields[b"x-breakloop-stop-reason"] == b"paused"
        assert (proxy.waiting(), proxy.phase()) == (0, Phase.IDLE)


@pytest.mark.parametrize(("answer", "reason"), [("kill", "agent_quarantined"), ("land", "")])
def test_other_answers_end_the_wait_as_well(answer: str, reason: str) -> None:
    with Held() as proxy:
        proxy.answer(answer)
        if reason:
            assert proxy.last()[1]["detail"]["error"] == reason
        else:
            proxy.upstream().says(ok(b"{}"))
            assert proxy.last()[2][b"x-breakloop-action"] == b"land"


def test_the_default_ends_the_wait() -> None:
    """Within a second after the time is over (K-7)."""
    with Held(answer_within_minutes=1, then="continue") as proxy:
        proxy.passes(59)
        assert proxy.waiting() == 1
        proxy.passes(1)
        proxy.upstream().says(ok(b"{}"))
        assert proxy.last()[0] == 200


def test_a_release_and_a_kill_of_the_agent_end_the_wait() -> None:
    with Held() as proxy:
        agent = proxy.operator.pauses()[0].agent
        proxy.operator.release("default", agent=agent, by="ann")
        proxy.loop.turn(4)
        assert proxy.waiting() == 0
        proxy.upstream().says(ok(b"{}"))
        proxy.send(asked("b"))
        proxy.upstream().says(ok(b"{}"))
        proxy.send(asked("b"))
        assert proxy.waiting() == 1
        proxy.operator.kill("default", agent, "enough", "ann")
        proxy.loop.turn(4)
        assert (proxy.waiting(), proxy.last()[1]["detail"]["error"]) == (0, "agent_quarantined")


def test_a_client_that_goes_away_waits_no_longer() -> None:
    """And nothing of it is kept (K-7)."""
    with Held() as proxy:
        room = proxy.door.waiting
        proxy.connection.connection_lost(None)
        assert room is not None
        assert (len(room), proxy.server.body_memory.held) == (0, 0)
        proxy.answer("once")
        assert proxy.sent() == b""


def test_a_drain_ends_the_wait_with_a_429() -> None:
    """The client asks again, and gets another instance (K-7, O-4)."""
    with Held() as proxy:
        stopping = proxy.loop.create_task(proxy.server.stop(5.0))
        proxy.loop.turn(4)
        status, content, fields = proxy.last()
        assert (status, content["detail"]["error"], fields[b"connection"]) == (429, "run_paused", b"close")
        proxy.connection.connection_lost(None)
        proxy.loop.turn(4)
        assert stopping.done()


def test_a_new_bundle_decides_about_those_that_wait() -> None:
    """A run stays paused without the action, and its calls go on waiting for the answer (K-7)."""
    with Held() as proxy:
        proxy.world.engine.set_bundle(compiled(bundle(), proxy.world.descriptors))
        proxy.passes(1)
        assert (proxy.waiting(), proxy.sent()) == (1, b"")
        proxy.answer("once")
        proxy.upstream().says(ok(b"{}"))
        assert proxy.last()[0] == 200


def test_a_kill_switch_ends_the_wait() -> None:
    """Within a second, as every order (K-7, K-2)."""
    with Held() as proxy:
        proxy.operator.set_switch("agent:id", proxy.operator.pauses()[0].agent, "ann")
        proxy.passes(1)
        assert (proxy.waiting(), proxy.last()[1]["detail"]["error"]) == (0, "kill_switch")


def test_the_number_of_calls_that_wait_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those beyond it, and those whose bodies have no room, get their 429 at once (K-7)."""
    monkeypatch.setattr(waiting, "WAITING_MAX", 2)
    with Held() as proxy:
        second, third = (Client(server=proxy.server, loop=proxy.loop) for _ in range(2))
        second.send(asked())
        third.send(asked())
        proxy.loop.turn(3)
        assert (second.sent(), proxy.waiting()) == (b"", 2)
        assert third.replies()[0][0] == 429
        monkeypatch.setattr(waiting, "WAITING_MAX", 9)
        proxy.server.body_memory._limit = proxy.server.body_memory.held
        fourth = Client(server=proxy.server, loop=proxy.loop)
        fourth.send(asked())
        assert fourth.replies()[0][0] == 429


def test_others_are_served_while_calls_wait() -> None:
    with Held() as proxy:
        other = Client(server=proxy.server, loop=proxy.loop)
        other.send(asked("hello", session="s-2"))
        proxy.loop.turn(3)
        proxy.upstream().says(ok(b"{}"))
        assert other.replies()[0][0] == 200


def test_a_waiting_call_has_no_task_and_no_timer() -> None:
    """An object in a table, whatever waits (K-7)."""
    with Held() as proxy:
        timers = len(proxy.loop._scheduled)  # type: ignore[attr-defined]
        for _ in range(20):
            Client(server=proxy.server, loop=proxy.loop).send(asked())
        proxy.loop.turn(3)
        assert proxy.waiting() == 21
        assert len(asyncio.all_tasks(proxy.loop)) == 0
        assert len(proxy.loop._scheduled) == timers  # type: ignore[attr-defined]
