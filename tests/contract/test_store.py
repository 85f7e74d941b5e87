"""What every store does, one suite over all of them: one commit, counts always, limits all or none.

Money is in test_store_limits.py, windows and dropping in test_store_windows.py."""

from __future__ import annotations

import struct
from dataclasses import replace

import pytest

from breakloop.store.limit_ops import BucketSpec, TakeTokens
from breakloop.store.ops import (
    JOINED,
    CommitResult,
    CountFingerprint,
    Deny,
    FingerprintCount,
    FingerprintSpec,
    Observation,
    Op,
    Settle,
    Store,
)
from tests.redis_store import NewStore
from tests.stores import NO_LIMITER, NO_OWNER, NO_RULE

NOW = 1_800_000_000.0
TEN = BucketSpec(10.0, 10.0)
IDLE = FingerprintSpec(60.0, 2)
SLIDING = FingerprintSpec(60.0, 2, sliding=True)
COOLING = FingerprintSpec(60.0, 2, sliding=True, cooldown_s=30.0, growth=2.0, cooldown_max_s=100.0)
KINDS = {
    "idle": FingerprintSpec(60.0, 5, concurrent_free=2, retry_free=3),
    "sliding": FingerprintSpec(60.0, 5, sliding=True, concurrent_free=2, retry_free=3),
    "cooling": FingerprintSpec(
        60.0, 5, sliding=True, cooldown_s=30.0, cooldown_max_s=100.0, concurrent_free=2, retry_free=3
    ),
}


@pytest.fixture
def store(new_store: NewStore) -> Store:
    """An empty store of each kind."""
    return new_store()


def take(store: Store, *, cost: float = 1.0, key: str = "tb:k", spec: BucketSpec = TEN, now: float = NOW) -> float:
    result = store.commit([TakeTokens(spec, key, cost, NO_LIMITER, NO_RULE)], now).results[0]
    assert isinstance(result, float)
    return result


def hit(store: Store, spec: FingerprintSpec, now: float = NOW, key: str = "ld:k", limit: int = -1) -> FingerprintCount:
    result = store.commit([CountFingerprint(spec, key, NO_OWNER, own_limit=limit)], now).results[0]
    assert isinstance(result, FingerprintCount)
    return result


def hits(store: Store, spec: FingerprintSpec, *times: float) -> list[int]:
    return [hit(store, spec, NOW + at).hits for at in times]


# -- buckets -----------------------------------------------------------------------------------------------------------


def test_a_bucket_gives_what_is_left(store: Store) -> None:
    """What is left after the charge; less than nothing is a denial, by how much it fell short, and no charge (L-1)."""
    assert take(store, cost=4) == 6.0
    assert take(store, cost=7) == -1.0
    assert take(store, cost=6) == 0.0
    assert take(store, cost=0.5) == -0.5


def test_a_bucket_refills(store: Store) -> None:
    """By its rate, up to its burst (L-1)."""
    take(store, cost=10)
    assert take(store, cost=1, now=NOW + 0.5) == 4.0
    assert take(store, cost=1, now=NOW + 100) == 9.0


def test_a_bucket_forgives_rounding(store: Store) -> None:
    """Whoever waits as long as advised passes, whatever floats make of it; a millionth less does not (L-1)."""
    spec = BucketSpec(0.7, 10.0)
    assert 3 * 0.7 < 2.1
    for key in ("tb:a", "tb:b"):
        take(store, cost=10, key=key, spec=spec)
    assert take(store, cost=2.1, key="tb:a", spec=spec, now=NOW + 3) == 0.0
    assert take(store, cost=2.100001, key="tb:b", spec=spec, now=NOW + 3) == pytest.approx(-1e-6)


def test_a_bucket_denies_and_says_where(store: Store) -> None:
    """`denied_at` is the first enforced denial (E-4)."""
    ops = [
        TakeTokens(TEN, "tb:a", 1, NO_LIMITER, NO_RULE),
        TakeTokens(TEN, "tb:b", 11, NO_LIMITER, NO_RULE),
        TakeTokens(TEN, "tb:c", 12, NO_LIMITER, NO_RULE),
    ]
    done = store.commit(ops, NOW)
    assert done == CommitResult([9.0, -1.0, None], 1)


def test_limits_are_charged_all_or_none(store: Store) -> None:
    """A denial anywhere in the order charges nothing, before it or after it (E-4)."""
    ops = [
        TakeTokens(TEN, "tb:a", 1, NO_LIMITER, NO_RULE),
        TakeTokens(TEN, "tb:b", 11, NO_LIMITER, NO_RULE),
        TakeTokens(TEN, "tb:c", 1, NO_LIMITER, NO_RULE),
    ]
    store.commit(ops, NOW)
    assert [take(store, key=key) for key in ("tb:a", "tb:b", "tb:c")] == [9.0, 9.0, 9.0]


def test_a_refusal_holds_its_place(store: Store) -> None:
    """What is known to be denied beforehand denies in its turn, and charges nothing (E-3)."""
    done = store.commit(
        [
            TakeTokens(TEN, "tb:a", 1, NO_LIMITER, NO_RULE),
            Deny(NO_OWNER),
            TakeTokens(TEN, "tb:b", 1, NO_LIMITER, NO_RULE),
        ],
        NOW,
    )
    assert done == CommitResult([9.0, None, None], 1)
    assert take(store, key="tb:a") == 9.0


def test_groups_deny_for_themselves(store: Store) -> None:
    """A shadow group's denial keeps its own limits from being charged and nobody else's (E-1, E-2)."""
    ops = [
        TakeTokens(TEN, "shadow:a", 1, NO_LIMITER, NO_RULE, 1),
        TakeTokens(TEN, "shadow:b", 11, NO_LIMITER, NO_RULE, 1),
        TakeTokens(TEN, "shadow:c", 1, NO_LIMITER, NO_RULE, 2),
        TakeTokens(TEN, "tb:d", 1, NO_LIMITER, NO_RULE),
    ]
    done = store.commit(ops, NOW)
    assert done == CommitResult([9.0, -1.0, 9.0, 9.0], -1)
    keys = ("shadow:a", "shadow:b", "shadow:c", "tb:d")
    assert [take(store, key=key) for key in keys] == [9.0, 9.0, 8.0, 8.0]


def test_an_enforced_denial_charges_no_group(store: Store) -> None:
    """A request that did not pass costs shadow limits nothing either (E-4)."""
    store.commit(
        [TakeTokens(TEN, "shadow:a", 1, NO_LIMITER, NO_RULE, 1), TakeTokens(TEN, "tb:b", 11, NO_LIMITER, NO_RULE)], NOW
    )
    assert take(store, key="shadow:a") == 9.0


def test_a_clock_that_steps_back_stands_still(store: Store) -> None:
    """Nothing refills twice and nothing expires early (S-2)."""
    take(store, cost=10)
    assert take(store, now=NOW - 1) == -1.0
    assert take(store, now=NOW) == -1.0
    assert take(store, now=NOW + 0.1) >= -0.01


# -- repeats -----------------------------------------------------------------------------------------------------------


def test_repeats_trip_over_their_limit(store: Store) -> None:
    """`limit` pass, the next trips; the first one that does is fresh (LD-1)."""
    assert [hit(store, IDLE) for _ in range(2)] == [FingerprintCount(1), FingerprintCount(2)]
    assert hit(store, IDLE) == FingerprintCount(3, True, True, 60.0)
    assert hit(store, IDLE) == FingerprintCount(4, True, False, 60.0)


def test_idle_counts_live_after_the_last_hit(store: Store) -> None:
    """Each hit refreshes the window; exactly at its end the count is gone (LD-1)."""
    assert hits(store, IDLE, 0, 59, 118, 177.9, 238) == [1, 2, 3, 4, 1]
    assert hits(store, IDLE, 238, 298) == [2, 1]


def test_sliding_counts_forget_one_by_one(store: Store) -> None:
    """What is in the window counts; a hit leaves exactly a window after it came (LD-1)."""
    assert hits(store, SLIDING, 0, 20, 40, 59.9, 60, 80, 100) == [1, 2, 3, 4, 4, 4, 4]


def test_a_sliding_count_stays_bounded(store: Store) -> None:
    """However often it comes, and it still trips (Y-2)."""
    last = [hit(store, SLIDING) for _ in range(2000)][-1]
    assert last.tripped
    assert 300 <= last.hits <= 320


def test_a_limit_of_its_own(store: Store) -> None:
    """An announced number of repeats raises the limit of that request (LD-6)."""
    for number in range(1, 6):
        assert hit(store, IDLE, limit=5) == FingerprintCount(number)
    assert hit(store, IDLE, limit=5).tripped


def test_cooldown(store: Store) -> None:
    """Blocks for its time, counts on, and ends exactly then (LD-2)."""
    assert hits(store, COOLING, 0, 0) == [1, 2]
    assert hit(store, COOLING) == FingerprintCount(3, True, True, 30.0)
    assert hit(store, COOLING, NOW + 10) == FingerprintCount(4, True, False, 20.0)
    assert hit(store, COOLING, NOW + 29.5) == FingerprintCount(5, True, False, 0.5)
    assert hit(store, COOLING, NOW + 30) == FingerprintCount(1)


def test_cooldowns_grow_and_are_forgotten(store: Store) -> None:
    """Doubled up to the maximum; as much quiet as that, and it begins again (LD-2)."""
    now, found = NOW, []
    for _ in range(4):
        tripped = [hit(store, COOLING, now) for _ in range(3)][-1]
        found.append(tripped.wait_s)
        now += tripped.wait_s
    assert found == [30.0, 60.0, 100.0, 100.0]
    assert [hit(store, COOLING, now + 100) for _ in range(3)][-1].wait_s == 30.0


def test_a_cooldown_is_remembered_from_the_last_hit(store: Store) -> None:
    """A hit after the cooldown keeps it for as long again, also one that trips nothing (LD-2)."""
    assert [hit(store, COOLING) for _ in range(3)][-1].wait_s == 30.0
    assert hits(store, COOLING, 129, 228) == [1, 1]  # without the first of them it would be over at 130
    assert [hit(store, COOLING, NOW + 327) for _ in range(3)][-1].wait_s == 60.0
    until = 327 + 60 + 100.0
    assert [hit(store, COOLING, NOW + until) for _ in range(3)][-1].wait_s == 30.0


def test_what_trips_at_once_passes_once_after_each_cooldown(store: Store) -> None:
    """A loop that was recognised already is blocked now; its limit is for those after a cooldown (LD-4)."""
    at_once = replace(COOLING, limit=1, at_once=True)
    found = [hit(store, at_once, NOW + at) for at in (0, 10, 30, 31, 90, 91)]
    assert [result.tripped for result in found] == [True, True, False, True, True, False]
    assert [result.wait_s for result in found] == [30.0, 20.0, 0.0, 60.0, 1.0, 0.0]
    assert [result.fresh for result in found] == [True, False, False, True, False, False]


def test_what_is_noted_denies_nobody(store: Store) -> None:
    """It holds its place, and limits behind it are charged (LD-5)."""
    done = store.commit([Observation(NO_OWNER), TakeTokens(TEN, "tb:k", 1.0, NO_LIMITER, NO_RULE)], NOW)
    assert (done.results, done.denied_at) == ([None, 9.0], -1)
    assert take(store) == 8.0


def test_repeats_count_whatever_is_denied(store: Store) -> None:
    """In the order before and after a denial, of every group (E-4)."""
    ops: list[Op] = [
        CountFingerprint(IDLE, "ld:a", NO_OWNER),
        TakeTokens(TEN, "tb:a", 11, NO_LIMITER, NO_RULE),
        CountFingerprint(IDLE, "ld:b", NO_OWNER),
        CountFingerprint(IDLE, "shadow:ld:c", NO_OWNER, 1),
    ]
    for number in (1, 2):
        done = store.commit(ops, NOW)
        assert done == CommitResult(
            [FingerprintCount(number), -1.0, FingerprintCount(number), FingerprintCount(number)], 1
        )
    assert store.commit(ops, NOW).denied_at == 0


def test_a_tripped_repeat_denies_its_group(store: Store) -> None:
    """The limits behind it are not looked at, unless it only warns (E-4, E-2)."""
    warns = FingerprintSpec(60.0, 0, denies=False)
    denies = FingerprintSpec(60.0, 0)
    done = store.commit(
        [CountFingerprint(warns, "ld:w", NO_OWNER), TakeTokens(TEN, "tb:a", 1, NO_LIMITER, NO_RULE)], NOW
    )
    assert (done.results[1], done.denied_at) == (9.0, -1)
    done = store.commit(
        [CountFingerprint(denies, "ld:d", NO_OWNER), TakeTokens(TEN, "tb:a", 1, NO_LIMITER, NO_RULE)], NOW
    )
    assert (done.results[1], done.denied_at) == (None, 0)
    done = store.commit(
        [CountFingerprint(denies, "ld:s", NO_OWNER, 1), TakeTokens(TEN, "tb:a", 1, NO_LIMITER, NO_RULE)], NOW
    )
    assert (done.results[1], done.denied_at) == (8.0, -1)


def test_a_detection_and_its_cooldown_deny(store: Store) -> None:
    """The request that begins it, those within it, and none after it; a warning denies nobody (E-4, LD-2)."""
    for key, spec in (("ld:d", COOLING), ("ld:w", replace(COOLING, denies=False))):
        ops: list[Op] = [
            TakeTokens(TEN, f"tb:{key}", 1, NO_LIMITER, NO_RULE),
            CountFingerprint(spec, key, NO_OWNER),
            Observation(NO_OWNER),
        ]
        denied = [store.commit(ops, NOW + at).denied_at for at in (0, 0, 0, 10, 30)]
        assert denied == ([-1, -1, 1, 1, -1] if spec.denies else [-1] * 5)


# -- traffic -----------------------------------------------------------------------------------------------------------

FIVE = FingerprintSpec(60.0, 5, sliding=True, cooldown_s=30.0, growth=2.0, cooldown_max_s=100.0)


def sent(
    store: Store, text: str, now: float = NOW, *, opening: bool = True, sender: str = "s", spec: FingerprintSpec = FIVE
) -> FingerprintCount:
    """Count a request of a sender; its key ends in `text`."""
    op = CountFingerprint(spec, f"cnt:p:b:{text:0>32}", NO_OWNER).within(f"mix:p:b:{sender}", opening=opening)
    done = store.commit([op], now)
    (result,) = done.results
    assert isinstance(result, FingerprintCount)
    assert (done.denied_at == 0) is (result.tripped and not result.mixed)
    return result


def last(store: Store, texts: str) -> FingerprintCount:
    """Send requests with these letters, a second apart; return the result of the last one."""
    return [sent(store, text, NOW + at) for at, text in enumerate(texts)][-1]


@pytest.mark.parametrize(
    ("texts", "mixed"),
    [
        ("aaaaaa", False),
        ("bcdefghijklmaaaaaa", False),  # in a row, whatever it sent before
        ("abaaaaa", False),  # two of seven are different
        ("abababababa", False),  # two requests in turn
        ("abcabcabcabcabcabca"[:16], False),  # three in turn
        ("aabaacaa", True),  # three of eight
        ("aabaacaaa", False),  # a third is not more than a third
        ("abacadaeafa", True),  # every other one is another
        ("bcdefghijklmnopqaaaaaba", True),
        ("bcdefghijklmnopqaaaaabaaaaaa", False),
    ],
)
def test_equal_openings_in_mixed_traffic_are_only_reported(store: Store, texts: str, mixed: bool) -> None:
    """Equal requests are a loop if they come in a row, or if most of what their sender sent lately is equal (LD-2)."""
    result = last(store, texts)
    assert (result.tripped, result.mixed) == (True, mixed)
    assert result.wait_s == (0.0 if mixed else 30.0)


def test_a_count_that_is_only_reported_goes_on(store: Store) -> None:
    """There is no cooldown, and the first one beyond the limit is the fresh one (LD-2)."""
    last(store, "abacadaeaf")
    after = [sent(store, text, NOW + 20 + at) for at, text in enumerate("agahaiaj")]
    assert [(one.hits, one.fresh) for one in after[::2]] == [(6, True), (7, False), (8, False), (9, False)]
    assert [one.hits for one in after[1::2]] == [1] * 4


def test_work_is_stopped_in_mixed_traffic(store: Store) -> None:
    """Only openings are alike where many people share a key (LD-2)."""
    last(store, "abacadaeaf")
    result = sent(store, "a", NOW + 20, opening=False)
    assert (result.tripped, result.mixed, result.wait_s) == (True, False, 30.0)


def test_traffic_belongs_to_one_sender_and_is_forgotten(store: Store) -> None:
    """What others sent says nothing, and neither does what was sent before a pause (LD-2)."""
    for at, text in enumerate("bcdefghijklm"):
        sent(store, text, NOW + at, sender="other")
    assert not last(store, "aabaaaa").mixed
    assert [sent(store, text, NOW + 11 + at, sender="other") for at, text in enumerate("xxyxxxx")][-1].mixed
    assert not [sent(store, text, NOW + 77 + at, sender="other") for at, text in enumerate("vvwvvvv")][-1].mixed


def test_only_the_last_requests_of_a_sender_are_kept(store: Store) -> None:
    """Eighteen: six different ones of eighteen are a third (LD-2)."""
    assert not last(store, "0123456789" + "bbccddeeffb" + "aaaaaba").mixed
    assert last(store, "0123456789" + "iijjkkllmni" + "hhhhhih").mixed


def test_a_long_limit_is_in_a_row_with_as_many_as_are_kept(store: Store) -> None:
    """`max_hits` may be larger than what is kept (LD-2)."""
    forty = replace(FIVE, limit=40)
    for at in range(22):
        sent(store, "a", NOW + at / 10, spec=forty)
    for at, text in enumerate("bcdefghijklm"):
        sent(store, text, NOW + 3 + at / 10, spec=forty)
    results = [sent(store, "a", NOW + 5 + at / 10, spec=forty) for at in range(19)]
    assert [one.tripped for one in results] == [False] * 18 + [True]
    assert results[-1].mixed is False


def test_a_request_that_joins_is_no_traffic(store: Store) -> None:
    """Nor is one that is blocked (LD-6)."""
    spec = replace(FIVE, concurrent_free=16)
    for text in "bbbbbbbb":
        op = CountFingerprint(spec, f"cnt:p:b:{text:0>32}", NO_OWNER, tracked=True).within("mix:p:b:s", opening=True)
        store.commit([op], NOW)
    assert last(store, "aacaaa").hits == 5
    assert sent(store, "a", NOW + 9).mixed


# -- landing -----------------------------------------------------------------------------------------------------------

LANDING = replace(COOLING, land_calls=2)
AT_ONCE = replace(LANDING, limit=1, at_once=True)


def landed(
    store: Store,
    at: float = 0.0,
    *,
    spec: FingerprintSpec = LANDING,
    session: str = "s",
    key: str = "k",
    group: int = 0,
) -> tuple[int, bool, float]:
    """Count a call of a session; return which landed call it is, whether it was denied, and how long it is blocked."""
    op = CountFingerprint(spec, f"cnt:p:{key}", NO_OWNER, group).landing(f"land:p:b:{session}")
    done = store.commit([op], NOW + at)
    (result,) = done.results
    assert isinstance(result, FingerprintCount)
    assert result.tripped is bool(result.landed or result.wait_s)
    return result.landed, done.denied_at == 0, result.wait_s


def test_calls_are_landed_before_they_are_denied(store: Store) -> None:
    """As many as the spec says, counted with the decision; then the cooldown begins (LD-10)."""
    passed = [(0, False, 0.0)] * 2
    assert [landed(store, at) for at in range(6)] == [
        *passed, (1, False, 0.0), (2, False, 0.0), (0, True, 30.0), (0, True, 29.0),
    ]  # fmt: skip


def test_a_loop_that_is_known_is_landed_at_once(store: Store) -> None:
    """Its first call too; after the cooldown one passes, and the next is denied: all landings are used (LD-10)."""
    assert [landed(store, at, spec=AT_ONCE)[:2] for at in (0, 1, 2, 33, 34)] == [
        (1, False), (2, False), (0, True), (0, False), (0, True),
    ]  # fmt: skip


def test_landed_calls_are_those_of_a_session(store: Store) -> None:
    """Another loop of the session uses up what is left, another session has its own (LD-10)."""
    assert landed(store, spec=AT_ONCE, key="k1") == (1, False, 0.0)
    assert landed(store, spec=AT_ONCE, key="k2") == (2, False, 0.0)
    assert landed(store, spec=AT_ONCE, key="k3")[:2] == (0, True)
    assert landed(store, spec=AT_ONCE, key="k3", session="o")[:2] == (0, True)  # the loop itself is blocked
    assert landed(store, spec=AT_ONCE, key="k4", session="o")[:2] == (1, False)


def test_landed_calls_are_forgotten_after_an_hour(store: Store) -> None:
    """From the last one on (LD-10)."""
    assert [landed(store, at, spec=AT_ONCE, key=f"{at}")[0] for at in (0, 3000, 6599)] == [1, 2, 0]
    assert landed(store, 6600, spec=AT_ONCE, key="k")[0] == 1


def test_landing_in_shadow_denies_nobody(store: Store) -> None:
    """A shadow policy counts for itself (LD-10)."""
    assert [landed(store, at, spec=AT_ONCE, group=1)[:2] for at in range(3)] == [(1, False), (2, False), (0, False)]


def test_landing_in_the_traffic_of_a_sender(store: Store) -> None:
    """An opening in mixed traffic is neither landed nor denied; work is (LD-10)."""
    spec = replace(FIVE, land_calls=1)
    results: list[object] = []
    for at, text in enumerate("abacadaeafa"):
        op = CountFingerprint(spec, f"cnt:p:b:{text:0>32}", NO_OWNER).within("mix:p:b:s", opening=True)
        results += store.commit([op.landing("land:p:b:s")], NOW + at).results
    assert results[-1] == FingerprintCount(6, True, True, mixed=True)
    results.clear()
    for at in (20, 21):
        op = CountFingerprint(spec, f"cnt:p:b:{'a':0>32}", NO_OWNER).within("mix:p:b:s")
        results += store.commit([op.landing("land:p:b:s")], NOW + at).results
    assert results == [
        FingerprintCount(7, True, False, landed=1),
        FingerprintCount(8, True, True, 30.0),
    ]


def test_a_landed_call_may_fail(store: Store) -> None:
    """Its count is taken back as any other; that it was landed is not (LD-10)."""
    spec = replace(LANDING, retry_free=3)
    assert [landed(store, at, spec=spec)[0] for at in range(3)] == [0, 0, 1]
    assert store.settle([Settle(spec, "cnt:p:k", NOW + 2)], NOW + 2.5, failed=True) == 1
    assert landed(store, 3, spec=spec)[0] == 2
    assert landed(store, 4, spec=spec)[:2] == (0, True)


def test_dropped_landings_start_again(store: Store) -> None:
    """When an operator releases a session (LD-10)."""
    assert [landed(store, at, spec=AT_ONCE)[:2] for at in range(3)] == [(1, False), (2, False), (0, True)]
    store.drop(["cnt:p:k", "land:p:b:s"])
    assert landed(store, 4, spec=AT_ONCE)[:2] == (1, False)


# -- in flight and failed ----------------------------------------------------------------------------------------------


@pytest.fixture(params=KINDS)
def free(request: pytest.FixtureRequest) -> FingerprintSpec:
    """Each way of counting: 5 pass, 2 may join one in flight, 3 a minute are taken back."""
    return KINDS[request.param]


def start(store: Store, spec: FingerprintSpec, at: float = 0.0, key: str = "ld:k") -> tuple[int, Settle]:
    """Count a tracked request; return its count and what settles it. One that joined has no count of its own."""
    done = store.commit([CountFingerprint(spec, key, NO_OWNER, tracked=True)], NOW + at)
    (result,) = done.results
    assert isinstance(result, FingerprintCount)
    assert not result.tripped
    return (0 if result.flight == JOINED else result.hits), Settle(spec, key, done.at, result.flight)


def starts(store: Store, spec: FingerprintSpec, *times: float) -> list[int]:
    return [start(store, spec, at)[0] for at in times]


def end(store: Store, told: Settle, at: float = 0.0, *, failed: bool = False) -> int:
    return store.settle([told], NOW + at, failed=failed)


def test_what_starts_while_one_runs_counts_once(store: Store, free: FingerprintSpec) -> None:
    """So many join one that was counted; the next one counts, and others join that (LD-6)."""
    assert starts(store, free, 0, 0, 0, 0.1, 0.1, 0.1, 0.2) == [1, 0, 0, 2, 0, 0, 3]


def test_who_joins_has_the_leaders_count(store: Store, free: FingerprintSpec) -> None:
    """And neither trips nor refreshes anything (LD-6, E-7)."""
    for at in (-20, -10, 0):
        start(store, free, at)
    joined = store.commit([CountFingerprint(free, "ld:k", NO_OWNER, tracked=True)], NOW + 0.5).results[0]
    assert joined == FingerprintCount(3, flight=JOINED)
    assert hit(store, free, NOW + 59.9).hits == (4 if not free.sliding else 2)


def test_a_flight_is_open_for_a_second(store: Store, free: FingerprintSpec) -> None:
    """Exactly a second after its start the next one counts (LD-6)."""
    assert starts(store, free, 0, 0.999, 1.0, 1.999, 2.5) == [1, 0, 2, 0, 3]


def test_a_flight_ends_with_its_leaders_answer(store: Store, free: FingerprintSpec) -> None:
    """Whatever the answer; who had joined changes nothing when it ends (LD-6)."""
    count, leader = start(store, free)
    assert (count, start(store, free)[0]) == (1, 0)
    assert end(store, leader) == 0
    assert starts(store, free, 0, 0.5) == [2, 0]


def test_an_old_leader_ends_no_others_flight(store: Store, free: FingerprintSpec) -> None:
    """Neither one of the same moment nor a later one (LD-6)."""
    _, first = start(store, free)
    starts(store, free, 0, 0)
    _, second = start(store, free)
    assert first.at == second.at
    end(store, first)
    assert starts(store, free, 0) == [0]
    end(store, second)
    count, third = start(store, free)
    assert count == 3
    end(store, first)
    end(store, second)
    assert starts(store, free, 0) == [0]
    end(store, third)
    count, fourth = start(store, free, 30)
    assert (count, fourth.flight, first.flight) == (4, 1, 1)
    end(store, first, 30)
    assert starts(store, free, 30.5) == [0]


def test_only_tracked_ones_fly(store: Store, free: FingerprintSpec) -> None:
    """A door that does not hear of answers neither leads nor joins (LD-6)."""
    assert [hit(store, free).hits for _ in range(2)] == [1, 2]
    assert starts(store, free, 0) == [3]
    assert hit(store, free) == FingerprintCount(4)
    none = FingerprintSpec(60.0, 5)
    assert [start(store, none, key="ld:none") for _ in range(2)][1][0] == 2


def test_the_denied_is_not_in_flight(store: Store, free: FingerprintSpec) -> None:
    """It counts, and has its answer already; whether it trips or something behind it denies (LD-6, E-4)."""
    ops: list[Op] = [
        CountFingerprint(free, "ld:k", NO_OWNER, tracked=True),
        TakeTokens(TEN, "tb:k", 11, NO_LIMITER, NO_RULE),
    ]
    for count in (1, 2):
        (result, _), denied_at = (done := store.commit(ops, NOW)).results, done.denied_at
        assert (isinstance(result, FingerprintCount) and result.hits, denied_at) == (count, 1)
    assert starts(store, free, 0, 0) == [3, 0]
    tight = FingerprintSpec(60.0, 0, denies=False, concurrent_free=9)
    for count in (1, 2, 3):  # a warning passes, and is a loop: nobody joins it
        (warned,) = store.commit([CountFingerprint(tight, "ld:w", NO_OWNER, tracked=True)], NOW).results
        assert isinstance(warned, FingerprintCount)
        assert (warned.hits, warned.tripped, warned.flight) == (count, True, 0)


def test_groups_fly_for_themselves(store: Store, free: FingerprintSpec) -> None:
    """What a shadow group denies is not in flight there; an enforced denial grounds all (E-1, LD-6)."""
    shadow: list[Op] = [
        CountFingerprint(free, "shadow:ld:k", NO_OWNER, 1, tracked=True),
        TakeTokens(TEN, "shadow:tb", 11, NO_LIMITER, NO_RULE, 1),
    ]
    ops: list[Op] = [
        *shadow,
        CountFingerprint(free, "shadow:ld:o", NO_OWNER, 2, tracked=True),
        CountFingerprint(free, "ld:k", NO_OWNER, 0, -1, True),
    ]
    flights = [  # whether it leads one: the number only tells it from others
        [min(1, result.flight) for result in store.commit(ops, NOW).results if isinstance(result, FingerprintCount)]
        for _ in range(2)
    ]
    assert flights == [[1, 1, 1], [1, JOINED, JOINED]]
    store.commit(
        [
            CountFingerprint(free, "shadow:ld:x", NO_OWNER, 1, -1, True),
            TakeTokens(TEN, "tb:k", 11, NO_LIMITER, NO_RULE),
        ],
        NOW,
    )
    assert start(store, free, key="shadow:ld:x")[0] == 2


def test_a_detection_ends_the_flight(store: Store) -> None:
    """During a cooldown nobody slips in beside one that still runs (LD-2, LD-6)."""
    spec = KINDS["cooling"]
    times = (0.0, 0.1, 0.2, 0.3, 0.4)
    for at in times:
        hit(store, spec, NOW + at)
    leader = store.commit([CountFingerprint(spec, "ld:k", NO_OWNER, own_limit=6, tracked=True)], NOW + 0.5).results[0]
    assert leader == FingerprintCount(6, flight=1)
    assert hit(store, spec, NOW + 0.6).wait_s == 30.0
    cooling = store.commit([CountFingerprint(spec, "ld:k", NO_OWNER, tracked=True)], NOW + 0.7).results[0]
    assert isinstance(cooling, FingerprintCount)
    assert (cooling.tripped, cooling.flight) == (True, 0)


def test_a_failed_one_is_taken_back(store: Store, free: FingerprintSpec) -> None:
    """The one that comes again counts in its place, so many times in a window and no more (LD-6)."""
    taken = []
    for number in range(5):
        count, told = start(store, free, 2.0 * number)
        taken.append((count, end(store, told, 2.0 * number + 1, failed=True)))
    assert taken == [(1, 1), (1, 1), (1, 1), (1, 0), (2, 0)]
    assert starts(store, free, 10, 20) == [3, 4]


def test_what_is_taken_back_has_a_true_window(store: Store, free: FingerprintSpec) -> None:
    """Exactly a window after one was taken back there is room for another (LD-6)."""
    for at in (0, 20, 40):
        assert end(store, start(store, free, at)[1], at, failed=True) == 1
    late = start(store, free, 59)[1]
    assert end(store, late, 59.9, failed=True) == 0
    assert end(store, late, 60, failed=True) == 1  # the one of 0 s has left
    assert end(store, start(store, free, 61)[1], 61, failed=True) == 0


def test_an_answer_that_did_not_fail_takes_nothing_back(store: Store, free: FingerprintSpec) -> None:
    """And where nothing is free, no failure does (LD-6)."""
    assert end(store, start(store, free)[1]) == 0
    assert starts(store, free, 5) == [2]
    strict = FingerprintSpec(60.0, 5, sliding=free.sliding)
    assert end(store, start(store, strict, key="ld:s")[1], failed=True) == 0
    assert start(store, strict, key="ld:s")[0] == 2


def test_what_is_out_of_the_window_is_not_taken_back(store: Store, free: FingerprintSpec) -> None:
    """Its hit is gone or was refreshed by others; theirs stay (LD-6)."""
    _, slow = start(store, free)
    assert starts(store, free, 30, 59) == [2, 3]
    assert end(store, slow, 60, failed=True) == 0
    assert hit(store, free, NOW + 61).hits == (4 if not free.sliding else 3)


@pytest.mark.parametrize("sliding", [True, False])
def test_no_detection_is_undone(store: Store, sliding: bool) -> None:
    """Hits that led to a cooldown are used up; a failure among them changes neither it nor what follows
    (LD-2, LD-6)."""
    spec = replace(KINDS["cooling"], sliding=sliding)
    told = [start(store, spec, 2.0 * number)[1] for number in range(5)]
    assert hit(store, spec, NOW + 10).wait_s == 30.0
    assert store.settle(told, NOW + 11, failed=True) == 0
    assert hit(store, spec, NOW + 12).wait_s == 28.0
    assert starts(store, spec, 40) == [1]
    assert store.settle(told, NOW + 41, failed=True) == 0
    assert starts(store, spec, 42) == [2]


def test_what_found_no_room_is_not_taken_back(store: Store) -> None:
    """A sliding count keeps the last hits only; a failure among those it dropped changes nothing (Y-2, LD-6)."""
    spec = KINDS["sliding"]
    before = [hit(store, spec, NOW + number / 100).hits for number in range(500)][-1]
    assert before == spec.limit + 302
    assert end(store, Settle(spec, "ld:k", NOW), 6, failed=True) == 0
    assert end(store, Settle(spec, "ld:k", NOW + 4), 6, failed=True) == 1
    assert hit(store, spec, NOW + 6).hits == before


def test_the_count_of_exactly_that_request_is_undone(store: Store) -> None:
    """Also where the bytes of its time are found across the bytes of two others (LD-6)."""
    spec = FingerprintSpec(60.0, 5, sliding=True, retry_free=3)
    before, at = struct.unpack("<2d", b"\0" + b"A" * 15)  # one is a tiny part of a second earlier
    assert [hit(store, spec, time).hits for time in (before, at)] == [1, 2]
    assert store.settle([Settle(spec, "ld:k", at)], at + 1, failed=True) == 1
    assert store.settle([Settle(spec, "ld:k", at)], at + 1, failed=True) == 0
    assert store.settle([Settle(spec, "ld:k", before)], at + 1, failed=True) == 1


@pytest.mark.parametrize("kind", ["idle", "sliding"])
def test_one_count_less(store: Store, kind: str) -> None:
    """A failed request is one hit less, no more (LD-6)."""
    spec = KINDS[kind]
    told = [Settle(spec, "ld:k", NOW + at) for at in range(3) if hit(store, spec, NOW + at).hits == at + 1]
    assert store.settle(told[1:2], NOW + 3, failed=True) == 1
    assert hit(store, spec, NOW + 3).hits == 3
    assert store.settle(told[:1], NOW + 4, failed=True) == 1
    assert hit(store, spec, NOW + 4).hits == 3


def test_several_are_settled_at_once(store: Store, free: FingerprintSpec) -> None:
    """One call is counted by several detectors; keys that nobody knows do no harm (LD-6)."""
    told = [start(store, free, key=key)[1] for key in ("ld:a", "ld:b")]
    assert store.settle([*told, Settle(free, "ld:nobody", NOW, 1)], NOW + 2, failed=True) == 2
    assert [start(store, free, 3, key)[0] for key in ("ld:a", "ld:b")] == [1, 1]
    assert store.settle([], NOW, failed=True) == 0


def test_settling_moves_time_on(store: Store) -> None:
    """A clock that steps back stands still, whoever told the time; `at` is by the same clock (S-2)."""
    spec = KINDS["sliding"]
    store.settle([], NOW + 10, failed=False)
    done = store.commit([CountFingerprint(spec, "ld:k", NO_OWNER)], NOW)
    assert done.at == NOW + 10
    assert end(store, Settle(spec, "ld:k", done.at), 0, failed=True) == 1
