"""Loop detection in the bundle: kinds and their defaults."""

from __future__ import annotations

from breakloop.policy.schema.loops import ExactLoop, SimhashLoop, StepsLoop, TailLoop
from tests.unit.policy.said import messages


def test_defaults_of_the_loop_kinds() -> None:
    """The documented defaults (LD-1 to LD-4)."""
    exact = ExactLoop(enabled=True, window_seconds=9, threshold_identical_requests=3)
    tail, simhash = TailLoop(similarity="tail"), SimhashLoop(similarity="simhash")
    steps = StepsLoop(similarity="steps")
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


def test_what_a_tail_or_steps_block_says_of_its_cooldown() -> None:
    """Both have the same three fields, with the same check (LD-2, LD-4)."""
    for block in (TailLoop, StepsLoop):
        assert (block.model_fields["cooldown_seconds"].default, block.model_fields["cooldown_growth"].default) == (
            30,
            2,
        )
    for similarity in ("tail", "steps"):
        said = {"similarity": similarity, "cooldown_seconds": 60, "cooldown_max_seconds": 59}
        model = TailLoop if similarity == "tail" else StepsLoop
        assert messages(model, said) == ["must be at least cooldown_seconds (60), got 59"]
