"""Carrying steps out: on a fake transport, with a loop whose time is set by hand."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable
from typing import Any, cast

from breakloop.testing.answer import Gate
from breakloop.testing.connection import HoldOpen, Leave, Pause, Player, Step
from breakloop.testing.http import SeenRequest
from tests.unit.testing.talking import seen


class FakeTransport:
    """Writes down what is done with it."""

    def __init__(self) -> None:
        self.log: list[Any] = []
        self.extra: dict[str, Any] = {"socket": self}
        self.on_write: Callable[[], None] = lambda: None
        self.closing = False

    def write(self, data: bytes) -> None:
        self.log.append(data)
        self.on_write()

    def is_closing(self) -> bool:
        return self.closing

    def close(self) -> None:
        self.log.append("close")

    def abort(self) -> None:
        self.log.append("abort")

    def get_extra_info(self, name: str) -> Any:
        return self.extra.get(name)

    def setsockopt(self, *option: Any) -> None:
        self.log.append(option)


class FakeTimer:
    def __init__(self, seconds: float, callback: Callable[[], None]) -> None:
        self.seconds = seconds
        self.callback = callback
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


class FakeLoop:
    """Collects timers; `call_soon` waits for `run`."""

    def __init__(self) -> None:
        self.timers: list[FakeTimer] = []
        self.soon: list[Callable[[], None]] = []

    def call_later(self, seconds: float, callback: Callable[[], None]) -> FakeTimer:
        self.timers.append(FakeTimer(seconds, callback))
        return self.timers[-1]

    def call_soon(self, callback: Callable[[], None]) -> None:
        self.soon.append(callback)


class Stage:
    def __init__(self, *steps: Step) -> None:
        self.transport = FakeTransport()
        self.loop = FakeLoop()
        self.seen: SeenRequest = seen()
        self.ends = 0
        transport, loop = cast("asyncio.Transport", self.transport), cast("asyncio.AbstractEventLoop", self.loop)
        self.player = Player(transport, iter(steps), self.seen, self._ended, loop)
        self.player.go()

    def _ended(self) -> None:
        self.ends += 1

    @property
    def log(self) -> list[Any]:
        return self.transport.log


def test_all_is_written_at_once_when_nothing_holds_it() -> None:
    stage = Stage(b"a", b"bc")
    assert (stage.log, stage.ends, stage.seen.outcome, stage.seen.bytes_sent) == ([b"a", b"bc"], 1, "sent", 3)
    stage.player.go()
    assert stage.ends == 1


def test_pauses_wait_for_their_time() -> None:
    stage = Stage(b"a", Pause(0.5), b"b")
    assert (stage.log, stage.loop.timers[0].seconds) == ([b"a"], 0.5)
    stage.player.go()
    stage.player.resume_writing()
    assert stage.log == [b"a"]  # nothing else ends a pause
    stage.loop.timers[0].callback()
    assert (stage.log, stage.ends) == ([b"a", b"b"], 1)


def test_a_slow_reader_holds_it_up() -> None:
    stage = Stage(Pause(0), b"a", b"b")
    stage.transport.on_write = stage.player.pause_writing
    stage.loop.timers[0].callback()
    assert stage.log == [b"a"]
    stage.player.resume_writing()
    assert stage.log == [b"a", b"b"]
    stage.player.resume_writing()
    assert (stage.ends, stage.seen.outcome) == (1, "sent")


def test_a_stall_lasts_until_it_is_resumed() -> None:
    stage = Stage(b"a", HoldOpen(), b"b")
    assert stage.player.held
    stage.player.go()
    assert stage.log == [b"a"]
    stage.player.resume()
    assert (stage.log, stage.player.held, stage.ends) == ([b"a", b"b"], False, 1)


def test_a_gate_holds_each_chunk() -> None:
    gate = Gate()

    async def main() -> None:
        stage = Stage(gate, b"a", gate, b"b")
        assert stage.log == []
        await gate.finish()
        assert (stage.log, stage.ends) == ([b"a", b"b"], 1)

    asyncio.run(main())


def test_leaving() -> None:
    stage = Stage(b"a", Leave(), b"never")
    assert (stage.log, stage.seen.outcome, stage.ends) == ([b"a", "close"], "sent", 0)
    assert Stage(Leave(abrupt=True)).log == ["close"]
    assert Stage(Leave(abrupt=True)).seen.outcome == "cut"


def test_a_reset_drops_the_connection_after_what_was_written() -> None:
    stage = Stage(b"a", Leave(abrupt=True, reset=True))
    assert stage.log == [b"a", (socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))]
    stage.loop.soon[0]()
    assert stage.log[-1] == "abort"


def test_tls_is_cut_without_a_goodbye() -> None:
    stage = Stage(Pause(0), Leave(abrupt=True))
    stage.transport.extra["ssl_object"] = object()
    stage.loop.timers[0].callback()
    stage.loop.soon[0]()
    assert stage.log == ["abort"]


def test_a_client_that_leaves_ends_it() -> None:
    stage = Stage(b"a", Pause(1), b"b")
    stage.player.abandon()
    assert (stage.seen.outcome, stage.loop.timers[0].is_cancelled) == ("aborted", True)
    stage.player.go()
    stage.player.resume()
    assert (stage.log, stage.ends) == ([b"a"], 0)
    complete = Stage(b"a")
    complete.player.abandon()
    assert complete.seen.outcome == "sent"


def test_nothing_is_written_to_a_connection_that_closes() -> None:
    """uvloop would raise."""
    stage = Stage(b"a", Pause(1), b"b")
    stage.transport.closing = True
    stage.loop.timers[0].callback()
    assert stage.log == [b"a"]
