"""One block of `simhash`: scores requests of one agent, and hears their answers."""

from __future__ import annotations

from breakloop.detect.counting import AllowList, DetectorConfig, DetectorIdentity
from breakloop.detect.simhash import SimhashDetector, SimhashScorer
from breakloop.detect.stateful import CallReaders, Detection, SeverityActions
from breakloop.model.call import Answer, Step
from breakloop.store.ops import CountFingerprint, FingerprintSpec
from tests.builders import call

WHO = DetectorIdentity(lambda _: "caller", lambda _: "agent", lambda _: ())
SPEC = FingerprintSpec(60.0, 1, sliding=True, cooldown_s=30.0, at_once=True)
STEP = Step("", (), (), (), ("Convert this page to JSON, please, and nothing else at all.",), (), 1, 10)


def block(*, step: Step | None = STEP, allow: AllowList | None = None) -> SimhashDetector:
    config = DetectorConfig("simhash", "p", 0, "kill", 429, frozenset(), allow)
    ladder = SeverityActions(config, ("warn", "kill", "kill"), SPEC, WHO)
    return SimhashDetector(config, ladder, CallReaders(lambda _: step, lambda _: "a:me", WHO), SimhashScorer())


def test_similar_prompts_and_answers_add_up() -> None:
    """Five earlier prompts alike and four answers alike: 1 x 5 + 2 x 4 = 13 > 10 (LD-3)."""
    made, window, found = block(), b"", []
    for _ in range(6):
        scored = made.evaluate(call(), window, 7.0)
        assert scored is not None
        found.append(scored)
        window = made.answered(scored.window, Answer(200, "I am sorry, I cannot do that for you.", complete=True))
    assert [one.level for one in found] == [0, 0, 0, 0, 0, 2]
    scored = found[-1]
    assert (scored.kind, len(scored.identity)) == ("simhash", 16)
    assert scored.evidence.startswith("score 13 is over 10: of the last 5 requests 5 had a similar prompt")
    op = made.operation(call(), scored, "project", 0)
    assert isinstance(op, CountFingerprint)
    assert isinstance(op.owner, Detection)
    assert op.owner.action == "kill"


def test_calls_without_a_step_and_allowed_ones_are_left_alone() -> None:
    assert block(step=None).evaluate(call(), b"", 7.0) is None
    assert block(allow=AllowList({}, {"agent": 10.0}, {}, {}, {})).evaluate(call(), b"", 7.0) is None
