"""`breakloop explain`: print step by step how the engine decides on a request.

The request is raw HTTP from a file, with any line endings, or JSON `{method, path, headers, body}`. `replay.explain`
runs the engine.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from http import HTTPStatus
from itertools import groupby
from typing import NoReturn

import click
from rich.console import Console
from rich.text import Text

from breakloop.cli.output import config_option, console, json_option, policy_option, print_json, read_input, settings_of
from breakloop.cli.test import OFFLINE_SECRET, OfflineExchange, OfflineService, load_policy, server_secret
from breakloop.clock import FakeClock, SystemClock
from breakloop.errors import BundleError, Problem
from breakloop.formatting import plural
from breakloop.policy.documents import in_order, read_document
from breakloop.replay.cases import CaseRequest, check_request, request_from
from breakloop.replay.explain import ExplainStep, decision_of

_LINE = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+) +(\S+)(?: +HTTP/[0-9.]+)?")
_FIELD = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*(.*)")


def read_request(text: bytes, name: str) -> CaseRequest:
    """Parse the request. Raises `BundleError` with located problems."""
    if text.lstrip()[:1] == b"{":
        return _from_json(text, name)
    head, *rest = re.split(rb"\r?\n\r?\n", text.lstrip(b"\r\n"), maxsplit=1)
    lines = head.decode("utf-8", "surrogateescape").replace("\r\n", "\n").split("\n")
    if not head:
        _refuse(name, 1, "is empty", "give a raw HTTP request, or JSON with method, path, headers and body")
    method, target = _request_line(lines[0], name)
    headers = [_field(line, number, name) for number, line in enumerate(lines[1:], 2)]
    host, target = _host(headers, target)
    return CaseRequest(method, target, host, tuple(headers), _body(headers, rest[0] if rest else b"", name))


def _from_json(text: bytes, name: str) -> CaseRequest:
    data, places = read_document(text, name)
    found = list(check_request(data, ()))
    if found:
        raise BundleError(in_order(finding.located(places) for finding in found))
    request = request_from(data)
    if "host" not in data:
        host = dict(reversed([(key.lower(), value) for key, value in request.headers])).get("host", request.host)
        return CaseRequest(request.method, request.path, host, request.headers, request.body, request.peer)
    return request


def _request_line(line: str, name: str) -> tuple[str, str]:
    found = _LINE.fullmatch(line.strip())
    if found is None:
        _refuse(name, 1, f'"{line[:80]}" is not a request line', "write GET /path HTTP/1.1")
    method, target = found[1], found[2]
    if not (target.startswith("/") or re.match(r"https?://", target, re.IGNORECASE)):
        _refuse(name, 1, f'"{target[:80]}" is not a path', "it begins with /")
    return method, target


def _field(line: str, number: int, name: str) -> tuple[str, str]:
    found = _FIELD.fullmatch(line)
    if found is None:
        _refuse(name, number, f'"{line[:80]}" is not a header field', "write Name: value; an empty line ends them")
    return found[1], found[2].rstrip()


def _host(headers: list[tuple[str, str]], target: str) -> tuple[str, str]:
    named = next((value for key, value in headers if key.lower() == "host"), "localhost")
    if target.startswith("/"):
        return named, target
    authority, slash, rest = target.partition("://")[2].partition("/")
    return authority, slash + rest or "/"


def _body(headers: list[tuple[str, str]], body: bytes, name: str) -> bytes:
    fields = {key.lower(): value for key, value in headers}
    if "chunked" in fields.get("transfer-encoding", "").lower():
        _refuse(name, 1, "has a chunked body", "write the body plainly and leave Transfer-Encoding out")
    length = fields.get("content-length", "")
    if length.isdigit() and int(length) <= len(body):
        return body[: int(length)]
    return body.removesuffix(b"\n").removesuffix(b"\r")  # editors end a file with a line break


def _refuse(name: str, line: int, message: str, hint: str) -> NoReturn:
    raise BundleError([Problem(name, line, 1, "", message, hint)])


_HEADINGS = {
    "bundle": "Bundle",
    "override": "Overrides",
    "request": "Request",
    "identity": "Who",
    "kill_switch": "Kill switches",
    "policy": "Policies",
    "loop": "Policies",
    "breaker": "Policies",
    "rule": "Policies",
    "builtin": "Default loop detection",
    "agent": "Agent",
    "verdict": "Verdict",
}
_INDENTED = frozenset(("loop", "breaker", "rule"))
_STYLES = {"match": "cyan", "pass": "green", "allow": "bold green", "deny": "bold red", "active": "yellow"}
_STYLES |= {"warn": "yellow", "throttle": "yellow", "land": "yellow", "pause": "yellow", "would deny": "magenta"}
_QUIET = frozenset(("no match", "skipped", "inactive", "not asked"))
_UNMATCHED_SHOWN = 20
_NAME_WIDTH = 32


@click.command(name="explain")
@click.option("--request", "request_file", required=True, metavar="FILE", help="The request; - for standard input.")
@click.option(
    "--repeat", type=click.IntRange(1, 100_000), default=1, show_default=True, help="Number of times to send it."
)
@click.option("--every", type=click.FloatRange(0), default=1.0, show_default=True, help="Seconds between them.")
@policy_option
@config_option
@json_option
def command(request_file: str, *, repeat: int, every: float, policy: str, config: str, as_json: bool) -> None:
    """Explain how a bundle decides on a request, in the order of evaluation.

    FILE contains a raw HTTP request, or JSON like {"method": "POST", "path": "/v1/chat/completions", "headers": {},
    "body": {}}. State starts empty; the clock is simulated, and no network is used. With --repeat, the last request
    is explained. Fingerprints and callers match those of a server with the same secret or data directory.
    """
    settings = settings_of(config).settings
    now = float(int(SystemClock().now()))
    request = read_request(*read_input(request_file))
    loaded = load_policy(policy or settings.policy, now)
    secret = server_secret(settings)
    offline = OfflineService(loaded, settings, FakeClock(now), secret)
    sent = _send(offline, request, repeat, every)
    last = sent[-1]
    steps = offline.explain(last.record) if last.record is not None else []
    if as_json:
        print_json(_as_json(sent, every, steps))
        return
    if secret == OFFLINE_SECRET:
        click.echo("note: no secret is configured, so digests differ from those of a server", err=True)
    if settings.jwt.jwks_url:
        click.echo("note: jwt.jwks_url is not fetched here, so tokens are read without being verified", err=True)
    out = console()
    if repeat > 1:
        _print_earlier(sent, every, out)
    _print_steps(steps, out)
    _print_answer(last, out)


def _send(offline: OfflineService, request: CaseRequest, repeat: int, every: float) -> list[OfflineExchange]:
    sent = [offline.send(request)]
    while len(sent) < repeat:
        offline.clock.advance(every)
        sent.append(offline.send(request))
    return sent


def _outcome(sent: OfflineExchange) -> tuple[str, str, int]:
    """Return decision, reason and status."""
    if sent.record is None:
        return "deny", "bad_request", sent.reply.status
    return decision_of(sent.record.verdict), sent.record.verdict.reason, sent.reply.status


def _print_earlier(sent: Sequence[OfflineExchange], every: float, out: Console) -> None:
    """Print the earlier requests; equal outcomes share a line."""
    out.print(Text(f"Sent {plural(len(sent), 'time')}; the last is explained", "bold"))
    first = 0
    for (decision, reason, status), group in groupby(map(_outcome, sent)):
        last = first + len(list(group)) - 1
        numbers = f"{first + 1}" if first == last else f"{first + 1}-{last + 1}"
        begin, end = first * every, last * every
        times = f"{begin:g} s" if begin == end else f"{begin:g}-{end:g} s"
        first = last + 1
        line = Text(f"  {numbers:>9}  {times:>12}  ")
        line.append(f"{decision:<8}", _STYLES.get(decision, ""))
        out.print(line.append(f" {status} {reason}"))
    out.print()


def _print_steps(steps: Iterable[ExplainStep], out: Console) -> None:
    for heading, group in groupby(steps, key=lambda step: _HEADINGS[step.stage]):
        out.print(Text(heading, "bold"))
        shown, hidden = _cut(list(group))
        names = [_name(step) for step in shown]
        width = min(max(map(len, names)), _NAME_WIDTH)
        outcomes = max(len(step.outcome) for step in shown)
        for step, name in zip(shown, names, strict=True):
            out.print(_line(step, name.ljust(width), outcomes), soft_wrap=True)
        if hidden:
            out.print(Text(f"  and {hidden} more that do not match (--json lists them)", "dim"))


def _cut(steps: list[ExplainStep]) -> tuple[list[ExplainStep], int]:
    """Limit the number of policies that did not match: a bundle may have thousands."""
    unmatched = [step for step in steps if step.stage == "policy" and step.outcome == "no match"]
    left_out = {id(step) for step in unmatched[_UNMATCHED_SHOWN:]}
    return [step for step in steps if id(step) not in left_out], len(left_out)


def _name(step: ExplainStep) -> str:
    """Return the first column, indented below the policy."""
    return "  " + step.subject.partition("/")[2] if step.stage in _INDENTED else step.subject


def _line(step: ExplainStep, name: str, outcomes: int) -> Text:
    if step.stage == "verdict":
        return Text("  ").append(step.outcome.upper(), _STYLES.get(step.outcome, "")).append(f"  {step.text}")
    line = Text(f"  {name}  ", style="dim" if step.outcome in _QUIET else "")
    if step.outcome != "info":
        line.append(step.outcome.ljust(outcomes), _STYLES.get(step.outcome, "")).append("  ")
    return line.append(step.text)


def _print_answer(exchange: OfflineExchange, out: Console) -> None:
    reply = exchange.reply
    out.print(Text("Answer of the decision service (plus date and length)", "bold"))
    status = HTTPStatus(reply.status).phrase if reply.status in set(HTTPStatus) else ""
    out.print(Text(f"  HTTP/1.1 {reply.status} {status}".rstrip()))
    for name, value in exchange.headers:
        out.print(Text(f"  {name}: {value}"), soft_wrap=True)
    if reply.body:
        out.print(Text(f"\n  {reply.body.decode()}"), soft_wrap=True)
    if reply.delay_s:
        out.print(Text(f"  (sent after {reply.delay_s * 1000:g} ms)"))


def _as_json(sent: Sequence[OfflineExchange], every: float, steps: Iterable[ExplainStep]) -> dict[str, object]:
    last = sent[-1]
    outcomes = [dict(zip(("decision", "reason", "status"), _outcome(one), strict=True)) for one in sent]
    requests = [{"at": number * every, **outcome} for number, outcome in enumerate(outcomes)]
    answer = {"status": last.reply.status, "headers": [list(field) for field in last.headers]}
    answer |= {"body": last.reply.body.decode(), "delay_ms": round(last.reply.delay_s * 1000)}
    return {"requests": requests, "steps": [asdict(step) for step in steps], "answer": answer}
