"""One decision on its way to a store, where agents have places of their own. All else that a decision asks of a store is
in test_remote.py."""

from __future__ import annotations

from breakloop.model.call import Answer
from breakloop.policy.descriptors import ContextSettings
from tests.builders import SECRET, Json, bucket, bundle, chat, exact, policy, tail, world
from tests.fake_remote import RemoteWorld, run
from tests.unit.engine.test_procedure import stuck
from tests.unit.engine.test_remote import STEPS, outcome, session_key, turn

BY_AGENT = ContextSettings(secret=SECRET, shard_by_agent=True)
RULES: Json = bundle(
    policy("p", bucket(rate=1, burst=9, keys=["agent:id"]), bucket("all", rate=1, burst=11), loop=[STEPS, tail()])
)


def test_the_same_verdicts_as_with_one_place() -> None:
    """And the same round trips: two, then one (E-5, E-7)."""

    def test() -> None:
        there, here = RemoteWorld(RULES, settings=BY_AGENT), world(RULES)
        for count in (0, 1, 1, 2, 3, 4, 5, 5, 6, 7, 7, 7, 8):
            assert outcome(there.decide(turn(count))) == outcome(here.engine.decide(turn(count)))
            there.here.clock.advance(2)
            here.clock.advance(2)
        assert there.store.asked == {"read": 1, "commit": 13}
        assert there.here.engine.tally.denied == here.engine.tally.denied

    run(test)


def test_each_agent_has_a_window_of_a_session() -> None:
    """Also where two agents name the same one (E-5)."""

    def test() -> None:
        there = RemoteWorld(bundle(policy("p", loop=STEPS)), settings=BY_AGENT)
        for agent in ("a", "b"):
            headers = {"authorization": "Bearer k", "x-agent-id": agent, "x-agent-session": "s"}
            asked = chat(*stuck(1), headers=headers)
            asked.tracked = True
            there.decide(asked)
            there.settle(asked, Answer(200, complete=True))
        kept = [key for key in there.remote.windows._windows if ":s:" in key]
        assert [key.split(":")[1] for key in kept] == ["default|a", "default|b"]
        assert len({key.split(":", 2)[2] for key in kept}) == 1

    run(test)


def test_without_agents_places_keys_are_as_they_were() -> None:
    """The default changes no key (S-2)."""

    def test() -> None:
        there = RemoteWorld(bundle(policy("p", bucket(keys=["agent:id"]), loop=[STEPS, exact()])))
        there.decide(turn(0))
        ops, windows = there.store.committed[-1]
        assert session_key(there) in windows
        assert {op.key.split(":")[1] for op in ops if hasattr(op, "key")} == {"default"}

    run(test)
