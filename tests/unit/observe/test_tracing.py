"""Spans and metrics of OpenTelemetry, as its own SDK hands them over."""

from __future__ import annotations

from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from time import perf_counter_ns
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from breakloop.model.call import NO_ANSWER, Answer, Call, Usage
from breakloop.model.verdict import Verdict
from breakloop.observe.tracing import Tracing, open_tracing
from tests.builders import START, World, bundle, chat, exact, policy, user, world
from tests.deadlines import DEADLINE_S

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
CANARY = "canary-4711"


class Traced:
    """A world that is traced into memory."""

    def __init__(self) -> None:
        self.spans = InMemorySpanExporter()
        self.reader = InMemoryMetricReader()
        self.world: World = world(bundle(policy("p", loop=exact())))
        processor = SimpleSpanProcessor(self.spans)
        self.tracing = Tracing(self.world.descriptors, self.world.clock, processor, self.reader)

    def decide(self, call: Call, *, tracked: bool = True) -> Verdict:
        call.tracked = tracked
        call.began_ns = perf_counter_ns()
        verdict = self.world.engine.decide(call)
        self.tracing.decided(call, verdict)
        return verdict

    def ended(self) -> list[ReadableSpan]:
        return list(self.spans.get_finished_spans())

    def points(self, name: str) -> list[tuple[dict[str, Any], Any]]:
        data = self.reader.get_metrics_data()
        found = [
            (dict(point.attributes or {}), point)
            for resource in (data.resource_metrics if data else ())
            for scope in resource.scope_metrics
            for metric in scope.metrics
            if metric.name == name
            for point in metric.data.data_points
        ]
        return sorted(found, key=lambda one: sorted(one[0].items()))


def ask(text: str = "hello", **more: Any) -> Call:
    return chat(user(text), upstream="openai", **more)


def test_a_call_is_one_span_until_its_answer() -> None:
    """GenAI names, tokens, and how long it took (G-5)."""
    traced = Traced()
    call = ask()
    traced.decide(call)
    assert traced.ended() == []
    traced.world.clock.advance(2.5)
    traced.tracing.answered(call, Answer(200, usage=Usage(100, 20), model="gpt-x-1", finish="stop", complete=True))
    (span,) = traced.ended()
    assert (span.name, span.kind, span.status.status_code) == ("chat gpt-x", SpanKind.CLIENT, StatusCode.UNSET)
    attributes = dict(span.attributes or {})
    assert attributes["gen_ai.request.model"] == "gpt-x"
    assert attributes["gen_ai.response.model"] == "gpt-x-1"
    assert attributes["gen_ai.usage.input_tokens"] == 100
    assert attributes["gen_ai.usage.output_tokens"] == 20
    assert attributes["http.response.status_code"] == 200
    assert attributes["breakloop.reason"] == "all_rules_passed"
    assert span.end_time == int((START + 2.5) * 1e9)
    assert span.start_time is not None
    assert span.start_time <= START * 1e9
    assert span.resource.attributes["service.name"] == "breakloop"
    assert call.span is None
    assert traced.tracing.faults == 0


def test_a_denial_ends_its_span_at_once() -> None:
    """With the verdict, and as an error (G-5)."""
    traced = Traced()
    for _ in range(2):
        traced.decide(ask(), tracked=False)
    traced.decide(ask())
    span = traced.ended()[2]
    attributes = dict(span.attributes or {})
    assert span.status.status_code == StatusCode.ERROR
    assert attributes["error.type"] == attributes["breakloop.reason"] == "loop_detected"
    assert attributes["http.response.status_code"] == 429
    assert attributes["breakloop.loop.kind"] == "exact"
    assert attributes["breakloop.loop.hit_count"] == 3
    ((names, point),) = traced.points("gen_ai.client.operation.duration")
    assert names["error.type"] == "loop_detected"
    assert point.count == 1


def test_the_clients_trace_goes_on() -> None:
    """W3C traceparent (G-5)."""
    traced = Traced()
    traced.decide(ask(headers={"traceparent": PARENT, "tracestate": "a=b"}), tracked=False)
    traced.decide(ask("other", headers={"traceparent": "nonsense"}), tracked=False)
    with_parent, without = traced.ended()
    assert with_parent.parent is not None
    assert f"{with_parent.parent.span_id:x}" == "b7ad6b7169203331"
    assert f"{with_parent.context.trace_id:032x}" == "0af7651916cd43dd8448eb211c80319c"
    assert with_parent.context.trace_state.get("a") == "b"
    assert without.parent is None


def test_a_client_that_does_not_sample_is_not_traced() -> None:
    """Its own flag decides (G-5)."""
    traced = Traced()
    traced.decide(ask(headers={"traceparent": PARENT[:-2] + "00"}), tracked=False)
    assert traced.ended() == []


def test_a_question_of_a_gateway_ends_with_its_verdict() -> None:
    """Nobody knows when its answer is told; its tokens are counted when it is (D-3)."""
    traced = Traced()
    call = ask()
    traced.decide(call, tracked=False)
    assert len(traced.ended()) == 1
    traced.tracing.answered(call, Answer(200, usage=Usage(7, 3), complete=True))
    traced.tracing.answered(call, Answer(200, usage=Usage(7, 3), complete=True))
    points = traced.points("gen_ai.client.token.usage")
    assert [(names["gen_ai.token.type"], point.sum, point.count) for names, point in points] == [
        ("input", 7, 1),
        ("output", 3, 1),
    ]
    assert traced.points("gen_ai.client.operation.duration") == []


def test_metrics_of_a_client() -> None:
    """The conventions' two, with few attributes and the bounds they advise (G-5)."""
    traced = Traced()
    call = ask()
    traced.decide(call)
    traced.world.clock.advance(1.5)
    traced.tracing.answered(call, Answer(200, usage=Usage(100, 20), complete=True))
    ((names, point),) = traced.points("gen_ai.client.operation.duration")
    assert names == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "openai",
        "gen_ai.request.model": "gpt-x",
    }
    assert 1.5 <= point.sum < 3
    assert point.explicit_bounds[:3] == (0.01, 0.02, 0.04)
    tokens = traced.points("gen_ai.client.token.usage")
    assert [(one["gen_ai.token.type"], at.sum) for one, at in tokens] == [("input", 100), ("output", 20)]
    assert tokens[0][1].explicit_bounds[:3] == (1, 4, 16)


def test_an_answer_that_failed() -> None:
    """An answer that failed (G-5)."""
    traced = Traced()
    call = ask()
    traced.decide(call)
    traced.tracing.answered(call, Answer(NO_ANSWER, error="cut_short"))
    (span,) = traced.ended()
    assert (span.attributes or {})["error.type"] == "no_answer"
    assert span.status.status_code == StatusCode.ERROR


def test_plain_http_has_a_span_and_no_metrics_of_models() -> None:
    traced = Traced()
    call = Call("GET", f"/files/{CANARY}")
    traced.decide(call)
    traced.tracing.answered(call, Answer(200, complete=True))
    (span,) = traced.ended()
    assert span.name == "GET"
    assert CANARY not in span.to_json()
    assert traced.points("gen_ai.client.operation.duration") == []


def test_nothing_of_what_is_said_is_in_a_span() -> None:
    """Neither prompt nor answer, key nor path (Y-1)."""
    traced = Traced()
    call = ask(f"say {CANARY}", headers={"authorization": f"Bearer {CANARY}"}, query=f"key={CANARY}")
    traced.decide(call)
    answer = Answer(200, f"I say {CANARY}", error=CANARY, usage=Usage(1, 1))
    traced.tracing.answered(call, answer)
    for _ in range(3):
        traced.decide(ask(f"say {CANARY}"), tracked=False)
    assert len(traced.ended()) >= 3
    assert [span for span in traced.ended() if CANARY in span.to_json()] == []
    assert CANARY not in str(traced.reader.get_metrics_data())


def test_a_fault_of_tracing_stops_nobody() -> None:
    """It is counted (G-5)."""
    traced = Traced()
    call: Any = ask()
    call.headers = None
    traced.tracing.decided(call, Verdict())
    call.span = "nonsense"
    traced.tracing.answered(call, Answer(200))
    assert traced.tracing.faults == 2


def test_an_answer_to_a_call_that_was_not_traced() -> None:
    traced = Traced()
    traced.tracing.answered(ask(), Answer(200, usage=Usage(1, 1)))
    assert traced.ended() == []
    assert traced.tracing.faults == 0


class Collector(BaseHTTPRequestHandler):
    """Takes what an exporter sends."""

    got: list[tuple[str, bytes]]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.got.append((self.path, body))
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *args: object) -> None:
        """Say nothing."""


def test_spans_reach_a_collector() -> None:
    """By OTLP over HTTP (G-5)."""
    got: list[tuple[str, bytes]] = []
    server = HTTPServer(("127.0.0.1", 0), type("Here", (Collector,), {"got": got}))
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    made = world(bundle())
    try:
        tracing = open_tracing(f"http://127.0.0.1:{server.server_port}/", made.descriptors, made.clock)
        call = ask()
        tracing.decided(call, made.engine.decide(call))
        tracing.answered(call, Answer(200, usage=Usage(5, 6)))
        tracing.close()
    finally:
        server.shutdown()
        server.server_close()
        thread.join(DEADLINE_S)
    assert sorted(path for path, _ in got) == ["/v1/metrics", "/v1/traces"]
    sent = ExportTraceServiceRequest.FromString(dict(got)["/v1/traces"])
    assert [span.name for span in sent.resource_spans[0].scope_spans[0].spans] == ["chat gpt-x"]
