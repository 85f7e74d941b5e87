"""Small recorded sessions, written for the tests, and a bundle to judge them by."""

from __future__ import annotations

from typing import Any

from breakloop.clock import FakeClock
from breakloop.detect.counting import BuiltinLoopGuard
from breakloop.model.call import Answer
from breakloop.policy.compile import compile_bundle
from breakloop.policy.descriptors import ContextSettings, Descriptors
from breakloop.policy.load import load_text
from breakloop.replay.run import ReplaySetup
from breakloop.replay.sessions import Delta, RecordedSession, RecordedTurn, SessionLabel

TAIL = "{similarity: tail}"
WARN = "{similarity: tail, max_hits: 2, action: warn}"


def rig(block: str = TAIL, more: str = "") -> ReplaySetup:
    """Return a bundle whose default loop detection is this block."""
    clock = FakeClock()
    descriptors = Descriptors(ContextSettings(secret=b"test"), clock)
    text = f"bundle_version: 1\ndefaults: {{loop_detection: {block}}}\n{more or 'policies: []'}\n"
    bundle = load_text(text.encode(), "b.yaml").bundle
    return ReplaySetup(descriptors, compile_bundle(bundle, "", descriptors, b"test", BuiltinLoopGuard()), clock.now())


def asks(text: str, at_s: float | None = None, answer: str = "No.", agent: str = "") -> RecordedTurn:
    """Return a turn that knows nothing of the ones before."""
    return RecordedTurn(
        Delta("", 0, [{"role": "user", "content": text}]), Answer(200, answer, complete=True), agent, at_s
    )


def stuck(count: int) -> list[RecordedTurn]:
    """Return turns that all ask the same."""
    return [asks("Is it done?") for _ in range(count)]


def busy(count: int) -> list[RecordedTurn]:
    """Return turns that ask something new each time."""
    words = ("roof", "door", "wall", "cellar", "stairs", "lamp", "floor")
    return [asks(f"Describe the {word} of the house.") for word in words[:count]]


def session(name: str = "s", *, loop: bool | None = None, by: str = "", source: str = "") -> RecordedSession:
    """Return a session."""
    return RecordedSession(name, source, "worker", "m", label=SessionLabel(loop, by))


def own_line(name: str, count: int, **more: Any) -> dict[str, Any]:
    """Return a session in our own format that asks the same thing again and again."""
    turn = {"request_messages_delta": [{"role": "user", "content": "Is it done?"}], "response": {"content": "No."}}
    return {"id": name, "agent": "worker", "model": "m", "turns": [turn] * count, **more}
