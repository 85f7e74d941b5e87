"""Makes the parts of a process out of its settings. Putting them together and running them is `runtime`'s.

Makes the source of the bundle, and what verifies it, out of the settings (SPEC B-3, B-4), for the server and for
commands alike. What is done with a source is `policy.source`'s.

Puts the list of prices together as the settings say: single models first, then the price file, then the table that
ships with the package (SPEC L-5).

How the interpreter is set for a process that serves: when it collects garbage, and how often threads take turns.
"""

from __future__ import annotations

import gc
import logging
import secrets
import ssl
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from breakloop.clock import Clock
from breakloop.config.loader import provider_keys
from breakloop.config.settings import Settings, price
from breakloop.config.validators import HISTORY_OFF, POLICY_REDIS
from breakloop.dialects.denial import VerdictHeaders
from breakloop.engine.engine import Engine
from breakloop.errors import Problem, SettingsError
from breakloop.gateway.admission import Admission, DebugSessions
from breakloop.gateway.decision import DecisionHandler
from breakloop.gateway.forwarding import HeadRewriter, UpstreamRoutes
from breakloop.gateway.http_request import RequestLimits
from breakloop.gateway.http_response import ResponseHeadParser
from breakloop.gateway.proxy import ClientKeys, ProxyHandler
from breakloop.gateway.server import Server, check_free, why_not
from breakloop.gateway.upstream import UpstreamFaults, UpstreamPool, UpstreamTimeouts
from breakloop.model.call import Answer, Call
from breakloop.model.events import Publish
from breakloop.model.upstream import upstreams
from breakloop.observe.log import log
from breakloop.policy.client import ClientIp
from breakloop.policy.compile_detectors import BuiltinLoopGuard
from breakloop.policy.descriptors import ContextSettings, Descriptors
from breakloop.policy.files import BundleOrigin, FileOrigin
from breakloop.policy.jwt import JwtKeys
from breakloop.policy.load import LoadedBundle, load_fetched
from breakloop.policy.remote_sources import HttpGet, HttpOrigin, PollBackoff, RedisOrigin
from breakloop.policy.signing import Verifier, read_public_keys, shared_secret
from breakloop.policy.watch import BundleSource
from breakloop.pricing.litellm import read_litellm
from breakloop.pricing.prices import GenaiTable, ListedModel, Prices
from breakloop.store.redis.bundle import open_shelf
from breakloop.store.redis.url import is_redis_url

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


def admission(
    settings: Settings,
    engine: Engine,
    descriptors: Descriptors,
    secret: bytes,
    clock: Clock,
    *,
    traces: Tracing | None = None,
) -> Admission:
    """Return the admission that all handlers share."""
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
    judging: Admission,
    own: DecisionHandler,
    mark: str = "",
    faults: UpstreamFaults | None = None,
) -> ProxyHandler:
    """Put the reverse proxy in front of what the server does already. `mark` is what processes on one port share;
    `faults` is told of upstreams that fail."""
    named = upstreams(settings.upstream)
    tls = upstream_tls(settings) if any(upstream.tls for upstream in named) else None
    heads, times = ResponseHeadParser(), _times(settings)
    pools = {upstream.name: UpstreamPool(upstream, server, times, tls, heads) for upstream in named}
    rewriter = HeadRewriter(
        settings.header_prefix,
        mark or secrets.token_hex(8),
        via=settings.via,
        keys=provider_keys(settings),
        scheme="https" if settings.tls.cert_file else "http",
        trusts=ClientIp(tuple(settings.trusted_proxies)).trusted,
    )
    clients = ClientKeys(settings.callers, settings.header_prefix) if settings.callers else None
    door = ProxyHandler(
        judging, own, routes=UpstreamRoutes(named), pools=pools, rewriter=rewriter, clients=clients, faults=faults
    )
    server.handler = door
    server.streams_body = door.streams_body
    server.on_sweep += [pool.sweep for pool in pools.values()]
    server.on_sweep += [faults.sweep] if faults is not None else []
    server.on_stop += [pool.close for pool in pools.values()]
    return door


def envoy_grpc(settings: Settings, door: DecisionHandler, mark: str = "") -> AbstractAsyncContextManager[None]:
    """Return what serves Envoy's gRPC questions while it is entered: nothing, where no port is set. Processes with a
    mark share the port."""
    if not settings.envoy_grpc_port:
        return nullcontext()
    from breakloop.gateway.envoy_grpc import serve_envoy  # noqa: PLC0415 - an extra

    host, files = settings.host, settings.tls
    address = f"[{host}]:{settings.envoy_grpc_port}" if ":" in host else f"{host}:{settings.envoy_grpc_port}"
    tls = (Path(files.key_file).read_bytes(), Path(files.cert_file).read_bytes()) if files.cert_file else None
    return serve_envoy(door.envoy, address, limits(settings), shared=bool(mark), tls=tls)


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


def _times(settings: Settings) -> UpstreamTimeouts:
    own = settings.proxy
    return UpstreamTimeouts(own.connect_seconds, own.answer_seconds, own.idle_seconds)


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


def loop_guard(settings: Settings) -> BuiltinLoopGuard:
    """Return the numbers of the built-in block."""
    guard = settings.loop_guard
    return BuiltinLoopGuard(guard.window_seconds, guard.max_hits, guard.cooldown_seconds)


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


def limits(settings: Settings) -> RequestLimits:
    """Return the data plane's limits."""
    own = settings.limits
    return RequestLimits(
        head_bytes=own.head_bytes,
        fields=own.fields,
        body_bytes=own.body_bytes,
        connections=own.connections,
        idle_s=own.idle_seconds,
        head_s=own.head_seconds,
        body_s=own.body_seconds,
    )


_URL_MOST_S: Final = 60.0  # how rarely a URL that fails is asked
_REDIS_EVERY_S: Final = 0.5  # a push is in force within a second
_REDIS_MOST_S: Final = 5.0


def bundle_source(
    settings: Settings,
    clock: Clock,
    data_dir: Path | None,
    *,
    on_bundle: Callable[[LoadedBundle], None],
    publish: Publish,
) -> BundleSource | None:
    """Return the source that a process watches, or None if none is set. Raises `SettingsError`."""
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
    """Return where the bundle comes from, or None if none is set. Connects to nothing yet; raises `SettingsError`."""
    chance = secrets.SystemRandom().random
    if not settings.policy:
        return None
    if settings.policy == POLICY_REDIS:
        return RedisOrigin(open_shelf(settings.state), PollBackoff(_REDIS_EVERY_S, _REDIS_MOST_S, chance))
    if "://" not in settings.policy:
        return FileOrigin(Path(settings.policy), signed=signed)
    given = settings.policy_token.get_secret_value()
    token = _secret(given, settings.policy_token_file, "policy_token_file").decode("utf-8", "replace")
    if not (token.isascii() and token.isprintable()) or " " in token:
        raise SettingsError("policy_token: holds more than a token (a space, or several lines)")
    get = HttpGet(clock, token=token, tls=policy_tls(settings))
    return HttpOrigin(
        settings.policy, get, PollBackoff(settings.policy_poll_seconds, _URL_MOST_S, chance), signed=signed
    )


def policy_verifier(settings: Settings) -> Verifier | None:
    """Return what bundles have to be signed with, or None if they need not be. Raises `SettingsError`."""
    where = settings.policy_public_key_file
    keys = read_public_keys(_read(where, "policy_public_key_file"), f"policy_public_key_file: {where}") if where else ()
    given, file = settings.policy_hmac_secret.get_secret_value(), settings.policy_hmac_secret_file
    secret = b""
    if given or file:
        secret = shared_secret(_secret(given, file, "policy_hmac_secret_file"), "policy_hmac_secret")
    return Verifier(keys, secret) if keys or secret else None


def policy_tls(settings: Settings) -> ssl.SSLContext | None:
    """Return what the server of a URL has to show, or None where there is no TLS."""
    if not settings.policy.startswith("https://"):
        return None
    made = ssl.create_default_context()
    if settings.policy_ca_file:
        try:
            made.load_verify_locations(settings.policy_ca_file)
        except ssl.SSLError:
            raise SettingsError("policy_ca_file: holds no certificate in PEM form") from None
        except OSError as error:
            why = f"{settings.policy_ca_file}: cannot be read: {error.strerror}"
            raise SettingsError(f"policy_ca_file: {why}") from None
    return made


def _secret(given: str, file: str, name: str) -> bytes:
    """Return a secret as it was given, or out of its file; empty without either."""
    if given or not file:
        return given.encode()
    secret = _read(file, name).strip()
    if not secret:
        raise SettingsError(f"{name}: {file}: is empty")
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
    """The prices, and which entries of the file were left out of them."""

    prices: Prices
    problems: Sequence[Problem] = ()


def price_list(settings: Settings, clock: Clock) -> PriceList:
    """Return the prices that hold; raises SettingsError when there is a price file that cannot be read."""
    said = settings.prices
    lists: list[ListedModel] = []
    problems: Sequence[Problem] = ()
    if said.models:
        lists.append(ListedModel({name: price(one) for name, one in said.models.items()}, "the settings"))
    if said.file:
        imported = read_litellm(Path(said.file), said.service_tier)
        lists.append(ListedModel(imported.prices, said.file))
        problems = imported.problems
    assumed = price(said.assume) if said.unknown_model == "assume" else None
    return PriceList(
        Prices(GenaiTable(said.service_tier), lists, unknown=said.unknown_model, assumed=assumed, clock=clock),
        problems,
    )


class LazyPrices:
    """The list of a process. It is read when somebody needs it: most bundles do not."""

    __slots__ = ("_clock", "_prices", "_settings")

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._prices: Prices | None = None

    def __call__(self) -> Prices:
        """Return the list."""
        if self._prices is None:
            found = price_list(self._settings, self._clock)
            for problem in found.problems:
                log(logging.WARNING, "prices.problem", {"problem": str(problem)})
            self._prices = found.prices
        return self._prices


# Requests leave no cycles behind (20,000 of them: none), so collections only cost; small ones pause for about 1 ms.
GC_THRESHOLD: Final = (5_000, 10, 1_000)
# A bundle that is read in a thread shares the interpreter; requests get their turn this often meanwhile.
_SWITCH_S: Final = 0.0005


def tune() -> None:
    """Everything made so far lives as long as the process: the collector need not look at it again."""
    sys.setswitchinterval(_SWITCH_S)
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLD)
