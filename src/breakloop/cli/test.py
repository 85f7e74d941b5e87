"""`breakloop test`: run a file of requests and expected verdicts against a bundle.

`OfflineService` is a decision service without a network: the real engine and handlers on a simulated clock.
`explain` uses it, too.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import click
from rich.table import Table
from rich.text import Text

from breakloop.app.build import context, loop_guard, price_list
from breakloop.cli.main import PROBLEM
from breakloop.cli.output import (
    config_option,
    end,
    json_option,
    policy_option,
    print_json,
    print_table,
    read_input,
    settings_of,
)
from breakloop.cli.validate import note_text
from breakloop.clock import FakeClock, SystemClock
from breakloop.config.settings import POLICY_REDIS, Settings
from breakloop.dialects.denial import VerdictHeaders, field_pairs
from breakloop.errors import BundleError, Problem
from breakloop.formatting import plural
from breakloop.gateway.admission import Admission
from breakloop.gateway.decision import ENVOY, DecisionHandler
from breakloop.gateway.http_request import Reply, Request
from breakloop.model.decision import ALLOWED
from breakloop.policy.compile import compile_bundle
from breakloop.policy.descriptors import ContextSettings, Descriptors, canonical_header
from breakloop.policy.load import LoadedBundle, load_bundle
from breakloop.replay.cases import Actual, CaseRequest, CaseResult, Difference, actual_of, read_cases, run_cases
from breakloop.replay.explain import DecisionRecord, Explainer, ExplainStep, RecordingEngine
from breakloop.store.data_dir import DataDir
from breakloop.store.memory import MemoryStore

# Fixed, so that fingerprints and jitter are the same on every machine.
OFFLINE_SECRET = b"breakloop offline"


@dataclass(frozen=True, slots=True)
class OfflineExchange:
    """One request and its results; `record` is None if the engine was not reached."""

    reply: Reply
    record: DecisionRecord | None

    @property
    def headers(self) -> tuple[tuple[str, str], ...]:
        return tuple(field_pairs(self.reply.head))

    def actual(self) -> Actual:
        """Return the response in the form that test files compare."""
        if self.record is not None:
            return actual_of(self.record.verdict, self.reply.status, self.headers)
        message = json.loads(self.reply.body)["detail"]["message"]
        return actual_of(None, self.reply.status, self.headers, message)


class OfflineService:
    """A bundle ready to decide. Time advances only by `clock.advance`."""

    def __init__(
        self, loaded: LoadedBundle | None, settings: Settings, clock: FakeClock, secret: bytes = OFFLINE_SECRET
    ) -> None:
        self.clock = clock
        self.descriptors = Descriptors(_context(settings, secret), clock)
        prices = price_list(settings, clock).prices
        self.prices = lambda: prices
        self.engine = RecordingEngine(MemoryStore(), clock, self.descriptors, self.prices)
        self._source = None if loaded is None else loaded.bundle
        digest = "" if loaded is None else loaded.digest
        self.bundle = compile_bundle(self._source, digest, self.descriptors, secret, loop_guard(settings))
        self.engine.set_bundle(self.bundle)
        answers = VerdictHeaders(settings.header_prefix, secret)
        body_bytes = settings.limits.body_bytes
        judging = Admission(self.engine, self.descriptors, answers, run_id="offline-", body_bytes=body_bytes)
        self.door = DecisionHandler(judging, ready=lambda: (200, {"status": "ok"}))

    def send(self, request: CaseRequest) -> OfflineExchange:
        self.engine.record = None
        reply = self.door(_at_the_door(request))
        assert isinstance(reply, Reply)  # noqa: S101 - with state in this process nothing has to be waited for
        return OfflineExchange(reply, self.engine.record)

    def explain(self, record: DecisionRecord) -> list[ExplainStep]:
        return Explainer(self._source, self.bundle, self.descriptors, record).steps()


def load_policy(path: str, now: float) -> LoadedBundle | None:
    """Load the bundle; without one, only the built-in protection applies."""
    if "://" in path or path == POLICY_REDIS:
        hint = "give a file or directory with --policy"
        raise BundleError(
            [Problem(path.partition("?")[0], 1, 1, "", "is not a local file; tests use no network", hint)]
        )
    return load_bundle(Path(path), now=now) if path else None


def server_secret(settings: Settings) -> bytes:
    """Return the secret of a server with these settings, so that digests match. Nothing is created."""
    given, file = settings.secret.get_secret_value(), settings.secret_file
    home = Path(settings.data_dir)
    if not given and not file and not (home / "secret").is_file():
        return OFFLINE_SECRET
    data = DataDir(home if home.is_dir() else Path())
    secret = data.secret(given, file)
    return OFFLINE_SECRET if data.secret_is_temporary else secret


def _at_the_door(request: CaseRequest) -> Request:
    """Return the request as a gateway such as Envoy forwards it to the decision service."""
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
    """Return the settings of a server, except that keys behind a URL are not fetched: these commands use no network."""
    here = context(settings, secret)
    if here.jwt is None or not here.jwt.jwks_url:
        return here
    keys = replace(here.jwt, jwks_url="")
    return replace(here, jwt=keys if keys.secret or keys.jwks_file else None)


@dataclass(frozen=True, slots=True)
class TestReport:
    name: str
    policy: str
    results: tuple[CaseResult, ...]
    notes: tuple[Problem, ...] = ()  # about the bundle: why a rule may not do what the file expects

    @property
    def failed(self) -> int:
        return sum(not result.passed for result in self.results)


@click.command(name="test", epilog="Exit code 0: every case passed; 1: one failed, or a file has problems.")
@click.argument("tests", nargs=-1, required=True, metavar="TESTS.yaml...")
@policy_option
@config_option
@json_option
def command(tests: tuple[str, ...], *, policy: str, config: str, as_json: bool) -> None:
    """Send the requests of a test file to a bundle, and compare the verdicts with those the file expects.

    The clock is simulated, so waiting costs nothing; no network is used. The cases of a file run in order and share
    state. A file is a list of cases, or a map with `cases` and optionally `policy` and `start` (a time):

    \b
      name      what it shows
      request   method, path, host, headers, body (text or JSON), peer;
                left out: the request of the case before
      at        seconds from the start; or `after`: since the request before
      repeat    how often to send it, `every` N seconds
      expect    decision (allow, warn, throttle, land, pause, deny), reason,
                status, policy, rule, retry_after, delay_ms, remaining, limit,
                hit_count, cooldown_seconds, kind, warning, message,
                should_retry, shadow_decision, shadow_policy, headers;
                only those given are compared

    `retry_after` is compared before the jitter that spreads clients. `breakloop init` writes an example.
    """  # noqa: D301 - click needs the character, not its spelling
    settings = settings_of(config).settings
    reports = [_run_file(name, policy, settings, as_json=as_json) for name in tests]
    if as_json:
        print_json({"ok": not any(report.failed for report in reports), "files": [_as_json(one) for one in reports]})
    else:
        for report in reports:
            _tell(report)
    if any(report.failed for report in reports):
        end(PROBLEM)


def _run_file(name: str, policy: str, settings: Settings, *, as_json: bool) -> TestReport:
    text, shown = read_input(name)
    try:
        file = read_cases(text, shown)
    except BundleError as error:
        if not as_json and any(problem.path == "bundle_version" for problem in error.problems):
            click.echo(f"{shown} looks like a bundle: write `breakloop test TESTS.yaml --policy {shown}`", err=True)
        raise
    start = file.start.timestamp() if file.start is not None else float(int(SystemClock().now()))
    # A policy that the file names is relative to the file.
    chosen = policy or (str(Path(name).parent / file.policy) if file.policy else settings.policy)
    loaded = load_policy(chosen, start)
    offline = OfflineService(loaded, settings, FakeClock(start))

    def send(request: CaseRequest, at_s: float) -> Actual:
        offline.clock.advance(start + at_s - offline.clock.now())
        return offline.send(request).actual()

    notes = tuple(loaded.notes) if loaded is not None else ()
    return TestReport(shown, chosen, tuple(run_cases(file, send)), notes)


def _tell(report: TestReport) -> None:
    click.echo(f"{report.name} against {report.policy or 'the built-in protection'}")
    for note in report.notes:
        click.echo(note_text(note))
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("")
    table.add_column("case", overflow="fold", ratio=1)
    table.add_column("at", justify="right")
    table.add_column("requests", justify="right")
    table.add_column("verdict", overflow="fold")
    for result in report.results:
        mark = Text("pass", "green") if result.passed else Text("FAIL", "bold red")
        sent = str(result.case.repeat)
        table.add_row(mark, result.case.name, f"{result.at_s:g} s", sent, _verdict(result))
    print_table(table)
    for result in report.results:
        if not result.passed:
            _tell_failure(result)
    total = plural(len(report.results), "case")
    click.echo(f"{len(report.results) - report.failed} of {total} passed" if report.failed else f"{total}, all passed")


def _verdict(result: CaseResult) -> str:
    """Describe the last response of a case."""
    actual = result.actual
    if actual.get("delay_ms"):
        return f"throttle, {actual['delay_ms']} ms"
    if actual["reason"] == ALLOWED:
        return str(actual["decision"])
    return f"{actual['decision']}, {actual['reason']}"


def _tell_failure(result: CaseResult) -> None:
    place = result.case.place
    click.echo(f"{place.file}:{place.line}:{place.column}: {result.case.name}")
    first = result.differences[0]
    if result.case.repeat > 1:
        click.echo(
            f"  {result.failed} of {result.case.repeat} requests, first number {first.number} at {first.at_s:g} s"
        )
    for one in result.differences:
        click.echo(f"  {one.field}: expected {_shown(one.expected)}, got {_shown(one.actual)}")
    decided = {name for name in ("policy", "rule", "message") if result.actual.get(name)}
    if decided and not decided & {one.field for one in result.differences}:
        said = ", ".join(f"{name} {result.actual[name]}" for name in ("policy", "rule") if name in decided)
        click.echo(f"  decided by {said}" if said else f"  {result.actual['message']}")


def _shown(value: object) -> str:
    if value is None or value == "":
        return "none"
    return ("true" if value else "false") if isinstance(value, bool) else str(value)


def _as_json(report: TestReport) -> dict[str, object]:
    return {
        "name": report.name,
        "policy": report.policy,
        "passed": len(report.results) - report.failed,
        "failed": report.failed,
        "notes": [asdict(note) for note in report.notes],
        "cases": [_case_json(result) for result in report.results],
    }


def _case_json(result: CaseResult) -> dict[str, object]:
    def difference(one: Difference) -> dict[str, object]:
        shown = {"field": one.field, "expected": one.expected, "actual": one.actual}
        return {"request": one.number, "at": one.at_s, **shown}

    return {
        "name": result.case.name,
        "line": result.case.place.line,
        "at": result.at_s,
        "requests": result.case.repeat,
        "passed": result.passed,
        "failed_requests": result.failed,
        "differences": [difference(one) for one in result.differences],
        "last": {name: value for name, value in result.actual.items() if name != "headers"},
    }
