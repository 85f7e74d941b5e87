"""Calls in flight that an operator stops, with client and upstream played by the test (K-4)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from breakloop.engine.operator import NOTHING_STOPPED, Operator, StoppedCalls
from breakloop.engine.quarantine import hold_key
from breakloop.gateway.in_flight import CallStopper
from breakloop.model.call import CLIENT_LEFT, Answer
from breakloop.store.orders import FileOrderStore
from tests.builders import bundle, chat_body, user
from tests.unit.gateway.fake_client import get, read_replies
from tests.unit.gateway.fake_upstream import Proxy, answer, chunks, ok

BLOCK = b'data: {"choices":[{"index":0,"delta":{"content":"Hello"}}]}\n\n'
STREAM = answer("Transfer-Encoding: chunked", "Content-Type: text/event-stream")
TOOL = {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {"name": "search", "arguments": {}}}


class Scene(Proxy):
    """A proxy with an operator."""

    def __init__(self) -> None:
        super().__init__(bundle(defaults={}))
        world = self.world
        self.operator = Operator(world.engine, FileOrderStore(None, print), world.clock, world.events.append)
        self.operator.start()
        self.stopper = CallStopper(self.server, world.engine, world.descriptors)
        self.operator.stop_with(self.stopper.order_changed, self.stopper.stopped)

    def asks(self, body: bytes, path: str = "/v1/chat/completions", *fields: str) -> None:
        length, kind = f"Content-Length: {len(body)}", "Content-Type: application/json"
        self.send(get(path, length, kind, "X-Agent-Id: worker", *fields, method="POST") + body)

    def streams(self, *fields: str) -> None:
        self.asks(chat_body(user("go"), stream=True), "/v1/chat/completions", *fields)

    def kill(self, agent: str = "worker") -> StoppedCalls:
        hold = self.operator.kill("default", agent, "enough", "ann")
        self.loop.turn(3)
        return self.stopper.stopped([hold_key(hold)])


@pytest.fixture
def scene() -> Iterator[Scene]:
    with Scene() as made:
        yield made


def test_a_call_without_a_response_gets_the_denial(scene: Scene, settled: list[Answer]) -> None:
    """The upstream is freed, the call is settled once, and the connection stays usable (K-4)."""
    scene.asks(chat_body(user("go")))
    assert scene.kill() == StoppedCalls(1, 0, frozenset(("worker",)))
    [(status, body, fields)] = read_replies(scene.sent())
    assert (status, json.loads(body)["detail"]["stop_reason"]) == (429, "killed")
    assert fields[b"x-should-retry"] == b"false"
    assert scene.upstream().wire.closed
    assert [one.status for one in settled] == [CLIENT_LEFT]
    assert not scene.closed()


def test_who_asks_in_the_same_turn_gets_the_count(scene: Scene) -> None:
    """The order of another instance and its question may arrive together (K-4)."""
    scene.asks(chat_body(user("go")))
    hold = scene.operator.kill("default", "worker", "enough", "ann")
    assert scene.stopper.stopped([hold_key(hold)]).calls == 1
    scene.loop.turn(3)
    assert scene.stopper.stopped([hold_key(hold)]).calls == 1


def test_a_stream_ends_with_an_error_event(scene: Scene, settled: list[Answer]) -> None:
    """What has arrived stays, and is settled; nothing of the upstream follows (K-4)."""
    scene.streams()
    scene.upstream().says(STREAM + chunks(BLOCK, end=b""))
    assert scene.kill() == StoppedCalls(1, 1, frozenset(("worker",)))
    [(_, body, _)] = read_replies(scene.sent())
    first, event, rest = body.split(b"\n\n")
    assert (first + b"\n\n", rest) == (BLOCK, b"")
    said = json.loads(event.removeprefix(b"data: "))
    assert (said["detail"]["stop_reason"], said["error"]["code"]) == ("killed", "agent_quarantined")
    assert "enough" in said["error"]["message"]
    assert scene.closed()
    assert scene.upstream().wire.closed
    assert [(one.status, one.complete) for one in settled] == [(CLIENT_LEFT, False)]


def test_a_stream_that_is_not_read_is_aborted(settled: list[Answer]) -> None:
    """Without loop detection nobody knows where its events end (K-4)."""
    with Scene() as scene:
        scene.world.use(bundle())
        scene.streams()
        scene.upstream().says(STREAM + chunks(BLOCK, end=b""))
        assert scene.kill().calls == 1
        assert scene.transport.aborted
        assert len(settled) == 1


ANSWERS: dict[str, bytes] = {
    "in the middle of an event": STREAM + chunks(BLOCK[:20], end=b""),
    "compressed": STREAM[:-2] + b"Content-Encoding: gzip\r\n\r\n" + chunks(b"\x1f\x8b\x08", end=b""),
    "a body with a length": ok(b"x" * 100)[:-50],
}


@pytest.mark.parametrize("begun", ANSWERS)
def test_what_cannot_be_ended_is_aborted(scene: Scene, settled: list[Answer], begun: str) -> None:
    """An incomplete response never looks complete (K-4, D-1)."""
    scene.streams()
    scene.upstream().says(ANSWERS[begun])
    assert scene.kill().calls == 1
    assert scene.transport.aborted
    assert scene.upstream().wire.closed
    assert len(settled) == 1


def test_others_go_on(scene: Scene, settled: list[Answer]) -> None:
    """And an order that stops nothing costs nobody anything (K-4)."""
    scene.streams()
    scene.upstream().says(STREAM + chunks(BLOCK, end=b""))
    assert scene.kill("somebody else") == NOTHING_STOPPED
    scene.upstream().says(chunks(BLOCK))
    assert read_replies(scene.sent())[0][1] == BLOCK * 2
    assert [one.status for one in settled] == [200]


def test_a_detector_stops_no_calls(scene: Scene) -> None:
    """Only an operator does: a detector denies what is sent next (K-4)."""
    scene.streams()
    scene.upstream().says(STREAM + chunks(BLOCK, end=b""))
    engine = scene.world.engine
    hold = scene.operator.kill("default", "another", "enough", "ann")
    engine.quarantine.hold(type(hold)("agent", "default", "", "worker", hold.since, hold.until, "loops"))
    scene.loop.turn(3)
    assert not scene.closed()


def test_a_decision_that_was_under_way_is_stopped_after_it(scene: Scene) -> None:
    """Its order came between its decision and its upstream (K-4)."""
    scene.kill()
    scene.operator.release("default", agent="worker", by="ann")
    scene.streams()
    by_key: Any = scene.world.engine.quarantine.by_key
    hold = scene.operator.kill("default", "other", "enough", "ann")
    del by_key[hold.key]
    scene.loop.turn(3)
    by_key[("name", "default", "", "worker")] = type(hold)(
        "name", "default", "", "worker", hold.since, hold.until, "enough", by="ann"
    )
    assert scene.sent() == b"" or b"429" not in scene.sent().split(b"\r\n")[0]
    scene.loop.advance(0.3)
    assert b"killed" in scene.sent()


def test_a_tool_call_of_mcp(scene: Scene) -> None:
    """Its stream ends with a result that the model sees as an error (K-4)."""
    scene.asks(json.dumps(TOOL).encode(), "/mcp")
    scene.upstream().says(STREAM + chunks(b'data: {"jsonrpc":"2.0","method":"notifications/x"}\n\n', end=b""))
    assert scene.kill().streams == 1
    event = read_replies(scene.sent())[0][1].split(b"\n\n")[-2]
    said = json.loads(event.removeprefix(b"data: "))
    assert (said["id"], said["result"]["isError"]) == (7, True)
