"""OpenTelemetry spans of calls to language models, by the GenAI conventions: OTLP in JSON (what a collector's file
exporter writes) or spans as SDKs print them. What a span says in which words is `otel_messages`' business."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from breakloop.replay.conversations import PATH, json_bytes
from breakloop.replay.readers.fields import first, mapping, seconds
from breakloop.replay.readers.otel_messages import Told, exchange
from breakloop.replay.readers.request_log import session_of
from breakloop.replay.sessions import Body, Piece, Session, Turn
from breakloop.wire.content import as_list

FORMAT = "opentelemetry"
_RESOURCES: Final = ("resourceSpans", "resource_spans")
_SCOPES: Final = ("scopeSpans", "scope_spans", "instrumentationLibrarySpans")
_STARTS: Final = ("startTimeUnixNano", "start_time_unix_nano", "start_time", "startTime", "timestamp")
_TRACES: Final = ("traceId", "trace_id")
_PARENTS: Final = ("parentSpanId", "parent_span_id", "parent_id")
_CONVERSATIONS: Final = ("gen_ai.conversation.id", "session.id", "traceloop.association.properties.session_id")
_AGENTS: Final = ("gen_ai.agent.name", "gen_ai.agent.id")
_MODELS: Final = ("gen_ai.request.model", "gen_ai.response.model")
_NO_CALLS: Final = frozenset(("embeddings", "create_agent", "invoke_agent", "execute_tool", "retrieval"))
_SCALARS: Final = ("stringValue", "boolValue", "intValue", "doubleValue", "bytesValue")


class OtelReader:
    """Reads the spans of a record; those that are no call of a model are passed over."""

    def __init__(self, name: str) -> None:
        self._name = name

    @staticmethod
    def fits(record: Mapping[str, Any]) -> bool:
        """Tell whether this is the format of a record."""
        return first(record, _RESOURCES) is not None or ("attributes" in record and bool(_trace(record)))

    def take(self, record: Mapping[str, Any]) -> Sequence[Piece]:
        """Read all spans of a record, in the order in which they began."""
        spans = sorted(_spans(record), key=lambda span: _start(span) or 0.0)
        return [piece for span in spans if (piece := self._piece(span)) is not None]

    def end(self) -> Sequence[Piece]:
        """Nothing is under way between two records."""
        return ()

    def _piece(self, span: Mapping[str, Any]) -> Piece | None:
        said = _attributes(span)
        if said.get("gen_ai.operation.name") in _NO_CALLS:
            return None
        events = [Told(str(one.get("name", "")), _attributes(one)) for one in _maps(span.get("events"))]
        found = exchange(said, events)
        if found is None:
            return None
        body = {"model": str(first(said, _MODELS) or ""), "messages": found.messages}
        agent = str(first(said, _AGENTS) or "")
        turn = Turn(Body(PATH, json_bytes(body)), found.answer, agent, _start(span))
        return Piece(self._session(span, said, turn), [turn], whole=False)

    def _session(self, span: Mapping[str, Any], said: Mapping[str, Any], turn: Turn) -> Session:
        conversation = first(said, _CONVERSATIONS)
        if not conversation and str(first(span, _PARENTS) or "").strip("0x"):
            conversation = _trace(span)  # a call inside something larger: the trace is the run
        return session_of(turn, self._name, str(conversation or ""))


def _maps(value: object) -> list[dict[str, Any]]:
    return [one for one in as_list(value) if isinstance(one, dict)]


def _spans(record: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    resources = _maps(first(record, _RESOURCES))
    if not resources:
        yield record
    for resource in resources:
        for scope in _maps(first(resource, _SCOPES)):
            yield from _maps(scope.get("spans"))


def _start(span: Mapping[str, Any]) -> float | None:
    return seconds(first(span, _STARTS))


def _trace(span: Mapping[str, Any]) -> str:
    found = first(span, _TRACES) or first(mapping(span.get("context")), _TRACES)
    return str(found or "")


def _attributes(holder: Mapping[str, Any]) -> dict[str, Any]:
    """The attributes of a span or event: a map, or OTLP's list of keys and typed values."""
    listed = holder.get("attributes")
    if isinstance(listed, dict):
        return listed
    return {str(one.get("key")): _value(one.get("value")) for one in _maps(listed)}


def _value(value: object) -> Any:
    if not isinstance(value, dict):
        return value
    for name in _SCALARS:
        if name in value:
            return value[name]
    if "arrayValue" in value:
        return [_value(one) for one in as_list(mapping(value["arrayValue"]).get("values"))]
    if "kvlistValue" in value:
        return {
            str(one.get("key")): _value(one.get("value")) for one in _maps(mapping(value["kvlistValue"]).get("values"))
        }
    return None
