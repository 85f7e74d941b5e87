"""What the engine is told of streams that repeat themselves: which calls are guarded, what is counted, what is told."""

from __future__ import annotations

import pytest

from tests.builders import Json, at, bundle, chat, policy, user, world

STEPS = {"similarity": "steps"}
OFF = STEPS | {"stream_guard": False}
GLOBAL = {"enabled": True, "reason": "first week", "expires_at": at(3600)}


@pytest.mark.parametrize(
    ("blocks", "mode", "top", "expected"),
    [
        ([STEPS], "enforce", {}, 1),
        ([OFF], "enforce", {}, 0),
        ([OFF, STEPS], "enforce", {}, 1),
        ([STEPS], "shadow", {}, 2),
        ([STEPS], "enforce", {"global_shadow": GLOBAL}, 2),
    ],
)
def test_whose_answers_are_guarded(blocks: list[Json], mode: str, top: Json, expected: int) -> None:
    """Those of calls that an enforced `steps` block looks at; in shadow it is only told (LD-8)."""
    made = world(bundle(policy("p", loop=blocks, mode=mode), **top))
    asked = chat(user("Go on"))
    made.engine.decide(asked)
    assert asked.decision.guards_stream == expected


def test_what_no_policy_guards_is_guarded_by_default() -> None:
    """The built-in protection, which a policy in shadow does not switch off (B-6)."""
    for data in (None, bundle(policy("p", loop=STEPS, mode="shadow"), defaults={})):
        asked = chat(user("Go on"))
        world(data).engine.decide(asked)
        assert asked.decision.guards_stream == 1


@pytest.mark.parametrize(
    ("guards", "action", "cut", "shadow"), [(1, "cut", 1, False), (1, "warn", 0, False), (2, "cut", 0, True)]
)
def test_what_is_counted_and_told(guards: int, action: str, cut: int, shadow: bool) -> None:
    """Evidence is short and exact; only a cut that was made counts as one (LD-8, G-2)."""
    made = world(bundle(policy("p", loop=STEPS)))
    asked = chat(user("Go on"), headers={"x-agent-id": "writer"})
    made.engine.decide(asked)
    asked.decision.guards_stream = guards
    made.engine.repeated(asked, action, "the same 212 characters", 9)
    assert made.engine.tally.cut == cut
    (told,) = made.named("loop.detected")
    assert told["evidence"] == "the same 212 characters 9 times in one answer"
    fields = ("kind", "action", "shadow", "hit_count", "model", "agent")
    assert [told[name] for name in fields] == ["stream", action, shadow, 9, "gpt-x", "writer"]
    assert told["caller"]
