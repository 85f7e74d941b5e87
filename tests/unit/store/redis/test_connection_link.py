from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import Any, cast

import pytest
import uvloop

from breakloop.errors import SettingsError, StateError
from breakloop.store.redis.connection import Answer, RedisConnection, RedisError
from tests.each import each
from tests.fake_redis import OK, Command, FakeRedis, Heard, array, bulk, fake_redis, polite

RUNNERS = [pytest.param(asyncio.run, id="asyncio"), pytest.param(uvloop.run, id="uvloop")]


class Wire:
    """A transport that remembers what was written, one piece a write."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.aborted = 0

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def abort(self) -> None:
        self.aborted += 1

    def get_extra_info(self, _name: str) -> None:
        return None


class Timers:
    """A loop whose callbacks run when told, and whose timers never run by themselves."""

    def __init__(self) -> None:
        self.soon: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        self.later: list[tuple[float, Callable[[], None]]] = []
        self.faults: list[dict[str, Any]] = []

    def call_soon(self, callback: Callable[..., None], *arguments: Any) -> None:
        self.soon.append((callback, arguments))

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Any:
        self.later.append((delay_s, callback))
        return self

    def cancel(self) -> None:
        self.later.clear()

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self.faults.append(context)

    def turn(self) -> None:
        """One turn of the loop."""
        soon, self.soon = self.soon, []
        for callback, arguments in soon:
            callback(*arguments)

    def tick(self) -> None:
        """The next timer is due."""
        self.later.pop(0)[1]()


def made(**options: Any) -> tuple[RedisConnection, Wire, Timers]:
    loop, wire = Timers(), Wire()
    link = RedisConnection(cast("asyncio.AbstractEventLoop", loop), **options)
    link.connection_made(cast("asyncio.BaseTransport", wire))
    return link, wire, loop


def shown(answer: Any) -> Any:
    """Errors by their words, also inside arrays."""
    if isinstance(answer, list):
        return [shown(one) for one in answer]
    return f"{type(answer).__name__}: {answer}" if isinstance(answer, Exception) else answer


STREAM = (
    OK + bulk(b"a\r\nb") + b":7\r\n$-1\r\n-NOSCRIPT No matching script.\r\n" + array(b"x", 1, None, [b"y"]) + bulk(b"")
)
ANSWERS = [b"OK", b"a\r\nb", 7, None, "RedisError: NOSCRIPT No matching script.", [b"x", 1, None, [b"y"]], b""]


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7, 1000])
def test_answers_in_pieces(size: int) -> None:
    """However the stream is cut, everybody gets his own answer, in order."""
    link, _, _ = made()
    got: list[Any] = []
    for number in range(len(ANSWERS)):
        link.send((b"GET", b"a"), lambda answer, number=number: got.append((number, shown(answer))))  # type: ignore[misc]
    for start in range(0, len(STREAM), size):
        link.data_received(STREAM[start : start + size])
    assert got == list(enumerate(ANSWERS))


@each("cut", range(1, len(STREAM)))
def test_answers_cut_once_at_every_byte(cut: int) -> None:
    link, _, _ = made()
    got: list[Answer] = []
    for _ in ANSWERS:
        link.send((b"GET", b"a"), got.append)
    link.data_received(STREAM[:cut])
    link.data_received(STREAM[cut:])
    assert [shown(answer) for answer in got] == ANSWERS


def test_one_write_a_turn() -> None:
    """Commands of one turn go out in one piece; those of the next in another."""
    link, wire, loop = made()
    link.send((b"GET", b"a"), print)
    link.send((b"SET", b"b", b"\x00\r\n"), print)
    assert wire.written == []
    assert len(loop.soon) == 1
    loop.turn()
    assert wire.written == [b"*2\r\n$3\r\nGET\r\n$1\r\na\r\n*3\r\n$3\r\nSET\r\n$1\r\nb\r\n$3\r\n\x00\r\n\r\n"]
    link.send((b"PING",), print)
    loop.turn()
    assert wire.written[1:] == [b"*1\r\n$4\r\nPING\r\n"]
    loop.turn()
    assert len(wire.written) == 2


def test_too_many_in_flight() -> None:
    """Beyond the cap the answer is an error at once, and the server gets nothing more to do (S-3)."""
    link, wire, loop = made(in_flight_max=2)
    got: list[Answer] = []
    for _ in range(3):
        link.send((b"PING",), got.append)
    assert got == []  # never before `send` returns
    loop.turn()
    assert [shown(answer) for answer in got] == ["StateError: too many commands are waiting for Redis"]
    assert b"".join(wire.written).count(b"PING") == 2
    link.data_received(OK)
    link.send((b"PING",), got.append)
    link.data_received(OK + OK)
    assert got[1:] == [b"OK", b"OK", b"OK"]


def test_a_lost_connection_tells_everybody_once() -> None:
    """What was in flight is not sent again: it may have been carried out."""
    link, wire, loop = made()
    got: list[Answer] = []
    reasons: list[str] = []
    link.ended = reasons.append
    for _ in range(3):
        link.send((b"INCR", b"a"), got.append)
    loop.turn()
    link.send((b"INCR", b"a"), got.append)  # not even written yet
    link.data_received(b":1\r\n:")
    link.connection_lost(None)
    assert shown(got) == [1] + 3 * ["StateError: the connection was lost"]
    assert reasons == ["the connection was lost"]
    link.send((b"INCR", b"a"), got.append)
    loop.turn()
    assert shown(got[4:]) == ["StateError: the connection was lost"]
    assert len(wire.written) == 1
    assert not link.alive
    assert loop.later == []  # nor is the server watched any longer


def test_ended_by_us() -> None:
    """The reason is what everybody hears, and nothing is written after it."""
    link, wire, loop = made()
    got: list[Answer] = []
    link.send((b"PING",), got.append)
    link.end("it is too late")
    link.end("another reason")
    link.send((b"PING",), got.append)
    loop.turn()
    link.connection_lost(None)
    assert shown(got) == 2 * ["StateError: it is too late"]
    assert (wire.aborted, wire.written) == (1, [])


@pytest.mark.parametrize("data", [b"HTTP/1.1 400 Bad Request\r\n", OK + OK])
def test_nonsense_ends_it(data: bytes) -> None:
    """What is no Redis, or answers more than it was asked, cannot be trusted with the next answer."""
    link, wire, _ = made()
    got: list[Answer] = []
    link.send((b"PING",), got.append)
    link.data_received(data)
    assert wire.aborted == 1


def test_a_receiver_that_fails_does_not_take_others_answers() -> None:
    link, wire, loop = made()
    got: list[Answer] = []

    def fails(_answer: Answer) -> None:
        raise ValueError("ours")

    link.send((b"PING",), fails)
    link.send((b"PING",), got.append)
    link.data_received(OK + bulk(b"2"))
    assert got == [b"2"]
    assert [str(fault["exception"]) for fault in loop.faults] == ["ours"]
    assert wire.aborted == 0


def test_errors_have_a_code_and_quote_no_arguments() -> None:
    """Redis repeats arguments of commands that it does not know (Y-1)."""
    link, _, _ = made()
    told: list[str] = []
    link.erred = lambda error: told.append(error.code)
    got: list[Answer] = []
    for _ in range(2):
        link.send((b"AUTH", b"hunter2"), got.append)
    link.data_received(b"-ERR unknown command 'AUTH', with args beginning with: 'hunter2' \r\n")
    link.data_received(b"-MOVED 3999 127.0.0.1:6381\r\n")
    assert shown(got) == ["RedisError: ERR unknown command 'AUTH'", "RedisError: MOVED 3999 127.0.0.1:6381"]
    assert told == ["ERR", "MOVED"]
    assert isinstance(got[0], StateError)


def test_silence_is_found_out() -> None:
    """Nothing for two seconds while answers are due: given up. A server with nothing to do is asked, and has to answer."""
    link, wire, loop = made()
    got: list[Answer] = []
    assert loop.later[0][0] == 0.5
    loop.tick()
    loop.turn()
    assert wire.written == [b"*1\r\n$4\r\nPING\r\n"]
    link.data_received(b"+PONG\r\n")
    link.send((b"GET", b"a"), got.append)
    loop.tick()  # something was heard since the last look
    for _ in range(3):
        loop.tick()
    assert wire.aborted == 0
    loop.tick()
    assert wire.aborted == 1
    link.connection_lost(None)
    assert shown(got) == ["StateError: the server did not respond for 2 s"]
    assert loop.later == []


def test_a_server_that_is_silent_from_the_start_has_as_much_time() -> None:
    link, wire, loop = made()
    link.send((b"GET", b"a"), print)
    for _ in range(3):
        loop.tick()
    assert wire.aborted == 0
    loop.tick()
    assert wire.aborted == 1


def test_a_process_that_was_busy_is_not_a_silent_server() -> None:
    """Timers come late then, and before the reply is read."""
    link, wire, loop = made(silence_s=2.0)
    got: list[Answer] = []
    for _ in range(3):
        link.send((b"GET", b"a"), got.append)
        loop.tick()  # however late
        loop.tick()
        link.data_received(b"$1\r\n1\r\n")
    assert (len(got), wire.aborted) == (3, 0)


def test_messages_of_channels_are_no_answers() -> None:
    link, wire, _ = made()
    heard: list[list[Any]] = []
    got: list[Answer] = []
    link.published = heard.append
    link.send((b"SUBSCRIBE", b"c"), got.append)
    link.data_received(array(b"message", b"c", b"1") + array(b"subscribe", b"c", 1) + array(b"message", b"c", b"2"))
    assert heard == [[b"message", b"c", b"1"], [b"message", b"c", b"2"]]
    assert got == [[b"subscribe", b"c", 1]]
    assert wire.aborted == 0


def test_without_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who has no hiredis is told what to install."""
    monkeypatch.setitem(sys.modules, "hiredis", None)
    with pytest.raises(SettingsError, match=r'pip install "breakloop\[redis\]"'):
        made()


async def opened(fake: FakeRedis) -> RedisConnection:
    loop = asyncio.get_running_loop()
    _, link = await loop.create_connection(lambda: RedisConnection(loop), "127.0.0.1", fake.port)
    return link


@pytest.mark.parametrize("runner", RUNNERS)
def test_over_a_socket(runner: Callable[..., None]) -> None:
    """Both event loops: commands, answers, and a connection that ends with answers due."""

    def script(command: Command) -> bytes | None:
        return None if command[0] == b"HANG" else bulk(command[-1])

    async def main() -> None:
        async with fake_redis(script) as fake:
            link, heard, ended = await opened(fake), Heard(), Heard()
            link.ended = ended
            for number in range(100):
                link.send((b"ECHO", str(number).encode()), heard)
            assert [await heard.next() for _ in range(100)] == [str(number).encode() for number in range(100)]
            waiting = [Heard() for _ in range(5)]
            for one in waiting:
                link.send((b"HANG",), one)
            while await fake.next_seen() != (b"HANG",):
                pass
            fake.drop()
            assert {str(await one.next()) for one in waiting} == {"the connection was lost"}
            assert await ended.next() == "the connection was lost"
            assert isinstance(await link.call(b"PING"), StateError)

    runner(main())


def test_call_is_for_those_who_can_wait() -> None:
    async def main() -> None:
        async with fake_redis(lambda command: b"-OOM full\r\n" if command[0] == b"SET" else polite(command)) as fake:
            link = await opened(fake)
            assert await link.call(b"PING") == b"PONG"
            refused = await link.call(b"SET", b"a", b"1")
            assert isinstance(refused, RedisError)
            assert refused.code == "OOM"
            link.end("done")

    asyncio.run(main())
