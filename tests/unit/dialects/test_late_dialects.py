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
from breakloop.dialects.framing import form_of
from breakloop.model.call import Call
from breakloop.model.verdict import Verdict
from breakloop.testing import PATHS, Conversation
from tests.unit.dialects.parsing import read_chat
from tests.unit.dialects.recorded.everything import EVERYTHING
from tests.unit.dialects.recorded.reading import started
from tests.unit.dialects.test_new_dialect import Listener

LATE = {name: one for name, one in registry.DIALECTS.items() if isinstance(one, registry.LateDialect)}
TALKS = ("ollama_chat", "cohere_chat")
NOTE = "[breakloop] Change course. [/breakloop]"
Json = dict[str, Any]

each_late = pytest.mark.parametrize("name", LATE)
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


def test_a_prompt_takes_a_note() -> None:
    """A text to complete, too; but not one with a gap to fill (LD-5)."""
    dialect = registry.DIALECTS["ollama_generate"]
    noted = dialect.append_note(b'{"model":"m","prompt":"Go on."}', "Change course.")
    assert noted is not None
    assert json.loads(noted)["prompt"] == f"Go on.\n\n{NOTE}"
    assert dialect.append_note(b'{"model":"m","prompt":"Go on.","suffix":"end"}', "Change course.") is None


SAID = "Blocked: the same again. (recursive_loop_detected)"
ERRORS: dict[str, Json] = {
    "ollama_chat": {"error": SAID},
    "ollama_generate": {"error": SAID},
    "cohere_chat": {"id": "r-7", "message": SAID},
}


@each_late
def test_a_denial_has_the_shape_of_its_errors(name: str) -> None:
    """Next to `detail`, which all denials have (A-3)."""
    verdict = Verdict(allowed=False, reason="loop_detected", status=429, message="Blocked: the same again.")
    status, body = registry.denial_for(verdict, Call("POST", "/", request_id="r-7"), name)
    fields = json.loads(body)
    assert (status, fields.pop("detail")["error"]) == (429, "recursive_loop_detected")
    assert fields == ERRORS[name]


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
    assert answer.finish.lower() in {"length", "max_tokens"}
    assert reading.ending([0], 40) == b""


@each_late
def test_a_stopped_stream_ends_with_an_error(name: str) -> None:
    """An event that the dialect's own reader takes for an error (A-3)."""
    kinds = [one.content_type for one in STREAMED.values() if one.dialect == name]
    verdict = Verdict(allowed=False, reason="kill_switch", status=429, message="Stopped.")
    event = registry.DIALECTS[name].error_event(verdict, Call("POST", "/"))
    reading = started(name, kinds[0])
    reading.feed(event)
    answer = reading.answer(200, complete=True)
    assert (bool(answer.error), answer.complete) == (True, False)
