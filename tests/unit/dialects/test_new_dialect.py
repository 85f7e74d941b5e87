"""A new dialect is one class and one row of the registry: everything else finds it there."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from breakloop.dialects import denial, registry
from breakloop.dialects.answers import (
    AnswerBuilder,
    ListeningReader,
    StreamEnd,
    StreamListener,
    event_fields,
    named_event,
    tokens,
    word,
)
from breakloop.dialects.base import BodyFields, Dialect, item_at
from breakloop.dialects.body_changes import JsonBody
from breakloop.dialects.content import arguments, as_list, text
from breakloop.dialects.session_ids import BodyModel
from breakloop.dialects.steps import StepBuilder, result
from breakloop.model.call import Call, Message, Result, ToolCall, Usage
from breakloop.model.verdict import Verdict
from tests.builders import bundle, policy, tail, world

# -- the one new file


class AcmeBody(BodyModel, kw_only=True):
    engine: str
    turns: list[msgspec.Raw]
    live: bool = False


class AcmeAnswer(AnswerBuilder):
    __slots__ = ()

    SINGLE = True

    def read_event(self, payload: bytes) -> None:
        self.read_leniently(payload)

    def read_fields(self, fields: dict[str, Any]) -> None:
        get = fields.get
        self.model = word(get("engine")) or self.model
        self.add_text(0, text(get("reply")))
        if get("musing"):
            self.add_reasoning(0, text(get("musing")))
        for at, run in enumerate(as_list(get("runs"))):
            self.set_arguments(self.start_call(at, word(run.get("tool"))), run.get("with"))
        if get("spent"):
            self.usage = get("spent")
        if get("over"):
            self.finish, self.ended = word(get("over")), True

    def read_usage(self, fields: dict[str, Any]) -> Usage | None:
        return Usage(tokens(fields, "in"), tokens(fields, "out"))


class Acme(Dialect):
    name = "acme_turns"
    provider = "acme"
    path_endings = ("/turns",)
    answer_field = "reply"
    ends_streams = True

    def read_fields(self, body: bytes) -> BodyFields:
        fields = msgspec.json.decode(body, type=AcmeBody)
        return BodyFields(fields.engine, fields.turns, fields.live, fields=fields)

    def read_fields_leniently(self, fields: dict[str, Any]) -> BodyFields | None:
        return (
            BodyFields(text(fields.get("engine")), as_list(fields["turns"]), fields=fields)
            if "turns" in fields
            else None
        )

    def flatten(self, item: Any) -> Message:
        if not isinstance(item, dict):
            return Message("", text(item))
        made = [ToolCall(text(run.get("tool")), arguments(run.get("with"))) for run in as_list(item.get("runs"))]
        return Message(text(item.get("by")), text(item.get("says")), tuple(made))

    def collect_step(self, parts: BodyFields) -> StepBuilder:
        found = StepBuilder()
        for at in range(len(parts.items) - 1, -1, -1):
            item = item_at(parts.items, at)
            if not isinstance(item, dict):
                continue
            if item.get("by") == "model":
                found.answered = True
                found.texts.append(text(item.get("says")))
                for run in reversed(as_list(item.get("runs"))):
                    found.add_call(run.get("tool"), run.get("with"), run.get("id"))
                break
            if item.get("by") == "tool":
                found.results.append(result(item.get("says"), item.get("id")))
            else:
                found.users.append((text(item.get("by")), item.get("says")))
        return found

    def insert_note(self, json: JsonBody, note: str) -> bytes | None:
        return json.with_item(json.fields["turns"], {"by": "user", "says": note})

    def answer_builder(self, listener: StreamListener | None = None) -> AnswerBuilder:
        return AcmeAnswer(listener)

    def end_stream(self, end: StreamEnd) -> bytes:
        last = event_fields(end.state.last)
        return named_event({"type": "over", "engine": last.get("engine"), "over": "too_long"}) if last else b""

    def error_fields(self, verdict: Verdict, call: Call) -> dict[str, object]:
        return {"fault": {"why": denial.error_code(verdict), "text": denial.message(verdict), "ref": call.request_id}}


# -- the one new row


@pytest.fixture(autouse=True)
def acme(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "DIALECTS", registry.Dialects((*registry.DIALECTS.values(), Acme())))


# -- what follows from it

PATH = "/api/turns"
BODY = json.dumps(
    {
        "engine": "acme-1",
        "live": True,
        "session_id": "s-1",
        "turns": [
            {"by": "user", "says": "Find it."},
            {"by": "model", "says": "", "runs": [{"tool": "search", "with": {"q": "it"}, "id": "r1"}]},
            {"by": "tool", "says": "Error: no such thing", "id": "r1"},
        ],
    }
).encode()
SAID = [{"engine": "acme-1", "musing": "Hm."}, {"reply": "Not "}, {"reply": "found."}]
OVER = {"runs": [{"tool": "stop", "with": {"now": True}}], "spent": {"in": 9, "out": 4}, "over": "done"}


def events(*payloads: dict[str, Any]) -> bytes:
    return b"".join(b"data: %b\n\n" % json.dumps(payload).encode() for payload in payloads)


def test_a_request_is_recognised_by_its_path_and_read() -> None:
    """Model, messages, streaming and session (C-7, C-8)."""
    assert registry.of_path(PATH) == "acme_turns"
    parsed = registry.parse("POST", PATH, BODY)
    assert parsed is not None
    chat = parsed.chat(2)
    assert chat is not None
    assert (chat.dialect, chat.model, chat.stream, chat.message_count) == ("acme_turns", "acme-1", True, 3)
    assert chat.tail[0].calls == (ToolCall("search", '{"q":"it"}'),)
    assert parsed.session_ids().session == "s-1"
    assert parsed.opening() == "user\nFind it."
    assert registry.parse("POST", PATH, b'{"other": 1}') is None


def test_its_newest_step_is_read() -> None:
    """Calls, and results that failed (LD-4)."""
    parsed = registry.parse("POST", PATH, BODY)
    assert parsed is not None
    step = parsed.newest_step()
    assert step is not None
    assert step.calls == (ToolCall("search", '{"q":"it"}'),)
    assert step.results == (Result("Error: no such thing", error=True, call_id="r1"),)
    assert (step.messages, step.size) == (3, len(BODY))


def test_an_odd_item_is_no_fault() -> None:
    """A body with an item that is no object is still read (C-8)."""
    parsed = registry.parse("POST", PATH, b'{"engine": "a", "turns": ["odd", {"by": "user", "says": "Hi."}]}')
    assert parsed is not None
    step = parsed.newest_step()
    assert step is not None
    assert step.users == ("Hi.",)
    assert parsed.opening().endswith("user\nHi.")


@pytest.mark.parametrize("streamed", [False, True])
def test_its_answers_are_read_whole_and_streamed(streamed: bool) -> None:
    """Text, calls and token counts (C-8)."""
    sent = events(*SAID, OVER) if streamed else json.dumps(SAID[0] | {"reply": "Not found."} | OVER).encode()
    reading = registry.reader("acme_turns", b"text/event-stream" if streamed else b"application/json")
    assert reading is not None
    reading.feed(sent)
    answer = reading.answer(200, complete=True)
    assert (answer.text, answer.calls) == ("Not found.", (ToolCall("stop", '{"now":true}'),))
    assert (answer.model, answer.usage, answer.finish, answer.complete) == ("acme-1", Usage(9, 4), "done", True)


class Listener:
    def __init__(self) -> None:
        self.text, self.reasoning = "", ""

    def on_text(self, choice: int, part: int, piece: str) -> None:
        self.text += piece

    def on_reasoning(self, choice: int, part: int, piece: str) -> None:
        self.reasoning += piece

    def on_call(self, choice: int, name: str, arguments: str) -> None: ...

    def on_arguments(self, choice: int, piece: str) -> None: ...

    def on_finish(self, choice: int) -> None: ...

    def room(self, choice: int, part: int, *, is_reasoning: bool) -> int:
        return 0


def test_its_streams_are_watched_and_ended() -> None:
    """The stream guard reads along, and ends a stream as the dialect does (LD-8)."""
    listener = Listener()
    reading = ListeningReader(registry.DIALECTS["acme_turns"], listener)
    reading.feed(events(*SAID))
    assert (listener.text, listener.reasoning) == ("Not found.", "Hm.")
    ending = reading.ending([0], 10)
    assert ending.startswith(b"event: over\ndata: ")
    reading.feed(ending)
    assert reading.answer(200, complete=True).finish == "too_long"


def test_a_denial_has_its_shape() -> None:
    """Next to `detail`, which all denials have; also before the body could be read (A-3)."""
    verdict = Verdict(allowed=False, reason="kill_switch", status=429, message="No.")
    call = Call("POST", PATH, request_id="r-7", body=BODY)
    for dialect in ("acme_turns", ""):
        status, body = registry.denial_for(verdict, call, dialect)
        assert status == 429
        assert json.loads(body) == {
            "detail": {"error": "kill_switch", "message": "No.", "stop_reason": "killed"},
            "fault": {"why": "kill_switch", "text": "No. (kill_switch)", "ref": "r-7"},
        }


def test_a_note_is_appended() -> None:
    """Nothing else of the body changes (LD-5)."""
    body = registry.DIALECTS["acme_turns"].append_note(BODY, "Change course.")
    assert body is not None
    assert body.startswith(BODY[:-2])
    assert json.loads(body)["turns"][-1] == {"by": "user", "says": "[breakloop] Change course. [/breakloop]"}


def test_loops_in_it_are_detected() -> None:
    """The engine, the descriptors and the detectors find it in the registry (C-6, LD-2)."""
    made = world(bundle(policy("p", loop=tail(max_hits=2))))
    calls = [Call("POST", PATH, headers={"authorization": b"Bearer sk"}, body=BODY) for _ in range(4)]
    verdicts = [made.engine.decide(call) for call in calls]
    assert [verdict.allowed for verdict in verdicts] == [True, True, False, False]
    assert made.descriptors.getter("llm:provider")(calls[0]) == "acme"
