"""What a server and its connections have in common: the phases, the handler, the limits, the parser, the counters."""

from __future__ import annotations

import asyncio
import logging
import traceback
from enum import IntEnum
from typing import Protocol

from breakloop.gateway.bounds import Limits
from breakloop.gateway.head import Handler, HeadParser, Reply
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


class Member(Protocol):
    """What a server needs of a connection."""

    def expire(self) -> None:
        """End what takes too long; called once a second."""
        ...

    def drain(self) -> None:
        """Leave now if nothing is under way."""
        ...

    def cut(self) -> None:
        """Leave now whatever is under way."""
        ...

    def abort(self) -> None:
        """Leave without waiting for what is still to be written."""
        ...


class Hub:
    """Shared by the connections of one server. Counters are plain integers and only ever grow."""

    def __init__(self, handler: Handler, limits: Limits, loop: asyncio.AbstractEventLoop) -> None:
        self.handler = handler
        self.limits = limits
        self.loop = loop
        self.heads = HeadParser(limits)
        self.lines = StatusLines()
        self.live: set[Member] = set()
        self.tick = 0  # seconds, counted by the sweep
        self.draining = False
        self.connections = 0  # taken since the start
        self.refused = 0  # connections above the cap
        self.requests = 0  # handed to the handler
        self.bad_requests = 0
        self.handler_errors = 0
        self.timeouts = 0
        self.abandoned = 0  # clients that left while their reply was pending

    def gone(self, connection: Member) -> None:
        """Forget a closed connection."""
        self.live.discard(connection)

    def handler_failed(self, error: BaseException) -> Reply:
        """Count a handler's exception and log it without its text, which may quote the request (Y-1)."""
        self.handler_errors += 1
        frames = traceback.extract_tb(error.__traceback__)
        where = f"{frames[-1].name}, line {frames[-1].lineno}" if frames else "an unknown place"
        _log.error("a handler failed with %s in %s; answered 500", type(error).__name__, where)
        return error_reply(500, "internal error")
