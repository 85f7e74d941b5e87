"""From what a detector found to what is done about it."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from breakloop.detect.counting import DetectorConfig, DetectorIdentity
from breakloop.detect.stateful import Detection, SeverityActions
from breakloop.store.ops import CountFingerprint, FingerprintCount, FingerprintSpec, Observation
from tests.builders import call

WHO = DetectorIdentity(lambda _: "caller", lambda _: "agent", lambda _: ())
SPEC = FingerprintSpec(60.0, 1, sliding=True, cooldown_s=30.0, at_once=True)
TERMS = DetectorConfig("steps", "p", 0, "reject", 429, frozenset(), None)


class Found(NamedTuple):
    """A finding."""

    window: bytes = b"new"
    level: int = 2
    kind: str = "repeat"
    evidence: str = "`read` returned the same 9 bytes 5 times"
    identity: str = "ab" * 8
    fresh: bool = True


def ladder() -> SeverityActions:
    return SeverityActions(TERMS, ("steer", "reject", "kill"), SPEC, WHO)


@pytest.mark.parametrize(("level", "action"), [(1, "steer"), (2, "reject"), (3, "kill"), (4, "kill")])
def test_the_ladder(level: int, action: str) -> None:
    """Notice, block and stop have actions of their own; what denies cools down, what does not is noted (LD-5)."""
    op = ladder().operation(Found(), level, "project", 0)
    assert op is not None
    assert isinstance(op.owner, Detection)
    assert op.owner.action == action
    if level == 1:
        assert isinstance(op, Observation)
    else:
        assert isinstance(op, CountFingerprint)
        assert (op.key, op.spec) == ("cnt:project:p:0:" + "ab" * 8, SPEC)


def test_nothing_found_is_nothing_to_do() -> None:
    assert ladder().operation(Found(), 0, "project", 0) is None


def test_shadow_counts_apart() -> None:
    """Under its own name space (E-1)."""
    op = ladder().operation(Found(), 2, "project", 2)
    assert isinstance(op, CountFingerprint)
    assert op.key.startswith("shadow:cnt:project:")


def test_what_the_client_is_told() -> None:
    """Short and exact, with how long and what to do (A-3)."""
    op = ladder().operation(Found(), 2, "project", 0)
    assert isinstance(op, CountFingerprint)
    seen = op.owner
    loop = seen.finding(op, FingerprintCount(3, True, True, 29.2))
    assert (loop.kind, loop.fingerprint, loop.cooldown_s, loop.fresh) == ("repeat", "ab" * 8, 30, True)
    assert loop.message.startswith("Blocked: `read` returned the same 9 bytes 5 times. Do something else, or finish")
    assert "stays blocked for 30 seconds; a different step passes at once" in loop.message
    assert seen.note(loop).startswith("You repeat yourself: `read` returned the same 9 bytes 5 times.")
    assert (seen.delay_ms(3), seen.delay_ms(10_000), seen.sender(call())) == (300, 30_000, ("caller", "agent"))


def test_what_is_only_noted_says_whether_it_was_told_before() -> None:
    """One loop is notified once (LD-4)."""
    for fresh in (True, False):
        op = ladder().operation(Found(fresh=fresh), 1, "project", 0)
        assert isinstance(op, Observation)
        assert op.owner.finding(op, FingerprintCount(1)).fresh is fresh


def test_what_is_remembered_against_whoever_loops() -> None:
    """A release clears it, and nothing of others whose names begin alike (G-1)."""
    op = ladder().operation(Found(), 2, "project:s:me", 0)
    assert isinstance(op, CountFingerprint)
    assert op.owner.window_keys == ("win:project:s:me:",)


def test_a_throttle_grows_with_the_loop() -> None:
    """Count x 100 ms; what does not count is one (LD-5)."""

    class Counted(NamedTuple):
        window: bytes = b""
        level: int = 1
        kind: str = "repeat"
        evidence: str = "the same 7 times"
        identity: str = "ab" * 8
        fresh: bool = True
        hits: float = 7.5

    assert (Detection(TERMS, "throttle", Counted(), WHO).hits, Detection(TERMS, "throttle", Found(), WHO).hits) == (
        7,
        1,
    )


def test_what_stands_aside_is_told_with_the_evidence() -> None:
    op = ladder().operation(Found(), 1, "project", 0, "only noted")
    assert op is not None
    assert isinstance(op.owner, Detection)
    assert op.owner.evidence == "`read` returned the same 9 bytes 5 times; only noted"
