"""`breakloop hook claude-code`: an event on standard input, an answer on standard output, and never a fault of ours."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from breakloop.__main__ import main
from breakloop.cli.main import OK, USAGE, run
from breakloop.clock import FakeClock
from breakloop.integrations.claude_code import FOLDER, GatewayHookBackend, HookOptions, answered
from breakloop.model.decision import Decision
from breakloop.testing import StandInLLM, ThreadedLLM, body

ALLOWED = body(b"").with_headers(("X-Breakloop-Request-Id", "r-1"))


@pytest.fixture(autouse=True)
def _environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BREAKLOOP_DATA_DIR", str(tmp_path))
    for name in ("BREAKLOOP_URL", "BREAKLOOP_SECRET", "BREAKLOOP_TOKEN"):
        monkeypatch.delenv(name, raising=False)


class Claude:
    """Asks the hook about each event, as Claude Code does."""

    def __init__(self, root: Path, clock: FakeClock, options: HookOptions) -> None:
        self.root = root
        self.clock = clock
        self.options = options
        self.ran = 0

    def tell(self, kind: str, **fields: Any) -> dict[str, Any]:
        sent = {"hook_event_name": kind, "session_id": "s", "tool_name": "Bash", "tool_input": {"command": "make"}}
        self.clock.advance(0.1)
        return answered({**sent, **fields}, self.options, self.root, self.clock)

    def call(self, response: str = "error 1") -> dict[str, Any]:
        self.ran += 1
        number = f"toolu_{self.ran:08}"
        before = self.tell("PreToolUse", tool_use_id=number)
        return before or self.tell("PostToolUse", tool_use_id=number, tool_response=response)


@pytest.fixture
def claude(tmp_path: Path, clock: FakeClock) -> Claude:
    return Claude(tmp_path, clock, HookOptions())


def test_a_loop_is_warned_then_denied_then_stopped(claude: Claude) -> None:
    """Over calls that know of each other only by what was kept (P-3, LD-5)."""
    said = [claude.call() for _ in range(7)]
    inner = [one.get("hookSpecificOutput", {}) for one in said]
    assert said[:2] == [{}, {}]
    assert ["You repeat yourself" in one.get("additionalContext", "") for one in inner[2:]] == [True, True] + [
        False
    ] * 3
    assert "Blocked: `Bash` returned the same 7 bytes 5 times" in inner[4]["additionalContext"]
    assert [one.get("permissionDecision") for one in inner[5:]] == ["deny", "deny"]
    assert [one.get("continue") for one in said] == [None] * 6 + [False]


def test_a_person_gives_it_another_chance(claude: Claude) -> None:
    """What was blocked may be tried again (LD-4)."""
    for _ in range(6):
        claude.call()
    assert claude.tell("UserPromptSubmit", prompt="I have mended it, try again.") == {}
    assert claude.tell("PreToolUse") == {}


def test_a_healthy_agent_is_untouched(claude: Claude) -> None:
    """No answer to anything (P-3)."""
    assert [claude.call(f"compiled {n} of 30 files, {n * 31} lines") for n in range(30)] == [{}] * 30
    assert claude.tell("Stop", stop_hook_active=False) == {}
    assert claude.tell("SomethingNew") == {}
    assert claude.tell("PreToolUse", session_id="") == {}


def test_compaction_after_compaction(claude: Claude) -> None:
    """The user is told at the third one, and the run ends at the tenth; calls in between are counted on (LD-4)."""
    said = []
    for number in range(10):
        claude.call(f"page {number}: the same words as on every other page of this book")
        said.append(claude.tell("PreCompact", trigger="auto", custom_instructions=""))
    assert said[:2] == [{}, {}]
    assert all("context was cut" in one["systemMessage"] for one in said[2:9])
    assert said[9]["continue"] is False
    assert "context was cut" in said[9]["stopReason"]


@pytest.mark.parametrize("trigger", ["auto", "manual"])
def test_a_compaction_is_not_new_input(claude: Claude, trigger: str) -> None:
    """A loop goes on over it; one that the user asked for is not counted (LD-4)."""
    said = []
    for _ in range(5):
        said.append(claude.call())
        if trigger == "manual" or len(said) < 3:
            assert claude.tell("PreCompact", trigger=trigger) == {}
    assert "Blocked" in said[4]["hookSpecificOutput"]["additionalContext"]


def test_compactions_in_shadow(tmp_path: Path, clock: FakeClock) -> None:
    """The user is told what would have been done (E-1)."""
    claude = Claude(tmp_path, clock, HookOptions(shadow=True))
    said = []
    for number in range(10):
        claude.call(f"page {number}: the same words as on every other page of this book")
        said.append(claude.tell("PreCompact", trigger="auto"))
    assert "would tell: breakloop" in said[2]["systemMessage"]
    assert "would stop: " in said[-1]["systemMessage"]


def test_too_many_sub_agents(claude: Claude) -> None:
    """They are told how many there are; at 60, the session included, none is started until one has stopped. The run
    goes on (LD-12)."""
    told = [claude.tell("SubagentStart", agent_id=f"a{n}", agent_type="Explore") for n in range(59)]
    assert told[:23] == [{}] * 23
    assert "[breakloop] 25 agents of one tree are at work" in told[23]["hookSpecificOutput"]["additionalContext"]
    assert told[57]["hookSpecificOutput"]["hookEventName"] == "SubagentStart"
    for _ in range(4):
        denied = claude.tell("PreToolUse", tool_name="Task", tool_input={"prompt": "Look."})
        assert list(denied) == ["hookSpecificOutput"]
        assert denied["hookSpecificOutput"]["permissionDecision"] == "deny"
        assert "Not started: 61 agents" in denied["hookSpecificOutput"]["permissionDecisionReason"]
    assert claude.tell("PreToolUse", tool_name="Bash") == {}
    assert claude.tell("SubagentStop", agent_id="a3", agent_type="Explore", stop_hook_active=False) == {}
    assert claude.tell("PreToolUse", tool_name="Task", tool_input={"prompt": "Look."}) == {}
    assert claude.tell("SessionEnd", reason="other") == {}
    assert list((claude.root / FOLDER).iterdir()) == []


def test_sub_agents_in_turn(claude: Claude) -> None:
    """A hundred, each gone before the next begins, are no crowd; an event without an id is not counted (LD-12)."""
    for n in range(100):
        for kind in ("SubagentStart", "SubagentStop"):
            assert claude.tell(kind, agent_id=f"a{n}", agent_type="Explore") == {}
            assert claude.tell(kind) == {}
    assert claude.tell("PreToolUse", tool_name="Task") == {}


def test_the_end_of_a_session(claude: Claude) -> None:
    """What was kept of it goes."""
    claude.call()
    assert len(list((claude.root / FOLDER).iterdir())) == 1
    assert claude.tell("SessionEnd", reason="other") == {}
    assert list((claude.root / FOLDER).iterdir()) == []


def test_in_shadow_only_the_person_is_told(tmp_path: Path, clock: FakeClock) -> None:
    """In shadow only the person is told (E-1)."""
    claude = Claude(tmp_path, clock, HookOptions(shadow=True))
    said = [claude.tell("PostToolUse", tool_response="1", tool_use_id=f"toolu_{clock.now()}") for _ in range(5)]
    assert [list(one) for one in said] == [[], [], *[["systemMessage"]] * 3]
    assert list(claude.tell("PreToolUse")) == ["systemMessage"]


@pytest.fixture
def service() -> Iterator[ThreadedLLM]:
    with StandInLLM.in_thread() as running:
        yield running


def denial(**more: Any) -> Any:
    detail = {"error": "recursive_loop_detected", "message": "Blocked: by the gateway.", "cooldown_seconds": 30, **more}
    return body(json.dumps({"detail": detail}).encode(), status=429).with_headers(
        ("X-Breakloop-Request-Id", "r-2"), ("X-Breakloop-Reason", "loop_detected")
    )


def test_the_gateway_decides(service: ThreadedLLM, tmp_path: Path, clock: FakeClock) -> None:
    """Asked behind a call; a call that it has blocked is denied here, without asking again (D-3)."""
    claude = Claude(tmp_path, clock, HookOptions(url=service.url, agent="nightly"))
    service.next(ALLOWED, denial())
    assert claude.call() == {}
    assert "Blocked: by the gateway." in claude.call()["hookSpecificOutput"]["additionalContext"]
    assert claude.call()["hookSpecificOutput"]["permissionDecision"] == "deny"
    assert len(service.requests) == 2
    assert service.requests[0].header("x-agent-id") == "nightly"
    clock.advance(31)
    service.next(ALLOWED)
    assert claude.call() == {}


def test_a_throttle_is_waited_for(tmp_path: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """But not for longer than a hook may take (LD-5)."""
    waits: list[float] = []
    monkeypatch.setattr("breakloop.integrations.claude_code.time.sleep", waits.append)
    monkeypatch.setattr(GatewayHookBackend, "decide", lambda *_: Decision(delay_seconds=30.0))
    Claude(tmp_path, clock, HookOptions(url="http://127.0.0.1:9")).call()
    assert waits == [5.0]


class Ended(BaseException):
    """Instead of the end of the process."""


def ended(code: int) -> None:
    raise Ended(code)


def test_as_it_is_started(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Without options, no command line is parsed, and the answers are the same (P-3)."""
    monkeypatch.setattr(sys, "argv", ["breakloop", "hook", "claude-code"])
    monkeypatch.setattr("os._exit", ended)
    monkeypatch.setattr("gc.disable", lambda: None)
    said = []
    for number in range(5):
        event = {
            "hook_event_name": "PostToolUse",
            "session_id": "s",
            "tool_name": "Grep",
            "tool_input": {"pattern": "x"},
            "tool_use_id": f"toolu_{number:08}",
            "tool_response": "No matches found",
        }
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(json.dumps(event).encode())))
        with pytest.raises(Ended, match="0"):
            main()
        said.append(capsys.readouterr().out)
    assert said[0] == ""
    assert "Blocked: `Grep` returned the same" in json.loads(said[4])["hookSpecificOutput"]["additionalContext"]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"nonsense")))
    with pytest.raises(Ended, match="0"):
        main()
    assert capsys.readouterr().err == "breakloop: the hook failed; the call is allowed: JSONDecodeError\n"


def typed(sent: bytes, monkeypatch: pytest.MonkeyPatch, *flags: str) -> int:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(sent)))
    return run(["hook", "claude-code", *flags])


def test_the_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """JSON in, JSON out; nothing at all where there is nothing to say (P-3)."""
    said = []
    for number in range(3):
        event = {
            "hook_event_name": "PostToolUse",
            "session_id": "s",
            "tool_name": "Grep",
            "tool_input": {"pattern": "x"},
            "tool_use_id": f"toolu_{number:08}",
            "tool_response": "No matches found",
        }
        assert typed(json.dumps(event).encode(), monkeypatch, "--sensitivity", "strict") == OK
        said.append(capsys.readouterr().out)
    assert said[0] == ""
    assert "You repeat yourself" in json.loads(said[1])["hookSpecificOutput"]["additionalContext"]
    assert (tmp_path / "secret").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("sent", "flags"),
    [
        (b"", ()),
        (b"nonsense", ()),
        (b"[]", ()),
        (b'{"hook_event_name":"PostToolUse","session_id":"s"}', ("--url", "http://127.0.0.1:9")),
        (b'{"hook_event_name":"PostToolUse","session_id":"s"}', ("--url", "ftp://nowhere")),
    ],
)
def test_a_fault_allows(
    sent: bytes, flags: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 0 and no answer, so Claude Code goes on; a word about it, and nothing that was said (S-3)."""
    assert typed(sent, monkeypatch, *flags) == OK
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("breakloop: the hook failed; the call is allowed: ")
    assert "nonsense" not in err


def test_a_gateway_that_is_not_there_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line, with the URL and why; nobody's password is in it (S-3)."""
    event = b'{"hook_event_name":"UserPromptSubmit","session_id":"s","prompt":"canary"}'
    assert typed(event, monkeypatch, "--url", "http://ada:secret@127.0.0.1:9") == OK
    failed = "breakloop: the hook failed; the call is allowed: "
    assert capsys.readouterr().err == f"{failed}http://127.0.0.1:9: ConnectionRefusedError: Connection refused\n"
    assert typed(event, monkeypatch, "--url", "foo") == OK
    assert capsys.readouterr().err.startswith(f"{failed}url: is not the URL of a decision service")


def test_a_directory_that_cannot_be_written(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A directory that cannot be written: the same (S-3)."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("BREAKLOOP_DATA_DIR", str(tmp_path / "file"))
    assert typed(b'{"hook_event_name":"PreToolUse","session_id":"s"}', monkeypatch) == OK
    assert capsys.readouterr().out == ""


def test_a_wrong_flag_does_not_block(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 2 would; it is never used (P-3)."""
    assert typed(b"{}", monkeypatch, "--sensitivity", "none") == USAGE == 3
    assert run(["hook"]) == USAGE
