"""Commits over two slots: which script has what, what is given back, and that all together are as one commit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import permutations
from typing import Any

import msgspec

from breakloop.errors import StateError
from breakloop.store.limit_ops import BreakerSpec, BucketSpec, BudgetSpec, ChargeBudget, CheckBreaker, TakeTokens
from breakloop.store.memory import MemoryStore
from breakloop.store.ops import (
    AdjustCharge,
    BreakerResult,
    CommitResult,
    CountFingerprint,
    Deny,
    FingerprintCount,
    FingerprintSpec,
    Observation,
    Op,
    Settle,
    StoredWindow,
    WindowWrite,
    denies,
)
from breakloop.store.redis.scripts import redis_key
from breakloop.store.redis.store import ShardedCommit, ShardedStore, arranged
from tests.each import each
from tests.stores import NO_LIMITER, NO_OWNER, NO_RULE

NOW = 1_800_000_000.0
LATER = NOW + 86_400
TEN = BucketSpec(1.0, 10.0)
DAY = BudgetSpec(10)
LOOP = FingerprintSpec(60.0, 1)
FLIGHT = FingerprintSpec(60.0, 5, concurrent_free=2)
RATE = BreakerSpec(100.0, 60.0)
AGENT, PROJECT = "p|a", "p"


def own(cost: float = 1.0, group: int = 0) -> TakeTokens:
    """A limit of the agent's."""
    return TakeTokens(TEN, f"tb:{AGENT}:x", cost, NO_LIMITER, NO_RULE, group)


def all_together(cost: int = 1, group: int = 0) -> ChargeBudget:
    """A budget that all agents share."""
    return ChargeBudget(DAY, f"cb:{PROJECT}:y", cost, LATER, NO_LIMITER, NO_RULE, group)


def breaker(where: str, group: int = 0) -> CheckBreaker:
    return CheckBreaker(RATE, f"brk:{where}:z", 7.0, NO_LIMITER, NO_RULE, group)


def seen(where: str = AGENT, spec: FingerprintSpec = LOOP, *, tracked: bool = False) -> CountFingerprint:
    return CountFingerprint(spec, f"ld:{where}:f", NO_OWNER, tracked=tracked)


class Slots:
    """A memory store for each place: what Redis would do there. Keeps the places that were asked, in their order."""

    def __init__(self) -> None:
        self.stores: dict[str, MemoryStore] = {}
        self.asked: list[str] = []
        self.given_back = 0  # charges and flights

    def at(self, key: str) -> MemoryStore:
        place = key.removeprefix("shadow:").split(":")[1]
        self.asked.append(place)
        return self.stores.setdefault(place, MemoryStore())

    def commit(self, ops: Sequence[Op], now: float = NOW) -> CommitResult:
        spread = ShardedCommit(ops, AGENT)
        while (part := spread.next()) is not None:
            key = next((op.key for op in part if not isinstance(op, Deny | Observation)), f"x:{AGENT}:")
            spread.took(self.at(key).commit(part, now))
        charges, flights = spread.give_back()
        self.given_back += len(charges) + len(flights)
        for charge in charges:
            self.at(charge.key).correct([charge], now)
        for flight in flights:
            self.at(flight.key).settle([flight], now, failed=False)
        return spread.committed()

    def used(self, op: TakeTokens | ChargeBudget) -> float:
        """What is used of a limit."""
        free: Op = (
            TakeTokens(op.spec, op.key, 0, NO_LIMITER, NO_RULE) if isinstance(op, TakeTokens) else all_together(0)
        )
        [result] = self.at(op.key).commit([free], NOW).results
        assert isinstance(result, float | int)
        return TEN.burst - result if isinstance(op, TakeTokens) else result


def test_each_place_is_asked_once_the_agents_first() -> None:
    """Whatever the order; what has no key is told wherever it matters (E-5)."""
    ops: list[Op] = [all_together(), seen(), Deny(NO_OWNER, 1), breaker(AGENT, 2), own(), breaker(PROJECT)]
    assert arranged(ops, AGENT) == [(AGENT, [1, 3, 4]), (PROJECT, [0, 5])]
    slots = Slots()
    assert slots.commit(ops) == MemoryStore().commit(ops, NOW)
    assert slots.asked == [AGENT, PROJECT]


def test_only_a_breaker_waits_for_what_stands_before_it() -> None:
    """It counts nobody who was denied before it in its group, and what it has counted stays (CB-1)."""
    ops: list[Op] = [all_together(), breaker(AGENT), own(), breaker(PROJECT), breaker(AGENT, 1)]
    assert arranged(ops, AGENT) == [(AGENT, [2, 4]), (PROJECT, [0]), (AGENT, [1]), (PROJECT, [3])]
    together: list[Op] = [own(), breaker(AGENT), all_together()]
    assert arranged(together, AGENT) == [(AGENT, [0, 1]), (PROJECT, [2])]  # one script has an order of its own
    first: list[Op] = [seen(PROJECT, FingerprintSpec(60.0, 1, denies=False)), breaker(AGENT)]
    assert arranged(first, AGENT) == [(AGENT, [1]), (PROJECT, [0])]  # a mere warning denies nobody


def test_a_decision_has_the_time_of_its_first_commit() -> None:
    """That is the one of the agent's counts, which are taken back by it (LD-6)."""
    spread = ShardedCommit([seen(), all_together()], AGENT)
    for at in (NOW, NOW + 1):
        assert spread.next() is not None
        spread.took(CommitResult([FingerprintCount(1) if at == NOW else 1], at=at))
    assert spread.next() is None
    assert spread.committed().at == NOW


def test_what_the_project_denies_is_given_back_to_the_agent() -> None:
    """A budget that all share is spent; the agent's own limit is as it was, and its count stands (E-4, L-2)."""
    slots = Slots()
    slots.commit([all_together(10)])
    done = slots.commit([seen(), own(4.0), all_together(1)])
    assert (done.results, done.denied_at) == ([FingerprintCount(1), 6.0, 11], 2)
    assert slots.given_back == 1
    assert (slots.used(own()), slots.used(all_together())) == (0.0, 10)
    assert slots.commit([seen()]).results == [FingerprintCount(2, True, True, 60.0)]


def test_a_flight_that_the_project_denies_is_over() -> None:
    """Nobody joins a request that was denied (LD-6)."""
    slots = Slots()
    slots.commit([all_together(10)])
    asked: list[Op] = [seen(spec=FLIGHT, tracked=True), all_together(1)]
    assert slots.commit(asked).denied_at == 1
    [result] = slots.commit([seen(spec=FLIGHT, tracked=True)]).results
    assert isinstance(result, FingerprintCount)
    assert (result.hits, result.flight > 0) == (2, True)


def test_what_the_agent_denies_does_not_reach_the_project() -> None:
    """A looping agent costs the slot of all others nothing, unless something there is to count it (E-4)."""
    slots = Slots()
    slots.commit([seen()])
    slots.asked.clear()
    done = slots.commit([seen(), breaker(PROJECT), all_together(3)])
    assert (done.denied_at, done.results[1:], slots.asked) == (0, [None, None], [AGENT])
    slots.asked.clear()
    assert slots.commit([seen(), all_together(3, group=1)]).results[1] == 3  # of a shadow policy's own budget
    assert slots.commit([breaker(PROJECT), seen()]).results[0] == BreakerResult(False, 7.0)
    assert slots.commit([seen(PROJECT), seen()]).results[0] == FingerprintCount(1)
    assert slots.asked == [AGENT, PROJECT] * 3
    assert slots.used(all_together()) == 0  # what would pass is not charged where the call is denied


def test_a_commit_that_does_not_matter_is_left_out_and_those_behind_it_are_made() -> None:
    slots = Slots()
    elsewhere = TakeTokens(TEN, "tb:q:x", 1.0, NO_LIMITER, NO_RULE, 1)
    done = slots.commit([own(11.0), all_together(3), elsewhere])
    assert (done.results, slots.asked) == ([-1.0, None, 9.0], [AGENT, "q"])


def test_a_denial_that_stands_earlier_counts_though_it_is_found_later() -> None:
    """`denied_at` is the first in the order of the operations, and what stands behind it was not looked at (E-4)."""
    slots = Slots()
    slots.commit([all_together(10)])
    done = slots.commit([all_together(1), own(11.0)])
    assert (done.results, done.denied_at) == ([11, None], 0)


def test_a_shadow_policy_gives_back_its_own() -> None:
    """What it would have denied keeps its own limits from being charged, and nobody else's (E-3)."""
    slots = Slots()
    done = slots.commit(
        [own(2.0, group=1), TakeTokens(TEN, f"tb:{AGENT}:w", 3.0, NO_LIMITER, NO_RULE), all_together(11, group=1)]
    )
    assert (done.denied_at, done.results) == (-1, [8.0, 7.0, 11])
    assert slots.used(own()) == 0.0
    assert slots.used(TakeTokens(TEN, f"tb:{AGENT}:w", 0.0, NO_LIMITER, NO_RULE)) == 3.0
    slots.commit(
        [TakeTokens(TEN, f"tb:{AGENT}:w", 3.0, NO_LIMITER, NO_RULE), own(2.0, group=1), all_together(11, group=1)]
    )
    assert slots.used(own()) == 0.0


@each(
    "op, result, denied",
    [
        (own(), -0.1, True),
        (own(), 0.0, False),
        (own(), None, False),
        (all_together(), 11, True),
        (all_together(), 10, False),
        (breaker(AGENT), BreakerResult(True, 1.0), True),
        (breaker(AGENT), BreakerResult(False, 1.0), False),
        (seen(), FingerprintCount(2, True), True),
        (seen(), FingerprintCount(2), False),
        (seen(spec=FingerprintSpec(60.0, 1, denies=False)), FingerprintCount(2, True), False),
        (seen(), FingerprintCount(2, True, mixed=True), False),
        (seen(), FingerprintCount(2, True, landed=1), False),
        (seen(), None, False),
        (Deny(NO_OWNER), None, True),
        (Observation(NO_OWNER), None, False),
    ],
)
def test_what_denies(op: Op, result: Any, denied: bool) -> None:
    assert denies(op, result) is denied


SOME: Sequence[Op] = (
    Deny(NO_OWNER),
    Deny(NO_OWNER, 1),
    own(4.0),
    own(11.0),
    own(11.0, group=1),
    all_together(3),
    all_together(11),
    all_together(11, group=1),
    seen(),
    seen(PROJECT),
    breaker(AGENT),
    breaker(PROJECT),
    breaker(PROJECT, 1),
)


@each("ops", permutations(SOME, 3))
def test_every_order_has_the_results_of_one_commit(ops: Sequence[Op]) -> None:
    """And what is denied is not charged (E-4)."""
    slots, together = Slots(), MemoryStore()
    assert slots.commit(ops) == together.commit(ops, NOW)
    for free in (own(0.0), all_together(0)):
        [charged] = together.commit([free], NOW).results
        assert slots.at(free.key).commit([free], NOW).results == [charged]


# -- the store ---------------------------------------------------------------------------------------------------------


class Told:
    """Nodes that keep what they are sent."""

    def __init__(self) -> None:
        self.sent: list[tuple[bytes, ...]] = []
        self.waiting: list[Callable[[Any], None]] = []

    def send(self, key: bytes, args: tuple[bytes, ...], then: Callable[[Any], None]) -> None:
        assert key in args
        self.sent.append(args)
        self.waiting.append(then)

    def each(self) -> list[Callable[..., None]]:
        return []

    def scripts(self) -> list[list[bytes]]:
        """The keys of each script."""
        return [list(args[3 : 3 + int(args[2])]) for args in self.sent]


WRITE = WindowWrite(f"win:{AGENT}:s:1:", 0, b"x", 60.0)


def test_what_is_of_one_place_is_one_script() -> None:
    """Also what only concerns the project, or nothing at all; windows and counts of the agent's go together (S-2)."""
    nodes = Told()
    store = ShardedStore(nodes)
    store.commit([seen(), own()], [WRITE], print)
    store.commit([all_together(), breaker(PROJECT)], (), print)
    store.commit([Deny(NO_OWNER), seen()], (), print)
    store.settle([Settle(FLIGHT, f"ld:{AGENT}:f", NOW, 1)], print, failed=True)
    store.correct([AdjustCharge(DAY, f"cb:{PROJECT}:y", 1)], print)
    assert nodes.scripts() == [
        [redis_key(WRITE.key), redis_key(f"ld:{AGENT}:f"), redis_key(f"tb:{AGENT}:x")],
        [redis_key(f"cb:{PROJECT}:y"), redis_key(f"brk:{PROJECT}:z")],
        [redis_key(f"ld:{AGENT}:f")],
        [redis_key(f"ld:{AGENT}:f")],
        [redis_key(f"cb:{PROJECT}:y")],
    ]


def test_a_window_that_moved_on_leaves_the_project_alone() -> None:
    """The agent's slot is asked first, so that nothing has to be given back (E-5, S-2)."""
    nodes, got = Told(), list[Any]()
    ShardedStore(nodes).commit([all_together(), seen()], [WRITE], got.append)
    nodes.waiting.pop()([b"1800000000", b"w\0\0\0\0\0\0\0@new"])
    assert got == [CommitResult([], -1, {WRITE.key: StoredWindow(2, b"new")})]
    assert len(nodes.sent) == 1


def test_the_agents_window_is_written_there_though_only_the_project_counts() -> None:
    """Both in one script would be keys of two slots (S-2)."""
    nodes = Told()
    ShardedStore(nodes).commit([all_together()], [WRITE], print)
    nodes.waiting.pop()(msgspec.msgpack.encode([NOW, -1]))
    assert nodes.scripts() == [[redis_key(WRITE.key)], [redis_key(f"cb:{PROJECT}:y")]]


def test_an_error_of_either_script_is_the_commits() -> None:
    """Whoever asked decides without the store; what was charged before it stays so (S-3)."""
    for answers in ([StateError("gone")], [b"\x93\xcb\x41\xda\xd2\x74\x80\x00\x00\x00\xff\x05", StateError("gone")]):
        nodes, got = Told(), list[Any]()
        ShardedStore(nodes).commit([own(), all_together()], (), got.append)
        for answer in answers:
            nodes.waiting.pop()(answer)
        assert [str(one) for one in got] == ["gone"]
        assert len(nodes.sent) == len(answers)


def test_settling_and_correcting_go_to_each_place() -> None:
    """One answer for both, the sum or the first error; nothing to do is answered at once (L-3, LD-6)."""
    nodes, got = Told(), list[Any]()
    store = ShardedStore(nodes)
    store.settle(
        [Settle(FLIGHT, f"ld:{where}:f", NOW, 1) for where in (AGENT, PROJECT, AGENT)], got.append, failed=True
    )
    assert [len(keys) for keys in nodes.scripts()] == [2, 1]
    nodes.waiting.pop()(0)
    nodes.waiting.pop()(2)
    both = [AdjustCharge(TEN, f"tb:{AGENT}:x", 1), AdjustCharge(DAY, f"cb:{PROJECT}:y", 1)]
    store.correct(both, got.append)
    nodes.waiting.pop()(0)
    nodes.waiting.pop()(0)
    store.correct(both, got.append)
    nodes.waiting.pop()(StateError("first"))
    nodes.waiting.pop()(StateError("second"))
    store.settle([], got.append, failed=True)
    store.correct([], got.append)
    assert [str(one) for one in got] == ["2", "None", "first", "0", "None"]


def test_a_denial_is_answered_before_what_it_gives_back() -> None:
    """The agent's charge and its flight are taken back by two more scripts, which nobody waits for (L-2, LD-6)."""
    nodes, got = Told(), list[Any]()
    ShardedStore(nodes).commit([seen(spec=FLIGHT, tracked=True), own(4.0), all_together()], (), got.append)
    nodes.waiting.pop()(msgspec.msgpack.encode([NOW, -1, [1, 5], 6]))
    assert (len(nodes.sent), got) == (2, [])
    nodes.waiting.pop()(msgspec.msgpack.encode([NOW, 0, 11]))
    assert got == [CommitResult([FingerprintCount(1, False, False, 0.0, 5), 6, 11], 2)]
    assert nodes.scripts()[2:] == [[redis_key(f"tb:{AGENT}:x")], [redis_key(f"ld:{AGENT}:f")]]
    failed, *_ = msgspec.msgpack.decode(nodes.sent[3][4])
    assert failed is False  # the count stands


def test_a_count_without_a_flight_is_not_ended() -> None:
    nodes, got = Told(), list[Any]()
    ShardedStore(nodes).commit([seen(), own(4.0), all_together()], (), got.append)
    nodes.waiting.pop()(msgspec.msgpack.encode([NOW, -1, 1, 6]))
    nodes.waiting.pop()(msgspec.msgpack.encode([NOW, 0, 11]))
    assert (len(got), nodes.scripts()[2:]) == (1, [[redis_key(f"tb:{AGENT}:x")]])


def test_a_request_that_passes_gives_nothing_back() -> None:
    nodes, got = Told(), list[Any]()
    ShardedStore(nodes).commit([own(4.0), all_together()], (), got.append)
    nodes.waiting.pop()(msgspec.msgpack.encode([NOW, -1, 6]))
    nodes.waiting.pop()(msgspec.msgpack.encode([NOW, -1, 10]))
    assert (len(nodes.sent), got) == (2, [CommitResult([6, 10], -1)])
