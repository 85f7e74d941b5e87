"""Receivers for tests of alerts: a real HTTP server in a thread that answers as told and remembers what it got, events to
send, and means with a clock that moves only when told."""

from __future__ import annotations

import json
import ssl
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Condition, Thread
from typing import Any

from breakloop.alerts.router import encoded, payload
from breakloop.alerts.rules import AlertRule
from breakloop.alerts.transport import DeliveryContext, tls_context
from breakloop.app.build import aside
from breakloop.clock import Clock, FakeClock
from breakloop.model import events
from breakloop.model.events import Event
from breakloop.model.verdict import ANSWERS
from tests.deadlines import DEADLINE_S

NOW = 1_800_000_000.0
CANARY = "canary-5e1f77"


@dataclass
class Got:
    """One request."""

    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Receiver(ThreadingHTTPServer):
    """Answers with `status`, or with what `answers` says next; `headers` go with it."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.status = 200
        self.answers: list[int] = []
        self.headers: dict[str, str] = {}
        self.got: list[Got] = []
        self.changed = Condition()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/hook"

    def handle_error(self, *_: object) -> None:
        """Whoever left early does not interest it."""

    def wait(self, number: int, timeout_s: float = DEADLINE_S) -> list[Got]:
        """Wait until so many requests are there."""
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.got) >= number, timeout_s), f"{len(self.got)} of {number}"
            return list(self.got)


class _Handler(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        server = self.server
        with server.changed:
            server.got.append(Got(self.path, {name.lower(): value for name, value in self.headers.items()}, body))
            status = server.answers.pop(0) if server.answers else server.status
            server.changed.notify_all()
        self.send_response(status)
        for name, value in server.headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"ok")

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextmanager
def receiver(port: int = 0, tls: ssl.SSLContext | None = None) -> Iterator[Receiver]:
    """Run one for a while."""
    with Receiver(port) as server:
        if tls is not None:
            server.socket = tls.wrap_socket(server.socket, server_side=True)
        thread = Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


@dataclass
class Said:
    """A log."""

    lines: list[tuple[str, dict[str, object]]] = field(default_factory=list)

    def __call__(self, level: int, message: str, fields: Mapping[str, object]) -> None:
        self.lines.append((message, dict(fields)))


def fixed(*addresses: str) -> Any:
    """A resolver that gives these for every name."""
    return lambda _host, _port: list(addresses)


default_tls = cache(tls_context)  # reading the system's authorities takes 20 ms


def means(clock: Clock | None = None, **others: Any) -> DeliveryContext:
    """Means with a clock of its own, without chance."""
    given: dict[str, Any] = {"jitter": lambda: 0.0, "timeout_s": 5.0, "tls": default_tls()} | others
    return DeliveryContext(clock or FakeClock(NOW), aside, **given)


def rule(name: str, types: Sequence[str], targets: Sequence[str], **others: Any) -> AlertRule:
    """An alert rule."""
    return AlertRule(name=name, type=list(types), targets=list(targets), **others)


def loop(agent: str = "summariser", at: float = NOW, **data: Any) -> Event:
    """A loop was detected."""
    known = {
        "caller": "key:5f1c", "agent": agent, "model": "gpt-4.1", "fingerprint": "a3f7c2d1b8e4", "hit_count": 6,
        "cooldown_seconds": 30, "kind": "tail", "evidence": "the same last 3 messages 6 times", "action": "reject",
        "policy": "builtin", "shadow": False,
    }  # fmt: skip
    return Event(events.LOOP_DETECTED, at, known | data, "default", "req_def456")


def killed(agent: str = "summariser", at: float = NOW, **data: Any) -> Event:
    """An agent is held."""
    known = {"binds": "agent", "agent": agent, "caller": "key:5f1c", "reason": "a loop", "expires_at": None, "by": ""}
    return Event(events.AGENT_KILLED, at, known | data, "default")


def paused(agent: str = "summariser", at: float = NOW, **data: Any) -> Event:
    """A person is asked, with a link for each answer."""
    known = {
        "id": "p-1", "agent": agent, "caller": "key:5f1c", "session": "s-1", "answer_by": at + 1800, "then": "land",
        "reason": "tail loop (the same last 3 messages 6 times)",
    }  # fmt: skip
    links = {f"answer_{answer}_url": f"https://ops.example/answer/p-1.{answer}.x" for answer in ANSWERS}
    return Event(events.RUN_PAUSED, at, known | links | data, "default")


def released(agent: str = "summariser", at: float = NOW, **data: Any) -> Event:
    """An agent is released."""
    known = {
        "binds": "agent",
        "agent": agent,
        "caller": "key:5f1c",
        "reason": "released",
        "expires_at": None,
        "by": "ada",
    }
    return Event(events.AGENT_RELEASED, at, known | data, "default")


def limited(rule: str = "per-agent", at: float = NOW) -> Event:
    """A limit denied a request."""
    return Event(events.LIMIT_EXCEEDED, at, {"policy": "fair-use", "rule": rule, "reason": "too_many"}, "default", "r1")


def notice_body(event: Event, about: Event | None = None, **more: Any) -> str:
    """What a target for people gets: of something that begins, or, with `about`, of its end."""
    known = {
        "rule": "night watch",
        "state": "recovered" if about else "firing",
        "key": "loop-1",
        "count": 12,
        "since": "T0",
    }
    made, first = (payload(replace(one, data={**one.data, **more})) for one in (event, about or event))
    return encoded(known | {"payload": made, "about": first})


def named(told: Sequence[Got]) -> list[str]:
    """The events that were received."""
    return [one.json["event"] for one in told]
