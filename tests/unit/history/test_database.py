"""The way to the database: opened late and again, one writer, failures as one kind of error."""

from __future__ import annotations

import threading

import pytest
from sqlalchemy import Connection, Engine, create_engine
from sqlalchemy.exc import OperationalError

from breakloop.clock import FakeClock
from breakloop.errors import HistoryError
from breakloop.history.database import DatabaseBackend, HistoryDatabase
from breakloop.history.store import History
from breakloop.model.events import Event
from breakloop.model.records import EventFilter
from tests.deadlines import DEADLINE_S
from tests.histories import NOTHING, Past, told


class FakePlace(DatabaseBackend):
    """A database in memory that fails as often as it is told to."""

    def __init__(self) -> None:
        self.failures: list[Exception] = []
        self.kind = ""
        self.heard: list[str] = []
        self.engines = 0

    def engine(self) -> Engine:
        self.engines += 1
        if self.failures:
            raise self.failures.pop()
        return create_engine("sqlite://")

    def begin(self, connection: Connection, *, durable: bool) -> None:
        connection.begin()

    def is_moved(self) -> bool:
        return False

    def explain(self, error: Exception) -> str:
        return f"wrong: {error}".partition("\n")[0]

    def unfit(self, error: Exception) -> str:
        return self.kind

    def set_aside(self, kind: str, wrong: str) -> bool:
        self.heard.append(f"{kind} aside")
        return kind == "damaged"

    def failed(self, wrong: str) -> None:
        self.heard.append(wrong)

    def works(self) -> None:
        self.heard.append("works")

    def tidy(self, connection: Connection) -> None:
        self.heard.append("tidy")


def ask(database: HistoryDatabase) -> object:
    with database.reading() as connection:
        return connection.exec_driver_sql("SELECT 1").scalar_one()


def test_nothing_is_opened_before_it_is_needed(clock: FakeClock) -> None:
    place = FakePlace()
    database = HistoryDatabase(place, clock)
    database.close()
    assert place.engines == 0
    assert ask(database) == 1
    database.close()
    assert ask(database) == 1
    assert place.engines == 2
    database.tidy()
    assert place.heard == ["tidy"]
    database.close()


def test_after_a_failed_opening_it_is_not_tried_for_a_second(clock: FakeClock) -> None:
    """Whoever asks need not wait for each connection that is not made."""
    place = FakePlace()
    place.failures = [OSError("no way")]
    database = HistoryDatabase(place, clock)
    for _ in range(3):
        with pytest.raises(HistoryError, match="wrong: no way"):
            ask(database)
    assert place.engines == 1
    clock.advance(1.0)
    assert ask(database) == 1
    database.close()


@pytest.mark.parametrize(("kind", "opened"), [("damaged", True), ("stays", False)])
def test_what_is_unfit_is_set_aside_and_made_anew(clock: FakeClock, kind: str, opened: bool) -> None:
    place = FakePlace()
    place.kind, place.failures = kind, [OSError("broken")]
    database = HistoryDatabase(place, clock)
    if opened:
        assert ask(database) == 1
    else:
        with pytest.raises(HistoryError, match="broken"):
            ask(database)
    assert place.heard[0] == f"{kind} aside"
    database.close()


def test_what_fails_late_does_not_set_the_new_one_aside(clock: FakeClock) -> None:
    """Two threads find the same damage; the first has begun a new file when the second tells of it."""
    place = FakePlace()
    database = HistoryDatabase(place, clock)
    ask(database)
    old = database._engine
    assert old is not None
    database.close()
    ask(database)
    place.kind = "damaged"
    assert database._failed(OSError("late"), old) == "wrong: late"
    assert place.heard == []
    now = database._engine
    assert now is not None
    database._failed(OSError("now"), now)
    assert place.heard == ["damaged aside"]


def test_one_writes_at_a_time(clock: FakeClock) -> None:
    database = HistoryDatabase(FakePlace(), clock)
    with database.writing():
        assert database._writer.locked()
        assert ask(database) == 1
    assert not database._writer.locked()
    database.close()


def test_a_failure_says_nothing_of_the_data(clock: FakeClock) -> None:
    """The words of an error are the place's; its cause is cut off (Y-1)."""
    place = FakePlace()
    database = HistoryDatabase(place, clock)
    with pytest.raises(HistoryError, match="wrong") as caught, database.reading() as connection:
        connection.exec_driver_sql("SELECT nothing FROM nowhere WHERE x = ?", ("canary",))
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__
    assert place.heard == [str(caught.value)]
    database.close()


def test_an_error_of_the_caller_is_the_callers(history: History, clock: FakeClock) -> None:
    """And nothing of its transaction is kept."""

    class Broken(dict[str, object]):
        def items(self) -> object:  # type: ignore[override]
            raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        history.write([told("a", 1.0), Event("b", 1.0, Broken(x=1))], NOTHING(), 1.0)
    assert history.events(EventFilter()) == []
    history.write([told("c", 1.0)], NOTHING(), 1.0)
    assert [event.name for event in history.events(EventFilter())] == ["c"]


def test_many_threads(past: Past) -> None:
    """One writes at a time, others read meanwhile; nobody fails and nothing is lost."""
    history, errors = past.open(), []
    begin = threading.Barrier(8)

    def work(number: int) -> None:
        begin.wait(DEADLINE_S)
        try:
            for index in range(10):
                if number % 2:
                    history.write([told(f"t{number}", 1.0 + index)], NOTHING(), 1.0 + index)
                    history.add_audit(f"w{number}", "operator", "a", "b", {}, 1.0)
                else:
                    history.events(EventFilter())
                    history.totals(0.0)
        except HistoryError as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)
    assert errors == []
    assert len(history.events(EventFilter(most=1000))) == 40
    assert len(history.audit(most=1000)) == 40


def test_two_instances_share_a_database(past: Past) -> None:
    """Ids grow for both, and each sees what the other wrote at once."""
    one, other = past.open(), past.open()
    for index in range(6):
        (one, other)[index % 2].write([told(f"e{index}", 1.0)], NOTHING(), 1.0)
    found = [(event.id, event.name) for event in other.events(EventFilter(after=0))]
    assert found == [(index + 1, f"e{index}") for index in range(5, -1, -1)]


def test_sqlalchemy_speaks_of_what_is_wrong() -> None:
    """What `FakePlace` stands in for: errors of the driver come wrapped."""
    engine = create_engine("sqlite:////nowhere/at/all.db")
    with pytest.raises(OperationalError):
        engine.connect()
    engine.dispose()
