"""How the processes of one instance talk to each other.

`SupervisorPipe`: between the supervisor and each child, short messages with file descriptors; its end tells each side
that the other has died. `Channel`: between the control process and each worker, framed messages over a socket pair; a
message that does not fit the buffer is not sent, so that no process waits for another. `ChildConfig`: what a child gets
at its start, in inherited memory, because it contains secrets that must not be on a command line or on a disk.
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
from breakloop.model.events import Activity, AgentUse, Event, LoopKey, LoopUse, TreeNodeKey, TreeNodeUse, Who
from breakloop.observe.metrics import MetricValues

_TEXT_MAX: Final = 32 * 1024  # of one value: a packet has to fit into the buffer of the socket
_PACKET_MAX: Final = 128 * 1024
_FDS_MAX: Final = 4

PipeMessage = dict[str, Any]


def pair() -> tuple[socket.socket, socket.socket]:
    """Return the two ends of a pipe."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


class SupervisorPipe:
    """One end of a pipe. `received` is called with each message and its sockets, `ended` once, when the other end is
    closed."""

    def __init__(
        self,
        end: socket.socket,
        received: Callable[[PipeMessage, list[socket.socket]], None],
        ended: Callable[[], None],
    ) -> None:
        self._end = end
        self._on_message = received
        self._ended = ended
        self._loop = asyncio.get_running_loop()
        self._open = True
        end.setblocking(False)
        self._loop.add_reader(end.fileno(), self.read)

    def send(self, message: PipeMessage, sockets: Sequence[socket.socket] = ()) -> bool:
        """Send a message; returns False if that failed. Long strings are truncated."""
        if not self._open:
            return False
        short = {name: value[:_TEXT_MAX] if isinstance(value, str) else value for name, value in message.items()}
        try:
            socket.send_fds(self._end, [json.dumps(short).encode()], [one.fileno() for one in sockets])
        except OSError:  # the buffer is full, or the other end is closed, which `read` notices
            return False
        return True

    def close(self) -> None:
        """Close this end, without calling `ended`."""
        if self._open:
            self._open = False
            self._loop.remove_reader(self._end.fileno())
            self._end.close()

    def read(self) -> None:
        """Pass on the messages that have arrived."""
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
        with suppress(ValueError):  # truncated: larger than any packet that we send
            message: PipeMessage = json.loads(data)
            self._on_message(message, sockets)


class BundleText(msgspec.Struct, tag="policy", frozen=True):
    """To a worker: the active bundle and the state of its source. Without `text`, the worker keeps its bundle."""

    number: int  # counts the deliveries; `BundleApplied` refers to it
    name: str
    origin: str
    rejected: int
    problems: list[Problem]
    digest: str = ""
    text: bytes | None = None


class WorkerCount(msgspec.Struct, tag="fleet", frozen=True):
    """To a worker: the number of workers."""

    workers: int


class EventBatch(msgspec.Struct, tag="happened", frozen=True):
    """From a worker: events in order, and how many were dropped since its start."""

    events: list[Event]
    dropped: int = 0


class MetricsReport(msgspec.Struct, tag="counted", frozen=True):
    """From a worker: all its metrics, since its start."""

    values: MetricValues


class ActivityReport(msgspec.Struct, tag="did", frozen=True):
    """From a worker: the activity of agents since the last report."""

    agents: list[tuple[Who, AgentUse]]
    loops: list[tuple[LoopKey, LoopUse]]
    shadow: list[tuple[LoopKey, int]]
    trees: list[tuple[TreeNodeKey, TreeNodeUse]] = []

    @classmethod
    def of(cls, activity: Activity) -> ActivityReport:
        return cls(
            list(activity.agents.items()),
            list(activity.loops.items()),
            list(activity.shadow.items()),
            list(activity.trees.items()),
        )


class BundleApplied(msgspec.Struct, tag="applied", frozen=True):
    """From a worker: a bundle is active there, or could not be used."""

    number: int
    problem: str = ""


Message = BundleText | WorkerCount | EventBatch | MetricsReport | ActivityReport | BundleApplied

encode: Final = msgspec.msgpack.Encoder(enc_hook=str).encode
decode: Final[Callable[[bytes | bytearray], Message]] = msgspec.msgpack.Decoder(Message).decode  # raises ValueError

_LENGTH_BYTES: Final = 4
_FRAME_MAX: Final = 256 * 1024 * 1024
_BUFFER_MAX: Final = 1024 * 1024  # bytes that the other side has not read yet

_log = logging.getLogger("breakloop.app.workers")


class Channel(asyncio.Protocol):
    """One end of a channel. `received` is called with each message, `ended` once, and `writable` when the buffer has
    room again."""

    def __init__(
        self, received: Callable[[Message], None], ended: Callable[[], None], writable: Callable[[], None] | None = None
    ) -> None:
        self._received = received
        self._ended = ended
        self._writable = writable
        self._buffer = bytearray()
        self._transport: asyncio.Transport | None = None
        self._full = False
        self._gone = asyncio.Event()

    @property
    def has_room(self) -> bool:
        return self._transport is not None and not self._full and not self._transport.is_closing()

    def send(self, message: Message) -> bool:
        """Send a message if the buffer has room; returns whether it was sent."""
        if self._transport is None or not self.has_room:
            return False
        data = encode(message)
        self._transport.write(len(data).to_bytes(_LENGTH_BYTES, "big") + data)
        return True

    def close(self) -> None:
        """Close the channel after the sent messages."""
        if self._transport is not None:
            self._transport.close()

    async def finish(self, timeout_s: float) -> None:
        """Close the channel when the other side has read everything and closes its end. Closing at once would lose what
        it has not read, if it writes meanwhile."""
        if self._transport is None:
            return
        if not self._transport.is_closing():
            self._transport.write_eof()
        with suppress(TimeoutError):
            await asyncio.wait_for(self._gone.wait(), timeout_s)
        self.close()

    # -- asyncio.Protocol ------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=_BUFFER_MAX)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - of the protocol
        self._transport = None
        self._gone.set()
        self._ended()

    def pause_writing(self) -> None:
        self._full = True

    def resume_writing(self) -> None:
        self._full = False
        if self._writable is not None:
            self._writable()

    def data_received(self, data: bytes) -> None:
        buffer = self._buffer
        buffer += data
        begin = 0
        while len(buffer) - begin >= _LENGTH_BYTES:
            length = int.from_bytes(buffer[begin : begin + _LENGTH_BYTES], "big")
            if length > _FRAME_MAX:
                self._abort("a message is too long")
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
            self._abort("a message cannot be decoded")
            return
        self._received(message)

    def _abort(self, why: str) -> None:
        _log.error("a channel is closed: %s", why)
        self._buffer.clear()
        if self._transport is not None:
            self._transport.abort()


async def open_channel(end: socket.socket, channel: Channel) -> None:
    end.setblocking(False)
    await asyncio.get_running_loop().create_unix_connection(lambda: channel, sock=end)


CONTROL: Final = "control"
WORKER: Final = "worker"


@dataclass(frozen=True, slots=True)
class ChildConfig:
    """The role and configuration of a child process."""

    role: str
    number: int
    workers: int
    settings: Settings
    secret: str = ""  # common to all processes, if the settings have none
    pipe: int = -1  # inherited descriptors
    listeners: tuple[int, ...] = ()
    connection_counts: int = -1
    mark: str = ""  # marks requests that this instance forwarded
    first: bool = True  # False: it replaces a process that ended


def write_config(config: ChildConfig) -> int:
    """Write a configuration to anonymous memory; returns its descriptor."""
    plain = {field.name: getattr(config, field.name) for field in fields(config)}
    plain |= {"settings": settings_text(config.settings, config.secret), "secret": ""}
    fd = os.memfd_create("breakloop-child")
    with os.fdopen(os.dup(fd), "wb") as file:
        file.write(json.dumps(plain).encode())
    return fd


def read_config(fd: int) -> ChildConfig:
    """Read a configuration and close its descriptor."""
    with os.fdopen(fd, "rb") as file:
        file.seek(0)
        plain = json.loads(file.read())
    plain["settings"] = settings_from_text(plain["settings"])
    plain["listeners"] = tuple(plain["listeners"])
    return ChildConfig(**plain)
