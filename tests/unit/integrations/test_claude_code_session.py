"""What is remembered between two calls of a hook."""

from __future__ import annotations

import fcntl
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from breakloop.integrations import claude_code
from breakloop.integrations.claude_code import HookSession, load, open_session
from breakloop.model.decision import Decision
from breakloop.store.memory import MemoryFingerprints
from breakloop.store.ops import CountFingerprint, blocked_at_once
from tests.stores import NO_OWNER
from tests.unit.sdk.backends import DENIED, WARNED

NOW = 1_000_000.0
BLOCKED = replace(DENIED, cooldown_seconds=30, evidence="`Bash` returned the same 3 bytes 5 times in a row")


def new() -> HookSession:
    return HookSession({}, b"")


def test_a_blocked_call_stays_blocked(tmp_path: Path) -> None:
    """Until its cooldown is over; in another process, too (LD-4)."""
    with open_session(tmp_path / "hooks", "s", NOW) as session:
        assert session.before("call", NOW).allowed
        session.after("call", BLOCKED, NOW)
    with open_session(tmp_path / "hooks", "s", NOW) as session:
        denied = session.before("call", NOW + 10)
        assert (denied.allowed, denied.is_loop, denied.cooldown_seconds) == (False, True, 20)
        assert (denied.message, denied.kind, denied.evidence) == (BLOCKED.message, "repeat", BLOCKED.evidence)
        assert session.before("other", NOW + 10).allowed
        assert session.before("call", NOW + 30).allowed
        assert session.held == {}
    with open_session(tmp_path / "hooks", "another", NOW) as session:
        assert session.before("call", NOW).allowed


def test_blocks_in_a_row() -> None:
    """Counted before and behind a call; a step that nobody minds ends the row, a warned one does not."""
    session = new()
    session.after("call", BLOCKED, NOW)
    session.before("call", NOW)
    assert session.strikes == 2
    session.after("other", WARNED, NOW)
    assert session.strikes == 2
    session.after("other", Decision(), NOW)
    assert session.strikes == 0


def test_a_person_frees_everything() -> None:
    """Fresh user text passes at once (LD-4)."""
    session = new()
    session.after("call", BLOCKED, NOW)
    session.unblock()
    assert session.before("call", NOW).allowed
    assert session.strikes == 0


@pytest.mark.parametrize(("decision", "wait_s"), [(BLOCKED, 30), (replace(DENIED, retry_after=7), 7), (DENIED, 30)])
def test_how_long_it_is_held(decision: Decision, wait_s: int) -> None:
    """As long as the denial says, in the one way or the other."""
    session = new()
    session.after("call", decision, NOW)
    assert not session.before("call", NOW + wait_s - 0.1).allowed
    assert session.before("call", NOW + wait_s).allowed


def test_cooldowns_grow() -> None:
    """Blocked at once; after the cooldown the same passes once, and then the cooldown has grown (LD-4)."""
    session, spec = new(), blocked_at_once(30.0, 2.0, 50.0)
    assert session.cooldown("loop", spec, NOW) == 30
    assert session.cooldown("loop", spec, NOW + 10) == 20
    assert session.cooldown("loop", spec, NOW + 30) == 0
    assert session.cooldown("loop", spec, NOW + 31) == 50
    assert session.cooldown("loop", spec, NOW + 31 + 50 + 50) == 30
    assert session.cooldown("another", spec, NOW) == 30


def test_nothing_that_was_said_is_kept(tmp_path: Path) -> None:
    """A call is a digest, keyed; the file is for its owner only (Y-1)."""
    name = claude_code.call_digest(("Bash", '{"command":"echo canary"}'), b"key")
    with open_session(tmp_path / "hooks", "canary-session", NOW) as session:
        session.after(name, BLOCKED, NOW)
        session.window = b"\x00\n\xffwindow"
    (file,) = (tmp_path / "hooks").iterdir()
    assert "canary" not in file.name
    assert b"canary" not in file.read_bytes()
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.parent.stat().st_mode & 0o777 == 0o700
    assert load(file.read_bytes()).window == b"\x00\n\xffwindow"
    assert name != claude_code.call_digest(("Bash", '{"command":"echo canary"}'), b"other key")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"nonsense",
        b"[]\n",
        b'{"v":0,"strikes":3}\nxx',
        b"\xff\xfe\n",
        b'{"v":1,"held":[1]}\n',
        b'{"v":1,"steps":"x"}\n',
        b'{"v":1,"held":{"a":{}}}\n',
        b'{"v":1,"cooling":{"a":1}}\n',
    ],
)
def test_a_file_that_cannot_be_read_is_new(data: bytes) -> None:
    """Nothing is worse than a hook that fails each time (S-3)."""
    session = load(data)
    assert (session.strikes, session.window, session.held) == (0, b"", {})


def test_cooldowns_grow_as_those_of_a_store() -> None:
    """Hooks and servers block the same loop for the same times (LD-4)."""
    session, store, spec = new(), MemoryFingerprints(8), blocked_at_once()
    waits, now = [], NOW
    for _ in range(14):
        wait_s = session.cooldown("loop", spec, now)
        found = store.count(CountFingerprint(spec, "loop", NO_OWNER), now)
        assert wait_s == found.wait_s
        waits.append(wait_s)
        now += wait_s + 1
    assert waits == [30, 0, 60, 0, 120, 0, 240, 0, 480, 0, 900, 0, 900, 0]


def test_it_stays_small() -> None:
    """Of many only the newest are kept, and none that is over."""
    session = new()
    for number in range(200):
        session.after(f"call-{number}", replace(DENIED, cooldown_seconds=number + 1), NOW)
        session.cooldown(f"loop-{number}", blocked_at_once(1.0 + number, 1, 1), NOW)
    kept = json.loads(session.dump(NOW + 160).partition(b"\n")[0])
    assert len(kept["held"]) == 40
    assert len(kept["cooling"]) == 64


def test_what_was_left_behind_is_deleted(tmp_path: Path) -> None:
    """At the end of a session, its file and those that are a day old."""
    for owner in ("ended", "old", "live"):
        with open_session(tmp_path, owner, NOW):
            pass
    (tmp_path / "not-ours").write_text("x")
    for file in tmp_path.iterdir():
        os.utime(file, (NOW, NOW))
    os.utime(claude_code._file(tmp_path, "live"), (NOW + 10, NOW + 10))
    claude_code.delete_session(tmp_path, "ended", NOW + claude_code.KEPT_S + 5)
    assert {file.name for file in tmp_path.iterdir()} == {"not-ours", claude_code._file(tmp_path, "live").name}
    claude_code.delete_session(tmp_path / "nowhere", "x", NOW)


def test_one_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tools that run side by side: who waits too long gives up, and says so."""
    waits: list[float] = []
    monkeypatch.setattr("breakloop.integrations.claude_code.time.sleep", waits.append)
    with open_session(tmp_path, "s", NOW):
        pass
    with claude_code._file(tmp_path, "s").open("r+b") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(TimeoutError), open_session(tmp_path, "s", NOW):
            pass
    assert sum(waits) == pytest.approx(1)


def test_a_run_that_is_landed_makes_no_more_calls(tmp_path: Path) -> None:
    """In another process, too, and until a person replies (LD-10)."""
    landed = Decision(warning="loop_detected", note="Answer now.", landed=True)
    with open_session(tmp_path, "s", NOW) as session:
        session.after("call", landed, NOW)
        assert session.strikes == 0
    with open_session(tmp_path, "s", NOW) as session:
        assert [session.before(name, NOW).landed for name in ("call", "other")] == [True, True]
        assert (session.strikes, session.before("call", NOW).note) == (2, "Answer now.")
        session.unblock()
        assert session.before("call", NOW) == Decision()
