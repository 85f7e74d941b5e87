"""Connections to a Redis server: opening, pipelining and reconnecting.

`RedisConnection` is shared by all callers: commands are sent together once per iteration of the event loop, and
responses arrive in order. Nothing is sent twice. When the connection ends, each pending callback gets a
`StateError`, and its command may or may not have been executed.

`open_link` opens a connection: TCP, TLS, authentication, database, client name, and a check that the server can be
used. Its errors contain addresses and reasons, never a password.

`Reconnector` keeps one connection open and reconnects with a delay that grows to one second. Commands sent in the
meantime fail immediately and are not queued, except with `send_soon`. An `AddressFinder` supplies the address;
`topology.Sentinels` is the one for Sentinel.
"""

from __future__ import annotations

import asyncio
import secrets
import socket
import ssl
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, cast

from breakloop.errors import SettingsError, StateError
from breakloop.store.redis.url import Address, RedisUrl, tls_context

SILENCE_S: Final = 2.0  # the server is given up after this time without a byte while responses are due
_LOOKS: Final = 4  # in that time; while this process is busy with other work, it looks once at most
IN_FLIGHT_MAX: Final = 2048  # commands; a server that does not respond gets no more
_KEEPALIVE: Final = {"TCP_KEEPIDLE": 15, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}
_NOT_YET: Final = object()


class RedisError(StateError):
    """An error response of the server. `code` is its first word: NOSCRIPT, OOM, READONLY, MOVED and so on."""

    def __init__(self, text: str) -> None:
        super().__init__(text.partition(", with args")[0])  # some errors quote the arguments
        self.code = text.partition(" ")[0]


Answer = bytes | int | str | list[Any] | None | StateError
Then = Callable[[Answer], None]
Send = Callable[[tuple[bytes, ...], Then], None]


class RedisConnection(asyncio.Protocol):
    """A connection. It cannot be reopened; `ended` is called once, with the reason."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, silence_s: float = SILENCE_S, in_flight_max: int = IN_FLIGHT_MAX
    ) -> None:
        try:
            import hiredis  # noqa: PLC0415 - an extra: only those with a Redis need it
        except ImportError:
            raise SettingsError('Redis needs the extra "redis": pip install "breakloop[redis]"') from None
        reader = hiredis.Reader(replyError=RedisError, notEnoughData=_NOT_YET)
        self._feed, self._next = reader.feed, reader.gets
        self._pack = cast("Callable[[tuple[bytes, ...]], bytes]", hiredis.pack_command)
        self._broken = hiredis.ProtocolError
        self._loop = loop
        self.ended: Callable[[str], None] | None = None
        self.erred: Callable[[RedisError], None] | None = None  # called first for every error response
        self.published: Callable[[list[Any]], None] | None = None  # called with pub/sub messages
        self._silence_s = silence_s
        self._in_flight_max = in_flight_max
        self._transport: asyncio.Transport | None = None
        self._out: list[bytes] = []  # commands of this iteration
        self._waiting: deque[Then] = deque()
        self._heard = False
        self._silent_looks = 0
        self._watch: asyncio.TimerHandle | None = None
        self._why = ""

    # -- for callers --------------------------------------------------------------------------------------------------

    def send(self, args: tuple[bytes, ...], then: Then) -> None:
        """Send a command; `then` gets the response or a `StateError`, exactly once and never before this returns."""
        waiting = self._waiting
        if self._transport is None or len(waiting) >= self._in_flight_max:
            down = self._transport is None
            why = self._why or "there is no connection" if down else "too many commands are waiting for Redis"
            self._loop.call_soon(then, StateError(why))
            return
        if not self._out:
            self._loop.call_soon(self._flush)
        self._out.append(self._pack(args))
        waiting.append(then)

    async def call(self, *args: bytes) -> Answer:
        return await answer_to(partial(self.send, args))

    def end(self, why: str) -> None:
        """Close immediately; pending callbacks get the reason."""
        transport, self._transport = self._transport, None
        if transport is not None:
            self._why = self._why or why
            transport.abort()

    @property
    def alive(self) -> bool:
        """Whether it is connected, as far as is known."""
        return self._transport is not None

    # -- asyncio.Protocol ---------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        _keep_alive(transport.get_extra_info("socket"))
        self._watch = self._loop.call_later(self._silence_s / _LOOKS, self._check)

    def data_received(self, data: bytes) -> None:
        """Pass each complete response to the next callback."""
        self._heard = True
        self._feed(data)
        take, waiting = self._next, self._waiting
        try:
            while (answer := take()) is not _NOT_YET:
                kind = type(answer)
                if kind is RedisError and self.erred is not None:
                    self.erred(answer)
                elif kind is list and self.published is not None and answer[0] == b"message":
                    self.published(answer)
                    continue
                if waiting:
                    self._tell(waiting.popleft(), answer)
                else:  # responses can no longer be assigned to commands
                    self.end("the server sent an unexpected reply")
                    return
        except self._broken:
            self.end("the server does not use the Redis protocol")

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - the transport's signature
        """Notify all pending callbacks, then the owner of the connection."""
        why = self._why = self._why or "the connection was lost"
        self._transport = None
        if self._watch is not None:
            self._watch.cancel()
        waiting, self._waiting = self._waiting, deque()
        self._out.clear()
        for then in waiting:
            self._tell(then, StateError(why))
        if self.ended is not None:
            self.ended(why)

    def _flush(self) -> None:
        out, self._out = self._out, []
        if self._transport is not None and out:
            self._transport.write(out[0] if len(out) == 1 else b"".join(out))

    def _tell(self, then: Then, answer: Answer) -> None:
        try:
            then(answer)
        except Exception as error:  # noqa: BLE001 - an outermost edge: one caller's fault must not lose others' answers
            context = {"message": "a callback for a Redis reply failed", "exception": error}
            self._loop.call_exception_handler(context)

    def _check(self) -> None:
        """Check that the server still responds; send a PING if it is idle."""
        self._silent_looks = self._silent_looks + 1 if self._waiting and not self._heard else 0
        if self._silent_looks == _LOOKS:
            self.end(f"the server did not respond for {self._silence_s:g} s")
            return
        if not self._waiting and not self._heard:
            self.send((b"PING",), ignore)
        self._heard = False
        self._watch = self._loop.call_later(self._silence_s / _LOOKS, self._check)


def ignore(_answer: object) -> None:
    """Ignore a response."""


async def answer_to(send: Callable[[Then], None]) -> Answer:
    """Send a command and wait for its response; errors are returned, as they are passed to `then`."""
    future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
    send(lambda answer: None if future.done() else future.set_result(answer))
    return await future


def _keep_alive(sock: socket.socket | None) -> None:
    if sock is None or sock.family not in (socket.AF_INET, socket.AF_INET6):
        return
    with suppress(OSError):  # a peer that has disconnected already
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _KEEPALIVE.items():
            if hasattr(socket, name):
                sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


OPEN_S: Final = 2.0  # in total
_NAME: Final = b"breakloop"


class WantsPasswordError(StateError):
    """The server requires a password, and none was configured."""


@dataclass(frozen=True, slots=True, repr=False)
class ConnectOptions:
    """How connections are opened; the same for every server of a URL."""

    loop: asyncio.AbstractEventLoop
    tls: ssl.SSLContext | None = None
    user: str = ""
    password: str = ""
    db: int = 0
    writes: bool = True  # a read-only replica cannot be used
    open_s: float = OPEN_S
    silence_s: float = SILENCE_S


def door_for(url: RedisUrl, loop: asyncio.AbstractEventLoop) -> ConnectOptions:
    """Return the options of a URL. Raises `SettingsError` for files that cannot be used."""
    writes = url.kind != "cluster"  # in a cluster, a replica responds with MOVED
    return ConnectOptions(loop, tls_context(url), url.user, url.password, url.db, writes)


async def open_link(door: ConnectOptions, address: Address) -> RedisConnection:
    """Connect and authenticate. Raises `StateError` with the address and the reason."""
    link: RedisConnection | None = None
    try:
        async with asyncio.timeout(door.open_s):
            _, link = await door.loop.create_connection(
                lambda: RedisConnection(door.loop, door.silence_s),
                address.host,
                address.port,
                ssl=door.tls,
                server_hostname=address.host if door.tls else None,
            )
            await _greet(door, link)
    except TimeoutError:
        problem = StateError(f"{address} did not respond within {door.open_s:g} s")
    except (OSError, UnicodeError) as error:  # the latter for an invalid host name
        problem = StateError(f"{address} {_why(error)}")
    except StateError as error:
        problem = type(error)(f"{address} {error}")
    except BaseException:
        if link is not None:
            link.end("the connection is no longer needed")
        raise
    else:
        return link
    if link is not None:
        link.end(str(problem))
    raise problem from None


async def _greet(door: ConnectOptions, link: RedisConnection) -> None:
    """Send all setup commands in one round trip. Raises `StateError`."""
    login: list[Answer] = []
    db: list[Answer] = []
    role: list[Answer] = []
    if door.password:
        user = (door.user.encode(),) if door.user else ()
        link.send((b"AUTH", *user, door.password.encode()), login.append)
    if door.db:
        link.send((b"SELECT", str(door.db).encode()), db.append)
    link.send((b"CLIENT", b"SETNAME", _NAME), ignore)  # a server that rejects the name can still be used
    if door.writes:
        link.send((b"ROLE",), role.append)
    pong = await link.call(b"PING")
    if isinstance(pong, StateError) and not isinstance(pong, RedisError):
        raise StateError(f"closed the connection ({pong})")
    if login and isinstance(login[0], RedisError):
        raise StateError("rejected the user or password")
    _judge(pong)
    if db and isinstance(db[0], RedisError):
        raise StateError(f"has no database {door.db}")
    if role and isinstance(role[0], list) and role[0][:1] == [b"slave"]:
        raise StateError("is a read-only replica")


def _judge(pong: Answer) -> None:
    if not isinstance(pong, RedisError) or pong.code == "NOPERM":
        return
    if pong.code == "NOAUTH":
        raise WantsPasswordError("requires a password")
    raise StateError("is still loading its data" if pong.code == "LOADING" else f"answered {pong.code}")


def _why(error: Exception) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"has a certificate that is not trusted: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return "failed the TLS handshake"
    if isinstance(error, socket.gaierror | UnicodeError):
        return "has a host name that cannot be resolved"
    if isinstance(error, ConnectionRefusedError):
        return "refused the connection"
    return "could not be reached"


FIRST_DELAY_S: Final = 0.05
DELAY_MAX_S: Final = 1.0
_STEADY_S: Final = 1.0  # a connection that lasted this long resets the backoff
_QUEUE_MAX: Final = 1024

Changed = Callable[[bool, str], None]


class AddressFinder:
    """Supplies the address of the server: fixed addresses in turn, so that one that is unavailable is skipped."""

    recheck_s: float | None = None  # how often the address is checked while connected; None: never

    def __init__(self, *addresses: Address) -> None:
        self._addresses = list(addresses)
        self._turn = -1

    async def find(self) -> Address:
        """Return the current address. Raises `StateError`."""
        self._turn = (self._turn + 1) % len(self._addresses)
        return self._addresses[self._turn]

    def close(self) -> None:
        """Close what was needed to find it."""


class ReconnectBackoff:
    """The delays between attempts to reconnect. `jitter` returns 0 to 1 and determines half of each delay."""

    def __init__(self, jitter: Callable[[], float] | None = None) -> None:
        self._jitter = jitter or secrets.SystemRandom().random
        self._tries = 0

    def next_s(self) -> float:
        """Return the next delay: up to twice the previous one, and at most a second."""
        full: float = min(DELAY_MAX_S, FIRST_DELAY_S * 2 ** min(self._tries, 10))
        self._tries += 1
        return full * (0.5 + 0.5 * self._jitter())

    def reset(self) -> None:
        """Start again with the shortest delay."""
        self._tries = 0


class Reconnector:
    """One connection that is reopened when it breaks."""

    def __init__(self, door: ConnectOptions, finder: AddressFinder, backoff: ReconnectBackoff | None = None) -> None:
        self.link: RedisConnection | None = None
        self.up = False
        self.on_change: Changed | None = None  # called when it opens or closes, with a reason that contains no secrets
        self.why = "not connected yet"
        self.published: Callable[[list[object]], None] | None = None
        self._door = door
        self._finder = finder
        self._address: Address | None = None
        self._backoff = backoff or ReconnectBackoff()
        self._since: float  # when it was opened
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._closed = False
        self._queue: list[tuple[tuple[bytes, ...], Then]] | None = []  # None once the first attempt is over

    async def start(self) -> None:
        """Connect. Raises `StateError` if the first attempt fails, but keeps trying."""
        await self._try()
        if self.link is None:
            raise StateError(self.why)

    async def settled(self) -> None:
        """Wait until the current attempt is over."""
        if self._task is not None:
            await asyncio.wait([self._task])

    def end(self, why: str) -> None:
        """Close the connection and stop reconnecting."""
        self._closed, self.why = True, why
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            self._task.cancel()
        self._finder.close()
        self._first_is_over()
        if self.link is not None:
            self.link.end(why)
            self._drop(why)

    async def close(self) -> None:
        """Close the connection and wait until all tasks have ended."""
        self.end("closed")
        await self.settled()

    def send_soon(self, args: tuple[bytes, ...], then: Then) -> None:
        """Send as soon as the first attempt to connect is over; later, send immediately or fail."""
        if self.link is not None:
            self.link.send(args, then)
        elif self._queue is not None and len(self._queue) < _QUEUE_MAX:
            self._queue.append((args, then))
        else:
            self._door.loop.call_soon(then, StateError(self.why))

    def _changed(self, up: bool, why: str) -> None:  # noqa: FBT001 - as `Changed`
        self.up = up
        if self.on_change is not None:
            self.on_change(up, why)

    def start_soon(self) -> None:
        self._timer = None
        self._task = self._door.loop.create_task(self._try())

    async def _try(self) -> None:
        try:
            address = await self._finder.find()
            link = await open_link(self._door, address)
        except StateError as error:
            self.why = str(error)
        else:
            self._adopt(link, address)
        self._first_is_over()
        if self.link is None:
            self._again()

    def _adopt(self, link: RedisConnection, address: Address) -> None:
        if self._closed or not link.alive:
            self.why = "the connection was lost"
            link.end("closed")
            return
        link.ended = self._drop
        link.erred = self._erred
        link.published = self.published
        self.link, self._address = link, address
        self._since = self._door.loop.time()
        self._changed(True, "connected")
        self._recheck_later()

    def _drop(self, why: str) -> None:
        if self.link is None:
            return
        self.link, self.why = None, why
        if self._door.loop.time() - self._since >= _STEADY_S:
            self._backoff.reset()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._task is not None:
            self._task.cancel()  # a recheck that is still running
        self._changed(False, why)
        self._again()

    def _erred(self, error: RedisError) -> None:
        """Check the address after READONLY: the master has become a replica."""
        if error.code == "READONLY" and self.link is not None:
            self.link.end("the server has become a read-only replica")

    def _recheck_later(self) -> None:
        if self._finder.recheck_s is not None and self.link is not None:
            self._timer = self._door.loop.call_later(self._finder.recheck_s, self._recheck_soon)

    def _recheck_soon(self) -> None:
        self._task = self._door.loop.create_task(self._recheck())

    async def _recheck(self) -> None:
        """Check whether the address has changed although the connection works. If that is unknown, keep it."""
        try:
            moved = await self._finder.find() != self._address
        except StateError:
            moved = False
        if moved and self.link is not None:
            self.link.end("another server has taken over")
        else:
            self._recheck_later()

    def _again(self) -> None:
        if not self._closed and self._timer is None:
            self._timer = self._door.loop.call_later(self._backoff.next_s(), self.start_soon)

    def _first_is_over(self) -> None:
        queue, self._queue = self._queue, None
        for args, then in queue or ():
            self.send_soon(args, then)
