"""What the connections of one server share: handler, limits, parser, counters, and reads and writes in batches.

`Server` adds listening, the periodic sweep and shutdown. Connections to clients and to upstreams know only this part.
"""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections.abc import Callable
from enum import IntEnum
from typing import TYPE_CHECKING

from breakloop.gateway.http_request import BodyMemory, Handler, HeadParser, Reply, RequestLimits, StreamsBody
from breakloop.gateway.http_response import StatusLines, error_reply

if TYPE_CHECKING:
    from breakloop.gateway.connection import Connection
    from breakloop.gateway.upstream import UpstreamConnection

_log = logging.getLogger("breakloop.gateway")


class Phase(IntEnum):
    """State of a client connection. From WAITING on, received bytes are buffered and not parsed."""

    IDLE = 0  # between requests, with nothing received
    HEAD = 1
    BODY = 2
    WAITING = 3  # for the handler, for the upstream, or until a throttled reply is due
    QUEUED = 4  # more requests are buffered; other connections are served first
    LINGERING = 5  # an error was sent; keeps reading briefly, because closing with unread bytes would discard the error
    CLOSED = 6


class ServerCore:
    """State shared by the connections of one server. Counters are plain integers that only grow.

    Reads are batched per iteration of the event loop: all data that arrived is read first, then all of it is processed,
    then all replies are written. Replying to each request at once costs up to 50 % more CPU: a write that wakes a
    client on another core is the most expensive step, and in a batch only the first write does.
    """

    max_batched_writes = 32  # a write waits for at most this many others
    large_read = 16 * 1024  # a longer read is processed at once, which bounds the memory of a batch

    def __init__(self, handler: Handler, limits: RequestLimits, loop: asyncio.AbstractEventLoop) -> None:
        self.handler = handler
        self.limits = limits
        self.loop = loop
        self.head_parser = HeadParser(limits)
        self.body_memory = BodyMemory(limits)
        self.status_lines = StatusLines()
        self.streams_body: StreamsBody | None = None  # which request bodies are streamed; None: all are collected
        self.on_sweep: list[Callable[[], None]] = []  # called once a second
        self.on_stop: list[Callable[[], None]] = []  # called when the last client connection is closed
        self.live: set[Connection] = set()
        self._reads: list[tuple[Connection | UpstreamConnection, bytes]] = []
        self._writes: list[tuple[asyncio.Transport, bytes]] = []
        self.batching = False  # `process_reads` is running: replies go through `queue_write`
        self.tick = 0  # seconds, counted by the sweep
        self.draining = False
        self.connections = 0  # accepted since the start
        self.refused = 0  # connections above the limit
        self.requests = 0  # passed to the handler
        self.bad_requests = 0
        self.handler_errors = 0
        self.timeouts = 0
        self.abandoned = 0  # clients that disconnected while their reply was pending

    def queue_read(self, connection: Connection | UpstreamConnection, data: bytes) -> None:
        """Keep received data until everything that arrived in this iteration of the loop has been read."""
        reads = self._reads
        reads.append((connection, data))
        if len(data) > self.large_read:
            self.process_reads()
        elif len(reads) == 1:
            self.loop.call_soon(self.process_reads)

    def process_reads(self) -> None:
        """Process everything that was read, and write the replies."""
        reads, self._reads = self._reads, []
        self.batching = True
        for connection, data in reads:
            try:
                connection.process(data)
            except Exception as error:  # noqa: BLE001 - fail-safe edge: other connections must get their replies
                self.handler_failed(error)
                self._abort(connection)
            if len(self._writes) >= self.max_batched_writes:
                self.flush_writes()
        self.batching = False
        self.flush_writes()

    def _abort(self, connection: Connection | UpstreamConnection) -> None:
        try:
            connection.abort()
        except Exception as error:  # noqa: BLE001 - as in `process_reads`
            self.handler_failed(error)

    def queue_write(self, transport: asyncio.Transport, data: bytes) -> None:
        """Write this with the rest of the batch."""
        self._writes.append((transport, data))

    def flush_writes(self) -> None:
        """Write what is queued. Call it before writing to or closing a transport directly, to keep the order."""
        if self._writes:
            writes, self._writes = self._writes, []
            for transport, data in writes:
                if not transport.is_closing():  # uvloop raises on a write after close
                    try:
                        transport.write(data)
                    except Exception as error:  # noqa: BLE001 - as in `process_reads`
                        self.handler_failed(error)
                        transport.abort()

    def remove(self, connection: Connection) -> None:
        self.live.discard(connection)

    def handler_failed(self, error: BaseException) -> Reply:
        """Count and log an exception of ours; return the reply to send."""
        self.handler_errors += 1
        log_fault(error, "answered 500")
        return error_reply(500, "internal error")


def log_fault(error: BaseException, outcome: str) -> None:
    """Log an exception of ours by type and location. Its text is left out: it may quote the request."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f"{frames[-1].name}, line {frames[-1].lineno}" if frames else "an unknown place"
    _log.error("a handler failed with %s in %s; %s", type(error).__name__, where, outcome)
