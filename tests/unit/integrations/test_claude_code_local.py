"""The detector behind a hook, without a gateway."""

from __future__ import annotations

import pytest

from breakloop.integrations.claude_code import AFTER, FAILED, PROMPT, HookEvent, HookSession, load
from breakloop.integrations.claude_code_local import LocalHookBackend
from breakloop.model.decision import Decision

NOW = 1_000_000.0


class Agent:
    """Tells steps, each to a judge and a session as they come out of the file."""

    def __init__(self, sensitivity: str = "normal") -> None:
        self.sensitivity = sensitivity
        self.file = b""
        self.number = 0
        self.now = NOW

    def does(self, tool: str, arguments: object, result: str, *, failed: bool = False) -> Decision:
        self.number += 1
        self.now += 1
        event = HookEvent(
            FAILED if failed else AFTER, "s", "", tool, arguments, f"toolu_{self.number:08}", result, failed
        )
        session = load(self.file)
        decision = LocalHookBackend(b"key", self.sensitivity).decide(session, event, self.now)
        self.file = session.dump(self.now)
        return decision

    def hears(self, prompt: str) -> Decision:
        self.now += 1
        session = load(self.file)
        decision = LocalHookBackend(b"key").decide(session, HookEvent(PROMPT, "s", prompt=prompt), self.now)
        self.file = session.dump(self.now)
        return decision


def test_a_loop_is_warned_then_blocked() -> None:
    """As the built-in protection does, call by call, each in a process of its own (LD-4)."""
    agent = Agent()
    told = [agent.does("Bash", {"command": "cat x"}, "no such file") for _ in range(6)]
    assert [one.allowed for one in told] == [True] * 4 + [False] * 2
    assert [bool(one.notice) for one in told] == [False] * 2 + [True] * 4
    assert told[2].evidence == "`Bash` returned the same 12 bytes 3 times in a row"
    assert (told[4].kind, told[4].hit_count, told[4].cooldown_seconds, told[4].is_loop) == ("repeat", 5, 30, True)
    assert told[4].message.startswith(
        "Blocked: `Bash` returned the same 12 bytes 5 times in a row. Use the result you have"
    )
    assert told[4].fingerprint == told[5].fingerprint


def test_failures_are_seen_earlier() -> None:
    """An error that comes again (LD-4)."""
    agent = Agent()
    told = [agent.does("Edit", {"file": "a"}, "String not found.", failed=True) for _ in range(4)]
    assert [bool(one.notice) for one in told] == [False, True, True, True]
    assert not told[3].allowed
    assert told[3].kind == "failure"


def test_a_healthy_agent_is_untouched() -> None:
    """A hundred steps, each with news (LD-4)."""
    agent = Agent()
    told = [agent.does("Read", {"path": f"{n}.py"}, f"def function_{n}(): return {n * 37}") for n in range(100)]
    assert {one.notice for one in told} == {""}


def test_after_the_cooldown_it_passes_once() -> None:
    """And is blocked for longer then (LD-4)."""
    agent = Agent()
    for _ in range(5):
        agent.does("Bash", {"command": "make"}, "error 1")
    agent.now += 30
    assert agent.does("Bash", {"command": "make"}, "error 1").allowed
    assert agent.does("Bash", {"command": "make"}, "error 1").cooldown_seconds == 60


def test_a_person_voids_what_was_counted() -> None:
    """Fresh user text (LD-4)."""
    agent = Agent()
    for _ in range(4):
        agent.does("Bash", {"command": "make"}, "error 1")
    assert agent.hears("Please try once more, I have changed the Makefile.").notice == ""
    assert agent.does("Bash", {"command": "make"}, "error 1").allowed


def test_sub_agents_and_long_texts() -> None:
    """A result of any length is judged; two that differ in the middle are two."""
    agent = Agent()
    told = [agent.does("Read", {"path": "big"}, "a" * 100_000 + str(n) + "b" * 100_000) for n in range(5)]
    assert all(one.allowed for one in told)


@pytest.mark.parametrize(("sensitivity", "at"), [("relaxed", 6), ("normal", 5), ("strict", 4)])
def test_sensitivity(sensitivity: str, at: int) -> None:
    """How early it blocks (LD-4)."""
    agent = Agent(sensitivity)
    told = [agent.does("Grep", {"pattern": "x"}, "No matches found").allowed for _ in range(9)]
    assert told.index(False) + 1 == at


def test_what_is_kept_between_calls_is_small() -> None:
    """A session is a few kilobytes, whatever its length."""
    agent = Agent()
    for number in range(50):
        agent.does("Read", {"path": str(number)}, "line\n" * 1000)
    assert len(agent.file) < 10_000
    assert isinstance(load(agent.file), HookSession)


def test_tools_that_are_made_to_be_asked_again() -> None:
    """Who polls is warned four times later, and stopped at last (LD-6)."""
    agent = Agent()
    told = [agent.does("BashOutput", {"bash_id": "1"}, "running") for _ in range(30)]
    first = [bool(one.notice) for one in told].index(True)
    assert first >= 8
    assert not told[-1].allowed


def test_half_a_character_is_no_fault() -> None:
    """JSON can spell it, and some tools return it (S-3)."""
    agent = Agent()
    told = [agent.does("Bash\ud800", {"command": "\udfff"}, "\ud800") for _ in range(3)]
    assert told[2].notice
    assert agent.hears("\ud800").allowed
