"""Dialects that are imported when they are used: their rows, and what each does with notes, landings, denials and streams
that are cut."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from breakloop.dialects import registry
from breakloop.dialects.answers import ListeningReader
from breakloop.dialects.aws_events import AwsEventParser, aws_event
from breakloop.dialects.bedrock import NO_TOOL
from breakloop.dialects.framing import form_of
from breakloop.model.call import Call
from breakloop.model.verdict import Verdict
from breakloop.testing import PATHS, Conversation
from tests.unit.dialects.parsing import read_chat
from tests.unit.dialects.recorded.everything import EVERYTHING
from tests.unit.dialects.recorded.reading import started
from tests.unit.dialects.test_new_dialect import Listener

LATE = {name: one for name, one in registry.DIALECTS.items() if isinstance(one, registry.LateDialect)}
TALKS = ("ollama_chat", "cohere_chat", "vertex_anthropic", "bedrock_anthropic", "bedrock_converse")
NOTE = "[breakloop] Change course. [/breakloop]"
Json = dict[str, Any]

each_late = pytest.mark.parametrize("name", LATE)
each_llm = pytest.mark.parametrize("name", [name for name, one in LATE.items() if one.load().is_llm])
each_talk = pytest.mark.parametrize("dialect", TALKS)


def request(dialect: str) -> Json:
    return Conversation(dialect=dialect).tool("search", {"q": "x"}, "nothing").request()


def last_of(dialect: str, body: bytes) -> str:
    chat = read_chat("POST", PATHS[dialect], body, 1)
    assert chat is not None
    return chat.tail[0].text


@each_late
def test_a_row_is_that_of_its_class(name: str) -> None:
    """The row holds what is needed before the module is imported (C-6)."""
    found = LATE[name].load()
    assert (found.name, found.path_endings) == (name, LATE[name].path_endings)
    assert registry.DIALECTS[name].provider == found.provider


def test_they_are_imported_when_they_are_used() -> None:
    """Whoever uses OpenAI does not pay for the others (Q-2)."""
    code = "import sys, breakloop.dialects.registry as r; r.parse('POST', '/v1/chat/completions', b'{}')\n"
    code += "print([name for name in sys.modules if name.rpartition('.')[2] in sys.argv])"
    modules = {one._class_name.partition(".")[0] for one in LATE.values()}
    done = subprocess.run([sys.executable, "-c", code, *modules], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@each_talk
def test_a_note_follows_the_results(dialect: str) -> None:
    """The model reads it last, and the rest stays as it was (LD-5)."""
    sent = json.dumps(request(dialect)).encode()
    noted = registry.DIALECTS[dialect].append_note(sent, "Change course.")
    assert noted is not None
    assert NOTE in last_of(dialect, noted)
    assert registry.DIALECTS[dialect].append_note(b"{}", "x") is None
    assert registry.DIALECTS[dialect].append_note(b"[", "x") is None


@each_talk
def test_a_note_after_a_text_of_the_user(dialect: str) -> None:
    """It becomes part of that message (LD-5)."""
    sent = json.dumps(Conversation(dialect=dialect).request()).encode()
    noted = registry.DIALECTS[dialect].append_note(sent, "Change course.")
    assert noted is not None
    assert last_of(dialect, noted).endswith(NOTE)


LANDED: dict[str, tuple[Json, Json]] = {  # tools of a request, and the fields of the landed one
    "ollama_chat": ({"tools": [{"type": "function", "function": {"name": "search"}}]}, {"tools": []}),
    "cohere_chat": ({"tools": [{"type": "function", "function": {"name": "search"}}]}, {"tool_choice": "NONE"}),
    "vertex_anthropic": ({"tools": [{"name": "search"}]}, {"tool_choice": {"type": "none"}}),
    "bedrock_anthropic": ({"tools": [{"name": "search"}]}, {"tool_choice": {"type": "none"}}),
    "bedrock_converse": ({"toolConfig": {"tools": [{"toolSpec": {"name": "x"}}], "toolChoice": {"any": {}}}}, {}),
}


@each_talk
def test_a_landed_request_allows_no_tools(dialect: str) -> None:
    """Nothing but the note, if there are no tools (LD-5)."""
    tools, off = LANDED[dialect]
    landed = registry.DIALECTS[dialect].land(json.dumps(request(dialect) | tools).encode(), "Finish.")
    assert landed is not None
    fields = json.loads(landed)
    assert {name: fields[name] for name in off} == off
    bare = registry.DIALECTS[dialect].land(json.dumps(request(dialect)).encode(), "Finish.")
    assert bare is not None
    assert not set(off) & set(json.loads(bare))


def test_a_landed_converse_has_one_tool_that_does_nothing() -> None:
    """The API has no choice without tools, and rejects a history with calls and no tools (LD-5)."""
    landed = registry.DIALECTS["bedrock_converse"].land(
        json.dumps(request("bedrock_converse") | LANDED["bedrock_converse"][0]).encode(), "Finish."
    )
    assert landed is not None
    config = json.loads(landed)["toolConfig"]
    assert ([tool["toolSpec"]["name"] for tool in config["tools"]], "toolChoice" in config) == ([NO_TOOL], False)


def test_a_prompt_takes_a_note() -> None:
    """A text to complete, too; but not one with a gap to fill (LD-5)."""
    dialect = registry.DIALECTS["ollama_generate"]
    noted = dialect.append_note(b'{"model":"m","prompt":"Go on."}', "Change course.")
    assert noted is not None
    assert json.loads(noted)["prompt"] == f"Go on.\n\n{NOTE}"
    assert dialect.append_note(b'{"model":"m","prompt":"Go on.","suffix":"end"}', "Change course.") is None


CONVERSATION = "/v1/conversations/conv_1"
RESULT = {"type": "function.result", "tool_call_id": "c", "result": "nothing"}


def test_a_conversation_takes_a_note_in_its_last_entry() -> None:
    """Mistral's models reject a message of the user after a result; tools may be those of an agent (LD-5)."""
    dialect = registry.DIALECTS["mistral_conversations"]
    user = {"role": "user", "content": [{"type": "text", "text": "Go on."}]}
    for inputs in ("Go on.", [user], [RESULT]):
        sent = json.dumps({"inputs": inputs, "completion_args": {"temperature": 0}}).encode()
        landed = dialect.land(sent, "Finish.")
        assert landed is not None
        chat = read_chat("POST", CONVERSATION, landed, 1)
        assert chat is not None
        assert "[breakloop] Finish. [/breakloop]" in chat.tail[0].text
        assert json.loads(landed)["completion_args"] == {"temperature": 0, "tool_choice": "none"}
    assert json.loads(dialect.land(b'{"inputs":"x"}', "Finish.") or b"")["completion_args"] == {"tool_choice": "none"}
    assert dialect.append_note(b'{"inputs":[{"type":"function.call"}]}', "x") is None


def test_a_conversation_continues_the_id_in_its_path() -> None:
    """Also at a restart. A call that is not in the request is represented by its id; others have such paths (C-7)."""
    for path in (CONVERSATION, f"{CONVERSATION}/restart"):
        parsed = registry.parse("POST", path, json.dumps({"inputs": [RESULT]}).encode())
        assert parsed is not None
        assert (parsed.dialect.name, parsed.session_ids().previous) == ("mistral_conversations", "conv_1")
        step = parsed.newest_step()
        assert step is not None
        assert (step.continues, step.stored) == ("conv_1", True)
        chat = parsed.chat(1)
        assert chat is not None
        assert chat.tail[0].text == "nothing\n<call c>"
        assert registry.of_path(path) == "mistral_conversations"
    assert registry.parse("POST", f"{CONVERSATION}/items", b'{"inputs":"x"}') is None
    assert registry.parse("POST", CONVERSATION, b'{"items":[],"metadata":{}}') is None
    first = registry.parse("POST", "/v1/conversations", b'{"inputs":"x","agent_id":"ag_1"}')
    assert first is not None
    assert (first.head().model, first.session_ids().previous) == ("ag_1", "")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/chain/invoke", {"anthropic_version": "v", "messages": []}),
        ("/model/m/invoke", {"inputText": "an older model"}),
        ("/v1/projects/p/locations/l/publishers/anthropic/models/count-tokens:rawPredict", "count"),
        ("/api/chat", {"id": "1", "messages": [{"role": "user", "parts": []}]}),
        ("/v2/chat", {"text": "hello"}),
    ],
)
def test_what_is_not_a_chat_of_theirs(path: str, body: Any) -> None:
    """Other APIs have such paths, and counting tokens is no step (B-6)."""
    count = {"model": "claude", "anthropic_version": "v", "messages": [{"role": "user", "content": "hi"}]}
    assert registry.parse("POST", path, json.dumps(count if body == "count" else body).encode()) is None


def test_other_models_of_vertex_are_read_by_their_body() -> None:
    """Mistral and Llama, at the same paths (C-6)."""
    path = "/v1/projects/p/locations/l/publishers/mistralai/models/mistral-medium:rawPredict"
    parsed = registry.parse("POST", path, b'{"model":"mistral-medium","messages":[{"role":"user","content":"hi"}]}')
    assert parsed is not None
    assert parsed.dialect.name == "openai_chat"


def test_the_model_of_bedrock_is_in_the_path() -> None:
    """Escaped, as AWS SDKs send it (C-8)."""
    path = "/model/us.anthropic.claude-opus-4-5-20251101-v1%3A0/converse-stream"
    chat = read_chat("POST", path, b'{"messages":[{"role":"user","content":[{"text":"hi"}]}]}', 1)
    assert chat is not None
    assert (chat.model, chat.stream) == ("us.anthropic.claude-opus-4-5-20251101-v1:0", True)


def test_results_of_converse() -> None:
    """Text, JSON and images; the status tells errors (LD-4)."""
    parts = [{"text": "a"}, {"json": {"b": 1}}, {"image": {"format": "png", "source": {"bytes": "iVBORw0KGgo="}}}]
    returned = [
        {"toolResult": {"toolUseId": "1", "content": parts, "status": "success"}},
        {"toolResult": {"toolUseId": "2", "content": [{"text": "no"}], "status": "error"}},
    ]
    body = {"messages": [{"role": "user", "content": [{"text": "hi"}]}, {"role": "user", "content": returned}]}
    parsed = registry.parse("POST", "/model/m/converse", json.dumps(body).encode())
    assert parsed is not None
    step = parsed.newest_step()
    assert step is not None
    first, second = step.results
    assert (first.text.startswith('a\n{"b":1}'), len(first.media), first.error) == (True, 1, False)
    assert (second.text, second.error, second.call_id) == ("no", True, "2")


SAID = "Blocked: the same again. (recursive_loop_detected)"
AWS_ERROR: Json = {"__type": "ThrottlingException", "message": SAID}
ERRORS: dict[str, Json] = {
    "ollama_chat": {"error": SAID},
    "ollama_generate": {"error": SAID},
    "cohere_chat": {"id": "r-7", "message": SAID},
    "bedrock_converse": AWS_ERROR,
    "mistral_conversations": {
        "object": "error",
        "message": SAID,
        "type": "rate_limited",
        "param": None,
        "code": "recursive_loop_detected",
    },
}


@each_llm
def test_a_denial_has_the_shape_of_its_errors(name: str) -> None:
    """Next to `detail`, which all denials have (A-3)."""
    verdict = Verdict(allowed=False, reason="loop_detected", status=429, message="Blocked: the same again.")
    status, body = registry.denial_for(verdict, Call("POST", "/", request_id="r-7"), name)
    fields = json.loads(body)
    assert (status, fields.pop("detail")["error"]) == (429, "recursive_loop_detected")
    if name in ERRORS:
        assert fields == ERRORS[name]
    else:  # that of the API it hosts, and at AWS its own
        assert fields["error"]["message"] == SAID
        assert fields.items() >= (AWS_ERROR if name.startswith("bedrock") else {}).items()


STREAMS = {name: one for name, one in EVERYTHING.items() if one.dialect in LATE and name.split()[-1] != "fails"}
STREAMED = {name: one for name, one in STREAMS.items() if form_of(one.content_type) not in (None, "body")}


@pytest.mark.parametrize("name", [name for name, one in STREAMED.items() if one.answer.text])
def test_a_stream_can_be_cut(name: str) -> None:
    """After its first piece of text it is ended as one that reached its limit, and not a second time (LD-8)."""
    recorded = STREAMED[name]
    form = form_of(recorded.content_type)
    assert form is not None
    dialect = registry.DIALECTS[recorded.dialect]
    heard = Listener()
    reading = ListeningReader(dialect, heard, form)
    at = 0
    while not (heard.text or heard.reasoning) and at < len(recorded.body):
        reading.feed(recorded.body[at : at + 1])
        at += 1
    ending = reading.ending([0], 40)
    assert reading.between_events
    reading.feed(ending)
    answer = reading.answer(200, complete=True)
    assert answer.complete
    no_word = recorded.dialect == "mistral_conversations"  # for the reason of an end
    assert answer.finish.lower() in {"length", "max_tokens", *(["stop"] if no_word else [])}
    no_mark = recorded.dialect == "bedrock_chat"  # of the end: the watch knows which answers are open
    assert reading.ending([] if no_mark else [0], 40) == b""


@each_llm
def test_a_stopped_stream_ends_with_an_error(name: str) -> None:
    """An event that the dialect's own reader takes for an error (A-3)."""
    kinds = [one.content_type for one in STREAMED.values() if one.dialect == name]
    verdict = Verdict(allowed=False, reason="kill_switch", status=429, message="Stopped.")
    event = registry.DIALECTS[name].error_event(verdict, Call("POST", "/"))
    reading = started(name, kinds[0])
    reading.feed(event)
    answer = reading.answer(200, complete=True)
    assert (bool(answer.error), answer.complete) == (True, False)


def test_frames_of_aws_that_are_broken_or_too_long() -> None:
    """A frame that is too long is passed over; after a broken one nothing is read, and nothing fails (C-9, Y-2)."""
    short, long = aws_event("a", b'{"x":1}'), aws_event("b", b'{"x":"%b"}' % (b"x" * 200))
    events = AwsEventParser(150)
    found = [one for piece in (short, long[:20], long[20:] + short) for one in events.feed(piece)]
    assert (found, events.skipped, events.between) == ([b'{"a":{"x":1}}'] * 2, 1, True)
    broken = AwsEventParser()
    assert list(broken.feed(short + b"\0" * 40)) == [b'{"a":{"x":1}}']
    assert (list(broken.feed(short)), broken.skipped, broken.between) == ([], 1, False)
    assert list(AwsEventParser().feed(aws_event("chunk", b"no json"))) == [b"no json"]
