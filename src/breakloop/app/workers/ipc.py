"""The line between the supervisor and each of its processes: short messages, and sockets that are handed over. Its end
is how one learns that the other is gone, whatever it died of.

Messages between a worker and the control process, over a pair of connected sockets. What finds no room is not sent:
nobody ever waits for the other side. Which messages there are is `messages`' business.

What workers and the control process tell each other. How it gets there is `channel`'s.

What a new process gets from the supervisor: who it is and its settings, in memory that it inherits. Nothing of it
stands on a command line or on a disk, because secrets are in it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from typing import Any, Final, cast

import msgspec

from breakloop.config.loader import settings_from_text, settings_text
from breakloop.config.settings import Settings
from breakloop.errors import Problem
from breakloop.model.events import Activity, AgentUse, Event, LoopKey, LoopUse, Who
from breakloop.observe.metrics import MetricValues

_TEXT_MAX: Final = 32 * 1024  # of one value: a packet has to fit into the socket's buffer
_PACKET_MAX: Final = 128 * 1024
_FDS_MAX: Final = 4

Say = dict[str, Any]


def pair() -> tuple[socket.socket, socket.socket]:
    """Return the two ends of a line."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


class SupervisorPipe:
    """One end. `heard` gets each message with the sockets that came with it, `ended` is called once."""

    def __init__(
        self,
        end: socket.socket,
        heard: Callable[[Say, list[socket.socket]], None],
        ended: Callable[[], None],
    ) -> None:
        self._end = end
        self._heard = heard
        self._ended = ended
        self._loop = asyncio.get_running_loop()
        self._open = True
        end.setblocking(False)
        self._loop.add_reader(end.fileno(), self._read)

    def say(self, message: Say, sockets: Sequence[socket.socket] = ()) -> bool:
        """Send a message; tells whether it could be. Texts that are far too long are cut."""
        if not self._open:
            return False
        short = {name: value[:_TEXT_MAX] if isinstance(value, str) else value for name, value in message.items()}
        try:
            socket.send_fds(self._end, [json.dumps(short).encode()], [one.fileno() for one in sockets])
        except OSError:  # full, or gone: that it is gone is told by reading
            return False
        return True

    def drain(self) -> None:
        """Take what has come and was not looked at yet."""
        self._read()

    def close(self) -> None:
        """End it from this side; nobody is told here."""
        if self._open:
            self._open = False
            self._loop.remove_reader(self._end.fileno())
            self._end.close()

    def _read(self) -> None:
        while self._open:
            try:
                data, fds, _, _ = socket.recv_fds(self._end, _PACKET_MAX, _FDS_MAX)
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                data, fds = b"", []
            if not data:
                self.close()
                self._ended()
                return
            self._take(data, fds)

    def _take(self, data: bytes, fds: list[int]) -> None:
        for fd in fds:
            os.set_inheritable(fd, False)
        sockets = [socket.socket(fileno=fd) for fd in fds]
        with suppress(ValueError):  # cut off: the packet was larger than any that is sent
            message: Say = json.loads(data)
            self._heard(message, sockets)


class BundleText(msgspec.Struct, tag="policy", frozen=True):
    """To a worker: the bundle in force, and how its source is. Without `text` there is none: keep what you have."""

    number: int  # counts what is put in force, so that it can be acknowledged
    name: str
    origin: str
    rejected: int
    problems: list[Problem]
    digest: str = ""
    text: bytes | None = None


class WorkerCount(msgspec.Struct, tag="fleet", frozen=True):
    """To a worker: how many workers there are now."""

    workers: int


class EventBatch(msgspec.Struct, tag="happened", frozen=True):
    """From a worker: events in their order, and how many it had no room for since it began."""

    events: list[Event]
    dropped: int = 0


class MetricsReport(msgspec.Struct, tag="counted", frozen=True):
    """From a worker: what it has to show as metrics, all of it, since it began."""

    values: MetricValues


class ActivityReport(msgspec.Struct, tag="did", frozen=True):
    """From a worker: what agents did since it last told."""

    agents: list[tuple[Who, AgentUse]]
    loops: list[tuple[LoopKey, LoopUse]]
    shadow: list[tuple[LoopKey, int]]

    @classmethod
    def of(cls, activity: Activity) -> ActivityReport:
        """Write it down."""
        return cls(list(activity.agents.items()), list(activity.loops.items()), list(activity.shadow.items()))


class BundleApplied(msgspec.Struct, tag="applied", frozen=True):
    """From a worker: a policy is in force there, or cannot be."""

    number: int
    problem: str = ""


Message = BundleText | WorkerCount | EventBatch | MetricsReport | ActivityReport | BundleApplied

_encoder = msgspec.msgpack.Encoder(enc_hook=str)
_decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(Message)


def encode(message: Message) -> bytes:
    """Return it as bytes."""
    return _encoder.encode(message)


def decode(data: bytes | bytearray) -> Message:
    """Read it back; raises `ValueError` for anything else."""
    message: Message = _decoder.decode(data)
    return message


_LENGTH_BYTES: Final = 4
_FRAME_MAX: Final = 256 * 1024 * 1024
_WAITING_MAX: Final = 1024 * 1024  # bytes that may wait for the other side to read

_log = logging.getLogger("breakloop.app.workers")


class Channel(asyncio.Protocol):
    """One end. `received` gets each message, `ended` is called once, `roomy` when there is room again."""

    def __init__(
        self,
        received: Callable[[Message], None],
        ended: Callable[[], None],
        roomy: Callable[[], None] | None = None,
    ) -> None:
        self._received = received
        self._ended = ended
        self._roomy = roomy
        self._buffer = bytearray()
        self._transport: asyncio.Transport | None = None
        self._full = False
        self._gone = asyncio.Event()

    @property
    def has_room(self) -> bool:
        """Tell whether something can be sent now."""
        return self._transport is not None and not self._full and not self._transport.is_closing()

    def send(self, message: Message) -> bool:
        """Send, if there is room; tells whether there was."""
        if self._transport is None or not self.has_room:
            return False
        data = encode(message)
        self._transport.write(len(data).to_bytes(_LENGTH_BYTES, "big") + data)
        return True

    def close(self) -> None:
        """End it, after what was sent."""
        if self._transport is not None:
            self._transport.close()

    async def finish(self, timeout_s: float) -> None:
        """End it when the other side has read everything: it closes then. Closing here at once would lose what it has
        not read, if it writes something meanwhile."""
        if self._transport is None:
            return
        if not self._transport.is_closing():
            self._transport.write_eof()
        with suppress(TimeoutError):
            await asyncio.wait_for(self._gone.wait(), timeout_s)
        self.close()

    # -- what the transport says -----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """It can be used."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=_WAITING_MAX)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - the protocol's
        """The other end is gone."""
        self._transport = None
        self._gone.set()
        self._ended()

    def pause_writing(self) -> None:
        """The other side does not read."""
        self._full = True

    def resume_writing(self) -> None:
        """It reads again."""
        self._full = False
        if self._roomy is not None:
            self._roomy()

    def data_received(self, data: bytes) -> None:
        """Take messages out of bytes."""
        buffer = self._buffer
        buffer += data
        begin = 0
        while len(buffer) - begin >= _LENGTH_BYTES:
            length = int.from_bytes(buffer[begin : begin + _LENGTH_BYTES], "big")
            if length > _FRAME_MAX:
                self._refuse("a message is too long")
                return
            end = begin + _LENGTH_BYTES + length
            if len(buffer) < end:
                break
            self._take(bytes(buffer[begin + _LENGTH_BYTES : end]))
            begin = end
        del buffer[:begin]

    def _take(self, data: bytes) -> None:
        try:
            message = decode(data)
        except ValueError:
            self._refuse("a message cannot be read")
            return
        self._received(message)

    def _refuse(self, why: str) -> None:
        """The other end is of another kind than this one: better none than a wrong one."""
        _log.error("a channel is closed: %s", why)
        self._buffer.clear()
        if self._transport is not None:
            self._transport.abort()


async def open_channel(end: socket.socket, channel: Channel) -> None:
    """Connect a channel to its end of a pair."""
    end.setblocking(False)
    await asyncio.get_running_loop().create_unix_connection(lambda: channel, sock=end)


CONTROL: Final = "control"
WORKER: Final = "worker"


@dataclass(frozen=True, slots=True)
class ChildConfig:
    """Who a process is, and what it needs."""

    role: str
    number: int
    workers: int
    settings: Settings
    secret: str = ""  # the fleet's, where the settings name none
    line: int = -1  # descriptors that it inherits
    listeners: tuple[int, ...] = ()
    shares: int = -1
    mark: str = ""  # by which a request that came through this instance is known
    first: bool = True  # not in place of one that died


def write(handover: ChildConfig) -> int:
    """Return a descriptor of what `read` reads."""
    plain = {field.name: getattr(handover, field.name) for field in fields(handover)}
    plain |= {"settings": settings_text(handover.settings, handover.secret), "secret": ""}
    fd = os.memfd_create("breakloop-handover")
    with os.fdopen(os.dup(fd), "wb") as file:
        file.write(json.dumps(plain).encode())
    return fd


def read(fd: int) -> ChildConfig:
    """Take it over, and close the descriptor."""
    with os.fdopen(fd, "rb") as file:
        file.seek(0)
        plain = json.loads(file.read())
    plain["settings"] = settings_from_text(plain["settings"])
    plain["listeners"] = tuple(plain["listeners"])
    return ChildConfig(**plain)
