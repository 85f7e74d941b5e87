"""Clocks: one line of time that follows the calendar, and one that never steps."""

from __future__ import annotations

import pytest

from breakloop.clock import Clock, FakeClock, SharedClock, SystemClock

START = 1_800_000_000.0
HOUR, DAY = 3600.0, 86_400.0


class Machine:
    """The clocks of a machine: `wall` is set by hand, the others by `run` and `sleep`."""

    def __init__(self) -> None:
        self.wall = START
        self.monotonic = 5000.0
        self.boot = 7000.0
        self.slow_s = 0.0  # what every reading of the wall clock takes
        self.steps: list[float] = []
        self.clock = SystemClock(self._wall, lambda: self.monotonic, lambda: self.boot)
        self.clock.on_step.append(self.steps.append)

    def _wall(self) -> float:
        self.run(self.slow_s)
        return self.wall

    def run(self, seconds: float) -> None:
        self.wall += seconds
        self.boot += seconds
        self.monotonic += seconds

    def sleep(self, seconds: float) -> None:
        self.wall += seconds
        self.boot += seconds

    def times(self) -> tuple[float, float]:
        return self.clock.now() - START, self.clock.steady() - START


def test_both_lines_begin_at_the_wall_clock() -> None:
    """Seconds since the epoch, so that what is kept on disk can be compared after a restart (S-2)."""
    machine = Machine()
    machine.run(2.5)
    assert machine.times() == (2.5, 2.5)
    assert SystemClock().now() == pytest.approx(SystemClock().steady(), abs=10)
    assert SystemClock().now() > 1_700_000_000


@pytest.mark.parametrize("step_s", [-HOUR, DAY, -1.5, 1.5])
def test_a_step_moves_the_time_of_day_and_nothing_else(step_s: float) -> None:
    """Within a second, and it is told once (S-2)."""
    machine = Machine()
    machine.run(10.0)
    machine.clock.now()
    machine.wall += step_s
    machine.run(1.0)
    assert machine.times() == (11.0 + step_s, 11.0)
    assert machine.clock.ahead_s == step_s
    machine.run(100.0)
    assert machine.times() == (111.0 + step_s, 111.0)
    assert machine.steps == [step_s]


def test_one_bad_sample_is_two_steps() -> None:
    """A day ahead for two seconds (S-2)."""
    machine = Machine()
    machine.wall += DAY
    machine.run(2.0)
    assert machine.times() == (DAY + 2.0, 2.0)
    machine.wall -= DAY
    machine.run(2.0)
    assert machine.times() == (4.0, 4.0)
    assert machine.steps == [DAY, -DAY]


def test_a_step_is_told_before_its_time_is_returned() -> None:
    """What is to last is moved along before it is compared with the new time (S-2)."""
    machine = Machine()
    seen: list[float] = []
    machine.clock.on_step.append(lambda _: seen.append(machine.clock.ahead_s))
    machine.wall += DAY
    machine.run(1.0)
    machine.clock.now()
    assert seen == [DAY]


def test_a_gradual_correction_is_no_step() -> None:
    """It is followed without notice, also after hours without a request (S-2)."""
    machine = Machine()
    machine.wall += 0.5
    machine.run(1.0)
    assert machine.times() == (1.5, 1.0)
    machine.wall += 3.0
    machine.run(HOUR)
    assert machine.times() == (HOUR + 4.5, HOUR + 1.0)
    assert machine.steps == []


def test_time_asleep_passes() -> None:
    """A laptop that was closed for a night: its limits have refilled, and waking up is no step (S-2)."""
    machine = Machine()
    machine.sleep(8 * HOUR)
    machine.run(1.0)
    assert machine.times() == (8 * HOUR + 1.0, 8 * HOUR + 1.0)
    assert (machine.steps, machine.clock.ahead_s) == ([], 0.0)
    machine.run(1.0)
    assert machine.times() == (8 * HOUR + 2.0, 8 * HOUR + 2.0)


def test_an_interruption_between_two_readings_is_no_step() -> None:
    """The process was stopped for five seconds; it compares again (S-2)."""
    machine = Machine()
    machine.run(1.0)
    machine.slow_s = 5.0
    assert machine.clock.now() == START + 1.0
    machine.slow_s = 0.0
    assert machine.times() == (6.0, 6.0)
    assert machine.steps == []


def test_the_steady_time_continues_from_a_previous_process() -> None:
    """Ahead of the wall clock or behind it; the time of day is not touched (S-1)."""
    for before in (START + DAY, START - DAY):
        machine = Machine()
        machine.clock.resume(before)
        machine.run(5.0)
        assert machine.clock.steady() == before + 5.0
        assert machine.clock.now() == START + 5.0
        assert machine.clock.ahead_s == START - before
        assert machine.steps == []


def test_the_fake_clock() -> None:
    """Moves only when told, in both directions (E-7)."""
    clock = FakeClock(10.0)
    line: Clock = clock
    steps: list[float] = []
    clock.on_step.append(steps.append)
    assert (line.now(), line.now()) == (10.0, 10.0)
    clock.advance(2.5)
    assert (clock.now(), clock.steady()) == (12.5, 12.5)
    clock.advance(-5)
    assert clock.now() == 7.5
    clock.step(-3.0)
    assert (clock.now(), clock.steady(), clock.ahead_s, steps) == (4.5, 7.5, -3.0, [-3.0])
    clock.resume(100.0)
    assert (clock.now(), clock.steady(), clock.ahead_s) == (4.5, 100.0, -95.5)


class Shared:
    """A clock that follows a store, and what it told."""

    def __init__(self) -> None:
        self.own = FakeClock(1000.0)
        self.clock = SharedClock(self.own)
        self.steps: list[float] = []
        self.clock.on_step.append(self.steps.append)

    def answer(self, at: float) -> None:
        self.clock.adjust(at, self.clock.now())

    def answer_twice(self, at: float) -> None:
        """A second apart."""
        self.answer(at)
        self.own.advance(1.0)
        self.answer(at + 1.0)


def test_a_shared_clock_goes_by_the_store() -> None:
    """Also backwards; what may be the way of its answer is left alone (S-2)."""
    shared = Shared()
    assert shared.clock.now() == 1000.0
    shared.answer(1000.04)
    assert shared.clock.now() == 1000.0
    shared.answer(1010.0)
    assert shared.clock.now() == 1010.0
    shared.answer_twice(990.0)  # the store was replaced by one whose clock is behind
    assert shared.clock.now() == 991.0
    shared.own.advance(25.0)
    assert shared.clock.now() == 1016.0
    assert shared.steps == [10.0, -20.0]


def test_a_shared_clock_follows_the_server_that_is_ahead() -> None:
    """Of a cluster whose clocks differ; it does not go back and forth with every answer (S-2)."""
    shared = Shared()
    shared.answer(1000.0)
    for number in range(50):
        shared.answer(1005.0 + number * 0.5)
        shared.answer(1000.0 + number * 0.5)
        shared.own.advance(0.5)
    assert (shared.clock.now(), shared.steps) == (1030.0, [5.0])
    for _ in range(3):
        shared.answer(shared.clock.now() - 5.0)  # the other one has gone
        shared.own.advance(0.5)
    assert (shared.clock.now(), shared.steps) == (1026.5, [5.0, -5.0])


def test_the_first_answer_of_a_store_is_no_step() -> None:
    """It tells how far the clocks are apart; local durations begin at the store's time (S-2)."""
    shared = Shared()
    shared.answer(5000.0)
    assert (shared.clock.now(), shared.clock.steady(), shared.clock.ahead_s) == (5000.0, 5000.0, 0.0)
    assert shared.steps == []
    behind = Shared()
    behind.answer(10.0)
    assert (behind.clock.now(), behind.clock.steady(), behind.clock.ahead_s) == (10.0, 1000.0, -990.0)
    assert behind.steps == []


def test_a_late_answer_is_no_step() -> None:
    """Between sending and reading it, the loop stood still for three seconds (S-2)."""
    shared = Shared()
    shared.answer(1000.0)
    sent = shared.clock.now()
    shared.own.advance(3.0)
    shared.clock.adjust(1000.2, sent)
    assert (shared.clock.now(), shared.steps) == (1003.0, [])


def test_a_shared_clock_does_not_follow_the_steps_of_its_own_machine() -> None:
    """Only until the store has answered for the first time (S-2)."""
    shared = Shared()
    shared.own.step(HOUR)
    assert (shared.clock.now(), shared.steps) == (1000.0 + HOUR, [HOUR])
    shared.answer(1000.0 + HOUR)
    shared.own.step(-HOUR)
    assert (shared.clock.now(), shared.steps) == (1000.0 + HOUR, [HOUR])
    assert shared.clock.now() - shared.clock.ahead_s == shared.clock.steady()


def test_durations_are_not_moved_by_the_store() -> None:
    """The clock of Redis steps; what this process measures by itself does not (S-2)."""
    shared = Shared()
    shared.answer(1000.0)
    shared.answer_twice(1000.0 - HOUR)
    shared.own.advance(1.0)
    assert (shared.clock.now(), shared.clock.steady()) == (1002.0 - HOUR, 1002.0)
    assert shared.clock.now() - shared.clock.ahead_s == 1002.0
