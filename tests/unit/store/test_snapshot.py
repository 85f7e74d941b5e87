"""The durable companion: what changed is saved every second and is there again after a restart."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import TypeVar

import pytest

from breakloop.app.build import aside
from breakloop.clock import FakeClock
from breakloop.store.limit_ops import BreakerSpec, CheckBreaker
from breakloop.store.ops import AdjustCharge, BreakerResult, CountFingerprint, FingerprintCount, FingerprintSpec, Settle
from breakloop.store.snapshot import Snapshotter
from breakloop.store.snapshot_file import WINDOWS, EntryPacker
from tests.deadlines import DEADLINE_S
from tests.durable_state import SLOW, SPEND, Life, at_once, files, state_file
from tests.stores import NO_LIMITER, NO_OWNER, NO_RULE

T = TypeVar("T")
START = 1_800_000_000.0
COOLING = FingerprintSpec(60.0, 2, sliding=True, cooldown_s=30.0, growth=2.0, cooldown_max_s=100.0)
IDLE = FingerprintSpec(60.0, 5, retry_free=3)
BREAKER = BreakerSpec(10.0, 0.0)


def hit(life: Life, spec: FingerprintSpec, key: str) -> FingerprintCount:
    result = life.store.commit([CountFingerprint(spec, key, NO_OWNER)], life.clock.steady()).results[0]
    assert isinstance(result, FingerprintCount)
    return result


def meter(life: Life, key: str, amount: float, spec: BreakerSpec = BREAKER) -> BreakerResult:
    result = life.store.commit([CheckBreaker(spec, key, amount, NO_LIMITER, NO_RULE)], life.clock.steady()).results[0]
    assert isinstance(result, BreakerResult)
    return result


def test_what_ends_at_the_moment_of_a_start_is_gone(tmp_path: Path, clock: FakeClock) -> None:
    """An entry is there until its expiry, and not at it (S-1)."""
    life = Life(tmp_path, clock)
    life.take("tb:a", 30.0)
    (ends,) = [entry[0] for entry in life.durable._tables["buckets"].values()]
    life.end()
    clock.advance(ends - clock.steady())
    assert Life(tmp_path, clock).loaded == 0


@pytest.mark.parametrize("how", ["end", "kill"])
def test_everything_outlives_the_process(tmp_path: Path, how: str, clock: FakeClock) -> None:
    """Counts, cooldowns, traffic, landed calls, buckets, budgets, breakers and windows (S-1)."""
    life = Life(tmp_path, clock)
    for _ in range(3):
        hit(life, COOLING, "ld:cooling")
    hit(life, COOLING, "ld:sliding")
    hit(life, IDLE, "ld:idle")
    life.store.commit([CountFingerprint(IDLE, "ld:sent", NO_OWNER).within("mix:sender")], clock.steady())
    landing = replace(IDLE, limit=0, land_calls=2)
    life.store.commit([CountFingerprint(landing, "ld:landed", NO_OWNER).landing("land:session")], clock.steady())
    life.take("tb:a", 30.0)
    life.spend("tpd:a", 7)
    life.spend("tpd:spent", 500_000)
    meter(life, "cb:closed", 4.0)
    meter(life, "cb:open", 11.0)
    life.write("win:a", b"\x00window")
    before = life.tables()
    if how == "kill":
        life.save()
    getattr(life, how)()
    after = Life(tmp_path, clock)
    assert after.tables() == before
    assert [len(table) for table in before.values()] == [4, 1, 1, 1, 1, 1, 1, 1, 1, 1]
    assert (after.loaded, after.told, after.durable.keeps) == (13, [], True)
    assert hit(after, COOLING, "ld:cooling")[:2] == (4, True)
    assert hit(after, COOLING, "ld:sliding").hits == 2
    assert hit(after, IDLE, "ld:idle").hits == 2
    assert after.take("tb:a") == 69.0
    assert after.spend("tpd:a") == 8
    assert meter(after, "cb:closed", 1.0).rate == 5.0
    assert meter(after, "cb:open", 1.0).open
    assert after.store.read_window("win:a", clock.now()) == (1, b"\x00window")
    after.end()


def test_what_was_not_saved_is_all_that_is_lost(tmp_path: Path, clock: FakeClock) -> None:
    """At most the last second (S-1)."""
    life = Life(tmp_path, clock)
    life.spend("tpd:a", 5)
    life.save()
    life.spend("tpd:a", 5)
    life.spend("tpd:b", 5)
    life.kill()
    after = Life(tmp_path, clock)
    assert (after.spend("tpd:a"), after.spend("tpd:b")) == (6, 1)
    after.end()


@pytest.mark.parametrize("save_between", [True, False])
def test_what_is_dropped_stays_dropped(tmp_path: Path, clock: FakeClock, save_between: bool) -> None:
    """What an operator released does not come back with a restart, nor a count that a cooldown replaced (G-1)."""
    life = Life(tmp_path, clock)
    for key in ("tpd:a:1", "tpd:a:2", "tpd:b"):
        life.spend(key)
    for _ in range(2):
        hit(life, COOLING, "ld:x")
    meter(life, "cb:x", 5.0)
    if save_between:
        life.save()
    life.store.drop(["tpd:b"])
    life.store.drop(["tpd:a:1", "tpd:a:2"])
    hit(life, COOLING, "ld:x")
    meter(life, "cb:x", 6.0)
    life.save()
    before = life.tables()
    life.kill()
    after = Life(tmp_path, clock)
    assert after.tables() == before
    assert (list(before["accounts"]), list(before["counts"]), list(before["rates"])) == ([], [], [])
    assert (list(before["cooldowns"]), list(before["open"])) == (["ld:x"], ["cb:x"])
    after.end()


def test_changes_in_place_are_saved(tmp_path: Path, clock: FakeClock) -> None:
    """What is corrected or taken back after a save (S-1)."""
    life = Life(tmp_path, clock)
    spec = FingerprintSpec(60.0, 5, sliding=True, retry_free=3)
    hit(life, IDLE, "ld:idle")
    hit(life, IDLE, "ld:idle")
    hit(life, spec, "ld:sliding")
    at = clock.now()
    clock.advance(1.0)
    hit(life, spec, "ld:sliding")
    life.spend("tpd:a", 100)
    life.take("tb:a", 10.0)
    life.save()
    now = clock.now()
    settled = life.store.settle([Settle(IDLE, "ld:idle", at), Settle(spec, "ld:sliding", at)], now, failed=True)
    assert settled == 2
    life.store.correct([AdjustCharge(SPEND, "tpd:a", -40), AdjustCharge(SLOW, "tb:a", 5.0)], now)
    before = life.tables()
    life.save()
    life.kill()
    after = Life(tmp_path, clock)
    assert after.tables() == before
    assert hit(after, spec, "ld:sliding").hits == 2
    assert (hit(after, IDLE, "ld:idle").hits, after.spend("tpd:a"), after.take("tb:a")) == (2, 61, 84.0)
    after.end()


@pytest.mark.parametrize("behind_s", [0.5, 3600.0, 86_400.0, 1e9])
def test_a_clock_that_was_set_back_between_two_processes(tmp_path: Path, behind_s: float) -> None:
    """Nothing refills twice, and nothing stands still: time goes on from where it was (S-1)."""
    before, after = FakeClock(START), FakeClock(START - behind_s)
    life = Life(tmp_path, before)
    life.take("tb:a", 100.0)
    life.end()
    life = Life(tmp_path, after)
    assert life.take("tb:a") == -1.0
    after.advance(1000.0)
    assert life.take("tb:a") == 0.0
    assert after.now() == START - behind_s + 1000.0
    life.end()
    assert life.told == []


@pytest.mark.parametrize("step_s", [-86_400.0, 86_400.0, 1e9])
def test_a_clock_that_was_set_while_the_process_ran(tmp_path: Path, step_s: float) -> None:
    """A machine that starts with the wrong time, and is corrected: the next process counts the time in between, and knows
    what the previous one knew (S-1)."""
    clock = FakeClock(START)
    life = Life(tmp_path, clock)
    life.take("tb:a", 100.0)
    clock.step(step_s)
    life.spend("tpd:a", 7, seconds=9000.0)
    life.save()
    life.end()
    life = Life(tmp_path, FakeClock(START + step_s + 2000.0))
    assert life.take("tb:a") == 1.0
    assert life.spend("tpd:a") == 8
    life.end()


def test_what_began_in_the_future_lasts_as_long_as_it_was_to(tmp_path: Path) -> None:
    """A process that was started while the clock was a day ahead; the next one starts with the right time (S-1)."""
    life, reset = Life(tmp_path, FakeClock(START + 86_400.0)), BreakerSpec(10.0, 70.0)
    assert [hit(life, COOLING, "ld:cooling").wait_s for _ in range(3)] == [0.0, 0.0, 30.0]
    hit(life, COOLING, "ld:sliding")
    assert meter(life, "cb:open", 11.0, reset).open
    life.end()
    clock = FakeClock(START)
    life = Life(tmp_path, clock)
    assert hit(life, COOLING, "ld:cooling").wait_s == 30.0
    clock.advance(30.0)
    assert not hit(life, COOLING, "ld:cooling").tripped
    clock.advance(30.0)
    assert hit(life, COOLING, "ld:sliding").hits == 1
    assert meter(life, "cb:open", 0.0, reset).wait_s == 10.0
    clock.advance(10.0)
    assert not meter(life, "cb:open", 0.0, reset).open
    life.end()


def test_a_file_of_an_earlier_version(tmp_path: Path) -> None:
    """It has no distance to the time of day, and may be from the future: a process that ran in it (S-1)."""
    life = Life(tmp_path, FakeClock(START + 86_400.0))
    life.take("tb:a", 100.0)
    life.end()
    database = sqlite3.connect(state_file(tmp_path), isolation_level=None)
    database.execute("DELETE FROM meta WHERE name = 'ahead_s'")
    database.close()
    clock = FakeClock(START)
    life = Life(tmp_path, clock)
    assert life.take("tb:a") == -1.0
    clock.advance(1000.0)
    assert life.take("tb:a") == 0.0
    life.end()


def test_expired_entries_are_left_out(tmp_path: Path, clock: FakeClock) -> None:
    """Also where an older row of the same key would have lived longer (S-1)."""
    life = Life(tmp_path, clock)
    life.write("win:a", b"1", ttl_s=1000.0)
    life.save()
    life.write("win:a", b"2", ttl_s=10.0)
    life.write("win:b", b"2", ttl_s=1000.0)
    life.end()
    clock.advance(10.0)  # to the moment at which it expires
    after = Life(tmp_path, clock)
    assert list(after.tables()["windows"]) == ["win:b"]
    after.end()


def test_it_is_bounded_and_the_newest_stay(tmp_path: Path, clock: FakeClock) -> None:
    """With less room than before, the least recently used are left out (S-1)."""
    life = Life(tmp_path, clock)
    for number in range(100):
        life.spend(f"tpd:{number}")
    life.save()
    life.spend("tpd:3")
    life.end()
    after = Life(tmp_path, clock, max_entries=10)
    assert list(after.tables()["accounts"]) == [*(f"tpd:{number}" for number in range(91, 100)), "tpd:3"]
    after.end()


def test_what_had_to_go_for_lack_of_room_does_not_come_back(tmp_path: Path, clock: FakeClock) -> None:
    """A larger bound after a restart changes nothing about it (S-1)."""
    life = Life(tmp_path, clock, max_entries=5)
    for number in range(8):
        life.spend(f"tpd:{number}")
        life.save()
    life.kill()
    after = Life(tmp_path, clock)
    assert list(after.tables()["accounts"]) == [f"tpd:{number}" for number in range(3, 8)]
    after.end()


def test_without_a_directory_it_does_nothing(clock: FakeClock) -> None:
    """Everything runs, only nothing is kept (S-1)."""
    life = Life(None, clock)
    life.spend("tpd:a")
    life.save()
    life.end()
    assert (life.loaded, life.told, life.durable.keeps) == (0, [], False)
    assert life.store.kept()["accounts"].dirty is None


def test_a_second_process_keeps_nothing(tmp_path: Path, clock: FakeClock) -> None:
    """Two processes on one data directory do not write over each other (S-1)."""
    first = Life(tmp_path, clock)
    first.spend("tpd:a", 5)
    second = Life(tmp_path, clock)
    second.spend("tpd:a", 70)
    second.save()
    second.end()
    (told,) = second.told
    assert "another process uses this data directory" in told
    assert "in memory only" in told
    assert (second.durable.problems, second.durable.keeps) == (1, False)
    first.end()
    third = Life(tmp_path, clock)
    assert (third.spend("tpd:a"), third.told) == (6, [])
    third.end()


def test_nothing_is_written_when_nothing_changed(tmp_path: Path, clock: FakeClock) -> None:
    """An idle process leaves the disk alone (S-1)."""
    life = Life(tmp_path, clock)
    calls = 0

    async def counted(function: Callable[[], T]) -> T:
        nonlocal calls
        calls += 1
        return function()

    life.spend("tpd:a")
    for _ in range(3):
        asyncio.run(life.durable.save(counted))
    assert calls == 1
    life.durable._whole = True
    for _ in range(3):
        asyncio.run(life.durable.save(counted))
    assert calls == 2  # to write everything again
    clock.advance(3 * 86_400.0)
    for _ in range(3):
        asyncio.run(life.durable.save(counted))
    assert calls == 3  # to remove what has expired
    life.end()


def test_rows_are_put_together_though_nothing_changed(
    tmp_path: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A round of compaction that a save has begun goes on with the next ones (S-1)."""
    monkeypatch.setattr("breakloop.store.snapshot_file._ROOM_ROWS", 3)
    monkeypatch.setattr("breakloop.store.snapshot_file._STEP_ROWS", 0)
    life = Life(tmp_path, clock)
    for _ in range(4):
        life.spend("tpd:a")
        asyncio.run(life.durable.save(at_once))
    assert life.durable._file is not None
    before = len(life.durable._file.rows.all)
    for _ in range(3):
        asyncio.run(life.durable.save(at_once))
    assert len(life.durable._file.rows.all) < before
    life.end()


def test_never_two_saves_at_once(tmp_path: Path, clock: FakeClock) -> None:
    """One that is slow makes the next one larger (S-1)."""
    life = Life(tmp_path, clock)
    running = most = 0

    async def slowly(function: Callable[[], T]) -> T:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        life.spend("tpd:b")
        running -= 1
        return function()

    async def both() -> None:
        life.spend("tpd:a")
        await asyncio.gather(*(life.durable.save(slowly) for _ in range(5)))
        await life.durable.save(at_once)

    asyncio.run(both())
    assert most == 1
    life.kill()
    after = Life(tmp_path, clock)
    assert (after.spend("tpd:a"), after.spend("tpd:b")) == (2, 2)
    after.end()


@pytest.mark.parametrize("stage", ["gather", "write"])
def test_a_save_that_is_cut_off_is_made_good_at_the_end(tmp_path: Path, clock: FakeClock, stage: str) -> None:
    """A shutdown in the middle of a save loses nothing, while its thread may still be writing (S-6)."""
    life = Life(tmp_path, clock)
    for number in range(2000):
        life.spend(f"tpd:{number}")
    go = Event()

    async def held(function: Callable[[], T]) -> T:
        def work() -> T:
            go.wait(DEADLINE_S)
            return function()

        return await aside(work)

    async def cut_off() -> None:
        task = asyncio.create_task(life.durable.save(held))
        for _ in range(2 if stage == "gather" else 20):
            await asyncio.sleep(0)
        task.cancel()
        life.durable.finish()  # at once, as `runtime` does: the task has not heard of it yet
        go.set()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cut_off())
    after = Life(tmp_path, clock)
    assert (after.loaded, after.spend("tpd:1999")) == (2000, 2)
    after.end()


def test_the_next_save_has_what_one_that_was_cancelled_had_taken(tmp_path: Path, clock: FakeClock) -> None:
    """Nothing is lost, and the next save is not kept waiting (S-1)."""
    life = Life(tmp_path, clock)
    for number in range(2000):
        life.spend(f"tpd:{number}")

    async def cancelled() -> None:
        task = asyncio.create_task(life.durable.save(at_once))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await life.durable.save(at_once)

    asyncio.run(cancelled())
    life.kill()
    after = Life(tmp_path, clock)
    assert after.loaded == 2000
    after.end()


def test_the_end_does_not_wait_for_ever(tmp_path: Path, clock: FakeClock) -> None:
    """A disk that hangs costs the last second, not the shutdown (S-6)."""
    life = Life(tmp_path, clock)
    life.spend("tpd:a")
    file = life.durable._file
    assert file is not None
    with file._lock:  # somebody is writing and does not come back
        life.durable.finish(timeout_s=0.05)
    assert life.told == [f"{state_file(tmp_path)} could not be written within 0 s: the last second is lost"]
    file.finish()  # its thread can write now, and must not open the file after this test


def test_keys_that_are_no_text(tmp_path: Path, clock: FakeClock) -> None:
    """Half a surrogate pair out of a client's JSON, and a sum beyond all bounds (S-1)."""
    life = Life(tmp_path, clock)
    life.spend("tpd:\ud83d")
    life.spend("tpd:b")
    life.store.kept()["accounts"].change("tpd:c", (clock.now() + 90_000.0, 2**70))
    life.end()
    after = Life(tmp_path, clock)
    assert (after.spend("tpd:\ud83d"), after.spend("tpd:b"), after.spend("tpd:c")) == (2, 2, 2**63)
    assert (after.told, files(tmp_path)) == ([], ["state.db", "state.db-shm", "state.db-wal"])
    after.end()
    assert files(tmp_path) == ["state.db"]


def test_what_moves_during_a_save_is_not_lost(tmp_path: Path, clock: FakeClock) -> None:
    """A count that becomes a cooldown while it is gathered is saved as one or the other, not as gone (S-1)."""
    life = Life(tmp_path, clock)
    hit(life, COOLING, "ld:x")
    life.save()
    for number in range(600):
        hit(life, COOLING, f"ld:{number}")
    hit(life, COOLING, "ld:x")

    async def moving() -> None:
        task = asyncio.create_task(life.durable.save(at_once))
        await asyncio.sleep(0)
        assert hit(life, COOLING, "ld:x").fresh
        await task

    asyncio.run(moving())
    life.kill()
    after = Life(tmp_path, clock)
    assert (after.loaded, hit(after, COOLING, "ld:x").hits) == (601, 2)
    after.end()


def test_a_save_never_holds_the_loop(tmp_path: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Changed entries are gathered a few at a time, and other work of the loop comes in between (S-1)."""
    gathered: list[tuple[str, int]] = []
    gather = Snapshotter._gather

    def counting(self: Snapshotter, packer: EntryPacker, name: str, keys: list[str]) -> None:
        gathered.append((name, len(keys)))
        gather(self, packer, name, keys)

    monkeypatch.setattr(Snapshotter, "_gather", counting)
    life = Life(tmp_path, clock)
    for number in range(9000):
        life.take(f"tb:project:policy:{number}")
    for number in range(1000):
        life.write(f"win:{number}", bytes(2000))

    async def most_in_a_turn() -> tuple[int, int]:
        task, most, known, after = asyncio.create_task(life.durable.save(aside)), 0, 0, 0
        while not task.done():
            await asyncio.sleep(0)
            most, known = max(most, len(gathered) - known), len(gathered)
            after += life.durable.saved_at > 0
        return most, after

    most, after = asyncio.run(most_in_a_turn())
    assert most == 1
    assert sum(count for _, count in gathered) == 10_000
    assert max(count for name, count in gathered if name != WINDOWS) == 500
    assert max(count for name, count in gathered if name == WINDOWS) == 64
    assert after >= len(gathered)  # what was gathered is released as slowly
    life.end()


def test_a_used_up_account_outlives_the_process_and_invented_ones(tmp_path: Path, clock: FakeClock) -> None:
    """It is kept apart before and after, also where it was used up between two saves (S-1)."""
    life = Life(tmp_path, clock, max_entries=100)
    life.spend("tpd:real", 400_000)
    life.save()
    life.spend("tpd:real", 600_000)
    life.save()
    life.kill()
    after = Life(tmp_path, clock, max_entries=100)
    for number in range(1000):
        after.spend(f"tpd:{number}")
    assert after.spend("tpd:real") == 1_000_001
    assert "tpd:real" not in after.tables()["accounts"]
    after.end()
