"""Envoy's `ext_proc`: Envoy sends each request and its response through breakloop, in one gRPC stream.

Unlike `ext_authz`, this can change the request, so that agents are steered and landed, and it sees the response, so
that calls are settled with what they used and streams that repeat themselves are ended, as behind the proxy.

Envoy has to be configured to send whole request bodies (`BUFFERED`) and responses in pieces (`STREAMED`), as
`examples/envoy/envoy-ext-proc.yaml` does.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from time import perf_counter_ns
from typing import Final

from breakloop.dialects.answers import PassingAnswer
from breakloop.errors import RequestError
from breakloop.gateway.admission import Admission
from breakloop.gateway.decision import ENVOY, NO_BUNDLE, envoy_call, refused_caller
from breakloop.gateway.envoy_messages import (
    BUFFERED,
    REQUEST_BODY,
    REQUEST_HEADERS,
    RESPONSE_BODY,
    RESPONSE_HEADERS,
    EnvoyRequest,
    Field,
    ProcessingRequest,
    immediate_response,
    parse_processing,
    passed_message,
    replaced_body,
    replaced_piece,
)
from breakloop.gateway.exchange import GuardedAnswer, release_body, release_parsed
from breakloop.gateway.http_request import HeadParser, Reply, Request, RequestLimits
from breakloop.gateway.http_response import BODY_UNTIL_CLOSE, UNTIL_CLOSE, ResponseHead, error_reply
from breakloop.model.call import CLIENT_LEFT, NO_ANSWER, Answer, Call
from breakloop.model.verdict import Verdict

KEY: Final = "x-breakloop-key"
PARTIAL: Final = b"x-envoy-auth-partial-body"
# About the connection between client and Envoy, or contained in the message; the rest describes the request.
_DROPPED: Final = frozenset(
    (b"host", b"connection", b"content-length", b"transfer-encoding", b"upgrade", b"expect", PARTIAL)
)
_BODY_MODE: Final = "processing_mode.request_body_mode of Envoy's ext_proc filter must be BUFFERED"


class NoDecisionError(Exception):
    """There is no bundle yet: a failure for Envoy, which then acts as configured."""


class EnvoyProcessor:
    """Handles the streams of `ProcessingRequest` messages; bytes in, bytes out."""

    def __init__(self, admission: Admission, limits: RequestLimits) -> None:
        self.admission = admission
        self.heads = HeadParser(limits)

    async def process(self, messages: AsyncIterator[bytes], key: bytes = b"") -> AsyncGenerator[bytes, None]:
        """Yield a `ProcessingResponse` for each message. `key` is the key of Envoy itself. Raises `ValueError`, and
        `NoDecisionError`.
        """
        call = ProcessedCall(self, key)
        try:
            async for data in messages:
                reply = await call.reply(parse_processing(data))
                yield reply
                if call.denied:
                    return
        finally:
            call.close()


class ProcessedCall:
    """One request and its response, which the messages of one stream contain."""

    def __init__(self, processor: EnvoyProcessor, key: bytes) -> None:
        self._admission = processor.admission
        self._heads = processor.heads
        self._key = key
        self._head: ProcessingRequest | None = None  # of the request, until it is decided
        self._call: Call | None = None  # if it was allowed
        self._own_fields: list[Field] = []  # ours, for the head of the response
        self._status = NO_ANSWER
        self._response: PassingAnswer | None = None  # the reader of the response
        self._by_line = False  # the stream is cut at the next end of an event
        self._cut = False
        self._settled = False
        self.denied = False

    async def reply(self, message: ProcessingRequest) -> bytes:
        """Return the reply to one message."""
        kind = message.kind
        if kind == REQUEST_HEADERS:
            if message.body_mode not in {None, BUFFERED}:
                raise ValueError(_BODY_MODE)
            if message.end_of_stream:
                return await self._decide(kind, message, b"")
            self._head = message
        elif kind == REQUEST_BODY:
            if self._head is None:
                raise ValueError(_BODY_MODE)
            head, self._head = self._head, None
            return await self._decide(kind, head, message.body)
        elif kind == RESPONSE_HEADERS:
            return self._response_head(message)
        elif kind == RESPONSE_BODY:
            return self._response_body(message)
        return passed_message(kind)

    def close(self) -> None:
        """The stream has ended. A response that is not complete then was cut off."""
        self._settle(complete=False)

    # -- the request -------------------------------------------------------------------------------------------------

    async def _decide(self, kind: int, head: ProcessingRequest, body: bytes) -> bytes:
        """Return the reply to the message that completes the request."""
        admission, pseudo = self._admission, dict(head.headers)
        question = EnvoyRequest(
            method=pseudo.get(b":method", b""),
            path=pseudo.get(b":path", b""),
            host=pseudo.get(b":authority", b""),
            peer=head.peer,
            headers=head.headers,
            body=body,
        )
        try:
            request = http_request(self._heads, question, self._key)
            call = envoy_call(request, admission.request_id())
        except RequestError as error:
            return self._deny(error_reply(error.status, str(error)))
        call.tracked = True
        call.began_ns = perf_counter_ns()
        refusal = admission.unknown_caller(call, asked=True) if admission.needs_key else None
        if refusal is not None:
            return self._deny(refused_caller(*refusal))
        verdict, lines = await self._verdict(request, call)
        if admission.traces is not None:
            admission.traces.decided(call, verdict)
        admission.timings.decision.note(perf_counter_ns() - call.began_ns)
        if not verdict.allowed:
            if verdict.reason.encode() == NO_BUNDLE:
                raise NoDecisionError(verdict.reason)
            denial = admission.client_denial(call, verdict)
            denial.head += lines
            return self._deny(denial)
        self._call = call
        if verdict.delay_ms:
            await asyncio.sleep(verdict.delay_ms / 1000)
        changed = admission.steer(call, verdict) if verdict.note else None
        self._own_fields = header_fields(admission.headers.allowed(verdict, call.request_id) + lines)
        release_parsed(request, call)
        release_body(request, call)
        call.began_ns = perf_counter_ns()  # from here on, the time of the upstream is measured
        return passed_message(kind) if changed is None else replaced_body(changed)

    async def _verdict(self, request: Request, call: Call) -> tuple[Verdict, bytes]:
        if self._admission.remote is None:
            return self._admission.decide(request, call)
        future: asyncio.Future[tuple[Verdict, bytes]] = asyncio.get_running_loop().create_future()

        def decided(verdict: Verdict, lines: bytes = b"", /) -> None:
            if not future.done():
                future.set_result((verdict, lines))
            elif verdict.allowed:  # Envoy's client has left: it was charged, and will have no response
                self._admission.settle(call, Answer(CLIENT_LEFT))

        self._admission.decide_remote(request, call, decided)
        return await future

    def _deny(self, reply: Reply) -> bytes:
        self.denied = True
        return immediate_response(reply.status, header_fields(reply.head), reply.body)

    # -- the response ------------------------------------------------------------------------------------------------

    def _response_head(self, message: ProcessingRequest) -> bytes:
        call = self._call
        if call is None:  # Envoy itself replied, for example because the body was too large
            return passed_message(message.kind)
        headers = {name.decode("latin-1"): value for name, value in message.headers}
        status, length = headers.get(":status", b""), headers.get("content-length", b"")
        self._status = int(status) if status.isdigit() else NO_ANSWER
        head = ResponseHead(
            self._status, b"", b"", headers, int(length) if length.isdigit() else BODY_UNTIL_CLOSE, b"", keep_alive=True
        )
        if self._status < 400 and not message.end_of_stream:
            self._response = self._admission.read_response(call, head)
        else:
            self._settle(complete=True)
        return passed_message(message.kind, self._own_fields)

    def _response_body(self, message: ProcessingRequest) -> bytes:
        """Read a piece of the response; return it with the end of the stream if it repeats itself, or empty after that.
        The upstream is not told: it stops when the client, which has the whole response, closes the connection.
        """
        if self._cut:
            return replaced_piece(b"")
        final = b"" if self._response is None else self._read(self._response, message.body)
        if final:
            self._cut = True
            self._settle(complete=True)
            return replaced_piece(final)
        if message.end_of_stream:
            self._settle(complete=True)
        return passed_message(message.kind)

    def _read(self, response: PassingAnswer, piece: bytes) -> bytes:
        """Return the last piece of a stream that is cut in this one; nothing while the stream goes on."""
        passed = 0
        for part in piece.splitlines(keepends=True) if self._by_line else (piece,):
            passed += len(part)
            if response.feed([part]) and isinstance(response, GuardedAnswer):
                final = response.end(UNTIL_CLOSE, None)
                if final:
                    return piece[:passed] + final
                self._by_line = True
        return b""

    def _settle(self, *, complete: bool) -> None:
        if self._settled or self._call is None:
            return
        self._settled = True
        response = self._response
        answer = (
            Answer(self._status, complete=complete)
            if response is None
            else response.answer(self._status, complete=complete)
        )
        self._admission.settle(self._call, answer if complete else answer._replace(status=CLIENT_LEFT))


def http_request(heads: HeadParser, question: EnvoyRequest, key: bytes, *, partial: bool = False) -> Request:
    """Return the request that Envoy would have sent to the decision service over HTTP, parsed by the same rules.
    `partial`: the body, or a part of it, is missing. Raises `RequestError`.
    """
    lines = [b"%b %b%b HTTP/1.1" % (question.method, ENVOY, question.path), b"host: " + question.host]
    lines += [
        b"%b: %b" % field for field in question.headers if field[0][:1] != b":" and field[0].lower() not in _DROPPED
    ]
    if partial:
        lines.append(PARTIAL + b": true")
    head = b"\r\n".join((*lines, b"", b""))
    if head.count(b"\n") != len(lines) + 1:
        raise RequestError(400, "a header field with a line break")
    request = heads.parse(head, question.peer)
    request.body = question.body
    if key:
        request.headers[KEY] = key
    return request


def header_fields(head: bytes) -> list[Field]:
    """Return the fields of header lines."""
    return [(name, value) for line in head.split(b"\r\n") if line for name, _, value in [line.partition(b": ")]]
