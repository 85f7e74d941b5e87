"""One client connection: reads requests, calls the handler, and writes replies and forwarded responses in order.

Requests are processed one at a time. No timer runs per request: the server calls `expire` once a second. `ServerCore`
is what the connections of one server share; `Server` adds listening, the periodic sweep and shutdown.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from enum import IntEnum
from functools import partial
from itertools import islice
from socket import AF_INET6, inet_pton
from typing import TYPE_CHECKING, Final, Protocol, cast
from weakref import ref

from breakloop.dialects.content import Steps
from breakloop.errors import RequestError
from breakloop.gateway.exchange import DeferredReply, Exchange, MakeReply, StoppedCall
from breakloop.gateway.http_request import (
    CLOSE,
    BodyMemory,
    Handler,
    HeadParser,
    HeadTemplate,
    Reply,
    Request,
    RequestLimits,
    RequestReader,
    StreamsBody,
)
from breakloop.gateway.http_response import CONTINUE, StatusLines, error_reply, log_fault, render
from breakloop.gateway.upstream import UpstreamConnection, peer_closed, reset
from breakloop.model.call import Call
from breakloop.model.verdict import Verdict

if TYPE_CHECKING:
    from breakloop.gateway.websocket import WebSocketExchange

# A client may have sent this much of a refused upload before it looks for the answer. After that its connection is not
# read any more, so that a client which goes on sending costs nothing.
_LINGER_BYTES: Final = 64 * 1024 * 1024
_SEARCH_MAX: Final = 64  # connections among which an idle one is looked for

# Decisions on larger bodies take from 0.2 ms on, and up to 15 ms, after as many for counting their values.
LARGE_BYTES: Final = 256 * 1024
_PACKED_BYTES: Final = 4096  # a compressed body of this size may be as large


def _takes_long(request: Request) -> bool:
    size = len(request.body)
    packed = size > _PACKED_BYTES and "content-encoding" in request.headers
    return (packed or size > LARGE_BYTES) and not request.streamed


class Phase(IntEnum):
    """State of a client connection. From WAITING on, received bytes are buffered and not parsed."""

    IDLE = 0  # between requests, with nothing received
    HEAD = 1
    BODY = 2
    WAITING = 3  # for the handler, for the upstream, or until a throttled reply is due
    QUEUED = 4  # more requests are buffered; other connections are served first
    LINGERING = 5  # an error was sent; keeps reading briefly, because closing with unread bytes would discard the error
    CLOSED = 6
    UPGRADED = 7  # to a websocket: received bytes go to the exchange


# Module globals are read faster than enum members.
IDLE, HEAD, BODY, WAITING, QUEUED, LINGERING, CLOSED, UPGRADED = Phase


class LargeBodies(Protocol):
    """What is done with large bodies before the handler gets them."""

    def prepare(self, request: Request) -> Steps[None]:
        """Do what takes long."""

    def forget(self) -> None:
        """Free the result."""


class ServerCore:
    """State shared by the connections of one server. Counters are plain integers that only grow.

    Reads are batched per iteration of the event loop: all data that arrived is read first, then all of it is processed,
    then all replies are written. Replying to each request at once costs up to 50 % more CPU: a write that wakes a
    client on another core is the most expensive step, and in a batch only the first write does.
    """

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
        self.live: dict[Connection, None] = {}  # in the order in which they were accepted or last found busy
        self.exempts: Callable[[str], bool] = lambda _address: False  # from the limit of one address
        self._of_peer: dict[str | bytes, dict[Connection, None]] = {}  # `live` by address, in the same order
        self._per_peer = limits.connections_per_peer or limits.connections - limits.connections // 4
        self.reads: list[tuple[Connection | UpstreamConnection, bytes]] = []
        self.large_read = 16 * 1024  # a longer read is processed at once, which bounds the memory of a batch
        self.writes: list[tuple[asyncio.Transport, bytes]] = []  # written by `flush_writes`
        self.max_batched_writes = 32  # a write waits for at most this many others
        self.large_bodies: LargeBodies | None = None  # None: they are not prepared
        self._slow: deque[Steps[None]] = deque()  # work in steps, of which one is done in each turn of the loop
        self.batching = False  # `process_reads` is running: replies go to `writes`
        self.tick = 0  # seconds, counted by the sweep
        self.draining = False
        self.connections = 0  # accepted since the start
        self.refused = 0  # connections above the limit
        self.refused_of_peer = 0  # connections above the limit of one address
        self.refused_peer = ""  # the last of these addresses
        self.reclaimed = 0  # idle connections that were closed for new ones
        self.requests = 0  # passed to the handler
        self.bad_requests = 0
        self.handler_errors = 0
        self.timeouts = 0
        self.abandoned = 0  # clients that disconnected while their reply was pending

    def queue_read(self, connection: Connection | UpstreamConnection, data: bytes) -> None:
        """Keep received data until everything that arrived in this iteration of the loop has been read."""
        reads = self.reads
        reads.append((connection, data))
        if len(data) > self.large_read:
            self.process_reads()
        elif len(reads) == 1:
            self.loop.call_soon(self.process_reads)

    def process_reads(self) -> None:
        """Process everything that was read, and write the replies."""
        reads, self.reads = self.reads, []
        self.batching = True
        several = len(reads) > 1
        for connection, data in reads:
            try:
                connection.process(data)
            except Exception as error:  # noqa: BLE001 - fail-safe edge: other connections must get their replies
                self.handler_failed(error)
                self._abort(connection)
            if several and len(self.writes) >= self.max_batched_writes:
                self.flush_writes()
        self.batching = False
        self.flush_writes()

    def _abort(self, connection: Connection | UpstreamConnection) -> None:
        try:
            connection.abort()
        except Exception as error:  # noqa: BLE001 - as in `process_reads`
            self.handler_failed(error)

    def flush_writes(self) -> None:
        """Write what is queued. Call it before writing to or closing a transport directly, to keep the order."""
        if self.writes:
            writes, self.writes = self.writes, []
            for transport, data in writes:
                if not transport.is_closing():  # uvloop raises on a write after close
                    try:
                        transport.write(data)
                    except Exception as error:  # noqa: BLE001 - as in `process_reads`
                        self.handler_failed(error)
                        transport.abort()

    def defer(self, connection: Connection, request: Request) -> None:
        """Process a request that takes long in turns of the event loop of its own, so that others get theirs."""
        self.run_slowly(self._process_large(connection, request))

    def _process_large(self, connection: Connection, request: Request) -> Steps[None]:
        memory, size, large = self.body_memory, len(request.body), self.large_bodies
        memory.held += size
        try:
            yield
            for _ in large.prepare(request) if large is not None else ():
                if connection.phase is not WAITING:  # the client has left
                    return
                yield
            memory.held -= size  # an exchange reserves it again
            size = 0
            connection.dispatch_deferred(request)
        except Exception as error:  # noqa: BLE001 - as in `process_reads`
            self.handler_failed(error)
            self._abort(connection)
        finally:
            memory.held -= size
            if large is not None:
                large.forget()

    def run_slowly(self, steps: Steps[None]) -> None:
        """Do some work after that of others, one step in each turn of the event loop."""
        next(steps, None)  # up to its first `yield`
        self._slow.append(steps)
        if len(self._slow) == 1:
            self.loop.call_soon(self._next_step)

    def _next_step(self) -> None:
        try:
            next(self._slow[0])
        except StopIteration:
            self._slow.popleft()
        except Exception as error:  # noqa: BLE001 - as in `process_reads`
            self._slow.popleft()
            self.handler_failed(error)
        if self._slow:
            self.loop.call_soon(self._next_step)

    def admit(self, connection: Connection, address: str) -> bool:
        """Add a new connection, unless there are too many of its address or of all and none of them is idle."""
        peer = _peer_key(address)
        same = self._of_peer.get(peer, {})
        is_beyond = self._per_peer <= len(same) < self.limits.connections
        if is_beyond and not self.exempts(address) and not self._make_room(same):
            self.refused_of_peer += 1
            self.refused_peer = address
            return False
        if len(self.live) >= self.limits.connections and not self._make_room(self.live):
            self.refused += 1
            return False
        self.connections += 1
        self.live[connection] = None
        self._of_peer.setdefault(peer, {})[connection] = None
        return True

    def _make_room(self, among: dict[Connection, None]) -> bool:
        """Close an idle connection for a new one, since a client opens another one when it needs it. Returns False if
        none of the oldest is idle; the next attempt looks at others.
        """
        self.process_reads()  # a connection whose request has just arrived is not idle
        oldest = list(islice(among, _SEARCH_MAX))
        idle = [connection for connection in oldest if connection.phase is IDLE]
        if idle:
            longest = min(idle, key=lambda connection: connection.idle_since)
            longest.abort()
            self.remove(longest)
            self.reclaimed += 1
            return True
        for connection in oldest:
            del among[connection]
            among[connection] = None
        return False

    @property
    def bodies_shed(self) -> int:
        return self.body_memory.shed

    def remove(self, connection: Connection) -> None:
        if connection in self.live:
            del self.live[connection]
            peer = _peer_key(connection.peer)
            same = self._of_peer[peer]
            del same[connection]
            if not same:
                del self._of_peer[peer]

    def handler_failed(self, error: BaseException) -> Reply:
        """Count and log an exception of ours; return the reply to send."""
        self.handler_errors += 1
        log_fault(error, "answered 500")
        return error_reply(500, "internal error")


def _peer_key(address: str) -> str | bytes:
    """Return what connections are counted by: an IPv4 address, or the /64 network of an IPv6 address, since a single
    client may have all of its addresses."""
    if ":" not in address:
        return address
    try:
        return inet_pton(AF_INET6, address.partition("%")[0])[:8]
    except OSError:
        return address


class Connection(asyncio.Protocol):
    """The protocol object of one client."""

    __slots__ = (
        "_discarded", "_exchange", "_handle", "_limits", "_pending", "_progress_tick", "_reader",
        "_reading", "_server", "_status_lines", "_template", "_throttled", "_transport", "_unsent",
        "_upload_paused", "_websocket", "_write_paused", "peer", "phase",
    )  # fmt: skip

    def __init__(self, server: ServerCore) -> None:
        self._server = server
        # Of an object, the bound method: it is called faster.
        self._handle: Handler = getattr(server.handler, "__call__", server.handler)  # noqa: B004 - it is callable
        self._limits = server.limits
        self._status_lines = server.status_lines
        self._reader = RequestReader(server.head_parser, server.limits, server.body_memory, server.streams_body)
        self._transport = cast("asyncio.Transport", None)  # set by connection_made
        self._template: ref[HeadTemplate] | None = None  # of the last request: weak, because many clients may be idle
        self.peer = ""
        self.phase = IDLE
        self._progress_tick = server.tick  # when the phase began or last made progress
        self._reading = True
        self._write_paused = False  # the client does not read its response
        self._discarded = 0  # bytes, while lingering
        self._unsent = 0  # bytes in the write buffer, when `expire` last checked
        self._pending: asyncio.TimerHandle | DeferredReply | None = None
        self._throttled: tuple[Request, Reply] | None = None  # a reply that is sent after its delay
        self._exchange: Exchange | WebSocketExchange | None = None  # a request that is being forwarded
        self._upload_paused = False
        self._websocket: WebSocketExchange | None = None  # the exchange, if it is a websocket

    # -- asyncio.Protocol --------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Accept the connection, or close it at once when there are too many."""
        self._transport = cast("asyncio.Transport", transport)
        peer = transport.get_extra_info("peername")  # None: already gone, and its address is unknown
        self.peer = peer[0] if isinstance(peer, tuple) else ""
        if peer is None or self._server.draining or not self._server.admit(self, self.peer):
            self.phase = CLOSED
            self._transport.abort()

    @property
    def idle_since(self) -> int:
        """The tick of the last progress."""
        return self._progress_tick

    def data_received(self, data: bytes) -> None:
        """Queue what was received, as `queue_read` does; `process` gets it with the rest of the batch."""
        server = self._server
        reads = server.reads
        reads.append((self, data))
        if len(data) > server.large_read:
            server.process_reads()
        elif len(reads) == 1:
            server.loop.call_soon(server.process_reads)

    def eof_received(self) -> bool:
        """Treat a half-closed connection as closed, after processing what arrived before."""
        self._server.process_reads()
        self.client_left()
        return False

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - the protocol's signature
        """Free everything that was held for this client."""
        self.client_left()
        self._server.remove(self)

    def pause_writing(self) -> None:
        """The client does not read: stop reading its requests, and the response of the upstream."""
        self._write_paused = True
        self._progress_tick = self._server.tick
        if self._exchange is not None:
            self._exchange.pause()
        self._update_reading()

    def resume_writing(self) -> None:
        """Undo `pause_writing`."""
        self._write_paused = False
        self._progress_tick = self._server.tick
        if self._exchange is not None:
            self._exchange.resume()
        if self.phase < WAITING:
            self._process_requests()
        self._update_reading()

    def client_left(self) -> None:
        """The client disconnected: cancel its timer, decision or exchange at once."""
        if self._pending is not None:
            self._server.abandoned += 1
            self._pending.cancel()
            self._pending = None
            self._throttled = None
        if self._exchange is not None:
            self._server.abandoned += 1
            exchange, self._exchange = self._exchange, None
            self._websocket = None
            exchange.cancel()
        self._reader.clear()
        self.phase = CLOSED

    # -- reading requests --------------------------------------------------------------------------------------------

    def process(self, data: bytes) -> None:
        """Process received bytes. A fast path handles one complete request in one read, the usual case."""
        if self.phase is IDLE and not self._write_paused:
            template_ref = self._template
            if template_ref is not None and self._process_same_head(data, template_ref()):
                return
            size, limits = len(data), self._limits
            # Without a body, the data is the head. If it only ends like one, parsing it fails at an empty line.
            end = size if data.endswith(b"\r\n\r\n") else data.find(b"\r\n\r\n") + 4
            if 4 < end <= limits.head_bytes:
                try:
                    heads, peer = self._server.head_parser, self.peer
                    # Without a body, as most requests for a decision, a head has no length that could differ.
                    request = heads.parse_bodiless(data, peer) if end == size else heads.parse(data[:end], peer)
                except RequestError:
                    pass  # the reader parses it again and reports the first error in stream order
                else:
                    if request.length == size - end <= limits.body_bytes:
                        if end < size:
                            request.body = data[end:]
                        template = request.template
                        if template is not None and template.max_bytes <= limits.head_bytes:
                            self._template = ref(template)
                        if size > _PACKED_BYTES and _takes_long(request):
                            self._defer(request)
                        else:
                            self._dispatch(request)
                        return
        self._receive(data)

    def _process_same_head(self, data: bytes, template: HeadTemplate | None) -> bool:
        """Process a request whose head is the same as before but for its length. Returns False for others."""
        request = None if template is None else template.whole_request(data, self.peer)
        if request is None or request.length > self._limits.body_bytes:
            return False
        if len(data) > _PACKED_BYTES and _takes_long(request):
            self._defer(request)
        else:
            self._dispatch(request)
        return True

    def _receive(self, data: bytes) -> None:
        if self.phase is UPGRADED:
            if self._websocket is not None:
                self._websocket.receive(data)
        elif self.phase is LINGERING:
            self._discarded += len(data)
            if self._discarded > _LINGER_BYTES and self._reading:
                self._reading = False
                self._transport.pause_reading()
        elif self.phase is not CLOSED:
            self._reader.push(data)
            if self.phase < WAITING:
                self._process_requests()
            elif self._reader.streaming:
                self._pass_upload()
            self._update_reading()

    def _process_requests(self) -> None:
        """Process buffered requests until one has to wait, or until other connections are to be served."""
        try:
            for _ in range(self._limits.pipelined):
                request = None if self._write_paused else self._reader.next(self.peer)
                if request is None:
                    self._wait_for_more()
                    break
                self.phase = IDLE
                if len(request.body) > _PACKED_BYTES and _takes_long(request):
                    self._defer(request)
                    break
                self._dispatch(request)
                self._server.flush_writes()  # before the next request: a full write buffer shows only then
                if self.phase is not IDLE:
                    break
            else:
                self.phase = QUEUED
                self._server.loop.call_soon(self._continue_queued)
        except RequestError as error:
            self._reject(error)
        except Exception as error:  # noqa: BLE001 - fail-safe edge: what follows is not read as another request
            self._server.handler_failed(error)
            self._reader.clear()
            self.abort()
        self._reader.compact()

    def _continue_queued(self) -> None:
        if self.phase is QUEUED:
            self.phase = IDLE
            self._process_requests()
            self._update_reading()

    def _wait_for_more(self) -> None:
        """The buffered request is incomplete: note which part is missing, and since when."""
        if self._reader.body is not None:
            self.phase = BODY
            self._progress_tick = self._server.tick
            self._send_continue()
        elif self.phase is IDLE and len(self._reader):
            self.phase = HEAD
            self._progress_tick = self._server.tick

    def _send_continue(self) -> None:
        if self._reader.continue_due:
            self._reader.continue_due = False
            self._write(CONTINUE)

    def _update_reading(self) -> None:
        """Pause reading while the client does not read, or while too much is buffered behind a pending reply."""
        limits = self._limits
        wanted = not self._write_paused and len(self._reader) <= max(limits.backlog_bytes, limits.head_bytes)
        if wanted is not self._reading and self.phase is not CLOSED:
            self._reading = wanted
            if wanted:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    def _defer(self, request: Request) -> None:
        self.phase = WAITING
        self._server.defer(self, request)

    def dispatch_deferred(self, request: Request) -> None:
        """Process a request whose turn has come, unless the client has left."""
        if self.phase is WAITING:
            self.phase = IDLE
            self._dispatch(request)
            self._continue()

    # -- replies -----------------------------------------------------------------------------------------------------

    def _dispatch(self, request: Request) -> None:
        """Call the handler, and send its reply or wait for it."""
        self._server.requests += 1
        handle = self._handle  # first: calling an attribute takes longer
        try:
            reply = handle(request)
            if type(reply) is DeferredReply and reply.make is not None:
                reply = reply.make()
        except Exception as error:  # noqa: BLE001 - fail-safe edge: one failing request must not end the process
            reply = self._failed(error)
        if type(reply) is Exchange:
            self._forward(request, reply)
        elif type(reply) is Reply and not reply.delay_s:  # as most of our own
            self._send(request, reply)
        elif isinstance(reply, DeferredReply):
            self.phase = WAITING
            self._pending = reply
            reply.wait(partial(self._decided, request))
        elif type(reply) is not Reply:
            self._forward(request, reply)
        elif reply.delay_s > 0:
            self._throttle(request, reply)
        else:
            self._send(request, reply)

    def _decided(self, request: Request, make: MakeReply) -> None:
        """A deferred decision arrived. Not called once the client has left: that cancels the deferred reply."""
        self._pending = None
        try:
            reply = make()
        except Exception as error:  # noqa: BLE001 - as in `_dispatch`
            reply = self._failed(error)
        if isinstance(reply, Exchange):
            self._forward(request, reply)
        elif isinstance(reply, DeferredReply):  # the call of a paused run waits for an answer
            self._pending = reply
            reply.wait(partial(self._decided, request))
        elif reply.delay_s > 0:
            self._throttle(request, reply)
        else:
            self.send_reply(request, reply)

    def _failed(self, error: Exception) -> Reply:
        """Return the reply to a request whose handler raised this."""
        if isinstance(error, RequestError):
            return error_reply(error.status, str(error))
        return self._server.handler_failed(error)

    def _throttle(self, request: Request, reply: Reply) -> None:
        """Send a reply after its delay, unless `client_left` cancels it."""
        self.phase = WAITING
        self._throttled = (request, reply)
        self._pending = self._server.loop.call_later(reply.delay_s, self.send_reply, request, reply)

    def send_reply(self, request: Request, reply: Reply) -> None:
        """Send a reply that was pending, and continue with what the client sent in the meantime."""
        self._pending = None
        self._throttled = None
        self._exchange = None
        self.phase = IDLE
        self._send(request, reply)
        self._continue()

    def _send(self, request: Request, reply: Reply) -> None:
        server = self._server
        self._progress_tick = server.tick
        uploading = self._reader.body is not None and self._reader.streaming
        connection = CLOSE if server.draining or uploading else request.connection
        data = render(self._status_lines, reply, connection, request.method)
        if server.batching:
            server.writes.append((self._transport, data))
        else:
            self._write(data)
        if uploading:
            self._linger()
        elif connection is CLOSE:
            self._close()

    def _continue(self) -> None:
        """Process the next buffered request, if there is one."""
        if self.phase is IDLE:
            if len(self._reader):
                self._process_requests()
            self._update_reading()

    def _write(self, data: bytes) -> None:
        """Write now, after everything that is queued."""
        self._server.flush_writes()
        if not self._transport.is_closing():  # uvloop raises on a write after close
            self._transport.write(data)

    # -- forwarded responses: called by the exchange -----------------------------------------------------------------

    def _forward(self, request: Request, exchange: Exchange) -> None:
        self.phase = WAITING
        self._exchange = exchange
        exchange.start(self)
        if request.streamed and self._exchange is exchange:
            self._send_continue()
            self._pass_upload()

    def continue_with(self, exchange: Exchange) -> None:
        """Take the rest of the response from another exchange."""
        self._exchange = exchange
        exchange.start(self)

    def relay(self, data: bytes) -> None:
        """Send bytes of the upstream's response."""
        server = self._server
        if server.batching:
            server.writes.append((self._transport, data))
        elif not self._transport.is_closing():  # uvloop raises on a write after close
            self._transport.write(data)

    @property
    def is_upgraded(self) -> bool:
        return self.phase is UPGRADED

    def upgrade(self, websocket: WebSocketExchange) -> None:
        """The connection is a websocket from here on. Bytes that arrived early are part of it."""
        self.phase = UPGRADED
        self._websocket = websocket
        early = self._reader.take()
        if early:
            websocket.receive(early)

    def close_websocket(self) -> None:
        """Everything was sent to the client, a close frame too. It may still be sending."""
        self._exchange = self._websocket = None
        self._linger()

    def pause_messages(self, *, paused: bool) -> None:
        """Stop or continue reading from a client with a websocket."""
        if self.phase is UPGRADED and paused is self._reading:
            self._reading = not paused
            if paused:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()

    def response_complete(self, *, close: bool) -> None:
        """The upstream's response was passed on completely."""
        server, reader = self._server, self._reader
        self._exchange = None
        self._upload_paused = False
        self._progress_tick = server.tick
        self.phase = IDLE
        if reader.body is not None and reader.streaming:
            self._linger()
        elif close or server.draining:
            self._close()
        elif reader.buffer or self._write_paused or not self._reading:  # else there is nothing to continue with
            self._continue()

    def pause_upload(self, *, paused: bool) -> None:
        """Stop or continue passing a streamed request body to the exchange."""
        self._upload_paused = paused
        if not paused:
            self._pass_upload()
            self._update_reading()

    def _pass_upload(self) -> None:
        """Pass on what has arrived of a streamed body, unless the upstream cannot take it."""
        exchange = self._exchange
        if not isinstance(exchange, Exchange) or self._upload_paused or not self._reader.streaming:
            return
        try:
            piece, done = self._reader.read_streamed()
        except RequestError as error:
            self._exchange = None
            exchange.cancel()
            if exchange.response_started:
                self.abort()
            else:
                self._reject(error)
            return
        exchange.upload(piece, done=done)

    # -- closing -----------------------------------------------------------------------------------------------------

    def _reject(self, error: RequestError) -> None:
        """Send an error and end the connection, without losing the error (see `Phase.LINGERING`)."""
        self._server.bad_requests += 1
        self._write(render(self._status_lines, error_reply(error.status, str(error)), CLOSE, ""))
        self._linger()

    def _linger(self) -> None:
        """Send nothing more, and keep reading for a moment."""
        self._server.flush_writes()
        self._reader.clear()
        self.phase = LINGERING
        self._progress_tick = self._server.tick
        if self._transport.can_write_eof() and not self._transport.is_closing():
            self._transport.write_eof()
            self._update_reading()
        else:
            self._close()

    def _close(self) -> None:
        self._server.flush_writes()
        self._reader.clear()
        self.phase = CLOSED
        self._progress_tick = self._server.tick
        self._transport.close()

    def abort(self) -> None:
        """Close without writing what is buffered, or reading what has arrived."""
        self.phase = CLOSED
        self._transport.abort()

    def reset(self) -> None:
        """End with a TCP reset, so that a response without a length cannot pass for complete."""
        self._server.flush_writes()
        reset(self._transport)

    # -- called by the server ----------------------------------------------------------------------------------------

    def expire(self) -> None:
        """Enforce time limits; called once a second."""
        if not self._reading and peer_closed(self._transport):
            self.client_left()
            self._transport.abort()
            return
        age, limits, phase = self._server.tick - self._progress_tick, self._limits, self.phase
        if self._write_paused or phase is CLOSED:  # closed by us, but the client does not read the rest
            before, self._unsent = self._unsent, self._transport.get_write_buffer_size()
            if self._unsent < before:
                self._progress_tick = self._server.tick  # slow, but reading
            elif age > limits.body_s:
                self._server.timeouts += 1
                self.reset()
        elif phase is IDLE or phase is LINGERING:
            if age > (limits.idle_s if phase is IDLE else limits.linger_s):
                self._close()
        elif self._exchange is not None:
            self._exchange.expire()
        elif phase in (HEAD, BODY) and age > (limits.head_s if phase is HEAD else limits.body_s):
            self._server.timeouts += 1
            self._reject(RequestError(408, "the request did not arrive in time"))

    def stop_call(self, verdict_of: Callable[[Call], Verdict | None]) -> StoppedCall | None:
        """End the call that is being forwarded if `verdict_of` denies it."""
        return None if self._exchange is None else self._exchange.stop(verdict_of)

    def drain(self) -> None:
        """The server is stopping: close now if no request is being processed."""
        if self.phase in (IDLE, LINGERING):
            self._close()
        elif isinstance(self._pending, DeferredReply):
            self._pending.drain()
        elif self._websocket is not None:
            self._websocket.drain()

    def stop(self) -> None:
        """The grace period is over: send a throttled reply now, end anything else without a reply."""
        forwarded = self._exchange is not None
        if self._throttled is not None and self._pending is not None:
            self._pending.cancel()
            self.send_reply(*self._throttled)
        self.client_left()
        if forwarded:
            self.reset()  # after a regular close, an incomplete response could look complete
        else:
            self._transport.close()
