"""OpenTelemetry spans of LLM calls: OTLP in JSON, as a collector's file exporter writes it, or spans as SDKs print
them.

Three conventions are supported: `gen_ai.input.messages` (current), one event per message (older), and
`gen_ai.prompt.0.content` (OpenLLMetry).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from breakloop.dialects.content import arguments, as_list, content, text
from breakloop.model.call import Answer, ToolCall
from breakloop.replay.formats.base import FormatReader, decoded, first, mapping, seconds
from breakloop.replay.formats.requests import session_of
from breakloop.replay.sessions import PATH, RecordedBody, RecordedSession, RecordedTurn, SessionSlice, json_bytes

_DETAILS: Final = "gen_ai.client.inference.operation.details"
_EVENT_ROLES: Final = {
    "gen_ai.system.message": "system",
    "gen_ai.user.message": "user",
    "gen_ai.assistant.message": "assistant",
    "gen_ai.tool.message": "tool",
}
_CHOICE: Final = "gen_ai.choice"
_INDEXED: Final = ("gen_ai.prompt.", "gen_ai.completion.")

Message = dict[str, Any]


Event = tuple[str, Mapping[str, Any]]  # name and attributes
Exchange = tuple[list[Message], Answer]  # a request and its response


def exchange(said: Mapping[str, Any], events: Sequence[Event]) -> Exchange | None:
    """Return the exchange of a span, or None if the span has no messages."""
    for one in (said, *[attributes for name, attributes in events if name == _DETAILS]):
        found = _of_today(one)
        if found is not None:
            return found
    return _of_events(events) or _indexed(said)


def _of_today(said: Mapping[str, Any]) -> Exchange | None:
    asked = as_list(decoded(said.get("gen_ai.input.messages")))
    if not asked:
        return None
    system = as_list(decoded(said.get("gen_ai.system_instructions")))
    messages = [{"role": "system", "content": _text(system)}] if system else []
    for message in asked:
        messages += _chat(mapping(message))
    given = [one for message in as_list(decoded(said.get("gen_ai.output.messages"))) for one in _chat(mapping(message))]
    return messages, _answer(given[0] if given else None)


def _chat(message: Mapping[str, Any]) -> list[Message]:
    """Convert one message of the conventions to chat messages; each tool result becomes its own message."""
    role, parts = text(message.get("role")), as_list(message.get("parts", message.get("content")))
    maps = [part if isinstance(part, dict) else {"type": "text", "content": part} for part in parts]
    results = [part for part in maps if part.get("type") == "tool_call_response"]
    rest = [part for part in maps if part.get("type") != "tool_call_response"]
    made: list[Message] = [
        {"role": "tool", "tool_call_id": text(one.get("id")), "content": text(one.get("response", one.get("result")))}
        for one in results
    ]
    calls = [_call(part) for part in rest if part.get("type") in ("tool_call", "function_call")]
    said = _text(rest)
    if said or calls or not made:
        plain: Message = {"role": role or "user", "content": said}
        made.append({**plain, "tool_calls": calls} if calls else plain)
    return made


def _text(parts: Sequence[object]) -> str:
    texts = []
    for part in parts:
        if not isinstance(part, dict):
            texts.append(part)
        elif part.get("type", "text") == "text":
            texts.append(part.get("content", part.get("text")))
    return "\n".join(map(content, texts))


def _call(part: Mapping[str, Any]) -> Message:
    made = mapping(part.get("function")) or part
    function = {"name": text(made.get("name")), "arguments": arguments(made.get("arguments"))}
    return {"id": text(part.get("id")), "type": "function", "function": function}


def _of_events(events: Sequence[Event]) -> Exchange | None:
    messages: list[Message] = []
    given: Message | None = None
    for name, attributes in events:
        if name in _EVENT_ROLES:
            messages.append(_event(attributes, _EVENT_ROLES[name]))
        elif name == _CHOICE and given is None:
            given = _event({**attributes, **mapping(attributes.get("message"))}, "assistant")
    return (messages, _answer(given)) if messages else None


def _event(attributes: Mapping[str, Any], role: str) -> Message:
    said = {**attributes, **mapping(attributes.get("gen_ai.event.content")), **mapping(attributes.get("body"))}
    message: Message = {"role": text(said.get("role")) or role, "content": content(said.get("content"))}
    calls = [_call(mapping(call)) for call in as_list(decoded(said.get("tool_calls")))]
    if calls:
        message["tool_calls"] = calls
    if message["role"] == "tool":
        message["tool_call_id"] = text(said.get("id"))
    return message


def _indexed(said: Mapping[str, Any]) -> Exchange | None:
    asked, given = (_gathered(said, prefix) for prefix in _INDEXED)
    if not asked:
        return None
    return [_event(one, "user") for one in asked], _answer(_event(given[0], "assistant") if given else None)


def _gathered(said: Mapping[str, Any], prefix: str) -> list[dict[str, Any]]:
    """Collect `prefix0.role`, `prefix0.tool_calls.1.name` and so on into maps, in order."""
    found: dict[int, dict[str, Any]] = {}
    calls: dict[int, dict[int, dict[str, Any]]] = {}
    for name, value in said.items():
        number, _, rest = name.removeprefix(prefix).partition(".")
        if not name.startswith(prefix) or not number.isdigit():
            continue
        fields = found.setdefault(int(number), {})
        kind, _, inner = rest.partition(".")
        index, _, part = inner.partition(".")
        if kind == "tool_calls" and index.isdigit():
            calls.setdefault(int(number), {}).setdefault(int(index), {})[part] = value
        else:
            fields["id" if rest == "tool_call_id" else rest] = value
    for place, made in calls.items():
        found[place]["tool_calls"] = [made[one] for one in sorted(made)]
    return [found[place] for place in sorted(found)]


def _answer(message: Message | None) -> Answer:
    if message is None:
        return Answer(0)  # not recorded, or no response
    calls = [call["function"] for call in message.get("tool_calls", ())]
    made = tuple(ToolCall(one["name"], one["arguments"]) for one in calls)
    return Answer(200, text(message.get("content")), made, complete=True)


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


class OtelReader(FormatReader):
    """Reads the spans of a record; spans that are not model calls are skipped."""

    format = "opentelemetry"

    @staticmethod
    def fits(record: Mapping[str, Any]) -> bool:
        return first(record, _RESOURCES) is not None or ("attributes" in record and bool(_trace(record)))

    def take(self, record: Mapping[str, Any]) -> Sequence[SessionSlice]:
        """Read all spans of a record in the order of their start."""
        spans = sorted(_spans(record), key=lambda span: _start(span) or 0.0)
        return [piece for span in spans if (piece := self._piece(span)) is not None]

    def _piece(self, span: Mapping[str, Any]) -> SessionSlice | None:
        said = _attributes(span)
        if said.get("gen_ai.operation.name") in _NO_CALLS:
            return None
        events = [(str(one.get("name", "")), _attributes(one)) for one in _maps(span.get("events"))]
        found = exchange(said, events)
        if found is None:
            return None
        messages, answer = found
        body = {"model": str(first(said, _MODELS) or ""), "messages": messages}
        agent = str(first(said, _AGENTS) or "")
        turn = RecordedTurn(RecordedBody(PATH, json_bytes(body)), answer, agent, _start(span))
        return SessionSlice(self._session(span, said, turn), [turn], whole=False)

    def _session(self, span: Mapping[str, Any], said: Mapping[str, Any], turn: RecordedTurn) -> RecordedSession:
        conversation = first(said, _CONVERSATIONS)
        if not conversation and str(first(span, _PARENTS) or "").strip("0x"):
            conversation = _trace(span)  # a call inside a larger operation: the trace is the run
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
    """Return the attributes of a span or event, from a map or from OTLP's list of keys and typed values."""
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
