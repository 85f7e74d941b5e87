"""State in this process: what fails is counted and told, and stops nobody."""

from __future__ import annotations

from typing import Any

from breakloop.clock import FakeClock
from breakloop.detect.stateful import DetectorSlot, StatefulDetector
from breakloop.engine.decision_state import state_of
from breakloop.engine.engine import LocalStore
from breakloop.model.call import Answer, Call, Usage
from breakloop.model.counters import Tally
from breakloop.store.limit_ops import BucketSpec
from breakloop.store.memory import MemoryStore
from breakloop.store.ops import AdjustCharge, FingerprintSpec, Settle
from tests.builders import FailingStore, bundle, call, chat, exact, policy, world
from tests.unit.detect.reading import CONFIG, Reader

SETTLE = [Settle(FingerprintSpec(60.0, 3), "ld:k", 0.0, 1)]
CORRECT = [AdjustCharge(BucketSpec(1.0, 10.0), "tb:k", 4.0)]


def test_every_failure_is_told() -> None:
    """Counted, logged, allowed (LD-7, S-4)."""
    told: list[tuple[Call, str]] = []
    local = LocalStore(FailingStore(), FakeClock(), Tally(), lambda call, error: told.append((call, str(error))))
    asked = call()
    state_of(asked).windows = [("win:a", [DetectorSlot(StatefulDetector(CONFIG, Reader()), 0)])]
    local.settle(asked, SETTLE, failed=True)
    local.correct(asked, CORRECT)
    local.answered(asked, Answer(200))
    assert told == [(asked, "the store is gone")] * 3


def test_corrections_reach_the_store() -> None:
    """What was used beyond the estimate is taken (L-3)."""
    store = MemoryStore()
    local = LocalStore(store, FakeClock(100.0), Tally(), lambda *_: None)
    local.correct(call(), CORRECT)
    assert store._limits["buckets"]["tb:k"][1] == 6.0


def test_a_call_is_settled_here_unless_it_was_decided_elsewhere() -> None:
    """The state of its decision names the store (S-3)."""
    here = world(bundle(policy("p", loop=exact(3))))
    asked, other = chat(), chat()
    asked.tracked = other.tracked = True
    told: list[bool] = []

    class Elsewhere:
        def settle(self, _call: Call, _ops: object, *, failed: bool) -> None:
            told.append(failed)

    for one in (asked, other):
        here.engine.decide(one)
    elsewhere: Any = Elsewhere()
    state_of(other).settlement, state_of(other).ticket = elsewhere, tuple(SETTLE)
    here.engine.settle(asked, Answer(500, usage=Usage(1, 1)))
    here.engine.settle(other, Answer(500))
    assert (here.engine.tally.forgiven, told) == (1, [True])
