"""A decision service without a network: the real engine, door and answers on a clock that moves when told. What
`test` and `explain` judge with; putting a serving process together is `runtime`'s work."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path

import click

from breakloop.clock import FakeClock
from breakloop.errors import BundleError, Problem, SettingsError
from breakloop.gateway.decision import DecisionDoor
from breakloop.gateway.head import Reply, Request
from breakloop.gateway.judging import Judging
from breakloop.gateway.original import ENVOY
from breakloop.parts import context, loop_guard
from breakloop.policy.compile import compile_bundle
from breakloop.policy.descriptors import ContextSettings, Descriptors, canonical_header
from breakloop.policy.load import LoadedBundle, load_bundle
from breakloop.price_list import price_list
from breakloop.pricing.prices import Prices
from breakloop.replay.case_schema import CaseRequest
from breakloop.replay.cases import Answer
from breakloop.replay.explain import Explainer
from breakloop.replay.record import Record, RecordingEngine
from breakloop.settings import Settings
from breakloop.settings_checks import POLICY_REDIS
from breakloop.state.data_dir import DataDir
from breakloop.state.memory import MemoryStore
from breakloop.wire.denial import VerdictHeaders, field_pairs

# Fixed, so that fingerprints and jitter are the same on every machine that runs the same test file.
OFFLINE_SECRET = b"breakloop offline"


@dataclass(frozen=True, slots=True)
class Exchange:
    """One request and everything that came of it; `record` is None when it could not be judged at all."""

    reply: Reply
    record: Record | None

    @property
    def headers(self) -> tuple[tuple[str, str], ...]:
        """The header fields of the reply, in order."""
        return tuple(field_pairs(self.reply.head))

    def answer(self) -> Answer:
        """Return it as the test runner wants it."""
        if self.record is not None:
            return Answer(self.record.verdict, self.reply.status, self.headers)
        message = json.loads(self.reply.body)["detail"]["message"]
        return Answer(None, self.reply.status, self.headers, message)


class Offline:
    """One bundle, ready to judge. Time stands still except for `clock.advance`."""

    def __init__(
        self, loaded: LoadedBundle | None, settings: Settings, clock: FakeClock, secret: bytes = OFFLINE_SECRET
    ) -> None:
        self.clock = clock
        self.descriptors = Descriptors(_context(settings, secret), clock)
        prices = _prices(settings, clock)
        self.prices = lambda: prices
        self.engine = RecordingEngine(MemoryStore(), clock, self.descriptors, self.prices)
        source = None if loaded is None else loaded.bundle
        digest = "" if loaded is None else loaded.digest
        compiled = compile_bundle(source, digest, self.descriptors, secret, loop_guard(settings))
        self.engine.use(compiled)
        self.explainer = Explainer(source, compiled, self.descriptors)
        answers = VerdictHeaders(settings.header_prefix, secret)
        body_bytes = settings.limits.body_bytes
        judging = Judging(self.engine, self.descriptors, answers, run_id="offline-", body_bytes=body_bytes)
        self.door = DecisionDoor(judging, ready=lambda: (200, {"status": "ok"}))

    def send(self, request: CaseRequest) -> Exchange:
        """Let the door answer one request, now."""
        self.engine.record = None
        reply = self.door(_at_the_door(request))
        assert isinstance(reply, Reply)  # noqa: S101 - with state in this process nothing has to be waited for
        return Exchange(reply, self.engine.record)


def _prices(settings: Settings, clock: FakeClock) -> Prices:
    try:
        return price_list(settings, clock).prices
    except SettingsError as error:
        raise click.ClickException(str(error)) from None


def load_policy(path: str, now: float) -> LoadedBundle | None:
    """Load the bundle a command was given; without one, the built-in protection alone is judged by."""
    if "://" in path or path == POLICY_REDIS:
        hint = "give a file or directory with --policy"
        raise BundleError([Problem(path.partition("?")[0], 1, 1, "", "is elsewhere, and this uses no network", hint)])
    return load_bundle(Path(path), now=now) if path else None


def server_secret(settings: Settings) -> bytes:
    """Return the key a server with these settings has, so that digests are the same; nothing is made or written."""
    given, file = settings.secret.get_secret_value(), settings.secret_file
    home = Path(settings.data_dir)
    if not given and not file and not (home / "secret").is_file():
        return OFFLINE_SECRET
    data = DataDir(home if home.is_dir() else Path())
    secret = data.secret(given, file)
    return OFFLINE_SECRET if data.secret_from == "this run only" else secret


def _at_the_door(request: CaseRequest) -> Request:
    """The request as a gateway like Envoy hands it on: method, path and host are its own."""
    headers = {"host": request.host.encode("latin-1", "replace")}
    repeated: list[tuple[str, bytes]] = []
    for name, value in request.headers:
        key, text = canonical_header(name), value.encode("utf-8", "surrogateescape")
        if key not in headers:
            headers[key] = text
        elif key != "host":
            repeated.append((key, text))
    target = ENVOY + request.path.encode("ascii", "replace")
    return Request(request.method, target, headers, tuple(repeated), body=request.body, peer=request.peer)


def _context(settings: Settings, secret: bytes) -> ContextSettings:
    """As when serving, except that keys behind a URL are not fetched: these commands use no network."""
    here = context(settings, secret)
    if here.jwt is None or not here.jwt.jwks_url:
        return here
    keys = replace(here.jwt, jwks_url="")
    return replace(here, jwt=keys if keys.secret or keys.jwks_file else None)
