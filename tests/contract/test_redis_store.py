"""What only a store in Redis has to do: times to live, slots, scripts that are gone, servers that refuse, many at once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from breakloop.errors import StateError
from breakloop.store.limit_ops import BreakerSpec, BucketSpec, BudgetSpec, ChargeBudget, CheckBreaker, TakeTokens
from breakloop.store.ops import (
    AdjustCharge,
    CommitResult,
    CountFingerprint,
    FingerprintCount,
    FingerprintSpec,
    Op,
    Settle,
    StoredWindow,
    WindowWrite,
)
from breakloop.store.redis.scripts import load_scripts, redis_key
from breakloop.store.redis.store import RedisStore
from breakloop.store.redis.topology import slot_of
from tests.deadlines import DEADLINE_S
from tests.redis_groups import Cluster
from tests.redis_servers import Options, Server, free_port, running, until
from tests.redis_store import Connection, connected
from tests.stores import NO_LIMITER, NO_OWNER, NO_RULE

pytestmark = pytest.mark.e2e

LATER = 4_000_000_000.0  # the end of a period, by anybody's clock
COOLING = FingerprintSpec(60.0, 1, sliding=True, cooldown_s=30.0, cooldown_max_s=100.0, concurrent_free=2, retry_free=3)
IDLE = FingerprintSpec(60.0, 99)
TEN = BucketSpec(0.1, 10.0)
FOR_GOOD = CheckBreaker(BreakerSpec(1.0, 0.0), "brk:p:hand", 5.0, NO_LIMITER, NO_RULE, 1)


def every_kind(number: int = 0) -> list[Op]:
    return [
        CountFingerprint(IDLE, f"ld:p:{number}", NO_OWNER, tracked=True),
        CountFingerprint(COOLING, f"shadow:cnt:p:{number}", NO_OWNER, 1, tracked=True),
        CheckBreaker(BreakerSpec(1e9, 60.0), f"brk:p:{number}", 1.0, NO_LIMITER, NO_RULE),
        TakeTokens(TEN, f"tb:p:{number}", 1.0, NO_LIMITER, NO_RULE),
        ChargeBudget(BudgetSpec(100), f"cb:p:{number}:1", 10, LATER, NO_LIMITER, NO_RULE),
    ]


class Asked:
    """A store in one server, asked and answered one by one, in Redis' own time."""

    def __init__(self, connection: Connection, clock: Callable[[], float] | None = None) -> None:
        self.connection = connection
        self.store = RedisStore(connection.nodes, clock)

    def commit(self, ops: list[Op], *windows: WindowWrite) -> Any:
        return self.connection.ask(lambda then: self.store.commit(ops, windows, then))[0]

    def settle(self, *ops: Settle, failed: bool = True) -> Any:
        return self.connection.ask(lambda then: self.store.settle(ops, then, failed=failed))[0]

    def correct(self, *ops: AdjustCharge) -> Any:
        return self.connection.ask(lambda then: self.store.correct(ops, then))[0]

    def read(self, *keys: str) -> Any:
        return self.connection.ask(lambda then: self.store.read_windows(keys, then))[0]

    def probe(self) -> Any:
        return self.connection.ask(self.store.probe)[0]


@pytest.fixture
def asked(any_server: Server) -> Iterator[Asked]:
    with connected(any_server.url) as connection:
        yield Asked(connection)


# -- a clock that is set -----------------------------------------------------------------------------------------------

HOUR, DAY = 3600.0, 86_400.0
STEPS = {"an hour back": {5: -HOUR}, "a day ahead for two seconds": {5: DAY, 7: -DAY}, "a moment back": {5: -0.25}}
LIMITS: dict[str, Callable[[], Op]] = {
    "token bucket": lambda: TakeTokens(BucketSpec(1.0, 5.0), "tb:p", 1.0, NO_LIMITER, NO_RULE),
    "tokens a minute": lambda: TakeTokens(BucketSpec(20.0, 1200.0), "tpm:p", 100.0, NO_LIMITER, NO_RULE),
    "idle count": lambda: CountFingerprint(FingerprintSpec(3.0, 4), "ld:p:i", NO_OWNER),
    "sliding window": lambda: CountFingerprint(FingerprintSpec(10.0, 4, sliding=True), "ld:p:s", NO_OWNER),
    "cooldown": lambda: CountFingerprint(COOLING, "ld:p:c", NO_OWNER),
    "in flight": lambda: CountFingerprint(COOLING, "ld:p:f", NO_OWNER, tracked=True),
    "circuit breaker": lambda: CheckBreaker(BreakerSpec(20.0, 15.0), "brk:p", 1.0, NO_LIMITER, NO_RULE),
}


def longest_denial(asked: Asked, told: list[float], limit: Callable[[], Op], steps: dict[int, float]) -> float:
    """Ask twice a second, in bursts with pauses in between; return for how many seconds all were denied."""
    passed_s = longest_s = 0.0
    for turn in range(400):
        told[0] += steps.get(turn // 2, 0.0) if turn % 2 == 0 else 0.0
        passed = asked.commit([limit()]).denied_at < 0
        passed_s = 0.0 if passed else passed_s + 0.5
        longest_s = max(longest_s, passed_s)
        told[0] += 0.5 if turn % 40 < 30 else 5.0
    return longest_s


@pytest.mark.parametrize("steps", STEPS.values(), ids=STEPS)
@pytest.mark.parametrize("limit", LIMITS.values(), ids=LIMITS)
def test_a_step_denies_for_no_longer(any_server: Server, limit: Callable[[], Op], steps: dict[int, float]) -> None:
    """The clock of Redis is set: every limit goes on from where it was when it was last used, and none stands still. What
    it denies is delayed once, by no more than that (S-2)."""
    with connected(any_server.url) as connection:
        told = [4_000_000_000.0]
        usual_s = longest_denial(Asked(connection, lambda: told[0]), told, limit, {})
        connection.ask(lambda then: RedisStore(connection.nodes).drop([limit().key], then))  # type: ignore[union-attr]
        assert longest_denial(Asked(connection, lambda: told[0]), told, limit, steps) <= 2 * usual_s + 1.0


def test_nothing_refills_twice(any_server: Server) -> None:
    """Neither the step back nor the way to where it was before (S-2)."""
    with connected(any_server.url) as connection:
        told = [4_000_000_000.0]
        asked, take = (
            Asked(connection, lambda: told[0]),
            TakeTokens(BucketSpec(1.0, 5.0), "tb:p", 5.0, NO_LIMITER, NO_RULE),
        )
        assert asked.commit([take]).results == [0.0]
        told[0] -= HOUR
        assert asked.commit([take]).results == [-5.0]
        assert raw(any_server).pttl(redis_key("tb:p")) <= (DAY + 5) * 1000  # until it is full, and the day of a test
        told[0] += 3.0
        assert asked.commit([take]).results == [-2.0]
        asked.correct(AdjustCharge(take.spec, "tb:p", 1.0))
        told[0] += 3.0
        assert asked.commit([take]).results == [0.0]


def test_a_breaker_stays_open_as_long_as_before(any_server: Server) -> None:
    """The time until its reset is that of before the step, and so is its time to live (S-2, CB-2)."""
    with connected(any_server.url) as connection:
        told = [4_000_000_000.0]
        asked = Asked(connection, lambda: told[0])
        spec = BreakerSpec(10.0, 300.0)
        breaker = CheckBreaker(spec, "brk:p:back", 10.0, NO_LIMITER, NO_RULE)
        assert asked.commit([breaker]).results[0].changed == "opened"
        told[0] += 100.0
        assert asked.commit([breaker]).results[0].wait_s == 200.0
        told[0] -= HOUR  # it was last asked when it opened, so a hundred seconds of the step are known to nobody
        assert asked.commit([breaker]).results[0].wait_s == 300.0
        assert raw(any_server).pttl(redis_key("brk:p:back")) <= (2 * DAY + 300) * 1000
        told[0] += 299.0
        assert asked.commit([breaker]).denied_at == 0
        told[0] += 1.0
        probe = CheckBreaker(spec, "brk:p:back", 1.0, NO_LIMITER, NO_RULE)
        assert asked.commit([probe]).results[0].changed == "closed"


@pytest.mark.parametrize("step_s", [0.5, DAY])
def test_what_is_counted_moves_with_the_clock(any_server: Server, step_s: float) -> None:
    """Hits of a sliding window leave it one by one, a cooldown ends when it was to, and so does a flight (S-2)."""
    with connected(any_server.url) as connection:
        told = [4_000_000_000.0]
        asked = Asked(connection, lambda: told[0])
        spec = FingerprintSpec(10.0, 3, sliding=True, cooldown_s=30.0, cooldown_max_s=100.0, concurrent_free=2)
        one, other = (
            CountFingerprint(spec, "ld:p:a", NO_OWNER),
            CountFingerprint(spec, "ld:p:b", NO_OWNER, tracked=True),
        )
        asked.commit([one])
        told[0] += 6.0
        assert asked.commit([one, other]).results == [FingerprintCount(2), FingerprintCount(1, flight=1)]
        told[0] -= step_s
        assert asked.commit([one, other]).results == [FingerprintCount(3), FingerprintCount(1, flight=-1)]
        told[0] += 1.0
        assert asked.commit([other]).results == [FingerprintCount(2, flight=1)]
        told[0] += 3.0  # the first hit was 10 s ago, of which the step took none
        assert asked.commit([one]).results == [FingerprintCount(3)]
        assert asked.commit([one]).results == [FingerprintCount(4, tripped=True, fresh=True, wait_s=30.0)]
        told[0] -= step_s
        (cooling,) = asked.commit([one]).results
        assert (cooling.tripped, cooling.wait_s) == (True, 30.0)
        told[0] += 30.0
        assert not asked.commit([one]).results[0].tripped


def raw(server: Server) -> Any:
    return server.client()


# -- times to live, keys -----------------------------------------------------------------------------------------------


def test_everything_has_a_time_to_live(asked: Asked, any_server: Server) -> None:
    """Whatever is done to it; but for a breaker that only an operator closes, until it is closed (S-2, Y-2)."""
    windows = [WindowWrite(f"win:p:{number}:", 0, b"x" * 100, 3600.0) for number in range(3)]
    for number in range(3):
        done = asked.commit([*every_kind(number), FOR_GOOD], windows[number])
        told = [Settle(op.spec, op.key, done.at, 1) for op in every_kind(number) if isinstance(op, CountFingerprint)]
        assert asked.settle(*told) == 1  # the idle one gives nothing back
        asked.commit(every_kind(number))
        asked.correct(AdjustCharge(TEN, f"tb:p:{number}", 3.0), AdjustCharge(BudgetSpec(1), f"cb:p:{number}:1", -3))
        asked.commit(every_kind(number))
    client = raw(any_server)
    keys = client.keys("*")
    assert len(keys) == 3 * 6 + 1
    left = {key: client.pttl(key) for key in keys}
    assert left.pop(redis_key("brk:p:hand")) == -1
    assert all(0 < ms <= (LATER + 3600) * 1000 for ms in left.values()), left
    assert (
        asked.commit([CheckBreaker(BreakerSpec(1e9, 0.0001), "brk:p:hand", 0.0, NO_LIMITER, NO_RULE)])
        .results[0]
        .changed
        == "closed"
    )
    assert 0 < client.pttl(redis_key("brk:p:hand")) <= 120_000


def test_values_live_as_long_as_they_matter(asked: Asked, any_server: Server) -> None:
    """A count for its window, a bucket until it is full, an account for an hour more, a breaker for its reset (S-2)."""

    def expires(key: str) -> float:
        """By Redis' own clock, which may have gone on meanwhile."""
        asked_both = raw(any_server).pipeline()
        asked_both.time()
        asked_both.pttl(redis_key(key))
        (seconds, micros), left_ms = asked_both.execute()
        return float(seconds + micros / 1e6 + left_ms / 1e3)

    ends = asked.commit([]).at + 100
    done = asked.commit(
        [
            CountFingerprint(IDLE, "ld:p:k", NO_OWNER),
            TakeTokens(TEN, "tb:p:k", 5.0, NO_LIMITER, NO_RULE),
            ChargeBudget(BudgetSpec(9), "cb:p:k", 1, ends, NO_LIMITER, NO_RULE),
            CheckBreaker(BreakerSpec(5.0, 60.0), "shadow:brk:p:k", 5.0, NO_LIMITER, NO_RULE, 1),
        ],
        WindowWrite("win:p:k:", 0, b"", 900.0),
    )
    keys = {"ld:p:k": 60, "tb:p:k": 50, "shadow:brk:p:k": 86_460, "win:p:k:": 900}
    found = {key: expires(key) - done.at for key in keys}
    assert found == pytest.approx(keys, abs=0.1)
    assert expires("cb:p:k") == pytest.approx(ends + 3600, abs=0.1)
    first = asked.commit([CountFingerprint(COOLING, "cnt:p:k", NO_OWNER)])
    assert expires("cnt:p:k") - first.at == pytest.approx(60, abs=0.1)
    second = asked.commit([CountFingerprint(COOLING, "cnt:p:k", NO_OWNER)])
    assert expires("cnt:p:k") - second.at == pytest.approx(130, abs=0.1)


@pytest.mark.parametrize("seconds", [100_000.0, 1e9, 1e20])
def test_long_times_are_written_as_redis_reads_them(asked: Asked, any_server: Server, seconds: float) -> None:
    """A day and more in milliseconds, which some servers would write with an exponent (S-2)."""
    assert asked.commit([CountFingerprint(FingerprintSpec(seconds, 5), "ld:p:k", NO_OWNER)]).results == [
        FingerprintCount(1)
    ]
    wanted = min(seconds * 1000, 9e13)
    assert raw(any_server).pttl(redis_key("ld:p:k")) == pytest.approx(wanted, rel=1e-3)


def test_a_full_bucket_is_gone_at_once(asked: Asked, any_server: Server) -> None:
    """One that was charged nothing lives for a moment only (S-2)."""
    assert asked.commit([TakeTokens(TEN, "tb:p:k", 0.0, NO_LIMITER, NO_RULE)]).results == [10.0]
    client = raw(any_server)
    until(lambda: not client.exists(redis_key("tb:p:k")), "a bucket that is gone")


def test_a_commit_is_in_one_slot(redis_cluster: Cluster) -> None:
    """Every key of a project, whatever else is in it; a cluster takes such a commit, and settles it (E-5)."""
    keys = [op.key for op in every_kind()] + ["win:p:s:1:"]  # type: ignore[union-attr]
    assert len({slot_of(redis_key(key)) for key in keys}) == 1
    projects = [f"p{number}" for number in range(50)] + ["", "}", "{", "a}b", "ü"]
    with connected(redis_cluster.url) as connection:
        asked = Asked(connection)
        for project in projects:
            ops: list[Op] = [TakeTokens(TEN, f"tb:{project}:r:{n}", 1.0, NO_LIMITER, NO_RULE) for n in range(3)]
            ops.append(CountFingerprint(COOLING, f"shadow:ld:{project}:x", NO_OWNER, 1, tracked=True))
            done = asked.commit(ops, WindowWrite(f"win:{project}:s:", 0, b"w", 60.0))
            assert isinstance(done, CommitResult), (project, done)
            assert done.results == [9.0, 9.0, 9.0, FingerprintCount(1, flight=1)]
            assert asked.settle(Settle(COOLING, f"shadow:ld:{project}:x", done.at, 1)) == 1
            assert asked.read(f"win:{project}:s:") == [StoredWindow(1, b"w")]


def test_projects_are_dropped_together(redis_cluster: Cluster) -> None:
    """Keys of several projects in one call, wherever in a cluster they are (G-1)."""
    with connected(redis_cluster.url) as connection:
        asked = Asked(connection)
        keys = [f"win:p{number}:s:" for number in range(30)]
        for key in keys:
            asked.commit([], WindowWrite(key, 0, b"w", 60.0))
        assert connection.ask(lambda then: asked.store.drop(keys[1:], then)) == [None]
        assert [asked.read(key)[0].version for key in keys] == [1] + [0] * 29


def test_what_is_found_begins_alike(asked: Asked) -> None:
    """Thousands of keys, among others of patterns' letters; with a project, and of all projects (G-1)."""
    for number in range(0, 3000, 100):
        asked.commit([TakeTokens(TEN, f"tb:p:*[{number + n}]", 1.0, NO_LIMITER, NO_RULE) for n in range(100)])
    asked.commit(
        [TakeTokens(TEN, key, 1.0, NO_LIMITER, NO_RULE) for key in ("tb:p:x[1]", "tb:p:", "tb:q:*[1]", "cb:p:*[1]")]
    )
    found = {
        prefix: len(asked.connection.wait(asked.store.keys(prefix, 10_000)))
        for prefix in ("tb:p:*[1]", "tb:p:*[", "tb:", "")
    }
    assert found == {"tb:p:*[1]": 1, "tb:p:*[": 3000, "tb:": 3003, "": 3004}
    assert len(asked.connection.wait(asked.store.keys("tb:", 7))) == 7


# -- time --------------------------------------------------------------------------------------------------------------


def test_time_is_redis_own(asked: Asked, any_server: Server) -> None:
    """One clock for all who share it, to the microsecond (S-2)."""
    before, done, after = raw(any_server).time(), asked.commit([]), raw(any_server).time()
    assert before[0] + before[1] / 1e6 <= done.at <= after[0] + after[1] / 1e6


def test_no_key_sees_time_step_back(any_server: Server) -> None:
    """A replica that takes over may be behind: nothing refills, leaves or closes twice, and settling finds it (S-2)."""
    clock = [1_800_000_100.0]
    sliding = FingerprintSpec(60.0, 9, sliding=True, concurrent_free=1, retry_free=1)
    with connected(any_server.url) as connection:
        asked = Asked(connection, lambda: clock[0])
        ops: list[Op] = [
            CountFingerprint(sliding, "ld:p:k", NO_OWNER, tracked=True),
            TakeTokens(TEN, "tb:p:k", 5.0, NO_LIMITER, NO_RULE),
            CheckBreaker(BreakerSpec(1000.0, 300.0), "brk:p:k", 600.0, NO_LIMITER, NO_RULE),
        ]
        asked.commit(ops)
        clock[0] -= 50
        done = asked.commit(
            [CountFingerprint(sliding, "ld:p:k", NO_OWNER), TakeTokens(TEN, "tb:p:k", 6.0, NO_LIMITER, NO_RULE)]
        )
        assert done.at == clock[0]
        assert (done.results, done.denied_at) == ([FingerprintCount(2), -1.0], 1)
        assert asked.commit([CountFingerprint(IDLE, "ld:p:new", NO_OWNER)]).at == clock[0]
        assert asked.settle(Settle(sliding, "ld:p:k", done.at)) == 1
        assert asked.commit([ops[2]]).results[0].changed == "opened"
        assert asked.commit([ops[2]]).results[0].wait_s == 300.0
        asked.correct(AdjustCharge(TEN, "tb:p:k", 1.0))
        assert asked.commit([TakeTokens(TEN, "tb:p:k", 0.0, NO_LIMITER, NO_RULE)]).results == [4.0]


# -- servers that refuse -----------------------------------------------------------------------------------------------


def test_a_script_that_is_gone_is_loaded_again(asked: Asked, any_server: Server) -> None:
    """A server that was restarted, or flushed; each call is carried out once, and so are many at once (S-2)."""
    client = raw(any_server)
    for used in (1, 2, 3):
        client.script_flush()
        assert asked.commit([ChargeBudget(BudgetSpec(9), "cb:p:k", 1, LATER, NO_LIMITER, NO_RULE)]).results == [used]
        client.script_flush()
        assert asked.settle(Settle(COOLING, "cnt:p:none", 0.0, 1)) == 0
        client.script_flush()
        assert asked.correct(AdjustCharge(BudgetSpec(9), "cb:p:k", 0)) is None
    client.script_flush()
    client.config_resetstat()
    op = ChargeBudget(BudgetSpec(999), "cb:p:many", 1, LATER, NO_LIMITER, NO_RULE)
    done = asked.connection.ask(*[lambda then: asked.store.commit([op], (), then)] * 50)
    assert [one.results[0] for one in done] == list(range(1, 51))
    assert client.info("commandstats")["cmdstat_script|load"]["calls"] == 1
    assert client.script_exists(*[one.sha.decode() for one in load_scripts()]) == [True, False, False]


def test_a_server_that_is_full_changes_nothing(own_redis: Server) -> None:
    """An error that says so, and neither half of a commit; reading goes on, and it recovers (S-3, E-5)."""
    with connected(own_redis.url) as connection:
        asked, client = Asked(connection), raw(own_redis)
        asked.commit(every_kind(), WindowWrite("win:p:s:", 0, b"old", 60.0))
        before = {key: client.get(key) for key in client.keys("*")}
        client.config_set("maxmemory-policy", "noeviction")
        client.config_set("maxmemory", "1mb")
        done = asked.commit(every_kind(), WindowWrite("win:p:s:", 1, b"new", 60.0))
        assert isinstance(done, StateError)
        assert "OOM" in str(done)
        assert isinstance(asked.probe(), StateError)
        assert isinstance(asked.correct(AdjustCharge(TEN, "tb:p:0", 1.0)), StateError)
        assert {key: client.get(key) for key in client.keys("*")} == before
        assert asked.read("win:p:s:") == [StoredWindow(1, b"old")]
        client.config_set("maxmemory", "0")
        assert asked.probe() is None
        assert asked.commit([ChargeBudget(BudgetSpec(100), "cb:p:0:1", 10, LATER, NO_LIMITER, NO_RULE)]).results == [20]


def test_a_replica_is_an_error(own_redis: Server) -> None:
    """A master that was set aside takes no writes (S-3)."""
    with connected(own_redis.url) as connection:
        asked = Asked(connection)
        assert asked.probe() is None
        raw(own_redis).replicaof("127.0.0.1", free_port())
        done = asked.commit(every_kind())
        assert isinstance(done, StateError)
        assert "READONLY" in str(done)
        assert isinstance(asked.probe(), StateError)


def test_a_busy_server_is_an_error() -> None:
    """Somebody else's script that does not end (S-3)."""
    with running({"lua-time-limit": 20}) as server, connected(server.url) as connection:
        asked, other, client = Asked(connection), raw(server), raw(server)

        def occupy() -> None:
            with pytest.raises(redis.RedisError):
                other.eval("while true do end", 0)

        busy = threading.Thread(target=occupy)
        busy.start()
        try:
            until(lambda: _says(client, "BUSY"), "a busy server")
            done = asked.commit(every_kind())
            assert isinstance(done, StateError)
            assert "BUSY" in str(done)
        finally:
            client.script_kill()
            busy.join(DEADLINE_S)
        assert isinstance(asked.commit(every_kind()), CommitResult)


def _says(client: Any, code: str) -> bool:
    try:
        client.ping()
    except redis.RedisError as error:
        return code.lower() in f"{type(error).__name__} {error}".lower()
    return False


def test_a_server_that_loads_is_an_error() -> None:
    """One that was restarted with much on its disk (S-3)."""
    options: Options = {"enable-debug-command": "local", "loading-process-events-interval-bytes": 1024}
    with running(options) as server, connected(server.url) as connection:
        asked, other, client = Asked(connection), raw(server), raw(server)
        for number in range(0, 2000, 100):
            asked.commit([TakeTokens(TEN, f"tb:p:{number + n}", 1.0, NO_LIMITER, NO_RULE) for n in range(100)])
        client.config_set("key-load-delay", 500)  # microseconds a key
        loads = threading.Thread(target=other.execute_command, args=("DEBUG", "RELOAD"))
        loads.start()
        until(lambda: _says(client, "LOADING"), "a server that loads")
        done = asked.commit(every_kind())
        loads.join(DEADLINE_S)
        assert isinstance(done, StateError)
        assert "LOADING" in str(done)
        assert isinstance(asked.commit(every_kind()), CommitResult)


# -- many at once ------------------------------------------------------------------------------------------------------


def test_many_never_overspend(any_server: Server) -> None:
    """64 callers on 8 connections; exactly the budget is spent, and every count is there (L-2, E-5)."""
    with_many: list[Connection] = [Connection(any_server.url) for _ in range(8)]
    try:
        passed: list[bool] = []

        def spend(connection: Connection) -> None:
            asked = Asked(connection)
            for _ in range(10):
                ops: list[Op] = [
                    CountFingerprint(IDLE, "ld:p:all", NO_OWNER, own_limit=10**6),
                    ChargeBudget(BudgetSpec(1000), "cb:p:all", 3, LATER, NO_LIMITER, NO_RULE),
                    TakeTokens(BucketSpec(1e-6, 1000.0), "tb:p:all", 3.0, NO_LIMITER, NO_RULE),
                ]
                passed.append(asked.commit(ops).denied_at < 0)

        threads = [threading.Thread(target=spend, args=(with_many[n % 8],)) for n in range(64)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(DEADLINE_S)
        assert (len(passed), sum(passed)) == (640, 333)
        asked = Asked(with_many[0])
        done = asked.commit(
            [
                ChargeBudget(BudgetSpec(1000), "cb:p:all", 0, LATER, NO_LIMITER, NO_RULE),
                CountFingerprint(IDLE, "ld:p:all", NO_OWNER),
            ]
        )
        used, counted = done.results
        assert (used, counted.hits) == (999, 641)
    finally:
        for connection in with_many:
            connection.close()


def test_one_of_many_writes_a_window(any_server: Server) -> None:
    """All others get the newer one, and nothing of theirs is counted (E-5)."""
    with connected(any_server.url) as connection:
        asked = Asked(connection)
        asks = [
            lambda then, n=n: asked.store.commit(
                [CountFingerprint(IDLE, "ld:p:k", NO_OWNER)], [WindowWrite("win:p:s:", 0, b"%d" % n, 60.0)], then
            )
            for n in range(64)
        ]
        done = connection.ask(*asks)
        assert [one.conflict for one in done] == [None] + [{"win:p:s:": StoredWindow(1, b"0")}] * 63
        assert asked.commit([CountFingerprint(IDLE, "ld:p:k", NO_OWNER)]).results == [FingerprintCount(2)]


# -- values nobody can read --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value", [b"", b"r", b"w", b"w1234", b"\xff" * 9, b"b" * 25, b"x" * 200, b"\x9f" + b"\x01" * 15]
)
def test_a_value_of_another_layout_counts_as_none(asked: Asked, any_server: Server, value: bytes) -> None:
    """An older or newer version's, or damaged: it is written anew, and no request fails for it (S-2, Y-2)."""
    client = raw(any_server)
    kinds = [op for op in every_kind() if isinstance(op, CountFingerprint | ChargeBudget)]
    if value[:1] != b"b":  # 25 bytes that begin with a b are a bucket
        kinds += [op for op in every_kind() if isinstance(op, TakeTokens | CheckBreaker)]  # type: ignore[misc]
    expected = asked.commit(list(kinds)).results
    for op in kinds:
        client.set(redis_key(op.key), value)
    client.set(redis_key("win:p:s:"), value)
    assert asked.settle(*[Settle(op.spec, op.key, 1.0, 1) for op in kinds if isinstance(op, CountFingerprint)]) == 0
    assert asked.read("win:p:s:") == [StoredWindow(0, b"")]
    done = asked.commit(list(kinds), WindowWrite("win:p:s:", 0, b"x", 60.0))
    assert (done.results, done.conflict) == (expected, None)
    assert asked.read("win:p:s:") == [StoredWindow(1, b"x")]
