"""Builds the parts of a process from its settings: admission, proxy, TLS, bundle source, prices, and the tuning of the
interpreter; runs slow functions in threads, and background jobs. Commands use them, too; `runtime` combines them."""

from __future__ import annotations

import asyncio
import gc
import logging
import secrets
import ssl
import sys
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import replace
from functools import cache
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from breakloop.app.memory import bodies_bytes, memory_limit
from breakloop.clock import Clock
from breakloop.config.loader import provider_keys
from breakloop.config.settings import HISTORY_OFF, POLICY_REDIS, Settings
from breakloop.detect.counting import BuiltinLoopGuard
from breakloop.dialects.denial import VerdictHeaders
from breakloop.engine.engine import Engine
from breakloop.errors import Problem, SettingsError
from breakloop.gateway.admission import Admission, DebugSessions
from breakloop.gateway.decision import DecisionHandler
from breakloop.gateway.forwarding import HeadRewriter, UpstreamRoutes
from breakloop.gateway.http_request import RequestLimits
from breakloop.gateway.http_response import ResponseHeadParser
from breakloop.gateway.proxy import ProxyHandler
from breakloop.gateway.server import Server, check_free, connections_for, why_not
from breakloop.gateway.upstream import UpstreamFaults, UpstreamPool
from breakloop.model.call import Answer, Call
from breakloop.model.counters import TraceCounters
from breakloop.model.events import Publish
from breakloop.model.upstream import upstreams
from breakloop.observe.log import log
from breakloop.policy.client import CallerKeys, ClientIp
from breakloop.policy.descriptors import ContextSettings, Descriptors
from breakloop.policy.jwt import JwtKeys
from breakloop.policy.load import LoadedBundle, load_fetched
from breakloop.policy.signing import Verifier, read_public_keys, shared_secret
from breakloop.policy.sources import BundleOrigin, FileOrigin, HttpGet, HttpOrigin, PollBackoff, RedisOrigin
from breakloop.policy.watch import BundleSource
from breakloop.pricing.litellm import read_litellm
from breakloop.pricing.prices import GenaiTable, ListedModel, Prices
from breakloop.store.redis.bundle import open_shelf
from breakloop.store.redis.url import is_redis_url

if TYPE_CHECKING:
    from breakloop.observe.tracing import Tracing


def tracing(settings: Settings, descriptors: Descriptors, clock: Clock) -> Tracing | None:
    """Return the OpenTelemetry tracing, if it is configured. Raises `SettingsError`."""
    if not settings.otel_endpoint:
        return None
    try:
        from breakloop.observe.tracing import open_tracing  # noqa: PLC0415 - its packages are an extra
    except ImportError as error:
        problem = f'otel_endpoint: the package {error.name} is not installed: pip install "breakloop[otel]"'
        raise SettingsError(problem) from None
    return open_tracing(settings.otel_endpoint, descriptors, clock)


def answering(descriptors: Descriptors, traces: TraceCounters | None) -> Callable[[Call, Answer], None]:
    if traces is None:
        return descriptors.answered

    def answered(call: Call, answer: Answer) -> None:
        descriptors.answered(call, answer)
        traces.answered(call, answer)

    return answered


def admission(
    settings: Settings,
    engine: Engine,
    descriptors: Descriptors,
    secret: bytes,
    clock: Clock,
    *,
    traces: TraceCounters | None = None,
) -> Admission:
    prefix = settings.header_prefix
    debug_secret = settings.debug_secret.get_secret_value()
    return Admission(
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
    admission: Admission,
    own: DecisionHandler,
    mark: str = "",
    faults: UpstreamFaults | None = None,
) -> ProxyHandler:
    """Make the reverse proxy the server's handler; it passes requests for the decision service to `own`. Processes on
    one port share `mark`, which marks forwarded requests. `faults` reports failing upstreams."""
    named = upstreams(settings.upstream)
    tls = upstream_tls(settings) if any(upstream.tls for upstream in named) else None
    heads, timeouts = ResponseHeadParser(settings.header_prefix), settings.proxy
    pools = {upstream.name: UpstreamPool(upstream, server, timeouts, tls, heads) for upstream in named}
    keys = provider_keys(settings)
    rewriter = HeadRewriter(
        settings.header_prefix,
        mark or secrets.token_hex(8),
        via=settings.via,
        keys=keys,
        scheme="https" if settings.tls.cert_file else "http",
        trusts=ClientIp(tuple(settings.trusted_proxies if settings.proxy_trusts else ())).trusted,
    )
    routes = UpstreamRoutes(named, keys)
    handler = ProxyHandler(admission, own, routes=routes, pools=pools, rewriter=rewriter, faults=faults)
    server.handler = handler
    server.head_parser.websockets = True
    server.streams_body = handler.streams_body
    server.on_sweep += [pool.sweep for pool in pools.values()]
    server.on_sweep += [faults.sweep] if faults is not None else []
    server.on_stop += [pool.close for pool in pools.values()]
    return handler


def envoy_grpc(
    settings: Settings, handler: DecisionHandler, admission: Admission, mark: str = ""
) -> AbstractAsyncContextManager[None]:
    """Return a context manager that serves Envoy's gRPC requests, if a port is configured. Processes with a mark share
    the port."""
    if not settings.envoy_grpc_port:
        return nullcontext()
    from breakloop.gateway.envoy_grpc import EnvoyCheck, serve_envoy  # noqa: PLC0415 - an extra
    from breakloop.gateway.envoy_processor import EnvoyProcessor  # noqa: PLC0415

    host, files = settings.host, settings.tls
    address = f"[{host}]:{settings.envoy_grpc_port}" if ":" in host else f"{host}:{settings.envoy_grpc_port}"
    tls = (Path(files.key_file).read_bytes(), Path(files.cert_file).read_bytes()) if files.cert_file else None
    bounds = limits(settings)
    check, processor = EnvoyCheck(handler.envoy, bounds), EnvoyProcessor(admission, bounds)
    return serve_envoy(check, processor, address, bounds, shared=bool(mark), tls=tls)


def check_ports(settings: Settings) -> None:
    """Raise `SettingsError` if a port is in use. Called before state and history are opened, because these may belong
    to the instance that uses the port."""
    ports = [(settings.host, settings.port, "--port"), (settings.admin_host, settings.admin_port, "--admin-port")]
    for host, port, flag in [*ports, (settings.host, settings.envoy_grpc_port, "envoy_grpc_port")]:
        try:
            if port:
                check_free(host, port)
        except OSError as error:
            raise SettingsError(why_not(host, port, error).replace("--port", flag)) from None


def own_tls(settings: Settings) -> ssl.SSLContext | None:
    """Return the TLS context of the traffic port, or None for plain HTTP."""
    files = settings.tls
    if not files.cert_file:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(files.cert_file, files.key_file)
    except ssl.SSLError:
        raise SettingsError("tls: cert_file and key_file are not a certificate and its key in PEM format") from None
    except OSError as error:
        raise SettingsError(f"tls: {error.filename or files.cert_file}: cannot be read: {error.strerror}") from None
    return context


def upstream_tls(settings: Settings) -> ssl.SSLContext:
    context = _client_tls(settings.upstream_ca_file, "upstream_ca_file")
    context.set_alpn_protocols(["http/1.1"])
    return context


def _client_tls(ca_file: str, setting: str) -> ssl.SSLContext:
    """Return a context that trusts the authorities of the system and of a file."""
    context = ssl.create_default_context()
    if ca_file:
        try:
            context.load_verify_locations(ca_file)
        except ssl.SSLError:
            raise SettingsError(f"{setting}: contains no certificate in PEM format") from None
        except OSError as error:
            raise SettingsError(f"{setting}: {ca_file}: cannot be read: {error.strerror}") from None
    return context


def loop_guard(settings: Settings) -> BuiltinLoopGuard:
    guard = settings.loop_guard
    return BuiltinLoopGuard(guard.window_seconds, guard.max_hits, guard.cooldown_seconds, guard.deny_status)


def context(settings: Settings, secret: bytes) -> ContextSettings:
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
        callers=CallerKeys(settings.callers, settings.header_prefix) if settings.callers else None,
        trusted_proxies=tuple(settings.trusted_proxies),
        proxy_trusts=settings.proxy_trusts,
        project=settings.project,
        project_descriptor=settings.project_descriptor,
        shard_by_agent=settings.shard_by == "agent" and is_redis_url(settings.state),
        jwt=keys,
        geo_file=settings.geo_file,
    )


def limits(settings: Settings) -> RequestLimits:
    """Return the limits of the traffic port. Fields have the same names, with `_s` for `_seconds`."""
    found = RequestLimits(**{name.replace("_seconds", "_s"): value for name, value in settings.limits})
    problem = too_few_files(settings)
    if problem:
        log(logging.WARNING, "limits.problem", {"problem": problem})
    bodies = bodies_bytes(found.all_bodies_bytes, memory_limit(), settings.workers)
    return replace(found, connections=connections_for(found.connections), all_bodies_bytes=bodies)


def too_few_files(settings: Settings) -> str:
    """Return a problem if the limit on open files allows less than half of `limits.connections`; otherwise ""."""
    wanted = settings.limits.connections
    allowed = connections_for(wanted)
    remedy = "raise it (ulimit -n, LimitNOFILE), or lower limits.connections"
    return f"the limit on open files allows {allowed} of {wanted}: {remedy}" if 2 * allowed < wanted else ""


_URL_POLL_MAX_S: Final = 60.0  # after failures
_REDIS_POLL_S: Final = 0.5  # so that a pushed bundle is active within a second
_REDIS_POLL_MAX_S: Final = 5.0


def bundle_source(
    settings: Settings,
    clock: Clock,
    data_dir: Path | None,
    *,
    on_bundle: Callable[[LoadedBundle], None],
    publish: Publish,
) -> BundleSource | None:
    """Return the bundle source of a process, or None if none is configured. Raises `SettingsError`."""
    verifier = policy_verifier(settings)
    source = policy_source(settings, clock, signed=verifier is not None)
    if source is None:
        return None
    return BundleSource(
        source,
        load=lambda fetched: load_fetched(fetched, now=clock.now()),
        on_bundle=on_bundle,
        clock=clock,
        publish=publish,
        data_dir=data_dir,
        verifier=verifier,
    )


def policy_source(settings: Settings, clock: Clock, *, signed: bool) -> BundleOrigin | None:
    """Return the origin of the bundle, or None if none is configured. Does not connect yet. Raises `SettingsError`."""
    random = secrets.SystemRandom().random
    if not settings.policy:
        return None
    if settings.policy == POLICY_REDIS:
        return RedisOrigin(open_shelf(settings.state), PollBackoff(_REDIS_POLL_S, _REDIS_POLL_MAX_S, random))
    if "://" not in settings.policy:
        return FileOrigin(Path(settings.policy), signed=signed)
    given = settings.policy_token.get_secret_value()
    token = _secret(given, settings.policy_token_file, "policy_token_file").decode("utf-8", "replace")
    if not (token.isascii() and token.isprintable()) or " " in token:
        raise SettingsError("policy_token: must contain only a token, without spaces or line breaks")
    get = HttpGet(clock, token=token, tls=policy_tls(settings))
    return HttpOrigin(
        settings.policy, get, PollBackoff(settings.policy_poll_seconds, _URL_POLL_MAX_S, random), signed=signed
    )


def policy_verifier(settings: Settings) -> Verifier | None:
    """Return the verifier of bundle signatures, or None if none is configured. Raises `SettingsError`."""
    where = settings.policy_public_key_file
    keys = read_public_keys(_read(where, "policy_public_key_file"), f"policy_public_key_file: {where}") if where else ()
    given, file = settings.policy_hmac_secret.get_secret_value(), settings.policy_hmac_secret_file
    secret = b""
    if given or file:
        secret = shared_secret(_secret(given, file, "policy_hmac_secret_file"), "policy_hmac_secret")
    return Verifier(keys, secret) if keys or secret else None


def policy_tls(settings: Settings) -> ssl.SSLContext | None:
    """Return the TLS context for the URL in `policy`, or None if it has no TLS."""
    if not settings.policy.startswith("https://"):
        return None
    return _client_tls(settings.policy_ca_file, "policy_ca_file")


def _secret(given: str, file: str, name: str) -> bytes:
    """Return a secret from its setting or from its file; empty if there is neither."""
    if given or not file:
        return given.encode()
    secret = _read(file, name).strip()
    if not secret:
        raise SettingsError(f"{name}: {file} is empty")
    return secret


def _read(file: str, name: str) -> bytes:
    try:
        return Path(file).read_bytes()
    except OSError as error:
        raise SettingsError(f"{name}: {file}: cannot be read: {error.strerror}") from None


def operations_wanted(settings: Settings) -> bool:
    """Return True if the admin server, a history or alerts are configured."""
    return bool(settings.admin_port or settings.alerts or settings.history not in {"", HISTORY_OFF})


class PriceList(NamedTuple):
    """Prices, and the entries of the price file that could not be used."""

    prices: Prices
    problems: Sequence[Problem] = ()


def price_list(settings: Settings, clock: Clock) -> PriceList:
    """Return the prices: those of the settings, then those of the price file, then the table of the package. Raises
    `SettingsError` if the price file cannot be read."""
    config = settings.prices
    lists: list[ListedModel] = []
    problems: Sequence[Problem] = ()
    if config.models:
        lists.append(ListedModel({name: one.price for name, one in config.models.items()}, "the settings"))
    if config.file:
        imported = read_litellm(Path(config.file), config.service_tier)
        lists.append(ListedModel(imported.prices, config.file))
        problems = imported.problems
    assumed = config.assume.price if config.unknown_model == "assume" else None
    return PriceList(
        Prices(GenaiTable(config.service_tier), lists, unknown=config.unknown_model, assumed=assumed, clock=clock),
        problems,
    )


def lazy_prices(settings: Settings, clock: Clock) -> Callable[[], Prices]:
    """Return a function that reads the prices at its first call: most bundles need none."""

    @cache
    def prices() -> Prices:
        found = price_list(settings, clock)
        for problem in found.problems:
            log(logging.WARNING, "prices.problem", {"problem": str(problem)})
        return found.prices

    return prices


# Requests leave no reference cycles (measured over 20,000), so collections are rare; a small one pauses for about 1 ms.
GC_THRESHOLD: Final = (5_000, 10, 1_000)
# A bundle is parsed in a thread; with this switch interval, requests are not delayed meanwhile.
_SWITCH_S: Final = 0.0005


def tune() -> None:
    """Tune the interpreter for serving. Objects created so far live as long as the process: freeze them."""
    sys.setswitchinterval(_SWITCH_S)
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLD)


def run_event_loop(main: Coroutine[Any, Any, int]) -> int:
    """Run a process that serves traffic on uvloop, or on asyncio's own loop where there is none; returns its result."""
    try:
        import uvloop  # noqa: PLC0415 - optional
    except ModuleNotFoundError:
        return asyncio.run(main)
    return uvloop.run(main)


T = TypeVar("T")

Job = tuple[str, Callable[[], Awaitable[None]]]  # name, and one round of it


async def aside(function: Callable[[], T]) -> T:
    """Run a slow function in a daemon thread. Threads of the standard pool would keep the process from exiting."""
    future: Future[T] = Future()
    future.set_running_or_notify_cancel()  # who waits may be cancelled, the function not

    def work() -> None:
        try:
            future.set_result(function())
        except BaseException as error:  # noqa: BLE001 - raised again where the result is awaited
            future.set_exception(error)

    Thread(target=work, daemon=True).start()
    return await asyncio.wrap_future(future)


async def forever(name: str, job: Callable[[], Awaitable[None]]) -> None:
    """Run a job in a loop. A job that fails is logged and runs again after a second."""
    while True:
        try:
            await job()
        except Exception:
            logging.getLogger("breakloop").exception("job %s failed and is restarted", name)
            await asyncio.sleep(1.0)
