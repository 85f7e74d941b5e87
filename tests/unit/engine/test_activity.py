"""Sums and steps: what agents did, what a loop cost and what stopping it saved, and the picture that led to it."""

from __future__ import annotations

from breakloop.clock import FakeClock
from breakloop.config.settings import Settings
from breakloop.engine.activity import AGENTS_MOST, STEPS_KEPT, ActivityRecorder
from breakloop.engine.engine import Engine
from breakloop.model.call import Answer, Call, Usage
from breakloop.model.events import AgentUse, TreeNodeUse
from breakloop.pricing.prices import Prices
from tests.builders import Json, World, bucket, bundle, call, chat, exact, policy, world
from tests.unit.engine.test_procedure import stuck

STEPS: Json = {"similarity": "steps"}
MODEL = "gpt-4.1"


def recording(rules: Json) -> tuple[World, ActivityRecorder]:
    here = world(rules)
    return here, here.engine.recording()


def turn(count: int) -> Call:
    asked = chat(*stuck(count), model=MODEL, headers={"authorization": "Bearer k", "x-agent-id": "bot"})
    asked.tracked = True
    return asked


def test_requests_and_answers_are_summed_by_agent() -> None:
    """Agents appear on first sight, with what they used; taken away, sums begin anew (G-1)."""
    here, recorder = recording(bundle())
    asked = turn(0)
    here.engine.decide(asked)
    here.engine.settle(asked, Answer(200, usage=Usage(100, 20), complete=True))
    other = turn(1)
    here.engine.decide(other)
    here.engine.settle(other, Answer(500))
    [(who, use)] = recorder.take().agents.items()
    assert (who[0], who[2]) == ("default", "bot")
    assert who[1].startswith("key:")
    assert use == AgentUse(2, 0, 1, 100, 20, 0, here.clock.now(), MODEL)
    assert recorder.take().agents == {}


def test_money_is_that_of_the_price_list() -> None:
    """In micro-dollars, whether a policy counts money or not (L-5)."""
    from breakloop.app.build import price_list

    clock = FakeClock()
    prices: Prices = price_list(Settings.model_validate({}), clock).prices
    here = world(bundle())
    engine = Engine(here.store, clock, here.descriptors, prices=lambda: prices)
    engine.set_bundle(here.engine.bundle)  # type: ignore[arg-type]  # a world has one
    recorder = engine.recording()
    asked = turn(0)
    here.descriptors.chat(asked)
    engine.decide(asked)
    engine.settle(asked, Answer(200, usage=Usage(1_000_000, 100_000), complete=True))
    [use] = recorder.take().agents.values()
    assert use.cost_microusd == 2_000_000 + 800_000


def test_what_a_loop_cost_and_what_stopping_it_saved() -> None:
    """What passed within it by its answers; what was denied as estimated, with an answer like the last one (G-3)."""
    here, recorder = recording(bundle(policy("p", loop=STEPS)))
    for count in range(7):
        asked = turn(count)
        verdict = here.engine.decide(asked)
        if verdict.allowed:
            here.engine.settle(asked, Answer(200, usage=Usage(1000, 50), complete=True))
        here.clock.advance(3)
    taken = recorder.take()
    [loop] = [one for one in taken.loops.values() if one.stopped]
    assert (loop.stopped, sum(one.passed for one in taken.loops.values())) == (3, 2)
    assert sum(one.passed_tokens for one in taken.loops.values()) == 2 * 1050
    assert loop.stopped_tokens > 3 * 50
    [use] = taken.agents.values()
    assert (use.requests, use.denied) == (7, 3)


def test_a_detection_comes_with_the_steps_that_led_to_it() -> None:
    """Digests and names of tools, the newest last, with what was said about each (G-3)."""
    here, _ = recording(bundle(policy("p", loop=STEPS)))
    for count in range(6):
        here.engine.decide(turn(count))
        here.clock.advance(3)
    told = here.named("loop.detected")
    steps = told[-1]["steps"]
    assert isinstance(steps, list)
    assert [mark[1] for mark in steps] == ["", "read", "read", "read", "read"]
    assert len({mark[2] for mark in steps[1:]}) == len({mark[3] for mark in steps[1:]}) == 1
    assert [mark[-1] for mark in steps] == ["pass", "pass", "warn", "warn", "pass"]  # the last is being judged
    assert "no such file" not in repr(told)
    assert "steps" not in told[0] or len(str(told[0]["steps"])) < 20_000


def test_other_events_and_calls_without_steps_carry_none() -> None:
    """Plain HTTP has no steps."""
    here, recorder = recording(bundle(policy("p", loop=exact(2))))
    for _ in range(3):
        here.engine.decide(call("/x"))
    assert all("steps" not in data for data in here.named("loop.detected"))
    [use] = recorder.take().agents.values()
    assert (use.requests, use.denied) == (3, 2)


def test_shadow_verdicts_are_counted() -> None:
    """By policy, rule and reason (E-1)."""
    here, recorder = recording(bundle(policy("p", loop=exact(2), mode="shadow")))
    for _ in range(4):
        assert here.engine.decide(call("/x")).allowed
    [(key, count)] = recorder.take().shadow.items()
    assert (key[0], key[1], key[3], count) == ("default", "p", "loop_detected", 3)


def test_sums_and_steps_are_bounded() -> None:
    """Whoever invents names is summed with others (Y-2)."""
    here, recorder = recording(bundle(policy("p", loop=STEPS)))
    for number in range(AGENTS_MOST + 50):
        here.engine.decide(call("/x", headers={"x-agent-id": f"a{number}"}))
    agents = recorder.take().agents
    assert len(agents) == AGENTS_MOST + 1
    assert agents["default", "*", "*"].requests == 50
    for count in range(STEPS_KEPT + 20):
        here.engine.decide(turn(count % 3))
    assert max(len(trail) for trail in recorder._trails._young.values()) == STEPS_KEPT


def test_without_a_recorder_nothing_is_kept() -> None:
    """Hot path: nobody pays for what nobody wants."""
    here = world(bundle())
    here.engine.decide(turn(0))
    assert here.engine.recorder is None
    assert here.engine.recording() is here.engine.recording()


def test_what_passed_before_a_loop_was_recognised_is_counted() -> None:
    """Those that were counted passed, and cost what such a request costs; each detection adds its own (G-3)."""
    here, recorder = recording(bundle(policy("p", loop=exact(3))))
    asked = [turn(0) for _ in range(6)]
    for one in asked:
        if here.engine.decide(one).allowed:
            here.engine.settle(one, Answer(200, usage=Usage(1000, 50), complete=True))
    [loop] = recorder.take().loops.values()
    passed = 6 - loop.stopped
    assert (loop.passed, passed > 0) == (passed, True)
    assert loop.passed_tokens == passed * (len(asked[0].body) // 4 + 50)
    assert loop.passed_microusd * loop.stopped == loop.stopped_microusd * passed


def test_sessions_of_a_tree_are_summed() -> None:
    """Those that another one started, and from then on that one; a session alone is none (G-6)."""
    here, recorder = recording(bundle(policy("p", bucket(rate=1, burst=4))))

    def ask(session: str, parent: str = "") -> None:
        headers = {"authorization": "Bearer k", "x-agent-id": f"agent {session}", "x-agent-session": session}
        asked = chat(*stuck(0), model=MODEL, headers=headers | ({"x-agent-parent": parent} if parent else {}))
        asked.tracked = True
        if here.engine.decide(asked).allowed:
            here.engine.settle(asked, Answer(200, usage=Usage(100, 20), complete=True))

    for session, parent in (("root", ""), ("a", "root"), ("b", "a"), ("root", ""), ("b", "a")):
        ask(session, parent)
    trees = recorder.take().trees
    assert {(root, session) for _, _, root, session in trees} == {("root", "root"), ("root", "a"), ("root", "b")}
    found = {key[3]: use for key, use in trees.items()}
    now = here.clock.now()
    assert found["root"] == TreeNodeUse(1, 0, 120, 0, now, "agent root")
    assert found["b"] == TreeNodeUse(2, 1, 120, 0, now, "agent b", "a")
