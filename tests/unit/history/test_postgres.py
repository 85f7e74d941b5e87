"""PostgreSQL by URL: what is refused at the start, what is said of failures, and that it comes back."""

from __future__ import annotations

import sys

import pytest
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from breakloop.clock import FakeClock
from breakloop.errors import HistoryError, SettingsError
from breakloop.history.database import PostgresBackend, is_postgres
from breakloop.model.records import EventFilter
from breakloop.store.sqlite import SqliteTrouble
from tests.histories import NOTHING, Past, told
from tests.postgres_servers import PASSWORD, PostgresServer

URL = "postgresql://user:canary-password@127.0.0.1:1/db"


def _unreported(_trouble: SqliteTrouble) -> None:
    """Nothing is reported in these tests."""


@pytest.mark.parametrize(
    ("where", "is_one"),
    [(URL, True), ("postgres://h/d", True), ("postgresql+psycopg://h/d", True), ("mysql://h/d", False), ("a/b", False)],
)
def test_which_urls_it_takes(where: str, is_one: bool) -> None:
    assert is_postgres(where) is is_one


@pytest.mark.parametrize(
    ("url", "words"),
    [("postgresql://user:canary@host", "names no database"), ("postgresql://user:canary@host:x/db", "not a URL")],
)
def test_a_url_that_cannot_be_right(url: str, words: str) -> None:
    """The password is in no message (Y-1)."""
    with pytest.raises(SettingsError, match=words) as caught:
        PostgresBackend(url, _unreported)
    assert "canary" not in str(caught.value)


def test_without_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """The message says what to install."""
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(SettingsError, match=r'pip install "breakloop\[postgres\]"'):
        PostgresBackend(URL, _unreported)


def test_nobody_there(clock: FakeClock) -> None:
    """No reason not to start; each call says what is wrong, without the password (S-4)."""
    past = Past(URL, clock)
    history = past.open()
    for _ in range(2):
        with pytest.raises(HistoryError, match=r"(?i)connection.*refused") as caught:
            history.events(EventFilter())
        assert "canary" not in str(caught.value)
    history.close()
    [told] = past.troubles
    assert "canary" not in str(told)
    assert told.done == "nothing is stored until it works again"


def test_what_is_said_of_failures() -> None:
    """Only the first line: PostgreSQL quotes the row in the others (Y-1)."""
    place = PostgresBackend(URL, _unreported)
    assert place.explain(OSError("first\nDETAIL: Key (a)=(canary)")) == "first"
    assert place.explain(OSError("bad canary-password here")) == "bad *** here"
    assert place.explain(PoolTimeoutError()) == "all connections are in use"
    assert (place.unfit(OSError()), place.set_aside("damaged", "")) == ("", False)


def test_settings_of_the_url_come_first() -> None:
    plain, given = (
        PostgresBackend(URL, _unreported),
        PostgresBackend(f"{URL}?application_name=mine&connect_timeout=1&options=-csearch_path=x", _unreported),
    )
    assert plain._arguments()["application_name"] == "breakloop"
    assert given._arguments() == {"prepare_threshold": None}


@pytest.mark.e2e
def test_a_server_that_goes_and_comes_back(own_postgres: PostgresServer, clock: FakeClock) -> None:
    """Orders that were acknowledged stay, failures are told, and nobody has to start anything again (G-2, K-3)."""
    history = Past(own_postgres.url, clock).open()
    history.add_audit("alice", "operator", "before", "x", {}, 1.0)
    own_postgres.stop()
    with pytest.raises(HistoryError) as caught:
        history.write([told("lost", 1.0)], NOTHING(), 1.0)
    assert PASSWORD not in str(caught.value)
    own_postgres.start()
    clock.advance(2)
    history.write([told("after", 1.0)], NOTHING(), 1.0)
    assert [event.name for event in history.events(EventFilter())] == ["after"]
    assert [record.action for record in history.audit()] == ["before"]
    history.close()


@pytest.mark.e2e
def test_a_database_that_was_replaced(postgres_server: PostgresServer, clock: FakeClock) -> None:
    """An empty one gets its tables, once it was seen that they are gone."""
    history = Past(postgres_server.url, clock).open()
    history.write([told("gone", 1.0)], NOTHING(), 1.0)
    postgres_server.execute("DROP SCHEMA public CASCADE", "CREATE SCHEMA public")
    with pytest.raises(HistoryError, match="does not exist"):
        history.events(EventFilter())
    history.write([told("new", 1.0)], NOTHING(), 1.0)
    assert [event.name for event in history.events(EventFilter())] == ["new"]
    history.close()


@pytest.mark.e2e
def test_a_wrong_password(postgres_server: PostgresServer, clock: FakeClock) -> None:
    history = Past(postgres_server.url.replace(PASSWORD, "canary-wrong"), clock).open()
    with pytest.raises(HistoryError, match="password authentication failed") as caught:
        history.audit()
    assert "canary" not in str(caught.value)
    history.close()


@pytest.mark.e2e
def test_a_foreign_table_of_our_name(postgres_server: PostgresServer, clock: FakeClock) -> None:
    """Nothing of somebody else's is changed."""
    postgres_server.execute("CREATE TABLE breakloop_events (mine TEXT)")
    history = Past(postgres_server.url, clock).open()
    with pytest.raises(HistoryError, match='relation "breakloop_events" already exists'):
        history.audit()
    postgres_server.execute("SELECT mine FROM breakloop_events")
    history.close()
