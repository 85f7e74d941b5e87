"""Rows that may be there already, on both databases."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Column, Connection, Integer, MetaData, Table, Text, create_engine, select

from breakloop.history.schema import adding, insert, replacing, upsert
from tests.histories import DATABASES

THINGS = Table(
    "things", MetaData(), Column("a", Text, primary_key=True), Column("b", Text, primary_key=True), Column("n", Integer)
)


@pytest.fixture(params=DATABASES)
def connection(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Connection]:
    url = f"sqlite:///{tmp_path}/s.db"
    if request.param != "sqlite":
        url = request.getfixturevalue("postgres_server").url.replace("postgresql:", "postgresql+psycopg:")
    engine = create_engine(url)
    with engine.begin() as made:
        THINGS.create(made)
        made.execute(insert(made, THINGS), [{"a": "x", "b": "y", "n": 1}, {"a": "x", "b": "z", "n": 5}])
        yield made
    engine.dispose()


def things(connection: Connection) -> dict[tuple[str, str], int]:
    return {(row.a, row.b): row.n for row in connection.execute(select(THINGS))}


def test_adding(connection: Connection) -> None:
    rows = [{"a": "x", "b": "y", "n": 10}, {"a": "x", "b": "y", "n": 100}, {"a": "new", "b": "", "n": 3}]
    connection.execute(adding(connection, THINGS, ["n"]), rows)
    assert things(connection) == {("x", "y"): 111, ("x", "z"): 5, ("new", ""): 3}


def test_replacing(connection: Connection) -> None:
    connection.execute(replacing(connection, THINGS), [{"a": "x", "b": "y", "n": 10}, {"a": "k", "b": "", "n": 2}])
    assert things(connection) == {("x", "y"): 10, ("x", "z"): 5, ("k", ""): 2}


def test_upsert_changes_what_it_says(connection: Connection) -> None:
    new = insert(connection, THINGS)
    connection.execute(upsert(new, THINGS, {"n": THINGS.c.n * new.excluded.n}), {"a": "x", "b": "z", "n": 4})
    assert things(connection)["x", "z"] == 20
