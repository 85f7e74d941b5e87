"""OpenTelemetry, an extra (SPEC G-5): a span for each call, continuing the client's trace, and the metrics of a client,
all by the GenAI semantic conventions. Carries names, counts and verdicts, never what was said (SPEC Y-1). Spans and
metrics leave in batches from threads of the SDK; what the names mean is `trace_names`'."""

from __future__ import annotations

from collections.abc import Mapping
from time import perf_counter_ns
from typing import Any, Final, NamedTuple

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import MetricReader, PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Span, SpanKind, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from breakloop._version import __version__
from breakloop.clock import Clock
from breakloop.model.answer import Answer
from breakloop.model.call import Call
from breakloop.model.verdict import Verdict
from breakloop.observe.trace_names import (
    ERROR_TYPE,
    TOKEN_TYPE,
    Names,
    answer_attributes,
    call_attributes,
    failure,
    span_name,
    verdict_attributes,
)
from breakloop.policy.descriptors import Descriptors
from breakloop.wire import mcp

_SCOPE: Final = "breakloop"
_NS: Final = 1_000_000_000
_FINISH_MS: Final = 3_000
# As the conventions advise.
_TOKENS: Final = tuple(4**power for power in range(14))
_SECONDS: Final = tuple(2**power / 100 for power in range(14))


class _Open(NamedTuple):
    """A call whose answer is waited for."""

    span: Span | None  # None: it has ended
    began_ns: int
    attributes: dict[str, Any]


class Tracing:
    """A `Traces`. `processor` and `reader` take spans and metrics away."""

    def __init__(
        self, descriptors: Descriptors, clock: Clock, processor: SpanProcessor, reader: MetricReader | None = None
    ) -> None:
        resource = Resource.create({"service.name": "breakloop", "service.version": __version__})
        self._descriptors = descriptors
        self._clock = clock
        self._traces = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._traces.add_span_processor(processor)
        self._tracer = self._traces.get_tracer(_SCOPE, __version__)
        self._metrics = MeterProvider([reader] if reader else [], resource=resource, shutdown_on_exit=False)
        meter = self._metrics.get_meter(_SCOPE, __version__)
        self._tokens = meter.create_histogram(
            "gen_ai.client.token.usage",
            unit="{token}",
            description="Tokens that were used.",
            explicit_bucket_boundaries_advisory=_TOKENS,
        )
        self._duration = meter.create_histogram(
            "gen_ai.client.operation.duration",
            unit="s",
            description="How long an operation took.",
            explicit_bucket_boundaries_advisory=_SECONDS,
        )
        self._propagator = TraceContextTextMapPropagator()
        self._names = Names()
        self.faults = 0

    def decided(self, call: Call, verdict: Verdict) -> None:
        """Begin the span of a call, and end it where no answer will be seen."""
        try:
            self._decided(call, verdict)
        except Exception:  # noqa: BLE001 - the outermost edge: tracing must not stop anybody's traffic
            self.faults += 1

    def answered(self, call: Call, answer: Answer) -> None:
        """End the span of a call, and count what it used."""
        try:
            self._answered(call, answer)
        except Exception:  # noqa: BLE001 - as in `decided`
            self.faults += 1

    def close(self) -> None:
        """Send what is left, as far as somebody takes it."""
        self._traces.force_flush(_FINISH_MS)
        self._traces.shutdown()
        self._metrics.shutdown(_FINISH_MS)

    def _decided(self, call: Call, verdict: Verdict) -> None:
        now_ns, who = self._now_ns(), self._descriptors
        took_ns = perf_counter_ns() - call.began_ns if call.began_ns else 0
        chat = who.head(call) if call.body else None
        tools = who.tools(call) if chat is not None and chat.dialect == mcp.DIALECT else ()
        attributes = call_attributes(call, chat, who.agent(call), tools)
        span = self._tracer.start_span(
            span_name(attributes, call.method),
            context=self._propagator.extract(_carrier(call)),
            kind=SpanKind.CLIENT,
            attributes=attributes | verdict_attributes(verdict) | {"breakloop.overhead_us": took_ns // 1000},
            start_time=now_ns - took_ns,
        )
        call.span = _Open(span, now_ns - took_ns, attributes)
        if not verdict.allowed:
            self._end(call, {"http.response.status_code": verdict.status}, verdict.reason)
        elif not call.tracked:  # its answer may be told, but nobody knows when
            span.end(now_ns)
            call.span = call.span._replace(span=None)

    def _answered(self, call: Call, answer: Answer) -> None:
        if call.span is None:
            return
        usage = answer.usage
        names = self._names.of(call.span.attributes)
        if usage is not None and names:
            self._tokens.record(usage.input_tokens, {**names, TOKEN_TYPE: "input"})
            self._tokens.record(usage.output_tokens, {**names, TOKEN_TYPE: "output"})
        self._end(call, answer_attributes(answer), failure(answer))

    def _end(self, call: Call, attributes: Mapping[str, Any], why: str) -> None:
        ending, call.span = call.span, None
        span = ending.span
        if span is None:
            return
        span.set_attributes(attributes)
        if why:
            span.set_attribute(ERROR_TYPE, why)
            span.set_status(StatusCode.ERROR, why)
        now_ns = self._now_ns()
        span.end(now_ns)
        names = self._names.of(ending.attributes)
        if names:
            names |= {ERROR_TYPE: why} if why else {}
            self._duration.record((now_ns - ending.began_ns) / _NS, names)

    def _now_ns(self) -> int:
        return int(self._clock.now() * _NS)


def open_tracing(endpoint: str, descriptors: Descriptors, clock: Clock) -> Tracing:
    """Send spans and metrics to a collector by OTLP over HTTP; OTEL_* variables say the rest."""
    base = endpoint.rstrip("/")
    processor = BatchSpanProcessor(OTLPSpanExporter(f"{base}/v1/traces"))
    reader = PeriodicExportingMetricReader(OTLPMetricExporter(f"{base}/v1/metrics"))
    return Tracing(descriptors, clock, processor, reader)


def _carrier(call: Call) -> dict[str, str]:
    names = ("traceparent", "tracestate")
    return {name: value for name in names if (value := call.header(name)) is not None}
