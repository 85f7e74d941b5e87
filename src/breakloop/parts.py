"""Makes the parts of a process out of its settings. Putting them together and running them is `runtime`'s."""

from __future__ import annotations

import secrets
import ssl
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from breakloop.clock import Clock
from breakloop.engine import Engine
from breakloop.errors import SettingsError
from breakloop.gateway.answer_head import AnswerHeads
from breakloop.gateway.bounds import Limits
from breakloop.gateway.callers import Callers
from breakloop.gateway.debug import DebugSessions
from breakloop.gateway.decision import DecisionDoor
from breakloop.gateway.forwarding import Forwarding
from breakloop.gateway.judging import Judging
from breakloop.gateway.listening import check_free, why_not
from breakloop.gateway.pool import Pool, Times
from breakloop.gateway.proxy import ProxyDoor
from breakloop.gateway.server import Server
from breakloop.gateway.targets import Targets, upstreams
from breakloop.gateway.upstream_faults import UpstreamFaults
from breakloop.model.answer import Answer
from breakloop.model.call import Call
from breakloop.policy.client_ip import ClientIp
from breakloop.policy.compile_loops import LoopGuard
from breakloop.policy.descriptors import ContextSettings, Descriptors
from breakloop.policy.jwt import JwtKeys
from breakloop.settings import Settings, provider_keys
from breakloop.state.redis_url import is_redis_url
from breakloop.wire.denial import VerdictHeaders

if TYPE_CHECKING:
    from breakloop.observe.tracing import Tracing


def tracing(settings: Settings, descriptors: Descriptors, clock: Clock) -> Tracing | None:
    """Return who traces calls, if somebody wants that. Raises `SettingsError`."""
    if not settings.otel_endpoint:
        return None
    try:
        from breakloop.observe.tracing import open_tracing  # noqa: PLC0415 - its packages are an extra
    except ImportError as error:
        why = f"otel_endpoint: needs a package that is not installed ({error.name}): pip install 'breakloop[otel]'"
        raise SettingsError(why) from None
    return open_tracing(settings.otel_endpoint, descriptors, clock)


def answering(descriptors: Descriptors, traces: Tracing | None) -> Callable[[Call, Answer], None]:
    """Return who hears of each answer."""
    if traces is None:
        return descriptors.answered

    def answered(call: Call, answer: Answer) -> None:
        descriptors.answered(call, answer)
        traces.answered(call, answer)

    return answered


def judging(
    settings: Settings,
    engine: Engine,
    descriptors: Descriptors,
    secret: bytes,
    clock: Clock,
    *,
    traces: Tracing | None = None,
) -> Judging:
    """Return what all doors ask."""
    prefix = settings.header_prefix
    debug_secret = settings.debug_secret.get_secret_value()
    return Judging(
        engine,
        descriptors,
        VerdictHeaders(prefix, secret),
        run_id=secrets.token_hex(4) + "-",
        debug=DebugSessions(debug_secret, prefix, clock) if debug_secret else None,
        body_bytes=settings.limits.body_bytes,
        traces=traces,
    )


def open_proxy(
    server: Server,
    settings: Settings,
    judging: Judging,
    own: DecisionDoor,
    mark: str = "",
    faults: UpstreamFaults | None = None,
) -> ProxyDoor:
    """Put the reverse proxy in front of what the server does already. `mark` is what processes on one port share;
    `faults` is told of upstreams that fail."""
    named = upstreams(settings.upstream)
    tls = upstream_tls(settings) if any(upstream.tls for upstream in named) else None
    heads, times = AnswerHeads(), _times(settings)
    pools = {upstream.name: Pool(upstream, server, times, tls, heads) for upstream in named}
    forwarding = Forwarding(
        settings.header_prefix,
        mark or secrets.token_hex(8),
        via=settings.via,
        keys=provider_keys(settings),
        scheme="https" if settings.tls.cert_file else "http",
        trusts=ClientIp(tuple(settings.trusted_proxies)).trusted,
    )
    callers = Callers(settings.callers, settings.header_prefix) if settings.callers else None
    door = ProxyDoor(
        judging, own, targets=Targets(named), pools=pools, forwarding=forwarding, callers=callers, faults=faults
    )
    server.handler = door
    server.streams = door.streams
    server.sweeps += [pool.sweep for pool in pools.values()]
    server.sweeps += [faults.sweep] if faults is not None else []
    server.endings += [pool.close for pool in pools.values()]
    return door


def envoy_grpc(settings: Settings, door: DecisionDoor, mark: str = "") -> AbstractAsyncContextManager[None]:
    """Return what serves Envoy's gRPC questions while it is entered: nothing, where no port is set. Processes with a
    mark share the port."""
    if not settings.envoy_grpc_port:
        return nullcontext()
    from breakloop.gateway.envoy_grpc import envoy_door  # noqa: PLC0415 - an extra

    host, files = settings.host, settings.tls
    address = f"[{host}]:{settings.envoy_grpc_port}" if ":" in host else f"{host}:{settings.envoy_grpc_port}"
    tls = (Path(files.key_file).read_bytes(), Path(files.cert_file).read_bytes()) if files.cert_file else None
    return envoy_door(door.envoy, address, limits(settings), shared=bool(mark), tls=tls)


def check_ports(settings: Settings) -> None:
    """Raise `SettingsError` where a port is taken: before state and history are opened, which may be those of the
    instance that has it."""
    ports = [(settings.host, settings.port, "--port"), (settings.admin_host, settings.admin_port, "--admin-port")]
    for host, port, flag in [*ports, (settings.host, settings.envoy_grpc_port, "envoy_grpc_port")]:
        try:
            if port:
                check_free(host, port)
        except OSError as error:
            raise SettingsError(why_not(host, port, error).replace("--port", flag)) from None


def _times(settings: Settings) -> Times:
    own = settings.proxy
    return Times(own.connect_seconds, own.answer_seconds, own.idle_seconds)


def own_tls(settings: Settings) -> ssl.SSLContext | None:
    """Return what the traffic port shows to clients, or None for plain HTTP (SPEC Y-6)."""
    files = settings.tls
    if not files.cert_file:
        return None
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    made.minimum_version = ssl.TLSVersion.TLSv1_2
    made.set_alpn_protocols(["http/1.1"])
    try:
        made.load_cert_chain(files.cert_file, files.key_file)
    except ssl.SSLError:
        raise SettingsError("tls: cert_file and key_file are no certificate and its key in PEM form") from None
    except OSError as error:
        raise SettingsError(f"tls: {error.filename or files.cert_file}: cannot be read: {error.strerror}") from None
    return made


def upstream_tls(settings: Settings) -> ssl.SSLContext:
    """Return what upstreams have to show: a certificate of the system's authorities, or of the file in the settings."""
    made = ssl.create_default_context()
    made.set_alpn_protocols(["http/1.1"])
    if settings.upstream_ca_file:
        try:
            made.load_verify_locations(settings.upstream_ca_file)
        except ssl.SSLError:
            raise SettingsError("upstream_ca_file: holds no certificate in PEM form") from None
        except OSError as error:
            why = f"{settings.upstream_ca_file}: cannot be read: {error.strerror}"
            raise SettingsError(f"upstream_ca_file: {why}") from None
    return made


def loop_guard(settings: Settings) -> LoopGuard:
    """Return the numbers of the built-in block."""
    guard = settings.loop_guard
    return LoopGuard(guard.window_seconds, guard.max_hits, guard.cooldown_seconds)


def context(settings: Settings, secret: bytes) -> ContextSettings:
    """Return what descriptors need of the settings."""
    jwt = settings.jwt
    keys = None
    if jwt.secret.get_secret_value() or jwt.jwks_file or jwt.jwks_url:
        keys = JwtKeys(
            secret=jwt.secret.get_secret_value(),
            jwks_file=jwt.jwks_file,
            jwks_url=jwt.jwks_url,
            audience=jwt.audience,
            issuer=jwt.issuer,
            leeway_s=jwt.leeway_seconds,
            algorithms=tuple(jwt.algorithms),
        )
    return ContextSettings(
        secret=secret,
        trusted_proxies=tuple(settings.trusted_proxies),
        project=settings.project,
        project_descriptor=settings.project_descriptor,
        shard_by_agent=settings.shard_by == "agent" and is_redis_url(settings.state),
        jwt=keys,
        geo_file=settings.geo_file,
    )


def limits(settings: Settings) -> Limits:
    """Return the data plane's limits."""
    own = settings.limits
    return Limits(
        head_bytes=own.head_bytes,
        fields=own.fields,
        body_bytes=own.body_bytes,
        connections=own.connections,
        idle_s=own.idle_seconds,
        head_s=own.head_seconds,
        body_s=own.body_seconds,
    )
