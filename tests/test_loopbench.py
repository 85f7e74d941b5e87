"""loopbench: its format, its sessions, the detectors that are libraries, its figures, and its page."""

from __future__ import annotations

import json
import re
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from bench.loopbench import __main__ as command
from bench.loopbench import generate, results, suite
from bench.loopbench.detectors import SIMPLE, Library, breakloop_engine, load
from bench.loopbench.gateway import MovedClock, Played
from bench.loopbench.results import Result, Score
from bench.loopbench.suite import Answer, FormatError, Request, Session, ToolCall, Turn
from breakloop.replay.sessions import RecordedBody
from breakloop.testing import SeenRequest

FOLDER = Path(suite.__file__).parent


def line(**more: Any) -> dict[str, Any]:
    turns = [{"at_s": 0, "path": "/v1/chat/completions", "body": {"model": "m", "messages": ["a"]}}]
    return {
        "format": "loopbench/1",
        "id": "some/chat",
        "about": "It repeats.",
        "dialect": "openai_chat",
        "loop": False,
        "headers": {"authorization": "Bearer sk-1"},
        "turns": turns,
    } | more


def session(name: str, bodies: list[str], **more: Any) -> Session:
    """A session whose requests have these bodies, one second apart."""
    turns = [
        Turn(
            Request(float(at), "/v1/chat/completions", {}, {"messages": [{"role": "user", "content": text}]}), Answer()
        )
        for at, text in enumerate(bodies)
    ]
    return Session(name, "About.", "openai_chat", bool(more.get("stop_by")), tuple(turns), **more)


def test_a_body_is_what_changed_since_the_turn_before() -> None:
    """Lists grow or are cut, members are replaced or removed; a reader and a writer agree."""
    bodies: list[dict[str, Any]] = [
        {"model": "m", "messages": ["a"], "stream": True},
        {"model": "m", "messages": ["a", "b", "c"], "stream": True},
        {"model": "n", "messages": ["a", "d"]},
        {"model": "n", "messages": []},
    ]
    written = [suite.changes(before, after) for before, after in zip([{}, *bodies], bodies, strict=False)]
    assert written[1] == {"messages": {"$keep": 1, "$add": ["b", "c"]}}
    assert written[2] == {"model": "n", "messages": {"$keep": 1, "$add": ["d"]}, "stream": {"$remove": True}}
    body: dict[str, Any] = {}
    for changes, expected in zip(written, bodies, strict=True):
        body = suite.changed(body, changes)
        assert body == expected


def test_a_line_becomes_a_session() -> None:
    """Headers of the session and of the turn, and an answer with the ids of its calls."""
    call = {"name": "look", "arguments": "{}", "id": "call_1"}
    second = {"at_s": 2.5, "path": "/v1/x", "headers": {"x-agent-id": "b"}, "body": {"model": "n"}}
    read = suite.session(
        line(turns=[line()["turns"][0] | {"answer": {"text": "Hm.", "calls": [call]}}, second], loop=True, stop_by=2)
    )
    first, last = read.turns
    assert first.answer == Answer(200, "Hm.", (ToolCall("look", "{}", "call_1"),))
    assert last.request.headers == {"authorization": "Bearer sk-1", "x-agent-id": "b"}
    assert last.request.content() == b'{"model":"n","messages":["a"]}'
    assert (last.request.at_s, read.stop_by, read.loop) == (2.5, 2, True)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"format": "loopbench/2"}, "the format is 'loopbench/2', expected 'loopbench/1'"),
        ({"turns": []}, "a session has turns"),
        ({"loop": True}, "the turn at which it should be stopped"),
        ({"turns": [{"at_s": 0, "body": {}}]}, "'path' is missing"),
    ],
)
def test_other_lines_are_refused(tmp_path: Path, wrong: dict[str, Any], message: str) -> None:
    """With the file and the line."""
    file = tmp_path / "own.jsonl"
    file.write_text(json.dumps(line()) + "\n" + json.dumps(line(**wrong)) + "\n")
    with pytest.raises(FormatError, match=f"own.jsonl, line 2: .*{re.escape(message)}"):
        list(suite.read(file))


@pytest.mark.slow
def test_sessions_are_those_of_the_corpus(tmp_path: Path) -> None:
    """The files in the repository are up to date, and a reader gets the requests of the corpus."""
    count = generate.write(tmp_path)
    for name in ("loops.jsonl", "healthy.jsonl"):
        same = (tmp_path / name).read_bytes() == (suite.SESSIONS / name).read_bytes()
        assert same, "run `make loopbench`"
    assert suite.digest() == suite.digest(tmp_path / "healthy.jsonl", tmp_path / "loops.jsonl")
    read = {one.id: one for one in suite.read()}
    assert len(read) == count
    for one in generate.chosen():
        turns = one.slice().turns
        for turn, known in zip(read[one.id].turns, turns, strict=True):
            assert isinstance(known.request, RecordedBody)
            assert turn.request.body == json.loads(known.request.body)
            assert turn.request.path == known.request.path
            assert turn.answer.status == known.answer.status
            assert [call.name for call in turn.answer.calls] == [call.name for call in known.answer.calls]


def test_sessions_follow_the_schema() -> None:
    """Every line, and nothing that the schema does not describe."""
    jsonschema: ModuleType = import_module("jsonschema")
    schema = json.loads((FOLDER / "schema.json").read_text())
    check = jsonschema.Draft202012Validator(schema)
    lines = [text for path in sorted(suite.SESSIONS.glob("*.jsonl")) for text in path.read_text().splitlines()]
    wrong = [error.message for text in lines for error in check.iter_errors(json.loads(text))]
    assert not wrong
    assert not check.is_valid(line(loop=True))
    assert not check.is_valid(line(more=1))
    assert check.is_valid(line())


def test_the_suite_has_loops_and_healthy_sessions_in_every_dialect() -> None:
    """Each session has a key of its own; ids of calls are those of the next request."""
    read = list(suite.read())
    assert {one.dialect for one in read} == set(generate.DIALECTS)
    assert min(sum(one.loop for one in read), sum(not one.loop for one in read)) > 50
    assert len({one.turns[0].request.headers["authorization"] for one in read}) == len(read)
    assert any(one.pauses_matter for one in read)
    chats = [one for one in read if one.dialect == "openai_chat" and one.turns[0].answer.calls]
    chat = next(one for one in chats if one.turns[0].answer.calls[0].id)  # actions in texts have none
    (call, *_) = chat.turns[0].answer.calls
    assert call.id in chat.turns[1].request.content().decode()


def test_a_library_is_asked_until_it_denies() -> None:
    """A new detector for each session."""
    exact = Library(SIMPLE["exact request x5"])
    same, other = session("same", ["a"] * 9, stop_by=5), session("other", [str(at) for at in range(9)])
    assert [exact.stopped_at(one) for one in (same, other, same)] == [5, None, 5]
    assert Library(breakloop_engine).stopped_at(same) == 6
    assert Library(breakloop_engine).stopped_at(other) is None


def test_simple_detectors_read_every_dialect() -> None:
    """The same call and the same result is a loop in any of them, whatever ids it has."""
    loops = [one for one in suite.read() if one.id.startswith("same_search/")]
    assert loops
    for one in loops:
        assert Library(SIMPLE["same action + result x4"]).stopped_at(one) == 5


def test_the_adapter_of_the_readme_works(monkeypatch: pytest.MonkeyPatch) -> None:
    """What readers copy."""
    code = re.findall(r"```python\n(.*?)```", (FOLDER / "README.md").read_text(), flags=re.DOTALL)[0]
    module = ModuleType("your_module")
    exec(code, module.__dict__)
    monkeypatch.setitem(__import__("sys").modules, "your_module", module)
    assert load("your_module:MyDetector").stopped_at(session("same", ["a"] * 9)) == 5


def test_figures() -> None:
    """Counted by hand: five equal turns of equal size, a loop that is missed, a healthy session that is stopped."""
    sessions = [
        session("late", ["a"] * 5, stop_by=3),
        session("early", ["a"] * 5, stop_by=3),
        session("missed", ["a"] * 5, stop_by=3),
        session("wrong", ["a"] * 5),
        session("right", ["a"] * 5),
        session("waits", ["a"] * 5, pauses_matter=True),
    ]
    played = {"late": 5, "early": 2, "missed": None, "wrong": 2, "right": None}
    result = Result("some", "1.0", "gateway", "left out", "d", played)
    found = results.score(result, sessions)
    assert found == Score(3, 2, 1, 0.5, 5 / 15, 2, 1, 1)
    row = results.table([result], sessions, "d").splitlines()[-1]
    assert row == "| some 1.0 | gateway | left out | 1 of 2 | 2 of 3 | 1 | +0.5 | 33% |"
    assert "| some 1.0 (suite `d`) |" in results.table([result], sessions, "other")


class DeniesAll:
    def decide(self, request: Request) -> bool:
        return False


def test_without_pauses_sessions_that_need_them_are_left_out() -> None:
    """They say nothing about a detector that does not see the pauses."""
    sessions = [session("waits", ["a"], pauses_matter=True), session("works", ["a"])]
    everything = Library(DeniesAll)
    assert results.play(everything, sessions, keeps_pauses=False) == {"works": 1}
    assert results.play(everything, sessions, keeps_pauses=True) == {"waits": 1, "works": 1}


def test_the_clock_of_a_gateway_only_goes_forward(tmp_path: Path) -> None:
    """Sessions follow each other; the file has the seconds that libfaketime adds."""
    clock = MovedClock(tmp_path)
    clock.move(90.0)
    added = (tmp_path / "clock").read_text()
    assert re.fullmatch(r"\+(90\.000|[0-8]?\d\.\d{3})\n", added)
    clock.move(10.0)
    assert (tmp_path / "clock").read_text() == added
    assert clock.now_s() >= 90.0


def test_answers_are_played_in_full() -> None:
    """Text, calls with their ids, and failures."""
    played = Played()
    played.show(Answer(200, "Hm.", (ToolCall("look", '{"at": 1}', "call_1"),)))
    assert (played.answer.text, played.answer.tools[0].id) == ("Hm.", "call_1")
    played.show(Answer(503))
    assert played.answer.status == 503
    asked, probe = SeenRequest("POST", "/v1/messages", "HTTP/1.1", []), SeenRequest("GET", "/", "HTTP/1.1", [])
    assert played.respond(asked) is played.respond(probe) is played.answer
    assert played.asked == 1


def test_results_are_files(tmp_path: Path) -> None:
    """One for each detector; the name of the file comes from its name."""
    result = Result("My detector, x5", "", "library", "kept", "d", {"a/chat": None, "b/chat": 4})
    assert result.save(tmp_path).name == "my-detector-x5.json"
    assert results.saved(tmp_path) == [result]


def test_the_page_shows_the_results() -> None:
    """The table is that of the files in the repository."""
    assert {"breakloop", *SIMPLE} <= {one.detector for one in results.saved()}
    text = command.PAGE.read_text(encoding="utf-8")
    assert text == command.page(text), "run `make loopbench`"


def test_an_own_detector_on_some_sessions(capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is written unless it is asked for."""
    before = sorted(results.RESULTS.iterdir())
    arguments = ["--library", "bench.loopbench.detectors:breakloop_engine", "--name", "own", "--only", "same_search/*"]
    assert command.main(arguments) == 0
    assert "| own | library | kept | 0 of 0 | 1 of 1 | 1 | +0 |" in capsys.readouterr().out
    assert sorted(results.RESULTS.iterdir()) == before
