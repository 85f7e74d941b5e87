"""Canaries in everything that a client sends and gets, then every sink is searched for them: log, metrics, traces, live
events, history, kept state, API and dashboard (Y-1)."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from breakloop.clock import FakeClock
from breakloop.engine.engine import Engine
from breakloop.history.store import Retention, open_history
from breakloop.model.call import Answer, Call, ToolCall, Usage
from breakloop.model.events import Activity, Event
from breakloop.observe.events import EventBus, EventDispatcher
from breakloop.observe.log import LogEvents, Logging
from breakloop.observe.metrics import EventCounters, MetricSources, PrometheusPage, collect
from breakloop.observe.tracing import Tracing
from breakloop.policy.descriptors import ContextSettings, Descriptors
from breakloop.store.memory import MemoryStore
from breakloop.store.snapshot import Snapshotter
from tests import admin_world
from tests.admin_client import OWN, browser, client
from tests.builders import CHAT, SECRET, START, bucket, bundle, compiled, policy

CANARY = "canary-4711"
KINDS = ("system", "prompt", "said", "argument", "result", "key", "cookie", "query", "answer", "called", "upstream")


def canary(kind: str) -> str:
    """What must be found nowhere."""
    assert kind in KINDS
    return f"{CANARY}-{kind}"


def looping(turn: int) -> Call:
    """A turn of an agent that calls the same tool again and again."""
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": canary("system")},
        {"role": "user", "content": canary("prompt")},
    ]
    for number in range(turn + 1):
        made = {"name": "read_file", "arguments": json.dumps({"path": canary("argument")})}
        messages += [
            {"role": "assistant", "content": canary("said"), "tool_calls": [{"id": f"c{number}", "type": "function", "function": made}]},
            {"role": "tool", "tool_call_id": f"c{number}", "content": f"{canary('result')} failed"},
        ]  # fmt: skip
    body = json.dumps({"model": "gpt-x", "messages": messages}).encode()
    headers = {
        "authorization": f"Bearer {canary('key')}".encode(),
        "x-api-key": canary("key").encode(),
        "cookie": canary("cookie").encode(),
        "content-type": b"application/json",
    }
    made_call = Call("POST", CHAT, "api.example", f"key={canary('query')}", headers, "127.0.0.1", body, False, f"r-{turn}", "fixer", "openai")  # fmt: skip
    made_call.tracked = True
    return made_call


BUNDLE = bundle(
    policy("words", loop={"similarity": "tail", "action": "warn"}),
    policy("steps", loop={"similarity": "steps"}),
    policy("limits", bucket(rate=0.01, burst=3, keys=["header:x-api-key", "query:key", "header:cookie"])),
    policy("shadow", bucket(rate=0.01, burst=1, keys=["caller:key"]), mode="shadow"),
)


@dataclass
class Traffic:
    """What was served, and every sink of it."""

    folder: Path
    log: io.StringIO = field(default_factory=io.StringIO)
    spans: InMemorySpanExporter = field(default_factory=InMemorySpanExporter)
    reader: InMemoryMetricReader = field(default_factory=InMemoryMetricReader)
    events: list[Event] = field(default_factory=list)
    denied: int = 0

    def __post_init__(self) -> None:
        self.clock = FakeClock(START)
        self.bus = EventBus()
        self.store = MemoryStore()
        self.logged = LogEvents()
        self.descriptors = Descriptors(ContextSettings(secret=SECRET), self.clock)
        self.engine = Engine(self.store, self.clock, self.descriptors, publish=self._publish)
        self.engine.set_bundle(compiled(BUNDLE, self.descriptors))
        self.tracing = Tracing(self.descriptors, self.clock, SimpleSpanProcessor(self.spans), self.reader)
        self.durable = Snapshotter(self.store, self.folder, self.clock, lambda _problem: None)

    def _publish(self, event: Event) -> None:
        self.logged(event)
        self.bus(event)

    def run(self) -> None:
        """Serve twelve turns, with answers that fail too."""
        logging = Logging(self.log, "debug", "json")
        logging.start()
        self.durable.load()
        for turn in range(12):
            call = looping(turn)
            verdict = self.engine.decide(call)
            self.denied += not verdict.allowed
            self.tracing.decided(call, verdict)
            if verdict.allowed:
                answer = _answer(failed=turn == 2)
                self.engine.settle(call, answer)
                self.tracing.answered(call, answer)
            self.clock.advance(2.0)
        self.logged.flush(self.clock.now(), everything=True)
        logging.stop()
        self.durable.finish()
        self.events = self.bus.take()


def _answer(*, failed: bool) -> Answer:
    call = ToolCall("read_file", canary("called"))
    if failed:
        return Answer(500, canary("answer"), (call,), error=canary("upstream"))
    return Answer(200, canary("answer"), (call,), Usage(100, 10), "gpt-x", "resp-1", "tool_calls", complete=True)


@pytest.fixture
def traffic(tmp_path: Path) -> Traffic:
    """Traffic that loops, is warned of, denied and limited."""
    made = Traffic(tmp_path)
    made.run()
    names = {event.name for event in made.events}
    assert {"loop.detected", "limit.exceeded", "shadow.would_reject"} <= names, names
    assert made.denied
    return made


def clean(text: str) -> bool:
    """Whether no canary is in it, in any spelling that the sinks use."""
    return CANARY not in text and CANARY.replace("-", "_") not in text


def test_events_log_and_live(traffic: Traffic) -> None:
    """Events log and live (Y-1)."""
    assert "loop.detected" in traffic.log.getvalue()
    assert clean(traffic.log.getvalue())
    assert clean(json.dumps([asdict(event) for event in traffic.events], default=str))


def test_metrics(traffic: Traffic) -> None:
    """Metrics (Y-1, G-5)."""
    counted = EventCounters()
    counted.take(traffic.events)
    sources = MetricSources(traffic.engine, START, traffic.store)
    text = PrometheusPage(lambda: [collect(sources), counted.values]).text().decode()
    assert "breakloop_loops_total{" in text
    assert clean(text)


def test_traces(traffic: Traffic) -> None:
    """Traces (Y-1, G-5)."""
    spans = traffic.spans.get_finished_spans()
    assert len(spans) == 12
    assert traffic.tracing.faults == 0
    assert [span.name for span in spans if not clean(span.to_json())] == []
    assert clean(str(traffic.reader.get_metrics_data()))


def test_what_is_kept_on_disk(traffic: Traffic) -> None:
    """Counters, windows and cooldowns of the whole session (Y-1, S-1)."""
    files = [file for file in traffic.folder.rglob("*") if file.is_file()]
    assert any(file.suffix == ".db" or "state" in file.name for file in files)
    assert [file.name for file in files if CANARY.encode() in file.read_bytes()] == []


def test_history_api_and_dashboard(traffic: Traffic, tmp_path: Path) -> None:
    """History API and dashboard (Y-1, G-3, X-2)."""
    where = tmp_path / "past" / "history.db"
    where.parent.mkdir()
    history = open_history(where, retention=Retention(), clock=traffic.clock, report=lambda _trouble: None)
    history.write(traffic.events, Activity(), traffic.clock.now())
    world = admin_world.empty()
    world.services.history = history
    try:
        pages = _pages(world)
    finally:
        history.close()
    assert "fixer" in pages["/api/v1/incidents"]
    assert "loop.detected" in pages["/events"]
    assert [path for path, text in pages.items() if not clean(text)] == []
    assert [file.name for file in where.parent.iterdir() if CANARY.encode() in file.read_bytes()] == []


def _pages(world: admin_world.World) -> Mapping[str, str]:
    api, (page, _) = client(world, OWN), browser(world)
    found = {path: api.get(path).text for path in ("/api/v1/events", "/api/v1/incidents", "/api/v1/agents")}
    incidents = [one["id"] for one in json.loads(found["/api/v1/incidents"])["incidents"]]
    assert incidents
    for path in (
        "/",
        "/agents",
        "/incidents",
        "/events",
        "/limits",
        "/audit",
        *(f"/incidents/{one}" for one in incidents),
    ):
        answer = page.get(path)
        assert answer.status_code == 200, path
        found[path] = answer.text
    return found


def test_a_fault_is_logged_without_what_it_was_about(traffic: Traffic, caplog: pytest.LogCaptureFixture) -> None:
    """A listener that fails names neither events nor what is in them (Y-1)."""

    def fails(_events: object) -> None:
        raise ValueError("no room")

    for event in traffic.events:
        traffic.bus(event)
    fan = EventDispatcher(traffic.bus)
    fan.add("history", fails)
    asyncio.run(fan.finish())
    assert "history failed to process" in caplog.text
    assert clean(caplog.text)


def test_the_search_can_find_something() -> None:
    """The check can fail."""
    assert not clean(f"x {canary('prompt')} y")
    assert not clean(looping(0).body.decode())
