"""OpenTelemetry (an extra): a span for each call, which continues the trace of the client, and client metrics.

Names and attributes follow the GenAI semantic conventions, with `breakloop.*` for what they lack. Spans carry names,
counts and verdicts, never the content of requests. Threads of the OpenTelemetry SDK export them in batches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
from breakloop.dialects import registry
from breakloop.model.call import CLIENT_LEFT, NO_ANSWER, Answer, Call, Chat
from breakloop.model.verdict import Verdict
from breakloop.policy.descriptors import Descriptors

OPERATION: Final = "gen_ai.operation.name"
PROVIDER: Final = "gen_ai.provider.name"
MODEL: Final = "gen_ai.request.model"
TOOL: Final = "gen_ai.tool.name"
TOKEN_TYPE: Final = "gen_ai.token.type"
ERROR_TYPE: Final = "error.type"
_OTHER: Final = "_OTHER"
_TEXT_MAX: Final = 200
_MODELS_MAX: Final = 50

# Common names of upstreams -> names of the conventions. Other upstreams get the provider of their dialect.
_PROVIDERS: Final = {
    "openai": "openai",
    "anthropic": "anthropic",
    "gemini": "gcp.gemini",
    "google": "gcp.gemini",
    "vertex": "gcp.vertex_ai",
    "azure": "azure.ai.openai",
    "bedrock": "aws.bedrock",
    "mistral": "mistral_ai",
    "xai": "x_ai",
    "groq": "groq",
    "deepseek": "deepseek",
    "cohere": "cohere",
    "perplexity": "perplexity",
}

Attributes = dict[str, Any]


def span_name(attributes: Mapping[str, Any], method: str) -> str:
    """Return the name of a call's span: the operation and its model or tool, or the method of plain HTTP."""
    operation = attributes.get(OPERATION)
    if operation is None:
        return method
    of_what = attributes.get(MODEL) or attributes.get(TOOL)
    return f"{operation} {of_what}" if of_what else str(operation)


def call_attributes(call: Call, chat: Chat | None, agent: str, tools: Sequence[str] = ()) -> Attributes:
    found: Attributes = {
        "breakloop.request_id": call.request_id,
        "http.request.method": call.method,
        "gen_ai.agent.id": agent[:_TEXT_MAX],
    }
    if call.identity.project:
        found["breakloop.project"] = call.identity.project
    if call.upstream:
        found["breakloop.upstream"] = call.upstream
    if chat is None:
        return found
    dialect = registry.DIALECTS[chat.dialect]
    found[OPERATION] = dialect.operation
    if tools:
        found[TOOL] = tools[0][:_TEXT_MAX]
    if not dialect.is_llm:
        return found
    found[PROVIDER] = _PROVIDERS.get(call.upstream) or _PROVIDERS.get(dialect.provider, dialect.provider)
    if chat.model:
        found[MODEL] = chat.model[:_TEXT_MAX]
    if chat.max_tokens is not None:
        found["gen_ai.request.max_tokens"] = chat.max_tokens
    if chat.answers != 1:
        found["gen_ai.request.choice.count"] = chat.answers
    if chat.stream:
        found["gen_ai.request.stream"] = True
    return found


def verdict_attributes(verdict: Verdict) -> Attributes:
    found: Attributes = {"breakloop.allowed": verdict.allowed, "breakloop.reason": verdict.reason}
    for name in ("policy", "rule", "warning"):
        value = getattr(verdict, name)
        if value:
            found[f"breakloop.{name}"] = value
    if verdict.delay_ms:
        found["breakloop.delay_ms"] = verdict.delay_ms
    if verdict.degraded:
        found["breakloop.degraded"] = True
    if verdict.shadow:
        found["breakloop.shadow.policies"] = [one.policy for one in verdict.shadow]
    if verdict.loop is not None:
        for name in ("kind", "fingerprint", "hit_count", "action"):
            found[f"breakloop.loop.{name}"] = getattr(verdict.loop, name)
    return found


def answer_attributes(answer: Answer) -> Attributes:
    """Return the attributes of an answer, without its content."""
    found: Attributes = {}
    if answer.status not in (NO_ANSWER, CLIENT_LEFT):
        found["http.response.status_code"] = answer.status
    texts = {"gen_ai.response.model": answer.model, "gen_ai.response.id": answer.response_id}
    found |= {name: text[:_TEXT_MAX] for name, text in texts.items() if text}
    if answer.finish:
        found["gen_ai.response.finish_reasons"] = [answer.finish[:_TEXT_MAX]]
    usage = answer.usage
    if usage is not None:
        found["gen_ai.usage.input_tokens"] = usage.input_tokens
        found["gen_ai.usage.output_tokens"] = usage.output_tokens
        more = {
            "gen_ai.usage.cache_read.input_tokens": usage.cached_tokens,
            "gen_ai.usage.cache_creation.input_tokens": usage.cache_write_tokens,
            "gen_ai.usage.reasoning.output_tokens": usage.reasoning_tokens,
        }
        found |= {name: count for name, count in more.items() if count}
    return found


def failure(answer: Answer) -> str:
    """Return the cause of a failed answer in one word, or "". It never contains text of the upstream."""
    if answer.status == CLIENT_LEFT:
        return "client_left"
    if answer.status == NO_ANSWER:
        return "no_answer"
    if answer.status >= 400:
        return str(answer.status)
    return "incomplete" if answer.error and not answer.complete else ""


class SpanNames:
    """The attributes of metrics, with a bounded number of values."""

    __slots__ = ("_models",)

    def __init__(self) -> None:
        self._models: set[str] = set()

    def of(self, attributes: Mapping[str, Any]) -> dict[str, str]:
        """Return the attributes of a call to a model; empty for tools and plain HTTP."""
        if PROVIDER not in attributes:
            return {}
        found = {name: str(attributes[name]) for name in (OPERATION, PROVIDER)}
        if MODEL in attributes:
            found[MODEL] = self._model(attributes[MODEL])
        return found

    def _model(self, model: str) -> str:
        if model not in self._models:
            if len(self._models) >= _MODELS_MAX:
                return _OTHER
            self._models.add(model)
        return model


_SCOPE: Final = "breakloop"
_NS: Final = 1_000_000_000
_FINISH_MS: Final = 3_000
# Bucket bounds that the conventions recommend.
_TOKENS: Final = tuple(4**power for power in range(14))
_SECONDS: Final = tuple(2**power / 100 for power in range(14))


class _Open(NamedTuple):
    """A call without an answer yet."""

    span: Span | None  # None: it has ended
    began_ns: int
    attributes: dict[str, Any]


class Tracing:
    """Creates spans and metrics; `processor` and `reader` export them."""

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
        self._names = SpanNames()
        self.faults = 0

    def decided(self, call: Call, verdict: Verdict) -> None:
        """Start the span of a call, and end it if no answer will be seen."""
        try:
            self._decided(call, verdict)
        except Exception:  # noqa: BLE001 - tracing must not affect traffic
            self.faults += 1

    def answered(self, call: Call, answer: Answer) -> None:
        """End the span of a call, and record its tokens."""
        try:
            self._answered(call, answer)
        except Exception:  # noqa: BLE001 - as in `decided`
            self.faults += 1

    def close(self) -> None:
        self._traces.force_flush(_FINISH_MS)
        self._traces.shutdown()
        self._metrics.shutdown(_FINISH_MS)

    def _decided(self, call: Call, verdict: Verdict) -> None:
        now_ns, who = self._now_ns(), self._descriptors
        took_ns = perf_counter_ns() - call.began_ns if call.began_ns else 0
        chat = who.head(call) if call.body else None
        tools = () if chat is None or registry.DIALECTS[chat.dialect].is_llm else who.tools(call)
        attributes = call_attributes(call, chat, who.agent(call), tools)
        span = self._tracer.start_span(
            span_name(attributes, call.method),
            context=self._propagator.extract(_carrier(call)),
            kind=SpanKind.CLIENT,
            attributes=attributes | verdict_attributes(verdict) | {"breakloop.overhead_us": took_ns // 1000},
            start_time=now_ns - took_ns,
        )
        opened = call.span = _Open(span, now_ns - took_ns, attributes)
        if not verdict.allowed:
            self._end(call, opened, {"http.response.status_code": verdict.status}, verdict.reason)
        elif not call.tracked:  # its answer may be reported later, or never
            span.end(now_ns)
            call.span = opened._replace(span=None)

    def _answered(self, call: Call, answer: Answer) -> None:
        opened = call.span
        if opened is None:
            return
        assert isinstance(opened, _Open)  # noqa: S101 - nothing else writes it
        usage = answer.usage
        names = self._names.of(opened.attributes)
        if usage is not None and names:
            self._tokens.record(usage.input_tokens, {**names, TOKEN_TYPE: "input"})
            self._tokens.record(usage.output_tokens, {**names, TOKEN_TYPE: "output"})
        self._end(call, opened, answer_attributes(answer), failure(answer))

    def _end(self, call: Call, ending: _Open, attributes: Mapping[str, Any], why: str) -> None:
        call.span = None
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
    """Export to a collector by OTLP over HTTP. The OTEL_* variables configure the exporters further."""
    base = endpoint.rstrip("/")
    processor = BatchSpanProcessor(OTLPSpanExporter(f"{base}/v1/traces"))
    reader = PeriodicExportingMetricReader(OTLPMetricExporter(f"{base}/v1/metrics"))
    return Tracing(descriptors, clock, processor, reader)


def _carrier(call: Call) -> dict[str, str]:
    names = ("traceparent", "tracestate")
    return {name: value for name in names if (value := call.header(name)) is not None}
