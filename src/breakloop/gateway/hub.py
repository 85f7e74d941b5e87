"""What a server and its connections have in common: the phases, the handler, the limits, the parser, the counters."""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections.abc import Callable
from enum import IntEnum
from typing import Protocol

from breakloop.gateway.bounds import Limits
from breakloop.gateway.head import Handler, HeadParser, Reply
from breakloop.gateway.incoming import Room, Streams
from breakloop.gateway.reply import StatusLines, error_reply

_log = logging.getLogger("breakloop.gateway")


class Phase(IntEnum):
    """What a connection is doing. From WAITING on, received bytes are not looked at."""

    IDLE = 0  # between requests, with nothing received
    HEAD = 1
    BODY = 2
    WAITING = 3  # for the handler, or for a throttled reply's time
    QUEUED = 4  # more requests are here, but other connections get their turn first
    LINGERING = 5  # refused; reads on for a moment because closing on unread bytes would destroy the answer
    CLOSED = 6


class Receiver(Protocol):
    """Whoever gets bytes: a client's connection, or one to an upstream."""

    def take(self, data: bytes) -> None:
        """Use what was received."""
        ...

    def abort(self) -> None:
        """Leave without waiting for what is still to be written."""
        ...


class Member(Receiver, Protocol):
    """What a server needs of a client's connection."""

    def expire(self) -> None:
        """End what takes too long; called once a second."""
        ...

    def drain(self) -> None:
        """Leave now if nothing is under way."""
        ...

    def cut(self) -> None:
        """Leave now whatever is under way."""
        ...


class Hub:
    """Shared by the connections of one server. Counters are plain integers and only ever grow.

    What arrives in one turn of the event loop is first all read, then all decided, then all answered. Answering each
    at once costs up to half as much again: a write that wakes a client on another core is the dearest step of all, and
    in a burst only the first does.
    """

    burst = 32  # so many answers at the most wait for each other
    large = 16 * 1024  # a longer piece is used at once, so that what is kept for a turn stays small

    def __init__(self, handler: Handler, limits: Limits, loop: asyncio.AbstractEventLoop) -> None:
        self.handler = handler
        self.limits = limits
        self.loop = loop
        self.heads = HeadParser(limits)
        self.room = Room(limits)
        self.lines = StatusLines()
        self.streams: Streams | None = None  # which bodies pass in pieces; None: none
        self.sweeps: list[Callable[[], None]] = []  # called once a second
        self.endings: list[Callable[[], None]] = []  # called when the last client is gone
        self.live: set[Member] = set()
        self._inbox: list[tuple[Receiver, bytes]] = []
        self._outbox: list[tuple[asyncio.Transport, bytes]] = []
        self.answering = False  # in a burst: replies go through `post`
        self.tick = 0  # seconds, counted by the sweep
        self.draining = False
        self.connections = 0  # taken since the start
        self.refused = 0  # connections above the cap
        self.requests = 0  # handed to the handler
        self.bad_requests = 0
        self.handler_errors = 0
        self.timeouts = 0
        self.abandoned = 0  # clients that left while their reply was pending

    def received(self, connection: Receiver, data: bytes) -> None:
        """Keep what came until everything of this turn has been read."""
        inbox = self._inbox
        inbox.append((connection, data))
        if len(data) > self.large:
            self.answer()
        elif len(inbox) == 1:
            self.loop.call_soon(self.answer)

    def answer(self) -> None:
        """Decide on all that was received, and send the answers."""
        inbox, self._inbox = self._inbox, []
        self.answering = True
        for connection, data in inbox:
            try:
                connection.take(data)
            except Exception as error:  # noqa: BLE001 - the outermost edge: the others must get their answers
                self.handler_failed(error)
                self._give_up(connection)
            if len(self._outbox) >= self.burst:
                self.send()
        self.answering = False
        self.send()

    def _give_up(self, connection: Receiver) -> None:
        try:
            connection.abort()
        except Exception as error:  # noqa: BLE001 - as in `answer`
            self.handler_failed(error)

    def post(self, transport: asyncio.Transport, data: bytes) -> None:
        """Send this with the others of the burst."""
        self._outbox.append((transport, data))

    def send(self) -> None:
        """Write what is posted. Whoever writes or closes by himself calls this first, so that nothing overtakes."""
        if self._outbox:
            outbox, self._outbox = self._outbox, []
            for transport, data in outbox:
                if not transport.is_closing():  # uvloop raises on a write after close
                    try:
                        transport.write(data)
                    except Exception as error:  # noqa: BLE001 - the outermost edge, as in `answer`
                        self.handler_failed(error)
                        transport.abort()

    def gone(self, connection: Member) -> None:
        """Forget a closed connection."""
        self.live.discard(connection)

    def handler_failed(self, error: BaseException) -> Reply:
        """Count a handler's exception and log it."""
        self.handler_errors += 1
        log_fault(error, "answered 500")
        return error_reply(500, "internal error")


def log_fault(error: BaseException, outcome: str) -> None:
    """Log a fault of ours by kind and place, without its text, which may quote the request (Y-1)."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f"{frames[-1].name}, line {frames[-1].lineno}" if frames else "an unknown place"
    _log.error("a handler failed with %s in %s; %s", type(error).__name__, where, outcome)
