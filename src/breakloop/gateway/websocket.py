"""Websockets of LLM APIs: OpenAI's Responses API and the Realtime API.

The gateway passes messages both ways as they come, and decides about each `response.create` of the client, as if it had
been a request to `/v1/responses`. A denied one is not passed on: the client gets the protocol's `error` event in its
place. The events of the response are read, and settle the call.

In the Realtime API the conversation is at the provider, and items are sent before `response.create`. They are collected
and read as the input of a request that continues the last response.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

import msgspec

from breakloop.dialects import content, denial
from breakloop.dialects.answers import PassingAnswer
from breakloop.dialects.content import Steps
from breakloop.errors import UpstreamError
from breakloop.gateway.admission import Admission
from breakloop.gateway.connection import LARGE_BYTES
from breakloop.gateway.exchange import StoppedCall
from breakloop.gateway.forwarding import Destination
from breakloop.gateway.http_request import Request
from breakloop.gateway.http_response import (
    HEAD_BYTES,
    UNCHANGED,
    Framing,
    ResponseHead,
    client_head,
    framing_for,
    reframe,
)
from breakloop.gateway.upstream import UpstreamPool, connect_error
from breakloop.gateway.websocket_frames import CLOSE as CLOSE_FRAME
from breakloop.gateway.websocket_frames import (
    GOING_AWAY,
    INTERNAL,
    POLICY,
    TEXT,
    FrameError,
    Message,
    MessageReader,
    close_frame,
    text_frame,
)
from breakloop.model.call import CLIENT_LEFT, Answer, Call
from breakloop.model.verdict import Verdict

if TYPE_CHECKING:
    from breakloop.gateway.connection import Connection
    from breakloop.gateway.proxy import ProxyHandler

_RESPONSES: Final = "/responses"
_REALTIME: Final = "/realtime"
_CREATE: Final = b"response.create"
_ITEM: Final = b"conversation.item.create"
_ITEMS_MAX: Final = 256  # that are kept between two responses
_OVER: Final = frozenset(("response.completed", "response.failed", "response.incomplete", "response.done", "error"))
_SSE: Final = ResponseHead(200, b"", b"", {"content-type": b"text/event-stream"}, 0, b"", keep_alive=True)
_SWITCHED: Final = b"HTTP/1.1 101 Switching Protocols\r\nconnection: Upgrade\r\nupgrade: websocket\r\n"
_EXTENSIONS: Final = b"sec-websocket-extensions:"
_TURN_BYTES: Final = 8 * 1024  # of events, read in one turn of the event loop
_UNREAD_BYTES: Final = 1024 * 1024  # of messages that wait for a decision


class _Event(msgspec.Struct):
    type: str = ""
    generate: bool = True


_decode_event = msgspec.json.Decoder(_Event).decode


def has_websocket(path: str) -> bool:
    """Return whether the messages of websockets at this path are understood."""
    return path.endswith((_RESPONSES, _REALTIME))


class _Pending(NamedTuple):
    """A response that was asked for."""

    call: Call
    response: PassingAnswer | None


class WebSocketExchange:
    """One websocket between a client and an upstream. Made by the proxy handler, started by the client's connection."""

    def __init__(
        self,
        handler: ProxyHandler,
        admission: Admission,
        pool: UpstreamPool,
        request: Request,
        destination: Destination,
        head: bytes,
    ) -> None:
        lines = head.split(b"\r\n")
        kept = [line for line in lines[:-2] if not line.lower().startswith(_EXTENSIONS)]
        self._head = b"\r\n".join((*kept, b"connection: Upgrade", b"upgrade: websocket", b"", b""))
        self._handler = handler
        self._admission = admission
        self._pool = pool
        self._server = pool.server
        self._request = request
        self._destination = destination
        self._realtime = destination.path.endswith(_REALTIME)
        self._items: deque[Any] = deque(maxlen=_ITEMS_MAX)  # of the Realtime API, since the last response
        self._last_id = ""  # of the last response
        self._model = ""
        most = self._server.limits.body_bytes
        self._from_client = MessageReader(most, masked=True)
        self._from_upstream = MessageReader(most, masked=False)
        self._unread: deque[Message] = deque()  # of the client, while a decision is pending
        self._deciding = False
        self._upstream_full = False  # it does not read
        self._client_full = False  # the same
        self._upstream_paused = False  # it is not read
        self._events = b""  # of the upstream: passed on, and left for the next turns of the event loop
        self._lost = ""  # why the upstream is gone, until its events are read
        self._pending: deque[_Pending] = deque()
        self._client = cast("Connection", None)  # set by `start`
        self._upstream: WebSocketUpstream | None = None
        self._task: asyncio.Task[WebSocketUpstream] | None = None
        self._held = 0  # bytes, charged to the memory of bodies
        self._progress_tick = 0
        self._over = False

    # -- called by the client's connection ---------------------------------------------------------------------------

    def start(self, client: Connection) -> None:
        """Connect to the upstream, and send it the handshake."""
        self._client = client
        self._progress_tick = self._server.tick
        self._task = self._server.loop.create_task(self._connect())
        self._task.add_done_callback(self._connected)

    async def _connect(self) -> WebSocketUpstream:
        return await self._pool.open(lambda: WebSocketUpstream(self, self._pool))

    def _connected(self, task: asyncio.Task[WebSocketUpstream]) -> None:
        self._task = None
        if task.cancelled():
            return
        error = task.exception()
        if error is not None:
            if not isinstance(error, OSError):
                self._server.handler_failed(error)
            self._refuse(502, connect_error(error))
        elif self._over:
            task.result().transport.abort()
        else:
            self._upstream = task.result()
            self._progress_tick = self._server.tick
            self._upstream.transport.write(self._head)

    def receive(self, data: bytes) -> None:
        """Take bytes of the client, after the handshake."""
        self._progress_tick = self._server.tick
        try:
            for message in self._from_client.feed(data):
                self._unread.append(message)
        except FrameError as error:
            self._fail(error.code, str(error))
            return
        self._process()

    def pause(self) -> None:
        """The client does not read: stop reading from the upstream."""
        self._client_full = True
        self._pause_upstream()

    def resume(self) -> None:
        """Undo `pause`."""
        self._client_full = False
        self._pause_upstream()

    def _pause_upstream(self) -> None:
        """Stop reading from the upstream while the client does not read, or while events of its are unread."""
        paused = self._client_full or bool(self._events)
        if self._upstream is not None and paused is not self._upstream_paused:
            self._upstream_paused = paused
            if paused:
                self._upstream.transport.pause_reading()
            else:
                self._upstream.transport.resume_reading()

    def expire(self) -> None:
        """Enforce time limits; called once a second."""
        age, timeouts = self._server.tick - self._progress_tick, self._pool.timeouts
        if self._task is not None and age > timeouts.connect_seconds:
            self._refuse(504, "did not accept the connection in time")
        elif age > timeouts.answer_seconds:
            if self._client.is_upgraded:
                self._fail(GOING_AWAY, "no message for too long")
            else:
                self._refuse(504, "did not respond in time")

    def cancel(self) -> None:
        """The client left: free the upstream, and settle what it asked for."""
        self._end()

    def drain(self) -> None:
        """The server is stopping: close unless a response is under way."""
        if not self._pending and not self._deciding:
            self._fail(GOING_AWAY, "the gateway is stopping")

    def stop(self, call_verdict: Callable[[Call], Verdict | None]) -> StoppedCall | None:
        """Close the websocket if an operator has stopped one of the calls in flight."""
        for call, _ in self._pending:
            verdict = call_verdict(call)
            if verdict is not None:
                self._client.relay(self._denial(call, verdict))
                self._fail(POLICY, verdict.message)
                return StoppedCall(call, verdict, stream=True)
        return None

    # -- messages of the client --------------------------------------------------------------------------------------

    def _process(self) -> None:
        while self._unread and not self._deciding and not self._over:
            message = self._unread.popleft()
            if message.kind != TEXT or not (
                _CREATE in message.payload or (self._realtime and _ITEM in message.payload)
            ):
                self._send(message.raw)
            elif len(message.payload) > LARGE_BYTES:
                self._deciding = True
                self._server.run_slowly(self._judge_large(message))
            else:
                self._judge(message)
        self._charge()
        self._pause_client()

    def _pause_client(self) -> None:
        """Stop reading from the client while the upstream does not read, or while too much waits for a decision."""
        waiting = self._deciding and sum(len(one.raw) for one in self._unread) > _UNREAD_BYTES
        self._client.pause_messages(paused=waiting or self._upstream_full)

    def _judge_large(self, message: Message) -> Steps[None]:
        """Decide about a large message as about a request with a large body, after the work of others."""
        admission, memory, size = self._admission, self._server.body_memory, len(message.raw)
        memory.held += size
        try:
            yield
            yield from admission.count(message.payload)
            if not self._over:
                self._deciding = False
                self._judge(message)
                self._process()
        finally:
            memory.held -= size
            admission.forget()

    def _judge(self, message: Message) -> None:
        """Decide about a message that asks for a response; pass on others."""
        body = self._body(message.payload)
        if body is None:
            self._send(message.raw)
            return
        admission = self._admission
        call = self._handler.websocket_call(self._request, self._destination, body)

        def decided(verdict: Verdict, _lines: bytes = b"", /) -> None:
            self._deciding = False
            self._act(message, call, verdict)
            self._process()

        if admission.remote is not None:
            self._deciding = True
            admission.decide_remote(self._request, call, decided)
        else:
            self._act(message, call, admission.decide(self._request, call)[0])

    def _body(self, payload: bytes) -> bytes | None:
        """Return the request that a message stands for; None if it asks for no response."""
        event = _event(payload)
        if event.type == _ITEM.decode():
            self._items.append(_fields(payload).get("item"))
            return None
        if event.type != _CREATE.decode() or not event.generate:  # without a response: Codex warms up with it
            return None
        if not self._realtime:
            return payload  # has the fields of the request, and its type beside them
        asked = _fields(payload).get("response")
        given = asked.get("input") if isinstance(asked, dict) else None
        items = [*self._items, *content.as_list(given)]
        self._items.clear()
        body = {"model": self._model, "input": items, "stream": True}
        return denial.dump({**body, "previous_response_id": self._last_id} if self._last_id else body)

    def _act(self, message: Message, call: Call, verdict: Verdict) -> None:
        """Act on a verdict: pass the message on, changed or not, or answer with an error event."""
        admission = self._admission
        if self._over:
            if verdict.allowed:
                admission.settle(call, Answer(CLIENT_LEFT))
            return
        if admission.traces is not None:
            admission.traces.decided(call, verdict)
        if not verdict.allowed:
            self._client.relay(self._denial(call, verdict))
            return
        changed = admission.steer(call, verdict) if verdict.note and not self._realtime else None
        call.release_parsed()
        self._pending.append(_Pending(call, admission.read_response(call, _SSE)))
        call.release_body(b"")
        frame = message.raw if changed is None else text_frame(changed, masked=True)
        if verdict.delay_ms:
            self._deciding = True
            self._server.loop.call_later(verdict.delay_ms / 1000, self._send_later, frame)
        else:
            self._send(frame)

    def _send_later(self, frame: bytes) -> None:
        """Send a throttled message, and what the client sent after it."""
        self._deciding = False
        if not self._over:
            self._send(frame)
            self._process()

    def _send(self, data: bytes) -> None:
        if self._upstream is not None:
            self._upstream.transport.write(data)

    def _denial(self, call: Call, verdict: Verdict) -> bytes:
        """Return the `error` event for a denial."""
        error = content.load(self._admission.error_body(call, verdict))["error"]
        event = {"type": "error", "status": verdict.status, "sequence_number": 0, "error": error}
        event |= {name: error.get(name) for name in ("code", "message", "param")}
        return text_frame(denial.dump(event), masked=False)

    # -- the upstream ------------------------------------------------------------------------------------------------

    def upgraded(self, head: ResponseHead) -> None:
        """The upstream accepted the handshake."""
        self._client.upgrade(self)
        own = self._admission.headers.allowed(Verdict(), self._admission.request_id())
        self._client.relay(b"".join((_SWITCHED, head.lines, own, b"\r\n")))

    def refused(self, head: ResponseHead) -> int:
        """The upstream answered with a response instead, whose body follows; return the framing for the client."""
        own = self._admission.headers.allowed(Verdict(), self._admission.request_id())
        data, framing = client_head(self._request, head, own, close=True)
        self._client.relay(data)
        return framing

    def refused_body(self, data: bytes, *, done: bool) -> None:
        self._client.relay(data)
        if done:
            self._end()
            self._client.response_complete(close=True)

    def upstream_data(self, data: bytes) -> None:
        """Pass on what the upstream sent, and read the events."""
        self._progress_tick = self._server.tick
        self._client.relay(data)
        if len(data) <= _TURN_BYTES and not self._events:
            self._read_events(data)
            return
        if not self._events:
            self._server.loop.call_soon(self._read_more)
        self._events += data
        self._pause_upstream()

    def _read_more(self) -> None:
        """Read some of the events that are left, so that those of a fast upstream hold up nobody."""
        data, self._events = self._events[:_TURN_BYTES], self._events[_TURN_BYTES:]
        if self._over:
            self._events = b""
            return
        self._read_events(data)
        if self._events:
            self._server.loop.call_soon(self._read_more)
        elif self._lost:
            self.upstream_lost(self._lost)
        else:
            self._pause_upstream()

    def _read_events(self, data: bytes) -> None:
        try:
            messages = self._from_upstream.feed(data)
        except FrameError as error:
            self._fail(INTERNAL, f"the upstream sent an {error}")
            return
        for message in messages:
            if message.kind == TEXT:
                try:
                    self._read(message.payload)
                except Exception as error:  # noqa: BLE001 - fail-open edge: the event has been passed on
                    self._admission.fault(error, "not read")
            elif message.kind == CLOSE_FRAME:
                break

    def _read(self, payload: bytes) -> None:
        kind = _event(payload).type
        if self._realtime:
            payload = self._translated(kind, payload)
        if not self._pending:
            return
        call, response = self._pending[0]
        if response is not None:
            response.feed([b"data: %b\n\n" % payload])
        if kind in _OVER:
            self._pending.popleft()
            status = 200 if kind != "error" else _status(payload)
            answer = Answer(status, complete=True) if response is None else response.answer(status, complete=True)
            self._admission.settle(call, answer)

    def _translated(self, kind: str, payload: bytes) -> bytes:
        """Return an event of the Realtime API as the Responses API has it, and keep what the next request needs."""
        if kind in {"session.created", "session.updated"}:
            session = _fields(payload).get("session")
            self._model = content.text(session.get("model")) if isinstance(session, dict) else ""
        elif kind == "response.done":
            event = _fields(payload)
            response = event.get("response")
            if isinstance(response, dict):
                self._last_id = content.text(response.get("id"))
                return denial.dump({**event, "type": "response.completed"})
        return payload

    def upstream_lost(self, why: str) -> None:
        """The upstream closed the connection."""
        if self._over:
            return
        if self._events:
            self._lost = why
            return
        if self._client.is_upgraded:
            self._end()
            self._client.close_websocket()
        else:
            self._refuse(502, why)

    def pause_client(self, *, paused: bool) -> None:
        """The upstream does not read, or reads again."""
        self._upstream_full = paused
        self._pause_client()

    # -- ending ------------------------------------------------------------------------------------------------------

    def _refuse(self, status: int, why: str) -> None:
        """End before the handshake is complete, with an error of ours."""
        self._end()
        call = self._handler.websocket_call(self._request, self._destination, b"")
        self._client.send_reply(self._request, self._handler.error_reply(call, status, why))

    def _fail(self, code: int, why: str) -> None:
        """Close both sides after the handshake."""
        if not self._over:
            self._send(close_frame(code, why, masked=True))
            self._client.relay(close_frame(code, why, masked=False))
            self._end()
            self._client.close_websocket()

    def _end(self) -> None:
        self._over = True
        self._server.body_memory.held -= self._held
        self._held = 0
        if self._task is not None:
            self._task.cancel()
            self._task = None
        upstream, self._upstream = self._upstream, None
        if upstream is not None:
            upstream.transport.close()
        while self._pending:
            call, response = self._pending.popleft()
            answer = Answer(CLIENT_LEFT) if response is None else response.answer(CLIENT_LEFT, complete=False)
            self._admission.settle(call, answer)

    def _charge(self) -> None:
        """Charge the bytes that are held to the memory of bodies, until they are passed on."""
        if self._over:
            return
        held = len(self._from_client) + sum(len(one.raw) for one in self._unread)
        self._server.body_memory.held += held - self._held
        self._held = held


def _event(payload: bytes) -> _Event:
    try:
        return _decode_event(payload)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return _Event()


def _fields(payload: bytes) -> dict[str, Any]:
    """Return the fields of an event; none if it is not an object, or has too many values to read."""
    event = None if content.has_too_many_values(payload) else content.load(payload)
    return event if isinstance(event, dict) else {}


def _status(payload: bytes) -> int:
    status = content.count(_fields(payload).get("status"))
    return status if status is not None and 400 <= status <= 599 else 500


class WebSocketUpstream(asyncio.Protocol):
    """The connection of one websocket to its upstream."""

    def __init__(self, exchange: WebSocketExchange, pool: UpstreamPool) -> None:
        self._exchange = exchange
        self._pool = pool
        self._head = bytearray()
        self._switched = False
        self._framing: Framing | None = None  # of a response that refuses the handshake
        self._framing_out = UNCHANGED
        self.transport = cast("asyncio.Transport", None)  # set by connection_made

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        if self._switched:
            self._exchange.upstream_data(data)
            return
        try:
            self._receive_head(data) if self._framing is None else self._receive_body(self._framing, data)
        except UpstreamError as error:
            self.transport.abort()
            self._exchange.upstream_lost(str(error))

    def _receive_head(self, data: bytes) -> None:
        self._head += data
        end = self._head.find(b"\r\n\r\n") + 4
        if end == 3:
            if len(self._head) > HEAD_BYTES:
                raise UpstreamError("sent a response that is not valid HTTP/1.1")
            return
        head, rest = self._pool.heads.parse(bytes(self._head[:end]), "GET"), bytes(self._head[end:])
        self._head.clear()
        if head.status == 101:
            if _EXTENSIONS in head.lines.lower():
                raise UpstreamError("uses an extension of websockets that was not offered")
            self._switched = True
            self._exchange.upgraded(head)
            if rest:
                self._exchange.upstream_data(rest)
        elif head.status >= 200:
            self._framing = framing_for(head.length)
            self._framing_out = self._exchange.refused(head)
            self._receive_body(self._framing, rest)
        elif rest:
            self._receive_head(rest)

    def _receive_body(self, framing: Framing, data: bytes) -> None:
        used = framing.feed(data) if data else 0
        out = (
            data[:used]
            if self._framing_out == UNCHANGED
            else reframe(self._framing_out, framing.content, done=framing.done)
        )
        self._exchange.refused_body(out, done=framing.done)

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._exchange.upstream_lost("closed the connection" if exc is None else "reset the connection")

    def pause_writing(self) -> None:
        self._exchange.pause_client(paused=True)

    def resume_writing(self) -> None:
        self._exchange.pause_client(paused=False)
