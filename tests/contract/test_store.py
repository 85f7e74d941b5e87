"""What every store does, one suite over all of them: one commit, counts always, limits all or none, windows by version."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from breakloop.state.memory import MemoryStore
from breakloop.state.ops import (
    Bucket,
    BucketSpec,
    Committed,
    Op,
    Refuse,
    Repeat,
    Repeated,
    RepeatSpec,
    Window,
    WindowWrite,
)
from breakloop.state.store import Store

# Each gives an empty store. Stores that come later join here.
FACTORIES: dict[str, Callable[[], Store]] = {"memory": MemoryStore}

NOW = 1_800_000_000.0
TEN = BucketSpec(10.0, 10.0)
IDLE = RepeatSpec(60.0, 2)
SLIDING = RepeatSpec(60.0, 2, sliding=True)
COOLING = RepeatSpec(60.0, 2, sliding=True, cooldown_s=30.0, growth=2.0, cooldown_max_s=100.0)


@pytest.fixture(params=FACTORIES)
def store(request: pytest.FixtureRequest) -> Store:
    """An empty store of each kind."""
    return FACTORIES[request.param]()


def take(store: Store, *, cost: float = 1.0, key: str = "tb:k", spec: BucketSpec = TEN, now: float = NOW) -> float:
    result = store.commit([Bucket(spec, key, cost, None)], now).results[0]
    assert isinstance(result, float)
    return result


def hit(store: Store, spec: RepeatSpec, now: float = NOW, key: str = "ld:k", limit: int = -1) -> Repeated:
    result = store.commit([Repeat(spec, key, None, limit=limit)], now).results[0]
    assert isinstance(result, Repeated)
    return result


def hits(store: Store, spec: RepeatSpec, *times: float) -> list[int]:
    return [hit(store, spec, NOW + at).hits for at in times]


# -- buckets -----------------------------------------------------------------------------------------------------------


def test_a_bucket_gives_what_is_left(store: Store) -> None:
    """L-1: what is left after the charge; less than nothing is a denial, by how much it fell short, and no charge."""
    assert take(store, cost=4) == 6.0
    assert take(store, cost=7) == -1.0
    assert take(store, cost=6) == 0.0
    assert take(store, cost=0.5) == -0.5


def test_a_bucket_refills(store: Store) -> None:
    """L-1: by its rate, up to its burst."""
    take(store, cost=10)
    assert take(store, cost=1, now=NOW + 0.5) == 4.0
    assert take(store, cost=1, now=NOW + 100) == 9.0


def test_a_bucket_denies_and_says_where(store: Store) -> None:
    """E-4: `denied_at` is the first enforced denial."""
    ops = [Bucket(TEN, "tb:a", 1, None), Bucket(TEN, "tb:b", 11, None), Bucket(TEN, "tb:c", 12, None)]
    done = store.commit(ops, NOW)
    assert done == Committed([9.0, -1.0, None], 1)


def test_limits_are_charged_all_or_none(store: Store) -> None:
    """E-4: a denial anywhere in the order charges nothing, before it or after it."""
    ops = [Bucket(TEN, "tb:a", 1, None), Bucket(TEN, "tb:b", 11, None), Bucket(TEN, "tb:c", 1, None)]
    store.commit(ops, NOW)
    assert [take(store, key=key) for key in ("tb:a", "tb:b", "tb:c")] == [9.0, 9.0, 9.0]


def test_a_refusal_holds_its_place(store: Store) -> None:
    """E-3: what is known to be denied beforehand denies in its turn, and charges nothing."""
    done = store.commit([Bucket(TEN, "tb:a", 1, None), Refuse(None), Bucket(TEN, "tb:b", 1, None)], NOW)
    assert done == Committed([9.0, None, None], 1)
    assert take(store, key="tb:a") == 9.0


def test_groups_deny_for_themselves(store: Store) -> None:
    """E-1, E-2: a shadow group's denial keeps its own limits from being charged and nobody else's."""
    ops = [
        Bucket(TEN, "shadow:a", 1, None, 1),
        Bucket(TEN, "shadow:b", 11, None, 1),
        Bucket(TEN, "shadow:c", 1, None, 2),
        Bucket(TEN, "tb:d", 1, None),
    ]
    done = store.commit(ops, NOW)
    assert done == Committed([9.0, -1.0, 9.0, 9.0], -1)
    keys = ("shadow:a", "shadow:b", "shadow:c", "tb:d")
    assert [take(store, key=key) for key in keys] == [9.0, 9.0, 8.0, 8.0]


def test_an_enforced_denial_charges_no_group(store: Store) -> None:
    """E-4: a request that did not pass costs shadow limits nothing either."""
    store.commit([Bucket(TEN, "shadow:a", 1, None, 1), Bucket(TEN, "tb:b", 11, None)], NOW)
    assert take(store, key="shadow:a") == 9.0


def test_a_clock_that_steps_back_stands_still(store: Store) -> None:
    """S-2: nothing refills twice and nothing expires early."""
    take(store, cost=10)
    assert take(store, now=NOW - 1) == -1.0
    assert take(store, now=NOW) == -1.0
    assert take(store, now=NOW + 0.1) >= -0.01


# -- repeats -----------------------------------------------------------------------------------------------------------


def test_repeats_trip_over_their_limit(store: Store) -> None:
    """LD-1: `limit` pass, the next trips; the first one that does is fresh."""
    assert [hit(store, IDLE) for _ in range(2)] == [Repeated(1), Repeated(2)]
    assert hit(store, IDLE) == Repeated(3, True, True, 60.0, 60.0)
    assert hit(store, IDLE) == Repeated(4, True, False, 60.0, 60.0)


def test_idle_counts_live_after_the_last_hit(store: Store) -> None:
    """LD-1: each hit refreshes the window; exactly at its end the count is gone."""
    assert hits(store, IDLE, 0, 59, 118, 177.9, 238) == [1, 2, 3, 4, 1]
    assert hits(store, IDLE, 238, 298) == [2, 1]


def test_sliding_counts_forget_one_by_one(store: Store) -> None:
    """LD-1: what is in the window counts; a hit leaves exactly a window after it came."""
    assert hits(store, SLIDING, 0, 20, 40, 59.9, 60, 80, 100) == [1, 2, 3, 4, 4, 4, 4]


def test_a_sliding_count_stays_bounded(store: Store) -> None:
    """Y-2: however often it comes, and it still trips."""
    last = [hit(store, SLIDING) for _ in range(2000)][-1]
    assert last.tripped
    assert 300 <= last.hits <= 320


def test_a_limit_of_its_own(store: Store) -> None:
    """LD-6: an announced number of repeats raises the limit of that request."""
    for number in range(1, 6):
        assert hit(store, IDLE, limit=5) == Repeated(number)
    assert hit(store, IDLE, limit=5).tripped


def test_cooldown(store: Store) -> None:
    """LD-2: blocks for its time, counts on, and ends exactly then."""
    assert hits(store, COOLING, 0, 0) == [1, 2]
    assert hit(store, COOLING) == Repeated(3, True, True, 30.0, 60.0)
    assert hit(store, COOLING, NOW + 10) == Repeated(4, True, False, 20.0, 70.0)
    assert hit(store, COOLING, NOW + 29.5) == Repeated(5, True, False, 0.5, 89.5)
    assert hit(store, COOLING, NOW + 30) == Repeated(1)


def test_cooldowns_grow_and_are_forgotten(store: Store) -> None:
    """LD-2: doubled up to the maximum; as much quiet as that, and it begins again."""
    now, found = NOW, []
    for _ in range(4):
        tripped = [hit(store, COOLING, now) for _ in range(3)][-1]
        found.append(tripped.wait_s)
        now += tripped.wait_s
    assert found == [30.0, 60.0, 100.0, 100.0]
    assert [hit(store, COOLING, now + 100) for _ in range(3)][-1].wait_s == 30.0


def test_repeats_count_whatever_is_denied(store: Store) -> None:
    """E-4: in the order before and after a denial, of every group."""
    ops: list[Op] = [
        Repeat(IDLE, "ld:a", None),
        Bucket(TEN, "tb:a", 11, None),
        Repeat(IDLE, "ld:b", None),
        Repeat(IDLE, "shadow:ld:c", None, 1),
    ]
    for number in (1, 2):
        done = store.commit(ops, NOW)
        assert done == Committed([Repeated(number), -1.0, Repeated(number), Repeated(number)], 1)
    assert store.commit(ops, NOW).denied_at == 0


def test_a_tripped_repeat_denies_its_group(store: Store) -> None:
    """E-4, E-2: the limits behind it are not looked at, unless it only warns."""
    warns = RepeatSpec(60.0, 0, denies=False)
    denies = RepeatSpec(60.0, 0)
    done = store.commit([Repeat(warns, "ld:w", None), Bucket(TEN, "tb:a", 1, None)], NOW)
    assert (done.results[1], done.denied_at) == (9.0, -1)
    done = store.commit([Repeat(denies, "ld:d", None), Bucket(TEN, "tb:a", 1, None)], NOW)
    assert (done.results[1], done.denied_at) == (None, 0)
    done = store.commit([Repeat(denies, "ld:s", None, 1), Bucket(TEN, "tb:a", 1, None)], NOW)
    assert (done.results[1], done.denied_at) == (8.0, -1)


# -- windows -----------------------------------------------------------------------------------------------------------


def test_a_window_is_written_by_version(store: Store) -> None:
    """E-5: version 0 is none; each write moves it on."""
    assert store.read_window("win:a", NOW) == Window(0, b"")
    assert store.commit([], NOW, WindowWrite("win:a", 0, b"one", 60.0)).conflict is None
    assert store.read_window("win:a", NOW) == Window(1, b"one")
    assert store.commit([], NOW, WindowWrite("win:a", 1, b"two", 60.0)).conflict is None
    assert store.read_window("win:a", NOW) == Window(2, b"two")


def test_a_conflict_changes_nothing(store: Store) -> None:
    """E-5: the newer window comes back; neither counts nor limits moved."""
    store.commit([], NOW, WindowWrite("win:a", 0, b"one", 60.0))
    ops: list[Op] = [Repeat(IDLE, "ld:k", None), Bucket(TEN, "tb:k", 1, None)]
    for stale in (0, 2):
        done = store.commit(ops, NOW, WindowWrite("win:a", stale, b"two", 60.0))
        assert done == Committed([], -1, Window(1, b"one"))
    assert store.read_window("win:a", NOW) == Window(1, b"one")
    assert hit(store, IDLE) == Repeated(1)
    assert take(store) == 9.0


def test_a_window_goes_with_its_commit(store: Store) -> None:
    """E-5: together with the operations, also when the request is denied."""
    done = store.commit([Bucket(TEN, "tb:k", 11, None)], NOW, WindowWrite("win:a", 0, b"one", 60.0))
    assert done.denied_at == 0
    assert store.read_window("win:a", NOW).version == 1


def test_a_window_expires(store: Store) -> None:
    """S-2: everything has a time to live."""
    store.commit([], NOW, WindowWrite("win:a", 0, b"one", 60.0))
    assert store.read_window("win:a", NOW + 59.9).version == 1
    assert store.read_window("win:a", NOW + 60) == Window(0, b"")


def test_forget(store: Store) -> None:
    """G-1: an operator's release drops what begins with a prefix, of every kind, and says how much."""
    hit(store, IDLE, key="a:ld")
    take(store, key="a:tb")
    for _ in range(3):
        hit(store, COOLING, key="a:cool")
    hit(store, IDLE, key="b:ld")
    store.commit([], NOW, WindowWrite("a:win", 0, b"one", 60.0))
    assert store.forget("a:") == 4
    assert hit(store, IDLE, key="a:ld") == Repeated(1)
    assert take(store, key="a:tb") == 9.0
    assert hit(store, COOLING, key="a:cool") == Repeated(1)
    assert store.read_window("a:win", NOW).version == 0
    assert hit(store, IDLE, key="b:ld") == Repeated(2)
    assert store.forget("nobody") == 0
