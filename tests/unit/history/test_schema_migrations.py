"""Steps, forward only, on both databases."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine, create_engine, inspect
from sqlalchemy.exc import DBAPIError

from breakloop.clock import FakeClock
from breakloop.errors import HistoryError
from breakloop.history.schema import NewerSchemaError, migrate, version
from tests.histories import DATABASES, Past
from tests.postgres_servers import PostgresServer


@pytest.fixture(params=DATABASES)
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    url = f"sqlite:///{tmp_path}/m.db"
    if request.param != "sqlite":
        url = request.getfixturevalue("postgres_server").url.replace("postgresql:", "postgresql+psycopg:")
    made = create_engine(url)
    yield made
    made.dispose()


def test_steps_are_taken_once_and_in_order(engine: Engine) -> None:
    """A database of an earlier version gets what it lacks, and keeps what it has (G-2)."""
    first, second = "CREATE TABLE a (x TEXT)", "ALTER TABLE a ADD COLUMN y TEXT; CREATE TABLE b (x TEXT)"
    with engine.begin() as connection:
        assert version(connection) == 0
        migrate(connection, ())
        migrate(connection, (first,))
        assert version(connection) == 2
        connection.exec_driver_sql("INSERT INTO a (x) VALUES ('kept')")
    with engine.begin() as connection:
        migrate(connection, (first, second))
        assert version(connection) == 3
        assert connection.exec_driver_sql("SELECT x, y FROM a").all() == [("kept", None)]
        migrate(connection, (first, second))
    assert {"a", "b"} <= set(inspect(engine).get_table_names())


def test_a_new_database_needs_no_steps(engine: Engine) -> None:
    """Its tables are those of the newest version."""
    with engine.begin() as connection:
        migrate(connection, ("CREATE wrong",))
        assert version(connection) == 2


def test_a_newer_database_is_refused(engine: Engine) -> None:
    with engine.begin() as connection:
        migrate(connection, ("CREATE TABLE a (x TEXT)",))
        with pytest.raises(NewerSchemaError, match=r"written by a newer version \(schema 2, supported is 1\)"):
            migrate(connection, ())


def test_a_step_that_fails_leaves_nothing_behind(engine: Engine) -> None:
    with engine.begin() as connection:
        migrate(connection, ())
    with engine.connect() as connection:
        if connection.dialect.name == "sqlite":  # its driver begins by itself only before a change of rows
            connection.exec_driver_sql("BEGIN")
        with pytest.raises(DBAPIError, match="wrong"):
            migrate(connection, ("CREATE TABLE a (x TEXT)", "CREATE wrong"))
        connection.rollback()
        assert version(connection) == 1
    assert "a" not in inspect(engine).get_table_names()


@pytest.mark.e2e
def test_a_newer_postgresql_is_left_alone(postgres_server: PostgresServer, clock: FakeClock) -> None:
    """Nothing on a server is set aside; traffic goes on without history."""
    past = Past(postgres_server.url, clock)
    past.open().audit()
    postgres_server.execute("UPDATE breakloop_version SET version = 99")
    history = past.open()
    with pytest.raises(HistoryError, match="newer version"):
        history.audit()
    for one in past.opened:
        one.close()
