"""Loop detection in the bundle: kinds, defaults, ladders."""

from __future__ import annotations

from typing import Any

import pytest

from breakloop.policy import schema
from tests.unit.policy.said import messages


def test_defaults_of_the_loop_kinds() -> None:
    """LD-1 to LD-4: the documented defaults."""
    exact = schema.ExactLoop(enabled=True, window_seconds=9, threshold_identical_requests=3)
    tail, simhash = schema.TailLoop(similarity="tail"), schema.SimhashLoop(similarity="simhash")
    steps = schema.StepsLoop(similarity="steps")
    assert (exact.action_for("block"), exact.window, exact.concurrent_free, exact.retry_free) == (
        "reject",
        "idle",
        16,
        10,
    )
    assert (tail.tail_messages, tail.max_hits, tail.window_seconds, tail.cooldown_seconds) == (3, 5, 60, 30)
    assert (tail.cooldown_growth, tail.cooldown_max_seconds, tail.action_for("block")) == (2, 900, "reject")
    assert (simhash.window_requests, simhash.threshold_score, simhash.action_for("block")) == (20, 10, "kill")
    assert (simhash.weights.prompt, simhash.weights.response, simhash.weights.tool) == (1, 2, 1.5)
    assert [steps.action_for(s) for s in ("notice", "block", "stop")] == ["warn", "reject", "reject"]


def test_a_single_action_leaves_notices_as_warnings() -> None:
    """LD-5: one `action` is for loops; a mere notice warns."""
    block = schema.StepsLoop(similarity="steps", action="kill")
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
    """LD-5: ladders rise."""
    ladder = schema.Ladder.model_validate(said)
    assert (ladder.notice, ladder.block, ladder.stop) == steps


@pytest.mark.parametrize("ladder", [5, {"block": 5}, {"notice": ["x"]}])
def test_a_broken_ladder_is_refused_without_a_crash(ladder: Any) -> None:
    assert messages(schema.TailLoop, {"similarity": "tail", "ladder": ladder})
