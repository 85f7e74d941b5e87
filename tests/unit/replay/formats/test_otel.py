"""OpenTelemetry spans, found in what exporters write."""

from __future__ import annotations

import json
from typing import Any

from breakloop.replay.formats.otel import OtelReader
from breakloop.replay.sessions import RecordedBody, SessionSlice

ASKED = [{"role": "user", "parts": [{"type": "text", "content": "Hello."}]}]
SAID = [{"role": "assistant", "parts": [{"type": "text", "content": "Hi."}], "finish_reason": "stop"}]
ATTRIBUTES: dict[str, Any] = {
    "gen_ai.operation.name": "chat",
    "gen_ai.request.model": "m",
    "gen_ai.agent.name": "planner",
    "gen_ai.conversation.id": "c1",
    "gen_ai.input.messages": json.dumps(ASKED),
    "gen_ai.output.messages": json.dumps(SAID),
}
PRINTED: dict[str, Any] = {
    "name": "chat m",
    "context": {"trace_id": "0xabc", "span_id": "0x1"},
    "parent_id": None,
    "start_time": "2023-11-14T22:13:20Z",
    "attributes": ATTRIBUTES,
    "events": [],
}


def typed(value: Any) -> dict[str, Any]:
    if isinstance(value, str):
        return {"stringValue": value}
    if isinstance(value, list):
        return {"arrayValue": {"values": [typed(one) for one in value]}}
    return {"kvlistValue": {"values": [{"key": key, "value": typed(one)} for key, one in value.items()]}}


def span(attributes: dict[str, Any], start: int = 1_700_000_000, **more: Any) -> dict[str, Any]:
    listed = [{"key": key, "value": typed(value)} for key, value in attributes.items()]
    return {"traceId": "abc", "spanId": "1", "startTimeUnixNano": f"{start}000000000", "attributes": listed, **more}


def exported(*spans: dict[str, Any]) -> dict[str, Any]:
    return {"resourceSpans": [{"scopeSpans": [{"spans": list(spans)}]}]}


def check(piece: SessionSlice) -> None:
    (turn,) = piece.turns
    assert (piece.session.id, piece.session.named, piece.whole) == ("c1", True, False)
    assert turn.request == RecordedBody(
        "/v1/chat/completions", b'{"model":"m","messages":[{"role":"user","content":"Hello."}]}'
    )
    assert (turn.answer.text, turn.agent, turn.at_s) == ("Hi.", "planner", 1_700_000_000.0)


def test_spans_as_sdks_print_them() -> None:
    """Spans as SDKs print them (X-5)."""
    assert OtelReader.fits(PRINTED)
    (piece,) = OtelReader("log").take(PRINTED)
    check(piece)


def test_otlp_with_typed_values() -> None:
    """Messages as text or as structure, what is no call of a model between them, in order of time (X-5)."""
    structured = {**ATTRIBUTES, "gen_ai.input.messages": ASKED, "gen_ai.output.messages": SAID}
    tool = {**ATTRIBUTES, "gen_ai.operation.name": "execute_tool"}
    record = exported(span(structured), span(tool), span({"http.method": "GET"}), span(ATTRIBUTES, 1_600_000_000))
    assert OtelReader.fits(record)
    early, late = OtelReader("log").take(record)
    check(late)
    assert early.turns[0].at_s == 1_600_000_000.0


def test_sessions_by_trace() -> None:
    """The trace of a call inside a run is the run; a call that is its own trace belongs to what it opens (X-5, C-7)."""
    without = {key: value for key, value in ATTRIBUTES.items() if key != "gen_ai.conversation.id"}
    inner, root = OtelReader("log").take(exported(span(without, parentSpanId="9"), span(without)))
    assert (inner.session.id, inner.session.named) == ("abc", True)
    assert root.session.id.startswith("opening:")
    assert (root.session.named, root.session.gateway) == (False, "log")
    (zero,) = OtelReader("log").take(exported(span(without, parentSpanId="0000000000000000")))
    assert not zero.session.named


def test_messages_in_events() -> None:
    """As the conventions had it before (X-5)."""
    events = [
        {"name": "gen_ai.user.message", "attributes": [{"key": "content", "value": {"stringValue": "Hello."}}]},
        {"name": "gen_ai.choice", "attributes": [{"key": "message", "value": typed({"content": "Hi."})}]},
    ]
    bare = {key: value for key, value in ATTRIBUTES.items() if "messages" not in key}
    (piece,) = OtelReader("log").take(exported(span(bare, events=events)))
    check(piece)


def test_what_is_no_span() -> None:
    """What is no span (X-5)."""
    assert not OtelReader.fits({"attributes": {}})
    assert not OtelReader.fits({"trace_id": "t", "request": {}})
