"""Steps, forward only, on both databases; and the tables are those that queries name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine, create_engine, inspect
from sqlalchemy.exc import DBAPIError

from breakloop.clock import FakeClock
from breakloop.errors import HistoryError
from breakloop.history.schema import METADATA, STEPS, NewerSchemaError, migrate, version
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
    first, second = "CREATE TABLE a (x TEXT)", "ALTER TABLE a ADD COLUMN y TEXT; CREATE TABLE b (at {real} NOT NULL)"
    with engine.begin() as connection:
        assert version(connection) == 0
        migrate(connection, (first,))
        connection.exec_driver_sql("INSERT INTO a (x) VALUES ('kept')")
    with engine.begin() as connection:
        migrate(connection, (first, second))
        assert version(connection) == 2
        assert connection.exec_driver_sql("SELECT x, y FROM a").all() == [("kept", None)]
        migrate(connection, (first, second))
    assert {"a", "b"} <= set(inspect(engine).get_table_names())


def test_a_newer_database_is_refused(engine: Engine) -> None:
    with engine.begin() as connection:
        migrate(connection, ("CREATE TABLE a (x TEXT)", "CREATE TABLE b (x TEXT)"))
        with pytest.raises(NewerSchemaError, match=r"written by a newer version \(schema 2, supported is 1\)"):
            migrate(connection, ("CREATE TABLE a (x TEXT)",))


def test_a_step_that_fails_leaves_nothing_behind(engine: Engine) -> None:
    with engine.connect() as connection:
        if connection.dialect.name == "sqlite":  # its driver begins by itself only before a change of rows
            connection.exec_driver_sql("BEGIN")
        with pytest.raises(DBAPIError, match="wrong"):
            migrate(connection, ("CREATE TABLE a (x TEXT)", "CREATE wrong"))
        connection.rollback()
        assert version(connection) == 0
    assert "a" not in inspect(engine).get_table_names()


def test_the_tables_are_those_of_the_queries(engine: Engine) -> None:
    """What is made by the steps has the columns and keys that `schema` says, no more and no less."""
    with engine.begin() as connection:
        migrate(connection)
        assert version(connection) == len(STEPS)
    found = inspect(engine)
    assert set(found.get_table_names()) - {"breakloop_version"} - {"sqlite_sequence"} == set(METADATA.tables)
    for name, table in METADATA.tables.items():
        columns = {column["name"]: (str(column["type"]), column["nullable"]) for column in found.get_columns(name)}
        wanted = {column.name: _kind(column.type.compile(engine.dialect), engine) for column in table.c}
        wanted |= {"id": "INTEGER"} if engine.dialect.name == "sqlite" and wanted.get("id") == "BIGINT" else {}
        assert {column: kind for column, (kind, _) in columns.items()} == wanted, name
        nullable = {column.name for column in table.c if column.nullable}
        assert {column for column, (_, free) in columns.items() if free} - {"id"} == nullable, name
        keys = found.get_pk_constraint(name)["constrained_columns"]
        assert keys == [column.name for column in table.primary_key.columns], name


def _kind(kind: str, engine: Engine) -> str:
    return {"DOUBLE": "REAL"}.get(kind, kind) if engine.dialect.name == "sqlite" else kind


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
