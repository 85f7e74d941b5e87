"""Blocks that remember -> their detectors."""

from __future__ import annotations

from breakloop.detect.joins import JoinDetector, JoinedStepsDetector
from breakloop.detect.rerun import RerunDetector
from breakloop.detect.simhash import SimhashDetector
from breakloop.detect.steps.detector import StepsDetector
from breakloop.detect.trees import TreeDetector
from breakloop.detect.unnamed_sessions import UnnamedSessionsDetector
from tests.builders import Json, bundle, chat, policy, user, world


def detectors(block: Json) -> list[object]:
    return list(world(bundle()).use(bundle(policy("p", loop=block))).policies[0].loops)


def test_steps_look_at_more_than_one_session() -> None:
    """Those for unnamed sessions first, because they tell whether the session is one of a crowd or a team (LD-4)."""
    joins, unnamed, spawn, rerun, joined, steps = detectors({"similarity": "steps"})
    assert isinstance(joins, JoinDetector)
    assert isinstance(unnamed, UnnamedSessionsDetector)
    assert isinstance(spawn, TreeDetector)
    assert isinstance(rerun, RerunDetector)
    assert isinstance(joined, JoinedStepsDetector)
    assert isinstance(steps, StepsDetector)
    assert joins.config is unnamed.config is spawn.config is joined.config is steps.config
    assert steps.guards_stream
    [*_, quiet] = detectors({"similarity": "steps", "stream_guard": False})
    assert isinstance(quiet, StepsDetector)
    assert not quiet.guards_stream


def test_a_score_kills_for_as_long_as_the_block_says() -> None:
    """A score kills for as long as the block says (LD-3)."""
    [score] = detectors({"similarity": "simhash", "quarantine_seconds": 60})
    assert isinstance(score, SimhashDetector)
    assert (score.config.action, score.config.quarantine_s) == ("kill", 60)


def test_thresholds_and_tools_of_a_block_hold() -> None:
    """What a block says of single kinds and tools reaches its detector (LD-4)."""
    here = world(bundle(policy("p", loop={"similarity": "steps", "thresholds": {"continue": [2, 2, 9]}})))
    messages = [user("Write a poem.")]
    verdicts = []
    for number in range(4):
        verdicts.append(here.engine.decide(chat(*messages)).allowed)
        messages += [{"role": "assistant", "content": f"Line {number} of all the lines"}, user("continue")]
        here.clock.advance(3)
    assert verdicts == [True, True, False, False]


def test_tools_are_read_from_the_last_messages() -> None:
    here = world(bundle())
    called = {"id": "1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    asked = chat(user("go"), {"role": "assistant", "content": None, "tool_calls": [called]}, user("on"))
    assert here.descriptors.tools(asked) == ("look",)
    assert here.descriptors.tools(asked, 1) == ()
