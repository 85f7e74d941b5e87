"""What loop detectors have in common in the bundle: actions, ladders, cooldowns."""

from __future__ import annotations

from typing import Any

import pytest

from breakloop.policy.schema.loops import ActionsBySeverity, Cooldowns, StepsLoop, TailLoop
from tests.unit.policy.said import messages


def test_a_single_action_leaves_notices_as_warnings() -> None:
    """One `action` is for loops; a mere notice warns (LD-5)."""
    block = StepsLoop(similarity="steps", action="kill")
    assert [block.action_for(s) for s in ("notice", "block", "stop")] == ["warn", "kill", "kill"]


@pytest.mark.parametrize(
    ("said", "steps"),
    [
        ({}, ("warn", "reject", "reject")),
        ({"block": "throttle"}, ("warn", "throttle", "reject")),
        ({"block": "kill"}, ("warn", "kill", "kill")),
        ({"notice": "kill"}, ("kill", "kill", "kill")),
        ({"notice": "steer", "block": "reject", "stop": "kill"}, ("steer", "reject", "kill")),
    ],
)
def test_a_step_that_is_left_out_is_at_least_the_one_before(said: dict[str, str], steps: tuple[str, ...]) -> None:
    """A step that is left out is at least the one before: ladders rise (LD-5)."""
    ladder = ActionsBySeverity.model_validate(said)
    assert (ladder.notice, ladder.block, ladder.stop) == steps


@pytest.mark.parametrize("ladder", [5, {"block": 5}, {"notice": ["x"]}])
def test_a_broken_ladder_is_refused_without_a_crash(ladder: Any) -> None:
    assert messages(TailLoop, {"similarity": "tail", "ladder": ladder})


@pytest.mark.parametrize(
    ("said", "wrong"),
    [
        ({"cooldown_seconds": 900}, []),
        ({"cooldown_seconds": 0, "cooldown_max_seconds": 0}, []),
        ({"cooldown_seconds": 901}, ["must be at most cooldown_max_seconds (900), got 901"]),
        ({"cooldown_max_seconds": 29}, ["must be at least cooldown_seconds (30), got 29"]),
        ({"cooldown_growth": 0.5}, ["must be at least 1, got 0.5"]),
    ],
)
def test_cooldowns(said: dict[str, float], wrong: list[str]) -> None:
    """The first is never longer than the longest, and none is shorter than the one before (LD-2)."""
    assert messages(Cooldowns, said) == wrong
