"""One request to an upstream, and its response back to the client.

Bytes are passed on at once and read afterwards; nothing is held back. An exchange that fails ends in a 502 or 504 as
long as the client has received nothing, and in an aborted connection after that: an incomplete response never ends
cleanly. The handler decides about the request and words the errors.

`GuardedAnswer` also ends a streamed response that repeats itself or exceeds a cap on its length: what has arrived is
passed on, and what follows the cut is not. What a repetition is, `detect.stream` defines; how a dialect ends a stream,
`Dialect.end_stream`; whether a response is watched at all, the engine decides.

Where a policy needs an exact count of tokens and the client did not ask for one, `UsageInjector` adds the question to
the request and `UsageInjection` removes the count from the response. An upstream that does not support the question
rejects the request. It then gets the client's own request, once, and is not asked again for that model.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from breakloop.detect.stream import CUT, WARN, RepetitionWatch, StreamFinding, StreamWatch
from breakloop.dialects import registry
from breakloop.dialects.answers import GiveUp, ListeningReader, PassingAnswer, reader_for, unpacker
from breakloop.dialects.base import Dialect
from breakloop.dialects.body_changes import UsageStrip
from breakloop.dialects.encoding import EncodingError, Unpacker
from breakloop.dialects.framing import BODY, STREAM, Form, form_of
from breakloop.dialects.mcp import rpc_stub
from breakloop.gateway.framing import ChunkBoundary
from breakloop.gateway.http_request import CLOSE, Reply, Request
from breakloop.gateway.http_response import (
    BODY_UNTIL_CLOSE,
    UNCHANGED,
    UNTIL_CLOSE,
    ResponseHead,
    Upload,
    can_append,
    client_head,
    final_bytes,
    reframe,
)
from breakloop.gateway.second_answer import NOTE, SecondAnswer
from breakloop.gateway.upstream import UpstreamConnection, UpstreamPool, connect_error
from breakloop.model.call import CHARS_A_TOKEN, CLIENT_LEFT, NO_ANSWER, Answer, Call, Chat
from breakloop.model.counters import Tally
from breakloop.model.verdict import Verdict
from breakloop.policy.cache import TwoGenerationCache

if TYPE_CHECKING:
    from breakloop.gateway.connection import Connection
    from breakloop.gateway.proxy import ProxyHandler

KEPT_BYTES: Final = 64 * 1024  # a body up to this size is kept until the response is complete
_RETRY_S: Final = 1  # a reused connection that fails later than this after the request was not closed for being idle

_REJECTED: Final = frozenset((400, 422))
_MODELS_MAX: Final = 1000
_MODEL_CHARS: Final = 100
_NOT_ENCODED: Final = frozenset((b"", b"identity"))
# How content ends between two events, and the line break with which the final events continue.
_BETWEEN_EVENTS: Final = {b"\n\n": b"\n", b"\n\r\n": b"\r\n", b"\r\r": b"\r"}


def release_body(request: Request, call: Call) -> None:
    """Free a large body that will not be sent again: a thousand streams must not hold a thousand conversations.

    The id of an MCP call is kept, because an error in its place has to carry it.
    """
    if len(request.body) > KEPT_BYTES:
        request.body = b""
        call.release_body(rpc_stub(call.body))


def release_parsed(request: Request, call: Call) -> None:
    """Free what only the decision needed: the parsed body, and a large unpacked one, as the received one is sent."""
    call.release_parsed()
    if len(call.body) > KEPT_BYTES and call.body is not request.body:
        call.release_body(rpc_stub(call.body))


class UsageInjector:
    """Adds the question for a token count to requests, and stores the models that reject it. One per handler."""

    def __init__(self, tally: Tally) -> None:
        self._tally = tally
        self._rejected: TwoGenerationCache[str, bool] = TwoGenerationCache(_MODELS_MAX)

    def body(self, request: Request, call: Call, *, steered: bool) -> bytes | None:
        """Return the body with the question; None where the client's own is sent."""
        chat = call.parsed.chat
        if not isinstance(chat, Chat) or not chat.stream or request.streamed or self._rejected.get(_key(call, chat)):
            return None
        body = registry.DIALECTS[chat.dialect].request_usage(request.body if steered else call.body)
        if body is not None:
            self._tally.asked_usage += 1
        return body

    def reject(self, call: Call) -> None:
        """Do not ask again for this model: the same request without the question was accepted."""
        self._tally.refused_usage += 1
        chat = call.parsed.chat
        if isinstance(chat, Chat):
            self._rejected.put(_key(call, chat), True)


class UsageInjection:
    """One request with an added question. `head` and `body` are those of the client's own request."""

    __slots__ = ("_call", "_injector", "_retried", "_strip", "body", "head")

    def __init__(self, injector: UsageInjector, call: Call, head: bytes, body: bytes) -> None:
        self._injector = injector
        self._call = call
        self._strip: UsageStrip | None = None
        self._retried = False  # sent again, without the question
        self.head = head
        self.body = body  # until the response begins

    def should_retry(self, status: int) -> bool:
        """Return whether to send the client's own request. A rejected request had no effect, so this is safe."""
        if self._retried or status not in _REJECTED:
            return False
        self._retried = True
        return True

    def response_head(self, head: ResponseHead) -> ResponseHead:
        """Return the head for the client: the length of a rewritten body is unknown."""
        self.body = b""
        if self._retried:
            if head.status < 400:
                self._injector.reject(self._call)
            return head
        is_stream = form_of(head.headers.get("content-type", b""), streamed=True) == STREAM
        encoded = head.headers.get("content-encoding", b"").lower() not in _NOT_ENCODED
        if head.status >= 400 or not is_stream or encoded:
            return head
        self._strip = UsageStrip()
        return msgspec.structs.replace(head, length=BODY_UNTIL_CLOSE)

    def response_content(self, content: list[bytes], *, done: bool) -> list[bytes]:
        """Return the content for the client, without the count."""
        strip = self._strip
        if strip is None:
            return content
        passed = [strip.feed(piece) for piece in content]
        if done:
            passed.append(strip.finish())
        return passed


def _key(call: Call, chat: Chat) -> str:
    return f"{call.upstream} {chat.model[:_MODEL_CHARS]}"


class GuardedAnswer(PassingAnswer):
    """A streamed response that is read and watched."""

    __slots__ = ("_form", "_stream", "_tail", "_watch")

    def __init__(
        self, dialect: Dialect, unpacker: Unpacker | None, give_up: GiveUp, watch: StreamWatch, form: Form = STREAM
    ) -> None:
        self._watch = watch
        self._form = form
        self._stream = ListeningReader(dialect, watch, form)
        super().__init__(self._stream, unpacker, give_up)
        self._tail = b""  # at least the last three bytes of the content

    def feed(self, content: list[bytes]) -> bool:
        """Read what was just passed on; return whether the stream is to be cut."""
        collecting = self._stream.collecting
        if collecting is not None and len(content) == 1 and self._unpacker is None and collecting.add(content[0]):
            return False  # `_tail` is only read after another event
        PassingAnswer.feed(self, content)
        if content:
            last = content[-1]
            self._tail = last if len(last) > 2 else self._tail[-3:] + b"".join(content)
        return self._watch.found and self._check()

    def _stop(self, reason: str) -> None:
        super()._stop(reason)
        with suppress(Exception):  # fail-safe edge: reading has ended, and a fault of it was reported
            self._stream.read_collected()

    def _check(self) -> bool:
        """Report findings that cut nothing; return whether there is one that does."""
        cuts = False
        for finding in self._watch.findings():
            if not finding.action:
                cuts = True
            elif not finding.reported and self._final_events():
                finding.report(finding.action)
        return cuts and self._reader is not None

    def end(self, framing: int, boundary: ChunkBoundary | None, second: SecondAnswer | None = None) -> bytes:
        """Return the bytes that end the response for the client; nothing where it cannot be ended at this point.
        `second`: it is the rest of another one."""
        final = self._final_content(framing, boundary)
        if not final:
            return b""
        findings = self._cutting()
        super().feed([final])
        for finding in findings:
            finding.report(CUT)
        return final_bytes(final if second is None else b"".join(second.content([final])), framing, boundary)

    def end_thought(self, framing: int, boundary: ChunkBoundary | None) -> SecondAnswer | None:
        """Return how to go on with another response, if all there is is a thought that repeats itself, and it can be
        ended at this point."""
        if self._form != STREAM or not self._watch.only_thinks:
            return None
        final, line_end = self._final_content(framing, boundary), self._line_end()
        try:
            thought = self._stream.resuming(self._watch.open, self._watch.chars) if final else None
        except Exception:  # noqa: BLE001 - fail-safe edge: the response is cut instead
            thought = None
        if thought is None:
            return None
        for finding in self._cutting():
            finding.report(CUT)
        return SecondAnswer(thought, line_end, ending=final, framing=framing, boundary=boundary)

    def thought(self, status: int) -> Answer:
        """Return a response that was ended as a thought, with what it has used. As after a failure, sending the same
        again is not a loop."""
        answer = self.answer(status, complete=False)._replace(error="repeated")
        usage = answer.usage
        if usage is None:
            return answer
        said = max(usage.output_tokens, self._watch.chars // CHARS_A_TOKEN)
        return answer._replace(usage=usage._replace(output_tokens=said))

    def _cutting(self) -> list[StreamFinding]:
        return [finding for finding in self._watch.findings() if not finding.action]

    def _final_content(self, framing: int, boundary: ChunkBoundary | None) -> bytes:
        """Return the content that ends the response; b"" where it cannot be ended at this point."""
        line_end = self._line_end()
        if not (line_end if self._form == STREAM else self.between_events) or not can_append(framing, boundary):
            return b""
        final = self._final_events()
        return final.replace(b"\n", line_end) if self._form == STREAM else final

    def _line_end(self) -> bytes:
        """Return the line break of the stream if what has passed ends with a whole event, or b""."""
        return next((_BETWEEN_EVENTS[end] for end in _BETWEEN_EVENTS if self._tail.endswith(end)), b"")

    @property
    def evidence(self) -> str:
        """What the thought has repeated."""
        found = [finding for finding in self._watch.findings() if isinstance(finding, RepetitionWatch)]
        return f"{found[0].what} {found[0].times} times" if found else ""

    def answer(self, status: int, *, complete: bool) -> Answer:
        """Return what was read, and report findings where the stream could not be cut."""
        watch = self._watch
        for finding in watch.findings():
            if not finding.reported and self._final_events():
                finding.report(finding.action or WARN)
        answer = super().answer(status, complete=complete)
        if watch.reasoning_chars:  # reasoning is not stored, but billed
            answer = answer._replace(unkept_chars=answer.unkept_chars + watch.reasoning_chars)
        return answer

    def _final_events(self) -> bytes:
        """Return the events that would end the stream now."""
        if self._reader is None:
            return b""
        try:
            return self._stream.ending(self._watch.open, self._watch.chars)
        except Exception:  # noqa: BLE001 - fail-safe edge: a fault here must not end a response
            self._stop("fault")
            return b""


def read_response(
    chat: Chat, head: ResponseHead, give_up: GiveUp, watch: Callable[[bool], StreamWatch] | None = None
) -> PassingAnswer | None:
    """Return the reader of a response; None where it has no content to read.

    `watch` makes the watch of a streamed response; its argument is whether the stream can be cut. It cannot where the
    client already knows its length, or where it is compressed.
    """
    dialect = registry.DIALECTS.get(chat.dialect)
    form = form_of(head.headers.get("content-type", b""), streamed=chat.stream)
    if dialect is None or form is None:
        return None
    encoding = head.headers.get("content-encoding")
    try:
        decoder = unpacker(encoding) if encoding else None
    except EncodingError as error:
        give_up(error.reason)
        return None
    if watch is not None and form != BODY and dialect.ends_streams:
        return GuardedAnswer(dialect, decoder, give_up, watch(decoder is None and head.length < 0), form)
    return PassingAnswer(reader_for(dialect, form), decoder, give_up)


class StoppedCall(NamedTuple):
    """A call in flight that an operator has stopped."""

    call: Call
    verdict: Verdict
    stream: bool


class Exchange:
    """Made by the proxy handler, started by the client's connection."""

    __slots__ = (
        "_call", "_client", "_client_head", "_extra_lines", "_framing", "_handler", "_head", "_over", "_paused",
        "_pool", "_progress_tick", "_request", "_reserved_bytes", "_response", "_reused", "_server", "_settled",
        "_status", "_task", "_upload", "_upstream", "delay_s", "kept_body", "method", "second", "usage_injection",
    )  # fmt: skip

    _client: Connection  # set by `start`

    def __init__(
        self, handler: ProxyHandler, pool: UpstreamPool, request: Request, call: Call, head: bytes, extra_lines: bytes
    ) -> None:
        self._server = pool.server
        self._handler = handler
        self._pool = pool
        self._request = request
        self._call = call
        self._head = head  # of the request, for the upstream
        self._extra_lines = extra_lines  # of ours, in the head of the response
        self.method = request.method
        self.delay_s = 0.0
        self.usage_injection: UsageInjection | None = None
        self.kept_body = b""  # the client's own, if the request may be sent a second time
        self.second: SecondAnswer | None = None  # the client has the beginning of its response already
        self._upstream: UpstreamConnection | None = None
        self._task: asyncio.Task[UpstreamConnection] | asyncio.TimerHandle | None = None
        self._response: PassingAnswer | None = None  # the reader of the response
        self._status = NO_ANSWER
        self._client_head = b""  # the head of the response, until its first bytes are sent
        self._framing = UNCHANGED  # of the response, for the client
        self._progress_tick = 0
        self._upload = Upload(request) if request.streamed else None
        self._reused = False
        self._settled = False
        self._over = False
        self._paused = False
        self._reserved_bytes = 0
        if len(request.body) > KEPT_BYTES:
            self._server.body_memory.reserve(len(request.body))  # until the upstream responds
            self._reserved_bytes = len(request.body)

    # -- the request -------------------------------------------------------------------------------------------------

    def start(self, client: Connection) -> None:
        """Send the request; a throttled one after its delay."""
        self._client = client
        if self.delay_s > 0:
            self._progress_tick = self._server.tick
            if self._upload is not None:
                client.pause_upload(paused=True)
            self._task = self._server.loop.call_later(self.delay_s, self._open)
        else:
            self._open()

    def _open(self) -> None:
        self._task = None
        self._progress_tick = self._server.tick
        upstream = self._pool.take()
        if upstream is None:
            self._connect()
        else:
            self._reused = True
            self._send(upstream)

    def _connect(self) -> None:
        self._reused = False
        if self._request.streamed:
            self._client.pause_upload(paused=True)
        task = self._server.loop.create_task(self._pool.connect())
        self._task = task
        task.add_done_callback(self._connected)

    def _connected(self, task: asyncio.Task[UpstreamConnection]) -> None:
        if task.cancelled():
            return
        error = task.exception()
        if self._over:
            if error is None:
                task.result().release_unused()
        elif error is None:
            self._task = None
            self._progress_tick = self._server.tick
            self._send(task.result())
        else:
            if not isinstance(error, OSError):
                self._server.handler_failed(error)
            self._fail(502, connect_error(error))

    def _send(self, upstream: UpstreamConnection) -> None:
        if not self._reused and upstream.transport.is_closing():  # it was closed after it was made
            self._fail(502, "closed the connection")
            return
        self._upstream = upstream
        upstream.begin(self)
        if self._paused:
            upstream.pause()
        if self._upload is not None:
            self._begin_upload(upstream, self._upload)
            return
        upstream.send(self._head, self._request.body)
        if not self._reused:
            release_body(self._request, self._call)  # only a reused connection is retried

    def _begin_upload(self, upstream: UpstreamConnection, upload: Upload) -> None:
        upstream.send(self._head, b"")
        if not self._reused:
            release_body(self._request, self._call)
        upload.begin(lambda piece: upstream.send(piece, b""))
        self._client.pause_upload(paused=upstream.write_paused)

    # -- streamed request bodies -------------------------------------------------------------------------------------

    @property
    def response_started(self) -> bool:
        """Whether the client has received a part of the response."""
        return self.second is not None or (self._status != NO_ANSWER and not self._client_head)

    @property
    def _uploading(self) -> bool:
        return self._upload is not None and not self._upload.done

    def upload(self, piece: bytes, *, done: bool) -> None:
        """Pass on a piece of the request body."""
        self._progress_tick = self._server.tick
        if self._upload is not None:
            if piece:
                self._upload.add(piece)
            if done:
                self._upload.finish()

    def pause_upload(self, *, paused: bool) -> None:
        """The upstream stopped reading, or reads again."""
        if self._uploading:
            self._client.pause_upload(paused=paused)

    # -- the response ------------------------------------------------------------------------------------------------

    def whole_response(self, head: ResponseHead, body: bytes) -> bool:
        """Take a response whose head and body arrived together, as most do: what `response_head` and `response_body` do
        with it, without anything that is only needed between the two. Returns False if they have to do it.
        """
        if self.usage_injection is not None or self.second is not None or self._upload is not None:
            return False
        request, call, client, upstream = self._request, self._call, self._client, self._upstream
        if self._reserved_bytes:
            self._release_memory()
            release_body(request, call)
        if self._server.draining:
            request.connection = CLOSE
        size = b"content-length: %d\r\n\r\n" % len(body)  # the rest as in `client_head`
        client.relay(b"".join((head.line, head.lines, self._extra_lines, request.connection, size, body)))
        self._over = self._settled = True
        if upstream is not None:
            self._upstream = None
            upstream.finish()
        admission = self._handler.admission
        admission.settle(call, admission.read_whole(call, head.status, body))
        client.response_complete(close=request.connection is CLOSE)
        return True

    def response_head(self, head: ResponseHead) -> None:
        """Take the head of the response. It is sent with the first bytes of the body, which follow at once."""
        request, injection = self._request, self.usage_injection
        self._progress_tick = self._server.tick
        if injection is not None:
            if injection.should_retry(head.status):
                self._retry_without_usage(injection)
                return
            head = injection.response_head(head)
        self._status = head.status
        if self._reserved_bytes:
            self._release_memory()
        close = self._server.draining or (self._upload is not None and not self._upload.done)
        self._client_head, self._framing = client_head(request, head, self._extra_lines, close=close)
        if len(request.body) > KEPT_BYTES:
            release_body(request, self._call)
        second = self.second
        if second is not None:
            self._client_head, self._framing = b"", second.framing
            if not second.accepts(head):
                self._settle(Answer(head.status, complete=True))
                self._end_first(second)
                return
            self._client.relay(second.closing)
        if head.status >= 400:
            self._settle(Answer(head.status, complete=True))
        else:
            self._response = response = self._handler.admission.read_response(self._call, head)
            if response is not None and response.turn_bytes and self._upstream is not None:
                self._upstream.turn_bytes = response.turn_bytes

    def _retry_without_usage(self, injection: UsageInjection) -> None:
        upstream, self._upstream = self._upstream, None
        if upstream is not None:
            upstream.discard()
        self._head = injection.head
        self._request.body = injection.body
        self._connect()

    def response_body(self, data: bytes, content: list[bytes], *, done: bool) -> None:
        """Pass on bytes of the body: `data` as received, `content` without framing."""
        self._progress_tick = self._server.tick
        framing = self._framing
        if framing != UNCHANGED:
            passed = content
            if self.usage_injection is not None:
                passed = self.usage_injection.response_content(content, done=done)
            if self.second is not None:
                passed = self.second.content(passed)
            data = reframe(framing, passed, done=done)
        if self._client_head:
            data = self._client_head + data
            self._client_head = b""
        if data:
            self._client.relay(data)
        response = self._response
        if response is not None and response.feed(content) and not done:
            done = self._cut(response)
        if done:
            self._complete()

    def _cut(self, response: PassingAnswer) -> bool:
        """End a streamed response for the client, if that is possible at this point; else try after each line."""
        upstream = self._upstream
        if upstream is None or not isinstance(response, GuardedAnswer):
            return False
        second = response.end_thought(self._framing, upstream.chunk_boundary) if self.kept_body else None
        if second is not None:
            self._ask_again(response, second)
            return False
        final = response.end(self._framing, upstream.chunk_boundary, self.second)
        if not final:
            upstream.by_line = True
            return False
        self._client.relay(final)
        upstream.reusable = False
        return True

    def _ask_again(self, response: GuardedAnswer, second: SecondAnswer) -> None:
        """Send the request once more, after a thought that repeats itself. It is decided and charged like any other; if
        it does not pass, the response ends as if it had been cut."""
        body, self.kept_body, note = self.kept_body, b"", NOTE.format(response.evidence)
        self._stop()
        self._settle(response.thought(self._status))

        def decided(exchange: Exchange | None) -> None:
            if self._over:  # the client left, or the call was stopped
                if exchange is not None:
                    exchange.cancel()
            elif exchange is None:
                self._end_first(second)
            else:
                self._over = True
                exchange.second = second
                if self._paused:
                    exchange.pause()
                self._client.continue_with(exchange)

        self._handler.ask_again(self._request, self._call, body, note, decided)

    def _end_first(self, second: SecondAnswer) -> None:
        """End the response whose thought was to be followed by another response."""
        self._over = True
        self._stop()
        self._client.relay(second.ending)
        self._client.response_complete(close=self._request.connection is CLOSE)

    def _complete(self) -> None:
        self._over = True
        uploading = self._upload is not None and not self._upload.done
        upstream, self._upstream = self._upstream, None
        if upstream is not None:
            upstream.reusable = upstream.reusable and not uploading
            upstream.finish()
        if not self._settled:
            self._settle(self._answer(complete=True))
        self._client.response_complete(close=self._request.connection is CLOSE or uploading)

    def pause(self) -> None:
        """The client does not read: stop reading from the upstream."""
        self._paused = True
        if self._upstream is not None:
            self._upstream.pause()

    def resume(self) -> None:
        """Undo `pause`."""
        self._paused = False
        self._progress_tick = self._server.tick
        if self._upstream is not None:
            self._upstream.resume()

    # -- failures ----------------------------------------------------------------------------------------------------

    def upstream_eof(self) -> None:
        if self._upstream is not None and self._upstream.until_close:
            self.response_body(b"", [], done=True)

    def upstream_lost(self, why: str, *, invalid: bool = False) -> None:
        """The upstream connection is closed, or `invalid` data makes it unusable."""
        silent = self._upstream is not None and not self._upstream.received and not invalid
        self._upstream = None
        if self._over:
            return
        if self._reused and silent and self._server.tick - self._progress_tick <= _RETRY_S and self._upload is None:
            # The upstream closed an idle connection and never saw the request. A new connection is not retried.
            self._connect()
        else:
            self._fail(502, why)

    def expire(self) -> None:
        """Enforce time limits; called once a second."""
        age = self._server.tick - self._progress_tick
        timeouts = self._pool.timeouts
        upstream = self._upstream
        if isinstance(self._task, asyncio.Task):
            if age > timeouts.connect_seconds:
                self._fail(504, "did not accept the connection in time")
        elif upstream is None:
            return
        elif self._uploading and not upstream.write_paused and age > self._server.limits.body_s:
            self._server.timeouts += 1
            self._fail(408, "did not get the whole request body from the client in time")
        elif age > timeouts.answer_seconds:
            self._fail(504, "did not respond in time")

    def _fail(self, status: int, why: str) -> None:
        self._over = True
        self._stop()
        answer = self._answer(complete=False)
        if status == 408:  # caused by the client, so it is charged
            answer = answer._replace(status=CLIENT_LEFT)
        self._settle(answer._replace(error=answer.error or "cut_short"))
        reply = self._error_reply(status, why)  # made even where it cannot be sent: the handler publishes the failure
        if self.second is not None and self._status == NO_ANSWER:
            self._end_first(self.second)
        elif self._status == NO_ANSWER or self._client_head:
            if self._uploading:
                self._request.connection = CLOSE
            self._client.send_reply(self._request, reply)
        elif self._framing == UNTIL_CLOSE:
            self._client.reset()
        else:
            self._client.abort()

    def _error_reply(self, status: int, why: str) -> Reply:
        try:
            return self._handler.error_reply(self._call, status, why)
        except Exception as error:  # noqa: BLE001 - fail-safe edge: the client must not wait forever
            return self._server.handler_failed(error)

    def cancel(self) -> None:
        """The client left: free the upstream at once."""
        if not self._over:
            self._over = True
            self._stop()
            self._settle(self._answer(complete=False)._replace(status=CLIENT_LEFT))

    def stop(self, call_verdict: Callable[[Call], Verdict | None]) -> StoppedCall | None:
        """End a call that an operator has stopped: with the denial if the response has not begun, else with an error in
        the stream, or where that is not possible with an aborted connection. None if it is not stopped, or over.
        """
        verdict = None if self._over else call_verdict(self._call)
        if verdict is None:
            return None
        self._over = True
        chat = self._call.parsed.chat
        stream, final, started = isinstance(chat, Chat) and chat.stream, b"", self.response_started
        response, upstream = self._response, self._upstream
        if response is not None and upstream is not None and started and response.between_events:
            stream = True
            if can_append(self._framing, upstream.chunk_boundary):
                event = self._handler.error_event(self._call, verdict)
                final = final_bytes(event, self._framing, upstream.chunk_boundary)
        self._stop()
        self._settle(self._answer(complete=False)._replace(status=CLIENT_LEFT))
        if not started:
            self._request.connection = CLOSE if self._uploading else self._request.connection
            self._client.send_reply(self._request, self._handler.denial(self._call, verdict))
        elif final:
            self._client.relay(final)
            self._client.response_complete(close=True)
        elif self._framing == UNTIL_CLOSE:
            self._client.reset()
        else:
            self._client.abort()
        return StoppedCall(self._call, verdict, stream)

    def _release_memory(self) -> None:
        self._server.body_memory.held -= self._reserved_bytes
        self._reserved_bytes = 0

    def _stop(self) -> None:
        self._release_memory()
        if self._task is not None:
            self._task.cancel()
            self._task = None
        if self._upstream is not None:
            upstream, self._upstream = self._upstream, None
            upstream.discard()

    def _answer(self, *, complete: bool) -> Answer:
        """Return what was read of the response."""
        if self._response is None:
            return Answer(self._status, complete=complete)
        return self._response.answer(self._status, complete=complete)

    def _settle(self, answer: Answer) -> None:
        if not self._settled:
            self._settled = True
            self._handler.admission.settle(self._call, answer)


MakeReply = Callable[[], "Reply | Exchange | DeferredReply"]


class DeferredReply:
    """The reply to a request whose decision needs a remote store, or a person (`gateway.waiting`). The decision may
    arrive before `wait` is called.
    """

    __slots__ = ("_cancelled", "_deliver", "make")

    def __init__(self) -> None:
        self.make: MakeReply | None = None  # set when the decision arrived first
        self._deliver: Callable[[MakeReply], Any] | None = None
        self._cancelled = False

    def resolve(self, make: MakeReply) -> None:
        """The decision arrived. The waiting side calls `make`, because that may raise."""
        if self._cancelled:
            result = make()
            if isinstance(result, Exchange | DeferredReply):
                result.cancel()  # it was charged, and will have no response
        elif self._deliver is None:
            self.make = make
        else:
            self._deliver(make)

    def wait(self, deliver: Callable[[MakeReply], Any]) -> None:
        """Call `deliver` when the decision arrives."""
        self._deliver = deliver

    def cancel(self) -> None:
        self._cancelled = True

    def drain(self) -> None:
        """The server is stopping. A decision arrives anyway."""
