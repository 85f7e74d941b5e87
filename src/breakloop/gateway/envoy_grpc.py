"""Envoy's gRPC services, an extra (`breakloop[envoy]`).

`envoy.service.auth.v3.Authorization/Check` is `ext_authz`, with the handler of the HTTP variant, so that both decide
alike. `envoy.service.ext_proc.v3.ExternalProcessor/Process` is `ext_proc` (`gateway.envoy_processor`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

from breakloop.errors import RequestError, SettingsError
from breakloop.gateway.decision import NO_BUNDLE
from breakloop.gateway.envoy_messages import EnvoyRequest, allowed_response, denied_response, parse_request
from breakloop.gateway.envoy_processor import KEY, PARTIAL, EnvoyProcessor, NoDecisionError, header_fields, http_request
from breakloop.gateway.exchange import DeferredReply, MakeReply
from breakloop.gateway.http_request import Handler, HeadParser, Reply, RequestLimits
from breakloop.gateway.http_response import error_reply, log_fault

SERVICE: Final = "envoy.service.auth.v3.Authorization"
PROCESSOR: Final = "envoy.service.ext_proc.v3.ExternalProcessor"
_MISSING: Final = 'envoy_grpc_port needs an extra that is not installed: pip install "breakloop[envoy]", or set it to 0'
_MESSAGE_OVERHEAD: Final = 1024 * 1024  # size of a message without the body
_GRACE_S: Final = 1.0
_WITH_BODY: Final = frozenset((b"POST", b"PUT", b"PATCH"))


class EnvoyCheck:
    """Handles `CheckRequest` messages; bytes in, bytes out."""

    def __init__(self, handler: Handler, limits: RequestLimits) -> None:
        self._handler = handler
        self._heads = HeadParser(limits)

    async def check(self, data: bytes, key: bytes = b"") -> bytes | None:
        """Return a `CheckResponse`; None where there is no decision, which is a failure for Envoy. `key` is the key of
        Envoy itself, from the metadata of its call.
        """
        try:
            question = parse_request(data)
            request = http_request(self._heads, question, key, partial=_body_missing(question))
        except RequestError as error:
            refusal = error_reply(error.status, str(error))
            return denied_response(refusal.status, header_fields(refusal.head), refusal.body)
        result = self._handler(request)
        reply: Reply = await _wait_for(result) if isinstance(result, DeferredReply) else result
        if reply.delay_s:
            await asyncio.sleep(reply.delay_s)
        if reply.status == 200:
            return allowed_response(header_fields(reply.head))
        if reply.status == 503 and NO_BUNDLE in reply.head:
            return None
        return denied_response(reply.status, header_fields(reply.head), reply.body)


async def _wait_for(pending: DeferredReply) -> Reply:
    """Wait for a decision that needs a remote store. Envoy may cancel the call meanwhile."""
    if pending.make is None:
        future: asyncio.Future[MakeReply] = asyncio.get_running_loop().create_future()
        pending.wait(lambda make: None if future.done() else future.set_result(make))
        try:
            reply = (await future)()
        except asyncio.CancelledError:
            pending.cancel()
            raise
    else:
        reply = pending.make()
    assert isinstance(reply, Reply)  # noqa: S101 - the decision service forwards nothing
    return reply


def _body_missing(question: EnvoyRequest) -> bool:
    """Return whether the body, or a part of it, was not sent. Envoy sets a header for a partial body; without a body,
    that header may come from the client and is ignored."""
    headers = {name.lower(): value for name, value in question.headers}
    if question.body:
        return headers.get(PARTIAL) == b"true"
    length = headers.get(b"content-length")
    if length is not None:
        return length != b"0"
    return question.method in _WITH_BODY or b"transfer-encoding" in headers


@asynccontextmanager
async def serve_envoy(
    check: EnvoyCheck,
    processor: EnvoyProcessor,
    address: str,
    limits: RequestLimits,
    *,
    shared: bool,
    tls: tuple[bytes, bytes] | None,
) -> AsyncIterator[None]:
    """Serve on an address (`host:port`) while the block runs. `shared`: other processes listen on it, too; `tls`: a key
    and its certificates, PEM. Raises `SettingsError`."""
    try:
        import grpc  # noqa: PLC0415 - an extra
        import grpc.aio  # noqa: PLC0415
    except ImportError:
        raise SettingsError(_MISSING) from None
    server = _server(grpc, check, processor, limits, shared=shared)
    try:
        if tls is None:
            server.add_insecure_port(address)
        else:
            server.add_secure_port(address, grpc.ssl_server_credentials([tls]))
    except RuntimeError:
        raise SettingsError(f"envoy_grpc_port: cannot listen on {address}; another program may be using it") from None
    await server.start()
    try:
        yield
    finally:
        await server.stop(_GRACE_S)


def _server(grpc: Any, check: EnvoyCheck, processor: EnvoyProcessor, limits: RequestLimits, *, shared: bool) -> Any:
    codes = grpc.StatusCode

    async def serve(data: bytes, context: Any) -> bytes:
        try:
            response, code, why = await check.check(data, _key(context)), codes.UNAVAILABLE, NO_BUNDLE.decode()
        except ValueError as error:  # not a CheckRequest
            response, code, why = None, codes.INVALID_ARGUMENT, str(error)
        except Exception as error:  # noqa: BLE001 - fail-open edge: Envoy then acts as configured for failures
            log_fault(error, "no decision")
            response, code, why = None, codes.INTERNAL, ""
        if response is None:
            await context.abort(code, why)
        return response or b""

    async def process(messages: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        replies = processor.process(messages, _key(context))
        try:
            async for reply in replies:
                yield reply
        except NoDecisionError as error:
            await context.abort(codes.UNAVAILABLE, str(error))
        except ValueError as error:  # not a ProcessingRequest, or one that cannot be answered
            await context.abort(codes.INVALID_ARGUMENT, str(error))
        except Exception as error:  # noqa: BLE001 - as above
            log_fault(error, "no decision")
            await context.abort(codes.INTERNAL, "")
        finally:
            await replies.aclose()

    options = [
        ("grpc.max_receive_message_length", limits.body_bytes + _MESSAGE_OVERHEAD),
        ("grpc.so_reuseport", int(shared)),  # if not shared, a second instance must fail
    ]
    server = grpc.aio.server(options=options, maximum_concurrent_rpcs=limits.connections)
    methods = {  # without serializers: bytes
        SERVICE: {"Check": grpc.unary_unary_rpc_method_handler(serve)},
        PROCESSOR: {"Process": grpc.stream_stream_rpc_method_handler(process)},
    }
    server.add_generic_rpc_handlers(
        [grpc.method_handlers_generic_handler(service, handlers) for service, handlers in methods.items()]
    )
    return server


def _key(context: Any) -> bytes:
    """Return the key of Envoy itself, from the metadata of its call."""
    return next((value.encode() for name, value in context.invocation_metadata() or () if name == KEY), b"")
