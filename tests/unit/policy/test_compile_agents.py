"""`agents` of a bundle -> what the engine holds them to."""

from __future__ import annotations

from breakloop.detect.run_steps import RunStepsLimit
from breakloop.detect.simhash import SimhashDetector
from tests.builders import bundle, world


def test_what_is_said_of_agents() -> None:
    """A ceiling and a kill switch each become a detector; what says nothing is not there (B-1)."""
    agents = {
        "a": {"max_steps_per_run": 7},
        "b-*": {"kill_switch_enabled": True},
        "b-x*": {"kill_switch_enabled": True, "max_steps_per_run": 2},
        "idle": {"active": True},
    }
    made = world(bundle()).use(bundle(agents=agents)).agents
    assert made.terms

    def kinds(agent: str) -> list[type]:
        terms = made.find(agent)
        return [type(detector) for detector in terms.detectors] if terms else []

    assert kinds("a") == [RunStepsLimit]
    assert kinds("b-1") == [SimhashDetector]
    assert kinds("b-x1") == [RunStepsLimit, SimhashDetector]  # the longest pattern
    assert kinds("idle") == kinds("c") == []
    assert made.find("c") is None


def test_without_agents_nobody_looks() -> None:
    assert not world(bundle()).use(bundle()).agents.terms
